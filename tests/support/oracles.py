"""Slow, literal restatements of Aggretriever's equations, in plain Python and float64."""

import math
from collections.abc import Sequence

from denserk.config.encoding import AggKind, TermWeight
from denserk.models.lexical import SliceLayout

Rows = Sequence[Sequence[float]]


def softmax(row: Sequence[float]) -> list[float]:
    top = max(row)
    powers = [math.exp(value - top) for value in row]
    return [power / sum(powers) for power in powers]


def weight(value: float, rule: TermWeight) -> float:
    return {
        TermWeight.CLAMP: max(0.0, value),
        TermWeight.SIGNED: value,
        TermWeight.ABS: abs(value),
        TermWeight.ONE: 1.0,
    }[rule]


def vocabulary_scores(
    logits: Rows, weights: Sequence[float], mask: Sequence[bool], rule: TermWeight
) -> list[float]:
    """`v[v] = max_i w_i p_i[v]` over the positions that count (Aggretriever, section 3.1)."""
    counted = [i for i, real in enumerate(mask) if real]
    distributions = [softmax(logits[i]) for i in counted]
    return [
        max(weight(weights[i], rule) * p[v] for i, p in zip(counted, distributions, strict=True))
        for v in range(len(logits[0]))
    ]


def token_scores(
    ids: Sequence[int],
    weights: Sequence[float],
    mask: Sequence[bool],
    rule: TermWeight,
    vocabulary: int,
) -> list[float]:
    """The variant without an MLM head (Aggretriever, Table 8 row 3)."""
    scores = [0.0] * vocabulary
    for token, value, real in zip(ids, weights, mask, strict=True):
        if real:
            scores[token] = max(scores[token], weight(value, rule))
    return scores


def folded(scores: Sequence[float], layout: SliceLayout) -> list[float]:
    """agg* or agg+ of a vocabulary-wide vector, slice by slice."""
    halves: dict[tuple[int, int], list[float]] = {}
    width = layout.modulus

    def add(column: int, score: float) -> None:
        sign = -1 if layout.kind is AggKind.STAR and column % 2 else 1
        place = (column // 2 if layout.signed_pairs else column, sign)
        halves.setdefault(place, []).append(score)

    for position, token in enumerate(layout.order or range(len(scores))):
        if position >= layout.dropped:
            add((position - layout.dropped) % width, scores[token])
    if (layout.vocabulary - layout.dropped + layout.appended) // width:
        for column in range(width - layout.appended, width):  # appended zeros fill the last row
            add(column, 0.0)
    result = []
    for n in range(layout.dimension):
        plus = max(halves.get((n, 1), [-math.inf]))
        minus = max(halves.get((n, -1), [-math.inf]))
        if layout.kind is AggKind.PLUS:
            result.append(plus)
        else:
            result.append(plus if plus > minus else -minus + 0.0)
    return result
