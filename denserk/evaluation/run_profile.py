"""What a run looks like against judgements: recall by depth, scores, the top of its lists."""

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

DEPTHS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000, 2000, 3000, 5000, 10000)
"""Where recall is told, as far as a run reaches."""
BINS = 30
"""Bins of the scores."""


@dataclass(frozen=True)
class Hit:
    """One passage in a list; `grade` is None where nobody judged it."""

    docid: str
    score: float
    grade: int | None


@dataclass(frozen=True)
class TopList:
    """The first hits of a query, and the rank of its first relevant one; None where there is none.

    `hits` is how many there are in all.
    """

    top: tuple[Hit, ...]
    first_relevant: int | None
    hits: int


@dataclass(frozen=True)
class Scores:
    """Scores of relevant hits and of all others, in the same bins.

    Attributes:
        edges: (n + 1,), ascending.
        relevant: (n,), hits a bin.
        others: (n,), not relevant, or not judged.
    """

    edges: tuple[float, ...]
    relevant: tuple[int, ...]
    others: tuple[int, ...]


@dataclass(frozen=True)
class RunProfile:
    """A run against judgements.

    Attributes:
        name: what tables call it.
        level: the lowest grade that counted as relevant.
        recall: (depth, mean recall) for each of `DEPTHS` that the run reaches, and its own depth.
        scores: None where all scores are the same.
        lists: the tops of the queries that were asked for.
    """

    name: str
    level: int
    recall: tuple[tuple[int, float], ...]
    scores: Scores | None
    lists: Mapping[str, TopList]


def ranked(hits: Mapping[str, float]) -> list[str]:
    """Passages as trec_eval ranks them: by score as float32, ties by id descending.

    >>> ranked({"a": 1.0, "b": 2.0, "c": 1.0})
    ['b', 'c', 'a']
    """
    scores = dict(zip(hits, array("f", hits.values()), strict=True))
    return sorted(hits, key=lambda docid: (scores[docid], docid), reverse=True)


def profile(
    name: str,
    run: Mapping[str, Mapping[str, float]],
    judgements: Mapping[str, Mapping[str, int]],
    queries: Collection[str],
    level: int,
    shown: Collection[str],
    top: int,
) -> RunProfile:
    """Looks at a run once.

    Args:
        name: what tables call it.
        run: query -> passage -> score.
        judgements: query -> passage -> grade.
        queries: those that recall is the mean of; one without a relevant passage has recall 0.
        level: the lowest grade that is relevant.
        shown: queries whose lists are kept.
        top: how many hits of a list are kept.
    """
    lists = {qid: ranked(run[qid]) for qid in queries if qid in run}
    relevant = {
        qid: {docid for docid, grade in judgements.get(qid, {}).items() if grade >= level}
        for qid in queries
    }
    found: tuple[list[float], list[float]] = ([], [])
    for qid, docids in lists.items():
        for docid in docids:
            found[docid in relevant[qid]].append(run[qid][docid])
    return RunProfile(
        name,
        level,
        mean_recall(lists, relevant),
        count_scores(found[True], found[False]),
        {
            qid: _top(lists.get(qid, []), run.get(qid, {}), judgements.get(qid, {}), level, top)
            for qid in shown
        },
    )


def mean_recall(
    lists: Mapping[str, Sequence[str]], relevant: Mapping[str, Collection[str]]
) -> tuple[tuple[int, float], ...]:
    """Mean recall by depth.

    Args:
        lists: query -> passages in the order of the run.
        relevant: query -> its relevant passages; the mean is over these queries.

    >>> mean_recall({"q": ["a", "b", "c"]}, {"q": {"b", "x"}, "r": {"a"}})
    ((1, 0.0), (2, 0.25), (3, 0.25))
    """
    deepest = max(map(len, lists.values()), default=0)
    depths = [*(depth for depth in DEPTHS if depth < deepest), *([deepest] if deepest else [])]
    totals = dict.fromkeys(depths, 0.0)
    for qid, docids in lists.items():
        wanted = relevant[qid]
        if wanted:
            counts = list(accumulate((docid in wanted for docid in docids), initial=0))
            for depth in depths:
                totals[depth] += counts[min(depth, len(docids))] / len(wanted)
    return tuple((depth, total / len(relevant)) for depth, total in totals.items())


def count_scores(relevant: Iterable[float], others: Iterable[float]) -> Scores | None:
    """Scores in `BINS` bins of the same width; None where there are no two different ones.

    >>> found = count_scores([3.0], [0.0, 0.0])
    >>> found.edges[0], found.edges[-1], found.relevant[-1], found.others[0]
    (0.0, 3.0, 1, 2)
    """
    kinds = (list(relevant), list(others))
    low = min((min(scores) for scores in kinds if scores), default=0.0)
    high = max((max(scores) for scores in kinds if scores), default=0.0)
    edges = [low + (high - low) * place / BINS for place in range(BINS)] + [high]
    if any(right <= left for left, right in pairwise(edges)):
        return None
    counted = []
    for scores in kinds:
        bins = [0] * BINS
        for score in scores:
            bins[min(bisect_right(edges, score) - 1, BINS - 1)] += 1
        counted.append(tuple(bins))
    return Scores(tuple(edges), *counted)


def _top(
    docids: Sequence[str],
    scores: Mapping[str, float],
    grades: Mapping[str, int],
    level: int,
    top: int,
) -> TopList:
    first = next((n for n, d in enumerate(docids, start=1) if grades.get(d, 0) >= level), None)
    hits = tuple(Hit(docid, scores[docid], grades.get(docid)) for docid in docids[:top])
    return TopList(hits, first, len(docids))
