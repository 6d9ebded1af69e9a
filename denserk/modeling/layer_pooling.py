"""MLR: a passage's vectors are its [CLS] states of several layers.

"Investigating Multi-layer Representations for Dense Passage Retrieval" (Xie, Lukasiewicz, 2025),
section 3. Layer 0 is the output of the embeddings, layer L the last. Vectors stand last layer
first, then descending; the losses rely on it. Axes: P passages, T tokens, S layers, H hidden.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from denserk.errors import ModelError
from denserk.modeling.pooling import pool_cls, pool_mean


def storage_order(layers: Sequence[int], last: int) -> tuple[int, ...]:
    """A model's layers in the order in which their vectors stand; by default the last two.

    Raises:
        ModelError: a layer the model does not have, one named twice, or a set without the last.

    >>> storage_order([10, 12], 12)
    (12, 10)
    """
    chosen = tuple(layers) or (last - 1, last)
    outside = [layer for layer in chosen if not 0 <= layer <= last]
    if outside:
        raise ModelError(
            f"--layers {','.join(map(str, chosen))}: the backbone has the layers 0 to {last}, "
            f"not {', '.join(map(str, outside))}"
        )
    if last not in chosen or len(set(chosen)) < len(chosen):
        raise ModelError(
            f"--layers {','.join(map(str, chosen))}: the last layer, {last}, must be among them, "
            "and each only once",
            f"for example --layers {last - 1},{last}",
        )
    return tuple(sorted(chosen, reverse=True))


def pool_layers(
    states: Sequence[Tensor], mask: Tensor, layers: Sequence[int], *, by_cls: bool
) -> Tensor:
    """The vectors of chosen layers (equation 1).

    Args:
        states: of every layer, (P, T, H); item 0 is the embeddings' output.
        mask: (P, T) bool.
        layers: in storage order.
        by_cls: take position 0; otherwise the mean over real tokens, for a backbone without [CLS].

    Returns:
        (P, S, H).
    """
    pool = pool_cls if by_cls else pool_mean
    return torch.stack([pool(states[layer], mask) for layer in layers], dim=1)


class ScalarMix(nn.Module):
    """Several vectors -> their learned average: softmax(a), a starting at zero (equation 8).

    Args:
        count: S.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.scalar_parameters = nn.Parameter(torch.zeros(count))

    def forward(self, vectors: Tensor) -> Tensor:
        """(P, S, H) -> (P, H)."""
        weights = self.scalar_parameters.softmax(0).to(vectors.dtype)
        return torch.einsum("psh,s->ph", vectors, weights)


def average_vectors(vectors: Tensor, mask: Tensor | None = None) -> Tensor:
    """The plain mean of a passage's vectors; masked ones take no part. (P, S, H) -> (P, H)."""
    if mask is None:
        return vectors.mean(1)
    return pool_mean(vectors, mask)
