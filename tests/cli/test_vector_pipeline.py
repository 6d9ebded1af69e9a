"""`encode` into `index` through JSON lines: what made the vectors is not lost on the way."""

import io
import json
import sys

import pytest

from denserk.cli.app import run
from denserk.formats.manifest import Kind, read_manifest
from tests.conftest import PASSAGES, QUERIES


@pytest.fixture
def lines(toy, tiny, tmp_path):
    """The JSON lines of the toy collection, as `encode --output -` prints them."""
    output = tmp_path / "v.jsonl"
    command = ["encode", "--model", str(tiny()), "--corpus", str(toy / "corpus.jsonl")]
    assert run([*command, "--output", str(output), "--output-format", "jsonl"]) == 0
    return output


def test_each_record_is_one_that_pyserini_reads(lines):
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [record["id"] for record in records] == [*PASSAGES]
    assert [list(record)[:3] for record in records] == [["id", "contents", "vector"]] * 6
    assert [len(record) for record in records] == [4, 3, 3, 3, 3, 3]
    carried = records[0]["denserk_manifest"]
    assert carried["made_from"]["model"]["dimension"] == len(records[0]["vector"])


@pytest.mark.parametrize("piped", [True, False])
def test_search_knows_the_model(lines, toy, tiny, tmp_path, monkeypatch, piped):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.read_bytes())))
    source = "-" if piped else str(lines)
    assert run(["index", "--input", source, "--output", str(tmp_path / "idx")]) == 0
    manifest = read_manifest(tmp_path / "idx", Kind.INDEX)
    assert manifest.made_from["model"]["name"] == str(tiny())
    assert manifest.contents["count"] == 6
    search = ["search", "--index", str(tmp_path / "idx"), "--topics", str(toy / "queries.tsv")]
    assert run([*search, "--output", str(tmp_path / "run.trec")]) == 0
    assert len((tmp_path / "run.trec").read_text().splitlines()) == 6 * len(QUERIES)


def test_convert_keeps_it(lines, tiny, tmp_path):
    folder, again = tmp_path / "folder", tmp_path / "again.jsonl"
    assert run(["convert", str(lines), str(folder), "--to", "npy"]) == 0
    assert read_manifest(folder, Kind.VECTORS).made_from["model"]["name"] == str(tiny())
    assert run(["convert", str(folder), str(again), "--to", "jsonl"]) == 0
    first = json.loads(again.read_text().splitlines()[0])
    assert first["denserk_manifest"]["made_from"]["model"]["name"] == str(tiny())


def test_a_broken_manifest_is_one_line(lines, tmp_path, capsys):
    lines.write_text(lines.read_text().replace('"kind":"vectors"', '"kind":"cake"'))
    assert run(["index", "--input", str(lines), "--output", str(tmp_path / "idx")]) == 1
    said = capsys.readouterr().err
    assert f"error: {lines}, line 1, denserk_manifest: found kind" in said
    assert not (tmp_path / "idx").exists()
