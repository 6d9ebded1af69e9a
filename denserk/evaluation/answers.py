r"""Evaluation by answer strings instead of relevance judgments, as in open-domain QA (DPR).

V. Karpukhin et al., "Dense Passage Retrieval for Open-Domain Question Answering" (EMNLP 2020), and
its released evaluation. Text and answer are normalised to Unicode NFD and cut into tokens: runs of
letters, numbers and marks, or single other characters that are neither separator nor control. A
passage matches if the lower-cased tokens of an answer occur in it one after another. With regular
expressions (CuratedTREC) it matches if one is found, ignoring case.

A matching hit counts as relevant; top-k accuracy, also called R@k in QA papers, is Success@k.
"""

import math
import re
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from threading import current_thread, main_thread
from typing import NamedTuple
from unicodedata import normalize

import regex

from denserk.errors import DenserkError, UsageError
from denserk.evaluation.measures import Measure, is_count, parse_measures, split_measures
from denserk.settings.evaluation import AnswerSettings

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
_SPLIT = "\0"  # between tokens; a control character, and so in none of them
_CHUNK = 8  # questions that a worker process takes at a time

# measures that need nothing but to know which of the hits hold an answer
POSSIBLE = ("Success", "RR", "P")
# measures that need all relevant passages of the collection, or their number
NEEDS_ALL = (
    *("AP", "nDCG", "R", "Rprec", "Bpref", "IPrec", "infAP", "SetAP", "SetF", "SetR"),
    *("NumRel", "AP_IA", "StRecall", "alpha_nDCG", "nERR_IA", "nNRBP"),
)


def tokens_of(text: str) -> list[str]:
    """Return the lower-cased tokens of a text.

    >>> tokens_of("The U.S., in 1990")
    ['the', 'u', '.', 's', '.', ',', 'in', '1990']
    """
    found: list[str] = _TOKEN.findall(normalize("NFD", text))
    return [token.lower() for token in found]


def _joined(tokens: Iterable[str]) -> str:
    return f"{_SPLIT}{_SPLIT.join(tokens)}{_SPLIT}"


def _folded(normal: str) -> str:
    """Lower-case a normalised text so that its lower-cased tokens are substrings of it.

    Lower-casing a capital sigma depends on its neighbours, so both small ones count as one.
    """
    return normal.lower().replace("ς", "σ")


class AnswerMatcher:
    r"""The answers of one question, prepared for many passages.

    Args:
        answers: any of them is a match.
        strict: an answer without a token (only blanks, say) matches every passage, as in DPR's own
            code; otherwise it matches none.

    >>> matcher = AnswerMatcher(["New York", "NYC"])
    >>> matcher.matches("in new\nyork, 1990"), matcher.matches("a newer york")
    (True, False)
    """

    def __init__(self, answers: Sequence[str], *, strict: bool = False) -> None:
        sequences = [tokens_of(answer) for answer in answers]
        self.tokenless = sum(not tokens for tokens in sequences)
        self._always = strict and self.tokenless > 0
        # a passage without an answer's longest token need not be tokenized
        self._sought = {
            _joined(tokens): _folded(max(tokens, key=len)) for tokens in sequences if tokens
        }

    def matches(self, text: str) -> bool:
        """Return whether the text contains an answer."""
        if self._always:
            return True
        folded = _folded(normalize("NFD", text))
        sought = [sequence for sequence, longest in self._sought.items() if longest in folded]
        joined = _joined(tokens_of(text)) if sought else ""
        return any(sequence in joined for sequence in sought)


class PatternMatcher:
    r"""The answers of one question as regular expressions; an invalid one matches nothing.

    Args:
        patterns: any of them is a match.

    >>> PatternMatcher([r"19\d\d", "("]).matches("in 1990")
    True
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns: list[re.Pattern[str]] = []
        self.broken: list[str] = []
        for pattern in patterns:
            try:
                compiled = re.compile(normalize("NFD", pattern), re.IGNORECASE | re.MULTILINE)
            except (re.error, OverflowError, RecursionError):
                self.broken.append(pattern)
            else:
                self._patterns.append(compiled)

    def matches(self, text: str) -> bool:
        """Return whether a pattern is found in the text."""
        normal = normalize("NFD", text)
        return any(pattern.search(normal) for pattern in self._patterns)


class Case(NamedTuple):
    """The answers of a question, and the texts in which they are looked for."""

    answers: tuple[str, ...]
    texts: tuple[str, ...]


class Verdict(NamedTuple):
    """Which texts hold an answer.

    `tokenless` counts answers without a token; `broken` are invalid regular expressions.
    """

    matches: tuple[bool, ...]
    tokenless: int = 0
    broken: tuple[str, ...] = ()


Judge = Callable[[Sequence[Case]], list[Verdict]]


def judge(case: Case, *, regex: bool = False, strict: bool = False) -> Verdict:
    """Look for the answers of one question.

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
    """Yield a function that judges many questions, in `settings.num_workers` processes.

    Raises:
        DenserkError: a process was killed.
    """
    one = partial(judge, regex=settings.regex, strict=settings.strict_dpr)
    if settings.num_workers == 1:
        yield lambda cases: list(map(one, cases))
        return
    context = get_context("spawn")  # a fork would not survive other threads
    with ProcessPoolExecutor(settings.num_workers, context) as pool:
        with _interrupts_ignored():
            for _ in range(settings.num_workers):
                pool.submit(int)  # starts a process
        try:
            yield lambda cases: list(pool.map(one, cases, chunksize=_CHUNK))
        except BrokenProcessPool:
            raise DenserkError(
                "a process that looks for answers was killed",
                "was there enough memory? --num-workers 1 uses no other process",
            ) from None
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Let processes that start meanwhile ignore Ctrl-C: this process ends them."""
    if current_thread() is not main_thread():  # where signals cannot be set
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def choose_answer_measures(texts: Iterable[str]) -> tuple[Measure, ...]:
    """Parse measures, and reject those that answers cannot give.

    Args:
        texts: lists of measures, as typed.

    Raises:
        UsageError: some are unknown or impossible; all of them are named.

    >>> [str(measure) for measure in choose_answer_measures(["success.5,20 MRR@10"])]
    ['Success@5', 'Success@20', 'RR@10']
    """
    found: dict[str, Measure] = {}
    mistakes: dict[str, None] = {}
    for token in (token for text in texts for token in split_measures(text)):
        try:
            measures = parse_measures([token]).measures
        except UsageError as error:
            mistakes[error.message] = None
            continue
        for measure in measures:
            if mistake := _mistake(measure):
                mistakes[mistake] = None
            else:
                found.setdefault(str(measure), measure)
    if mistakes or not found:
        raise UsageError(
            "; ".join(mistakes) or "no measure is named",
            f"answers allow {', '.join(f'{name}@k' for name in POSSIBLE)}; "
            "for example -m 'Success@5 Success@20 Success@100'",
        )
    return tuple(found.values())


def _mistake(measure: Measure) -> str | None:
    """Return why a measure is impossible with answers."""
    if measure.NAME in NEEDS_ALL:
        also = "; QA papers call Success@k R@k or top-k accuracy" if measure.NAME == "R" else ""
        return f"{measure} needs every relevant passage, and answers only judge the hits{also}"
    if measure.NAME not in POSSIBLE or is_count(measure):
        return f"{measure} is not measured by answers"
    others = [name for name in measure.params if name != "cutoff"]
    if others:
        return f"{measure}: a passage holds an answer or not, so no {', '.join(others)}"
    if "cutoff" not in measure.params:
        return f"{measure} needs a cutoff, as in {measure}@10: no text behind it is read"
    return None


def depth_of(measures: Iterable[Measure]) -> int:
    """Return how many hits of a question the measures look at.

    >>> depth_of(choose_answer_measures(["Success@5 P@20"]))
    20
    """
    return max(int(measure["cutoff"]) for measure in measures)


def mean_of_means(values: Mapping[str, float], groups: Mapping[str, str]) -> float:
    """Return the mean of the means of groups, each counting once whatever its size.

    Args:
        values: query -> value.
        groups: query -> its group.

    >>> mean_of_means({"a": 1.0, "b": 0.0, "c": 1.0}, {"a": "P17", "b": "P17", "c": "P20"})
    0.75
    """
    parts: dict[str, list[float]] = {}
    for qid, value in values.items():
        parts.setdefault(groups[qid], []).append(value)
    return _mean([_mean(part) for part in parts.values()])


def _mean(values: Collection[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
