"""Which hits of a run measures need, and runs read without the others.

Measures of ranks depend only on how many hits are above each judged one, and most look at the first
hits alone. A run of millions of hits is read in the memory of those that decide its measures.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.config.evaluation import EvaluationSettings, RunOrder
from denserk.errors import InputError
from denserk.evaluation.measures import Measure, providers_of, underlying
from denserk.evaluation.results import Grades, Run
from denserk.io.run_columns import HitColumns, RankedList
from denserk.io.runs import read_run_hits, read_run_scores


class NeededHits(NamedTuple):
    """The hits of a query that measures need, and the ties that may change their order."""

    scores: dict[str, float]  # by passage
    # how many hits, needed or not, have the score of a hit above, down to the last one needed
    ties: int = 0
    # whether a hit is judged, needed or not; None where the choice does not look at judgments
    is_any_judged: bool | None = None


class SelectedHits(NamedTuple):
    """The hits of a run that are evaluated, and the ties among the hits that it had."""

    run: Run
    # by query, where there are some; None where the run has all hits: `Evaluator` counts them
    ties: Mapping[str, int] | None = None
    is_any_judged: bool | None = None  # as of `NeededHits`, of all queries


Keep = Callable[[RankedList | HitColumns], NeededHits]  # chooses among the hits of a query

# measures of pytrec_eval and msmarco that depend on the ranks of judged hits alone
RANKED = {"P", "RR", "Rprec", "AP", "nDCG", "R", "Bpref", "Success", "IPrec"}
# of these, the ones that depend only on which hits are above their cut-off, not on their order
UNORDERED = {"P", "R", "Success"}


def read_hits(path: str, settings: EvaluationSettings, keep: Keep | None = None) -> SelectedHits:
    """Read the hits of a run that are evaluated.

    `keep` returns the hits of a query that are needed. Where the lines of each query are together,
    others are never in memory. Standard input and pipes are read whole: they can be read only once,
    and a run whose lines are not together is read again.
    """
    by_rank = settings.order is RunOrder.RANK
    changes_hits = by_rank or settings.remove_query or settings.max_hits is not None
    if keep is not None and not changes_hits and Path(path).is_file():
        # the lines of a query are not together, or an error that is raised again below
        with suppress(InputError):
            return _needed_hits(read_run_hits(path), keep)
    return select_hits(read_run_scores(path, by_rank=by_rank), settings, keep)


def select_hits(run: Run, settings: EvaluationSettings, keep: Keep | None = None) -> SelectedHits:
    """Return the hits of a run that are evaluated: see `read_hits`.

    >>> select_hits({"q1": {"q1": 3.0, "d1": 2.0}}, EvaluationSettings(remove_query=True)).run
    {'q1': {'d1': 2.0}}
    """
    if settings.remove_query:
        run = {qid: _without_query(qid, hits) for qid, hits in run.items()}
    if settings.max_hits is not None:
        run = {qid: first_hits(hits, settings.max_hits) for qid, hits in run.items()}
    if keep is None:
        return SelectedHits(run)
    ranked_lists = (
        RankedList(qid, list(hits), list(hits.values()), ()) for qid, hits in run.items() if hits
    )
    return _needed_hits(ranked_lists, keep)


def _needed_hits(queries: Iterable[RankedList | HitColumns], keep: Keep) -> SelectedHits:
    """Return the hits that `keep` chooses of each query, and the ties of queries that have some."""
    run = {}
    ties = {}
    is_any_judged = None
    for hits in queries:
        needed = keep(hits)
        run[hits.qid] = needed.scores
        if needed.ties:
            ties[hits.qid] = needed.ties
        is_any_judged = is_any_judged or needed.is_any_judged
    return SelectedHits(run, ties, is_any_judged)


def _without_query(qid: str, hits: Mapping[str, float]) -> dict[str, float]:
    """Return hits without the one whose id is the query's own."""
    return {docid: score for docid, score in hits.items() if docid != qid}


def needed_depth(measures: Iterable[Measure]) -> float | None:
    """Return how deep measures look, if all depend on judged hits only; None otherwise.

    >>> from denserk.evaluation.measures import parse_measures
    >>> [needed_depth(parse_measures([m]).measures) for m in ("nDCG@10 RR@20", "AP", "NumRet")]
    [20, inf, None]
    """
    depth: float = 0
    for provider, measures_of_provider in providers_of(measures).items():
        if provider.NAME not in ("pytrec_eval", "msmarco"):
            return None
        for measure in measures_of_provider:
            counts_unjudged_hits = measure.params.get("rel", 1) < 1  # as of grade 0
            if measure.NAME not in RANKED or counts_unjudged_hits:
                return None
            depth = max(depth, _depth_of(measure))
    return depth


def _depth_of(measure: Measure) -> float:
    """Return how many hits a measure looks at; infinite where it looks at all of them."""
    if measure.params.get("judged_only"):  # a cut-off counts judged hits alone
        return inf
    cutoff: float = measure.params.get("cutoff", inf)
    return cutoff


def ordered_depth(measures: Sequence[Measure], depth: float) -> float:
    """Return how many first hits must keep their ranks, where measures look `depth` hits deep.

    Of those below, only which are above `depth` counts: R@1000 does not depend on the order of the
    first 1000 hits, but nDCG@10 on that of the first 10, and R@100 on which hits are the first 100.

    >>> from denserk.evaluation.measures import parse_measures
    >>> measures = parse_measures(["nDCG@10 R@100 R@1000"]).measures
    >>> ordered_depth(measures, needed_depth(measures))
    100
    """
    ordered: float = 0
    for measure in map(underlying, measures):
        depth_of_measure = _depth_of(measure)
        # hits below `depth` are left out, so above it a measure without order needs no ranks
        needs_only_depth = measure.NAME in UNORDERED and depth_of_measure >= depth
        if not needs_only_depth:
            ordered = max(ordered, depth_of_measure)
    return ordered


def prune_hits(hits: RankedList | HitColumns, depth: float) -> NeededHits:
    """Return the scores of the first hits of a query, at most `depth` and those that tie with them.

    Scores are compared as float32, as trec_eval does.
    """
    scores = _float32_scores(hits)
    ascending = np.sort(scores)
    lowest_needed = _score_at(ascending, depth)
    return NeededHits(
        scores=_scores_of_rows(hits, np.flatnonzero(scores >= lowest_needed)),
        ties=_count_ties_from(ascending, lowest_needed),
    )


def prune_by_judgments(
    hits: RankedList | HitColumns, depth: float, judgments: Grades, ordered: float
) -> NeededHits:
    """Return the hits of `prune_hits` that decide the ranks of the judged ones.

    No hit below the lowest judged one is needed, as measures of ranks depend only on how many hits
    are above each judged one; where none is judged, the first hit stays. Below the first `ordered`
    hits, and those that tie with them, the judged ones alone are needed: see `ordered_depth`.
    """
    scores = _float32_scores(hits)
    ascending = np.sort(scores)
    score_at_depth = _score_at(ascending, depth)
    judged_rows = hits.rows_of(judgments.get(hits.qid, ()))
    judged_scores = scores[judged_rows]
    lowest_judged = judged_scores.min() if judged_rows else ascending[-1]
    lowest_needed = max(score_at_depth, lowest_judged)
    is_needed = scores >= lowest_needed
    # where a judged hit ties at the last rank, the ids of the others decide whether it is above
    has_judged_tie_at_depth = len(scores) > depth and (judged_scores == score_at_depth).any()
    if ordered < depth and not has_judged_tie_at_depth:
        is_judged = np.zeros(len(scores), bool)
        is_judged[judged_rows] = True
        is_needed &= is_judged | (scores >= _score_at(ascending, ordered))
    return NeededHits(
        scores=_scores_of_rows(hits, np.flatnonzero(is_needed)),
        ties=_count_ties_from(ascending, lowest_needed),
        is_any_judged=bool(judged_rows),
    )


def _float32_scores(hits: RankedList | HitColumns) -> NDArray[np.float32]:
    """Return the scores of hits as trec_eval compares them: (K,)."""
    with np.errstate(over="ignore"):  # larger ones are infinite
        return hits.scores_array().astype(np.float32)


def _scores_of_rows(hits: RankedList | HitColumns, rows: NDArray[np.intp]) -> dict[str, float]:
    """Return the passages and the scores of some hits, by their rows: (R,)."""
    docids = hits.docids_at(rows.tolist())
    scores = hits.scores_array()[rows].tolist()
    return dict(zip(docids, scores, strict=True))


def _count_ties_from(ascending: NDArray[np.float32], lowest: np.float32) -> int:
    """Return how many of (K,) scores, from `lowest` on, are equal to the one before.

    >>> _count_ties_from(np.array([1, 1, 2, 2, 2, 3], np.float32), np.float32(2))
    2
    """
    scores = ascending[np.searchsorted(ascending, lowest) :]
    return int(np.count_nonzero(scores[1:] == scores[:-1]))


def _score_at(ascending: NDArray[np.float32], rank: float) -> np.float32:
    """Return the score at a rank, of (K,) scores; at the nearest rank where there is no such one.

    >>> ascending = np.array([1, 2, 4], np.float32)
    >>> [float(_score_at(ascending, rank)) for rank in (0, 1, 2, inf)]
    [4.0, 4.0, 2.0, 1.0]
    """
    existing_rank = max(int(min(rank, len(ascending))), 1)
    score: np.float32 = ascending[-existing_rank]
    return score


def first_hits(hits: Mapping[str, float], count: int) -> dict[str, float]:
    """Return the first hits in trec_eval's order: by score as float32, ties by id descending.

    >>> first_hits({"a": 1.0, "b": 2.0, "c": 1.0}, 2)
    {'b': 2.0, 'c': 1.0}
    """
    ranked = sorted(zip(array("f", hits.values()), hits, strict=True), reverse=True)
    return {docid: hits[docid] for _, docid in ranked[:count]}
