"""`search --exclude`, and the passages that topics list as `excluded_ids`."""

import json
from pathlib import Path

import pytest

import denserk
from denserk.commands.app import run
from denserk.errors import InputError, UsageError
from denserk.io.exclusions import read_exclusions
from denserk.io.manifest import Kind, read_manifest
from denserk.io.runs import read_run_scores

QUERIES = {"q1": "moon", "q2": "moon"}
CORPUS = {f"d{n}": "moon " * n + "star" for n in range(1, 9)}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus.json").write_text(json.dumps(CORPUS))
    Path("queries.json").write_text(json.dumps(QUERIES))
    assert (
        run(["index", "--type", "bm25", "--corpus", "corpus.json", "--output", "bm25", "--quiet"])
        == 0
    )
    return tmp_path


def search(*options, topics="queries.json"):
    command = "search --index bm25 --hits 3 --overwrite --output run.trec --topics"
    assert run([*command.split(), topics, *options]) == 0
    return {qid: list(hits) for qid, hits in read_run_scores("run.trec").items()}


def test_a_file_of_exclusions(capsys):
    every_hit = search("--hits", "8")
    best = every_hit["q1"]
    Path("excluded.tsv").write_text(f"qid\tdocid\nq1\t{best[0]}\nq1\t{best[2]}\nq9\td1\n")
    capsys.readouterr()
    hits = search("--exclude", "excluded.tsv")
    assert "excluded.tsv: 2 passages are excluded, for 1 queries" in capsys.readouterr().err
    assert hits == {"q1": [best[1], best[3], best[4]], "q2": every_hit["q2"][:3]}
    manifest = read_manifest("run.trec", Kind.RUN)
    assert manifest.made_from["excluded"] == {"name": "excluded.tsv", "queries": 1, "passages": 2}
    assert "excluded passages: 2" in Path("run.trec.ir_metadata.yaml").read_text()
    index = denserk.BM25.open("bm25")
    for exclude in ("excluded.tsv", {"q1": [best[0], best[2]]}):
        assert list(index.search(QUERIES, hits=3, exclude=exclude)["q1"]) == hits["q1"]
    assert run(["reproduce", "run.trec"]) == 0


def test_topics_that_list_excluded_passages(capsys):
    best = search()["q1"]
    rows = [
        {"id": "q1", "query": "moon", "excluded_ids": [best[0]]},
        {"id": "q2", "query": "moon", "excluded_ids": ["N/A"]},
    ]
    Path("examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    capsys.readouterr()
    hits = search(topics="examples.jsonl")
    assert "(excluded_ids; --set exclude-listed=false keeps them)" in capsys.readouterr().err
    assert best[0] not in hits["q1"]
    assert len(hits["q1"]) == 3
    assert hits["q2"] == best
    assert search("--set", "exclude-listed=false", topics="examples.jsonl")["q1"] == best
    assert search("--exclude", "examples.jsonl")["q1"] == hits["q1"]
    index = denserk.BM25.open("bm25")
    assert list(index.search("examples.jsonl", hits=3)["q1"]) == hits["q1"]
    assert list(index.search("examples.jsonl", hits=3, exclude_listed=False)["q1"]) == best
    assert list(index.search(rows, hits=3)["q1"]) == hits["q1"]
    with pytest.raises(UsageError, match="as excluded_ids of q1"):
        index.search([{**rows[0], "excluded_ids": "d1"}])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("q1 d1\n\nq1 d2\nq2\td1\n", {"q1": {"d1", "d2"}, "q2": {"d1"}}),
        ('{"q1": ["d1", "d2", "d1"]}', {"q1": {"d1", "d2"}}),
        ('{"id": "q1", "query": "a", "excluded_ids": ["d1"]}\n', {"q1": {"d1"}}),
    ],
)
def test_files_of_exclusions(text, expected):
    Path("file").write_text(text)
    assert read_exclusions("file") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found no passages to exclude"),
        ("q1 d1\nq1 0 d1 1\n", "line 2: found 4 columns; expected 2 columns"),
        ('{"q1": "d1"}', "found a string as the passages of query q1"),
        ('{"q1": []}', "found no passages to exclude"),
        ("{}", "found no passages to exclude"),
        ("q1,d1", "found 1 column; expected 2 columns between tabs or blanks"),
        ('{"q1": ["d1"], "q2": {}}', "found an object as the passages of query q2"),
        ('{"q1": ["d1"], "q1": ["d2"]}', "found a key twice under q1"),
        ('{"id": "q1", "query": "a", "excluded_ids": "d1"}', "found a string as excluded_ids"),
        ('{"id": "q1", "query": "a"}', "found no passages to exclude"),
    ],
)
def test_broken_exclusions(text, message):
    Path("file").write_text(text)
    with pytest.raises(InputError, match=message):
        read_exclusions("file")


def test_exclusions_of_other_queries(capsys):
    Path("excluded.tsv").write_text("301 d1\n")
    command = "search --index bm25 --topics queries.json --output run.trec --exclude excluded.tsv"
    assert run(command.split()) == 1
    message = (
        "excluded.tsv excludes passages of queries such as 301, and of none that is searched, "
        "such as q1"
    )
    assert message in capsys.readouterr().err


def test_queries_and_exclusions_cannot_share_standard_input(capsys):
    command = "search --index bm25 --topics - --output run.trec --exclude -"
    assert run(command.split()) == 2
    assert "standard input (-) can be only one of the inputs" in capsys.readouterr().err


def test_wrong_arguments_of_exclude():
    index = denserk.BM25.open("bm25")
    for exclude in (["d1"], {"q1": "d1"}, {"q1": 7}):
        with pytest.raises(UsageError, match="exclude"):
            index.search(QUERIES, exclude=exclude)  # type: ignore[arg-type]
