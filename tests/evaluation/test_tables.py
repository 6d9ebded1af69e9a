import json
from dataclasses import replace
from typing import Any

import pytest

from denserk.commands.evaluate import show
from denserk.config.benchmarks import Paper
from denserk.config.evaluation import OutputFormat, ReportSettings
from denserk.errors import UsageError
from denserk.evaluation.evaluator import Evaluator
from denserk.evaluation.measures import parse_measures
from denserk.evaluation.results import BenchmarksResult, EvaluationResult, PublishedRow
from denserk.evaluation.tables import render, tables

JUDGMENTS = {"q1": {"a": 1, "b": 1}, "q2": {"a": 1}}
RUNS = {
    "good": {"q1": {"a": 3.0, "b": 2.0}, "q2": {"x": 2.0, "a": 1.0}},
    "long|name": {"q1": {"x": 2.0, "a": 1.0}},
}


def result(*names: str, measures: str = "RR@10 NumRelRet", level: int = 1) -> EvaluationResult:
    evaluator = Evaluator(parse_measures([measures], level).measures, JUDGMENTS)
    return evaluator.result([evaluator.evaluate(name, RUNS[name]) for name in names], level)


def rendered(
    format: OutputFormat, *names: str, measures: str = "RR@10 NumRelRet", **report: Any
) -> str:
    return render(result(*names, measures=measures), ReportSettings(**report), format)


def printed(result: Any, capsys: pytest.CaptureFixture[str], **report: Any) -> str:
    show(result, ReportSettings(format=OutputFormat.TABLE, **report))
    return capsys.readouterr().out


def test_tsv_is_what_ir_measures_prints() -> None:
    assert rendered(OutputFormat.TSV, "good", places=1) == "RR@10\t0.8\nNumRet(rel=1)\t3.0\n"
    queries = (
        "q1\tRR@10\t1.0000\nq1\tNumRet(rel=1)\t2.0000\n"
        "q2\tRR@10\t0.5000\nq2\tNumRet(rel=1)\t1.0000\n"
    )
    mean = "all\tRR@10\t0.7500\nall\tNumRet(rel=1)\t3.0000\n"
    assert rendered(OutputFormat.TSV, "good", per_query=True) == queries + mean
    assert rendered(OutputFormat.TSV, "good", per_query=True, summary=False) == queries


def test_trec_eval_prints_its_names_counts_whole_and_num_q_once() -> None:
    text = rendered(
        OutputFormat.TREC_EVAL, "good", measures="num_q num_ret map RR@10", per_query=True
    )
    assert text == (
        "num_ret               \tq1\t2\n"
        "map                   \tq1\t1.0000\n"
        "RR@10                 \tq1\t1.0000\n"
        "num_ret               \tq2\t2\n"
        "map                   \tq2\t0.5000\n"
        "RR@10                 \tq2\t0.5000\n"
        "num_q                 \tall\t2\n"
        "num_ret               \tall\t4\n"
        "map                   \tall\t0.7500\n"
        "RR@10                 \tall\t0.7500\n"
    )


def first_columns(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()]


def test_trec_eval_prints_the_name_of_each_of_several_runs() -> None:
    text = rendered(OutputFormat.TREC_EVAL, "good", "long|name", measures="map")
    assert first_columns(text) == ["runid", "map", "runid", "map"]


def test_trec_evals_names_leave_out_the_relevance_level_of_all() -> None:
    at_level_2 = result("good", measures="map num_rel_ret P_5 AP(rel=1)", level=2)
    text = render(at_level_2, ReportSettings(), OutputFormat.TREC_EVAL)
    assert first_columns(text) == ["map", "num_rel_ret", "P_5", "AP"]


def test_table_lines_up_and_stars_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(result("good", "long|name"), capsys) == (
        "run          RR@10  NumRet(rel=1)\n"
        "good       *0.7500              3\n"
        "long|name   0.2500              1\n"
        "*: best run by each measure\n"
    )


def test_a_table_of_queries_ends_with_their_mean(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(result("good"), capsys, per_query=True) == (
        "query   RR@10  NumRet(rel=1)\n"
        "q1     1.0000              2\n"
        "q2     0.5000              1\n"
        "all    0.7500              3\n"
    )


def test_a_query_whose_id_is_all_is_no_mean() -> None:
    judgments = {"all": {"a": 1}, "q2": {"a": 1}}
    run = {"all": {"x": 2.0, "a": 1.0}, "q2": {"a": 1.0}}
    evaluator = Evaluator(parse_measures(["RR@10 num_q"], 1).measures, judgments)
    evaluation = evaluator.result([evaluator.evaluate("run", run)], 1)
    report = ReportSettings(per_query=True)
    values = json.loads(render(evaluation, report, OutputFormat.JSON))["runs"][0]["queries"]
    assert values["all"]["RR@10"] == 0.5
    lines = render(evaluation, report, OutputFormat.TREC_EVAL).split("\n")
    assert [line.split() for line in lines if line.startswith("num_q")] == [["num_q", "all", "2"]]


def test_equal_values_are_all_the_best_and_counts_are_not() -> None:
    (table,) = tables(result("good", "good"), ReportSettings())
    for name, rr, num_rel_ret in table.rows:
        assert not name.best
        assert rr.best
        assert not num_rel_ret.best


def test_many_measures_are_rows(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(result("good", "long|name", measures="official"), capsys).splitlines()
    assert lines[0].split() == ["measure", "good", "long|name"]
    assert lines[5].split() == ["AP", "*0.7500", "0.1250"]


def test_markdown_has_the_best_in_bold_and_no_broken_cells() -> None:
    assert rendered(OutputFormat.MARKDOWN, "good", "long|name", measures="RR@10") == (
        "| run | RR@10 |\n|---|---:|\n| good | **0.7500** |\n| long\\|name | 0.2500 |\n"
        "\nbold: best run by each measure\n"
    )


def test_latex_has_the_best_in_bold_and_compiles_with_booktabs_alone() -> None:
    latex = rendered(OutputFormat.LATEX, "good", "long|name", measures="RR@10 AP(rel=2)", places=3)
    assert latex == (
        "% in the preamble: \\usepackage{booktabs}\n"
        "\\begin{table}[tb]\n"
        "\\centering\n"
        "\\caption{Retrieval effectiveness. The best run by each measure is in bold.}\n"
        "\\label{tab:results}\n"
        "\\begin{tabular}{lrr}\n"
        "\\toprule\n"
        "run & RR@10 & AP(rel=2) \\\\\n"
        "\\midrule\n"
        "good & \\textbf{0.750} & \\textbf{0.000} \\\\\n"
        "long$|$name & 0.250 & \\textbf{0.000} \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
        "\\end{table}\n"
    )


def test_latex_has_equal_values_in_bold_and_counts_plain() -> None:
    rows = render(result("good", "good"), ReportSettings(), OutputFormat.LATEX).splitlines()
    assert rows.count(r"good & \textbf{0.7500} & 3 \\") == 2
    alone = rendered(OutputFormat.LATEX, "good", measures="RR@10")
    assert "textbf" not in alone
    assert r"\caption{Retrieval effectiveness.}" in alone


def test_latex_of_queries_and_of_many_measures() -> None:
    queries = rendered(OutputFormat.LATEX, "good", measures="RR@10", per_query=True)
    assert r"\caption{Retrieval effectiveness by query.}" in queries
    assert "q1 & 1.0000 \\\\\nq2 & 0.5000 \\\\\nall & 0.7500 \\\\\n" in queries
    many = rendered(OutputFormat.LATEX, "good", "long|name", measures="official")
    assert "measure & good & long$|$name \\\\\n" in many
    assert "AP & \\textbf{0.7500} & 0.1250 \\\\\n" in many


def test_a_table_as_text_is_what_a_terminal_shows(capsys: pytest.CaptureFixture[str]) -> None:
    two_runs = result("good", "long|name")
    text = render(two_runs, ReportSettings(), OutputFormat.TABLE)
    assert text == printed(two_runs, capsys)


def test_json_holds_full_precision_and_what_was_missing() -> None:
    content = json.loads(rendered(OutputFormat.JSON, "good", "long|name", measures="nDCG@10"))
    assert content["queries"] == 2
    assert content["providers"] == {"pytrec_eval": ["nDCG@10"]}
    good, long_name = content["runs"]
    assert good["measures"] == result("good", measures="nDCG@10").runs[0].summary
    assert long_name["missing"] == ["q2"]
    assert "queries" not in good
    per_query = json.loads(rendered(OutputFormat.JSON, "good", measures="RR@10", per_query=True))
    assert per_query["runs"][0]["queries"] == {"q1": {"RR@10": 1.0}, "q2": {"RR@10": 0.5}}


def result_of(**counts: int) -> EvaluationResult:
    """Runs, each with the number of the two queries whose relevant passage is on top."""
    evaluator = Evaluator(parse_measures(["P@1"]).measures, {"q1": {"a": 1}, "q2": {"a": 1}})
    runs_by_count = {
        0: {"q1": {"x": 2.0}, "q2": {"x": 2.0}},
        1: {"q1": {"a": 2.0}, "q2": {"x": 2.0}},
        2: {"q1": {"a": 2.0}, "q2": {"a": 2.0}},
    }
    return evaluator.result(
        [evaluator.evaluate(name, runs_by_count[count]) for name, count in counts.items()]
    )


TWO_BENCHMARKS = BenchmarksResult(
    ("a", "b"), {"dl19": result_of(a=2, b=1), "beir/nq": result_of(a=0)}
)


def test_lines_of_several_benchmarks() -> None:
    assert render(TWO_BENCHMARKS, ReportSettings(), OutputFormat.TSV) == (
        "a\tdl19\tP@1\t1.0000\na\tbeir/nq\tP@1\t0.0000\nb\tdl19\tP@1\t0.5000\n"
    )
    with pytest.raises(UsageError, match="several benchmarks"):
        render(TWO_BENCHMARKS, ReportSettings(), OutputFormat.TREC_EVAL)


def test_a_table_of_several_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(TWO_BENCHMARKS, capsys) == (
        "benchmark  run      P@1\n"
        "dl19       a    *1.0000\n"
        "dl19       b     0.5000\n"
        "beir/nq    a    *0.0000\n"
        "beir/nq    b           \n"
        "*: best run by each measure\n"
    )


def test_json_of_several_benchmarks() -> None:
    content = json.loads(render(TWO_BENCHMARKS, ReportSettings(), OutputFormat.JSON))
    run_a, run_b = content["runs"]
    assert run_a["benchmarks"] == {"dl19": {"P@1": 1.0}, "beir/nq": {"P@1": 0.0}}
    assert run_b == {"run": "b", "benchmarks": {"dl19": {"P@1": 0.5}, "beir/nq": None}}


def test_latex_of_several_benchmarks() -> None:
    latex = render(TWO_BENCHMARKS, ReportSettings(), OutputFormat.LATEX)
    assert r"\caption{Retrieval effectiveness by benchmark. The best run by each" in latex
    assert latex.partition("\\midrule\n")[2].splitlines()[:5] == [
        r"dl19 & a & \textbf{1.0000} \\",
        r" & b & 0.5000 \\",
        r"\addlinespace",
        r"beir/nq & a & \textbf{0.0000} \\",
        r" & b &  \\",
    ]


def test_published_results_are_a_second_table_in_latex() -> None:
    row = PublishedRow(Paper.MLR, "dl19", "Table 1, row 2", "MLR_x", "8 vectors", {"P@1": "0.5"})
    latex = render(replace(result_of(a=2), published=(row,)), ReportSettings(), OutputFormat.LATEX)
    results, published = latex.split("\n\n")
    assert r"\label{tab:results}" in results
    assert r"\label{tab:published}" in published
    assert r"mlr & dl19 & Table 1, row 2 & MLR\_x & 8 vectors & 0.5 \\" in published
