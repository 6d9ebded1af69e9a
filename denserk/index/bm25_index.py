"""BM25 in Lucene's formula, through bm25s: every word's score in every passage, laid out by word.

Robertson et al., Okapi at TREC-3 (1994); Kamphuis et al., Which BM25 Do You Mean? (2020), the row
"Lucene (accurate)":

    ln(1 + (N - n + 0.5) / (n + 0.5)) * tf / (tf + k1 * (1 - b + b * length / mean length))

Lucene itself rounds lengths to one byte, so that its scores differ in the third digit.
"""

import errno
import os
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from denserk.errors import InputError
from denserk.extras import require
from denserk.formats.files import write_errors
from denserk.index.hit_keys import hit_keys, hits_of
from denserk.index.vector_index import Rows, Scores
from denserk.index.words import Words
from denserk.settings.retrieval import Bm25Settings

Texts = NDArray[np.object_]
"""(B,) texts of queries."""


class Bm25Builder:
    """Takes the texts of passages one by one; keeps four bytes a word until they are written."""

    def __init__(self, settings: Bm25Settings) -> None:
        self._settings = settings
        self._bm25s = require("bm25s", "an index of --type bm25")
        self._words = Words(settings.stemmer, settings.stopwords)
        self._vocabulary: dict[str, int] = {}
        self._passages: list[array[int]] = []

    def add(self, text: str) -> None:
        """Takes the next passage."""
        known = self._vocabulary
        self._passages.append(
            array("i", [known.setdefault(w, len(known)) for w in self._words(text)])
        )

    def write(self, folder: Path) -> int:
        """Scores every word and writes bm25s's files; returns the number of distinct words.

        Raises:
            InputError: no passage has a word.
            OutputError: the files cannot be written.
        """
        if not self._vocabulary:
            raise InputError(folder, None, "no word in any passage", "text", "see --fields")
        model = self._bm25s.BM25(k1=self._settings.k1, b=self._settings.b, method="lucene")
        model.index(
            (self._passages, self._vocabulary), create_empty_token=False, show_progress=False
        )
        with write_errors(folder):
            try:
                model.save(folder, show_progress=False)
            except OSError as error:
                if error.errno is None:  # NumPy tells how many bytes were written, and not why
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
                raise
            for item in sorted(folder.glob("*.index.*")):
                with item.open("rb") as written:
                    os.fsync(written.fileno())
        return len(self._vocabulary)


class Bm25Index:
    """An open index of words, its scores mapped into memory.

    Args:
        folder: what `Bm25Builder` wrote.
        settings: how it was built; queries are split and stemmed alike.
        threads: queries scored side by side.

    Raises:
        InputError: a file of bm25s is missing or broken.
    """

    is_exhaustive = True

    def __init__(self, folder: Path, settings: Bm25Settings, threads: int | None = None) -> None:
        bm25s = require("bm25s", "an index of --type bm25")
        try:
            self._model = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise InputError(
                folder, None, f"files that bm25s cannot read ({error})", "an index of --type bm25"
            ) from None
        self._words = Words(settings.stemmer, settings.stopwords)
        self._threads = threads or os.cpu_count() or 1

    def __len__(self) -> int:
        return int(self._model.scores["num_docs"])

    def search(self, queries: Texts, depth: int) -> tuple[Scores, Rows]:
        """The `depth` best passages for each of B texts; those without a word of it are no hits."""
        numbers = [self._model.get_tokens_ids(self._words(text)) for text in queries]
        with ThreadPoolExecutor(self._threads) as pool:
            results = list(pool.map(lambda asked: self._best(asked, depth), numbers))
        scores, rows = zip(*results, strict=True)
        return np.stack(scores), np.stack(rows)

    def _best(self, numbers: list[int], depth: int) -> tuple[Scores, Rows]:
        """One query's (depth,) scores and rows."""
        scores = np.full(depth, -np.inf, dtype=np.float32)
        rows = np.full(depth, -1, dtype=np.int64)
        if numbers:
            of_all = self._model.get_scores_from_ids(numbers)
            found = np.flatnonzero(of_all > 0)
            keys = hit_keys(of_all[found], found)
            if len(keys) > depth:
                keys = np.partition(keys, depth - 1)[:depth]
            scores[: len(keys)], rows[: len(keys)] = hits_of(np.sort(keys))
        return scores, rows
