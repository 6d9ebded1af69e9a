"""The scripts behind the published rows of docs/results.md: what they write, compare and reject."""

import csv
import importlib.util
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MARKS = "before\n<!-- from docs/rows.sh -->\n<!-- to here -->\nafter\n"


@pytest.fixture
def rows(monkeypatch):
    """The script, as a module."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    spec = importlib.util.spec_from_file_location("rows", ROOT / "docs/rows.py")
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.fixture
def one_row(rows, tmp_path, monkeypatch):
    """The script with one row, nDCG@10 of 1 by a run that is there; the other row has no run."""
    Path("commands").mkdir()
    Path("commands/toy.trec").write_text("denserk search\n")
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
        assert after == "<!-- to here -->\nafter\n"
        assert "| toy | Toy |" in table
        assert "| 1.0000 | 1.00000 |" in table


def test_a_figure_outside_its_tolerance_is_not_written(one_row, capsys):
    Path("toy.trec").write_text("q1 Q0 d2 1 3 t\nq1 Q0 d1 2 2 t\n")
    assert one_row.write() == 1
    assert "OUTSIDE the tolerance of 0.0001" in capsys.readouterr().out
    assert one_row.recorded() == []
    assert one_row.README.read_text() == MARKS


def test_a_kept_figure_that_is_no_longer_near_the_published_one_is_not_written(
    one_row, monkeypatch
):
    one_row.write()
    written = one_row.README.read_text()
    Path("toy.trec").unlink()
    (row, _) = one_row.all_rows()
    monkeypatch.setattr(one_row, "all_rows", lambda: iter([row._replace(published="0.5000")]))
    assert one_row.write() == 1
    assert one_row.README.read_text() == written


def test_runs_are_compared_with_what_was_written(one_row, capsys):
    one_row.write()
    capsys.readouterr()
    assert one_row.check() == 0
    output = capsys.readouterr().out
    assert "a run of equal bytes" in output
    assert output.endswith("checked 1 of 1 rows of rows.csv\n")
    Path("toy.trec").write_text("q1 Q0 d1 1 9 t\n")  # other bytes, the same figure
    assert one_row.check() == 0
    assert "equal bytes" not in capsys.readouterr().out
    Path("toy.trec").write_text("q1 Q0 d2 1 9 t\n")
    assert one_row.check() == 1
    assert "but 1.00000 in rows.csv" in capsys.readouterr().out


def test_a_check_without_runs_fails(one_row, capsys):
    one_row.write()
    Path("toy.trec").unlink()
    capsys.readouterr()
    assert one_row.check() == 1
    output = capsys.readouterr()
    assert "not here: toy.trec" in output.out
    assert "checked 0 of 1 rows" in output.out
    assert "no run is here" in output.err
    one_row.write()  # keeps the row
    assert [record["system"] for record in one_row.recorded()] == ["toy"]


def test_missing_qrels_are_named(one_row, capsys):
    Path("qrels.txt").unlink()
    one_row.write()
    assert "not here: qrels.txt" in capsys.readouterr().out


def test_equal_bytes_have_an_equal_figure(one_row, capsys):
    one_row.write()
    one_row.ROWS.write_text(one_row.ROWS.read_text().replace("1.00000", "0.99999"))
    assert one_row.check() == 1
    assert "a run of equal bytes, but 0.99999 in rows.csv" in capsys.readouterr().out


def test_rows_that_are_missing_or_that_nothing_measures_are_named(one_row, capsys):
    one_row.write()
    one_row.ROWS.write_text(one_row.ROWS.read_text().replace(",toy,", ",other,"))
    capsys.readouterr()
    assert one_row.check() == 2
    output = capsys.readouterr().out
    assert "not in rows.csv: toy.trec" in output
    assert "in rows.csv, but nothing measures it" in output


def test_a_run_of_another_command_is_rejected(one_row):
    one_row.write()
    Path("commands/toy.trec").write_text("denserk search --hits 5\n")
    for task in (one_row.write, one_row.print_missing_commands):
        with pytest.raises(SystemExit, match=r"toy.trec was made by denserk search --hits 5\n"):
            task()
    Path("commands/toy.trec").unlink()
    assert one_row.write() == 0  # rows.csv has the command of a run of equal bytes
    Path("toy.trec").write_text("q1 Q0 d1 1 9 t\n")
    with pytest.raises(SystemExit, match=r"toy.trec has no commands/toy.trec"):
        one_row.write()


def test_a_page_without_marks_is_not_overwritten(one_row):
    one_row.README.write_text("before\n<!-- from docs/rows.sh -->\nafter\n")
    with pytest.raises(SystemExit, match="needs one line <!-- from docs/rows"):
        one_row.write()
    assert one_row.README.read_text().endswith("after\n")
    assert one_row.RESULTS_PAGE.read_text() == MARKS
    assert one_row.recorded() == []


def test_commands_of_absent_runs_are_printed_once(rows):
    commands = [command for _, command in rows.missing_commands()]
    assert len(commands) == len(set(commands)) == 4  # MiniLM and BM25 on two collections
    assert not any("mpnet" in command or "marco-dl19" in command for command in commands)
    rows.MPNET_FOLDER.mkdir(parents=True)
    assert len([*rows.missing_commands()]) == 6
    run, command = next(item for item in rows.missing_commands() if "lucene" in item[0])
    for folder, text in (("lucene", ""), ("commands/lucene", command)):
        Path(folder).mkdir(parents=True)
        Path(folder, Path(run).name).write_text(text)
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
    pages = importlib.import_module("pages")
    for page, section in (
        (rows.RESULTS_PAGE, rows.results_section),
        (rows.README, rows.readme_table),
    ):
        assert pages.table_in(page, rows.START) == section(records)


def test_every_row_of_rows_csv_reproduces_a_published_figure(rows):
    with (ROOT / "docs/rows.csv").open(newline="") as file:
        records = [*csv.DictReader(file)]
    row_by_key = {row.key: row for row in rows.all_rows()}
    assert records
    for record in records:
        row = row_by_key[rows.key_of(record)]
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
        (["--data", "beir", "--check"], "rows is no folder: --check needs the runs"),
    ],
)
def test_wrong_usage_ends_with_status_2(arguments, message):
    write_empty_collections()
    command = ["bash", str(ROOT / "docs/rows.sh"), *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert message in process.stderr
    assert not Path("rows").exists()


def write_empty_collections():
    """Write what rows.sh looks for in DATA, as `beir`."""
    for collection in ("scifact", "nfcorpus"):
        Path("beir", collection, "qrels").mkdir(parents=True)
        Path("beir", collection, "qrels", "test.tsv").touch()


@pytest.mark.parametrize("name", ["datasets", "models/all-mpnet-base-v2"])
def test_a_folder_in_place_of_a_link_stays(name):
    write_empty_collections()
    Path("rows", name).mkdir(parents=True)
    command = ["bash", str(ROOT / "docs/rows.sh"), "--data", "beir"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert f"rows/{name} is a folder or a file; a link is put there" in process.stderr
    assert [*Path("rows", name).iterdir()] == []
