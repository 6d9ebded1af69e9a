import json

import pytest

from denserk.config.benchmarks import Paper, find_benchmarks
from denserk.config.evaluation import OutputFormat, ReportSettings
from denserk.errors import UsageError
from denserk.evaluation.benchmarks import published_rows
from denserk.evaluation.evaluator import Evaluator
from denserk.evaluation.measures import parse_measures
from denserk.evaluation.results import BenchmarksResult, EvaluationResult
from denserk.evaluation.tables import render, tables

JUDGED = {"q1": {"a": 1}, "q2": {"a": 1}}
GOOD = {"q1": {"a": 2.0}, "q2": {"a": 2.0}}
HALF = {"q1": {"a": 2.0}, "q2": {"x": 2.0}}
NONE = {"q1": {"x": 2.0}, "q2": {"x": 2.0}}


def one(measures="P@1", **runs):
    chosen = parse_measures([measures]).measures
    evaluator = Evaluator(chosen, JUDGED)
    found = tuple(evaluator.evaluate(name, run) for name, run in runs.items())
    return EvaluationResult(chosen, 1, evaluator.queries, found, evaluator.providers)


def small(run="mine", **others):
    """beir-small, all of it half right, but for the sets that are named."""
    sets = {suite.name: one(**{run: HALF}) for suite in find_benchmarks(["beir-small"])}
    return BenchmarksResult((run,), {**sets, **others})


def test_the_mean_is_of_sets_not_of_queries():
    result = small(**{"beir/scifact": one(mine=GOOD)})
    assert result.values("beir-small", "mine") == pytest.approx({"P@1": (4 * 0.5 + 1) / 5})


def test_a_group_within_a_group_counts_once():
    forums = {suite.name: one(mine=NONE) for suite in find_benchmarks(["beir/cqadupstack"])}
    others = {suite.name: one(mine=GOOD) for suite in find_benchmarks(["beir-14"])}
    result = BenchmarksResult(("mine",), {**others, **forums})
    assert result.values("beir/cqadupstack", "mine") == {"P@1": 0.0}
    assert result.values("beir-14", "mine") == pytest.approx({"P@1": 13 / 14})
    assert result.values("beir", "mine") is None


def test_no_mean_without_all_sets():
    results = dict(small().results)
    del results["beir/fiqa"]
    assert [name for name, _ in BenchmarksResult(("mine",), results).rows()] == list(results)


def test_a_measure_that_some_sets_lack_has_no_mean():
    result = small(**{"beir/scifact": one("P@1 RR@10", mine=GOOD)})
    assert result.values("beir-small", "mine") == pytest.approx({"P@1": 0.6})
    grid = tables(result, ReportSettings(places=2))[0]
    assert [cell.text for cell in grid.rows[-1]] == ["beir-small", "0.60", ""]


def shown(form, result, **report):
    return render(result, ReportSettings(**report), form)


TWO = BenchmarksResult(
    ("a", "b"),
    {"dl19": one(a=GOOD, b=HALF), "beir/nq": one(a=NONE)},
    published_rows(Paper.MLR, "dl19")[:0],
)


def test_lines():
    assert shown(OutputFormat.TSV, TWO) == (
        "a\tdl19\tP@1\t1.0000\na\tbeir/nq\tP@1\t0.0000\nb\tdl19\tP@1\t0.5000\n"
    )


def test_table():
    assert shown(OutputFormat.TABLE, TWO, places=2) == (
        "suite    run   P@1\n"
        "dl19     a    1.00*\n"
        "dl19     b    0.50\n"
        "beir/nq  a    0.00*\n"
        "beir/nq  b\n"
        "*: best run by each measure\n"
    )


def test_json_has_full_precision_and_the_papers_rows():
    result = BenchmarksResult(
        ("a",), {"dl19": one(a=HALF)}, published_rows(Paper.AGGRETRIEVER, "dl19")[:1]
    )
    found = json.loads(shown(OutputFormat.JSON, result))
    assert found["runs"] == [{"run": "a", "suites": {"dl19": {"P@1": 0.5}}}]
    assert found["published"][0]["values"] == {"nDCG@10": 0.506}


def test_markdown_has_two_tables():
    result = BenchmarksResult(
        ("a",), {"dl19": one(a=HALF)}, published_rows(Paper.AGGRETRIEVER, "dl19")[:1]
    )
    assert shown(OutputFormat.MARKDOWN, result, places=1) == (
        "| suite | P@1 |\n|---|---:|\n| dl19 | 0.5 |\n\n"
        "| paper | row | system | setting | nDCG@10 |\n|---|---|---|---|---:|\n"
        "| aggretriever | T2.a | BM25 | untrained | 0.506 |\n"
    )


def test_trec_eval_has_no_such_lines():
    with pytest.raises(UsageError, match="several suites"):
        shown(OutputFormat.TREC_EVAL, TWO)
