import pytest

from denserk.commands.app import run
from tests.analysis.test_sentence_similarity import write_pairs


@pytest.mark.parametrize("command", ["sentence-similarity", "sentence_similarity"])
def test_pairs(tiny, tmp_path, capsys, command):
    data = write_pairs(tmp_path / "pairs.tsv")
    model = str(tiny())
    assert run(["analyze", command, "--model", model, "--data", data, "--pooling", "mean"]) == 0
    header, row = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert header == ["model", "data", "kind", "count", "measure", "value"]
    assert row[:5] == [model, data, "pairs", "5", "spearman"]
    assert -1 <= float(row[5]) <= 1


def entropy(tmp_path, *arguments):
    return run(
        [
            "analyze",
            "attention-entropy",
            *arguments,
            "--output",
            str(tmp_path / "e.csv"),
            "--overwrite",
            "--quiet",
        ]
    )


def test_models_may_follow_one_option(tiny, toy, tmp_path, capsys):
    corpus = ["--corpus", str(toy / "corpus.jsonl"), "--sample", "4", "--max-length", "64"]
    assert entropy(tmp_path, "--model", f"a={tiny()}", f"b={tiny(seed=8)}", *corpus) == 0
    together = capsys.readouterr().out
    header, *rows = (line.split("\t") for line in together.splitlines())
    assert header == ["layer", "a", "b"]
    assert [row[0] for row in rows] == ["1", "2"]
    assert all(0 < float(value) < 4.2 for row in rows for value in row[1:])
    apart = ["--model", f"a={tiny()}", "--model", f"b={tiny(seed=8)}"]
    assert entropy(tmp_path, *apart, *corpus) == 0
    assert capsys.readouterr().out == together


def latency(toy, *arguments):
    topics = ["--topics", str(toy / "queries.tsv"), "--device", "cpu", "--warm-up", "1"]
    return run(["analyze", "query-latency", *arguments, *topics, "--quiet"])


def test_times_side_by_side(tiny, toy, capsys):
    models = ["--model", f"a={tiny()}", f"b={tiny(seed=8)}"]
    assert latency(toy, *models, "--output", str(toy / "l.csv"), "--threads", "1") == 0
    header, *rows = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert header == ["model", "device", "threads", "p1 ms", "p50 ms", "p99 ms"]
    assert [row[:3] for row in rows] == [["a", "cpu", "1"], ["b", "cpu", "1"]]
    for row in rows:
        low, middle, high = map(float, row[3:])
        assert 0 < low <= middle <= high


def layers(toy, *arguments):
    files = ["--topics", str(toy / "queries.tsv"), "--corpus", str(toy / "corpus.jsonl")]
    files += ["--qrels", str(toy / "qrels.txt"), "--passage-max-length", "64"]
    return run(["analyze", "layers", *arguments, *files, "--device", "cpu", "--quiet"])


def test_layers_that_win(tiny, toy, capsys):
    made = ["--representation", "mlr", "--layers", "1,2", "--output", str(toy / "l.csv")]
    assert layers(toy, "--model", f"a={tiny()}", f"b={tiny(seed=8)}", *made) == 0
    header, *rows = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert header == ["model", "passages", "pairs", "vector", "wins", "share"]
    expected = [[m, "positive", "4", f"layer {n}"] for m in "ab" for n in (1, 2)]
    assert [row[:4] for row in rows] == expected
    assert sum(float(row[5]) for row in rows) == 2


def test_a_single_vector_model_is_refused_with_the_reason(tiny, toy, capsys):
    assert layers(toy, "--model", f"m={tiny()}") == 1
    told = capsys.readouterr().err
    assert "m gives a passage one vector: there is no maximum to win" in told
    assert "Traceback" not in told
