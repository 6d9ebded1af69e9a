"""Text -> the words that BM25 counts, as Lucene's English analysis has them.

Unicode's word boundaries (as Lucene's StandardTokenizer draws them), lower case, no possessive 's,
no stop words, Porter's stems.
"""

from collections.abc import Callable

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
    rf"{_IDEOGRAPH}|\p{{Extended_Pictographic}}|(?:(?!{_IDEOGRAPH})\w)+"
    r"(?:(?:(?<=\p{L})['’＇.:·](?=\p{L})|(?<=\p{N})[.,;'’＇⁄](?=\p{N}))"
    rf"(?:(?!{_IDEOGRAPH})\w)+)*"
)
"""Letters, digits and marks; an apostrophe or stop inside a word, a point or comma inside a number.

Chinese characters, hiragana and pictographs stand alone.
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
        self._stem = _stemmer(stemmer)
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
                stem = stems[word] = self._shortened(word)
            if stem:
                found.append(stem)
        return found

    def _shortened(self, word: str) -> str:
        """The stem of one lower-case word; empty where nothing is left to count."""
        if word[-1] == "s" and len(word) > 1 and word[-2] in APOSTROPHES:
            word = word[:-2]
        if word in self._stop or not word.strip("_"):
            return ""
        return self._stem(word)


def _stemmer(name: str) -> Callable[[str], str]:
    if name == "none":
        return str
    snowball = require("Stemmer", "BM25")
    if name not in snowball.algorithms():
        raise UsageError(
            f"--stemmer {name}: no such stemmer",
            f"one of none, {', '.join(sorted(snowball.algorithms()))}",
        )
    stem: Callable[[str], str] = snowball.Stemmer(name).stemWord
    return porter(stem) if name == "porter" else stem


VOWEL_CONSONANT = regex.compile("(?:[aeiou]|(?<=[^aeiou])y)(?:[^aeiouy]|(?<=[aeiou])y)")
"""What makes Porter's measure of a stem more than 0."""


def porter(published: Callable[[str], str]) -> Callable[[str], str]:
    """Porter's stemmer as his own program and Lucene have it.

    The program departs from the paper in three places, which Snowball does not follow: words of one
    or two letters stay; step 2 turns any "bli" into "ble"; and it turns "logi" into "log".

    Args:
        published: the stemmer of the paper.

    >>> stem = _stemmer("porter")
    >>> [stem(word) for word in ("us", "possibly", "technology", "apologies", "logic", "houses")]
    ['us', 'possibl', 'technolog', 'apolog', 'logic', 'hous']
    """

    def stem(word: str) -> str:
        if len(word) <= 2:
            return word
        short = published(word)
        if short.endswith("bli") and VOWEL_CONSONANT.search(short[:-3]):
            return published(f"{short[:-1]}e")
        if short.endswith("logi") and VOWEL_CONSONANT.search(short[:-4]):
            return short[:-1]
        return short

    return stem
