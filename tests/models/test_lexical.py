"""Aggretriever's lexical part: equations, slices, memory (spec example: tests/test_examples.py)."""

import json
import random

import pytest
import torch

from denserk.config.encoding import AggKind, AggLayout, TermWeight
from denserk.models import lexical
from denserk.models.lexical import WEIGHT_RULES, SliceLayout, VocabularyHead, aggregate
from tests.support import oracles

HIDDEN, VOCABULARY = 16, 75
MASK = torch.arange(9) < torch.tensor([[9], [1], [4], [6], [3]])
STAR, PLUS = AggKind.STAR, AggKind.PLUS
STRIDED, PAIRED, RANDOM = AggLayout.STRIDED, AggLayout.PAIRED, AggLayout.RANDOM


def dropping():
    layout = SliceLayout(VOCABULARY, 10, STAR, STRIDED, 0)
    layout.dropped, layout.appended = 15, 0
    return layout


LAYOUTS = {
    "none": None,
    "star": SliceLayout(VOCABULARY, 10, STAR, STRIDED, 0),
    "plus": SliceLayout(VOCABULARY, 10, PLUS, STRIDED, 0),
    "random": SliceLayout(VOCABULARY, 10, STAR, RANDOM, 5),
    "dropped": dropping(),
    "wide": SliceLayout(VOCABULARY, 40, STAR, STRIDED, 0),
}


def reference(logits, weights, mask):
    """The paper's equation: (B, T, V), (B, T) after their rule, (B, T) -> (B, V)."""
    products = logits.softmax(dim=-1) * weights.unsqueeze(-1)
    return products.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)


def fold(scores, layout):
    return scores if layout is None else layout.halves(scores)


def blockwise(states, weights, mask, weight, bias, layout, signed):
    head = VocabularyHead(lambda inputs: inputs, weight, bias, layout)
    return aggregate(states, weights, mask, head, signed=signed)


@pytest.fixture(autouse=True)
def few_columns(monkeypatch):
    monkeypatch.setattr(lexical, "COLUMNS", 40)
    monkeypatch.setattr(lexical, "ROWS", {"cpu": 7})


def drawn(rule, scale=4.0, dtype=torch.float32):
    torch.manual_seed(2)
    states = torch.randn(*MASK.shape, HIDDEN, dtype=dtype)
    weights = WEIGHT_RULES[rule](torch.randn(MASK.shape, dtype=dtype) + 0.2)
    decoder = torch.randn(VOCABULARY, HIDDEN, dtype=dtype) * scale / HIDDEN**0.5
    return states, weights, decoder, torch.randn(VOCABULARY, dtype=dtype)


@pytest.mark.parametrize("rule", [TermWeight.CLAMP, TermWeight.SIGNED])
@pytest.mark.parametrize("name", LAYOUTS)
def test_values_and_gradients_are_those_of_the_reference(name, rule):
    layout, (states, weights, decoder, bias) = LAYOUTS[name], drawn(rule, dtype=torch.float64)
    leaves = [each.requires_grad_() for each in (states, weights, decoder, bias)]
    expected = fold(reference(states @ decoder.T + bias, weights, MASK), layout)
    found = blockwise(states, weights, MASK, decoder, bias, layout, rule is TermWeight.SIGNED)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    towards = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, leaves, towards)
    got = torch.autograd.grad(found, leaves, towards)
    used = MASK if rule is TermWeight.SIGNED else MASK & (weights > 0)  # others lie before a kink
    for ours, theirs in ((got[0], wanted[0]), *zip(got[2:], wanted[2:], strict=True)):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(got[1][used], wanted[1][used], rtol=1e-9, atol=1e-12)


def test_logits_far_from_zero_and_low_precision():
    states, weights, decoder, bias = drawn(TermWeight.CLAMP, scale=1)
    expected = fold(reference(states @ decoder.T + bias, weights, MASK), LAYOUTS["star"])
    for shift in (-200.0, 200.0):
        found = blockwise(states, weights, MASK, decoder, bias + shift, LAYOUTS["star"], False)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)  # 200 costs two digits
    with torch.autocast("cpu", torch.bfloat16):
        found = blockwise(states, weights, MASK, decoder, bias, LAYOUTS["star"], False)
    assert found.dtype is torch.float32
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.01)


def test_every_probe_of_the_released_layouts(specs):
    probes = json.loads((specs / "aggretriever_example.json").read_text())["layout_probes"]
    for probe in probes:
        size, dimension = probe["vocab_size"], probe["agg_dim"]
        kind = {"agg_star": STAR, "agg_plus": PLUS}[probe["kind"]]
        layout = SliceLayout(size, dimension, kind, STRIDED, 0)
        expected = (probe["modulus"], probe["dropped_ids"], probe["padded_columns"])
        assert (layout.modulus, layout.dropped, layout.appended) == expected
        for item in probe["ids"]:
            alone, wanted = torch.zeros(size), torch.zeros(dimension)
            alone[item["id"]] = 1.0
            if item["slice"] is not None:
                wanted[item["slice"]] = item["sign"]
            assert layout.fold(alone).equal(wanted)


@pytest.mark.parametrize("size", [(10, 5), (23, 5), (250, 9), (7, 16), (30522, 128)], ids=str)
@pytest.mark.parametrize("layout", AggLayout)
@pytest.mark.parametrize("kind", [STAR, PLUS])
def test_folding_is_what_the_paper_says(kind, layout, size):
    vocabulary, dimension = size
    made = SliceLayout(vocabulary, dimension, kind, layout, 5)
    numbers = random.Random(1)
    for offset in (0, 0.5):  # signed term weights make negative scores
        scores = [numbers.random() - offset for _ in range(vocabulary)]
        got = made.fold(torch.tensor([scores], dtype=torch.float64))
        assert got.tolist() == [oracles.folded(scores, made)]


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
    weight, bias = torch.randn(30522, 4), torch.randn(30522)
    head = VocabularyHead(lambda inputs: inputs, weight, bias, layout)
    storage = weight.untyped_storage().data_ptr()
    copied = [part.untyped_storage().data_ptr() != storage for part, _ in head.blocks]
    assert not any(copied[:-1])
    assert copied[-1] is (layout.appended > 0)
    assert sum(len(part) for part, _ in head.blocks) == 30522 + layout.appended
