"""Entropies beside a slow restatement: Condenser's Figure 2, one text, head and token at a time."""

import json
import math

import pytest
import torch

from denserk.analysis.attention_entropy import layer_entropies, row_entropy
from denserk.data.batches import pad
from denserk.modeling.backbone import Backbone
from denserk.modeling.stored_model import StoredEncoder

KINDS = ["bert", "roberta", "distilbert", "electra"]
TEXTS = [[2, 9, 14, 30, 8, 3], [2, 17, 3], [2, 20, 21, 22, 23, 24, 25, 26, 3], [2, 3]]


def backbone_of(folder):
    stored = StoredEncoder.read(folder)
    return Backbone.from_tensors(
        stored.architecture, folder, stored.tensors, with_head=False
    ).double()


def literal_entropies(backbone, text):
    """[CLS] entropy of each layer: queries, keys and their softmax by hand, in Python's numbers."""
    states = backbone.hidden_states(pad([text], pad_id=0))
    layers = backbone.encoder.get_submodule(backbone.architecture.layers)
    found = []
    for layer, hidden in zip(layers, states[:-1], strict=True):
        own = layer.attention
        old = hasattr(own, "q_lin")  # DistilBERT's names
        query, key = (own.q_lin, own.k_lin) if old else (own.self.query, own.self.key)
        asking, asked = query(hidden[0, 0]).tolist(), key(hidden[0]).tolist()
        size = len(asking) // backbone.heads
        heads = []
        for begin in range(0, len(asking), size):
            places = range(begin, begin + size)
            scores = [sum(asking[i] * row[i] for i in places) / math.sqrt(size) for row in asked]
            total = sum(math.exp(score) for score in scores)
            p = [math.exp(score) / total for score in scores]
            heads.append(-sum(each * math.log(each) for each in p))
        found.append(sum(heads) / len(heads))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_alone_and_padded_as_the_literal_restatement(tiny, kind):
    backbone = backbone_of(tiny(kind))
    expected = torch.tensor([literal_entropies(backbone, text) for text in TEXTS])
    together = layer_entropies(backbone, pad(TEXTS, backbone.config.pad_token_id))
    assert together == pytest.approx(expected.numpy(), abs=1e-6)
    for text, row in zip(TEXTS, together, strict=True):
        assert layer_entropies(backbone, pad([text], 0))[0] == pytest.approx(row, abs=1e-12)


def test_the_example_of_the_specification(specs):
    example = json.loads((specs / "condenser_example.json").read_text())["cls_attention_entropy"]
    layers = []
    for number in (1, 2):
        rows = torch.tensor(example[f"cls_attention_layer{number}"])
        layers.append(row_entropy(rows, rows[:, 0] > 0))
    expected = torch.tensor(example["entropy_layer_example_head"], dtype=torch.float64)
    assert torch.stack(layers).allclose(expected, atol=1e-5)
    means = [float(layer.mean()) for layer in layers]
    assert means == pytest.approx(example["per_layer_mean"], abs=1e-5)


def test_what_padding_receives_does_not_count():
    rows = torch.tensor([[[0.25, 0.25, 0.5]]])
    mask = torch.tensor([[True, True, False]])
    assert float(row_entropy(rows, mask)) == pytest.approx(math.log(4) / 2)


@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_even_attention_has_the_logarithm_of_its_tokens(tokens):
    rows, mask = torch.full((1, 1, tokens), 1 / tokens), torch.ones(1, tokens, dtype=torch.bool)
    assert float(row_entropy(rows, mask)) == pytest.approx(math.log(tokens), abs=1e-7)
