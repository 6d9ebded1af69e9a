"""Least and greatest values of measures over all completions of the judgments.

A completion gives each unjudged hit a grade from 0 to the highest grade of the qrels. A query has
few unjudged hits and still more completions than can be tried, so each measure is bounded by what
is known of it:

- nDCG, P and R are ratios of sums. For a given value of the ratio, the completion that exceeds it
  most is found level by level (Dinkelbach, "On Nonlinear Fractional Programming", 1967).
- RR and Success depend on the first relevant hit: one relevant passage makes their extremes.
- Rprec depends on how many passages are relevant, and on how many of these are among the first.
- AP of one run is greatest if the relevant hits are the first ones, least if they are the last. A
  difference of AP is a quadratic form: exact up to `MOST_EXACT` unjudged hits, bounded above that.

All bounds are of one query: queries are independent, so the bound of a mean is the mean of bounds.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.evaluation.measures import Measure

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

UNJUDGED = np.iinfo(np.int64).min  # in place of the grade of a hit that nobody judged
PADDING = UNJUDGED + 1  # in place of a grade where a query has fewer passages than others
MOST_EXACT = 12  # unjudged hits of a query, up to which a difference of AP is exact
MOST_IN_PAIRS = 400  # unjudged hits, up to which a bound of AP looks at every two of them
CELLS = 1 << 20  # passages of queries that are computed together, with padding

SUPPORTED = ("nDCG", "nDCG@k", "P@k", "R@k", "RR", "RR@k", "Success@k", "AP", "AP@k", "Rprec")


class QueryHits(NamedTuple):
    """The passages that runs return for a query, down to the depth of a measure."""

    qid: str
    docids: tuple[str, ...]  # M passages that any run returns
    ranks: Floats  # (R, M) from 1, of R runs; infinite where a run lacks the passage
    grades: Integers  # (M,), UNJUDGED where the qrels have none
    other_grades: Integers  # of the judged passages that no run returns


class Rows(NamedTuple):
    """The passages of Q queries, with padding, for a run and its baseline."""

    ranks: Floats  # (Q, M); infinite where the run lacks a passage
    baseline_ranks: Floats  # (Q, M); infinite throughout where there is no baseline
    grades: Integers  # (Q, M)
    other_grades: Integers  # (Q, J)

    def exchanged(self) -> "Rows":
        """Return the rows with run and baseline exchanged."""
        return self._replace(ranks=self.baseline_ranks, baseline_ranks=self.ranks)


class Bounds(NamedTuple):
    """Bounds of a value, or of a difference, of Q queries."""

    low: Floats  # (Q,)
    high: Floats  # (Q,)
    exact: Flags  # (Q,): a completion has the value; else none has a value outside


class BoundedMeasure(ABC):
    """A measure whose least and greatest values over all completions are known."""

    # whether a passage outside the lists of the runs, if it were relevant, could change the value
    depends_on_others = True

    def bounds(self, rows: Rows, highest: int) -> Bounds:
        """Return the bounds of run minus baseline over grades from 0 to `highest`."""
        high, high_is_exact = self.greatest(rows, highest)
        negative_low, low_is_exact = self.greatest(rows.exchanged(), highest)
        return Bounds(0.0 - negative_low, high, high_is_exact & low_is_exact)

    def may_depend_on(self, ranks: Floats) -> bool:
        """Return whether a difference may depend on a hit, by its ranks in both runs: (2,)."""
        return True

    @abstractmethod
    def greatest(self, rows: Rows, highest: int) -> tuple[Floats, Flags]:
        """Return the greatest differences of the queries (Q,), and which are exact (Q,)."""


def greatest_of(
    measure: BoundedMeasure,
    queries: Sequence[QueryHits],
    run: int,
    baseline: int | None,
    highest: int,
) -> Floats:
    """Return the greatest difference of each query: see `bounds_of`."""
    greatest = np.zeros(len(queries))
    for block in _blocks(queries, highest):
        rows = _padded([queries[position] for position in block], run, baseline)
        greatest[block], _ = measure.greatest(rows, highest)
    return greatest


def bounds_of(
    measure: BoundedMeasure,
    queries: Sequence[QueryHits],
    run: int,
    baseline: int | None,
    highest: int,
) -> Bounds:
    """Return the bounds of each query's value of a run, or of its difference from a baseline.

    `run` and `baseline` are positions among the runs of the hits.
    """
    low = np.zeros(len(queries))
    high = np.zeros(len(queries))
    exact = np.ones(len(queries), bool)
    for block in _blocks(queries, highest):
        rows = _padded([queries[position] for position in block], run, baseline)
        of_block = measure.bounds(rows, highest)
        low[block] = of_block.low
        high[block] = of_block.high
        exact[block] = of_block.exact
    return Bounds(low, high, exact)


def _blocks(queries: Sequence[QueryHits], highest: int) -> Iterator[list[int]]:
    """Yield positions of queries with about as many passages, few enough for one computation.

    Each passage takes the memory of all grades, up to the highest one.
    """
    block: list[int] = []
    for position in sorted(range(len(queries)), key=lambda row: len(queries[row].docids)):
        size = (len(queries[position].docids) + 1) * (highest + 1)
        if block and (len(block) + 1) * size > CELLS:
            yield block
            block = []
        block.append(position)
    if block:
        yield block


def _padded(queries: Sequence[QueryHits], run: int, baseline: int | None) -> Rows:
    """Return queries as arrays, in which a query with fewer passages than others is padded."""
    width = max(len(query.docids) for query in queries)
    other_width = max(len(query.other_grades) for query in queries)
    ranks = np.full((len(queries), width), inf)
    baseline_ranks = np.full((len(queries), width), inf)
    grades = np.full((len(queries), width), PADDING)
    other_grades = np.full((len(queries), other_width), PADDING)
    for row, query in enumerate(queries):
        size = len(query.docids)
        ranks[row, :size] = query.ranks[run]
        if baseline is not None:
            baseline_ranks[row, :size] = query.ranks[baseline]
        grades[row, :size] = query.grades
        other_grades[row, : len(query.other_grades)] = query.other_grades
    return Rows(ranks, baseline_ranks, grades, other_grades)


def bounded_measure(measure: Measure, provider: str) -> BoundedMeasure | None:
    """Return what bounds a measure that a provider of ir-measures computes; None for others."""
    params = measure.params
    cutoff = params.get("cutoff", inf)
    level = params.get("rel", 1)
    if params.get("judged_only"):  # a completion would change the ranks
        return None
    if measure.NAME == "nDCG":
        return _Ndcg(cutoff, _gain_function(params.get("gains", {}), provider))
    if measure.NAME == "P":
        return _Precision(cutoff, level)
    if measure.NAME == "R":
        return _Recall(cutoff, level)
    if measure.NAME == "RR":
        return _FirstRelevant(level, lambda ranks: np.where(ranks <= cutoff, 1 / ranks, 0.0))
    if measure.NAME == "Success":
        return _FirstRelevant(level, lambda ranks: np.where(ranks <= cutoff, 1.0, 0.0))
    if measure.NAME == "Rprec":
        return _RPrecision(level)
    if measure.NAME == "AP":
        return _AveragePrecision(cutoff, level)
    return None


def _gain_function(gains: Mapping[int, int], provider: str) -> Callable[[int], float]:
    """Return what a grade gains: itself or what `gains` says; 2 to its power, less 1, in gdeval."""

    def gain(grade: int) -> float:
        mapped_grade = max(gains.get(grade, grade), 0)
        if provider == "gdeval":
            return float(2**mapped_grade - 1)
        return float(mapped_grade)

    return gain


# ratios of sums


class RatioProblem(NamedTuple):
    """A ratio whose sums depend on how many unjudged hits of a query reach each level of gain.

    Numerator: `fixed`, and for each hit that reaches level g, `steps[g]` times its coefficient.
    Denominator: `base`, and for each level g, `denominators[:, g, m]` where m hits reach it.
    """

    fixed: Floats  # (Q,)
    coefficients: Floats  # (Q, M)
    is_unjudged: Flags  # (Q, M)
    steps: Floats  # (G,) from one level of gain to the next
    base: Floats  # (Q,)
    denominators: Floats  # (Q, G, M + 1)


def greatest_ratio(problem: RatioProblem) -> Floats:
    """Return the greatest ratio over all completions (Q,); 0 where the denominator is 0.

    Whatever the number of hits that reach a level, the numerator is greatest if they are those with
    the largest coefficients. Each iteration finds the numbers that exceed the best ratio so far the
    most, and takes their ratio; it ends where none exceeds it.
    """
    usable = np.where(problem.is_unjudged, problem.coefficients, -inf)
    largest_first = -np.sort(-usable, axis=1)
    sums = np.pad(np.cumsum(largest_first, axis=1), ((0, 0), (1, 0)))  # (Q, M + 1)
    rows = np.arange(len(sums))[:, None]
    levels = np.arange(len(problem.steps))[None, :]
    ratio = _divided(problem.fixed, problem.base + problem.denominators[:, :, 0].sum(axis=1))
    if not len(problem.steps):
        return ratio
    gains = problem.steps[None, :, None] * sums[:, None, :]  # (Q, G, M + 1)
    while True:
        counts = _best_counts(gains - ratio[:, None, None] * problem.denominators)
        numerator = problem.fixed + gains[rows, levels, counts].sum(axis=1)
        denominator = problem.base + problem.denominators[rows, levels, counts].sum(axis=1)
        next_ratio = _divided(numerator, denominator)
        if not (next_ratio > ratio).any():
            return ratio
        ratio = np.maximum(ratio, next_ratio)


def _best_counts(profits: Floats) -> NDArray[np.intp]:
    """Return how many hits reach each level (Q, G), for the largest sum of profits (Q, G, M + 1).

    No more hits reach a level than the one below.

    >>> _best_counts(np.array([[[0.0, 1.0, 5.0], [0.0, 2.0, 1.0]]]))
    array([[2, 1]])
    """
    positions = np.arange(profits.shape[2])
    best_position_up_to = []  # for each level, from the highest
    best_above = np.zeros_like(profits[:, 0])
    for level in reversed(range(profits.shape[1])):
        totals = profits[:, level] + best_above
        best_above = np.maximum.accumulate(totals, axis=1)
        is_best = totals == best_above
        best_position_up_to.append(np.maximum.accumulate(np.where(is_best, positions, 0), axis=1))
    rows = np.arange(len(profits))
    count = np.full(len(profits), profits.shape[2] - 1)
    counts = []
    for positions_up_to in reversed(best_position_up_to):
        count = positions_up_to[rows, count]
        counts.append(count)
    return np.stack(counts, axis=1)


def _divided(numerator: Floats, denominator: Floats) -> Floats:
    """Return quotients; 0 where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.zeros(len(numerator)), where=denominator > 0)


class _Ndcg(BoundedMeasure):
    """nDCG: the ideal ranking is that of the qrels and of the hits, as completed."""

    def __init__(self, cutoff: float, gain: Callable[[int], float]) -> None:
        self.cutoff = cutoff
        self.gain = gain

    def greatest(self, rows: Rows, highest: int) -> tuple[Floats, Flags]:
        coefficients = self._discounts(rows.ranks) - self._discounts(rows.baseline_ranks)
        is_unjudged = rows.grades == UNJUDGED
        judged_gains = self._gains(rows.grades)
        least_gain, *further_gains = sorted({self.gain(grade) for grade in range(highest + 1)})
        hit_gains = np.where(is_unjudged, least_gain, judged_gains)
        all_gains = np.concatenate([judged_gains, self._gains(rows.other_grades)], axis=1)
        base, denominators = self._ideal(
            all_gains, is_unjudged.sum(axis=1), rows.grades.shape[1], [least_gain, *further_gains]
        )
        problem = RatioProblem(
            fixed=(coefficients * hit_gains).sum(axis=1),
            coefficients=coefficients,
            is_unjudged=is_unjudged,
            steps=np.diff([least_gain, *further_gains]),
            base=base,
            denominators=denominators,
        )
        return greatest_ratio(problem), np.ones(len(base), bool)

    def _discounts(self, ranks: Floats) -> Floats:
        """Return what a gain counts at each rank; 0 below the cut-off."""
        return np.where(ranks <= self.cutoff, 1 / np.log2(ranks + 1), 0.0)

    def _gains(self, grades: Integers) -> Floats:
        """Return the gains of judged passages; 0 for all others."""
        is_judged = grades > PADDING
        judged_grades = grades[is_judged]
        if not len(judged_grades):
            return np.zeros(grades.shape)
        lowest = int(judged_grades.min())
        table = [self.gain(grade) for grade in range(lowest, int(judged_grades.max()) + 1)]
        positions = np.where(is_judged, grades - lowest, 0)
        return np.where(is_judged, np.array(table)[positions], 0.0)

    def _ideal(
        self, judged_gains: Floats, unjudged_counts: Integers, width: int, gains: Sequence[float]
    ) -> tuple[Floats, Floats]:
        """Return the ideal DCG as `base` and `denominators` of a RatioProblem.

        The ideal DCG is the sum, over all heights of gain, of the discounts of as many first ranks
        as there are passages that reach the height.
        """
        least_gain = gains[0]
        query_count = len(judged_gains)
        base = np.zeros(query_count)
        denominators = np.zeros((query_count, len(gains) - 1, width + 1))
        most_passages = judged_gains.shape[1] + width + 1
        discounts = self._discounts(np.arange(1.0, most_passages + 1))
        discount_sums = np.concatenate([[0.0], np.cumsum(discounts)])
        heights = sorted({0.0, *np.unique(judged_gains).tolist(), *gains})
        for lower, height in pairwise(heights):
            step = height - lower
            judged_counts = (judged_gains >= height).sum(axis=1)
            if height <= least_gain:  # all unjudged hits reach it
                base += step * discount_sums[judged_counts + unjudged_counts]
            elif height > gains[-1]:  # none does
                base += step * discount_sums[judged_counts]
            else:
                level = sum(gain < height for gain in gains) - 1
                counts = judged_counts[:, None] + np.arange(width + 1)
                denominators[:, level] += step * discount_sums[counts]
        return base, denominators


class _BinaryMeasure(BoundedMeasure):
    """A measure that counts passages as relevant from a grade on."""

    def __init__(self, level: int) -> None:
        self.level = level

    def _is_relevant(self, grades: Integers) -> Flags:
        return grades >= self.level

    def _may_be_relevant(self, rows: Rows, highest: int) -> Flags:
        """Return which passages (Q, M) are unjudged and relevant in some completion."""
        is_unjudged: Flags = rows.grades == UNJUDGED
        return is_unjudged & (highest >= self.level)

    def _relevant_counts(self, rows: Rows) -> Integers:
        """Return how many passages are judged relevant, returned or not: (Q,)."""
        hits = self._is_relevant(rows.grades).sum(axis=1)
        others = self._is_relevant(rows.other_grades).sum(axis=1)
        counts: Integers = hits + others
        return counts


class _CountedRelevant(_BinaryMeasure):
    """Relevant hits above the cut-off, divided by a number: P and R."""

    def __init__(self, cutoff: float, level: int) -> None:
        super().__init__(level)
        self.cutoff = cutoff

    def greatest(self, rows: Rows, highest: int) -> tuple[Floats, Flags]:
        run_counts = (rows.ranks <= self.cutoff).astype(float)
        coefficients = run_counts - (rows.baseline_ranks <= self.cutoff)
        is_relevant = self._is_relevant(rows.grades)
        base, denominators = self._denominators(rows)
        problem = RatioProblem(
            fixed=(coefficients * is_relevant).sum(axis=1),
            coefficients=coefficients,
            is_unjudged=self._may_be_relevant(rows, highest),
            steps=np.ones(1),
            base=base,
            denominators=denominators,
        )
        return greatest_ratio(problem), np.ones(len(base), bool)

    @abstractmethod
    def _denominators(self, rows: Rows) -> tuple[Floats, Floats]:
        """Return `base` and `denominators` of a RatioProblem."""


class _Precision(_CountedRelevant):
    """P@k: the relevant share of the first k hits."""

    depends_on_others = False

    def may_depend_on(self, ranks: Floats) -> bool:
        return bool((ranks <= self.cutoff).sum() == 1)

    def _denominators(self, rows: Rows) -> tuple[Floats, Floats]:
        query_count, width = rows.grades.shape
        return np.full(query_count, float(self.cutoff)), np.zeros((query_count, 1, width + 1))


class _Recall(_CountedRelevant):
    """R@k: the share of the relevant passages that is among the first k hits."""

    def _denominators(self, rows: Rows) -> tuple[Floats, Floats]:
        query_count, width = rows.grades.shape
        further_counts = np.arange(width + 1.0)
        denominators = np.broadcast_to(further_counts, (query_count, 1, width + 1))
        return self._relevant_counts(rows).astype(float), denominators


# the first relevant hit


class _FirstRelevant(_BinaryMeasure):
    """A measure of the first relevant hit's rank, which has no larger value at a lower rank."""

    depends_on_others = False

    def __init__(self, level: int, value_at: Callable[[Floats], Floats]) -> None:
        super().__init__(level)
        self._value_at = value_at

    def greatest(self, rows: Rows, highest: int) -> tuple[Floats, Flags]:
        is_relevant = self._is_relevant(rows.grades)
        values = self._value_at(rows.ranks)  # (Q, M) if the passage is the first relevant one
        baseline_values = self._value_at(rows.baseline_ranks)
        value = np.max(values, axis=1, where=is_relevant, initial=0.0)
        baseline_value = np.max(baseline_values, axis=1, where=is_relevant, initial=0.0)
        # of all completions with the same first relevant hit, the one without others is greatest
        with_passage = np.maximum(value[:, None], values)
        baseline_with_passage = np.maximum(baseline_value[:, None], baseline_values)
        greatest = np.max(
            with_passage - baseline_with_passage,
            axis=1,
            where=self._may_be_relevant(rows, highest),
            initial=-inf,
        )
        return np.maximum(value - baseline_value, greatest), np.ones(len(value), bool)


# measures whose queries are computed one by one


class _RPrecision(_BinaryMeasure):
    """Rprec: the relevant share of as many first hits as there are relevant passages."""

    def greatest(self, rows: Rows, highest: int) -> tuple[Floats, Flags]:
        may_be_relevant = self._may_be_relevant(rows, highest)
        is_relevant = self._is_relevant(rows.grades)
        relevant_counts = self._relevant_counts(rows)
        greatest = np.zeros(len(relevant_counts))
        for row, relevant_count in enumerate(relevant_counts):
            unjudged = may_be_relevant[row]
            relevant = is_relevant[row]
            greatest[row] = _greatest_r_precision(
                int(relevant_count),
                _RankPair(rows.ranks[row, relevant], rows.baseline_ranks[row, relevant]),
                _RankPair(rows.ranks[row, unjudged], rows.baseline_ranks[row, unjudged]),
            )
        return greatest, np.ones(len(greatest), bool)


class _RankPair(NamedTuple):
    """The ranks of N passages of a query in a run and in its baseline."""

    run: Floats  # (N,)
    baseline: Floats  # (N,)


def _greatest_r_precision(relevant_count: int, relevant: _RankPair, unjudged: _RankPair) -> float:
    """Return the greatest difference of Rprec, over the number of unjudged hits that are relevant.

    For a given number, those that only the run has above the cut-off are taken first, then those
    that both or neither have there.
    """
    further = np.arange(len(unjudged.run) + 1)  # (U + 1,) unjudged hits that are relevant
    cutoffs = relevant_count + further
    fixed = _counts_up_to(relevant.run, cutoffs) - _counts_up_to(relevant.baseline, cutoffs)
    in_both = _counts_up_to(np.maximum(unjudged.run, unjudged.baseline), cutoffs)
    in_run_alone = _counts_up_to(unjudged.run, cutoffs) - in_both
    in_baseline_alone = _counts_up_to(unjudged.baseline, cutoffs) - in_both
    elsewhere = len(unjudged.run) - in_baseline_alone
    gained = np.minimum(further, in_run_alone)
    lost = np.maximum(further - elsewhere, 0)
    values = _divided((fixed + gained - lost).astype(float), cutoffs.astype(float))
    return float(values.max())


def _counts_up_to(ranks: Floats, cutoffs: Integers) -> Integers:
    """Return how many of (N,) ranks are at most each of (K,) cut-offs.

    >>> _counts_up_to(np.array([1.0, 3.0, np.inf]), np.array([0, 1, 5]))
    array([0, 1, 2])
    """
    return np.searchsorted(np.sort(ranks), cutoffs, side="right").astype(np.int64)


class _PrecisionSum(NamedTuple):
    """The sum that AP divides by the relevant passages, of U unjudged hits x that are 0 or 1.

    It is `fixed` + x `linear` + the sum over every two hits of the smaller of their `weights`.
    """

    fixed: float
    linear: Floats  # (U,)
    weights: Floats  # (U,) 1 / rank; 0 below the cut-off

    def largest(self) -> Floats:
        """Return the largest sums if 0 to U hits are relevant: (U + 1,)."""
        order = np.argsort(-self.weights, kind="stable")
        weights = self.weights[order]
        return self._summed(self.linear[order] + np.arange(len(weights)) * weights)

    def smallest(self) -> Floats:
        """Return the smallest sums if 0 to U hits are relevant: (U + 1,)."""
        order = np.argsort(self.weights, kind="stable")
        weights = self.weights[order]
        return self._summed(self.linear[order] + np.cumsum(weights) - weights)

    def _summed(self, further: Floats) -> Floats:
        return self.fixed + np.concatenate([[0.0], np.cumsum(further)])

    def quadratic(self) -> Floats:
        """Return what every two hits add if both are relevant: (U, U), 0 on the diagonal."""
        matrix = np.minimum(self.weights[:, None], self.weights[None, :])
        np.fill_diagonal(matrix, 0.0)
        return matrix


class _AveragePrecision(_BinaryMeasure):
    """AP: the mean, over the relevant passages, of the precision at their ranks."""

    def __init__(self, cutoff: float, level: int) -> None:
        super().__init__(level)
        self.cutoff = cutoff

    def greatest(self, rows: Rows, highest: int) -> tuple[Floats, Flags]:
        may_be_relevant = self._may_be_relevant(rows, highest)
        is_relevant = self._is_relevant(rows.grades)
        weights = self._weights(rows.ranks)
        baseline_weights = self._weights(rows.baseline_ranks)
        relevant_counts = self._relevant_counts(rows)
        greatest = np.zeros(len(relevant_counts))
        exact = np.ones(len(relevant_counts), bool)
        for row, relevant_count in enumerate(relevant_counts):
            relevant = is_relevant[row]
            unjudged = may_be_relevant[row]
            run = _precision_sum(weights[row, relevant], weights[row, unjudged])
            baseline = _precision_sum(
                baseline_weights[row, relevant], baseline_weights[row, unjudged]
            )
            greatest[row], exact[row] = _greatest_difference(run, baseline, int(relevant_count))
        return greatest, exact

    def _weights(self, ranks: Floats) -> Floats:
        return np.where(ranks <= self.cutoff, 1 / ranks, 0.0)


def _precision_sum(relevant_weights: Floats, unjudged_weights: Floats) -> _PrecisionSum:
    """Return the sum of precisions by the weights of relevant and of unjudged passages."""
    largest_first = -np.sort(-relevant_weights)
    positions = np.arange(1, len(largest_first) + 1)
    pairs = np.minimum(unjudged_weights[:, None], relevant_weights[None, :])
    return _PrecisionSum(
        fixed=float((largest_first * positions).sum()),
        linear=unjudged_weights + pairs.sum(axis=1),
        weights=unjudged_weights,
    )


def _greatest_difference(
    run: _PrecisionSum, baseline: _PrecisionSum, relevant_count: int
) -> tuple[float, bool]:
    """Return the greatest difference of AP, and whether a completion has it."""
    unjudged_count = len(run.weights)
    relevant_counts = relevant_count + np.arange(unjudged_count + 1.0)
    sums = run.largest() - baseline.smallest()
    one_is_fixed = not run.weights.any() or not baseline.weights.any()
    if one_is_fixed:
        return float(_divided(sums, relevant_counts).max()), True
    fixed = run.fixed - baseline.fixed
    linear = run.linear - baseline.linear
    if unjudged_count <= MOST_EXACT:
        quadratic = run.quadratic() - baseline.quadratic()
        return _greatest_of_all(fixed, linear, quadratic, relevant_count), True
    if unjudged_count <= MOST_IN_PAIRS:
        quadratic = run.quadratic() - baseline.quadratic()
        sums = np.minimum(sums, _bounds_by_pairs(fixed, linear, quadratic))
    return float(_divided(sums, relevant_counts).max()), False


def _greatest_of_all(fixed: float, linear: Floats, quadratic: Floats, relevant_count: int) -> float:
    """Return the greatest ratio of a quadratic form to the relevant passages, of all choices."""
    unjudged_count = len(linear)
    numbers = np.arange(2**unjudged_count)[:, None]
    choices = (numbers >> np.arange(unjudged_count) & 1).astype(float)  # (2^U, U)
    pairs = ((choices @ quadratic) * choices).sum(axis=1) / 2
    sums = fixed + choices @ linear + pairs
    return float(_divided(sums, relevant_count + choices.sum(axis=1)).max())


def _bounds_by_pairs(fixed: float, linear: Floats, quadratic: Floats) -> Floats:
    """Return upper bounds of a quadratic form with 0 to U ones: (U + 1,).

    Each one adds at most its linear part and half of the largest pairs that it may be in.
    """
    others = quadratic.copy()
    np.fill_diagonal(others, -inf)
    largest_pairs = -np.sort(-others, axis=1)[:, :-1]
    pair_sums = np.pad(np.cumsum(largest_pairs, axis=1), ((0, 0), (1, 0)))  # (U, U)
    parts = linear[:, None] + pair_sums / 2  # (U, U) of each hit, if 1 to U are relevant
    largest_parts = np.cumsum(-np.sort(-parts, axis=0), axis=0)
    bounds = np.diagonal(largest_parts)
    return fixed + np.concatenate([[0.0], bounds])
