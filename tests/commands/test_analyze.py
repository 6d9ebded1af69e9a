import pytest

from denserk.commands.app import run
from tests.analysis.test_encoders import write_pairs


@pytest.fixture
def analyze(toy, capsys):
    """Runs an analysis of passages or queries of `toy`; returns the printed table."""
    topics, corpus = (
        ["--topics", str(toy / "queries.tsv")],
        ["--corpus", str(toy / "corpus.jsonl")],
    )
    inputs = {
        "attention-entropy": [*corpus, "--sample", "4", "--max-length", "64"],
        "query-latency": [*topics, "--warm-up", "1", "--threads", "1", "--device", "cpu"],
        "layers": [*topics, *corpus, "--qrels", str(toy / "qrels.txt"), "--device", "cpu"],
    }

    def printed(command, *arguments):
        output = ["--output", str(toy / "out.csv"), "--overwrite", "--quiet"]
        assert run(["analyze", command, *arguments, *inputs[command], *output]) == 0
        return [line.split("\t") for line in capsys.readouterr().out.splitlines()]

    return printed


@pytest.mark.parametrize("command", ["sentence-similarity", "sentence_similarity"])
def test_sentence_pairs(tiny, tmp_path, capsys, command):
    data = write_pairs(tmp_path / "pairs.tsv")
    model = str(tiny())
    assert run(["analyze", command, "--model", model, "--data", data, "--pooling", "mean"]) == 0
    header, row = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert header == ["model", "data", "kind", "count", "measure", "value"]
    assert row[:5] == [model, data, "pairs", "5", "spearman"]
    assert -1 <= float(row[5]) <= 1


def test_models_may_follow_one_option(tiny, analyze):
    first, second = f"a={tiny()}", f"b={tiny(seed=8)}"
    together = analyze("attention-entropy", "--model", first, second)
    header, *rows = together
    assert header == ["layer", "a", "b"]
    assert [row[0] for row in rows] == ["1", "2"]
    assert all(0 < float(value) < 4.2 for row in rows for value in row[1:])
    assert analyze("attention-entropy", "--model", first, "--model", second) == together


def test_latency_side_by_side(tiny, analyze):
    header, *rows = analyze("query-latency", "--model", f"a={tiny()}", f"b={tiny(seed=8)}")
    assert header == ["label", "device", "threads", "p1_ms", "p50_ms", "p99_ms"]
    assert [row[:3] for row in rows] == [["a", "cpu", "1"], ["b", "cpu", "1"]]
    for row in rows:
        low, middle, high = map(float, row[3:])
        assert 0 < low <= middle <= high


def test_layers_that_win(tiny, analyze):
    models = ["--model", f"a={tiny()}", f"b={tiny(seed=8)}", "--representation", "mlr"]
    header, *rows = analyze("layers", *models, "--layers", "1,2", "--passage-max-length", "64")
    assert header == ["label", "passages", "pairs", "kind", "vector", "wins", "share"]
    expected = [[m, "positive", "4", "layer", n] for m in "ab" for n in "12"]
    assert [row[:5] for row in rows] == expected
    assert sum(float(row[6]) for row in rows) == 2
