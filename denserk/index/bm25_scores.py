"""Counts of terms in passages, the scores of BM25 of them, and their sums for queries, by NumPy.

The passages are counted in blocks, so that memory holds the counts, not all terms. The files of
scores are those of bm25s. They are read here because importing bm25s, which imports scipy, takes
longer than the search of a query.
"""

import math
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

BLOCK_TERMS = 1 << 22  # terms that are counted at once
NO_TERM = -1  # the number of a stop word

Numbers = NDArray[np.int32]


class BlockCounts(NamedTuple):
    """How often terms occur in a block of passages, by term and then passage."""

    terms: Numbers  # (T,) numbers of the terms in these passages, ascending
    sizes: NDArray[np.int64]  # (T,) passages of each term
    passages: Numbers  # (P,) the passages, all those of the first term first
    counts: NDArray[np.unsignedinteger]  # (P,)


class ScoreMatrix(NamedTuple):
    """The score of every term in every passage, as the sparse matrix of bm25s."""

    scores: NDArray[np.float32]  # (P,) by term, and then passage
    passages: Numbers  # (P,)
    starts: NDArray[np.int64]  # (terms + 1,): where the scores of each term begin


class TermCounts:
    """Counts the terms of passages, which are added in order, with numbers for terms.

    >>> counts = TermCounts()
    >>> counts.add([0, 1, 0])
    >>> counts.add([NO_TERM, 1])
    >>> matrix = counts.scores(terms=2, k1=0.9, b=0.4)
    >>> matrix.starts.tolist(), matrix.passages.tolist()
    ([0, 1, 3], [0, 0, 1])
    """

    def __init__(self) -> None:
        self.passages = 0
        self._numbers = array("i")  # of the terms in the passages that are not counted yet
        self._ends = array("q")  # where each of these passages ends
        self._lengths: list[NDArray[np.int64]] = []  # of the passages of each block
        self._blocks: list[BlockCounts] = []

    def add(self, numbers: Iterable[int]) -> None:
        """Add a passage: the numbers of its terms, and NO_TERM where there is none."""
        self._numbers.extend(numbers)
        self._ends.append(len(self._numbers))
        self.passages += 1
        if len(self._numbers) >= BLOCK_TERMS:
            self._count_block()

    def _count_block(self) -> None:
        """Count the terms of the passages that are not counted yet, and forget them."""
        ends = np.array(self._ends, np.int64)
        sizes = np.diff(ends, prepend=0)
        first_passage = self.passages - len(ends)
        passages = np.repeat(np.arange(first_passage, self.passages), sizes)
        terms = np.array(self._numbers, np.int64)
        is_term = terms != NO_TERM
        passages = passages[is_term]
        self._lengths.append(np.bincount(passages - first_passage, minlength=len(ends)))
        # one number for term and passage, because NumPy sorts numbers many times faster than pairs
        pairs, counts = np.unique((terms[is_term] << 32) | passages, return_counts=True)
        distinct_terms, sizes_of_terms = np.unique(pairs >> 32, return_counts=True)
        self._blocks.append(
            BlockCounts(
                terms=distinct_terms.astype(np.int32),
                sizes=sizes_of_terms,
                passages=(pairs & 0xFFFF_FFFF).astype(np.int32),
                counts=counts.astype(np.min_scalar_type(int(counts.max(initial=0)))),
            )
        )
        self._numbers = array("i")
        self._ends = array("q")

    def scores(self, terms: int, k1: float, b: float) -> ScoreMatrix:
        """Return the scores of all terms, of which there are so many, and forget the counts.

        Scores are computed in float64, and rounded to float32.
        """
        self._count_block()
        frequencies = np.zeros(terms, np.int64)
        for block in self._blocks:
            frequencies[block.terms] += block.sizes
        idfs = np.array([_idf(size, self.passages) for size in frequencies.tolist()], np.float32)
        lengths = np.concatenate(self._lengths)
        norms = k1 * ((1 - b) + b * lengths / lengths.mean())  # (N,)

        starts = np.concatenate([[0], np.cumsum(frequencies)])
        scores = np.empty(starts[-1], np.float32)
        passages = np.empty(starts[-1], np.int32)
        next_positions = starts[:-1].copy()  # of each term, as blocks are read in their order
        self._blocks.reverse()  # so that `pop` returns, and frees, the first one
        while self._blocks:
            block = self._blocks.pop()
            first_positions_in_block = np.cumsum(block.sizes) - block.sizes
            shifts = next_positions[block.terms] - first_positions_in_block
            positions = np.arange(len(block.passages)) + np.repeat(shifts, block.sizes)
            counts = block.counts.astype(np.float64)
            saturated_counts = counts / (norms[block.passages] + counts)
            scores[positions] = np.repeat(idfs[block.terms], block.sizes) * saturated_counts
            passages[positions] = block.passages
            next_positions[block.terms] += block.sizes
        return ScoreMatrix(scores, passages, starts)


def _idf(frequency: int, passages: int) -> float:
    """Return the inverse document frequency of a term that so many of the passages have."""
    return math.log(1 + (passages - frequency + 0.5) / (frequency + 0.5))


class TermScores:
    """The scores of every term in every passage, memory-mapped, of an index of bm25s.

    Raises an OSError, a ValueError or a KeyError if a file is missing or has another format.
    """

    def __init__(self, folder: Path) -> None:
        parameters = orjson.loads((folder / "params.index.json").read_bytes())
        vocabulary = orjson.loads((folder / "vocab.index.json").read_bytes())
        self._number_by_term: dict[str, int] = vocabulary
        self.passages = int(parameters["num_docs"])
        self._scores = _mapped(folder / "data.csc.index.npy")
        self._passages = _mapped(folder / "indices.csc.index.npy")
        self._starts = _mapped(folder / "indptr.csc.index.npy")

    def numbers_of(self, terms: Iterable[str]) -> list[int]:
        """Return the numbers of the terms that some passage has, in their order."""
        number_by_term = self._number_by_term
        return [number_by_term[term] for term in terms if term in number_by_term]

    def of_passages(self, terms: Sequence[int]) -> NDArray[np.float32]:
        """Return the score of every passage, (N,): the sum over terms, which may be repeated."""
        scores = np.zeros(self.passages, np.float32)
        for term in terms:
            scores_of_term = slice(self._starts[term], self._starts[term + 1])
            # a term has each passage once, so that none is lost where it is added to
            scores[self._passages[scores_of_term]] += self._scores[scores_of_term]
        return scores


def _mapped(path: Path) -> NDArray[Any]:
    """Return an array of a file that is read where it is needed."""
    # the plain array of a mapped file: each slice of NumPy's own class would take longer
    array_of_file: NDArray[Any] = np.load(path, mmap_mode="r").view(np.ndarray)
    return array_of_file
