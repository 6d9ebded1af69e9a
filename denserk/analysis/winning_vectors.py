"""Which of a passage's vectors wins the maximum: MLR's equation 2, looked into.

"Investigating Multi-layer Representations for Dense Passage Retrieval" (Xie and Lukasiewicz, 2025)
asks which layer's vector has the highest inner product with the query. A vector's share is that of
the pairs of a query and a passage in which it is the highest; among equals the first wins, as in
training, which in MLR is the last layer's.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denserk.modeling.multi_vector import MultiVector
from denserk.modeling.similarity import PassageVectors
from denserk.settings.encoding import Reduction, Representation

KEPT_APART = (Reduction.SELF_CONTRASTIVE, Reduction.MULTI_VECTOR)
"""Reductions that leave several vectors to choose from, in training at least."""


def winners(queries: Tensor, passages: PassageVectors) -> Tensor:
    """The number of the vector that wins in each of N pairs.

    Args:
        queries: (N, D), the pair's query.
        passages: (N, S, D), the pair's passage.

    Returns:
        (N,) int64, from 0 to S - 1; -1 where a product is no number.

    >>> passage = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]])
    >>> winners(torch.tensor([[1.0, 2.0]]), PassageVectors(passage)).tolist()
    [1]
    """
    scores = torch.einsum("nd,nsd->ns", queries, passages.values)
    if passages.mask is not None:
        scores = scores.masked_fill(~passages.mask, -torch.inf)
    return scores.argmax(1).masked_fill(scores.isnan().any(1), -1)


def vector_names(representation: MultiVector, count: int) -> list[str]:
    """What the vectors of a passage are, as they stand: layers' numbers, or tokens' positions.

    Args:
        representation: what makes them.
        count: S.
    """
    kind = representation.settings.representation
    if kind is Representation.MLR:
        return [str(layer) for layer in representation.layers]
    if kind is Representation.ME_BERT and not representation.by_cls:
        return ["mean", *map(str, range(count - 1))]
    return [str(position) for position in range(count)]


def add_counts(
    counts: NDArray[np.int64], winning: Sequence[int] | NDArray[np.int64], size: int
) -> NDArray[np.int64]:
    """Counts of wins with more of them: (S,) -> (max(S, size),).

    >>> add_counts(np.array([3, 1]), [1, 2, 1], 3).tolist()
    [3, 3, 1]
    """
    found: NDArray[np.int64] = np.bincount(winning, minlength=max(size, len(counts)))
    found[: len(counts)] += counts
    return found
