"""Aggretriever's lexical representation: token states and term weights -> a vocabulary-wide vector.

"Aggretriever: A Simple Approach to Aggregate Textual Representations for Robust Dense Passage
Retrieval" (Lin, Li, Lin; TACL 2023), section 3.1. The paper's symbols: `p_i` the distribution over
the vocabulary at position i, `w_i` its term weight, `v[u] = max_i w_i p_i[u]`. Where paper and
released code differ, the released code, with which the published checkpoints were trained, is the
default: negative weights count as zero (the paper prints an absolute value), and [SEP] takes part.
The caller leaves position 0, [CLS], out.

Section 3.2 folds the vector: the vocabulary is divided into d slices, each slice into a plus and a
minus half. The released code divides by stride; the paper's random division is `random`.

The vocabulary is projected in blocks, for a limited number of positions at a time, and each block
is reduced to the maxima of its slices before the next one, so positions x vocabulary is never in
memory. In training each block is checkpointed: projected again in the backward pass.

Axes: `B` texts, `T` positions, `H` hidden, `V` vocabulary, `M` columns of the result (the layout's
modulus, or V), `N` positions that are projected.
"""

import hashlib
from collections.abc import Callable
from functools import cache, partial, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from denserk.config.encoding import AggKind, AggLayout, TermWeight
from denserk.models.devices import Compiled, at_least_float32

TensorFunction = Callable[[Tensor], Tensor]
# Positions projected at once, by device type. On a CPU a block of logits should fit its cache:
# 256 x 8192 float32 are 8 MiB.
ROWS = {"cpu": 256}
DEFAULT_ROWS = 4096
# Vocabulary entries per block, about: a block holds whole rounds of the layout.
COLUMNS = 8192
# The uncased WordPiece list, the one vocabulary whose first entries may be dropped: they carry no
# words, so the released code drops up to a thousand.
BERT_VOCABULARY = 30522
DROPPABLE = 1000

# How a learned term weight is transformed before it is used.
WEIGHT_RULES: dict[TermWeight, TensorFunction] = {
    TermWeight.CLAMP: torch.relu,
    TermWeight.SIGNED: lambda weights: weights,
    TermWeight.ABS: torch.abs,
    TermWeight.ONE: torch.ones_like,
}


class SliceLayout:
    """One division of `vocabulary` ids into `dimension` slices; the rest as in the released code.

    Column `u` of the divided vector holds id `order[u + dropped]` (`order` is the identity but for
    `random`); `appended` columns of zeros follow, so that the columns divide into rows of
    `modulus`. With `signed_pairs`, columns 2n and 2n+1 of a row are the plus and minus halves of
    slice n; without, column n is slice n.

    >>> SliceLayout(30522, 640, AggKind.STAR, AggLayout.STRIDED, 42).appended
    198
    >>> SliceLayout(30522, 640, AggKind.PLUS, AggLayout.STRIDED, 42).dropped
    442
    """

    def __init__(
        self, vocabulary: int, dimension: int, kind: AggKind, layout: AggLayout, seed: int
    ) -> None:
        self.vocabulary = vocabulary
        self.dimension = dimension
        self.kind = kind
        self.signed_pairs = kind is not AggKind.PLUS or layout is not AggLayout.STRIDED
        self.modulus = dimension * (1 + self.signed_pairs)
        is_random = layout is AggLayout.RANDOM
        surplus = vocabulary % self.modulus
        may_drop = vocabulary == BERT_VOCABULARY and not is_random
        self.dropped = 0
        if may_drop and surplus <= DROPPABLE and surplus < vocabulary:
            self.dropped = surplus
        self.appended = 0 if self.dropped else -surplus % self.modulus
        self.order = shuffled_ids(vocabulary, seed) if is_random else None
        self._order_tensors: dict[torch.device, Tensor] = {}

    def fold(self, scores: Tensor) -> Tensor:
        """Vocabulary-wide scores (..., V) -> (..., D), by the maximum of each slice.

        agg* keeps the larger of a slice's halves, negated where the minus half wins; a tie goes to
        the minus half, and a slice of zeros is +0. agg+ keeps the maximum.
        """
        return self.join_halves(self.halves(scores))

    def halves(self, scores: Tensor) -> Tensor:
        """The maxima of the ids that share a column: (..., V) -> (..., modulus)."""
        if self.order is not None:
            scores = scores[..., self.order_on(scores.device)]
        scores = F.pad(scores[..., self.dropped :], (0, self.appended))
        return scores.reshape(*scores.shape[:-1], -1, self.modulus).amax(dim=-2)

    def order_on(self, device: torch.device) -> Tensor:
        """Return `order`, of a layout that has one, on a device: copied there once, (V,) int64."""
        if device not in self._order_tensors:
            with torch.inference_mode(False):  # so that training can index by it, too
                self._order_tensors[device] = torch.tensor(self.order, device=device)
        return self._order_tensors[device]

    def join_halves(self, best: Tensor) -> Tensor:
        """The maxima of columns -> the slices of `fold`: (..., modulus) -> (..., D)."""
        if not self.signed_pairs:
            return best
        plus = best[..., 0::2]
        minus = best[..., 1::2]
        if self.kind is AggKind.PLUS:
            return torch.maximum(plus, minus)
        return torch.where(plus > minus, plus, 0.0 - minus)


@cache
def shuffled_ids(vocabulary: int, seed: int) -> tuple[int, ...]:
    """Return a seeded permutation of the ids that no library's random stream can change."""
    keys = [hashlib.sha256(f"{seed}:{token}".encode()).digest() for token in range(vocabulary)]
    return tuple(sorted(range(vocabulary), key=keys.__getitem__))


class VocabularyHead:
    """An MLM head that projects states to the vocabulary in blocks of whole rounds of a layout.

    Columns that the layout appends get zero weights and a bias of minus infinity, so that their
    probability is zero. Ids that it drops are a block of their own, which counts in the softmax
    alone. Without a layout the vocabulary is one block.

    transform: the head up to its decoder, (N, H) -> (N, H); weight: (V, H); bias: (V,).
    """

    def __init__(
        self, transform: TensorFunction, weight: Tensor, bias: Tensor, layout: SliceLayout | None
    ) -> None:
        self.transform = transform
        self.columns = len(weight)
        self.compiled: Compiled | None = None
        self.blocks = [(weight, bias)]
        if layout is None:
            return
        self.columns = layout.modulus
        if layout.order is not None:
            order = layout.order_on(weight.device)
            weight = weight[order]
            bias = bias[order]
        step = max(COLUMNS // layout.modulus, 1) * layout.modulus
        starts = range(layout.dropped, len(weight), step)
        slices = [slice(0, layout.dropped)] if layout.dropped else []
        slices += [slice(start, start + step) for start in starts]
        self.blocks = [(weight[ids], bias[ids]) for ids in slices]
        if layout.appended:  # to the last block alone: the others are no copies of the decoder
            last_weight, last_bias = self.blocks[-1]
            self.blocks[-1] = (
                F.pad(last_weight, (0, 0, 0, layout.appended)),
                F.pad(last_bias, (0, layout.appended), value=-torch.inf),
            )

    def __call__(self, states: Tensor, signs: Tensor | None = None) -> Tensor:
        """Return `log p_i[u]` of the most probable token u of each column: (N, H) -> (N, M).

        Where `signs`, (N, 1), is -1, u is the least probable token.
        """
        if self.compiled is not None:
            return self.compiled(states)[0]
        inputs = self.transform(states)
        reduce_block: Callable[..., Any] = _reduced
        if torch.is_grad_enabled():
            reduce_block = partial(checkpoint, _reduced, use_reentrant=False)
        largest_logits = []
        log_sums = []
        for weight, bias in self.blocks:
            largest, log_sum = reduce_block(inputs, signs, weight, bias, self.columns)
            if largest is not None:
                largest_logits.append(largest)
            log_sums.append(log_sum)
        logits = reduce(torch.maximum, largest_logits)
        if signs is not None:
            logits = logits * signs
        result: Tensor = logits - torch.stack(log_sums).logsumexp(0)
        return result


def _reduced(
    inputs: Tensor, signs: Tensor | None, weight: Tensor, bias: Tensor, columns: int
) -> tuple[Tensor | None, Tensor]:
    """Return a block's largest (signed) logits (N, M), and the log-sum-exp of its logits (N, 1)."""
    logits = at_least_float32(F.linear(inputs.to(weight.dtype), weight, bias))
    log_sum = logits.logsumexp(1, keepdim=True)
    if len(weight) < columns:  # dropped ids
        return None, log_sum
    signed = logits if signs is None else logits * signs
    return signed.view(-1, len(weight) // columns, columns).amax(1), log_sum


def aggregate(
    states: Tensor, weights: Tensor, mask: Tensor, head: VocabularyHead, *, signed: bool = False
) -> Tensor:
    """Compute `max_i w_i p_i` of each text, by the largest value of each column.

    Positions whose weight is zero are skipped where weights cannot be negative. Maxima that
    several positions or tokens share split their gradient evenly.

    states: (B, T, H); weights: (B, T), after their rule, negative only where `signed`; mask: (B, T)
    bool, masked positions have no effect -> (B, M), float32 at least; zeros for a text without any
    position.
    """
    weights = at_least_float32(weights)
    has_effect = mask if signed else mask & (weights > 0)
    texts, positions = has_effect.nonzero(as_tuple=True)
    if not len(texts) and torch.is_grad_enabled():  # keep the graph: all gradients are zero
        texts, positions = mask.nonzero(as_tuple=True)
    best = weights.new_zeros(len(mask), head.columns)
    if signed:
        best = best.masked_fill(mask.any(1, keepdim=True), -torch.inf)
    rows = ROWS.get(states.device.type, DEFAULT_ROWS)
    groups = zip(
        torch.split(texts, rows),
        torch.split(states[texts, positions], rows),
        torch.split(weights[texts, positions].unsqueeze(1), rows),
        strict=True,
    )
    for group_texts, group_states, group_weights in groups:
        signs = None
        if signed:
            # A negative weight makes the least probable token of a column the largest value.
            signs = torch.where(group_weights < 0, -1.0, 1.0).to(group_weights.dtype)
        values = group_weights * head(group_states, signs).exp()
        best = best.scatter_reduce(0, group_texts.unsqueeze(1).expand_as(values), values, "amax")
    return best


def aggregate_tokens(ids: Tensor, weights: Tensor, mask: Tensor, vocabulary: int) -> Tensor:
    """Give each position's weight to its own token: the variant without MLM head (Table 8, row 3).

    Padding has no effect; an id that does not occur is 0, and a negative weight counts as 0.

    ids: (B, T) int64, weights: (B, T), after its rule, mask: (B, T) bool -> (B, V) float32.
    """
    weights = at_least_float32(weights).masked_fill(~mask, 0)
    zeros = weights.new_zeros(len(ids), vocabulary)
    return zeros.scatter_reduce(1, ids, weights, "amax", include_self=True)
