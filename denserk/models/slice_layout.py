"""Which entries of the vocabulary share a dimension of an Aggretriever vector, and with which sign.

"Aggretriever: A Simple Approach to Aggregate Textual Representations for Robust Dense Passage
Retrieval" (Lin, Li, Lin; TACL 2023), section 3.2: the vocabulary is divided into d slices, each
slice into a plus and a minus half. The authors' released code divides by stride, and every
published checkpoint is tied to that division: it is the default. The paper's own wording, a random
division, is the layout `random`.
"""

import hashlib
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from denserk.config.encoding import AggKind, AggLayout

# The uncased WordPiece list, the one vocabulary whose first entries may be dropped
BERT_VOCABULARY = 30522
# Its first thousand entries carry no words, so the released code drops up to that many
DROPPABLE = 1000


class Place(NamedTuple):
    """Where an id falls: its slice, counted from 0, and its sign, +1 or -1."""

    slice: int
    sign: int


@dataclass(frozen=True)
class SliceLayout:
    """One division of `vocabulary` ids into `dimension` slices.

    Column `u` of the divided vector holds id `order[u + dropped]` (`order` is the identity but for
    `random`); `appended` columns of zeros follow, so that the columns divide into rows of
    `modulus`. With `signed_pairs`, columns 2n and 2n+1 of a row are the plus and minus halves of
    slice n; without, column n is slice n.
    """

    vocabulary: int
    dimension: int
    kind: AggKind
    modulus: int
    dropped: int
    appended: int
    seed: int | None = None

    @classmethod
    def build(
        cls, vocabulary: int, dimension: int, kind: AggKind, layout: AggLayout, seed: int
    ) -> "SliceLayout":
        """The layout for a vocabulary, the remainder treated as in the released code.

        >>> SliceLayout.build(30522, 640, AggKind.STAR, AggLayout.STRIDED, 42).appended
        198
        >>> SliceLayout.build(30522, 640, AggKind.PLUS, AggLayout.STRIDED, 42).dropped
        442
        """
        halves = 1 if kind is AggKind.PLUS and layout is AggLayout.STRIDED else 2
        modulus = halves * dimension
        rest = vocabulary % modulus
        drops = (
            vocabulary == BERT_VOCABULARY
            and rest <= DROPPABLE
            and rest < vocabulary
            and layout is not AggLayout.RANDOM
        )
        return cls(
            vocabulary,
            dimension,
            kind,
            modulus,
            rest if drops else 0,
            0 if drops else -rest % modulus,
            seed if layout is AggLayout.RANDOM else None,
        )

    @property
    def signed_pairs(self) -> bool:
        """Whether a slice has two halves."""
        return self.modulus == 2 * self.dimension

    @cached_property
    def order(self) -> tuple[int, ...] | None:
        """The ids in the order of the columns, or None for their own order."""
        return None if self.seed is None else shuffled_ids(self.vocabulary, self.seed)

    def place(self, token: int) -> Place | None:
        """Where an id falls, or None where the layout drops it.

        >>> SliceLayout.build(30522, 640, AggKind.STAR, AggLayout.STRIDED, 42).place(101)
        Place(slice=50, sign=-1)
        """
        position = token if self.order is None else self.order.index(token)
        if position < self.dropped:
            return None
        column = (position - self.dropped) % self.modulus
        if not self.signed_pairs:
            return Place(column, 1)
        negative = column % 2 == 1 and self.kind is AggKind.STAR
        return Place(column // 2, -1 if negative else 1)

    def fold(self, scores: Tensor) -> Tensor:
        """Vocabulary-wide scores (..., V) -> (..., D), by the maximum of each slice.

        agg* keeps the larger of a slice's halves, negated where the minus half wins; a tie goes to
        the minus half, and a slice of zeros is +0. agg+ keeps the maximum.
        """
        return self.join_halves(self.halves(scores))

    def halves(self, scores: Tensor) -> Tensor:
        """The maxima of the ids that share a column: (..., V) -> (..., modulus)."""
        if self.order is not None:
            scores = scores[..., torch.tensor(self.order, device=scores.device)]
        scores = torch.nn.functional.pad(scores[..., self.dropped :], (0, self.appended))
        return scores.reshape(*scores.shape[:-1], -1, self.modulus).amax(dim=-2)

    def join_halves(self, best: Tensor) -> Tensor:
        """The maxima of columns -> the slices of `fold`: (..., modulus) -> (..., D)."""
        if not self.signed_pairs:
            return best
        plus, minus = best[..., 0::2], best[..., 1::2]
        if self.kind is AggKind.PLUS:
            return torch.maximum(plus, minus)
        return torch.where(plus > minus, plus, 0.0 - minus)

    def describe(self) -> str:
        """One line for people: how many ids a slice has, and which are left out."""
        lost = f"ids 0 to {self.dropped - 1} dropped" if self.dropped else "no id dropped"
        shape = f"{self.vocabulary} ids in {self.dimension} slices"
        return f"{shape}, {lost}, {self.appended} zeros appended"


@cache
def shuffled_ids(vocabulary: int, seed: int) -> tuple[int, ...]:
    """A seeded permutation of 0..vocabulary-1 that no library's random stream can change.

    >>> shuffled_ids(6, 1) == shuffled_ids(6, 1) != shuffled_ids(6, 2)
    True
    """
    return tuple(
        sorted(
            range(vocabulary), key=lambda token: hashlib.sha256(f"{seed}:{token}".encode()).digest()
        )
    )
