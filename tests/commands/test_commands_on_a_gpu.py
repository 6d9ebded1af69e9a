"""Commands with `--device cuda` on a simulated GPU: in float32, the output of a CPU."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from denserk.commands.app import run
from denserk.io.runs import read_run_scores
from denserk.io.vectors import open_vectors
from tests.support.toy import PASSAGES, QUERIES


def on_both(command, **options):
    """Run a command in float32 on CPU and GPU; `{device}` in an option is the device."""
    for device in ("cpu", "cuda"):
        words = [*command.split(), "--device", device, "--dtype", "float32"]
        for name, value in options.items():
            words += [f"--{name.replace('_', '-')}", str(value).format(device=device)]
        assert run(words) == 0


def vectors_of(folder):
    return np.concatenate([block.vectors for block in open_vectors(folder).blocks()])


def test_encode_search_and_rerank(toy, tiny_agg, tiny_reranker, monkeypatch, simulated_gpu):
    monkeypatch.chdir(toy)
    model = tiny_agg()
    on_both("encode", model=model, corpus="corpus.jsonl", output="{device}-vectors")
    expected, vectors = vectors_of("cpu-vectors"), vectors_of("cuda-vectors")
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    searched = {"index": "{device}-vectors", "topics": "queries.tsv", "output": "{device}.trec"}
    on_both("search", **searched)
    reranked = {"run": "cpu.trec", "topics": "queries.tsv", "corpus": "corpus.jsonl"}
    on_both("rerank", model=tiny_reranker(), **reranked, output="{device}-reranked.trec")
    for module in ("models/text_encoder.py", "index/exact_gpu.py", "models/cross_encoder.py"):
        assert any(module in wait for wait in simulated_gpu.waits)
    for name in ("{}.trec", "{}-reranked.trec"):
        expected_run = read_run_scores(name.format("cpu"))
        found_run = read_run_scores(name.format("cuda"))
        assert found_run.keys() == expected_run.keys()
        for qid, scores in expected_run.items():
            assert found_run[qid] == pytest.approx(scores, rel=1e-4)


def test_a_model_that_writes_text(writer, toy, monkeypatch, simulated_gpu):
    monkeypatch.chdir(toy)
    options = {"corpus": "corpus.jsonl", "queries_model": writer("t5"), "output": "{device}.jsonl"}
    on_both("generate", **options)
    assert (toy / "cuda.jsonl").read_text() == (toy / "cpu.jsonl").read_text()
    assert any("models/generation.py" in wait for wait in simulated_gpu.waits)


def test_attention_is_analysed(tiny, toy, monkeypatch, simulated_gpu):
    monkeypatch.chdir(toy)
    options = {
        "model": tiny(),
        "corpus": "corpus.jsonl",
        "output": "{device}.csv",
        "max_length": 32,
    }
    on_both("analyze attention-entropy", **options)
    expected, table = (np.genfromtxt(f"{name}.csv", delimiter=",")[1:] for name in ("cpu", "cuda"))
    np.testing.assert_allclose(table, expected, rtol=1e-4)


def test_the_latency_of_queries_is_measured_when_the_gpu_is_done(
    tiny, toy, monkeypatch, simulated_gpu
):
    monkeypatch.chdir(toy)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "simulated")
    ends: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", ends.append)
    options = {"model": tiny(), "topics": "queries.tsv", "output": "{device}.csv"}
    on_both("analyze query-latency", **options, representation="cls")
    assert ends
    assert set(ends) == {torch.device("cuda")}


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_layers_are_analysed(tiny, toy, monkeypatch, simulated_gpu):
    monkeypatch.chdir(toy)
    options = {
        "model": tiny(),
        "topics": "queries.tsv",
        "corpus": "corpus.jsonl",
        "qrels": "qrels.txt",
        "representation": "mlr",
        "reduction": "multi-vector",
        "output": "{device}.csv",
    }
    on_both("analyze layers", **options)
    assert rows_of(toy / "cuda.csv") == rows_of(toy / "cpu.csv")
    assert any("models/text_encoder.py" in wait for wait in simulated_gpu.waits)


def test_mined_negatives_have_the_teachers_scores(tiny_reranker, toy, monkeypatch, simulated_gpu):
    monkeypatch.chdir(toy)
    options = {
        "topics": "queries.tsv",
        "qrels": "qrels.txt",
        "run": "run.trec",
        "corpus": "corpus.jsonl",
        "teacher": tiny_reranker(),
        "output": "{device}.jsonl",
    }
    lines = []
    for qid in QUERIES:
        lines += [f"{qid} Q0 {docid} {rank} {-rank} x\n" for rank, docid in enumerate(PASSAGES)]
    Path("run.trec").write_text("".join(lines))
    on_both("mine-negatives", **options)
    expected_scores, scores = (scores_of(Path(f"{device}.jsonl")) for device in ("cpu", "cuda"))
    assert scores == pytest.approx(expected_scores, rel=1e-4)
    assert any("models/cross_encoder.py" in wait for wait in simulated_gpu.waits)


def scores_of(path):
    """The teacher's scores in mined training data, by query and passage."""
    scores = {}
    for line in path.read_text().splitlines():
        example = json.loads(line)
        for passage in [*example["positive_passages"], *example["negative_passages"]]:
            scores[example["query_id"], passage["docid"]] = passage["score"]
    return scores
