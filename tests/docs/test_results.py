"""The script behind docs/results.md: cells, check, and a page that shows what results.csv says."""

import csv
import gzip
import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from denserk.commands.retrieve import index, search
from tests.support.toy import QUERIES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/results.md"
RESULTS = ROOT / "docs/results.csv"


@pytest.fixture
def results(tmp_path, toy, monkeypatch):
    """The script for the toy collection alone, which is prepared and searched; runs; its page."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    spec = importlib.util.spec_from_file_location("results", ROOT / "docs/results.py")
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    source = tmp_path / "data" / "toy"
    (source / "qrels").mkdir(parents=True)
    source.joinpath("corpus.jsonl.gz").write_bytes(
        gzip.compress((toy / "corpus.jsonl").read_bytes())
    )
    lines = (json.dumps({"_id": qid, "text": text}) + "\n" for qid, text in QUERIES.items())
    (source / "queries.jsonl").write_text("".join(lines))
    shutil.copy(toy / "qrels.txt", source / "qrels" / "dev.tsv")
    collection = script.Collection("toy", ("toy",), "dev")
    page = tmp_path / "results.md"
    places = [
        f"{mark}\n<!-- to here -->\n" for mark in (script.UNTRAINED_MARK, script.TRAINED_MARK)
    ]
    page.write_text("# Results\n" + "\n".join(places))
    runs = tmp_path / "runs"
    runs.mkdir()
    monkeypatch.setattr(script, "COLLECTIONS", (collection,))
    monkeypatch.setattr(script, "PAGE", page)
    monkeypatch.setattr(script, "RESULTS", tmp_path / "results.csv")
    script.prepare(tmp_path / "data", runs)
    folder = runs / "toy"
    index(corpus=folder / "corpus.jsonl.gz", type="bm25", output=folder / "bm25")
    search(
        index=folder / "bm25",
        topics=folder / "queries.jsonl",
        qrels=folder / "qrels.txt",
        output=folder / "bm25.trec",
        hits=10,
    )
    (folder / "bm25.commands").write_text("bm25 () {}\n")
    script.write(runs)
    return script, runs, page


def test_cells_are_compared_with_their_runs(results, capsys):
    script, runs, page = results
    assert script.check(runs) == 0
    assert "toy" in page.read_text()
    assert "equal bytes" in capsys.readouterr().out
    run = runs / "toy" / "bm25.trec"
    lines = run.read_text().splitlines(keepends=True)
    run.write_text("".join(reversed(lines)))  # the same scores in another order
    assert script.check(runs) == 0
    assert "within" in capsys.readouterr().out
    run.write_text("".join(line.replace(" d", " other-d") for line in lines))
    assert script.check(runs) == 1
    assert "differs by" in capsys.readouterr().out
    run.unlink()
    script.write(runs)  # keeps the cell
    assert script.check(runs) == 1
    output = capsys.readouterr()
    assert "absent: bash docs/results.sh" in output.out
    assert "checked 0 of 1 cells" in output.out
    assert "has no run of a cell of results.csv" in output.err


def test_equal_bytes_have_an_equal_figure(results, capsys):
    script, runs, _ = results
    with script.RESULTS.open(newline="") as file:
        (record,) = csv.DictReader(file)
    changed = script.RESULTS.read_text().replace(f",{record['low']},", ",0.1234,")
    script.RESULTS.write_text(changed)
    assert script.check(runs) == 1
    assert "of equal bytes" in capsys.readouterr().out


def test_cells_that_are_missing_or_that_nothing_makes_are_named(results, capsys):
    script, runs, _ = results
    script.RESULTS.write_text(script.RESULTS.read_text().replace("toy,bm25", "toy,other"))
    assert script.check(runs) == 2
    output = capsys.readouterr().out
    assert "in results.csv, but nothing makes it" in output
    assert "not in results.csv: " in output


def test_a_run_of_unknown_commands_is_left_out(results, capsys):
    script, runs, _ = results
    written = script.RESULTS.read_text()
    (runs / "toy" / "bm25.commands").unlink()
    script.write(runs)  # results.csv has this run
    assert "left out" not in capsys.readouterr().out
    run = runs / "toy" / "bm25.trec"
    run.write_text(run.read_text().replace("denserk", "other"))
    script.write(runs)
    assert "has no bm25.commands" in capsys.readouterr().out
    assert script.RESULTS.read_text() == written


def test_cells_of_different_data_are_not_put_into_one_table(results):
    script, runs, page = results
    with script.RESULTS.open("a") as file:
        file.write("toy,minilm,0.5000,0.4000,0.6000,run,other data,command\n")
    shown = page.read_text()
    with pytest.raises(SystemExit, match="cells of toy are of different passages, queries or"):
        script.write(runs)
    assert page.read_text() == shown


def test_another_draw_is_rejected(results, tmp_path, monkeypatch):
    script, runs, _ = results
    script.prepare(tmp_path / "data", runs)  # the same draw
    monkeypatch.setattr(script, "MOST_QUERIES", 1)
    with pytest.raises(SystemExit, match=r"toy/qrels.txt is not what is drawn from"):
        script.prepare(tmp_path / "data", runs)


def test_a_file_in_place_of_a_link_stays(results, tmp_path):
    script, runs, _ = results
    queries = runs / "toy" / "queries.jsonl"
    queries.unlink()
    queries.write_text("a person's")
    with pytest.raises(SystemExit, match=r"queries.jsonl is no link: move it away"):
        script.prepare(tmp_path / "data", runs)
    assert queries.read_text() == "a person's"


def test_two_files_of_queries_are_rejected(results, tmp_path):
    script, runs, _ = results
    (tmp_path / "data" / "toy" / "queries.jsonl.gz").touch()
    with pytest.raises(SystemExit, match=r"found queries.jsonl, queries.jsonl.gz"):
        script.prepare(tmp_path / "data", runs)


def test_a_name_that_is_no_cell_is_not_executed(tmp_path):
    """The script in a copy that installs nothing."""
    for name in ("results.sh", "results.py", "pages.py"):
        (tmp_path / "docs").mkdir(exist_ok=True)
        shutil.copy(ROOT / "docs" / name, tmp_path / "docs")
    (tmp_path / "tests").mkdir()
    environment = f"repository={tmp_path}\nenvironment() {{ :; }}\n"
    (tmp_path / "tests" / "environment.sh").write_text(environment)
    options = ["--data", "data", "--runs", "runs"]
    command = ["bash", str(tmp_path / "docs/results.sh"), *options, "squad/printenv"]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert process.returncode == 2
    assert "error: squad/printenv is none of squad/bm25 squad/minilm" in process.stderr
    assert not (tmp_path / "runs").exists()


def test_data_without_a_collection_are_rejected(results, tmp_path):
    script, runs, _ = results
    with pytest.raises(SystemExit, match="has no toy: folders in BEIR layout are expected"):
        script.prepare(tmp_path / "none", runs)


def test_a_changed_collection_is_named(results, capsys):
    script, runs, _ = results
    (runs / "toy" / "qrels.txt").write_text("q1 0 d1 1\n")
    assert script.check(runs) == 1
    assert "other passages, queries or qrels" in capsys.readouterr().out


def test_the_page_shows_results_csv(results):
    script, *_ = results
    with RESULTS.open(newline="") as handle:
        records = [*csv.DictReader(handle)]
    pages = importlib.import_module("pages")
    for mark, lines in script.tables(records).items():
        assert pages.table_in(PAGE, mark) == lines
