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
from denserk.errors import UsageError
from denserk.evaluation.evaluator import Evaluator
from denserk.evaluation.measures import Measure, needs_subtopics, parse_measures
from denserk.io.runs import RawHit, read_raw_hits
from denserk.io.topics import read_qrels_map

DESCENDING, ASCENDING, FILE, RANK = "ids descending", "ids ascending", "order of the file", "ranks"
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
        last = {hit.docid: hit for hit in hits if self.own_id or hit.docid != qid}
        kept = [*last.values()]
        if self.ties == RANK:  # a rank is a place, and places may be empty
            at = {hit.rank or 0: hit.docid for hit in kept}
            places = range(1, (self.depth or max(at, default=0)) + 1)
            return [at.get(place, f"(no rank {place})") for place in places]
        if self.ties in (DESCENDING, ASCENDING):
            kept.sort(key=lambda hit: hit.docid, reverse=self.ties == DESCENDING)
        kind = "f" if self.float32 else "d"
        kept.sort(key=lambda hit: array(kind, [hit.score]), reverse=True)
        return [hit.docid for hit in kept][: self.depth]

    def value(
        self, measure: Measure, qid: str, hits: Sequence[RawHit], grades: Mapping[str, int]
    ) -> float:
        """Return the value of a measure for the passages in this order."""
        order = self.order(qid, hits)
        if not order:
            return 0.0
        judged = grades if self.graded else dict.fromkeys(grades, 1)
        run = {"q": {docid: -float(place) for place, docid in enumerate(order)}}
        return Evaluator([measure], {"q": judged}).evaluate("run", run).summary[str(measure)]


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


LEFT_OUT, FAILS = "left out", "stops with a KeyError"
IN_C = "nDCG AP R P Success Rprec Bpref IPrec"
PEERS = (
    Peer("trec_eval", TREC_EVAL, "", f"{LEFT_OUT} (0 with -c)"),
    Peer("pytrec_eval", TREC_EVAL, "", LEFT_OUT),
    Peer("ir_measures", TREC_EVAL, IN_C, "0", repeated=True),
    Peer("ir_measures RR@k", Reading(ASCENDING, float32=False), "RR", "0", repeated=True),
    Peer("BEIR", Reading(own_id=False), "nDCG AP R P", LEFT_OUT, repeated=True, capped=True),
    Peer("BEIR MRR", Reading(FILE, False, False), "RR", "0", repeated=True, unjudged=FAILS),
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
    asked = parse_measures(settings.measures or DEFAULT_MEASURES, settings.relevance_level)
    if of_subtopics := [str(measure) for measure in asked.measures if needs_subtopics(measure)]:
        unknown = ", ".join(of_subtopics)
        message = f"--explain: {unknown}: the evaluators that are compared know no sub-topics"
        raise UsageError(message, "for example -m nDCG@10")
    grades, hits = read_qrels_map(qrels).get(qid), [*read_raw_hits(run, qid)]
    if grades is None and not hits:
        raise UsageError(f"--explain {qid}: neither {run} nor {qrels} has this query")
    repeated = len({hit.docid for hit in hits}) < len(hits)
    unranked = any(hit.rank is None for hit in hits)
    views = []
    for peer in PEERS:
        known_names = peer.measures.split()
        mine = [
            measure for measure in asked.measures if not known_names or measure.NAME in known_names
        ]
        cases = (
            (grades is None, peer.unjudged),
            (not hits, peer.missing),
            (repeated and not peer.repeated, "stops: a passage twice"),
            (unranked and peer.reading.ties == RANK, "needs ranks"),
        )
        instead = [text for happens, text in cases if happens]
        if instead or grades is None:
            views.append(View(peer.name, (), dict.fromkeys(map(str, mine), instead[0]), ()))
            continue
        order = peer.reading.order(qid, hits)
        shown = tuple(f"{docid} ({grades.get(docid, '-')})" for docid in order[:SHOWN])
        values: dict[str, float | str] = {}
        rules: dict[str, None] = {}
        for measure in mine:
            value = partial(Reading.value, measure=measure, qid=qid, hits=hits, grades=grades)
            values[str(measure)] = value(peer.reading)
            rules |= dict.fromkeys(_moved_by(peer.reading, value))
        if repeated:
            rules["of a repeated passage the last line counts"] = None
        for depth in (m["cutoff"] for m in mine if peer.capped and m.NAME == "R"):
            relevant = {docid for docid, grade in grades.items() if grade > 0}
            found = len(relevant.intersection(order[:depth]))
            values[f"R_cap@{depth}"] = found / (min(depth, len(relevant)) or 1)
        views.append(View(peer.name, shown, values, tuple(rules)))
    return tuple(views)


def _moved_by(reading: Reading, value: Callable[[Reading], float]) -> Iterator[str]:
    """Yield the rules of a reading that change trec_eval's value."""
    usual = value(TREC_EVAL)
    if abs(value(reading) - usual) < SAME:
        return
    usually = vars(TREC_EVAL)
    changed = {name: to for name, to in vars(reading).items() if to != usually[name]}
    one_by_one = {name: replace(TREC_EVAL, **{name: to}) for name, to in changed.items()}
    alone = [name for name, one in one_by_one.items() if abs(value(one) - usual) > SAME]
    for name in alone or changed:
        to = changed[name]
        yield "ranks in place of scores" if to == RANK else RULES[name].format(to)
