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

JUDGED = {"q1": {"a": 1, "b": 1}, "q2": {"a": 1}}
RUNS = {
    "good": {"q1": {"a": 3.0, "b": 2.0}, "q2": {"x": 2.0, "a": 1.0}},
    "long|name": {"q1": {"x": 2.0, "a": 1.0}},
}


def result(*names: str, measures: str = "RR@10 NumRelRet", level: int = 1) -> EvaluationResult:
    evaluator = Evaluator(parse_measures([measures], level).measures, JUDGED)
    return evaluator.result([evaluator.evaluate(name, RUNS[name]) for name in names], level)


def shown(form: OutputFormat, *names: str, measures: str = "RR@10 NumRelRet", **report: Any) -> str:
    return render(result(*names, measures=measures), ReportSettings(**report), form)


def printed(found: Any, capsys: pytest.CaptureFixture[str], **report: Any) -> str:
    show(found, ReportSettings(format=OutputFormat.TABLE, **report))
    return capsys.readouterr().out


def test_tsv_is_what_ir_measures_prints() -> None:
    assert shown(OutputFormat.TSV, "good", places=1) == "RR@10\t0.8\nNumRet(rel=1)\t3.0\n"
    queries = (
        "q1\tRR@10\t1.0000\nq1\tNumRet(rel=1)\t2.0000\n"
        "q2\tRR@10\t0.5000\nq2\tNumRet(rel=1)\t1.0000\n"
    )
    every = queries + "all\tRR@10\t0.7500\nall\tNumRet(rel=1)\t3.0000\n"
    assert shown(OutputFormat.TSV, "good", per_query=True) == every
    assert shown(OutputFormat.TSV, "good", per_query=True, summary=False) == queries


def test_trec_eval_prints_its_names_counts_whole_and_num_q_once() -> None:
    text = shown(OutputFormat.TREC_EVAL, "good", measures="num_q num_ret map RR@10", per_query=True)
    rows = [line.split("\t") for line in text.splitlines()]
    assert rows[0] == ["num_ret".ljust(22), "q1", "2"]
    assert [(name.strip(), *rest) for name, *rest in rows[-4:]] == [
        *(("num_q", "all", "2"), ("num_ret", "all", "4")),
        *(("map", "all", "0.7500"), ("RR@10", "all", "0.7500")),
    ]
    two = shown(OutputFormat.TREC_EVAL, "good", "long|name", measures="map")
    assert [line.split()[0] for line in two.splitlines()] == ["runid", "map", "runid", "map"]
    found = result("good", measures="map num_rel_ret P_5 AP(rel=1)", level=2)
    lines = render(found, ReportSettings(), OutputFormat.TREC_EVAL).splitlines()
    assert [line.split()[0] for line in lines] == ["map", "num_rel_ret", "P_5", "AP"]


def test_table_lines_up_and_stars_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(result("good", "long|name"), capsys) == (
        "run          RR@10  NumRet(rel=1)\n"
        "good       *0.7500              3\n"
        "long|name   0.2500              1\n"
        "*: best run by each measure\n"
    )
    assert printed(result("good"), capsys, per_query=True) == (
        "query   RR@10  NumRet(rel=1)\n"
        "q1     1.0000              2\n"
        "q2     0.5000              1\n"
        "all    0.7500              3\n"
    )
    (equal,) = tables(result("good", "good"), ReportSettings())
    assert [[cell.best for cell in row] for row in equal.rows] == [[False, True, False]] * 2
    lines = printed(result("good", "long|name", measures="official"), capsys).splitlines()
    assert lines[0].split() == ["measure", "good", "long|name"]
    assert lines[5].split() == ["AP", "*0.7500", "0.1250"]


def test_markdown_has_the_best_in_bold_and_no_broken_cells() -> None:
    assert shown(OutputFormat.MARKDOWN, "good", "long|name", measures="RR@10") == (
        "| run | RR@10 |\n|---|---:|\n| good | **0.7500** |\n| long\\|name | 0.2500 |\n"
        "\nbold: best run by each measure\n"
    )


def test_latex_has_the_best_in_bold_and_compiles_with_booktabs_alone() -> None:
    found = shown(OutputFormat.LATEX, "good", "long|name", measures="RR@10 AP(rel=2)", places=3)
    assert found == (
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
    alone = shown(OutputFormat.LATEX, "good", measures="RR@10")
    assert "textbf" not in alone
    assert r"\caption{Retrieval effectiveness.}" in alone


def test_latex_of_queries_and_of_many_measures() -> None:
    queries = shown(OutputFormat.LATEX, "good", measures="RR@10", per_query=True)
    assert r"\caption{Retrieval effectiveness by query.}" in queries
    assert "q1 & 1.0000 \\\\\nq2 & 0.5000 \\\\\nall & 0.7500 \\\\\n" in queries
    many = shown(OutputFormat.LATEX, "good", "long|name", measures="official")
    assert "measure & good & long$|$name \\\\\n" in many
    assert "AP & \\textbf{0.7500} & 0.1250 \\\\\n" in many


def test_a_table_as_text_is_what_a_terminal_shows(capsys: pytest.CaptureFixture[str]) -> None:
    found = result("good", "long|name")
    text = render(found, ReportSettings(), OutputFormat.TABLE)
    assert text == printed(found, capsys)


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


def one(**found: int) -> EvaluationResult:
    """Runs that find the relevant passage of none, one or both of two queries."""
    evaluator = Evaluator(parse_measures(["P@1"]).measures, {"q1": {"a": 1}, "q2": {"a": 1}})
    runs = []
    for run, right in found.items():
        hits = {f"q{n}": {"a" if right >= n else "x": 2.0} for n in (1, 2)}
        runs.append(evaluator.evaluate(run, hits))
    return evaluator.result(runs)


def test_several_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    two = BenchmarksResult(("a", "b"), {"dl19": one(a=2, b=1), "beir/nq": one(a=0)})
    assert render(two, ReportSettings(), OutputFormat.TSV) == (
        "a\tdl19\tP@1\t1.0000\na\tbeir/nq\tP@1\t0.0000\nb\tdl19\tP@1\t0.5000\n"
    )
    lines = [" ".join(line.split()) for line in printed(two, capsys).splitlines()[:-1]]
    assert lines[:3] == ["benchmark run P@1", "dl19 a *1.0000", "dl19 b 0.5000"]
    assert lines[3:] == ["beir/nq a *0.0000", "beir/nq b"]
    found = json.loads(render(two, ReportSettings(), OutputFormat.JSON))
    assert found["runs"][1] == {"run": "b", "benchmarks": {"dl19": {"P@1": 0.5}, "beir/nq": None}}
    with pytest.raises(UsageError, match="several benchmarks"):
        render(two, ReportSettings(), OutputFormat.TREC_EVAL)
    latex = render(two, ReportSettings(), OutputFormat.LATEX)
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
    latex = render(replace(one(a=2), published=(row,)), ReportSettings(), OutputFormat.LATEX)
    first, second = latex.split("\n\n")
    assert r"\label{tab:results}" in first
    assert r"\label{tab:published}" in second
    assert r"mlr & dl19 & Table 1, row 2 & MLR\_x & 8 vectors & 0.5 \\" in second
