r"""Evaluation by answer strings instead of relevance judgments, as in open-domain QA (DPR).

V. Karpukhin et al., "Dense Passage Retrieval for Open-Domain Question Answering" (EMNLP 2020), and
its released evaluation. Text and answer are normalised to Unicode NFD and cut into tokens: runs of
letters, numbers and marks, or single other characters that are neither separator nor control. A
passage matches if the lower-cased tokens of an answer occur in it one after another. With regular
expressions (CuratedTREC) it matches if one is found, ignoring case.

A matching hit counts as relevant; top-k accuracy, also called R@k in QA papers, is Success@k.

Memory grows with the questions and their best hits. The corpus is streamed once, and the texts of
the hits are kept on disk (in TMPDIR).
"""

import logging
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from unicodedata import normalize

import regex

from denserk.config import evaluation
from denserk.errors import DenserkError

logger = logging.getLogger(__name__)

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
_SPLIT = "\0"  # between tokens; a control character, and so in none of them
CHUNK = 8  # questions that a worker process takes at a time


def tokens_of(text: str) -> list[str]:
    """Return the lower-cased tokens of a text.

    >>> tokens_of("The U.S., in 1990")
    ['the', 'u', '.', 's', '.', ',', 'in', '1990']
    """
    tokens: list[str] = _TOKEN.findall(normalize("NFD", text))
    return [token.lower() for token in tokens]


def match_answers(
    answers: Sequence[str], texts: Sequence[str], *, regex: bool = False, strict: bool = False
) -> tuple[list[bool], list[str]]:
    r"""Return which texts hold an answer of a question, and the answers that cannot be looked for.

    Those have no token (only blanks, say). With `regex`, answers are regular expressions, and an
    invalid one matches nothing. With `strict`, an answer without a token matches every text, as in
    DPR's own code.

    >>> match_answers(["New York", "NYC"], ["in new\nyork, 1990", "a newer york"])
    ([True, False], [])
    >>> match_answers([r"19\d\d", "("], ["in 1990"], regex=True)
    ([True], ['('])
    """
    normalised_texts = [normalize("NFD", text) for text in texts]
    if regex:
        return _match_patterns(answers, normalised_texts)
    tokens_by_answer = {answer: tokens_of(answer) for answer in answers}
    unusable = [answer for answer, tokens in tokens_by_answer.items() if not tokens]
    if strict and unusable:
        return [True for _ in texts], unusable
    usable = [tokens for tokens in tokens_by_answer.values() if tokens]
    return _match_tokens(usable, normalised_texts), unusable


def _match_patterns(answers: Sequence[str], texts: Sequence[str]) -> tuple[list[bool], list[str]]:
    """Return which texts match a regular expression, and the answers that are none."""
    patterns: dict[str, re.Pattern[str]] = {}
    unusable: dict[str, None] = {}  # a set in order
    for answer in answers:
        try:
            patterns[answer] = re.compile(normalize("NFD", answer), re.IGNORECASE | re.MULTILINE)
        except (re.error, OverflowError, RecursionError):
            unusable[answer] = None
    matches = []
    for text in texts:
        matches.append(any(pattern.search(text) for pattern in patterns.values()))
    return matches, list(unusable)


def _match_tokens(answers: Sequence[Sequence[str]], texts: Sequence[str]) -> list[bool]:
    """Return which texts hold the tokens of an answer one after another."""
    longest_token_by_answer = {}
    for tokens in answers:
        longest_token_by_answer[_joined(tokens)] = max(tokens, key=len).casefold()
    matches = []
    for text in texts:
        # a passage without an answer's longest token need not be tokenized
        folded = text.casefold()
        candidates = [
            answer for answer, token in longest_token_by_answer.items() if token in folded
        ]
        joined_text = _joined(tokens_of(text)) if candidates else ""
        matches.append(any(answer in joined_text for answer in candidates))
    return matches


def _joined(tokens: Iterable[str]) -> str:
    """Return tokens as one text, in which a sequence of tokens is found as a substring."""
    return f"{_SPLIT}{_SPLIT.join(tokens)}{_SPLIT}"


Texts = Sequence[Sequence[str]]  # of each question
Judge = Callable[[Texts, Texts], Iterable[tuple[list[bool], list[str]]]]


@contextmanager
def judging(settings: evaluation.AnswerSettings) -> Iterator[Judge]:
    """Yield `match_answers` for many questions (answers, texts), in `num_workers` processes."""
    match = partial(match_answers, regex=settings.regex, strict=settings.strict_dpr)
    if settings.num_workers == 1:
        yield partial(map, match)
        return
    pool = ProcessPoolExecutor(
        max_workers=settings.num_workers,
        mp_context=get_context("spawn"),  # a fork would not survive other threads
        initializer=signal.signal,  # Ctrl-C is for this process, which ends the others
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        with pool:
            for _ in range(settings.num_workers):  # a pool that breaks while it starts one hangs
                pool.submit(int)
            yield partial(pool.map, match, chunksize=CHUNK)
    except BrokenProcessPool:
        message = "a process that looks for answers was killed"
        hint = "was there enough memory? --num-workers 1 uses no other process"
        raise DenserkError(message, hint) from None
