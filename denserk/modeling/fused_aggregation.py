"""Aggretriever's lexical part on a GPU: a matrix product a chunk, read in place by kernels.

What is fused: after cuBLAS has made the logits of a bounded chunk of positions, in 16 bits, one
kernel sums each row and one makes softmax, weight, maximum over a text's positions and maximum of
slices at once; positions x vocabulary never stands in memory as a whole, nor twice. A kernel that
makes the product too would have to make it twice, since a row's sum is needed before the first
maximum, and that costs more than reading the logits back. Going back, a chunk's logits are made
anew, their gradient is written over them, and two products carry it on; nothing but the inputs is
kept in between.

Shapes: `N` positions of all texts, packed without padding; `B` texts, `H` hidden, `V` vocabulary,
`D` the folded vector's dimensions.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from denserk.modeling.pooling import at_least_float32
from denserk.modeling.slice_layout import SliceLayout
from denserk.settings.encoding import AggKind

ROWS = 4096
"""Positions of a chunk, whose logits stand in memory at once: 250 MB in 16 bits for BERT's list."""
ALIGNMENT = 64
"""Rows of logits begin at multiples of so many numbers, as the matrix units want them."""
ROW_STEP = {"width": 4096, "num_warps": 8}
"""How kernels go along a row of logits."""
TILE = {"width": 128, "tall": 16, "num_warps": 4}
"""How the maxima go over a text: tokens by positions."""


class Chunk(NamedTuple):
    """Texts whose logits are made at once: their numbers, and their positions."""

    texts: slice
    rows: slice


@dataclass(frozen=True)
class Plan:
    """What a call needs beside tensors that have a gradient.

    `offsets`: (B + 1) places, text b holding positions `offsets[b] .. offsets[b + 1] - 1`; `layout`
    the slices, or None for the whole vocabulary; `rows` positions of a chunk, which a single longer
    text may exceed.
    """

    offsets: tuple[int, ...]
    layout: SliceLayout | None = None
    rows: int = ROWS

    def chunks(self) -> Iterator[Chunk]:
        """Whole texts, as many as fit.

        >>> [c.texts for c in Plan((0, 3, 5, 9, 10), rows=5).chunks()]
        [slice(0, 2, None), slice(2, 4, None)]
        """
        first = 0
        for text in range(1, len(self.offsets)):
            last = text == len(self.offsets) - 1
            if last or self.offsets[text + 1] - self.offsets[first] > self.rows:
                rows = slice(self.offsets[first], self.offsets[text])
                yield Chunk(slice(first, text), rows)
                first = text

    def columns(self, vocabulary: int) -> int:
        """How wide a row of logits is, so that it is aligned and every slice is full."""
        layout, needed = self.layout, vocabulary
        if layout is not None:
            needed = max(needed, layout.dropped + _layers(layout) * layout.modulus)
        return -(-needed // ALIGNMENT) * ALIGNMENT

    def most_rows(self) -> int:
        """Positions of the largest chunk."""
        return max((c.rows.stop - c.rows.start for c in self.chunks()), default=0)


def _layers(layout: SliceLayout) -> int:
    """How many tokens of the vocabulary stand at each place of a layout."""
    return (layout.vocabulary - layout.dropped + layout.appended) // layout.modulus


def fused_aggregate(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    term_weights: Tensor,
    offsets: Sequence[int],
    layout: SliceLayout | None = None,
    rows: int = ROWS,
) -> Tensor:
    """`fold(max_i w_i softmax(W h_i + b))` of packed texts, with its gradient.

    Equal to `lexical_aggregation.aggregate` and `SliceLayout.fold` up to rounding, in the
    precision of `states`, or of autocast where it is on; maxima and sums are float32 at least.
    Where two positions of a text tie exactly, the gradient goes to the first.

    Args:
        states: (N, H), the MLM head's up to its last layer.
        weight: (V, H), of that layer.
        bias: (V,), or None.
        term_weights: (N,), after their rule.
        offsets: B + 1 places in `states`, beginning with 0 and ending with N.
        layout: the slices, or None for the whole vocabulary.
        rows: positions of a chunk.

    Returns:
        (B, D), or (B, V) without a layout; float32 at least.
    """
    wide = at_least_float32(term_weights)
    if states.dtype is torch.float64:
        wide = wide.double()
    shift = wide.new_zeros(len(weight)) if bias is None else bias.to(wide.dtype)
    if layout is not None and layout.order is not None:
        order = _column_order(layout, weight.device)
        weight, shift = weight[order], shift[order]
        layout = dataclasses.replace(layout, seed=None)
    plan = Plan(tuple(offsets), layout, rows)
    apply: Any = _FusedAggregate.apply
    result: Tensor = apply(states, weight, shift, wide, plan, _precision(states))
    return result


@cache
def _column_order(layout: SliceLayout, device: torch.device) -> Tensor:
    return torch.tensor(layout.order, device=device)


def _precision(states: Tensor) -> torch.dtype:
    kind = states.device.type
    on = torch.is_autocast_enabled(kind) and states.dtype is not torch.float64
    return torch.get_autocast_dtype(kind) if on else states.dtype


class _FusedAggregate(torch.autograd.Function):
    """Logits live for one chunk, on the way there and on the way back."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor,
        term_weights: Tensor,
        plan: Plan,
        precision: torch.dtype,
    ) -> Tensor:
        ctx.save_for_backward(states, weight, bias, term_weights)
        ctx.plan, ctx.precision = plan, precision
        with _on_device_of(states):
            work = _Work(states.to(precision), weight.to(precision), bias, term_weights, plan)
            dimension = plan.layout.dimension if plan.layout else len(weight)
            result = bias.new_empty(len(plan.offsets) - 1, dimension)
            for chunk in plan.chunks():
                work.make_logits(chunk)
                work.store_folded(chunk, result[chunk.texts])
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias, term_weights = ctx.saved_tensors
        plan, precision = ctx.plan, ctx.precision
        with _on_device_of(states):
            work = _Work(states.to(precision), weight.to(precision), bias, term_weights, plan)
            found = _Gradients.zeros(states, weight, bias, term_weights)
            for chunk in plan.chunks():
                work.make_logits(chunk)
                logits = work.to_gradients(chunk, gradient[chunk.texts], found.term_weights)
                found.add(work, chunk, logits, ctx.needs_input_grad)
        needed = zip(found, ctx.needs_input_grad, strict=False)
        return *(part if asked else None for part, asked in needed), None, None


class _Gradients(NamedTuple):
    """Gradients of the tensors of a call, in the order of its arguments."""

    states: Tensor
    weight: Tensor
    bias: Tensor
    term_weights: Tensor

    @classmethod
    def zeros(
        cls, states: Tensor, weight: Tensor, bias: Tensor, term_weights: Tensor
    ) -> "_Gradients":
        """Sums over chunks are kept in float32 at least."""
        sums = torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
        return cls(
            torch.empty_like(states), sums, torch.zeros_like(bias), torch.empty_like(term_weights)
        )

    def add(self, work: "_Work", chunk: Chunk, logits: Tensor, needed: Sequence[bool]) -> None:
        """Carries a chunk's gradient of the logits on, through the product."""
        if needed[0]:
            self.states[chunk.rows] = logits @ work.weight
        if needed[1]:
            self.weight.add_(logits.t() @ work.states[chunk.rows])
        if needed[2]:
            self.bias.add_(logits.sum(0, dtype=self.bias.dtype))


class _Work:
    """A pass over the chunks of a call: one buffer of logits, and the kernels that read it."""

    def __init__(
        self, states: Tensor, weight: Tensor, bias: Tensor, term_weights: Tensor, plan: Plan
    ) -> None:
        from denserk.modeling import lexical_kernels

        self.kernels: Any = lexical_kernels
        self.states, self.weight, self.plan = states, weight, plan
        self.term_weights = term_weights.contiguous()
        self.vocabulary = len(weight)
        self.columns = plan.columns(self.vocabulary)
        self.bias = F.pad(bias, (0, self.columns - self.vocabulary), value=-torch.inf)
        self.buffer = states.new_empty(plan.most_rows(), self.columns)
        self.buffer[:, self.vocabulary :] = 0
        self.sums = bias.new_empty(len(self.buffer))
        starts = torch.tensor(plan.offsets, dtype=torch.int32)
        self.starts = starts.to(states.device, non_blocking=True)
        language = self.kernels.tl
        wide = language.float64 if bias.dtype is torch.float64 else language.float32
        self.options = {"wide": wide, "enable_fp_fusion": False}

    def logits(self, chunk: Chunk) -> Tensor:
        """Where a chunk's logits stand: (rows, V)."""
        return self.buffer[: chunk.rows.stop - chunk.rows.start, : self.vocabulary]

    def make_logits(self, chunk: Chunk) -> None:
        """Fills in a chunk's logits, without the bias, and the log-sums of their rows."""
        logits = self.logits(chunk)
        torch.mm(self.states[chunk.rows], self.weight.t(), out=logits)
        if len(logits):
            self.kernels.log_sum_exp[(len(logits),)](
                logits,
                self.bias,
                self.sums,
                self.columns,
                **ROW_STEP,
                **self.options,
            )

    def store_folded(self, chunk: Chunk, best: Tensor) -> None:
        """Maxima of a chunk's texts and slices, into `best`: (texts, D)."""
        layout = self.plan.layout
        if layout is None:
            self._maxima(chunk, best, None, (self.vocabulary, 0, 1), "none")
            return
        layers = _layers(layout)
        pairs = "star" if layout.kind is AggKind.STAR else "plus"
        folding = pairs if layout.signed_pairs else "none"
        self._maxima(chunk, best, None, (layout.modulus, layout.dropped, layers), folding)

    def to_gradients(self, chunk: Chunk, gradient: Tensor, term_gradients: Tensor) -> Tensor:
        """Turns a chunk's logits into their gradient.

        Args:
            chunk: whose logits have been made.
            gradient: (texts, D), of the vectors.
            term_gradients: (N,); the chunk's part is filled in.

        Returns:
            (rows, V), in the place of the logits.
        """
        best = gradient.new_empty(len(gradient), self.columns, dtype=self.bias.dtype)
        winners = torch.empty_like(best, dtype=torch.int32)
        self._maxima(chunk, best, winners, (self.columns, 0, 1), "none")
        spread = _unfolded(gradient, best[:, : self.vocabulary], self.plan.layout)
        logits = self.logits(chunk)
        if len(logits):
            starts = self._starts(chunk)
            texts = torch.arange(len(best), dtype=torch.int32, device=best.device)
            self.kernels.logit_gradients[(len(logits),)](
                logits,
                self.bias,
                self.sums,
                self.term_weights[chunk.rows],
                texts.repeat_interleave(starts.diff(), output_size=len(logits)),
                winners,
                F.pad(spread, (0, self.columns - self.vocabulary)),
                term_gradients[chunk.rows],
                self.columns,
                **ROW_STEP,
                **self.options,
            )
        return logits

    def _starts(self, chunk: Chunk) -> Tensor:
        starts: Tensor = self.starts[chunk.texts.start : chunk.texts.stop + 1] - chunk.rows.start
        return starts

    def _maxima(
        self,
        chunk: Chunk,
        best: Tensor,
        winners: Tensor | None,
        extent: tuple[int, int, int],
        folding: str,
    ) -> None:
        grid = (len(best), -(-extent[0] // TILE["width"]))
        if not len(best):
            return
        self.kernels.maxima[grid](
            self.buffer,
            self.bias,
            self.sums,
            self.term_weights[chunk.rows],
            self._starts(chunk),
            best,
            best if winners is None else winners,
            self.columns,
            *extent,
            folding=folding,
            with_winners=winners is not None,
            **TILE,
            **self.options,
        )


def _on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def _unfolded(gradient: Tensor, best: Tensor, layout: SliceLayout | None) -> Tensor:
    """The gradient of the vocabulary's maxima from that of their slices: (B, D) -> (B, V)."""
    if layout is None:
        return gradient.to(best.dtype).contiguous()
    with torch.enable_grad():
        scores = best.detach().requires_grad_()
        (spread,) = torch.autograd.grad(layout.fold(scores), scores, gradient.to(best.dtype))
    result: Tensor = spread.contiguous()
    return result
