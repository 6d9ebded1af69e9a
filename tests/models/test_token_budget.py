"""Batches that do not fit in memory are halved, and the results are those of small batches."""

import gc
import re
import weakref
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
import torch

from denserk.config.encoding import (
    Backend,
    ComputeSettings,
    DtypeChoice,
    PairSettings,
    TextSettings,
)
from denserk.config.formats import QUERIES, GenerateSettings
from denserk.config.training import Objective, ObjectiveSettings
from denserk.data.batches import PairJoiner, plan
from denserk.data.tokenization import TextTokenizer, load_tokenizer
from denserk.data.training_data import tokenize_sentences
from denserk.errors import DenserkError
from denserk.models.cross_encoder import PairScorer, reranker_to_train
from denserk.models.generation import TextGenerator
from denserk.models.text_encoder import TextEncoder
from denserk.models.token_budget import TokenBudget
from denserk.records import Passage, Query
from denserk.training import validation
from tests.support.console import warnings_of
from tests.support.retrievers import retriever
from tests.support.toy import WORDS
from tests.support.training_examples import jsonl

MESSAGE = "CUDA out of memory. Tried to allocate 2.00 GiB"
T5_DISTANCES = 32  # rows of T5's embedding of distances between tokens
LIMIT = 60  # tokens of a batch that fits
PASSAGES = [Passage(f"d{i}", " ".join(WORDS[: i % 9]), "cat" if i % 3 else "") for i in range(25)]
TEXT_QUERIES = [Query(f"q{i}", " ".join(WORDS[i % 5 : i % 5 + 1 + i % 4])) for i in range(25)]
IDS = [[2, *range(10, 12 + number % 7), 3] for number in range(20)]


@pytest.fixture
def limited(monkeypatch):
    """`limited()`: from now on, no model has memory for a batch of more than `LIMIT` tokens."""
    embedding = torch.nn.functional.embedding

    def limited_embedding(ids, weight, *args, **kwargs):
        is_of_words = len(weight) > T5_DISTANCES
        if is_of_words and ids.numel() > limits[-1]:
            raise torch.OutOfMemoryError(MESSAGE)
        return embedding(ids, weight, *args, **kwargs)

    limits = [10**9]
    monkeypatch.setattr(torch.nn.functional, "embedding", limited_embedding)
    return lambda tokens=LIMIT: limits.append(tokens)


def encoder_of(folder, **compute):
    return TextEncoder(str(folder), compute=ComputeSettings(backend=Backend.TORCH, **compute))


def halvings(caplog):
    """Return the numbers of tokens that the log names, one for each halving."""
    warnings = [warning for warning in warnings_of(caplog) if "out of memory" in warning]
    assert all(MESSAGE in warning for warning in warnings)
    sizes = re.findall(r"at most ([\d,]+) tokens", "\n".join(warnings))
    return [int(size.replace(",", "")) for size in sizes]


@pytest.mark.parametrize("side", ["passage", "query"])
def test_vectors_are_those_of_small_batches(tiny, limited, caplog, side):
    encoder = encoder_of(tiny(), device="cpu")
    texts = PASSAGES if side == "passage" else TEXT_QUERIES
    planned_before = encoder.plan(side, texts[3:])  # in batches that turn out to be too large
    no_texts = encoder.plan(side, [])  # of a block that --update copies
    limited()
    advances: list[int] = []
    vectors = encoder.encode_planned(side, encoder.plan(side, texts), advances.append)
    sizes = halvings(caplog)
    assert sizes[-1] <= LIMIT
    assert all(size <= previous // 2 for previous, size in pairwise(sizes))
    assert f"--batch-tokens {sizes[-1]}" in caplog.text
    assert sum(advances) == len(texts)

    small = encoder_of(tiny(), device="cpu", batch_tokens=sizes[-1])
    expected = small.encode_planned(side, small.plan(side, texts))
    assert vectors.tobytes() == expected.tobytes()
    vectors = encoder.encode_planned(side, planned_before)
    expected = small.encode_planned(side, small.plan(side, texts[3:]))
    assert vectors.tobytes() == expected.tobytes()
    assert encoder.encode_planned(side, no_texts).shape == (0, encoder.dimension)
    assert halvings(caplog) == sizes


def test_vectors_on_a_gpu(tiny_agg, simulated_gpu, limited, caplog):
    folder = tiny_agg()
    # in bfloat16, products of other batches may be rounded otherwise
    compute = {"device": "cuda", "dtype": DtypeChoice.FLOAT32}
    expected = encoder_of(folder, **compute).encode_passages(PASSAGES)
    encoder = encoder_of(folder, **compute)
    limited()
    with patch.object(torch.cuda, "empty_cache") as empty_cache:
        vectors = encoder.encode_passages(PASSAGES)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
    assert halvings(caplog)
    assert empty_cache.call_count == len(halvings(caplog))
    assert "on cuda" in caplog.text


def test_batches_that_were_done_stay(tiny, monkeypatch):
    """Memory is short for the third batch alone: it and the following ones are divided again."""
    expected = encoder_of(tiny(), device="cpu").encode_passages(PASSAGES)
    encoder = encoder_of(tiny(), device="cpu", batch_tokens=50)
    planned = encoder.plan("passage", PASSAGES)
    layer_norm = torch.nn.functional.layer_norm
    batch_tokens: list[int] = []  # of each call, several for a batch
    failures: list[int] = []

    def layer_norm_without_memory_for_the_third(states, *args, **kwargs):
        batch_tokens.append(states.shape[:2].numel())
        is_third_size = len(set(batch_tokens)) == 3 and len(batch_tokens) > 3
        if is_third_size and not failures:
            failures.append(batch_tokens[-1])
            raise torch.OutOfMemoryError(MESSAGE)
        return layer_norm(states, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "layer_norm", layer_norm_without_memory_for_the_third)
    advances: list[int] = []
    vectors = encoder.encode_planned("passage", planned, advances.append)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
    assert failures
    assert advances[:2] == [len(rows) for rows in planned.rows[:2]]
    assert sum(advances) == len(PASSAGES)
    assert len(advances) > len(planned.batches)


def test_scores_of_pairs_are_those_of_small_batches(tiny_reranker, limited, caplog):
    scorer = PairScorer(str(tiny_reranker()), compute=ComputeSettings(device="cpu"))
    limited()
    scores = scorer.score(TEXT_QUERIES, PASSAGES)
    size = halvings(caplog)[-1]
    small = PairScorer(
        str(tiny_reranker()), compute=ComputeSettings(device="cpu", batch_tokens=size)
    )
    assert scores.tobytes() == small.score(TEXT_QUERIES, PASSAGES).tobytes()


def test_texts_are_generated_as_in_small_batches(writer, limited, caplog):
    settings = GenerateSettings(
        corpus="c", output="o", queries_model=str(writer("t5")), num_queries=2, query_max_tokens=6
    )
    texts = [f"{passage.text} cat" for passage in PASSAGES]
    generator = TextGenerator(QUERIES, settings, ComputeSettings(device="cpu"))
    limited()
    generated = generator.generate(texts, 40, seed=7)
    size = halvings(caplog)[-1]
    small = TextGenerator(QUERIES, settings, ComputeSettings(device="cpu", batch_tokens=size))
    assert generated == small.generate(texts, 40, seed=7)


def test_validation_measures_the_same(tiny, limited, caplog):
    model = retriever(tiny(), "cls").eval()
    dev = validation.DevSet(IDS[:8], IDS, (0, 0), [[row] for row in range(8)])
    budget = validation.token_budget()
    expected = validation.measure(model, budget, [dev], 4, 1)
    limited()
    assert validation.measure(model, budget, [dev], 4, 1) == pytest.approx(expected)
    sizes = halvings(caplog)
    assert "--batch-tokens" not in caplog.text
    assert validation.measure(model, budget, [dev], 4, 1) == pytest.approx(expected)
    assert halvings(caplog) == sizes


def test_validation_of_a_cross_encoder_measures_the_same(tiny, limited, caplog):
    reranker = reranker_to_train(tiny(), seed=3).eval()
    joiner = PairJoiner(load_tokenizer(tiny()), TextSettings(), PairSettings())
    groups = torch.tensor([list(range(11)), [11, *range(10)]])
    dev = validation.DevSet(IDS[:2], IDS, (0, 0), [[0], [11]], groups)
    budget = validation.token_budget()
    expected = validation.measure_groups(reranker, joiner, budget, [dev])
    limited()
    values = validation.measure_groups(reranker, joiner, budget, [dev])
    assert values == pytest.approx(expected)
    assert halvings(caplog)


def test_validation_on_sentences_measures_the_same(tiny, tmp_path, limited, caplog):
    encoder = retriever(tiny(), "mean").eval().passage
    tokenizer = TextTokenizer(load_tokenizer(tiny()), TextSettings())
    pairs = [{"sentence1": "the cat", "sentence2": "the river", "score": i} for i in range(6)]
    source = jsonl(tmp_path / "pairs.jsonl", pairs)
    store = tokenize_sentences([source], tmp_path / "data", tokenizer, size=2, label_scale=5)
    objective = ObjectiveSettings(Objective.COSINE_MSE)
    budget = validation.token_budget()
    expected = validation.measure_sentences(encoder, objective, budget, store)
    limited(20)
    values = validation.measure_sentences(encoder, objective, budget, store)
    assert values == pytest.approx(expected)
    assert halvings(caplog)


def test_a_single_text_that_does_not_fit_is_an_error(tiny, limited, caplog):
    encoder = encoder_of(tiny(), device="cpu")
    limited(tokens=4)
    with pytest.raises(DenserkError, match=r"out of memory while encoding 1 texts of 11 tokens"):
        encoder.encode_passages(PASSAGES)
    assert halvings(caplog)


def test_another_error_is_no_lack_of_memory():
    budget = TokenBudget(100, "encoding {texts} texts of {tokens} tokens", shorten="cut them")

    def fail():
        raise RuntimeError("The size of tensor a must match the size of tensor b")

    with pytest.raises(RuntimeError, match="must match"):
        budget.attempt(2, 5, fail)
    assert budget.tokens == 100


def test_the_memory_of_the_failed_batch_is_free_when_the_cache_is_emptied(monkeypatch):
    budget = TokenBudget(100, "encoding {texts} texts of {tokens} tokens", shorten="cut them")
    states: list[weakref.ref[torch.Tensor]] = []
    remaining_states: list[object] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: remaining_states.append(states[0]()))

    def fail():
        tensor = torch.ones(3)
        states.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError(MESSAGE)

    gc.disable()  # nothing waits for the collector
    try:
        assert budget.attempt(10, 8, fail) is None
    finally:
        gc.enable()
    assert remaining_states == [None]
    assert budget.tokens == 40


def test_texts_are_divided_again_as_if_they_had_been_from_the_start():
    ids = [[*range(1 + number * 7 % 13)] for number in range(30)]
    planned = plan(ids, 0, 80)
    expected = plan(ids, 0, 20)
    divided = planned.divided_again(0, 20)
    for rows, expected_rows in zip(divided.rows, expected.rows, strict=True):
        assert rows.equal(expected_rows)
    for batch, expected_batch in zip(divided.batches, expected.batches, strict=True):
        assert batch.input_ids.equal(expected_batch.input_ids)
        assert batch.attention_mask.equal(expected_batch.attention_mask)


def test_batches_that_were_done_are_not_divided_again():
    ids = [[*range(1 + number * 7 % 13)] for number in range(30)]
    planned = plan(ids, 0, 80)
    remaining = planned.divided_again(2, 20)
    expected_rows = torch.cat(planned.rows[2:]).sort().values
    assert torch.cat(remaining.rows).sort().values.equal(expected_rows)
    assert remaining.count == planned.count
