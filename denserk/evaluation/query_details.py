"""The queries of the HTML report: which are shown in detail, and what each run made of them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from denserk.config.values import near_names
from denserk.errors import UsageError
from denserk.evaluation.results import EvaluationResult
from denserk.io.short_texts import first_names
from denserk.records import Passage

BEGINNING = 420  # characters of a passage that are in view at once
SHORT_REST = 80  # characters behind them that are in view, too, if no more follow
LONGEST_TEXT = 20_000  # characters of a passage that the page holds


class QueryRow(NamedTuple):
    """The values of a query."""

    qid: str
    values: list[float]  # of the runs, in their order; NaN where a run has none
    difference: float  # from the reference run: the one that is farthest from 0, or NaN
    relevant: int | None  # the number of relevant passages; None if it is not known

    @property
    def is_of_one_run(self) -> bool:
        """Whether there is no other run to compare with."""
        return len(self.values) == 1

    @property
    def fails(self) -> bool:
        """Whether no run finds anything, although there is something to be found."""
        if self.relevant == 0:
            return False
        known_values = [value for value in self.values if not math.isnan(value)]
        return len(known_values) > 0 and not any(known_values)


class Group(NamedTuple):
    """Queries that are shown in detail for one reason."""

    id: str
    title: str
    note: str  # "" or sentences below the title
    rows: Sequence[QueryRow]


class ShownHit(NamedTuple):
    """A hit that the page lists."""

    docid: str
    score: float
    grade: int | None  # None if it is not judged


class HitList(NamedTuple):
    """The hits of a query in a run."""

    shown: list[ShownHit]  # the first ones
    relevant_ranks: Mapping[str, int]  # of the relevant passages among the hits: id -> rank
    hit_count: int

    @property
    def first_relevant(self) -> int | None:
        """The rank of the first relevant passage."""
        return min(self.relevant_ranks.values(), default=None)


class RunRank(NamedTuple):
    """Where a run has a passage."""

    run: str
    rank: int | None  # None if it is not among the hits
    hit_count: int  # of the query in this run
    is_missed: bool  # whether it is not within the cut-off


class MissedPassage(NamedTuple):
    """A relevant passage that a run does not have within the cut-off of a measure."""

    docid: str
    grade: int
    ranks: list[RunRank]


class QueryDetails(NamedTuple):
    """What the page shows of a query."""

    row: QueryRow
    hit_lists: Mapping[str, HitList]  # by run
    missed: Sequence[MissedPassage]  # the first ones
    missed_count: int


class ShownPassage(NamedTuple):
    """The text of a passage, of which the beginning is in view and the rest can be opened."""

    title: str
    beginning: str
    rest: str
    omitted: int  # characters behind the rest that the page does not hold


def query_rows(
    result: EvaluationResult,
    measure: str,
    reference: int,
    relevant_counts: Mapping[str, int] | None,
) -> list[QueryRow]:
    """Return all queries, the largest difference first; of one run, the lowest value first.

    `reference` is the position of the run that others are compared with. `relevant_counts` are the
    numbers of relevant passages by query, if they are known.
    """
    rows = []
    for qid in result.queries:
        values = [run.per_query[measure].get(qid, math.nan) for run in result.runs]
        difference = _largest_difference(values, reference)
        relevant = None if relevant_counts is None else relevant_counts[qid]
        rows.append(QueryRow(qid, values, difference, relevant))
    return sorted(rows, key=_largest_difference_first)


def _largest_difference_first(row: QueryRow) -> tuple[bool, float]:
    """Order queries by difference; of one run, by value; queries without either are last."""
    key = row.values[0] if row.is_of_one_run else -abs(row.difference)
    is_unknown = math.isnan(key)
    return is_unknown, key


def _largest_difference(values: Sequence[float], reference: int) -> float:
    """Return the difference from the value at `reference` that is farthest from 0.

    It is NaN for one run, and where no difference is known.

    >>> _largest_difference([0.5, 0.25, 0.5], 0)
    -0.25
    """
    differences = []
    for position, value in enumerate(values):
        difference = value - values[reference]
        if position != reference and not math.isnan(difference):
            differences.append(difference)
    return max(differences, key=abs, default=math.nan)


def check_query_ids(qids: Sequence[str], result: EvaluationResult) -> None:
    """Raise a UsageError for queries of --set report-ids that are not judged."""
    judged_qids = set(result.queries)
    unjudged_qids = [qid for qid in qids if qid not in judged_qids]
    if not unjudged_qids:
        return
    noun = "query" if len(unjudged_qids) == 1 else "queries"
    message = f"--set report-ids: the judgments have no {noun} {first_names(unjudged_qids)}"
    runs_with_hits = [
        run.name for run in result.runs if set(unjudged_qids).intersection(run.unjudged)
    ]
    if runs_with_hits:
        message += f", although there are hits in {', '.join(runs_with_hits)}"
    similar_qids: dict[str, None] = {}  # a set in order
    for qid in unjudged_qids:
        similar_qids |= dict.fromkeys(near_names(qid, result.queries))
    hint = f"the first of {len(judged_qids):,} judged queries are {first_names(result.queries)}"
    if similar_qids:
        hint = f"did you mean {' or '.join(similar_qids)}?"
    raise UsageError(message, hint)


def groups_in_detail(
    rows: Sequence[QueryRow], qids: Sequence[str], count: int, measure: str
) -> list[Group]:
    """Return the queries that are shown in detail, each in the first group that it belongs to.

    These are the ones named by `qids`, `count` of those on which every run fails, and `count` of
    those with the largest differences, or of one run with the lowest values. `rows` are those of
    `query_rows`, in their order.
    """
    row_by_qid = {row.qid: row for row in rows}
    distinct_qids = dict.fromkeys(qids)
    selected_rows = [row_by_qid[qid] for qid in distinct_qids]
    failing_rows = []
    differing_rows = []
    for row in rows:
        if row.qid in qids:
            continue
        if row.fails:
            failing_rows.append(row)
        elif _is_notable(row):
            differing_rows.append(row)
    groups = []
    if selected_rows:
        groups.append(Group("selected", "Selected queries", "", selected_rows))
    if failing_rows:
        failing_rows.sort(key=_most_relevant_first)
        groups.append(_failing_group(failing_rows, count, measure, rows))
    if differing_rows:
        groups.append(_differing_group(differing_rows, count, measure))
    return [group for group in groups if group.rows]


def _most_relevant_first(row: QueryRow) -> tuple[int, str]:
    """Order queries by the number of their relevant passages, the most first, and by id."""
    return -(row.relevant or 0), row.qid


def _is_notable(row: QueryRow) -> bool:
    """Return whether runs differ, or whether the only run has a value and something to find."""
    if row.is_of_one_run:
        return not math.isnan(row.values[0]) and row.relevant != 0
    return not math.isnan(row.difference) and row.difference != 0


def _failing_group(
    rows: Sequence[QueryRow], count: int, measure: str, all_rows: Sequence[QueryRow]
) -> Group:
    """Return the first `count` of the `rows`, queries on which every run fails.

    The note counts the failing ones among all queries, also those that are shown above.
    """
    shown_rows = rows[:count]
    failing_count = sum(row.fails for row in all_rows)
    queries = f"{failing_count:,} of {len(all_rows):,} queries"
    if rows[0].is_of_one_run:
        title = "Queries on which the run fails"
        note = f"{measure} is 0 on {queries}."
    else:
        title = "Queries on which every run fails"
        note = f"{measure} is 0 for every run on {queries}."
    if len(shown_rows) < failing_count:
        note += (
            f" {len(shown_rows):,} are shown here, those with the most relevant passages first;"
            " --set report-queries=N shows more, --set report-ids=ID,ID those that you name."
        )
    return Group("failing", title, note, shown_rows)


def _differing_group(rows: Sequence[QueryRow], count: int, measure: str) -> Group:
    """Return the first `count` of the `rows`, by difference or by the value of the only run."""
    shown_rows = rows[:count]
    if rows[0].is_of_one_run:
        title = "Queries with the lowest values"
        note = f"Those with the lowest {measure} above 0."
    else:
        title = "Queries with the largest differences"
        note = f"The runs differ in {measure} on {len(rows):,} queries that are not shown above."
    if len(shown_rows) < len(rows):
        note += f" {len(shown_rows):,} are shown here; --set report-queries=N shows more."
    return Group("moved", title, note, shown_rows)


def hit_list(
    hits: Mapping[str, float], grades: Mapping[str, int], level: int, count: int
) -> HitList:
    """Return the first `count` hits of a query, and the ranks of all relevant ones.

    `hits` are scores by passage id, the best first; `level` is the lowest relevant grade.
    """
    shown = []
    for docid, score in islice(hits.items(), count):
        shown.append(ShownHit(docid, score, grades.get(docid)))
    relevant_ranks = {}
    for rank, docid in enumerate(hits, start=1):
        if docid in grades and grades[docid] >= level:
            relevant_ranks[docid] = rank
    return HitList(shown, relevant_ranks, len(hits))


def missed_passages(
    grades: Mapping[str, int], hit_lists: Mapping[str, HitList], level: int, cutoff: int | None
) -> list[MissedPassage]:
    """Return the relevant passages that a run does not have within `cutoff`, if there is one.

    Those of the highest grade come first, and among them those that the most runs miss.

    >>> hits = HitList([], relevant_ranks={"d1": 2, "d2": 65}, hit_count=100)
    >>> (passage,) = missed_passages({"d1": 1, "d2": 1, "d3": 0}, {"bm25": hits}, 1, 10)
    >>> passage.docid, passage.ranks
    ('d2', [RunRank(run='bm25', rank=65, hit_count=100, is_missed=True)])
    """
    missed = []
    for docid, grade in grades.items():
        if grade < level:
            continue
        ranks = list(_ranks_of(docid, hit_lists, cutoff))
        if any(rank.is_missed for rank in ranks):
            missed.append(MissedPassage(docid, grade, ranks))
    return sorted(missed, key=_worst_first)


def _ranks_of(
    docid: str, hit_lists: Mapping[str, HitList], cutoff: int | None
) -> Iterator[RunRank]:
    """Yield where each run has a relevant passage."""
    for run, hits in hit_lists.items():
        rank = hits.relevant_ranks.get(docid)
        is_missed = rank is None or (cutoff is not None and rank > cutoff)
        yield RunRank(run, rank, hits.hit_count, is_missed)


def _worst_first(passage: MissedPassage) -> tuple[int, int]:
    """Order passages by grade, the highest first, then by how many runs miss them, most first."""
    missing_runs = sum(rank.is_missed for rank in passage.ranks)
    return -passage.grade, -missing_runs


def shown_passage(passage: Passage) -> ShownPassage:
    """Divide the text of a passage between words into what is in view and the rest.

    >>> shown = shown_passage(Passage("d1", "word " * 200, "title"))
    >>> len(shown.beginning), len(shown.rest), shown.omitted
    (419, 579, 0)
    """
    text = passage.text.strip()
    if len(text) <= BEGINNING + SHORT_REST:
        return ShownPassage(passage.title, text, "", 0)
    beginning = text[:BEGINNING]
    if " " in beginning:
        beginning = beginning.rpartition(" ")[0]
    rest = text[len(beginning) : LONGEST_TEXT].strip()
    omitted = max(0, len(text) - LONGEST_TEXT)
    return ShownPassage(passage.title, beginning, rest, omitted)
