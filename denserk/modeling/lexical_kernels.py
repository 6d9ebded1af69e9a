"""Triton kernels of Aggretriever's lexical part: vocabulary logits -> maxima of texts, and back.

The paper's symbols as in `lexical_aggregation`: `z_i` the logits of position i, `p_i` their
softmax, `w_i` the position's weight, `v[u] = max_i w_i p_i[u]`. Positions of all texts stand packed
in one list, and text b holds positions `starts[b] .. starts[b + 1] - 1`. Logits come as the matrix
product left them, in its precision and without the bias; sums are accumulated in `wide`, float32 or
float64. Rows are `columns` wide, a multiple of 16, so that loads are wide too; behind the
vocabulary the logits are 0 and the bias is -inf: tokens of probability 0, of which no mask needs to
know. This is the one module that needs Triton.

Annotations of pointers and sizes are strings because Triton reads the others.
"""

from typing import Any

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def log_sum_exp(
    logits: "Any",
    bias: "Any",
    sums: "Any",
    columns: "Any",
    width: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    """`log sum_u exp(z_i[u] + bias[u])` of each position; one program a position."""
    row = tl.program_id(0).to(tl.int64)
    top = tl.full((), float("-inf"), wide)
    total = tl.zeros((), wide)
    for start in range(0, columns, width):
        token = start + tl.arange(0, width)
        real = token < columns
        z = tl.load(logits + row * columns + token, mask=real, other=float("-inf")).to(wide)
        z += tl.load(bias + token, mask=real, other=0.0)
        raised = tl.maximum(top, tl.max(z, axis=0))
        total = total * tl.exp(top - raised) + tl.sum(tl.exp(z - raised), axis=0)
        top = raised
    tl.store(sums + row, top + tl.log(total))


@triton.jit(do_not_specialize_on_alignment=["weights", "starts"])  # type: ignore[untyped-decorator]
def maxima(
    logits: "Any",
    bias: "Any",
    sums: "Any",
    weights: "Any",
    starts: "Any",
    best: "Any",
    winners: "Any",
    columns: "Any",
    modulus: "Any",
    dropped: "Any",
    layers: "Any",
    folding: tl.constexpr,
    with_winners: tl.constexpr,
    tall: tl.constexpr,
    width: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    """`v` of each text, folded into slices; one program a text and `width` columns.

    Place c of a text gathers the tokens `dropped + n * modulus + c` for n < `layers`. For the
    vocabulary as it is, `modulus` is its size and `layers` is 1.

    `folding`: "none" stores a place's maximum; "plus" the larger of places 2n and 2n + 1; "star"
    the same, negated where the second wins or both are equal. `with_winners` stores the position
    that each maximum is of, the first of equals, beside it.
    """
    text = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * width + tl.arange(0, width)
    first, end = tl.load(starts + text), tl.load(starts + text + 1)
    highest = tl.full((width,), float("-inf"), wide)
    winner = tl.full((width,), -1, tl.int32)
    for layer in range(layers):
        token = dropped + layer * modulus + place
        real = token < columns
        shift = tl.load(bias + token, mask=real, other=0.0)
        found = tl.full((width,), float("-inf"), wide)
        for start in range(first, end, tall):
            row = start + tl.arange(0, tall)
            here = row < end
            cell = logits + row.to(tl.int64)[:, None] * columns + token[None, :]
            z = tl.load(cell, mask=here[:, None] & real[None, :], other=float("-inf")).to(wide)
            w = tl.load(weights + row, mask=here, other=0.0)
            log_sum = tl.load(sums + row, mask=here, other=0.0)
            product = w[:, None] * tl.exp(z + shift[None, :] - log_sum[:, None])
            product = tl.where(here[:, None], product, float("-inf"))
            higher = tl.max(product, axis=0)
            if with_winners:
                at = tl.argmax(product, axis=0, tie_break_left=True).to(tl.int32)
                winner = tl.where(higher > found, start + at, winner)
            found = tl.maximum(found, higher)
        highest = tl.maximum(highest, found)
    if folding == "none":
        tl.store(best + text * modulus + place, highest, mask=place < modulus)
        if with_winners:
            tl.store(winners + text * modulus + place, winner, mask=place < modulus)
    else:
        plus, minus = tl.split(tl.reshape(highest, (width // 2, 2)))
        if folding == "star":
            value = tl.where(plus > minus, plus, 0.0 - minus)
        else:
            value = tl.maximum(plus, minus)
        part = tl.program_id(1) * (width // 2) + tl.arange(0, width // 2)
        dimension = modulus // 2
        tl.store(best + text * dimension + part, value, mask=part < dimension)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize_on_alignment=["weights", "texts", "weight_gradients"]
)
def logit_gradients(
    logits: "Any",
    bias: "Any",
    sums: "Any",
    weights: "Any",
    texts: "Any",
    winners: "Any",
    gradient: "Any",
    weight_gradients: "Any",
    columns: "Any",
    width: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    """The gradient of `z_i`, written over the logits, and that of `w_i`; one program a position.

    With g the gradient of `v` where this position is the winner, and 0 elsewhere:
    `dw_i = sum_u g[u] p_i[u]` and `dz_i[u] = w_i p_i[u] (g[u] - dw_i)`.
    """
    row = tl.program_id(0).to(tl.int64)
    text = tl.load(texts + row).to(tl.int64)
    w, log_sum = tl.load(weights + row), tl.load(sums + row)
    share = tl.zeros((), wide)
    for start in range(0, columns, width):
        token = start + tl.arange(0, width)
        real = token < columns
        won = tl.load(winners + text * columns + token, mask=real, other=-1) == row
        g = tl.load(gradient + text * columns + token, mask=real & won, other=0.0)
        z = tl.load(logits + row * columns + token, mask=real & won, other=float("-inf")).to(wide)
        shift = tl.load(bias + token, mask=real, other=0.0)
        share += tl.sum(g * tl.exp(z + shift - log_sum), axis=0)
    for start in range(0, columns, width):
        token = start + tl.arange(0, width)
        real = token < columns
        won = tl.load(winners + text * columns + token, mask=real, other=-1) == row
        g = tl.load(gradient + text * columns + token, mask=real & won, other=0.0)
        z = tl.load(logits + row * columns + token, mask=real, other=float("-inf")).to(wide)
        shift = tl.load(bias + token, mask=real, other=0.0)
        change = w * tl.exp(z + shift - log_sum) * (g - share)
        tl.store(logits + row * columns + token, change.to(logits.dtype.element_ty), mask=real)
    tl.store(weight_gradients + row, share)
