"""A GPU without memory for anything: what was computed, and the option that needs less.

Batches that are only too large are in `tests/models/test_token_budget.py`.
"""

import json

import pytest
import torch

import denserk
from denserk.commands.app import run
from denserk.errors import DenserkError
from tests.support.finetuning import write_examples

CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB"
CPU = "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"
ERRORS = [torch.OutOfMemoryError(CUDA), RuntimeError(CPU), RuntimeError(CUDA)]


@pytest.fixture(params=ERRORS, ids=lambda error: f"{type(error).__name__} {str(error)[:4]}")
def full(request, monkeypatch):
    """From now on no model has memory to compute."""

    def fail(*_, **__):
        raise request.param

    def start():
        monkeypatch.setattr(torch.nn.functional, "layer_norm", fail)

    return start


def failed(capfd, *words):
    assert run([str(word) for word in (*words, "--device", "cpu")]) == 1
    printed = capfd.readouterr().err
    assert "internal error" not in printed
    assert "report" not in printed
    error = next(line for line in printed.splitlines() if line.startswith("error: "))
    assert "allocate" in error
    return error, printed.splitlines()[-1]


def test_encode_names_the_length_of_texts(tiny, toy, tmp_path, capfd, full):
    full()
    source = ("--corpus", toy / "corpus.jsonl", "--output", tmp_path / "v", "--batch-tokens", "64")
    error, hint = failed(capfd, "encode", "--model", tiny(), *source, "--backend", "torch")
    assert "texts of" in error
    assert "--passage-max-length" in hint
    with pytest.raises(DenserkError, match="texts of") as caught:
        denserk.Encoder.load(tiny(), device="cpu", backend="torch").encode_queries(["the cat"])
    assert "--query-max-length" in str(caught.value.hint)


def test_rerank_names_the_length_of_pairs(tiny_reranker, toy, tmp_path, capfd, full):
    full()
    (toy / "r.trec").write_text("q1 Q0 d3 1 2.0 x\nq1 Q0 d1 2 1.0 x\n")
    texts = ("--topics", toy / "queries.tsv", "--corpus", toy / "corpus.jsonl")
    paths = ("--run", toy / "r.trec", *texts, "--output", tmp_path / "out")
    error, hint = failed(capfd, "rerank", "--model", tiny_reranker(), *paths)
    assert "pairs of" in error
    assert "--pair-max-length" in hint
    assert not (tmp_path / "out").exists()


def test_finetune_names_gradient_caching(tiny, tmp_path, capfd, full):
    full()
    data = write_examples(tmp_path / "train.jsonl", range(8))
    sizes = ("--batch-size", "4", "--group-size", "2", "--max-steps", "2")
    paths = ("--train-data", data, "--output", tmp_path / "m")
    error, hint = failed(capfd, "finetune", "--model", tiny(), *paths, *sizes)
    assert "training step 1" in error
    assert "--grad-cache" in hint


def test_pretrain_names_micro_batches(tiny, tmp_path, capfd, full):
    full()
    corpus = tmp_path / "corpus.jsonl"
    texts = ("the old river runs to the south and the moon rises " * 3 for _ in range(16))
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    paths = ("--corpus", corpus, "--output", tmp_path / "m", "--objective", "mlm")
    sizes = ("--batch-size", "4", "--max-steps", "1", "--max-length", "16")
    error, hint = failed(capfd, "pretrain", "--model", tiny(), *paths, *sizes)
    assert "training step 1" in error
    assert "--micro-batch-size" in hint
