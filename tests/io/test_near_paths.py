"""An absent path is answered with the names that are like it."""

import pytest

from denserk.commands.app import run
from denserk.io.near_paths import near_models, near_paths, no_such_path


def test_names_in_the_folder_of_the_path(tmp_path):
    for name in ("corpus.jsonl", "queries.tsv", "other.txt"):
        (tmp_path / name).touch()
    assert near_paths(tmp_path / "corpsu.jsonl") == [str(tmp_path / "corpus.jsonl")]
    assert near_paths(tmp_path / "absent" / "corpus.jsonl") == []
    error = no_such_path(tmp_path / "query.tsv", "no such file", "an example")
    assert error.hint == f"did you mean {tmp_path / 'queries.tsv'}? an example"
    assert no_such_path(tmp_path / "zzz", "no such file", "an example").hint == "an example"


def test_relative_paths_stay_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    assert near_paths("modle") == ["model"]
    assert near_models("minilmm", ["minilm", "agg"]) == ["minilm"]


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("index --type bm25 --corpus corpsu.jsonl --output out", "corpus.jsonl"),
        ("encode --model modle --corpus corpus.jsonl --output out", "model"),
        ("search --index idnex --query moon", "index"),
        ("eval rnu.trec qrels.txt", "run.trec"),
        ("fuse run.trec rnu.trec --output out", "run.trec"),
        (
            "choose --corpus corpus.jsonl --topics qureies.tsv --qrels qrels.txt --output out",
            "queries.tsv",
        ),
    ],
)
def test_commands_ask_what_was_meant(command, meant, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "index").mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d1", "text": "moon"}\n')
    (tmp_path / "queries.tsv").write_text("q1\tmoon\n")
    (tmp_path / "qrels.txt").write_text("q1 0 d1 1\n")
    (tmp_path / "run.trec").write_text("q1 Q0 d1 1 1.0 run\n")
    assert run(command.split()) in (1, 2)
    assert f"did you mean {meant}?" in capsys.readouterr().err
