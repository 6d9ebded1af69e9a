import json
import subprocess
import sys
from pathlib import Path

import pytest

from denserk.commands.app import run
from denserk.config.evaluation import OutputFormat
from tests.support.console import Terminal
from tests.support.toy import QUERIES


@pytest.fixture
def files(toy, monkeypatch):
    monkeypatch.chdir(toy)
    good = "q1 Q0 d3 1 3 t\nq2 Q0 d1 1 3 t\nq2 Q0 d5 2 2 t\nq3 Q0 d1 1 3 t\nq3 Q0 d4 2 2 t\n"
    (toy / "good.trec").write_text(good)
    (toy / "bad.trec").write_text("q1 Q0 d1 1 3 t\nq2 Q0 d5 1 3 t\nq3 Q0 d1 1 3 t\n")
    return toy


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "arguments", [["good.trec", "qrels.txt"], ["--run", "good.trec", "--qrels", "qrels.txt"]]
)
def test_one_run_prints_ir_measures_lines(arguments, capsys):
    assert run(["eval", *arguments, "-m", "RR@10 R@1000", "--quiet"]) == 0
    assert capsys.readouterr() == ("RR@10\t0.8333\nR@1000\t1.0000\n", "")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("options", "is_named"),
    [
        ([], False),
        (["--baseline", "good"], True),
        (["--unjudged", "bounds"], True),
        (["--baseline", "good", "--format", "tsv"], False),
        (["--baseline", "good", "--quiet"], False),
    ],
)
def test_lines_of_tests_and_bounds_name_the_tables_that_explain_them(options, is_named, capsys):
    assert run(["eval", "good.trec", "bad.trec", "qrels.txt", "-m", "RR@10", *options]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("good\tRR@10\t")
    assert ("--format table" in err) is is_named


@pytest.mark.usefixtures("files")
def test_gates(capsys):
    command = ["eval", "good.trec", "qrels.txt", "-m", "RR@10", "--quiet"]
    assert run([*command, "--min", "RR@10=0.8"]) == 0
    capsys.readouterr()
    assert run([*command, "--min", "RR@10=0.9", "--min", "P_1=0.7"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("RR@10\t0.8333\n")
    assert err == "error: good: RR@10 is 0.833333, under 0.9; good: P@1 is 0.666667, under 0.7\n"


@pytest.mark.usefixtures("files")
def test_a_terminal_gets_a_table(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert run(["eval", "good.trec", "bad.trec", "qrels.txt", "-m", "RR@10", "--quiet"]) == 0
    text = terminal.getvalue()
    assert "\x1b[" not in text
    assert "*0.8333" in text
    assert "good" in text
    assert "bad" in text


@pytest.mark.usefixtures("files")
def test_columns_that_do_not_fit_a_terminal_stand_below(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    Path("bad.trec").rename("minilm-finetuned.trec")
    runs = "good.trec minilm-finetuned.trec"
    command = f"eval {runs} qrels.txt -m RR@10,nDCG@10 --baseline good --quiet"
    assert run(command.split()) == 0
    table, _, _ = terminal.getvalue().partition("differs from")
    lines = table.splitlines()
    assert max(map(len, lines)) <= 80
    assert ["run", "measure", "detectable"] in [line.split() for line in lines]
    assert sum(line.split()[:2] == ["minilm-finetuned", "RR@10"] for line in lines) == 2


@pytest.mark.peer
def test_the_lines_are_those_of_ir_measures_own_command(shared_data, capsys):
    folder = shared_data / "marco-dl19"
    files = [folder / "nist" / "qrels.dl19-passage.txt", folder / "runs" / "bm25.trec.gz"]
    measures = "nDCG@10 AP(rel=2)@100 RR(rel=2)@10 R@100 P@5 Judged@10 NumQ NumRet"
    command = [sys.executable, "-W", "ignore", "-m", "ir_measures", *map(str, files), measures]
    expected = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert run(["eval", *map(str, files), "-m", measures, "--quiet"]) == 0
    assert capsys.readouterr().out == expected


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("name", ["bad", "bad.trec", "out/bad.trec"])
def test_a_baseline_by_the_name_in_the_table(name, capsys):
    Path("out").mkdir()
    Path("bad.trec").rename("out/bad.trec")
    Path("bad").mkdir()  # an index of that name is no run
    command = ["eval", "good.trec", "out/bad.trec", "qrels.txt", "-m", "RR@10", "-o", "table"]
    assert run([*command, "--quiet", "--baseline", name]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "run     RR@10\ngood  *0.8333\nbad    0.3333\n*: best run by each measure\n"
    )
    assert "\u2020 differs from bad (p < 0.05; paired t test)\n" in out  # one test: no correction


@pytest.mark.usefixtures("files")
def test_questions_of_dpr_json_may_come_from_topics(capsys):
    Path("answers.jsonl").write_text(
        '{"_id": "q1", "answers": ["the house"]}\n'
        '{"_id": "q2", "answers": ["boat", "ship"]}\n'
        '{"_id": "q3", "answers": ["star falls"]}\n'
    )
    command = ["eval", "good.trec", "--answers", "answers.jsonl", "--corpus", "corpus.jsonl"]
    command += ["--quiet", "--write-dpr-json", "d.json"]
    assert run(command) == 2
    assert "lacks the text of 3 of 3 questions ('q1', 'q2', 'q3')" in capsys.readouterr().err
    assert run([*command, "--topics", "queries.tsv"]) == 0
    entries = json.loads(Path("d.json").read_text())
    assert [entry["question"] for entry in entries] == list(QUERIES.values())


def test_all_readers_see_the_same_queries_in_a_run(files, capfd):
    """Columns are separated by white space, Unicode's included: no id holds any of it."""
    run_file = (
        "q1 Q0 d1 1 2.5 t\nq1 Q0 d2 2 2.4 t\n\u00a0q2\u2003Q0 d1 1 2.5 t\n\x1cq2 Q0 d2 2 2.4 t\n"
    )
    (files / "run.trec").write_text(run_file)
    (files / "qrels").write_text("q1 0 d1 1\nq2 0 d1 1\n")
    evaluate = ["eval", "run.trec", "qrels", "-m", "RR@10", "-q", "-o", "tsv"]
    mine = ["mine-negatives", "--topics", "queries.tsv", "--qrels", "qrels", "--run", "run.trec"]
    mine += ["--corpus", "corpus.jsonl", "--output", "mined.jsonl", "--skip-missing"]
    assert run(evaluate) == 0
    assert "q2\tRR@10\t1.0000" in capfd.readouterr().out
    assert run(mine) == 0
    negatives = {}
    for line in (files / "mined.jsonl").read_text().splitlines():
        example = json.loads(line)
        passages = example["negative_passages"]
        negatives[example["query_id"]] = [passage["docid"] for passage in passages]
    assert negatives == {"q1": ["d2"], "q2": ["d2"]}


def test_markdown_escapes_names(files, capfd):
    evil = "<img src=x onerror=alert(1)>|[a](b)`.trec"
    for name in (evil, "b.trec"):
        (files / name).write_text("q1 Q0 d1 1 2.5 t\n")
    assert run(["eval", evil, "b.trec", "qrels.txt", "-o", "markdown"]) == 0
    out = capfd.readouterr().out
    assert "<" not in out
    assert "&lt;img src=x onerror=alert(1)>\\|\\[a\\](b)\\`" in out


def test_control_characters_and_endless_ids_do_not_reach_the_terminal(files, capfd):
    docid = "\x1b]0;owned\x07\x1b[2J" + "d" * 4096
    (files / "evil.trec").write_text(f"q1 Q0 {docid} 1 1.0 t\n" * 2)
    assert run(["eval", "evil.trec", "qrels.txt"]) == 1
    err = capfd.readouterr().err
    assert "\x1b" not in err
    assert "\\x1b" in err
    assert all(len(line) < 2000 for line in err.splitlines())


@pytest.mark.usefixtures("files")
def test_markdown_shows_the_level_of_significance_as_it_is(capsys):
    compared = ["--baseline", "bad.trec", "-m", "RR@10", "--quiet"]
    assert run(["eval", "good.trec", "bad.trec", "qrels.txt", "-o", "markdown", *compared]) == 0
    assert "(p < 0.05; paired t test)" in capsys.readouterr().out


@pytest.mark.usefixtures("files")
def test_latex_marks_what_differs_from_the_baseline(capsys):
    compared = ["--baseline", "bad.trec", "-m", "RR@10", "--quiet", "-p", "2"]
    assert run(["eval", "good.trec", "bad.trec", "qrels.txt", "--format", "latex", *compared]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.startswith("% in the preamble: \\usepackage{booktabs}\n")
    assert "(two-sided paired t test; p $<$ 0.05)." in captured.out


@pytest.mark.parametrize("name", ["latx", "LaTeX", "latex ", "tex", ""])
@pytest.mark.usefixtures("files")
def test_an_unknown_format_lists_all(name, capsys):
    assert run(["eval", "good.trec", "qrels.txt", "--format", name]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    for output_format in OutputFormat:
        assert output_format.value in captured.err.replace("trec-eval", "trec_eval")
