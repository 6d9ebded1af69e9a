import json
from dataclasses import replace
from typing import Any

import pytest

from denserk.config.benchmarks import Paper
from denserk.config.evaluation import OutputFormat, ReportSettings
from denserk.evaluation.benchmarks import published_rows
from denserk.evaluation.evaluator import Evaluator
from denserk.evaluation.measures import parse_measures
from denserk.evaluation.results import EvaluationResult
from denserk.evaluation.tables import Table, render, tables

JUDGED = {"q1": {"a": 1, "b": 1}, "q2": {"a": 1}}
RUNS = {
    "good": {"q1": {"a": 3.0, "b": 2.0}, "q2": {"x": 2.0, "a": 1.0}},
    "long|name": {"q1": {"x": 2.0, "a": 1.0}},
}


def result(*names: str, measures: str = "RR@10 NumRelRet", level: int = 1) -> EvaluationResult:
    chosen = parse_measures([measures], level).measures
    evaluator = Evaluator(chosen, JUDGED)
    runs = tuple(evaluator.evaluate(name, RUNS[name]) for name in names)
    return EvaluationResult(chosen, level, evaluator.queries, runs, evaluator.providers)


def shown(form: OutputFormat, *names: str, measures: str = "RR@10 NumRelRet", **report: Any) -> str:
    settings = ReportSettings(**report)
    return render(result(*names, measures=measures), settings, form)


def grid_of(found: EvaluationResult, report: ReportSettings) -> Table:
    return tables(found, report)[0]


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({}, "RR@10\t0.7500\nNumRet(rel=1)\t3.0000\n"),
        ({"places": 1}, "RR@10\t0.8\nNumRet(rel=1)\t3.0\n"),
        (
            {"per_query": True},
            "q1\tRR@10\t1.0000\nq1\tNumRet(rel=1)\t2.0000\n"
            "q2\tRR@10\t0.5000\nq2\tNumRet(rel=1)\t1.0000\n"
            "all\tRR@10\t0.7500\nall\tNumRet(rel=1)\t3.0000\n",
        ),
        (
            {"per_query": True, "summary": False},
            "q1\tRR@10\t1.0000\nq1\tNumRet(rel=1)\t2.0000\n"
            "q2\tRR@10\t0.5000\nq2\tNumRet(rel=1)\t1.0000\n",
        ),
    ],
)
def test_tsv_is_what_ir_measures_prints(report: dict[str, Any], expected: str) -> None:
    assert shown(OutputFormat.TSV, "good", **report) == expected


def test_tsv_of_several_runs_names_the_run_first() -> None:
    assert shown(OutputFormat.TSV, "good", "long|name", measures="RR@10") == (
        "good\tRR@10\t0.7500\nlong|name\tRR@10\t0.2500\n"
    )
    per_query = shown(OutputFormat.TSV, "good", "long|name", measures="RR@10", per_query=True)
    assert per_query.splitlines() == [
        "good\tq1\tRR@10\t1.0000",
        "good\tq2\tRR@10\t0.5000",
        "good\tall\tRR@10\t0.7500",
        "long|name\tq1\tRR@10\t0.5000",
        "long|name\tq2\tRR@10\t0.0000",
        "long|name\tall\tRR@10\t0.2500",
    ]


def test_trec_eval_prints_its_names_counts_whole_and_num_q_once() -> None:
    text = shown(OutputFormat.TREC_EVAL, "good", measures="num_q num_ret map RR@10", per_query=True)
    assert text.splitlines()[:3] == [
        "num_ret               \tq1\t2",
        "map                   \tq1\t1.0000",
        "RR@10                 \tq1\t1.0000",
    ]
    assert text.splitlines()[-4:] == [
        "num_q                 \tall\t2",
        "num_ret               \tall\t4",
        "map                   \tall\t0.7500",
        "RR@10                 \tall\t0.7500",
    ]


def test_trec_eval_opens_each_of_several_runs() -> None:
    text = shown(OutputFormat.TREC_EVAL, "good", "long|name", measures="map")
    assert [line.split()[0] for line in text.splitlines()] == ["runid", "map", "runid", "map"]
    assert "runid                 \tall\tlong|name\n" in text


def test_trec_eval_leaves_the_level_out_of_names() -> None:
    found = result("good", measures="map num_rel_ret P_5 AP(rel=1)", level=2)
    text = render(found, ReportSettings(), OutputFormat.TREC_EVAL)
    names = [line.split()[0] for line in text.splitlines()]
    assert names == ["map", "num_rel_ret", "P_5", "AP"]


def test_table_lines_up_and_stars_the_best() -> None:
    assert shown(OutputFormat.TABLE, "good", "long|name") == (
        "run         RR@10   NumRet(rel=1)\n"
        "good       0.7500*              3\n"
        "long|name  0.2500               1\n"
        "*: best run by each measure\n"
    )
    assert shown(OutputFormat.TABLE, "good") == (
        "run    RR@10  NumRet(rel=1)\ngood  0.7500              3\n"
    )


def test_markdown_has_the_best_in_bold_and_no_broken_cells() -> None:
    assert shown(OutputFormat.MARKDOWN, "good", "long|name", measures="RR@10") == (
        "| run | RR@10 |\n|---|---:|\n| good | **0.7500** |\n| long\\|name | 0.2500 |\n"
        "\n**bold**: best run by each measure\n"
    )


def test_all_runs_that_print_as_the_best_are_marked() -> None:
    grid = grid_of(result("good", "good", measures="RR@10 NumRet"), ReportSettings())
    assert [[cell.best for cell in row] for row in grid.rows] == [[False, True, False]] * 2


def test_queries_of_one_run_are_lines_and_of_several_runs_stand_side_by_side() -> None:
    one = grid_of(result("good"), ReportSettings(per_query=True))
    assert one.header == ("query", "RR@10", "NumRet(rel=1)")
    assert [row[0].text for row in one.rows] == ["q1", "q2", "all"]
    two = grid_of(result("good", "long|name", measures="RR@10"), ReportSettings(per_query=True))
    assert two.header == ("query", "measure", "good", "long|name")
    assert [[cell.text for cell in row] for row in two.rows] == [
        ["q1", "RR@10", "1.0000", "0.5000"],
        ["q2", "RR@10", "0.5000", "0.0000"],
        ["all", "RR@10", "0.7500", "0.2500"],
    ]


def test_many_measures_stand_below_each_other() -> None:
    grid = grid_of(result("good", "long|name", measures="P"), ReportSettings())
    assert grid.header == ("measure", "good", "long|name")
    assert [row[0].text for row in grid.rows][:2] == ["P@5", "P@10"]


def test_json_holds_full_precision_and_what_was_missing() -> None:
    content = json.loads(shown(OutputFormat.JSON, "good", "long|name", measures="nDCG@10"))
    assert content["queries"] == 2
    assert content["providers"] == {"pytrec_eval": ["nDCG@10"]}
    good, other = content["runs"]
    assert good["measures"] == result("good", measures="nDCG@10").runs[0].summary
    assert other["missing"] == ["q2"]
    assert "queries" not in good
    per_query = json.loads(shown(OutputFormat.JSON, "good", measures="RR@10", per_query=True))
    assert per_query["runs"][0]["queries"] == {"q1": {"RR@10": 1.0}, "q2": {"RR@10": 0.5}}


def test_a_query_without_a_value_is_left_out_or_nan() -> None:
    text = shown(OutputFormat.TSV, "long|name", measures="Accuracy", per_query=True)
    assert text == "q1\tAccuracy\t0.0000\nall\tAccuracy\t0.0000\n"
    grid = grid_of(result("long|name", measures="Accuracy"), ReportSettings(per_query=True))
    assert [row[1].text for row in grid.rows] == ["0.0000", "nan", "0.0000"]


@pytest.mark.parametrize(
    ("form", "report", "lines"),
    [
        (OutputFormat.TSV, {}, ["RR@10\t0.7500", "RR@10:relations\t0.6000"]),
        (OutputFormat.TSV, {"per_query": True}, ["all\tRR@10:relations\t0.6000"]),
        (OutputFormat.TABLE, {}, ["good, mean over relations: RR@10 0.6000"]),
        (OutputFormat.MARKDOWN, {"places": 2}, ["good, mean over relations: RR@10 0.60"]),
        (OutputFormat.JSON, {}, ['      "mean_over_relations": {', '        "RR@10": 0.6']),
    ],
)
def test_means_over_relations(form: OutputFormat, report: dict[str, Any], lines: list[str]) -> None:
    whole = result("good", measures="RR@10")
    runs = tuple(replace(run, over_relations={"RR@10": 0.6}) for run in whole.runs)
    text = render(replace(whole, runs=runs), ReportSettings(**report), form)
    assert [line for line in text.splitlines() if line in lines] == lines


def test_published_rows_stand_below_with_the_measures_of_the_runs_first() -> None:
    rows = published_rows(Paper.MASTER, "msmarco-titled-dev")[:1]
    whole = replace(result("good", measures="Success@1000 RR@10"), published=rows)
    table = tables(whole, ReportSettings())[1]
    assert table.header == (
        *("paper", "row", "system", "setting", "Success@1000", "RR@10", "Success@50"),
    )
    assert [cell.text for cell in table.rows[0]] == [
        *("master", "T2.1", "BM25", "as printed", "0.857", "0.185", "0.585")
    ]
    line = render(whole, ReportSettings(), OutputFormat.TSV).splitlines()[2]
    assert line == "master\tmsmarco-titled-dev\tT2.1\tBM25\tas printed\tRR@10\t0.185"
