import json

import pytest

from denserk.commands.app import run
from denserk.io.manifest import Kind, Manifest, describe_file
from denserk.io.pool import HEADER
from denserk.io.qrels import read_qrels_map

EVAL = ["eval", "old.trec", "new.trec", "qrels.txt", "-m", "P@2 RR", "--unjudged", "bounds"]


@pytest.fixture
def files(toy, monkeypatch):
    monkeypatch.chdir(toy)
    (toy / "qrels.txt").write_text("q1 0 d3 1\nq1 0 d4 0\nq2 0 d1 1\n")
    (toy / "old.trec").write_text("q1 Q0 d3 1 3 t\nq1 Q0 d2 2 2 t\nq2 Q0 d5 1 3 t\n")
    (toy / "new.trec").write_text("q1 Q0 d3 1 3 t\nq1 Q0 d4 2 2 t\nq2 Q0 d1 1 3 t\n")
    return toy


@pytest.mark.usefixtures("files")
def test_lines_have_bounds_and_signs(capsys):
    assert run([*EVAL, "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "old\tP@2:least\t0.2500" in lines
    assert "old\tP@2:greatest\t0.7500" in lines
    assert "new\tP@2:difference-least\t-0.2500" in lines
    assert "new\tP@2:difference-greatest\t0.2500" in lines
    assert "new\tP@2:sign\topen" in lines
    assert "new\tRR:sign\tdecided: not lower" in lines


@pytest.mark.usefixtures("files")
def test_the_table_says_what_is_assumed(capsys):
    command = ["eval", "old.trec", "new.trec", "qrels.txt", "--unjudged", "bounds"]
    assert run([*command, "--format", "table", "--to-judge", "5", "--quiet"]) == 0
    table = capsys.readouterr().out
    assert "nDCG@10, R@100: assuming that no passage is relevant" in table
    assert "RR@10: whatever other passages are relevant" in table
    assert "to judge: 2 of 2 unjudged hits" in table


@pytest.mark.usefixtures("files")
def test_latex_has_a_table_of_bounds_and_one_of_differences(capsys):
    assert run([*EVAL, "--format", "latex", "--quiet"]) == 0
    results, bounds, differences = capsys.readouterr().out.split("\n\n")
    assert r"\label{tab:results}" in results
    assert r"\caption{Bounds over unjudged hits. least, greatest: over all grades" in bounds
    assert r"old & P@2 & 0.2500 & 0.2500 & 0.7500 & 2 \\" in bounds
    assert r"\caption{Bounds of differences." in differences
    assert r"new & old & P@2 &" in differences


@pytest.mark.usefixtures("files")
def test_json_has_the_bounds_of_queries_and_what_to_judge(capsys):
    assert run([*EVAL, "-o", "json", "-q", "--to-judge", "1", "--quiet"]) == 0
    unjudged = json.loads(capsys.readouterr().out)["unjudged"]
    assert unjudged["highest_grade"] == 1
    assert unjudged["hits"] == {"P@2": 2, "RR": 2}
    new = unjudged["differences"]["new"]
    assert new["baseline"] == "old"
    assert new["measures"]["P@2"]["queries"]["q2"] == {"least": 0.0, "greatest": 0.5, "exact": True}
    assert unjudged["to_judge"]["sufficient"] == 2
    (pair,) = unjudged["to_judge"]["pairs"]
    assert pair.keys() == {"qid", "docid"}


@pytest.mark.usefixtures("files")
def test_a_query_has_lines_of_its_own(capsys):
    assert run([*EVAL, "-q", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "new\tq2\tP@2:difference-least\t0.0000" in lines
    assert "new\tall\tP@2:difference-least\t-0.2500" in lines


@pytest.mark.usefixtures("files")
def test_each_line_of_queries_has_a_query_or_all(capsys):
    options = ["-q", "--to-judge", "1", "--quiet"]
    assert run([*EVAL, *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "new\tall\tP@2:sign\topen" in lines
    assert {len(line.split("\t")) for line in lines} == {4}
    assert run([*EVAL, *options, "-n"]) == 0
    assert "sign" not in capsys.readouterr().out


@pytest.mark.usefixtures("files")
def test_lines_of_one_run_have_no_name(capsys):
    command = ["eval", "old.trec", "qrels.txt", "-m", "P@2", "--unjudged", "bounds", "--quiet"]
    assert run(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["P@2\t0.2500", "P@2:least\t0.2500", "P@2:greatest\t0.7500"]


@pytest.mark.usefixtures("files")
def test_lines_say_how_many_hits_to_judge(capsys):
    assert run([*EVAL, "--to-judge", "1", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "new\tP@2:to-judge\t1" in lines
    assert "new\tP@2:to-judge-sufficient\t2" in lines


def test_a_pool_has_the_texts_that_runs_record(files):
    made_from = {"topics": {"name": str(files / "queries.tsv")}}
    describe_file(files / "new.trec", Manifest(Kind.RUN, complete=True, made_from=made_from))
    assert run([*EVAL, "--to-judge", "9", "--output", "pool.tsv", "--quiet"]) == 0
    _, *rows = (files / "pool.tsv").read_text().splitlines()
    assert all(row.split("\t")[3] for row in rows)


def test_a_decided_sign_leaves_no_hit_to_judge(files, caplog):
    command = ["eval", "old.trec", "new.trec", "qrels.txt", "-m", "RR", "--unjudged", "bounds"]
    assert run([*command, "--to-judge", "9", "--output", "pool.tsv"]) == 0
    assert (files / "pool.tsv").read_text().splitlines() == ["\t".join(HEADER)]
    assert "pool.tsv: no hits to judge, as the sign is decided" in caplog.messages


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("format", ["table", "tsv", "json", "markdown"])
def test_judged_alone_has_no_difference(format, capsys):
    command = ["eval", "old.trec", "new.trec", "qrels.txt", "-m", "Judged@2"]
    options = ["--unjudged", "bounds", "--report", "report", "--format", format, "--quiet"]
    assert run([*command, *options]) == 0
    output = capsys.readouterr().out
    assert "Judged@2" in output
    assert "decided" not in output


def test_the_report_lists_only_queries_that_judgments_move(files):
    (files / "qrels.txt").write_text("q1 0 d3 1\nq1 0 d4 0\nq2 0 d1 1\nq2 0 d5 0\n")
    command = ["eval", "old.trec", "new.trec", "qrels.txt", "-m", "P@2", "--unjudged", "bounds"]
    assert run([*command, "--report", "report", "--quiet"]) == 0
    page = (files / "report/index.html").read_text()
    section = page.split('<section id="unjudged">')[1].split("</section>")[0]
    assert '<th scope="row">q1</th>' in section
    assert '<th scope="row">q2</th>' not in section


def test_a_pool_with_grades_decides(files, capsys):
    pool = ["--to-judge", "9", "--output", "pool.tsv", "--topics", "queries.tsv"]
    assert run([*EVAL, *pool, "--corpus", "corpus.jsonl", "--quiet"]) == 0
    header, *rows = (files / "pool.tsv").read_text().splitlines()
    assert header == "\t".join(HEADER)
    filled = []
    for row in rows:
        qid, docid, grade, query, text = row.split("\t")
        assert grade == ""
        assert query
        assert text
        filled.append("\t".join((qid, docid, "0", query, text)))
    (files / "pool.tsv").write_text("\n".join([header, *filled]) + "\n")
    assert run(["convert", "pool.tsv", "judged.txt", "--quiet"]) == 0
    more = (files / "qrels.txt").read_text() + (files / "judged.txt").read_text()
    (files / "more.txt").write_text(more)
    capsys.readouterr()
    command = ["eval", "old.trec", "new.trec", "more.txt", "-m", "P@2", "--unjudged", "bounds"]
    assert run([*command, "--quiet"]) == 0
    assert "new\tP@2:sign\tdecided: higher" in capsys.readouterr().out


def test_eval_reads_a_pool_as_qrels_without_the_rows_that_nobody_filled(files, caplog, capsys):
    rows = "q1\td3\t1\ta query\ta text\nq1\td2\t\ta query\ta text\n"
    (files / "pool.tsv").write_text("\t".join(HEADER) + "\n" + rows)
    assert read_qrels_map(files / "pool.tsv") == {"q1": {"d3": 1}}
    assert run(["eval", "pool.tsv", "old.trec", "-m", "P@2"]) == 0
    assert capsys.readouterr().out == "P@2\t0.5000\n"
    assert "pool.tsv: rows without a grade, which are left out: 1" in caplog.messages


@pytest.mark.usefixtures("files")
def test_a_pool_without_grades_is_an_error(files, capsys):
    (files / "pool.tsv").write_text("\t".join(HEADER) + "\nq1\td3\t\ta\tb\n")
    assert run(["eval", "pool.tsv", "old.trec"]) == 1
    assert "1 hits to judge, none with a grade" in capsys.readouterr().err


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--unjudged", "bounds", "-m", "Bpref"], "no bounds over unjudged hits"),
        (["--to-judge", "3"], "--to-judge needs --unjudged"),
        (["--unjudged", "bounds", "--output", "pool.tsv"], "--output needs --to-judge"),
        (["--unjudged", "bounds", "--explain", "q1"], "exclude each other"),
        (
            ["--unjudged", "bounds", "--format", "trec_eval", "-m", "P@2"],
            "--format trec_eval has no lines",
        ),
        (
            ["--unjudged", "bounds", "--format", "trec_eval"],
            "--format trec_eval has no lines",
        ),
        (
            ["--unjudged", "bounds", "--to-judge", "3", "-m", "Judged@2 P@2"],
            "Judged@2 depends on no grade",
        ),
        (["--unjudged", "least"], "--unjudged"),
    ],
)
def test_wrong_options(arguments, message, capsys):
    assert run(["eval", "old.trec", "new.trec", "qrels.txt", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_an_existing_pool_is_not_replaced(files, capsys):
    (files / "pool.tsv").write_text("work of an annotator")
    assert run([*EVAL, "--to-judge", "3", "--output", "pool.tsv"]) == 2
    assert (files / "pool.tsv").read_text() == "work of an annotator"
    assert "pool.tsv" in capsys.readouterr().err


@pytest.mark.usefixtures("files")
def test_min_values_may_look_deeper_than_the_bounded_measures(capsys):
    command = ["eval", "old.trec", "qrels.txt", "-m", "P@1", "--unjudged", "bounds"]
    assert run([*command, "--min", "NumRet=3", "--min", "R@5=0.5", "--quiet"]) == 0
    assert "R@5\t0.5000" in capsys.readouterr().out


def test_the_report_shows_the_bounds(files):
    assert run([*EVAL, "--report", "report", "--quiet"]) == 0
    page = (files / "report/index.html").read_text()
    assert "Unjudged hits by query" in page
    assert "decided: not lower" in page
