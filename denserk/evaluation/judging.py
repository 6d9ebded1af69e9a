"""Which unjudged hits to judge next, so that the sign of a difference is decided soonest.

How probable the grades of an unjudged hit are, is estimated from the judged hits: of the query, and
of all queries at such ranks. Grades that are drawn so are simulated judgments. There are two aims:

- As long as the simulated judgments disagree about the sign, it is to become likely. Each pair of a
  query and a passage is worth the variance of the difference over its probable grades.
- Once they agree, the sign is to be decided: the bounds of the difference must not enclose 0. Of
  its two bounds, the one on the side that is less probable has to be moved to 0: the lower bound of
  a run that is probably better. Each pair is worth what its judgment moves this bound by, on the
  average over its grades.
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
VARIANCE_DRAWS = 3  # of the other hits' grades, by which the variance over a hit's is computed
AGREEMENT = 0.99  # share of simulated judgments that agree about the sign if it is likely
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

    def may_depend_on(self, pair: "_Pair") -> bool:
        """Return whether the difference may depend on the grade of a hit."""
        ranks = self.queries[pair.query].ranks
        return self.bounded.may_depend_on(ranks[[self.run, self.baseline], pair.hit])

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
        low_is_nearer = bool(low.sum() + high.sum() >= 0)
        ordered_pairs = _most_useful_first(
            difference, pairs, _even_probabilities(difference), raises_low=low_is_nearer
        )
        named_pairs = _named(difference, ordered_pairs[:count])
        return JudgingPlan(*names, pairs=named_pairs, sufficient=len(pairs))
    completions = _draw_completions(difference, probabilities)
    share_higher = _share_higher(difference, completions)
    if max(share_higher, 1 - share_higher) < AGREEMENT:
        ordered_pairs = _most_uncertain_first(difference, pairs, probabilities, completions)
    else:
        ordered_pairs = _most_useful_first(
            difference, pairs, probabilities, raises_low=share_higher >= 0.5
        )
    plan = JudgingPlan(
        *names,
        pairs=_named(difference, ordered_pairs[:count]),
        sufficient=len(pairs),
        share_higher=share_higher,
    )
    # a query with P pairs is bounded P + 1 times in each completion
    draw_count = _affordable_draws(difference, len(pairs) + len(difference.queries))
    if draw_count < FEWEST_DRAWS:
        return plan
    first_completions = [grades[:draw_count] for grades in completions]
    counts = _needed_counts(difference, ordered_pairs, first_completions)
    return replace(
        plan,
        likely=int(np.quantile(counts, 0.5, method="higher")),
        very_likely=int(np.quantile(counts, 0.9, method="higher")),
    )


def _affordable_draws(difference: JudgedDifference, row_count: int) -> int:
    """Return how many draws are affordable, `MOST_DRAWS` at most.

    For each draw `row_count` queries are bounded.
    """
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
            pair = _Pair(position, hit)
            if difference.may_depend_on(pair):
                ranked_pairs.append((best_ranks[hit], pair))
    return [pair for _, pair in sorted(ranked_pairs)]


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
    """Return pairs by how much their judgment moves a bound: the lower one, or the upper one."""
    compared_pairs = _comparable(difference, pairs)
    rows = _with_each_grade(difference, compared_pairs, difference.queries)
    if raises_low:
        bounds = difference.lows(difference.queries)
        moved_bounds = difference.lows(rows)
    else:
        bounds = -difference.highs(difference.queries)
        moved_bounds = -difference.highs(rows)
    chances = _chances(compared_pairs, probabilities)
    expected_bounds = (moved_bounds.reshape(chances.shape) * chances).sum(axis=1)
    movements = expected_bounds - bounds[[pair.query for pair in compared_pairs]]
    return _in_order(pairs, movements)


def _most_uncertain_first(
    difference: JudgedDifference,
    pairs: Sequence[_Pair],
    probabilities: Sequence[Floats],
    completions: Sequence[Integers],
) -> list[_Pair]:
    """Return pairs by the standard deviation of the difference over their grades.

    For each grade of a pair, the difference is the mean over a few completions of the other hits.
    """
    compared_pairs = _comparable(difference, pairs)
    chances = _chances(compared_pairs, probabilities)
    value_sums = np.zeros(chances.shape)
    for draw in range(VARIANCE_DRAWS):
        completed_queries = []
        for query, grades_of_draws in zip(difference.queries, completions, strict=True):
            completed_queries.append(query._replace(grades=grades_of_draws[draw]))
        rows = _with_each_grade(difference, compared_pairs, completed_queries)
        # all is judged: the greatest value is the value
        value_sums += difference.highs(rows).reshape(chances.shape)
    values = value_sums / VARIANCE_DRAWS
    means = (values * chances).sum(axis=1, keepdims=True)
    variances = ((values - means) ** 2 * chances).sum(axis=1)
    return _in_order(pairs, np.sqrt(variances))


def _comparable(difference: JudgedDifference, pairs: Sequence[_Pair]) -> Sequence[_Pair]:
    """Return the first pairs, at most as many as can be compared."""
    grade_count = difference.highest_grade + 1
    width = max(len(query.docids) for query in difference.queries)
    return pairs[: MOST_CELLS // (grade_count * width)]


def _with_each_grade(
    difference: JudgedDifference, pairs: Sequence[_Pair], queries: Sequence[QueryHits]
) -> list[QueryHits]:
    """Return the query of each pair with each grade for its hit, from 0 to the highest one."""
    rows = []
    for pair in pairs:
        for grade in range(difference.highest_grade + 1):
            rows.append(_judged(queries[pair.query], [pair.hit], [grade]))
    return rows


def _chances(pairs: Sequence[_Pair], probabilities: Sequence[Floats]) -> Floats:
    """Return how probable each grade of each pair is: (P, G + 1)."""
    return np.array([probabilities[pair.query][pair.hit] for pair in pairs])


def _in_order(pairs: Sequence[_Pair], worths: Floats) -> list[_Pair]:
    """Return pairs by their worth, the largest first; those without a worth follow as they are.

    `worths` are those of the first pairs.
    """
    order = np.argsort(-worths.round(DIGITS), kind="stable")
    ordered_pairs = [pairs[position] for position in order]
    return ordered_pairs + list(pairs[len(worths) :])


# how probable grades are


def _judged_counts(query: QueryHits, highest_grade: int) -> Floats:
    """Return how often each grade is among the judged hits of a query: (B, G + 1).

    Rows are the groups of ranks between RANK_BOUNDS, columns the grades from 0 to the highest.
    """
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
    """Return how probable each grade of each hit is, for each query: (M, G + 1).

    Shares of grades are smoothed twice: those of a group of ranks by those of all hits, and those
    of a query by those of the group. Returns None unless relevant and other hits are judged: some
    qrels have relevant passages alone.
    """
    counts_of_queries = [
        _judged_counts(query, difference.highest_grade) for query in difference.queries
    ]
    counts = np.sum(counts_of_queries, axis=0)  # (B, G + 1)
    has_both_kinds = counts[:, 0].any() and counts[:, 1:].any()
    if not has_both_kinds:
        return None
    overall_shares = counts.sum(axis=0) / counts.sum()
    shares_by_group = _as_shares(counts + STRENGTH * overall_shares)
    probabilities = []
    for query, counts_of_query in zip(difference.queries, counts_of_queries, strict=True):
        shares_of_hits = shares_by_group[_rank_groups(query)]  # (M, G + 1)
        weights = counts_of_query.sum(axis=0) + STRENGTH * shares_of_hits
        probabilities.append(_as_shares(weights))
    return probabilities


def _as_shares(weights: Floats) -> Floats:
    """Return weights divided by the sums of their rows."""
    shares: Floats = weights / weights.sum(axis=1, keepdims=True)
    return shares


def _even_probabilities(difference: JudgedDifference) -> list[Floats]:
    """Return the same probability for each grade of each hit, for each query: (M, G + 1)."""
    grade_count = difference.highest_grade + 1
    return [
        np.full((len(query.docids), grade_count), 1 / grade_count) for query in difference.queries
    ]


# simulated judgments


def _draw_completions(
    difference: JudgedDifference, probabilities: Sequence[Floats]
) -> list[Integers]:
    """Return drawn grades of all hits for each query, judged ones as they are: (D, M)."""
    draw_count = max(_affordable_draws(difference, len(difference.queries)), FEWEST_DRAWS)
    generator = np.random.default_rng(SEED)
    completions = []
    for query, chances in zip(difference.queries, probabilities, strict=True):
        limits = np.cumsum(chances, axis=1)  # (M, G + 1)
        numbers = generator.random((draw_count, len(query.docids), 1))
        drawn_grades = (numbers > limits[None, :, :-1]).sum(axis=2)
        completions.append(np.where(query.grades == UNJUDGED, drawn_grades, query.grades))
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
    """Return how many of the pairs, in order, decide the sign in each completion: (D,).

    A pair moves the bounds of its own query alone, by what it adds to the pairs before it.
    """
    positions_of_query: dict[int, list[int]] = {}  # query -> positions of its pairs
    for position, pair in enumerate(pairs):
        positions_of_query.setdefault(pair.query, []).append(position)
    rows = []  # of each query, in each completion: with 0, 1, 2, ... of its pairs judged
    for query_position, positions in positions_of_query.items():
        query = difference.queries[query_position]
        hits = [pairs[position].hit for position in positions]
        for grades in completions[query_position]:
            for count in range(len(hits) + 1):
                rows.append(_judged(query, hits[:count], grades[hits[:count]]))
    draw_count = len(completions[0])
    groups = list(positions_of_query.values())
    low_steps = _steps(difference.lows(rows), groups, draw_count)
    high_steps = _steps(difference.highs(rows), groups, draw_count)
    low_sums = _running_sums(difference.lows(difference.queries).sum(), low_steps)
    high_sums = _running_sums(difference.highs(difference.queries).sum(), high_steps)
    is_open = (low_sums < -ROUNDING) & (high_sums > ROUNDING)
    counts: Integers = is_open.sum(axis=1)  # bounds only narrow: what is decided stays so
    return counts


def _steps(bounds: Floats, groups: Sequence[Sequence[int]], draw_count: int) -> Floats:
    """Return by how much each of P pairs moves a bound in each of D completions: (D, P).

    `groups` are the positions of the pairs of each query. `bounds` has for each group and each
    completion the bound of the query with 0, 1, 2, ... of its pairs judged, one after the other.

    >>> _steps(np.array([0.0, 2.0, 1.0, 5.0, 6.0]), [[0, 2], [1]], 1)
    array([[ 2.,  1., -1.]])
    """
    pair_count = sum(map(len, groups))
    steps = np.zeros((draw_count, pair_count))
    start = 0
    for positions in groups:
        size = draw_count * (len(positions) + 1)
        bounds_of_query = bounds[start : start + size].reshape(draw_count, -1)
        steps[:, positions] = np.diff(bounds_of_query, axis=1)
        start += size
    return steps


def _running_sums(start: float, steps: Floats) -> Floats:
    """Return the sums after 0 to P steps: (D, P) -> (D, P + 1).

    >>> _running_sums(1.0, np.array([[2.0, -1.0]]))
    array([[1., 3., 2.]])
    """
    return start + np.pad(np.cumsum(steps, axis=1), ((0, 0), (1, 0)))
