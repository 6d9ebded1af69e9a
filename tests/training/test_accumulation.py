"""Batches that are accumulated into one update give the loss and the gradient of one batch."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.finetuning import log_of
from tests.support.tiny_models import without_dropout
from tests.support.training_examples import jsonl, words

# queries or texts of a batch, batches of an update
WHOLE = (8, 1)
HALVES = (4, 2)
QUARTERS = (2, 4)


@pytest.fixture(scope="module")
def model(tiny, tmp_path_factory):
    """A tiny model without dropout, whose noise depends on the batches."""
    return without_dropout(tiny("bert"), tmp_path_factory.mktemp("model") / "bert")


@pytest.fixture
def trained(denserk, model, tmp_path):
    """Train by a command; return the loss of the first update, and the weights after the second."""

    def train(command, division, flags, options):
        batch_size, batches = division
        output = tmp_path / f"{batch_size}x{batches}"
        usual = {"model": model, "output": output, "device": "cpu", "lr": 1e-4, "max-steps": 2}
        sizes = {"batch-size": batch_size, "gradient-accumulation-steps": batches}
        every_step = ("--set", "logging-steps=1", "--set", "warmup-steps=0")
        status, printed = denserk(command, usual | sizes | options, *flags, *every_step)
        assert status == 0, printed
        first_entry = log_of(output)[0]
        tensors = load_file(output / "model.safetensors").values()
        return first_entry["loss"], np.concatenate([tensor.ravel() for tensor in tensors])

    return train


def assert_one_loss(trained, command, *flags, divisions=(HALVES, QUARTERS), whole=WHOLE, **options):
    """Assert that a division of an update into batches changes neither loss nor weights."""
    loss, weights = trained(command, whole, flags, options)
    for division in divisions:
        accumulated_loss, accumulated_weights = trained(command, division, flags, options)
        assert accumulated_loss == pytest.approx(loss, rel=2e-6)
        # Adam divides by the gradient's size: where it is almost 0, so are its digits
        differences = np.abs(accumulated_weights - weights)
        assert np.quantile(differences, 0.99) < 2e-6


@pytest.mark.parametrize("objective", ["mlm", "condenser", "master", "retromae", "dupmae"])
def test_pretraining_is_a_mean_over_all_labelled_tokens_of_an_update(trained, tmp_path, objective):
    texts = [{"_id": f"{n}#0", "text": words(n, 2 + 3 * (n % 5))} for n in range(16)]
    corpus = jsonl(tmp_path / "corpus.jsonl", texts)
    options = {"objective": objective, "corpus": corpus, "max-length": 16}
    if objective == "master":
        expansions = [
            {"docid": f"{n}#0", "queries": [words(n + 7, 1 + n % 4)], "next": [words(n + 11, 5)]}
            for n in range(16)
        ]
        options["expansions"] = jsonl(tmp_path / "expansions.jsonl", expansions)
    assert_one_loss(trained, "pretrain", **options)


def test_a_smaller_last_batch_of_sentences_counts_by_its_examples(trained, tmp_path):
    pairs = [
        {"sentence1": words(n, 4), "sentence2": words(n + 5, 3), "label": (n % 6) / 5}
        for n in range(12)
    ]
    data = {"train-data": jsonl(tmp_path / "pairs.jsonl", pairs), "objective": "cosine-mse"}
    assert_one_loss(trained, "finetune", whole=(12, 1), divisions=[(8, 2)], **data)


def scored_queries(path):
    """Queries with one to three negatives, which have a teacher's scores."""
    return jsonl(path, (scored_query(number) for number in range(16)))


def scored_query(n):
    positive = {"docid": f"p{n}", "text": words(n + 3, 6), "score": 5 + n}
    negatives = [
        {"docid": f"n{n}-{i}", "text": words(n + 9 + i, 5), "score": float(n - 3 * i)}
        for i in range(1 + n % 3)
    ]
    return {
        "query_id": f"q{n}",
        "query": words(n, 3),
        "positive_passages": [positive],
        "negative_passages": negatives,
    }


def test_the_margins_of_a_teacher_count_alike_in_all_batches(trained, tmp_path):
    data = {"train-data": scored_queries(tmp_path / "train.jsonl"), "group-size": 4}
    no_contrast = ("--set", "contrastive-weight=0")
    options = {"representation": "mean", "distillation": "margin-mse"}
    assert_one_loss(trained, "finetune", *no_contrast, **data, **options)


def test_groups_of_a_cross_encoder_count_alike_in_all_batches(trained, tmp_path):
    data = {"train-data": scored_queries(tmp_path / "train.jsonl"), "group-size": 4}
    assert_one_loss(trained, "finetune", **data, representation="cross-encoder")


def test_cocondenser_takes_its_negatives_from_one_batch_and_accumulates_none(
    denserk, model, corpus, tmp_path
):
    options = {
        "objective": "cocondenser",
        "model": model,
        "corpus": corpus,
        "output": tmp_path / "out",
        "max-length": 16,
        "max-steps": 1,
        "device": "cpu",
    }
    accumulating = {"batch-size": 4, "gradient-accumulation-steps": 2}
    status, printed = denserk("pretrain", options | accumulating)
    assert status == 2
    assert "--batch-size 8" in printed
    assert "--cache-chunk-size 4" in printed
    assert not (tmp_path / "out").exists()
    advice = {"batch-size": 8, "cache-chunk-size": 4}
    status, _ = denserk("pretrain", options | advice)
    assert status == 0
