"""One query as different evaluators see it: the order of its hits, the values, and why they differ.

Evaluators disagree by how they order a query's hits, not by their formulas: scores as float32 or
float64, equal scores by passage id or by the file, ranks in place of scores, passages with the
query's own id, repeated passages, hits beyond a depth. Each one's rules are a `Reading`; a rule
that moves a value is found by changing trec_eval's reading in it alone.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from denserk.config.evaluation import DEFAULT_MEASURES, EvaluationSettings
from denserk.config.values import near_names
from denserk.errors import UsageError
from denserk.evaluation.evaluator import Evaluator
from denserk.evaluation.measures import Measure, needs_subtopics, parse_measures
from denserk.io.qrels import read_qrels_map
from denserk.io.runs import RawHit, read_raw_hits

# orders of equal scores
DESCENDING = "ids descending"
ASCENDING = "ids ascending"
FILE = "order of the file"
RANK = "ranks"
SHOWN = 5  # hits of an order
SAME = 1e-9  # smaller differences are rounding


@dataclass(frozen=True)
class Reading:
    """How an evaluator reads the hits of a query."""

    ties: str = DESCENDING  # the order of equal scores; RANK ignores scores
    float32: bool = True  # scores are compared as float32
    own_id: bool = True  # a passage with the query's own id counts
    depth: int | None = None  # hits that count
    graded: bool = True  # a passage judged as irrelevant is not relevant

    def order(self, qid: str, hits: Sequence[RawHit]) -> list[str]:
        """Return the passages of a query, best first; of a repeated one the last line counts."""
        hit_by_docid = {hit.docid: hit for hit in hits if self.own_id or hit.docid != qid}
        distinct_hits = list(hit_by_docid.values())
        if self.ties == RANK:
            return self._order_by_rank(distinct_hits)
        if self.ties in (DESCENDING, ASCENDING):
            distinct_hits.sort(key=lambda hit: hit.docid, reverse=self.ties == DESCENDING)
        distinct_hits.sort(key=self._compared_score, reverse=True)  # equal ones stay in order
        return [hit.docid for hit in distinct_hits][: self.depth]

    def _compared_score(self, hit: RawHit) -> float:
        """Return a score as it is compared with others."""
        if self.float32:
            return array("f", [hit.score])[0]
        return hit.score

    def _order_by_rank(self, hits: Sequence[RawHit]) -> list[str]:
        """Return passages by their ranks, among which some may be missing."""
        docid_by_rank = {hit.rank: hit.docid for hit in hits if hit.rank is not None}
        last_rank = self.depth or max(docid_by_rank, default=0)
        return [docid_by_rank.get(rank, f"(no rank {rank})") for rank in range(1, last_rank + 1)]

    def value(
        self, measure: Measure, qid: str, hits: Sequence[RawHit], grades: Mapping[str, int]
    ) -> float:
        """Return the value of a measure for the passages in this order."""
        order = self.order(qid, hits)
        if not order:
            return 0.0
        if not self.graded:
            grades = dict.fromkeys(grades, 1)
        run = {"q": {docid: -float(position) for position, docid in enumerate(order)}}
        result = Evaluator([measure], {"q": grades}).evaluate("run", run)
        return result.summary[str(measure)]


TREC_EVAL = Reading()
RULES = {
    "ties": "ties by {}",
    "float32": "scores compared as float64",
    "own_id": "the passage with the query's own id is dropped",
    "depth": "only the first {} hits count",
    "graded": "every judged passage is relevant, whatever its grade",
}


@dataclass(frozen=True)
class Peer:
    """An evaluator: how it reads a query for its measures, and what it does with other cases."""

    name: str
    reading: Reading
    measures: str  # names of ir-measures, separated by spaces; empty: all
    missing: str  # what a judged query without hits counts
    repeated: bool = False  # a repeated passage is accepted
    unjudged: str = "left out"  # what a query without judgments counts
    capped: bool = False  # has a capped recall, R_cap


LEFT_OUT = "left out"
FAILS = "stops with a KeyError"
IN_C = "nDCG AP R P Success Rprec Bpref IPrec"
PEERS = (
    Peer("trec_eval", TREC_EVAL, "", f"{LEFT_OUT} (0 with -c)"),
    Peer("pytrec_eval", TREC_EVAL, "", LEFT_OUT),
    Peer("ir_measures", TREC_EVAL, IN_C, "0", repeated=True),
    Peer("ir_measures RR@k", Reading(ASCENDING, float32=False), "RR", "0", repeated=True),
    Peer("BEIR", Reading(own_id=False), "nDCG AP R P", LEFT_OUT, repeated=True, capped=True),
    Peer(
        "BEIR MRR",
        Reading(FILE, float32=False, own_id=False),
        "RR",
        "0",
        repeated=True,
        unjudged=FAILS,
    ),
    Peer("MTEB", TREC_EVAL, "nDCG AP R P Success", LEFT_OUT, repeated=True, capped=True),
    Peer("MTEB MRR", Reading(float32=False), "RR", LEFT_OUT, repeated=True, unjudged=FAILS),
    Peer("MS MARCO script", Reading(RANK, depth=10, graded=False), "RR", "0"),
)


@dataclass(frozen=True)
class View:
    """What one evaluator makes of a query."""

    name: str
    order: tuple[str, ...]  # the first passages, each with its grade
    values: Mapping[str, float | str]  # measure -> value, or what happens in place of one
    moved_by: tuple[str, ...]  # rules by which its values differ from trec_eval's


def explain(
    run: str, qrels: str, qid: str, settings: EvaluationSettings | None = None
) -> tuple[View, ...]:
    """Return a query of a run as each evaluator sees it."""
    settings = settings or EvaluationSettings()
    parsed = parse_measures(settings.measures or DEFAULT_MEASURES, settings.relevance_level)
    of_subtopics = [str(measure) for measure in parsed.measures if needs_subtopics(measure)]
    if of_subtopics:
        names = ", ".join(of_subtopics)
        message = f"--explain: {names}: the evaluators that are compared know no sub-topics"
        raise UsageError(message, "for example -m nDCG@10")
    judgments = read_qrels_map(qrels)
    grades = judgments.get(qid)
    hits = list(read_raw_hits(run, qid))
    if grades is None and not hits:
        message = f"--explain {qid}: neither {run} nor {qrels} has this query"
        similar_qids = near_names(qid, judgments)
        hint = f"did you mean {' or '.join(similar_qids)}?" if similar_qids else None
        raise UsageError(message, hint)
    query = QueryOfRun(qid, hits, grades)
    return tuple(view(peer, query, parsed.measures) for peer in PEERS)


@dataclass(frozen=True)
class QueryOfRun:
    """A query with its hits in the order of the file, and its grades, if it is judged."""

    qid: str
    hits: Sequence[RawHit]
    grades: Mapping[str, int] | None

    @property
    def has_repeated_passages(self) -> bool:
        """True if a passage occurs twice."""
        return len({hit.docid for hit in self.hits}) < len(self.hits)

    @property
    def has_ranks(self) -> bool:
        """True if all hits have a rank."""
        return all(hit.rank is not None for hit in self.hits)


def view(peer: Peer, query: QueryOfRun, measures: Sequence[Measure]) -> View:
    """Return a query as an evaluator sees it, in the measures that it knows."""
    measures = _known_measures(peer, measures)
    outcome = _outcome_without_values(peer, query)
    if outcome is not None:
        return View(peer.name, (), {str(measure): outcome for measure in measures}, ())

    assert query.grades is not None
    order = peer.reading.order(query.qid, query.hits)
    values: dict[str, float | str] = {}
    rules: dict[str, None] = {}  # in their order
    for measure in measures:
        value_of = partial(
            Reading.value, measure=measure, qid=query.qid, hits=query.hits, grades=query.grades
        )
        values[str(measure)] = value_of(peer.reading)
        rules |= dict.fromkeys(_moved_by(peer.reading, value_of))
    if query.has_repeated_passages:
        rules["of a repeated passage the last line counts"] = None
    if peer.capped:
        values |= _capped_recalls(measures, order, query.grades)
    shown = tuple(f"{docid} ({query.grades.get(docid, '-')})" for docid in order[:SHOWN])
    return View(peer.name, shown, values, tuple(rules))


def _outcome_without_values(peer: Peer, query: QueryOfRun) -> str | None:
    """Return what an evaluator does with a query in place of measuring it; None: it measures it."""
    if query.grades is None:
        return peer.unjudged
    if not query.hits:
        return peer.missing
    if query.has_repeated_passages and not peer.repeated:
        return "stops: a passage twice"
    if peer.reading.ties == RANK and not query.has_ranks:
        return "needs ranks"
    return None


def _known_measures(peer: Peer, measures: Sequence[Measure]) -> Sequence[Measure]:
    """Return the measures that an evaluator has."""
    names = peer.measures.split()
    if not names:
        return measures
    return [measure for measure in measures if measure.NAME in names]


def _capped_recalls(
    measures: Sequence[Measure], order: Sequence[str], grades: Mapping[str, int]
) -> dict[str, float]:
    """Return the capped recall at the depth of each recall: hits by as many as could be found.

    >>> from ir_measures import R
    >>> _capped_recalls([R @ 2], ["d1", "d2"], {"d1": 1, "d3": 2, "d4": 1, "d5": 0})
    {'R_cap@2': 0.5}
    """
    relevant = {docid for docid, grade in grades.items() if grade > 0}
    recalls = {}
    for measure in measures:
        if measure.NAME == "R":
            depth = measure["cutoff"]
            relevant_hits = relevant.intersection(order[:depth])
            recalls[f"R_cap@{depth}"] = len(relevant_hits) / max(1, min(depth, len(relevant)))
    return recalls


def _moved_by(reading: Reading, value_of: Callable[[Reading], float]) -> Iterator[str]:
    """Yield the rules of a reading that change trec_eval's value.

    These are the rules that change it alone, or all rules of the reading where only several do.
    """
    trec_eval_value = value_of(TREC_EVAL)
    if abs(value_of(reading) - trec_eval_value) < SAME:
        return
    changed_rules = {}
    moving_rules = {}
    for name, rule in vars(reading).items():
        if rule == getattr(TREC_EVAL, name):
            continue
        changed_rules[name] = rule
        with_this_rule = replace(TREC_EVAL, **{name: rule})
        if abs(value_of(with_this_rule) - trec_eval_value) > SAME:
            moving_rules[name] = rule
    for name, rule in (moving_rules or changed_rules).items():
        if rule == RANK:
            yield "ranks in place of scores"
        else:
            yield RULES[name].format(rule)
