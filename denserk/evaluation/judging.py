"""Which unjudged hits to judge next, so that the sign of a difference is decided soonest.

A difference is decided as soon as its bounds do not enclose 0. Of its two bounds, the one on the
side that is less probable has to be moved to 0: the lower bound of a run that is probably better.
Each pair of a query and a passage is worth what its judgment moves this bound by, on the average
over its grades. How probable a grade is, is estimated from the judged hits: of the query, and of
all queries at such ranks.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.evaluation.completions import (
    UNJUDGED,
    BoundedMeasure,
    Floats,
    Integers,
    QueryHits,
    greatest_of,
)
from denserk.evaluation.unjudged_results import ROUNDING, Interval, JudgingPlan, UnjudgedPair

RANK_BOUNDS = (3, 10, 30, 100)  # judged hits are counted by their best rank, between these
STRENGTH = 5.0  # the judged hits of a query that count as much as those of all queries
MOST_ROWS = 40_000  # queries that are bounded for a simulation
FEWEST_DRAWS = 10
MOST_DRAWS = 100
MOST_CELLS = 50_000_000  # passages of the queries that are bounded to rank the pairs
SEED = 1
DIGITS = 12  # of sums, of which smaller parts come from the order of a sum


class ComparedNames(NamedTuple):
    """What is compared: the names of a run, of its baseline and of a measure."""

    run: str
    baseline: str
    measure: str


class JudgedDifference(NamedTuple):
    """A difference of two runs in a measure, and the hits of the queries that count."""

    bounded: BoundedMeasure
    queries: Sequence[QueryHits]
    run: int  # positions among the runs of the hits
    baseline: int
    highest_grade: int

    @property
    def both(self) -> list[int]:
        """The positions of both runs."""
        return [self.run, self.baseline]

    def highs(self, queries: Sequence[QueryHits]) -> Floats:
        """Return the greatest differences of queries: (Q,)."""
        return greatest_of(self.bounded, queries, self.run, self.baseline, self.highest_grade)

    def lows(self, queries: Sequence[QueryHits]) -> Floats:
        """Return the least differences of queries: (Q,)."""
        return -greatest_of(self.bounded, queries, self.baseline, self.run, self.highest_grade)


class _Pair(NamedTuple):
    """An unjudged hit, by its positions."""

    query: int
    hit: int


def plan_judging(difference: JudgedDifference, names: ComparedNames, count: int) -> JudgingPlan:
    """Return the pairs to judge, `count` at most; none if the sign is decided."""
    low = difference.lows(difference.queries)
    high = difference.highs(difference.queries)
    if not len(low) or not Interval(float(low.mean()), float(high.mean())).is_open:
        return JudgingPlan(*names, pairs=(), sufficient=0)
    pairs = _pairs_that_matter(difference, low, high)
    probabilities = _grade_probabilities(difference)
    if probabilities is None:
        grade_count = difference.highest_grade + 1
        low_is_nearer = bool(low.sum() + high.sum() >= 0)
        even_chances = [
            np.full((len(query.docids), grade_count), 1 / grade_count)
            for query in difference.queries
        ]
        ordered_pairs = _most_useful_first(
            difference, pairs, even_chances, raises_low=low_is_nearer
        )
        return JudgingPlan(*names, _named(difference, ordered_pairs[:count]), len(pairs))
    completions = _draw_completions(difference, probabilities)
    share_higher = _share_higher(difference, completions)
    ordered_pairs = _most_useful_first(
        difference, pairs, probabilities, raises_low=share_higher >= 0.5
    )
    plan = JudgingPlan(
        *names,
        pairs=_named(difference, ordered_pairs[:count]),
        sufficient=len(pairs),
        share_higher=share_higher,
    )
    draw_count = _affordable_draws(difference, len(pairs) + len(difference.queries))
    if draw_count < FEWEST_DRAWS:
        return plan
    fewer_completions = [grades[:draw_count] for grades in completions]
    counts = _needed_counts(difference, ordered_pairs, fewer_completions)
    return replace(
        plan,
        likely=int(np.quantile(counts, 0.5, method="higher")),
        very_likely=int(np.quantile(counts, 0.9, method="higher")),
    )


def _affordable_draws(difference: JudgedDifference, row_count: int) -> int:
    """Return how often so many queries can be bounded in a short time, `MOST_DRAWS` at most."""
    width = max(len(query.docids) for query in difference.queries)
    affordable_rows = min(MOST_ROWS, MOST_CELLS // width)
    return min(affordable_rows // row_count, MOST_DRAWS)


def _named(difference: JudgedDifference, pairs: Sequence[_Pair]) -> tuple[UnjudgedPair, ...]:
    """Return pairs by the ids of their queries and passages."""
    named_pairs = []
    for pair in pairs:
        query = difference.queries[pair.query]
        named_pairs.append(UnjudgedPair(query.qid, query.docids[pair.hit]))
    return tuple(named_pairs)


def _pairs_that_matter(difference: JudgedDifference, low: Floats, high: Floats) -> list[_Pair]:
    """Return the unjudged hits that may move a bound, by their best rank in any run.

    `low` and `high` are the bounds of the queries: (Q,), (Q,).
    """
    ranked_pairs = []
    for position, query in enumerate(difference.queries):
        if high[position] - low[position] < ROUNDING:
            continue
        best_ranks = query.ranks.min(axis=0)
        for hit in np.flatnonzero(query.grades == UNJUDGED).tolist():
            if difference.bounded.may_depend_on(query.ranks[difference.both, hit]):
                ranked_pairs.append((best_ranks[hit], position, hit))
    return [_Pair(query, hit) for _, query, hit in sorted(ranked_pairs)]


def _judged(query: QueryHits, hits: Sequence[int], grades: Sequence[int]) -> QueryHits:
    """Return a query with grades for some of its hits."""
    completed_grades = query.grades.copy()
    completed_grades[hits] = grades
    return query._replace(grades=completed_grades)


def _most_useful_first(
    difference: JudgedDifference,
    pairs: Sequence[_Pair],
    probabilities: Sequence[Floats],
    *,
    raises_low: bool,
) -> list[_Pair]:
    """Return pairs by how much their judgment moves a bound: the lower one, or the upper one.

    Of very many pairs only those at the first ranks are compared; the others follow by their ranks.
    """
    grade_count = difference.highest_grade + 1
    width = max(len(query.docids) for query in difference.queries)
    compared_pairs = pairs[: MOST_CELLS // (grade_count * width)]
    rows = []
    for pair in compared_pairs:
        query = difference.queries[pair.query]
        rows += [_judged(query, [pair.hit], [grade]) for grade in range(grade_count)]
    if raises_low:
        bounds = difference.lows(difference.queries)
        moved_bounds = difference.lows(rows)
    else:
        bounds = -difference.highs(difference.queries)
        moved_bounds = -difference.highs(rows)
    chances = np.array([probabilities[pair.query][pair.hit] for pair in compared_pairs])
    expected_bounds = (moved_bounds.reshape(-1, grade_count) * chances).sum(axis=1)
    movements = expected_bounds - bounds[[pair.query for pair in compared_pairs]]
    order = np.argsort(-movements.round(DIGITS), kind="stable")
    return [*(compared_pairs[position] for position in order), *pairs[len(compared_pairs) :]]


# how probable grades are


def _judged_counts(query: QueryHits, highest_grade: int) -> Floats:
    """Return how often each grade is among the judged hits of a query, by rank: (B, G + 1)."""
    counts = np.zeros((len(RANK_BOUNDS) + 1, highest_grade + 1))
    is_judged = query.grades != UNJUDGED
    grades = np.maximum(query.grades[is_judged], 0)
    np.add.at(counts, (_rank_groups(query)[is_judged], grades), 1.0)
    return counts


def _rank_groups(query: QueryHits) -> NDArray[np.intp]:
    """Return which group of ranks each hit is in, by its best rank: (M,)."""
    groups: NDArray[np.intp] = np.searchsorted(RANK_BOUNDS, query.ranks.min(axis=0))
    return groups


def _grade_probabilities(difference: JudgedDifference) -> list[Floats] | None:
    """Return how probable each grade of each hit is, for all queries: (M, G + 1).

    Returns None unless relevant and other hits are judged: some qrels have relevant passages alone.
    """
    counts_of_queries = [
        _judged_counts(query, difference.highest_grade) for query in difference.queries
    ]
    counts = np.sum(counts_of_queries, axis=0)  # (B, G + 1)
    has_both_kinds = counts[:, 0].any() and counts[:, 1:].any()
    if not has_both_kinds:
        return None
    overall = counts.sum(axis=0) / counts.sum()
    of_ranks = counts + STRENGTH * overall
    of_ranks /= of_ranks.sum(axis=1, keepdims=True)
    probabilities = []
    for query, counts_of_query in zip(difference.queries, counts_of_queries, strict=True):
        weights = counts_of_query.sum(axis=0) + STRENGTH * of_ranks[_rank_groups(query)]
        probabilities.append(weights / weights.sum(axis=1, keepdims=True))
    return probabilities


# simulated judgments


def _draw_completions(
    difference: JudgedDifference, probabilities: Sequence[Floats]
) -> list[Integers]:
    """Return drawn grades of all hits of each query, judged ones as they are: (D, M)."""
    draw_count = max(_affordable_draws(difference, len(difference.queries)), FEWEST_DRAWS)
    generator = np.random.default_rng(SEED)
    completions = []
    for query, chances in zip(difference.queries, probabilities, strict=True):
        limits = np.cumsum(chances, axis=1)  # (M, G + 1)
        numbers = generator.random((draw_count, len(query.docids), 1))
        drawn = (numbers > limits[None, :, :-1]).sum(axis=2)
        completions.append(np.where(query.grades == UNJUDGED, drawn, query.grades))
    return completions


def _share_higher(difference: JudgedDifference, completions: Sequence[Integers]) -> float:
    """Return the share of completions by which the run is higher; a tie counts as half."""
    rows = []
    for query, grades_of_draws in zip(difference.queries, completions, strict=True):
        rows += [query._replace(grades=grades) for grades in grades_of_draws]
    values = difference.highs(rows)  # all is judged: the least value is the greatest one
    sums = values.reshape(len(difference.queries), -1).sum(axis=0)
    return float((np.sign(sums.round(DIGITS)) + 1).mean() / 2)


def _needed_counts(
    difference: JudgedDifference, pairs: Sequence[_Pair], completions: Sequence[Integers]
) -> Integers:
    """Return how many of the pairs, in order, decide the sign in each completion: (D,)."""
    order_of_query: dict[int, list[int]] = {}  # query -> positions of its pairs
    for position, pair in enumerate(pairs):
        order_of_query.setdefault(pair.query, []).append(position)
    rows = []
    for query_position, positions in order_of_query.items():
        query = difference.queries[query_position]
        hits = [pairs[position].hit for position in positions]
        for grades in completions[query_position]:
            for count in range(len(hits) + 1):
                rows.append(_judged(query, hits[:count], grades[hits[:count]]))
    lows = difference.lows(rows)
    highs = difference.highs(rows)
    low = difference.lows(difference.queries)
    high = difference.highs(difference.queries)
    draw_count = len(completions[0])
    low_steps = np.zeros((draw_count, len(pairs)))
    high_steps = np.zeros((draw_count, len(pairs)))
    start = 0
    for positions in order_of_query.values():
        size = draw_count * (len(positions) + 1)
        block = slice(start, start + size)
        low_steps[:, positions] = np.diff(lows[block].reshape(draw_count, -1), axis=1)
        high_steps[:, positions] = np.diff(highs[block].reshape(draw_count, -1), axis=1)
        start += size
    sums_of_lows = low.sum() + np.pad(np.cumsum(low_steps, axis=1), ((0, 0), (1, 0)))
    sums_of_highs = high.sum() + np.pad(np.cumsum(high_steps, axis=1), ((0, 0), (1, 0)))
    is_open = (sums_of_lows < -ROUNDING) & (sums_of_highs > ROUNDING)
    counts: Integers = is_open.sum(axis=1)  # bounds only narrow: what is decided stays so
    return counts
