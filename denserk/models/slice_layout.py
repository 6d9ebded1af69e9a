"""Which entries of the vocabulary share a dimension of an Aggretriever vector, and with which sign.

"Aggretriever: A Simple Approach to Aggregate Textual Representations for Robust Dense Passage
Retrieval" (Lin, Li, Lin; TACL 2023), section 3.2: the vocabulary is divided into d slices, each
slice into a plus and a minus half. The authors' released code divides by stride, and every
published checkpoint is tied to that division: it is the default. The paper's own wording, a random
division, is the layout `random`.
"""

import hashlib
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from denserk.config.encoding import AggKind, AggLayout

# the uncased WordPiece list, the one vocabulary whose first entries may be dropped
BERT_VOCABULARY = 30522
# its first thousand entries carry no words, so the released code drops up to that many
DROPPABLE = 1000


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
        """Return the layout for a vocabulary, the remainder treated as in the released code.

        >>> SliceLayout.build(30522, 640, AggKind.STAR, AggLayout.STRIDED, 42).appended
        198
        >>> SliceLayout.build(30522, 640, AggKind.PLUS, AggLayout.STRIDED, 42).dropped
        442
        """
        single = kind is AggKind.PLUS and layout is AggLayout.STRIDED
        modulus = dimension if single else 2 * dimension
        rest = vocabulary % modulus
        drops = vocabulary == BERT_VOCABULARY and rest <= DROPPABLE and rest < vocabulary
        random = layout is AggLayout.RANDOM
        dropped = rest if drops and not random else 0
        appended = 0 if dropped else -rest % modulus
        own = seed if random else None
        return cls(vocabulary, dimension, kind, modulus, dropped, appended, own)

    @property
    def signed_pairs(self) -> bool:
        """True if a slice has two halves."""
        return self.modulus == 2 * self.dimension

    @property
    def order(self) -> tuple[int, ...] | None:
        """The ids in the order of the columns, or None for their own order."""
        return None if self.seed is None else shuffled_ids(self.vocabulary, self.seed)

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
        """Describe in one line how many ids there are, and which are left out."""
        lost = f"ids 0 to {self.dropped - 1} dropped" if self.dropped else "no id dropped"
        shape = f"{self.vocabulary} ids in {self.dimension} slices"
        return f"{shape}, {lost}, {self.appended} zeros appended"


@cache
def shuffled_ids(vocabulary: int, seed: int) -> tuple[int, ...]:
    """Return a seeded permutation of the ids that no library's random stream can change."""
    keys = [hashlib.sha256(f"{seed}:{token}".encode()).digest() for token in range(vocabulary)]
    return tuple(sorted(range(vocabulary), key=keys.__getitem__))
