"""BM25 through bm25s: an inverted index with the score of every term in every passage.

Okapi BM25 (Robertson et al., TREC-3, 1994) in the variant "Lucene (accurate)" of Kamphuis et al.,
Which BM25 Do You Mean? (2020):

    ln(1 + (N - n + 0.5) / (n + 0.5)) * tf / (tf + k1 * (1 - b + b * length / mean length))

Lucene itself rounds lengths to one byte, so that its scores differ in the third digit. Terms are
those of Lucene's English analysis: Unicode word boundaries (StandardTokenizer), lower case, no
possessive 's, no stop words, Porter's stems.
"""

import errno
import logging
import os
from array import array
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import regex
from numpy.typing import NDArray

from denserk.config.retrieval import Bm25Settings, StopWords
from denserk.errors import InputError, UsageError
from denserk.extras import require
from denserk.index.searcher import Rows, Scores, padding
from denserk.io.files import whole_text, write_errors
from denserk.io.vectors import DOCID

logger = logging.getLogger(__name__)

PURPOSE = "an index of --type bm25"  # what bm25s and its files are for, in messages
_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then "
    "there these they this to was will with"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())
# Letters, digits and marks; an apostrophe or stop inside a word, a point or comma inside a number.
# Chinese characters, hiragana and pictographs are terms of their own.
_IDEOGRAPH = r"[\p{Han}\p{Hiragana}]"
TERM = regex.compile(
    rf"{_IDEOGRAPH}|\p{{Extended_Pictographic}}|(?:(?!{_IDEOGRAPH})\w)+"
    r"(?:(?:(?<=\p{L})['’＇.:·](?=\p{L})|(?<=\p{N})[.,;'’＇⁄](?=\p{N}))"
    rf"(?:(?!{_IDEOGRAPH})\w)+)*"
)
# the same for lower-case ASCII, which is most text: a few times faster
ASCII_TERM = regex.compile(
    r"\w+(?:(?:(?<=[a-z])['.:](?=[a-z])|(?<=\d)[.,;'](?=\d))\w+)*", regex.ASCII
)
# what makes the measure of a stem, as Porter defines it, more than 0
VOWEL_CONSONANT = regex.compile("(?:[aeiou]|(?<=[^aeiou])y)(?:[^aeiouy]|(?<=[aeiou])y)")


class Analyzer:
    """Splits text into terms."""

    def __init__(self, settings: Bm25Settings) -> None:
        self._stop = STOP_WORDS if settings.stopwords is StopWords.LUCENE else frozenset()
        self._stem = _stemmer(settings.stemmer)
        self._terms: dict[str, str] = {}

    def __call__(self, text: str) -> list[str]:
        """Return the terms of a text, in order."""
        terms, found = self._terms, []
        lowered = text.lower()
        for word in (ASCII_TERM if lowered.isascii() else TERM).findall(lowered):
            term = terms.get(word)
            if term is None:
                term = terms[word] = self._term(word)
            if term:
                found.append(term)
        return found

    def _term(self, word: str) -> str:
        """Return the term of a lower-case word, or "" for a stop word."""
        if word[-1] == "s" and word[-2:-1] in ("'", "’", "＇"):
            word = word[:-2]
        return "" if word in self._stop or not word.strip("_") else self._stem(word)


def _stemmer(name: str) -> Callable[[str], str]:
    """Return a Snowball stemmer; `porter` is Porter's as his own program and Lucene have it.

    The program departs from the paper in three places, which Snowball does not follow: words of one
    or two letters stay; step 2 turns any "bli" into "ble"; and it turns "logi" into "log".

    >>> stem = _stemmer("porter")
    >>> [stem(word) for word in ("us", "possibly", "technology", "apologies", "logic", "houses")]
    ['us', 'possibl', 'technolog', 'apolog', 'logic', 'hous']
    """
    if name == "none":
        return str
    snowball = require("Stemmer", "BM25")
    if name not in snowball.algorithms():
        raise UsageError(
            f"--set stemmer={name}: no such stemmer",
            f"one of none, {', '.join(sorted(snowball.algorithms()))}",
        )
    published: Callable[[str], str] = snowball.Stemmer(name).stemWord
    if name != "porter":
        return published

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


def build_bm25(
    folder: Path, passages: Iterable[tuple[str, str]], settings: Bm25Settings
) -> dict[str, Any]:
    """Index (id, text) pairs; return the counts of passages and of distinct terms."""
    logger.info("the terms of the corpus are held in memory, 4 bytes each")
    model = require("bm25s", PURPOSE).BM25(k1=settings.k1, b=settings.b, method="lucene")
    analyze = Analyzer(settings)
    numbers: dict[str, int] = {}
    held: list[array[int]] = []
    with whole_text(folder / DOCID) as ids:
        for docid, text in passages:
            terms = analyze(text)
            held.append(array("i", [numbers.setdefault(t, len(numbers)) for t in terms]))
            ids.write(f"{docid}\n")
    if not numbers:
        raise InputError(folder, None, "no term in any passage", "text", "see --fields")
    logger.info("scoring terms")
    model.index((held, numbers), create_empty_token=False, show_progress=False)
    with write_errors(folder):
        try:
            model.save(folder, show_progress=False)
        except OSError as error:
            if error.errno is None:  # NumPy says how many bytes were written, and not why
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise
        for item in sorted(folder.glob("*.index.*")):
            with item.open("rb") as written:
                os.fsync(written.fileno())
    return {"count": len(held), "terms": len(numbers)}


class Bm25Index:
    """An open index of `build_bm25`, its scores memory-mapped; queries are analysed alike."""

    is_exhaustive = True

    def __init__(self, folder: Path, settings: Bm25Settings, threads: int | None = None) -> None:
        bm25s = require("bm25s", PURPOSE)
        try:
            self._model = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise InputError(
                folder, None, f"files that bm25s cannot read ({error})", PURPOSE
            ) from None
        self._analyze = Analyzer(settings)
        self._threads = threads or os.cpu_count() or 1

    def __len__(self) -> int:
        return int(self._model.scores["num_docs"])

    def search(self, queries: NDArray[np.object_], depth: int) -> tuple[Scores, Rows]:
        """Return (B, K) scores and rows for B texts; passages without a query term are no hits."""
        numbers = [self._model.get_tokens_ids(self._analyze(text)) for text in queries]
        scores, rows = padding(len(queries), depth)

        def best(query: int) -> None:
            if not numbers[query]:
                return
            found = self._model.get_scores_from_ids(numbers[query])
            hits = np.flatnonzero(found > 0)
            if len(hits) > depth:
                hits = hits[np.argpartition(-found[hits], depth - 1)[:depth]]
            hits = hits[np.lexsort((hits, -found[hits]))]
            scores[query, : len(hits)], rows[query, : len(hits)] = found[hits], hits

        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(best, range(len(queries))))
        return scores, rows
