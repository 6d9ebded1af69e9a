"""The command in a shell's words."""

import json

import pytest

from denserk.commands.app import run
from denserk.tasks import generate as task
from denserk.tasks.generate import GenerateResult

BASIC = ("--corpus", "c", "--output", "o")


@pytest.fixture
def asked(monkeypatch):
    """What the task would have been asked to do."""
    runs = []

    def stand_in(*told):
        runs.append(told)
        return GenerateResult(2000, 1500, 15000, 1490, 10, 100.0)

    monkeypatch.setattr(task, "generate", stand_in)
    return runs


def test_the_end_tells_what_was_made_and_how_fast(asked, capsys):
    assert run(["generate", *BASIC, "--queries-model", "m"]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    last = told.err.splitlines()[-1]
    assert all(n in last for n in ("2,000", "1,500", "15,000 queries", "1,490", "15.0"))


@pytest.mark.parametrize(
    ("words", "place", "field", "value"),
    [
        (("--shard-index", "1", "--num-shards", "3"), 0, "shard_num", 3),
        (("--dataset-shard-index", "1", "--shard-num", "3"), 0, "shard_id", 1),
        (("--fields", "text,url"), 3, "fields", ("text", "url")),
        (("--max-length", "64"), 3, "passage_max_length", 64),
        (("--bf16",), 5, "dtype", "bfloat16"),
    ],
)
def test_names_that_users_know(asked, words, place, field, value):
    assert run(["generate", *BASIC, "--queries-model", "m", *words]) == 0
    assert getattr(asked[0][place], field) == value


def test_only_what_was_given_of_the_drawing_is_handed_on(asked):
    given = ("--set", "continuation-top-p=0.5")
    assert run(["generate", *BASIC, "--continuation-model", "m", *given]) == 0
    assert (dict(asked[0][1]), dict(asked[0][2])) == ({}, {"continuation_top_p": 0.5})


def test_from_passages_to_expansions_to_a_corpus_for_bm25(writer, toy, tmp_path, capfd):
    made, corpus = tmp_path / "x.jsonl", str(toy / "corpus.jsonl")
    words = ("--num-queries", "3", "--set", "query-max-tokens=6", "--device", "cpu")
    models = ("--queries-model", str(writer("t5")))
    assert run(["generate", "--corpus", corpus, "--output", str(made), *models, *words]) == 0
    expanded = tmp_path / "expanded.jsonl"
    assert run(["convert", corpus, str(expanded), "--to", "beir", "--expansions", str(made)]) == 0
    lines = (path.read_text().splitlines() for path in (expanded, made))
    for line, own in zip(*lines, strict=True):
        assert json.loads(line)["text"].endswith(" ".join(json.loads(own)["queries"]))
    capfd.readouterr()
    assert run(["generate", "--corpus", corpus, "--output", "-", *models, *words, "--quiet"]) == 0
    assert capfd.readouterr() == (made.read_text(), "")


def test_a_wrong_kind_of_model_is_one_line(writer, toy, tmp_path, capsys):
    words = ("--corpus", str(toy / "corpus.jsonl"), "--output", str(tmp_path / "x"))
    assert run(["generate", *words, "--queries-model", str(writer("gpt2")), "--quiet"]) == 1
    message, hint = capsys.readouterr().err.splitlines()[-2:]
    assert message.endswith("a sequence-to-sequence model is expected")
    assert hint.strip() == "give it as --continuation-model"
