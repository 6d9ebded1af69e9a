"""Aggretriever's lexical part: equations, slices, memory (spec example: tests/test_examples.py)."""

import json
import random

import pytest
import torch

from denserk.config.encoding import AggKind, AggLayout, TermWeight
from denserk.models import lexical
from denserk.models.lexical import WEIGHT_RULES, SliceLayout, VocabularyHead, aggregate
from tests.support import oracles

HIDDEN = 16
VOCABULARY = 75
MASK = torch.arange(9) < torch.tensor([[9], [1], [4], [6], [3]])
STAR = AggKind.STAR
PLUS = AggKind.PLUS
STRIDED = AggLayout.STRIDED
RANDOM = AggLayout.RANDOM


def layout_that_drops_ids():
    layout = SliceLayout(VOCABULARY, 10, STAR, STRIDED, 0)
    layout.dropped = 15
    layout.appended = 0
    return layout


LAYOUTS = {
    "none": None,
    "star": SliceLayout(VOCABULARY, 10, STAR, STRIDED, 0),
    "plus": SliceLayout(VOCABULARY, 10, PLUS, STRIDED, 0),
    "random": SliceLayout(VOCABULARY, 10, STAR, RANDOM, 5),
    "dropped": layout_that_drops_ids(),
    "wide": SliceLayout(VOCABULARY, 40, STAR, STRIDED, 0),
}


def reference(logits, weights, mask):
    """The paper's equation: (B, T, V), (B, T) after their rule, (B, T) -> (B, V)."""
    products = logits.softmax(dim=-1) * weights.unsqueeze(-1)
    return products.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)


def fold(scores, layout):
    return scores if layout is None else layout.halves(scores)


def blockwise(states, weights, decoder, bias, layout, *, signed=False):
    """What the package computes in blocks, of `reference` folded."""
    head = VocabularyHead(lambda inputs: inputs, decoder, bias, layout)
    return aggregate(states, weights, MASK, head, signed=signed)


@pytest.fixture(autouse=True)
def few_columns(monkeypatch):
    monkeypatch.setattr(lexical, "COLUMNS", 40)
    monkeypatch.setattr(lexical, "ROWS", {"cpu": 7})


def random_inputs(rule, scale=4.0, dtype=torch.float32):
    """States, weights after their rule, and the decoder's weight and bias."""
    torch.manual_seed(2)
    states = torch.randn(*MASK.shape, HIDDEN, dtype=dtype)
    weights = WEIGHT_RULES[rule](torch.randn(MASK.shape, dtype=dtype) + 0.2)
    decoder = torch.randn(VOCABULARY, HIDDEN, dtype=dtype) * scale / HIDDEN**0.5
    bias = torch.randn(VOCABULARY, dtype=dtype)
    return states, weights, decoder, bias


@pytest.mark.parametrize("rule", [TermWeight.CLAMP, TermWeight.SIGNED])
@pytest.mark.parametrize("name", LAYOUTS)
def test_values_and_gradients_are_those_of_the_reference(name, rule):
    layout = LAYOUTS[name]
    inputs = random_inputs(rule, dtype=torch.float64)
    for tensor in inputs:
        tensor.requires_grad_()
    states, weights, decoder, bias = inputs
    is_signed = rule is TermWeight.SIGNED
    expected = fold(reference(states @ decoder.T + bias, weights, MASK), layout)
    result = blockwise(states, weights, decoder, bias, layout, signed=is_signed)
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-12)

    direction = torch.randn_like(expected)
    expected_gradients = torch.autograd.grad(expected, inputs, direction)
    gradients = torch.autograd.grad(result, inputs, direction)
    for position in (0, 2, 3):  # states, decoder and bias
        torch.testing.assert_close(
            gradients[position], expected_gradients[position], rtol=1e-9, atol=1e-12
        )
    # a weight that the rule made zero lies at a kink, where there is no one gradient
    has_gradient = MASK if is_signed else MASK & (weights > 0)
    torch.testing.assert_close(
        gradients[1][has_gradient], expected_gradients[1][has_gradient], rtol=1e-9, atol=1e-12
    )


def test_logits_far_from_zero():
    states, weights, decoder, bias = random_inputs(TermWeight.CLAMP, scale=1)
    layout = LAYOUTS["star"]
    expected = fold(reference(states @ decoder.T + bias, weights, MASK), layout)
    for shift in (-200.0, 200.0):
        result = blockwise(states, weights, decoder, bias + shift, layout)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-7)  # 200 costs two digits


def test_low_precision():
    states, weights, decoder, bias = random_inputs(TermWeight.CLAMP, scale=1)
    layout = LAYOUTS["star"]
    expected = fold(reference(states @ decoder.T + bias, weights, MASK), layout)
    with torch.autocast("cpu", torch.bfloat16):
        result = blockwise(states, weights, decoder, bias, layout)
    assert result.dtype is torch.float32
    assert not torch.equal(result, expected)
    torch.testing.assert_close(result, expected, rtol=0.1, atol=0.01)


def test_every_probe_of_the_released_layouts(specs):
    probes = json.loads((specs / "aggretriever_example.json").read_text())["layout_probes"]
    for probe in probes:
        kind = {"agg_star": STAR, "agg_plus": PLUS}[probe["kind"]]
        layout = SliceLayout(probe["vocab_size"], probe["agg_dim"], kind, STRIDED, 0)
        assert layout.modulus == probe["modulus"]
        assert layout.dropped == probe["dropped_ids"]
        assert layout.appended == probe["padded_columns"]
        for item in probe["ids"]:
            scores = torch.zeros(probe["vocab_size"])
            scores[item["id"]] = 1.0
            expected = torch.zeros(probe["agg_dim"])
            if item["slice"] is not None:
                expected[item["slice"]] = item["sign"]
            assert layout.fold(scores).equal(expected)


@pytest.mark.parametrize("size", [(10, 5), (23, 5), (250, 9), (7, 16), (30522, 128)], ids=str)
@pytest.mark.parametrize("division", AggLayout)
@pytest.mark.parametrize("kind", [STAR, PLUS])
def test_folding_is_what_the_paper_says(kind, division, size):
    vocabulary, dimension = size
    layout = SliceLayout(vocabulary, dimension, kind, division, 5)
    generator = random.Random(1)
    for offset in (0, 0.5):  # signed term weights make negative scores
        scores = [generator.random() - offset for _ in range(vocabulary)]
        vectors = layout.fold(torch.tensor([scores], dtype=torch.float64))
        assert vectors.tolist() == [oracles.folded(scores, layout)]


@pytest.mark.parametrize(
    ("vocabulary", "dimension", "kind", "division", "dropped", "appended"),
    [
        (30522, 512, STAR, STRIDED, 826, 0),
        (30522, 512, PLUS, STRIDED, 314, 0),
        (30522, 1536, PLUS, STRIDED, 0, 198),  # 1,338 are too many to drop
        (30522, 512, PLUS, AggLayout.PAIRED, 826, 0),  # the slices of agg*
        (30522, 512, STAR, RANDOM, 0, 198),  # a random order has no special tokens first
        (50265, 640, STAR, STRIDED, 0, 935),  # RoBERTa's first tokens are frequent words
    ],
)
def test_only_the_first_tokens_of_bert_are_dropped(
    vocabulary, dimension, kind, division, dropped, appended
):
    layout = SliceLayout(vocabulary, dimension, kind, division, 42)
    assert (layout.dropped, layout.appended) == (dropped, appended)


def test_ties_zeros_and_the_seed_of_the_random_layout():
    values = SliceLayout(4, 2, STAR, STRIDED, 0).fold(torch.tensor([0.5, 0.5, 0.0, 0.0]))
    assert values.tolist() == [-0.5, 0.0]
    assert not values.signbit()[1]
    layout = SliceLayout(10, 5, STAR, RANDOM, 42)
    assert layout.order == (1, 0, 6, 4, 7, 9, 5, 8, 3, 2)
    assert layout.fold(torch.arange(10.0)).tolist() == [1.0, 6.0, -9.0, -8.0, 3.0]


@pytest.mark.parametrize("dimension", [500, 640])
def test_blocks_are_no_copies_of_the_decoder(dimension):
    layout = SliceLayout(30522, dimension, AggKind.STAR, AggLayout.STRIDED, 42)
    decoder = torch.randn(30522, 4)
    head = VocabularyHead(lambda inputs: inputs, decoder, torch.randn(30522), layout)
    storage = decoder.untyped_storage().data_ptr()
    weights = [weight for weight, _ in head.blocks]
    is_copy = [weight.untyped_storage().data_ptr() != storage for weight in weights]
    assert not any(is_copy[:-1])
    assert is_copy[-1] is (layout.appended > 0)
    assert sum(len(weight) for weight in weights) == 30522 + layout.appended
