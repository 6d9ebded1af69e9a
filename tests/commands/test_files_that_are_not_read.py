"""What denserk does not read yet is named, with a command that converts it; the commands work."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from denserk.commands.app import run


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder in which `python3` is this Python."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tmp_path / "bin" / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def follow_hint(command, capsys):
    """Run a command that fails, and the command that its message names; return what that writes."""
    capsys.readouterr()
    assert run(command) in (1, 2)
    error, hint = capsys.readouterr().err.splitlines()[-2:]
    assert error.startswith("error: ")
    shell = hint.strip().partition(": ")[2]
    subprocess.run(["bash", "-e", "-o", "pipefail", "-c", shell], check=True)
    return shell.rpartition("> ")[2]


def records(source, kind):
    target = f"{kind}.out.jsonl"
    assert run(["convert", source, target, "--kind", kind, "--to", "beir", "--overwrite"]) == 0
    return [json.loads(line) for line in Path(target).read_text().splitlines()]


def reading(source, kind):
    return ["convert", source, "none", "--kind", kind, "--to", "beir"]


@pytest.mark.parametrize("kind", ["queries", "corpus"])
def test_lines_of_text_alone(kind, folder, capsys):
    (folder / "file.txt").write_text("vitamin d, mostly\n\nankle brace\n")
    written = follow_hint(reading("file.txt", kind), capsys)
    passages = [(record["_id"], record["text"]) for record in records(written, kind)]
    assert passages == [("1", "vitamin d, mostly"), ("3", "ankle brace")]


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"number": 7, "utterance": "who runs"}, {"_id": "7", "text": "who runs"}),
        ({"utterance": "who runs"}, {"_id": "0", "text": "who runs"}),
    ],
)
def test_queries_of_other_keys(row, expected, folder, capsys):
    (folder / "q.jsonl").write_text(json.dumps(row) + "\n")
    written = follow_hint(reading("q.jsonl", "queries"), capsys)
    assert records(written, "queries") == [expected]


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_records_in_a_list_of_one_object(folder, capsys):
    rows = [{"id": "1", "text": "one"}, {"id": "2", "text": "two"}]
    (folder / "c.json").write_text(json.dumps({"count": 2, "my docs": rows}))
    written = follow_hint(reading("c.json", "corpus"), capsys)
    assert [record["text"] for record in records(written, "corpus")] == ["one", "two"]


PAGE = "<!DOCTYPE html>\n<html><head><style>b {}</style></head><body>a <b>&lt;moon</b></body>"


@pytest.mark.parametrize(
    ("ending", "text", "expected"),
    [
        (".rst", "a moon\n", "a moon\n"),
        (".html", PAGE, "a <moon"),
        (".htm", PAGE, "a <moon"),
        (".HTML", PAGE, "a <moon"),
    ],
)
def test_a_folder_of_files(ending, text, expected, folder, capsys):
    (folder / "docs" / "sub").mkdir(parents=True)
    (folder / "docs" / f"b #2{ending}").write_text(text)
    (folder / "docs" / "sub" / f"a{ending}").write_text(text)
    written = follow_hint(reading("docs", "corpus"), capsys)
    text_by_id = {record["_id"]: record["text"] for record in records(written, "corpus")}
    assert text_by_id == {f"b%20%232{ending}": expected, f"sub/a{ending}": expected}


def test_an_html_page(folder, capsys):
    (folder / "page").write_text(PAGE)
    written = follow_hint(reading("page", "corpus"), capsys)
    assert records(written, "corpus") == [{"_id": "page", "title": "", "text": "a <moon"}]


def test_a_pdf(folder, capsys):
    pages = folder.parent / "bin" / "pdftotext"
    pages.write_text("#!/bin/sh\nprintf 'page one\\fpage\\ntwo\\f'\n")  # as poppler writes them
    pages.chmod(0o755)
    (folder / "a b.pdf").write_bytes(b"%PDF-1.7\n\xe2\xe3\n")
    written = follow_hint(reading("a b.pdf", "corpus"), capsys)
    assert [record["text"] for record in records(written, "corpus")] == ["page one", "page two"]


@pytest.mark.parametrize("ending", ["pdf", "PDF"])
def test_a_folder_of_pdf_files(ending, folder, capsys):
    program = folder.parent / "bin" / "pdftotext"
    program.write_text('#!/bin/sh\nprintf "page one" > "${2%.*}.txt"\n')  # as poppler's
    program.chmod(0o755)
    (folder / "my docs" / "sub").mkdir(parents=True)
    (folder / "my docs" / "sub" / f"a b.{ending}").write_bytes(b"%PDF-1.7\n\xe2\xe3\n")
    follow_hint(reading("my docs", "corpus"), capsys)
    (record,) = records("my docs", "corpus")
    assert record == {"_id": "sub/a%20b.txt", "title": "", "text": "page one"}


MOON_IN_TWO_PARTS = "<w:p><w:r><w:t>mo</w:t></w:r><w:r><w:t>on</w:t></w:r></w:p>"
WORD = {"word/document.xml": f"{MOON_IN_TWO_PARTS}<w:p>a &lt; b</w:p>"}
OFFICE = {"content.xml": "<text:h>moon</text:h><text:p>a &lt; b</text:p>"}


@pytest.mark.parametrize(("ending", "parts"), [("docx", WORD), ("DOCX", WORD), ("odt", OFFICE)])
def test_a_folder_of_office_documents(ending, parts, folder, capsys):
    write_office_document(folder / "my docs" / "sub" / f"a b.{ending}", parts)
    follow_hint(reading("my docs", "corpus"), capsys)
    (record,) = records("my docs", "corpus")
    assert record["_id"] == "sub/a%20b.txt"
    assert record["text"].split() == ["moon", "a", "<", "b"]


def write_office_document(path, parts):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in parts.items():
            archive.writestr(name, text)


def test_a_folder_of_several_kinds_of_documents(folder, capsys):
    program = folder.parent / "bin" / "pdftotext"
    program.write_text('#!/bin/sh\nprintf "page one" > "${2%.*}.txt"\n')  # as poppler's
    program.chmod(0o755)
    (folder / "docs").mkdir()
    (folder / "docs" / "a.pdf").write_bytes(b"%PDF-1.7\n\xe2\xe3\n")
    write_office_document(folder / "docs" / "b.docx", WORD)
    write_office_document(folder / "docs" / "c.odt", OFFICE)
    follow_hint(["convert", "docs", "any.jsonl"], capsys)
    assert [record["_id"] for record in records("docs", "corpus")] == ["a.txt", "b.txt", "c.txt"]


@pytest.mark.parametrize(("ending", "parts"), [("docx", WORD), ("odt", OFFICE)])
@pytest.mark.parametrize("options", [[], ["--kind", "corpus", "--to", "beir"]])
def test_an_office_document(ending, parts, options, folder, capsys):
    write_office_document(folder / f"a b.{ending}", parts)
    written = follow_hint(["convert", f"a b.{ending}", "none", *options], capsys)
    (record,) = records(written, "corpus")
    assert record["_id"] == f"a%20b.{ending}"
    assert record["text"].split() == ["moon", "a", "<", "b"]


def test_documents_beside_texts_are_warned_of_once(folder, capsys):
    (folder / "docs").mkdir()
    (folder / "docs" / "a.txt").write_text("sun\n")
    write_office_document(folder / "docs" / "b.docx", WORD)
    for _ in range(2):
        assert run([*reading("docs", "corpus"), "--overwrite"]) == 0
    assert capsys.readouterr().err.count("warning: ") == 1


def test_documents_beside_texts_are_warned_of_until_they_are_converted(folder, capsys):
    (folder / "docs").mkdir()
    (folder / "docs" / "a.txt").write_text("sun\n")
    (folder / "docs" / "picture.png").write_bytes(b"\x89PNG")
    write_office_document(folder / "docs" / "b.docx", WORD)
    assert run(reading("docs", "corpus")) == 0
    err = capsys.readouterr().err
    assert "files of other kinds (.docx 1, .png 1)" in err
    [warning] = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert "*.docx files are not read" in warning
    command = warning.partition("give the folder again: ")[2]
    subprocess.run(["bash", "-e", "-c", command], check=True)
    assert [record["_id"] for record in records("docs", "corpus")] == ["a.txt", "b.txt"]
    assert "warning: " not in capsys.readouterr().err


def test_gzip_under_another_name(folder, capsys):
    (folder / "c").write_bytes(gzip.compress(b"1\tone\n"))
    assert run(reading("c", "corpus")) == 1
    subprocess.run(["bash", "-c", capsys.readouterr().err.rpartition(": ")[2]], check=True)
    assert records("c.gz", "corpus") == [{"_id": "1", "title": "", "text": "one"}]


def test_a_run_between_commas(folder, capsys):
    (folder / "run.csv").write_text("qid,docno,score\nq1,d1,0.9\nq2,d1,1.5\n")
    (folder / "qrels.txt").write_text("q1 0 d1 1\nq2 0 d1 2\n")
    written = follow_hint(["eval", "run.csv", "qrels.txt"], capsys)
    assert run(["eval", written, "qrels.txt", "-m", "RR@10"]) == 0
    assert "RR@10\t1.0000" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (b"\x1f\x8b\x08", "gzip"),
        (b"\x1f\x9d\x90", "file of `compress`"),
        (b"PK\x03\x04", "zip"),
        (b"%PDF-1", "PDF"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        "eval file qrels",
        "eval run file",
        "eval --run file --qrels qrels",
        "eval --run run --qrels file",
        "convert file out --kind training --to flag",
        "convert file out --kind training --from triples --to flag",
        "convert file out --kind queries --to tsv",
        "convert file out --kind corpus --to beir",
    ],
)
def test_a_file_that_is_no_text_is_named(command, start, name, folder, capsys):
    (folder / "run").write_text("q Q0 d 1 1.0 a\n")
    (folder / "qrels").write_text("q 0 d 1\n")
    (folder / "file").write_bytes(start + b"\x00\xff\n")
    assert run(command.split()) == 1
    assert f"file: found a {name}" in capsys.readouterr().err
