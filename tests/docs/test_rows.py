"""The scripts behind the published rows of docs/results.md: what they write, compare and reject."""

import csv
import importlib.util
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MARKS = "before\n<!-- from docs/rows.sh -->\n<!-- end of rows -->\nafter\n"


@pytest.fixture
def rows():
    """The script, as a module."""
    spec = importlib.util.spec_from_file_location("rows", ROOT / "docs/rows.py")
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.fixture
def one_row(rows, tmp_path, monkeypatch):
    """The script with one row, nDCG@10 of 1 by a run that is there; the other row has no run."""
    Path("toy.trec").write_text("q1 Q0 d1 1 3 t\nq1 Q0 d2 2 2 t\n")
    Path("qrels.txt").write_text("q1 0 d1 1\n")
    row = rows.Row(
        source="Anserini",
        system="toy",
        collection="Toy",
        measure="nDCG@10",
        published="1.0000",
        tolerance="0.0001",
        command="denserk search",
        run="toy.trec",
        qrels="qrels.txt",
    )
    absent = row._replace(system="absent", run="absent.trec", command="denserk fuse")
    monkeypatch.setattr(rows, "all_rows", lambda: iter([row, absent]))
    for name in ("RESULTS_PAGE", "README"):
        page = tmp_path / f"{name}.md"
        page.write_text(MARKS)
        monkeypatch.setattr(rows, name, page)
    monkeypatch.setattr(rows, "ROWS", tmp_path / "rows.csv")
    return rows


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_measured_rows_are_written(one_row, capsys):
    assert one_row.write() == 0
    (record,) = one_row.recorded()  # none of a run that is not there
    assert record["denserk"] == "1.00000"
    assert record["run_sha256"] == one_row.file_sha256(Path("toy.trec"))
    assert "not here: absent.trec" in capsys.readouterr().out
    for page in (one_row.RESULTS_PAGE, one_row.README):
        before, table, *_, after = page.read_text().split("\n\n")
        assert before == "before\n<!-- from docs/rows.sh -->"
        assert after == "<!-- end of rows -->\nafter\n"
        assert "| toy | Toy |" in table
        assert "| 1.0000 | 1.00000 |" in table


def test_a_figure_outside_its_tolerance_counts(one_row, capsys):
    Path("toy.trec").write_text("q1 Q0 d2 1 3 t\nq1 Q0 d1 2 2 t\n")
    assert one_row.write() == 1
    assert "OUTSIDE the tolerance of 0.0001" in capsys.readouterr().out
    assert one_row.check() == 1


def test_runs_are_compared_with_what_was_written(one_row, capsys):
    one_row.write()
    capsys.readouterr()
    assert one_row.check() == 0
    assert "a run of equal bytes" in capsys.readouterr().out
    Path("toy.trec").write_text("q1 Q0 d1 1 9 t\n")  # other bytes, the same figure
    assert one_row.check() == 0
    assert "equal bytes" not in capsys.readouterr().out
    Path("toy.trec").write_text("q1 Q0 d2 1 9 t\n")
    assert one_row.check() == 1
    assert "but 1.00000 in rows.csv" in capsys.readouterr().out
    Path("toy.trec").unlink()
    assert one_row.check() == 0
    assert "not here: toy.trec" in capsys.readouterr().out
    one_row.write()  # keeps the row
    assert [record["system"] for record in one_row.recorded()] == ["toy"]


def test_commands_of_absent_runs_are_printed_once(rows):
    commands = [*rows.missing_commands()]
    assert len(commands) == len(set(commands)) == 4  # MiniLM and BM25 on two collections
    assert not any("mpnet" in command or "marco-dl19" in command for command in commands)
    rows.MPNET_FOLDER.mkdir(parents=True)
    assert len([*rows.missing_commands()]) == 6
    Path("lucene").mkdir()
    Path("lucene/scifact.trec").touch()
    assert len([*rows.missing_commands()]) == 5


def test_other_weights_are_rejected(rows, capsys):
    assert rows.check_weights() == 1
    assert "has no model.safetensors" in capsys.readouterr().err
    rows.MPNET_FOLDER.mkdir(parents=True)
    (rows.MPNET_FOLDER / "model.safetensors").write_bytes(b"other")
    assert rows.check_weights() == 1
    assert "is not the published file" in capsys.readouterr().err


def test_the_pages_show_rows_csv(rows):
    records = rows.recorded()
    for page, section in (
        (rows.RESULTS_PAGE, rows.results_section),
        (rows.README, rows.readme_table),
    ):
        shown = page.read_text("utf-8").partition(rows.START)[2].partition(rows.END)[0]
        assert shown.strip() == "\n".join(section(records))


def test_every_row_of_rows_csv_reproduces_a_published_figure(rows):
    with (ROOT / "docs/rows.csv").open(newline="") as file:
        records = [*csv.DictReader(file)]
    row_by_key = {(row.system, row.collection, row.measure): row for row in rows.all_rows()}
    assert records
    for record in records:
        row = row_by_key[rows.key(record)]
        assert record["published"] == row.published
        assert record["tolerance"] == row.tolerance
        assert record["command"] == row.command
        distance = abs(float(record["denserk"]) - float(record["published"]))
        assert distance <= float(row.tolerance)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--data is needed"),
        (["--data"], "--data needs a folder"),
        (["--dta", "data"], "--dta is none of --data, --mpnet, --runs and --check"),
        (["--data", "data"], "has no scifact/qrels/test.tsv"),
    ],
)
def test_wrong_usage_ends_with_status_2(arguments, message):
    command = ["bash", str(ROOT / "docs/rows.sh"), *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert message in process.stderr
    assert not Path("rows").exists()
