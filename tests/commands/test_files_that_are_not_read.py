"""What denserk does not read yet is named, with a command that converts it; the commands work."""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
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


PARAGRAPHS = [{"context": "a moon rises", "qas": [{"id": "1", "question": "who runs"}]}]
SQUAD = {"version": "1.1", "data": [{"title": "a moon", "paragraphs": PARAGRAPHS}]}


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    ("document", "kind", "ids_and_texts"),
    [
        (SQUAD, "queries", [("1", "who runs")]),
        ({"id": "1", "a b": {"text": "one moon"}}, "corpus", [("1", "one moon")]),
        ([{"id": "1", "a": {"text": "one moon"}}], "corpus", [("1", "one moon")]),
        (
            {"took": 1, "hits": {"hits": [{"_id": "1", "_source": {"text": "one moon"}}]}},
            "corpus",
            [("1", "one moon")],
        ),
        ({"id": "1", "text": "one moon"}, "corpus", [("1", "one moon")]),
        (["who runs", "who"], "queries", [("0", "who runs"), ("1", "who")]),
    ],
)
def test_records_inside_of_others(document, kind, ids_and_texts, indent, folder, capsys):
    (folder / "source.json").write_text(json.dumps(document, indent=indent))
    source = "source.json"
    for _ in range(4):  # a hint takes one step
        if run([*reading(source, kind), "--overwrite"]) == 0:
            break
        source = follow_hint(reading(source, kind), capsys)
    found = [(record["_id"], record["text"]) for record in records(source, kind)]
    assert found == ids_and_texts


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_passages_of_squad(folder, capsys):
    (folder / "source.json").write_text(json.dumps(SQUAD))
    written = follow_hint(reading("source.json", "corpus"), capsys)
    (record,) = map(json.loads, Path(written).read_text().splitlines())
    assert record == PARAGRAPHS[0]


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
@pytest.mark.parametrize("number", ["NaN", "-Infinity"])
def test_numbers_that_are_not_json(number, folder, capsys):
    line = f'{{"id": "1", "n": {number}, "text": "one"}}\n'
    (folder / "c.jsonl").write_text(f'{{"id": "0", "text": "zero"}}\n{line}')
    written = follow_hint(reading("c.jsonl", "corpus"), capsys)
    assert [record["text"] for record in records(written, "corpus")] == ["zero", "one"]


def test_a_line_that_breaks_off_is_not_said_to_be_one_of_several(folder, capsys):
    (folder / "c.jsonl").write_text('{"id": "0", "text": "zero"}\n{"id": "1",')
    assert run(reading("c.jsonl", "corpus")) == 1
    assert "several lines" not in capsys.readouterr().err


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
    assert record["_id"] == f"sub/a%20b.{ending}.txt"
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
    ids = [record["_id"] for record in records("docs", "corpus")]
    assert ids == ["a.txt", "b.docx.txt", "c.odt.txt"]


def test_a_folder_of_pages_and_pdf_files_of_one_name(folder, capsys):
    program = folder.parent / "bin" / "pdftotext"
    program.write_text('#!/bin/sh\nprintf "page one" > "${2%.*}.txt"\n')  # as poppler's
    program.chmod(0o755)
    (folder / "my docs").mkdir()
    (folder / "my docs" / "a.pdf").write_bytes(b"%PDF-1.7\n\xe2\xe3\n")
    (folder / "my docs" / "a.html").write_text(PAGE)
    (folder / "my docs" / "b.htm").write_text(PAGE)
    (folder / "my docs" / "c.rst").write_text("a boat")
    follow_hint(reading("my docs", "corpus"), capsys)
    text_by_id = {record["_id"]: record["text"] for record in records("my docs", "corpus")}
    assert text_by_id == {
        "a.txt": "page one",
        "a.html.txt": "a <moon",
        "b.htm.txt": "a <moon",
        "c.rst.txt": "a boat",
    }
    assert "warning: " not in capsys.readouterr().err


def test_a_folder_of_pages_under_two_endings(folder, capsys):
    (folder / "docs").mkdir()
    (folder / "docs" / "a.html").write_text(PAGE)
    (folder / "docs" / "b.htm").write_text(PAGE)
    written = follow_hint(reading("docs", "corpus"), capsys)
    assert [record["_id"] for record in records(written, "corpus")] == ["a.html", "b.htm"]


def test_pages_beside_texts_are_warned_of(folder, capsys):
    (folder / "docs").mkdir()
    (folder / "docs" / "a.txt").write_text("sun\n")
    (folder / "docs" / "b.html").write_text(PAGE)
    assert run(reading("docs", "corpus")) == 0
    [warning] = [line for line in capsys.readouterr().err.splitlines() if "warning: " in line]
    command = warning.partition("give the folder again: ")[2]
    subprocess.run(["bash", "-e", "-c", command], check=True)
    text_by_id = {record["_id"]: record["text"] for record in records("docs", "corpus")}
    assert text_by_id == {"a.txt": "sun", "b.html.txt": "a <moon"}


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
    assert [record["_id"] for record in records("docs", "corpus")] == ["a.txt", "b.docx.txt"]
    assert "warning: " not in capsys.readouterr().err


def test_gzip_under_another_name(folder, capsys):
    (folder / "c").write_bytes(gzip.compress(b"1\tone\n"))
    assert run(reading("c", "corpus")) == 1
    subprocess.run(["bash", "-c", capsys.readouterr().err.rpartition(": ")[2]], check=True)
    assert records("c.gz", "corpus") == [{"_id": "1", "title": "", "text": "one"}]


@pytest.mark.parametrize(
    ("ending", "compress", "program"),
    [
        (".bz2", bz2.compress, "bzcat"),
        (".xz", lzma.compress, "xzcat"),
    ],
)
@pytest.mark.parametrize("name", ["my c.tsv", "c"])
def test_other_compressed_files(name, ending, compress, program, folder, capsys):
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    file_name = name if name == "c" else f"{name}{ending}"
    (folder / file_name).write_bytes(compress(b"1\tone\n"))
    follow_hint(reading(file_name, "corpus"), capsys)
    plain_name = "c.txt" if name == "c" else name
    assert records(plain_name, "corpus") == [{"_id": "1", "title": "", "text": "one"}]


def test_a_compressed_stream_is_named_without_a_command_for_a_file(folder, capsys, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(bz2.compress(b"1\tone\n")))
    monkeypatch.setattr(sys, "stdin", stream)
    assert run(reading("-", "corpus")) == 1
    err = capsys.readouterr().err
    assert "standard input: found a bzip2 file" in err
    assert "bzcat" not in err


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_tar_archive(mode, folder, capsys):
    (folder / "c.tsv").write_text("1\tone\n")
    name = "c.tar.gz" if mode == "w:gz" else "c.tar"
    with tarfile.open(name, mode) as archive:
        archive.add("c.tsv")
    (folder / "c.tsv").unlink()
    follow_hint(reading(name, "corpus"), capsys)
    assert [record["text"] for record in records("c.tsv", "corpus")] == ["one"]


@pytest.mark.parametrize("is_stream", [False, True])
def test_arrow(is_stream, folder, capsys):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"_id": ["1"], "text": ["one"]})
    writer_class = pyarrow.ipc.new_stream if is_stream else pyarrow.ipc.new_file
    with writer_class("c.arrow", table.schema) as writer:
        writer.write_table(table)
    assert run(reading("c.arrow", "corpus")) == 1
    command = capsys.readouterr().err.rpartition("convert it: ")[2]
    subprocess.run(["bash", "-e", "-c", command], check=True)
    assert [record["text"] for record in records("converted.parquet", "corpus")] == ["one"]


def test_parquet_under_another_name(folder, capsys):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"_id": ["1"], "text": ["one"]}), "c")
    assert run(reading("c", "corpus")) == 1
    subprocess.run(["bash", "-c", capsys.readouterr().err.rpartition(": ")[2]], check=True)
    assert [record["text"] for record in records("c.parquet", "corpus")] == ["one"]


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="sqlite3 is not installed")
def test_an_sqlite_database(folder, capsys):
    connection = sqlite3.connect("docs.db")
    connection.execute("CREATE TABLE docs (id TEXT, text TEXT)")
    connection.execute("INSERT INTO docs VALUES ('1', 'one')")
    connection.commit()
    connection.close()
    assert run(reading("docs.db", "corpus")) == 1
    command = capsys.readouterr().err.rpartition(": ")[2].replace("TABLE", "docs")
    subprocess.run(["bash", "-e", "-c", command], check=True)
    assert [record["text"] for record in records("converted.json", "corpus")] == ["one"]


def test_bytes_that_are_no_text_are_not_said_to_be_of_an_encoding(folder, capsys):
    (folder / "c.tsv").write_bytes(bytes(range(256)))
    assert run(reading("c.tsv", "corpus")) == 1
    assert "iconv" not in capsys.readouterr().err


def test_text_of_windows(folder, capsys):
    (folder / "c.csv").write_bytes("id,text\n1,\u201cMünchen\u201d\n".encode("cp1252"))
    follow_hint(reading("c.csv", "corpus"), capsys)
    assert [record["text"] for record in records("c.csv", "corpus")] == ["\u201cMünchen\u201d"]


@pytest.mark.parametrize(
    ("kind", "target_format", "text"),
    [
        ("corpus", "beir", "d1\tone\rd2\ttwo\r"),
        ("queries", "tsv", "q1\tone\rq2\ttwo"),
        ("qrels", "trec", "q1 0 d1 1\rq1 0 d2 1\r"),
        ("run", "trec", "q1 Q0 d1 1 2.5 a\rq1 Q0 d2 2 1.5 a\r"),
        ("training", "flag", "anchor\tpositive\rwho\tone\rwhat\ttwo\r"),
    ],
)
def test_carriage_returns_alone_end_no_line(kind, target_format, text, folder, capsys):
    (folder / "old").write_bytes(text.encode())
    command = ["convert", "old", "new", "--kind", kind, "--to", target_format]
    follow_hint(command, capsys)
    assert run(command) == 0
    assert len((folder / "new").read_text().splitlines()) == 2


@pytest.mark.parametrize("kind", ["queries", "corpus"])
def test_lines_that_begin_with_an_id(kind, folder, capsys):
    (folder / "file.txt").write_text("q1 ankle  brace\n q2 vitamin d\n")
    written = follow_hint(reading("file.txt", kind), capsys)
    passages = [(record["_id"], record["text"]) for record in records(written, kind)]
    assert passages == [("q1", "ankle  brace"), ("q2", "vitamin d")]


def test_a_table_between_vertical_bars(folder, capsys):
    (folder / "c.csv").write_text('id|title|text\n1|moon|"a | b, c"\n')
    written = follow_hint(reading("c.csv", "corpus"), capsys)
    assert records(written, "corpus") == [{"_id": "1", "title": "moon", "text": "a | b, c"}]


def test_passages_of_csv_without_names(folder, capsys):
    passages = [
        "the moon rises over the hills in the evening",
        "the boat leaves the bridge at nine",
    ]
    rows = "".join(f"{number},{text}\n" for number, text in enumerate(passages))
    (folder / "c.csv").write_text(rows)
    assert run(reading("c.csv", "corpus")) == 1
    names = capsys.readouterr().err.rpartition(": ")[2].strip()
    (folder / "named.csv").write_text(f"{names.replace('title,', '')}\n{rows}")
    assert [record["text"] for record in records("named.csv", "corpus")] == passages


def test_the_line_in_which_excel_names_the_separator(folder, capsys):
    (folder / "c.csv").write_text("sep=;\nid;text\n1;one\n")
    assert run(reading("c.csv", "corpus")) == 1
    assert "line 1: found Excel's line" in capsys.readouterr().err


@pytest.mark.parametrize("options", ["run file", "--run run --qrels file"])
def test_pairs_of_ids_in_place_of_qrels(options, folder, capsys):
    (folder / "run").write_text("q1 Q0 d1 1 1.0 a\n")
    (folder / "file").write_text("q1\td1\n")
    assert run(["eval", *options.split()]) == 1
    err = capsys.readouterr().err
    assert "if these are queries" in err
    subprocess.run(["bash", "-e", "-c", err.rpartition(": ")[2]], check=True)
    assert run(["eval", "run", "converted.qrels", "-m", "RR@10"]) == 0
    assert "RR@10\t1.0000" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["qrels.csv", "qrels"])
def test_qrels_between_semicolons(name, folder, capsys):
    (folder / "run").write_text("q1 Q0 d1 1 1.0 a\n")
    (folder / name).write_text("\ufeffquery-id;corpus-id;score\r\nq1;d1;1\r\n")
    written = follow_hint(["eval", "run", name], capsys)
    assert written.strip() == "converted.qrels"
    assert run(["eval", "run", "converted.qrels", "-m", "RR@10"]) == 0
    assert "RR@10\t1.0000" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
@pytest.mark.parametrize(
    ("line", "scores"),
    [("[1, 2, 3]", {}), ("[1, [2, 3.5], [3, 1]]", {"pos_scores": [3.5], "neg_scores": [1]})],
)
def test_examples_of_colbert(line, scores, folder, capsys):
    (folder / "triples.jsonl").write_text(line + "\n")
    (folder / "queries.tsv").write_text("1\twho\n")
    (folder / "corpus.tsv").write_text("2\tone\n3\ttwo\n")
    target = ["out.jsonl", "--kind", "training", "--to", "flag"]
    written = follow_hint(["convert", "triples.jsonl", *target], capsys)
    texts = ["--queries", "queries.tsv", "--corpus", "corpus.tsv"]
    assert run(["convert", written, *target, *texts]) == 0
    example = json.loads((folder / "out.jsonl").read_text())
    assert example == {"query": "who", "pos": ["one"], "neg": ["two"], **scores}


@pytest.mark.parametrize("options", [[], ["--split-words", "2"]])
def test_a_converted_corpus_has_each_id_once(options, folder, capsys):
    (folder / "c.tsv").write_text("1\tone\n2\ttwo\n1\tthree\n")
    assert run([*reading("c.tsv", "corpus"), *options]) == 1
    assert "the id 1 twice: passages 1 and 3" in capsys.readouterr().err
    assert not (folder / "none").exists()


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
        (b"BZh91AY&SY", "bzip2"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"SQLite format 3\x00", "SQLite"),
        (b"\x80\x04\x95", "pickle"),
        (b"\0" * 257 + b"ustar", "tar archive"),
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
    assert re.search(f"file: found an? {name}", capsys.readouterr().err)
