"""Text -> the words that BM25 counts, as Lucene's English analysis has them.

Unicode's word boundaries (as Lucene's StandardTokenizer draws them), lower case, no possessive 's,
no stop words, Porter's stems.
"""

from typing import Any

import regex

from denserk.errors import UsageError
from denserk.extras import require
from denserk.settings.retrieval import StopWords

_LUCENE = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then "
    "there these they this to was will with"
)
LUCENE_STOP_WORDS = frozenset(_LUCENE.split())
STOP_WORDS = {StopWords.LUCENE: LUCENE_STOP_WORDS, StopWords.NONE: frozenset[str]()}
APOSTROPHES = "'’＇"
_IDEOGRAPH = r"[\p{Han}\p{Hiragana}]"
WORD = regex.compile(
    rf"{_IDEOGRAPH}|(?:(?!{_IDEOGRAPH})\w)+"
    r"(?:(?:(?<=\p{L})['’＇.:·](?=\p{L})|(?<=\p{N})[.,;'’＇](?=\p{N}))"
    rf"(?:(?!{_IDEOGRAPH})\w)+)*"
)
"""Letters, digits and marks; an apostrophe or stop inside a word, a point or comma inside a number.

Chinese characters and hiragana stand alone.
"""
ASCII_WORD = regex.compile(
    r"\w+(?:(?:(?<=[a-z])['.:](?=[a-z])|(?<=\d)[.,;'](?=\d))\w+)*", regex.ASCII
)
"""The same for lower-case ASCII, which is most text: a few times faster."""


class Words:
    """Splits text into words and brings each to its stem.

    Args:
        stemmer: the name of a Snowball stemmer, or "none".
        stopwords: which words are left out.

    Raises:
        UsageError: there is no such stemmer.
        MissingExtraError: PyStemmer is not installed.

    >>> Words("porter", StopWords.LUCENE)("The dog's 3.5 barking friends aren't in U.S. houses")
    ['dog', '3.5', 'bark', 'friend', "aren't", 'u.', 'hous']
    """

    def __init__(self, stemmer: str, stopwords: StopWords) -> None:
        self._stop = STOP_WORDS[stopwords]
        self._stemmer = _stemmer(stemmer)
        self._stems: dict[str, str] = {}

    def __call__(self, text: str) -> list[str]:
        """The stems of a text, in order; stop words leave no trace."""
        stems = self._stems
        found = []
        lowered = text.lower()
        pattern = ASCII_WORD if lowered.isascii() else WORD
        for word in pattern.findall(lowered):
            stem = stems.get(word)
            if stem is None:
                stem = stems[word] = self._stem(word)
            if stem:
                found.append(stem)
        return found

    def _stem(self, word: str) -> str:
        """The stem of one lower-case word; empty where nothing is left to count."""
        if word[-1] == "s" and len(word) > 1 and word[-2] in APOSTROPHES:
            word = word[:-2]
        if word in self._stop or not word.strip("_"):
            return ""
        return word if self._stemmer is None else str(self._stemmer.stemWord(word))


def _stemmer(name: str) -> Any:
    if name == "none":
        return None
    snowball = require("Stemmer", "BM25")
    if name not in snowball.algorithms(aliases=True):
        raise UsageError(
            f"--stemmer {name}: no such stemmer",
            f"one of none, {', '.join(sorted(snowball.algorithms()))}",
        )
    return snowball.Stemmer(name)
