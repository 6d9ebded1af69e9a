"""One query as different evaluators see it: the order of its hits, the values, and why they differ.

Evaluators disagree by how they order a query's hits, not by their formulas: scores as float32 or
float64, equal scores by passage id or by the file, ranks in place of scores, passages with the
query's own id, repeated passages, hits beyond a depth. Each one's rules are a `Reading`; a rule
that moves a value is found by changing trec_eval's reading in it alone.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from denserk.config.evaluation import DEFAULT_MEASURES, EvaluationSettings
from denserk.config.values import near_names
from denserk.errors import UsageError
from denserk.evaluation.evaluator import Evaluator
from denserk.evaluation.measures import Measure, needs_subtopics, parse_measures
from denserk.io.qrels import read_qrels_map
from denserk.io.runs import RawHit, read_raw_hits

# orders of equal scores, as they are named to users
DESCENDING = "ids descending"
ASCENDING = "ids ascending"
FILE = "order of the file"
RANK = "ranks"  # of all hits, whatever their scores
SHOWN = 5  # hits of an order
SAME = 1e-9  # smaller differences are rounding


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


@dataclass(frozen=True)
class Reading:
    """How an evaluator reads the hits of a query."""

    ties: str = DESCENDING  # the order of equal scores; RANK ignores scores
    float32: bool = True  # scores are compared as float32
    own_id: bool = True  # a passage with the query's own id counts
    depth: int | None = None  # hits that count
    graded: bool = True  # a passage judged as irrelevant is not relevant

    def order(self, query: QueryOfRun) -> list[str]:
        """Return the passages of a query, best first; of a repeated one the last line counts."""
        hit_by_docid = {}  # in the order in which each passage first occurs
        for hit in query.hits:
            if self.own_id or hit.docid != query.qid:
                hit_by_docid[hit.docid] = hit
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
        """Return passages by their ranks; a name that no passage has stands at a missing rank."""
        docid_by_rank = {hit.rank: hit.docid for hit in hits if hit.rank is not None}
        last_rank = self.depth or max(docid_by_rank, default=0)
        return [docid_by_rank.get(rank, f"(no rank {rank})") for rank in range(1, last_rank + 1)]

    def value(self, measure: Measure, query: QueryOfRun) -> float:
        """Return the value of a measure for the passages of a judged query in this order."""
        assert query.grades is not None
        order = self.order(query)
        if not order:
            return 0.0
        grades = query.grades if self.graded else dict.fromkeys(query.grades, 1)
        # scores that descend in this order, so that the evaluator keeps it
        run = {"q": {docid: -float(position) for position, docid in enumerate(order)}}
        result = Evaluator([measure], {"q": grades}).evaluate("run", run)
        return result.summary[str(measure)]


TREC_EVAL = Reading()
# what users read of each rule, by its field in `Reading`, where it differs from trec_eval's
RULES = {
    "ties": "ties by {}",
    "float32": "scores compared as float64",
    "own_id": "the passage with the query's own id is dropped",
    "depth": "only the first {} hits count",
    "graded": "every judged passage is relevant, whatever its grade",
}


LEFT_OUT = "left out"
FAILS = "stops with a KeyError"


@dataclass(frozen=True)
class Peer:
    """An evaluator: how it reads a query for its measures, and what it does with other cases."""

    name: str
    reading: Reading
    measures: str  # names of ir-measures, separated by spaces; empty: all
    without_hits: str  # what a judged query without hits counts
    accepts_repeated: bool = False  # a passage may occur twice
    without_judgments: str = LEFT_OUT  # what a query without judgments counts
    has_capped_recall: bool = False  # R_cap


# measures of ir_measures that trec_eval's C code computes
IN_C = "nDCG AP R P Success Rprec Bpref IPrec"
PEERS = (
    Peer("trec_eval", TREC_EVAL, "", f"{LEFT_OUT} (0 with -c)"),
    Peer("pytrec_eval", TREC_EVAL, "", LEFT_OUT),
    Peer("ir_measures", TREC_EVAL, IN_C, "0", accepts_repeated=True),
    Peer("ir_measures RR@k", Reading(ASCENDING, float32=False), "RR", "0", accepts_repeated=True),
    Peer(
        "BEIR",
        Reading(own_id=False),
        "nDCG AP R P",
        LEFT_OUT,
        accepts_repeated=True,
        has_capped_recall=True,
    ),
    Peer(
        "BEIR MRR",
        Reading(FILE, float32=False, own_id=False),
        "RR",
        "0",
        accepts_repeated=True,
        without_judgments=FAILS,
    ),
    Peer(
        "MTEB",
        TREC_EVAL,
        "nDCG AP R P Success",
        LEFT_OUT,
        accepts_repeated=True,
        has_capped_recall=True,
    ),
    Peer(
        "MTEB MRR",
        Reading(float32=False),
        "RR",
        LEFT_OUT,
        accepts_repeated=True,
        without_judgments=FAILS,
    ),
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
    subtopic_measures = [measure for measure in parsed.measures if needs_subtopics(measure)]
    if subtopic_measures:
        names = ", ".join(map(str, subtopic_measures))
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


def view(peer: Peer, query: QueryOfRun, measures: Sequence[Measure]) -> View:
    """Return a query as an evaluator sees it, in the measures that it knows."""
    measures = _known_measures(peer, measures)
    outcome = _outcome_without_values(peer, query)
    if outcome is not None:
        return View(peer.name, (), {str(measure): outcome for measure in measures}, ())

    assert query.grades is not None
    order = peer.reading.order(query)
    values: dict[str, float | str] = {}
    rules: dict[str, None] = {}  # each once, in the order in which they are found
    for measure in measures:
        values[str(measure)] = peer.reading.value(measure, query)
        rules |= dict.fromkeys(_moved_by(peer.reading, measure, query))
    if query.has_repeated_passages:
        rules["of a repeated passage the last line counts"] = None
    if peer.has_capped_recall:
        values |= _capped_recalls(measures, order, query.grades)
    shown = tuple(f"{docid} ({query.grades.get(docid, '-')})" for docid in order[:SHOWN])
    return View(peer.name, shown, values, tuple(rules))


def _outcome_without_values(peer: Peer, query: QueryOfRun) -> str | None:
    """Return what an evaluator does with a query in place of measuring it; None: it measures it."""
    if query.grades is None:
        return peer.without_judgments
    if not query.hits:
        return peer.without_hits
    if query.has_repeated_passages and not peer.accepts_repeated:
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
    """Return the capped recall at the depth of each recall among the measures.

    It is the number of relevant hits, divided by how many could be found at this depth.

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


def _moved_by(reading: Reading, measure: Measure, query: QueryOfRun) -> Iterator[str]:
    """Yield the rules of a reading by which its value of a measure differs from trec_eval's.

    These are the rules each of which changes the value on its own, or all rules of the reading
    where only several together do.
    """
    trec_eval_value = TREC_EVAL.value(measure, query)
    if abs(reading.value(measure, query) - trec_eval_value) < SAME:
        return
    changed_rules = {}
    moving_rules = {}
    for name, rule in vars(reading).items():
        if rule == getattr(TREC_EVAL, name):
            continue
        changed_rules[name] = rule
        with_this_rule = replace(TREC_EVAL, **{name: rule})
        if abs(with_this_rule.value(measure, query) - trec_eval_value) > SAME:
            moving_rules[name] = rule
    for name, rule in (moving_rules or changed_rules).items():
        if rule == RANK:
            yield "ranks in place of scores"
        else:
            yield RULES[name].format(rule)
