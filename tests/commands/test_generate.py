"""The command in a shell's words."""

import json

from denserk.commands.app import run


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
