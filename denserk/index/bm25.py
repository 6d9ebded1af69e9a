"""BM25: an inverted index with the score of every term in every passage, in the files of bm25s.

Okapi BM25 (Robertson et al., TREC-3, 1994) in the variant "Lucene (accurate)" of Kamphuis et al.,
Which BM25 Do You Mean? (2020):

    ln(1 + (N - n + 0.5) / (n + 0.5)) * tf / (tf + k1 * (1 - b + b * length / mean length))

Terms are those of `terms.py`. Scores are computed in `bm25_scores.py`, as bm25s does but in less
memory. The engine of Lucene is in `lucene.py`.
"""

import logging
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.config.options import from_json
from denserk.config.retrieval import Bm25Settings
from denserk.errors import InputError, NotFiniteError
from denserk.extras import require
from denserk.index.bm25_scores import NO_TERM, TermCounts, TermScores
from denserk.index.engines import Rows, Scores, in_order, padding
from denserk.index.terms import Analyzer, analyzer_of
from denserk.io.file_errors import write_errors
from denserk.io.manifest import Manifest, bm25_language
from denserk.io.outputs import DOCID
from denserk.io.written_files import whole_text
from denserk.records import Query

logger = logging.getLogger(__name__)

PURPOSE = "an index of --type bm25"  # in messages: what bm25s is needed for, what is expected


def recorded_bm25(manifest: Manifest | None) -> Bm25Settings:
    """Return the settings of an index, with the language that `auto` has found."""
    if manifest is None:  # another tool wrote the index
        return Bm25Settings()
    settings = from_json(Bm25Settings, manifest.settings.get("bm25", {}))
    return replace(settings, language=bm25_language(manifest))


def build_bm25(
    folder: Path, passages: Iterable[tuple[str, str]], settings: Bm25Settings
) -> dict[str, Any]:
    """Index (id, text) pairs in a folder; return "count" (of passages) and "terms" (distinct)."""
    model = require("bm25s", PURPOSE).BM25(k1=settings.k1, b=settings.b, method="lucene")
    analyzer = analyzer_of(settings)
    number_by_word = TermNumbers(analyzer)
    counts = TermCounts()
    with whole_text(folder / DOCID) as ids:
        for docid, text in passages:
            numbers = map(number_by_word.__getitem__, analyzer.words(text))
            counts.add(numbers)
            ids.write(f"{docid}\n")
    vocabulary = number_by_word.vocabulary
    if not vocabulary:
        raise InputError(folder, None, "no term in any passage", "text", "see --fields")
    logger.info("scoring terms")
    matrix = counts.scores(len(vocabulary), settings.k1, settings.b)
    model.scores = {
        "data": matrix.scores,
        "indices": matrix.passages,
        "indptr": matrix.starts,
        "num_docs": counts.passages,
    }
    model.vocab_dict = vocabulary
    model.nonoccurrence_array = None  # other variants of BM25 also score terms that are not there
    with write_errors(folder):
        model.save(folder, show_progress=False)
    return {"count": counts.passages, "terms": len(vocabulary)}


class TermNumbers(dict[str, int]):
    """Looks up the number of a word's term, in the order in which terms first occur.

    A dict, because most words were looked up before: only new ones are analysed. Stop words have
    the number NO_TERM. `vocabulary` has the numbers of the terms.
    """

    def __init__(self, analyzer: Analyzer) -> None:
        super().__init__()
        self.vocabulary: dict[str, int] = {}
        self._analyzer = analyzer

    def __missing__(self, word: str) -> int:
        term = self._analyzer.term(word)
        number = NO_TERM
        if term:
            number = self.vocabulary.setdefault(term, len(self.vocabulary))
        self[word] = number
        return number


def query_texts(queries: Sequence[Query]) -> NDArray[np.object_]:
    """Return the texts of B queries (B,), which BM25 indexes search for."""
    return np.array([query.text for query in queries], dtype=object)


class QueryHits(NamedTuple):
    """The hits of a query, in no order."""

    scores: NDArray[np.float32]  # (K,)
    rows: NDArray[np.int64]  # (K,)


class Bm25Index:
    """An open index of `build_bm25`, its scores memory-mapped.

    Queries are analysed as the passages were, and searched by several threads.
    """

    is_exhaustive = True
    dimension = 0  # no vectors
    breadth: tuple[str, ...] = ()  # no option, as nothing is approximate

    def __init__(self, folder: Path, settings: Bm25Settings, threads: int | None = None) -> None:
        try:
            self._term_scores = TermScores(folder)
        except (OSError, ValueError, KeyError, EOFError) as error:
            damage = f"files of bm25s that cannot be read ({error})"
            raise InputError(folder, None, damage, PURPOSE) from None
        self._analyze = analyzer_of(settings)
        self._threads = threads or os.cpu_count() or 1

    def __len__(self) -> int:
        return self._term_scores.passages

    def search(self, queries: NDArray[np.object_], depth: int) -> tuple[Scores, Rows]:
        """Return (B, K) scores and rows for B texts; passages without a query term are no hits."""
        terms_of_queries = [self._term_scores.numbers_of(self._analyze(text)) for text in queries]
        scores, rows = padding(len(queries), depth)
        with ThreadPoolExecutor(self._threads) as pool:
            hits_of_queries = pool.map(partial(self._best_hits, depth=depth), terms_of_queries)
            for query, hits in enumerate(hits_of_queries):
                scores[query, : len(hits.rows)] = hits.scores
                rows[query, : len(hits.rows)] = hits.rows
        return in_order(scores, rows)

    def _best_hits(self, terms: Sequence[int], depth: int) -> QueryHits:
        """Return the `depth` best hits of a query, by the numbers of its terms."""
        if not terms:
            return QueryHits(np.empty(0, np.float32), np.empty(0, np.int64))
        scores = self._term_scores.of_passages(terms)  # (N,)
        if not np.isfinite(scores.sum()):  # NaN would be no hit
            raise NotFiniteError(int(np.argmin(np.isfinite(scores))))
        rows = np.flatnonzero(scores > 0)
        if len(rows) > depth:
            best = np.argpartition(-scores[rows], depth - 1)[:depth]
            rows = rows[best]
        return QueryHits(scores[rows], rows)
