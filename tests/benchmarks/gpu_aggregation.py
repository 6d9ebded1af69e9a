"""Aggretriever's head alone on a GPU: the kernels beside the literal forms, time and memory.

    python -m tests.benchmarks.gpu_aggregation [--device cpu --tiny]

States of 64 passages of MS MARCO's lengths, BERT's vocabulary, H = 768, bfloat16. `padded` is the
published way: logits, softmax and product of every position, padding included. `blocks` is the
plain path of encoding, `literal` the plain one of training. Floors are of the same run: the
products of real positions at the measured matrix rate, and the bytes of their logits, written once
and read twice, at the measured bandwidth.

Claimed, and the exit status is 1 where it does not hold: the kernels' vectors and gradients are
those of the literal form in float32, to a relative error of 1e-4, and in bfloat16 to 2e-2; they
take at most half the time of `padded` and a third of its memory.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from denserk.modeling import fused_aggregation
from denserk.modeling.fused_aggregation import fused_aggregate
from denserk.modeling.kernel_trial import kernels_problem
from denserk.modeling.lexical_aggregation import aggregate, aggregate_in_blocks
from denserk.modeling.lexical_gradient import aggregate_packed
from denserk.modeling.operations import matrix_rate
from denserk.modeling.slice_layout import SliceLayout
from denserk.modeling.unpadded_tokens import Packing
from denserk.settings.encoding import AggKind, AggLayout
from tests.benchmarks.gpu_machine import ENTRIES, Machine, lengths

BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
TIME, MEMORY = 0.5, 1 / 3
CHUNKS = (512, 1024, 2048, 4096, 8192)
"""Positions of a chunk that are tried."""


class Head(NamedTuple):
    """What the head is given: states (B, T, H), weights (B, T), and its last layer."""

    states: Tensor
    terms: Tensor
    weight: Tensor
    bias: Tensor
    mask: Tensor
    layout: SliceLayout

    @classmethod
    def drawn(cls, machine: Machine, dtype: torch.dtype) -> "Head":
        """Random numbers of BERT-base's shape, or tiny ones."""
        texts, hidden, entries, slices = (3, 8, 75, 20) if machine.tiny else (64, 768, ENTRIES, 640)
        torch.manual_seed(0)
        long = torch.tensor(lengths(texts)) // (20 if machine.tiny else 1) + 1
        mask = torch.arange(int(long.max())) < long[:, None]
        shape = (*mask.shape, hidden)
        return cls(
            torch.randn(shape).to(machine.device, dtype),
            torch.rand(mask.shape).to(machine.device),
            (torch.randn(entries, hidden) / hidden**0.5 * 4).to(machine.device, dtype),
            torch.randn(entries).to(machine.device, dtype),
            mask.to(machine.device),
            SliceLayout.build(entries, slices, AggKind.STAR, AggLayout.STRIDED, 0),
        )

    def leaves(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What has a gradient, anew."""
        parts = (self.states, self.terms, self.weight, self.bias)
        states, terms, weight, bias = (part.detach().clone().requires_grad_() for part in parts)
        return states, terms, weight, bias

    def logits(self, states: Tensor) -> Tensor:
        """(..., H) -> (..., V)."""
        return F.linear(states, self.weight, self.bias)


def padded(head: Head) -> Tensor:
    """Every position, padding included."""
    return head.layout.fold(aggregate(head.logits(head.states), head.terms, head.mask))


def blocks(head: Head) -> Tensor:
    """A block of positions at a time, of real ones alone."""
    entries = len(head.weight)
    best = aggregate_in_blocks(head.states, head.terms, head.mask, head.logits, entries, 4096)
    return head.layout.fold(best)


def literal(head: Head) -> Tensor:
    """Real positions alone, all at once, the gradient written out."""
    logits, counts = head.logits(head.states[head.mask]), head.mask.sum(1).tolist()
    return head.layout.fold(aggregate_packed(logits, head.terms[head.mask], counts))


def kernels(head: Head, rows: int = fused_aggregation.ROWS) -> Tensor:
    """The kernels, or where they do not serve nothing new."""
    if kernels_problem(head.states.device) is not None:
        return literal(head)
    packing = Packing.of(head.mask)
    return fused_aggregate(
        packing.pack(head.states),
        head.weight,
        head.bias,
        packing.pack(head.terms),
        packing.offsets,
        head.layout,
        rows,
    )


def gradients(form: Callable[[Head], Tensor], head: Head) -> tuple[Tensor, ...]:
    """Vectors, and the gradients of states, weights, last layer and bias."""
    leaves = head.leaves()
    states, terms, weight, bias = leaves
    given = head._replace(states=states, terms=terms, weight=weight, bias=bias)
    vectors = form(given)
    target = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(1))
    return vectors.detach(), *torch.autograd.grad(vectors, leaves, target.to(vectors.device))


def errors(machine: Machine) -> list[str]:
    """Claims of nearness that do not hold; the literal form computes in float32."""
    wrong = []
    for dtype, bound in BOUNDS.items():
        head = Head.drawn(machine, dtype)
        wide = head._replace(**{n: getattr(head, n).float() for n in ("states", "weight", "bias")})
        pairs = zip(gradients(kernels, head), gradients(padded, wide), strict=True)
        off = max(float((got.float() - want).norm() / want.norm()) for got, want in pairs)
        print(f"relative error in {str(dtype).removeprefix('torch.')}: {off:.1e}")
        if not off <= bound:
            wrong.append(f"relative error {off:.1e} in {dtype}, claimed {bound}")
    return wrong


def floors(machine: Machine, head: Head) -> tuple[float, float]:
    """Seconds of the products alone, and of the logits' bytes alone."""
    count, (entries, hidden) = int(head.mask.sum()), head.weight.shape
    rate = matrix_rate(hidden, head.weight.dtype, machine.device, 0.01 if machine.tiny else 1.0)
    block = torch.empty(2**20 if machine.tiny else 2**30, device=machine.device, dtype=torch.int8)
    copied = 2 * block.numel() / machine.seconds(lambda: block.clone())
    bytes_moved = 3 * count * entries * head.weight.element_size()
    return 2 * count * entries * hidden / rate, bytes_moved / copied


def main(arguments: list[str] | None = None) -> None:
    """Measures, and fails where a claim does not hold."""
    machine = Machine.asked_for("Measures Aggretriever's head on a GPU.", arguments)
    if (problem := kernels_problem(machine.device)) is not None:
        print(f"the kernels do not serve: {problem}")
    wrong = errors(machine)
    head = Head.drawn(machine, torch.bfloat16)
    print(f"{len(head.mask)} passages, {int(head.mask.sum())} positions of {head.mask.numel()}")
    product, memory = floors(machine, head)
    print(f"floors: products {1e3 * product:.3f} ms, bytes of logits {1e3 * memory:.3f} ms")
    found = {}
    for name, form in {"padded": padded, "blocks": blocks, "kernels": kernels}.items():
        with torch.inference_mode():
            took = machine.seconds(lambda form=form: form(head))  # type: ignore[misc]
            found[name] = took, machine.peak_mib(lambda form=form: form(head))  # type: ignore[misc]
        print(f"encoding, {name:10}{1e3 * took:9.3f} ms{found[name][1]:9,.0f} MiB", flush=True)
    for name, form in {"padded": padded, "literal": literal, "kernels": kernels}.items():
        took = machine.seconds(lambda form=form: gradients(form, head))  # type: ignore[misc]
        peak = machine.peak_mib(lambda form=form: gradients(form, head))  # type: ignore[misc]
        print(f"training, {name:10}{1e3 * took:9.3f} ms{peak:9,.0f} MiB", flush=True)
    for rows in CHUNKS[: 1 if machine.tiny else None]:
        with torch.inference_mode():
            took = machine.seconds(lambda rows=rows: kernels(head, rows))  # type: ignore[misc]
        print(f"kernels, chunks of {rows:5}{1e3 * took:9.3f} ms", flush=True)
    (slow, large), (quick, small) = found["padded"], found["kernels"]
    if quick > TIME * slow:
        wrong.append(f"the kernels take {quick / slow:.2f} of the time of padded, claimed {TIME}")
    if small > MEMORY * large:
        wrong.append(f"the kernels take {small / large:.2f} of its memory, claimed {MEMORY:.2f}")
    if machine.is_gpu and wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
