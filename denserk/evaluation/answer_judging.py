"""Which of a question's passages hold an answer, question by question, by several processes."""

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from threading import current_thread, main_thread
from typing import NamedTuple

from denserk.errors import DenserkError
from denserk.evaluation.answer_matching import AnswerMatcher, PatternMatcher
from denserk.settings.answers import AnswerSettings

SHARE = 8
"""Questions that a process takes at a time."""


class Case(NamedTuple):
    """The answers of a question, and the texts they are looked for in."""

    answers: tuple[str, ...]
    texts: tuple[str, ...]


class Verdict(NamedTuple):
    """Which texts hold an answer.

    `tokenless` counts answers without a token; `broken` are those that are no regular expression.
    """

    matches: tuple[bool, ...]
    tokenless: int = 0
    broken: tuple[str, ...] = ()


Judge = Callable[[Sequence[Case]], list[Verdict]]


def judge(case: Case, *, regex: bool = False, strict: bool = False) -> Verdict:
    """Looks for the answers of one question.

    Args:
        case: answers and texts.
        regex: answers are regular expressions.
        strict: an answer without a token matches every text.

    >>> judge(Case(("New York",), ("in new york", "in York"))).matches
    (True, False)
    """
    if regex:
        patterns = PatternMatcher(case.answers)
        found = tuple(map(patterns.matches, case.texts))
        return Verdict(found, broken=tuple(patterns.broken))
    matcher = AnswerMatcher(case.answers, strict=strict)
    return Verdict(tuple(map(matcher.matches, case.texts)), matcher.tokenless)


@contextmanager
def judging(settings: AnswerSettings) -> Iterator[Judge]:
    """Yields what judges many questions, in as many processes as the settings say.

    Raises:
        DenserkError: a process was ended from outside.
    """
    one = partial(judge, regex=settings.regex, strict=settings.strict_dpr)
    if settings.num_workers == 1:
        yield lambda cases: list(map(one, cases))
        return
    context = get_context("spawn")  # threads may be about, which a fork would not survive
    with ProcessPoolExecutor(settings.num_workers, context) as pool:
        with _interrupts_ignored():
            for _ in range(settings.num_workers):
                pool.submit(int)  # which starts a process
        try:
            yield lambda cases: list(pool.map(one, cases, chunksize=SHARE))
        except BrokenProcessPool:
            raise DenserkError(
                "a process that looks for answers was ended from outside",
                "was there memory enough? --num-workers 1 looks in this one",
            ) from None
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Processes that start meanwhile leave Ctrl-C to this one, which ends them."""
    if current_thread() is not main_thread():  # where signals cannot be set
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
