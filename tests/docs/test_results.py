"""The script behind docs/results.md: cells, check, and a page that shows what results.csv says."""

import csv
import gzip
import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from denserk.commands.retrieve import index, search
from tests.support.toy import QUERIES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/results.md"
CELLS = ROOT / "docs/results.csv"


@pytest.fixture
def results(tmp_path, toy, monkeypatch):
    """The script for the toy collection alone, which is prepared and searched; runs; its page."""
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
    places = []
    for name in ("untrained", "trained"):
        places.append(f"{script.START.format(name)}\n{script.END}\n")
    page.write_text("# Results\n" + "\n".join(places))
    runs = tmp_path / "runs"
    runs.mkdir()
    monkeypatch.setattr(script, "COLLECTIONS", (collection,))
    monkeypatch.setattr(script, "PAGE", page)
    monkeypatch.setattr(script, "CELLS", tmp_path / "results.csv")
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
    assert script.check(runs) == 0
    assert "absent: bash docs/results.sh" in capsys.readouterr().out


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
    with CELLS.open(newline="") as handle:
        rows = [*csv.DictReader(handle)]
    page = PAGE.read_text()
    for name, lines in script.tables(rows).items():
        shown = page.partition(script.START.format(name))[2].partition(script.END)[0]
        assert shown.strip().splitlines() == lines
