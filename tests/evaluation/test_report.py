import math
import random
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from denserk.config.benchmarks import Paper
from denserk.config.evaluation import ComparisonSettings
from denserk.evaluation.benchmarks import published_rows
from denserk.evaluation.evaluator import Evaluator
from denserk.evaluation.measures import parse_measures
from denserk.evaluation.page import LONGEST, as_benchmarks_page, as_page, shorten
from denserk.evaluation.report import (
    BINS,
    DEPTHS,
    Cost,
    Hit,
    Report,
    Texts,
    TopList,
    bin_scores,
    main_measure,
    mean_recall,
    profile,
    query_rows,
    reference_of,
)
from denserk.evaluation.results import BenchmarksResult, EvaluationResult
from denserk.evaluation.significance import compare
from denserk.records import Passage

pytest.importorskip("matplotlib")
VOID = {"meta", "input", "br"}
EVIL = "</script><img src=x onerror=alert(1)>&amp;'\""
EVIL_ID = '<b>"&'
JUDGEMENTS = {"q1": {"a": 1, "b": 0}, "q2": {"a": 1}, "q3": {"c": 1}, EVIL_ID: {EVIL_ID: 2}}
RUNS = {
    "first": {"q1": {"a": 3.0, "b": 1.0}, "q2": {"b": 2.0, "a": 1.0}, EVIL_ID: {EVIL_ID: 9.0}},
    "second": {"q1": {"b": 3.0}, "q2": {"a": 2.0}, "q3": {"c": 0.5}, EVIL_ID: {"a": 1.0}},
    f"third{EVIL}": {"q1": {"a": 2.0}, "unjudged": {"a": 1.0}},
}
TEXTS = Texts(
    {"q1": f"what {EVIL}", "q2": "plain words"},
    {"a": Passage("a", EVIL, f"head {EVIL}"), "b": Passage("b", "x " * 999)},
)


class Reader(HTMLParser):
    """Reads a page; every element that begins has to end."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        name = self.open[-1] if self.open else ""
        self.text[name] = self.text.get(name, "") + data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.seen if name == tag]


def measured(runs: dict[str, dict[str, dict[str, float]]] = RUNS) -> EvaluationResult:
    measures = parse_measures(["RR@10", "R@100", "NumRet"]).measures
    evaluator = Evaluator(measures, JUDGEMENTS)
    results = tuple(evaluator.evaluate(name, run) for name, run in runs.items())
    return EvaluationResult(measures, 1, evaluator.queries, results, evaluator.providers)


def report(result: EvaluationResult, **more: object) -> Report:
    rows = query_rows(result, main_measure(result), reference_of(result))
    moved = [row.qid for row in rows[:3]]
    profiles = [
        profile(run.name, RUNS[run.name], JUDGEMENTS, result.queries, 1, moved, 2)
        for run in result.runs
    ]
    whole = Report(f"title {EVIL}", result, rows, 3, profiles, texts=TEXTS)
    return replace(whole, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def page() -> str:
    result = measured()
    settings = ComparisonSettings(baseline="second")
    values = {run.name: run.per_query for run in result.runs}
    compared = compare(values, result.measures, "second", settings)
    rows = published_rows(Paper.AGGRETRIEVER, "msmarco-dev")
    costs = [Cost(10**9, 20.0), Cost(), Cost(10**7)]
    result = replace(result, comparison=compared, published=rows)
    return as_page(report(result, costs=costs, lacking=["nothing about cheese"]))


def test_the_page_is_well_formed_and_needs_nothing_from_elsewhere(page: str) -> None:
    read = Reader(page)
    assert page.startswith("<!doctype html>\n<html")
    assert [meta for meta in read.all("meta") if meta.get("charset") == "utf-8"]
    assert not {"link", "img", "iframe", "object", "b"} & {name for name, _ in read.seen}
    addresses = [a[k] for _, a in read.seen for k in ("src", "href", "action") if k in a]
    assert addresses
    assert all(address and address.startswith("#") for address in addresses)
    assert page.count("url(") == page.count("url(#")
    assert "@import" not in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/", "")
    assert not [key for _, attributes in read.seen for key in attributes if key.startswith("on")]


def test_labels_are_there_for_those_who_do_not_see(page: str) -> None:
    read = Reader(page)
    ids = [attributes["id"] for _, attributes in read.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [a[key] for _, a in read.seen for key in ("href", "xlink:href") if key in a]
    assert set(links) <= {f"#{name}" for name in ids}
    plots = [svg for svg in read.all("svg") if svg.get("class") == "plot"]
    assert len(plots) == 1 + 2 + 2  # recall; size, time; scores, where they differ
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in plots)
    assert read.all("html") == [{"lang": "en"}]
    assert all(head.get("scope") in ("col", "row") for head in read.all("th"))


def test_all_runs_queries_and_notes_are_there(page: str) -> None:
    read = Reader(page)
    everything = "".join(read.text.values())
    for told in (*RUNS, *JUDGEMENTS, *TEXTS.queries.values(), f"head {EVIL}", f"title {EVIL}"):
        assert told in everything
    assert "nothing about cheese" in read.text["li"]
    assert "has 1 query without relevance judgments" in read.text["li"]
    assert "differs from second" in read.text["p"]
    assert "aggretriever" in read.text["th"]
    assert "1 GB" in read.text["figcaption"]


def test_what_is_not_known_is_left_out() -> None:
    bare = report(measured(), texts=Texts(), profiles=[])
    read = Reader(as_page(bare))
    assert [s["id"] for s in read.all("section")] == ["measures", "per-query", "notes"]
    assert not read.all("a")
    read = Reader(as_page(report(measured(), texts=Texts())))
    assert len([svg for svg in read.all("svg") if svg.get("class") == "plot"]) == 1 + 2


def test_one_run_has_no_differences() -> None:
    result = measured({"first": RUNS["first"]})
    read = Reader(as_page(report(result)))
    assert "Δ" not in "".join(value for key, value in read.text.items() if key != "script")
    assert "lowest values" in read.text["h2"]


def test_a_page_of_many_queries_stays_small() -> None:
    judgements = {f"q{n}": {"a": 1} for n in range(7000)}
    runs = {name: {qid: {"a": 1.0} for qid in judgements} for name in ("one", "two")}
    measures = parse_measures(["RR@10"]).measures
    evaluator = Evaluator(measures, judgements)
    results = tuple(evaluator.evaluate(name, run) for name, run in runs.items())
    result = EvaluationResult(measures, 1, evaluator.queries, results, evaluator.providers)
    rows = query_rows(result, "RR@10", 0)
    assert len(as_page(Report("many", result, rows, 20))) < 1_600_000


@pytest.mark.parametrize("text", ["short", "a" * (2 * LONGEST), "ab " * LONGEST])
def test_texts_are_cut_between_words(text: str) -> None:
    found = shorten(text)
    assert len(found) <= LONGEST + 1
    assert found == text or found.endswith("…")


def test_benchmarks_in_domain_and_zero_shot() -> None:
    result = measured({name: RUNS[name] for name in ("first", "second")})
    suites = {"msmarco-dev": result, "beir/scifact": result, "beir/nfcorpus": result}
    page = as_benchmarks_page(BenchmarksResult(("first", "second"), suites))
    read = Reader(page)
    (plot,) = (svg for svg in read.all("svg") if svg.get("class") == "plot")
    assert "Zero-shot" in (plot["aria-label"] or "")
    assert "mean RR@10 on 2 BEIR datasets" in read.text["text"]
    assert "beir/nfcorpus" in read.text["figcaption"]
    alone = Reader(as_benchmarks_page(BenchmarksResult(("first", "second"), {"dl19": result})))
    assert "is not drawn" in alone.text["li"]


MOVED = {f"q{n}": {"a": 1} for n in range(1, 5)}
GOOD = {"q1": {"a": 1.0}, "q2": {"b": 2.0, "a": 1.0}, "q3": {"b": 1.0}, "q4": {"a": 1.0}}
BAD = {"q1": {"a": 1.0}, "q2": {"a": 1.0}, "q3": {"a": 1.0}}


@pytest.fixture
def result() -> EvaluationResult:
    measures = parse_measures(["NumRet", "RR@10"]).measures
    evaluator = Evaluator(measures, MOVED, complete=False)
    runs = tuple(evaluator.evaluate(name, run) for name, run in (("good", GOOD), ("bad", BAD)))
    return EvaluationResult(measures, 1, evaluator.queries, runs, evaluator.providers)


def test_what_moved_most_comes_first_and_what_is_not_known_last(result: EvaluationResult) -> None:
    rows = query_rows(result, "RR@10", 0)
    assert [(row.qid, row.difference) for row in rows[:3]] == [("q3", 1.0), ("q2", 0.5), ("q1", 0)]
    assert rows[3].qid == "q4"
    assert rows[3].values[0] == 1.0
    assert math.isnan(rows[3].values[1])
    assert [row.difference for row in query_rows(result, "RR@10", 1)[:2]] == [-1.0, -0.5]


def test_of_one_run_the_lowest_come_first(result: EvaluationResult) -> None:
    rows = query_rows(replace(result, runs=result.runs[:1]), "RR@10", 0)
    assert [row.qid for row in rows] == ["q3", "q2", "q1", "q4"]


def test_main_measure_and_reference(result: EvaluationResult) -> None:
    assert main_measure(result) == "RR@10"
    assert reference_of(result) == 0
    compared = replace(
        result,
        comparison=compare(
            {run.name: run.per_query for run in result.runs},
            result.measures,
            "bad",
            ComparisonSettings(),
        ),
    )
    assert reference_of(compared) == 1


GRADES = {"q1": {"a": 2, "b": 0, "c": 1}, "q2": {"a": 1}, "q3": {"x": 0}}
PROFILED = {"q1": {"b": 3.0, "c": 2.0, "z": 2.0}, "q2": {"b": 1.0}, "other": {"a": 1.0}}


def test_tops_are_in_trec_evals_order_with_their_grades() -> None:
    found = profile("run", PROFILED, GRADES, list(GRADES), 1, ["q1", "q2", "q3"], 2)
    assert found.lists == {
        "q1": TopList((Hit("b", 3.0, 0), Hit("z", 2.0, None)), 3, 3),
        "q2": TopList((Hit("b", 1.0, None),), None, 1),
        "q3": TopList((), None, 0),
    }


def test_recall_is_what_ir_measures_tells() -> None:
    draw = random.Random(7)
    judgements = {
        f"q{q}": {f"d{draw.randrange(60)}": draw.randrange(4) for _ in range(12)} for q in range(9)
    }
    run = {
        f"q{q}": {f"d{d}": float(draw.randrange(9)) for d in draw.sample(range(60), 5 * q + 2)}
        for q in range(8)
    }
    for level in (1, 2):
        found = profile("run", run, judgements, list(judgements), level, [], 1)
        depths = [depth for depth, _ in found.recall]
        assert depths == [*(depth for depth in DEPTHS if depth < 37), 37]
        measures = parse_measures([f"R(rel={level})@{depth}" for depth in depths]).measures
        expected = Evaluator(measures, judgements).evaluate("run", run).summary.values()
        assert [recall for _, recall in found.recall] == pytest.approx(list(expected))


def test_every_score_is_in_its_bin() -> None:
    found = bin_scores([1.0, 2.5, 4.0], [0.0, 1.0, 1.0])
    assert found is not None
    assert (len(found.edges), *found.edges[[0, -1]]) == (BINS + 1, 0.0, 4.0)
    assert (found.relevant.sum(), found.others.sum()) == (3, 3)
    assert [n for n, count in enumerate(found.others) if count] == [0, 7]  # 1.0 / (4.0 / 30)


@pytest.mark.parametrize("scores", [[], [1.0], [2.0, 2.0], [1.0, 1.0000000000000002]])
def test_scores_that_do_not_differ_have_no_bins(scores: list[float]) -> None:
    assert bin_scores(scores, []) is None


def test_no_hits_no_recall() -> None:
    assert mean_recall({}, {"q": {"a"}}) == ()
