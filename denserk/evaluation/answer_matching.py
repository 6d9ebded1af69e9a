r"""Whether a passage contains an answer, as DPR decides it.

V. Karpukhin et al., "Dense Passage Retrieval for Open-Domain Question Answering" (EMNLP 2020), and
its released evaluation. Text and answer are normalised to Unicode NFD and cut into tokens: runs of
letters, numbers and marks, or single other characters that are neither separator nor control. A
passage matches where an answer's lower-cased tokens stand in it one after another. With regular
expressions (CuratedTREC) it matches where one is found, cases aside.
"""

import re
from collections.abc import Iterable, Sequence
from unicodedata import normalize

import regex

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
_SPLIT = "\0"
"""Stands between tokens; it is a control character, and so in none."""


def words(text: str) -> list[str]:
    """The lower-cased tokens of a text.

    >>> words("The U.S., in 1990")
    ['the', 'u', '.', 's', '.', ',', 'in', '1990']
    """
    found: list[str] = _TOKEN.findall(normalize("NFD", text))
    return [token.lower() for token in found]


def _joined(tokens: Iterable[str]) -> str:
    return f"{_SPLIT}{_SPLIT.join(tokens)}{_SPLIT}"


def _folded(normal: str) -> str:
    """A normalised text, lower-cased so that its lower-cased tokens are found in it.

    Lower-casing a capital sigma depends on its neighbours, so both small ones count as one.
    """
    return normal.lower().replace("ς", "σ")


class AnswerMatcher:
    r"""The answers of one question, made ready to be looked for in many passages.

    Args:
        answers: any of them is a match.
        strict: an answer without a token (of blanks, say) matches every passage, as in DPR's own
            code; otherwise it matches none.

    >>> matcher = AnswerMatcher(["New York", "NYC"])
    >>> matcher.matches("in new\nyork, 1990"), matcher.matches("a newer york")
    (True, False)
    """

    def __init__(self, answers: Sequence[str], *, strict: bool = False) -> None:
        sequences = [words(answer) for answer in answers]
        self.tokenless = sum(not tokens for tokens in sequences)
        self._always = strict and self.tokenless > 0
        # a passage without an answer's longest token need not be cut into tokens
        self._sought = {
            _joined(tokens): _folded(max(tokens, key=len)) for tokens in sequences if tokens
        }

    def matches(self, text: str) -> bool:
        """Whether the text contains an answer."""
        if self._always:
            return True
        folded = _folded(normalize("NFD", text))
        sought = [sequence for sequence, longest in self._sought.items() if longest in folded]
        if not sought:
            return False
        joined = _joined(words(text))
        return any(sequence in joined for sequence in sought)


class PatternMatcher:
    r"""The answers of one question as regular expressions; one that is none matches nothing.

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
        """Whether a pattern is found in the text."""
        normal = normalize("NFD", text)
        return any(pattern.search(normal) for pattern in self._patterns)
