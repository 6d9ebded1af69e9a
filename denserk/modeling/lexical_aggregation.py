"""Aggretriever's lexical part: token weights and distributions -> a vocabulary-wide vector.

"Aggretriever: A Simple Approach to Aggregate Textual Representations for Robust Dense Passage
Retrieval" (Lin, Li, Lin; TACL 2023), section 3.1. The paper's symbols: `p_i` the distribution over
the vocabulary at position i, `w_i` its weight, `v[v] = max_i w_i p_i[v]`. Where paper and released
code differ, the released code is the default, because the published checkpoints were trained with
it: negative weights count as zero (the paper prints an absolute value), and [SEP] takes part. The
caller leaves position 0 out.

Shapes: `B` texts, `T` positions, `V` vocabulary, `N` real positions of a batch. All arithmetic is
float32.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from denserk.modeling.pooling import at_least_float32
from denserk.settings.encoding import TermWeight

WEIGHT_RULES: dict[TermWeight, Callable[[Tensor], Tensor]] = {
    TermWeight.CLAMP: torch.relu,
    TermWeight.SIGNED: lambda weights: weights,
    TermWeight.ABS: torch.abs,
    TermWeight.ONE: torch.ones_like,
}
"""What becomes of the learned weight of a position."""


def aggregate(logits: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    """`max_i w_i softmax(z_i)` over real positions, literally.

    Args:
        logits: (B, T, V), of the MLM head.
        weights: (B, T), after its rule.
        mask: (B, T) bool, True = a real position. Masked positions leave no trace, whatever they
            hold.

    Returns:
        (B, V) float32.

    >>> logits = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]]).log()
    >>> aggregate(logits, torch.tensor([[1.0, 0.8]]), torch.tensor([[True, True]]))
    tensor([[0.4000, 0.7500]])
    """
    products = at_least_float32(logits).softmax(dim=-1) * at_least_float32(weights).unsqueeze(-1)
    return products.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)


def aggregate_in_blocks(
    states: Tensor,
    weights: Tensor,
    mask: Tensor,
    to_logits: Callable[[Tensor], Tensor],
    vocabulary: int,
    rows: int,
) -> Tensor:
    """The same vector with at most `rows` x V logits at a time; the form to encode with.

    Real positions of all texts stand in one list; their logits are made block by block, and each
    text keeps a running maximum. Positions of weight zero are passed over where no weight is
    negative: their products are zero, and so is the floor that the maximum starts from.

    Args:
        states: (B, T, H), hidden states.
        weights: (B, T), after its rule.
        mask: (B, T) bool.
        to_logits: the MLM head, (N, H) -> (N, V).
        vocabulary: V.
        rows: positions of one block.

    Returns:
        (B, V) float32.
    """
    weights = at_least_float32(weights)
    nonnegative = bool((weights.masked_fill(~mask, 0) >= 0).all())
    used = mask & (weights > 0) if nonnegative else mask
    floor = 0.0 if nonnegative else -torch.inf
    best = torch.full((len(mask), vocabulary), floor, dtype=weights.dtype, device=states.device)
    texts, positions = used.nonzero(as_tuple=True)
    for start in range(0, len(texts), rows):
        block = slice(start, start + rows)
        text, position = texts[block], positions[block]
        products = at_least_float32(to_logits(states[text, position])).softmax(dim=-1)
        products.mul_(weights[text, position].unsqueeze(-1))
        counts = torch.unique_consecutive(text, return_counts=True)
        raise_to_maxima(best, products, *(part.tolist() for part in counts))
    return best


def raise_to_maxima(
    best: Tensor, products: Tensor, texts: Sequence[int], counts: Sequence[int]
) -> None:
    """Raises rows of running maxima, in place.

    Args:
        best: (B, V), the maxima so far.
        products: (N, V), of positions; those of one text stand together.
        texts: whose they are, in their order.
        counts: how many each of those texts has.
    """
    for text, part in zip(texts, torch.split(products, list(counts)), strict=True):
        torch.maximum(best[text], part.amax(dim=0), out=best[text])


def aggregate_tokens(ids: Tensor, weights: Tensor, mask: Tensor, vocabulary: int) -> Tensor:
    """The variant without an MLM head (Table 8, row 3): a position's weight goes to its own token.

    Padding leaves no trace; an id that does not occur is 0, and a negative weight counts as 0.

    Args:
        ids: (B, T) int64.
        weights: (B, T), after its rule.
        mask: (B, T) bool.
        vocabulary: V.

    Returns:
        (B, V) float32.
    """
    kept = at_least_float32(weights).masked_fill(~mask, 0)
    empty = kept.new_zeros(len(ids), vocabulary)
    return empty.scatter_reduce(1, ids, kept, "amax", include_self=True)
