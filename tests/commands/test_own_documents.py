"""Documents with any keys, without ids, and as files: every command reads them in the same way."""

import io
import json
import re
from pathlib import Path

import pytest

import denserk
from denserk.commands.app import run
from denserk.io.manifest import Kind, read_manifest
from denserk.io.record_fields import id_of_texts

LONG = "The moon rises over the river in the evening"
DOCUMENTS = [
    {"key": "a1", "summary": "the cat", "body": f"{LONG}, and it is bright."},
    {"key": "a2", "summary": "the river boat", "body": f"{LONG} and the boat lies still."},
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = "".join(json.dumps(document) + "\n" for document in DOCUMENTS)
    (tmp_path / "docs.jsonl").write_text(lines)
    (tmp_path / "queries.csv").write_text('qid,query,note\n1,"river, boat",x\n2,cat,\n')
    (tmp_path / "qrels").write_text("1 0 a2 1\n2 0 a1 1\n")
    return tmp_path


def build(output, *options, corpus="docs.jsonl"):
    command = ["index", "--type", "bm25", "--corpus", corpus, "--output", output, *options]
    assert run(command) == 0


def answers(index, query, capsys):
    capsys.readouterr()
    assert run(["search", "--index", index, "--query", query]) == 0
    return capsys.readouterr().out


def test_an_index_records_the_fields_of_its_texts(capsys):
    build("summaries", "--text-field", "summary")
    out = answers("summaries", "boat", capsys)
    assert "a2" in out
    assert "the river boat" in out
    assert "no hits" in answers("summaries", "evening", capsys)
    build("bodies")
    assert "a1" in answers("bodies", "bright", capsys)
    recorded = read_manifest("bodies", Kind.INDEX).settings["corpus"]
    assert (recorded["id_field"], recorded["text_field"]) == ("key", "body")
    build("bodies", "--resume")


def test_another_file_of_the_same_documents_prints_their_texts(folder, capsys):
    build("index", "--text-field", "body")
    assert run(["convert", "docs.jsonl", "beir.jsonl", "--to", "beir", "--text-field", "body"]) == 0
    (folder / "docs.jsonl").rename("moved.jsonl")
    for name in ("beir.jsonl", "moved.jsonl"):
        capsys.readouterr()
        assert run(["search", "--index", "index", "--query", "boat", "--corpus", name]) == 0
        assert "the boat lies still" in capsys.readouterr().out


def test_an_index_of_standard_input_asks_for_the_corpus(folder, capsys, monkeypatch):
    source = io.TextIOWrapper(io.BytesIO((folder / "docs.jsonl").read_bytes()))
    monkeypatch.setattr("sys.stdin", source)
    build("index", corpus="-")
    assert run(["search", "--index", "index", "--query", "boat"]) == 2
    assert "--corpus" in capsys.readouterr().err
    assert run(["search", "--index", "index", "--query", "boat", "--corpus", "docs.jsonl"]) == 0


def test_made_ids_are_the_same_in_every_command(folder, capsys, caplog):
    rows = [{"body": document["body"]} for document in DOCUMENTS]
    lines = "".join(json.dumps(row) + "\n" for row in [*rows, rows[0]])
    (folder / "docs.jsonl").write_text(lines)
    build("index")
    assert read_manifest("index", Kind.INDEX).settings["corpus"]["id_field"] == ""
    assert read_manifest("index", Kind.INDEX).contents["count"] == 2
    docid = id_of_texts("", rows[1]["body"])
    assert re.search(rf"{docid}\s+The moon", answers("index", "boat", capsys))
    assert run(["convert", "docs.jsonl", "corpus.jsonl", "--to", "beir"]) == 0
    converted = [json.loads(line)["_id"] for line in Path("corpus.jsonl").read_text().splitlines()]
    assert converted == [id_of_texts("", row["body"]) for row in rows]
    assert "with the title and text of an earlier one are left out (1)" in caplog.text


def test_queries_and_eval_of_an_own_corpus(capsys):
    build("index", "--text-field", "summary")
    assert run(["search", "--index", "index", "--topics", "queries.csv", "--output", "run"]) == 0
    capsys.readouterr()
    assert run(["eval", "run", "qrels", "-m", "RR@10"]) == 0
    assert "RR@10\t1.0000" in capsys.readouterr().out


def test_runs_lead_to_the_fields_of_their_index(tiny_reranker, folder, capsys):
    rows = [{"summary": row["summary"], "body": row["body"]} for row in DOCUMENTS]
    (folder / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build("index", "--text-field", "summary")  # ids of other texts than without the option
    assert run(["search", "--index", "index", "--topics", "queries.csv", "--output", "run"]) == 0
    texts = ["--topics", "queries.csv", "--corpus", "docs.jsonl"]
    model = str(tiny_reranker())
    command = ["rerank", "--run", "run", *texts, "--model", model, "--device", "cpu"]
    assert run([*command, "--output", "reranked"]) == 0
    assert "docs.jsonl: read as for the index of run" in capsys.readouterr().err
    docid = id_of_texts("", "the cat")
    (folder / "train-qrels").write_text(f"2 0 {docid} 1\n1 0 {docid} 1\n")
    command = ["mine-negatives", "--run", "reranked", "--qrels", "train-qrels", *texts]
    assert run([*command, "--output", "train.jsonl", "--set", "depth=10"]) == 0
    mined = [json.loads(line) for line in Path("train.jsonl").read_text().splitlines()]
    texts_of = {passage["text"] for row in mined for passage in row["negative_passages"]}
    assert texts_of <= {"the cat", "the river boat"}
    assert run([*command, "--output", "other.jsonl", "--text-field", "body"]) == 1


def test_fields_that_are_not_there_are_one_error_and_leave_nothing(capsys):
    command = ["index", "--type", "bm25", "--corpus", "docs.jsonl", "--output", "index"]
    assert run([*command, "--text-field", "text"]) == 1
    assert "found the fields key, summary, body; expected text" in capsys.readouterr().err
    assert not Path("index").exists()


def test_convert_takes_fields_of_corpora_alone(capsys):
    command = ["convert", "docs.jsonl", "out.jsonl", "--to", "beir", "--text-field", "summary"]
    assert run([*command, "--title-field", "key", "--id-field", "key"]) == 0
    (first_passage, _) = map(json.loads, Path("out.jsonl").read_text().splitlines())
    assert first_passage["text"] == "the cat"
    command = [
        "convert",
        "queries.csv",
        "out.tsv",
        "--kind",
        "queries",
        "--to",
        "tsv",
        "--overwrite",
    ]
    assert run(command) == 0
    assert Path("out.tsv").read_text() == "1\triver, boat\n2\tcat\n"
    assert run([*command, "--text-field", "query"]) == 2
    assert "--text-field: not used by queries" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("a.csv", "number,subject,message\n1,b,c\n", "corpus"),
        ("a.csv", "qid,query,url\n1,b,c\n", "queries"),
        ("a.md", "q1 Q0 d1 1 2.5 tag\n", "corpus"),
        ("a", "<DOC><DOCNO>1</DOCNO>b</DOC>", "corpus"),
    ],
)
def test_convert_knows_what_it_is(name, text, kind, folder, caplog):
    (folder / name).write_text(text)
    run(["convert", name, "out.tsv", "--to", "marco"])
    assert f"{name}: {kind}" in caplog.text


def test_own_documents_in_python(folder):
    bm25 = denserk.BM25.build("docs.jsonl", text_field="summary", id_field="key")
    assert list(bm25.search({"1": "boat"})["1"]) == ["a2"]
    (folder / "notes").mkdir()
    (folder / "notes" / "a.md").write_text("# Boat\n\nIt lies still.\n")
    run_of_notes = denserk.BM25.build("notes").search({"1": "boat"})
    assert list(run_of_notes["1"]) == ["a.md"]
