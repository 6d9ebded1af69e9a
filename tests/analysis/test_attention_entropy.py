"""Entropies beside a slow restatement: Condenser's Figure 2, one text, head and token at a time."""

import csv
import json
import math

import numpy as np
import pytest
import torch

from denserk.analysis.layers import ENTROPY_HEADER, attention_entropy, layer_entropies, row_entropy
from denserk.config.analysis import AttentionEntropySettings
from denserk.config.encoding import Backend, ComputeSettings, RepresentationSettings, TextSettings
from denserk.data.batches import pad
from denserk.data.sampling import choose_items
from denserk.data.tokenization import load_tokenizer
from denserk.errors import ModelError
from denserk.models.model_folder import save_model
from denserk.models.stored_model import StoredEncoder, read_model_folder
from denserk.models.text_encoder import TextEncoder
from tests.conftest import PASSAGES

KINDS = ["bert", "roberta", "distilbert", "electra"]
TEXTS = [[2, 9, 14, 30, 8, 3], [2, 17, 3], [2, 20, 21, 22, 23, 24, 25, 26, 3], [2, 3]]


def backbone_of(folder):
    return StoredEncoder.read(folder).backbone().double()


def literal_entropies(backbone, text):
    """[CLS] entropy of each layer: queries, keys and their softmax by hand, in Python's numbers."""
    states = backbone.hidden_states(pad([text], pad_id=0))
    old = backbone.architecture.model_type == "distilbert"  # its own names
    layers = backbone.encoder.get_submodule("transformer.layer" if old else "encoder.layer")
    found = []
    for layer, hidden in zip(layers, states[:-1], strict=True):
        own = layer.attention
        query, key = (own.q_lin, own.k_lin) if old else (own.self.query, own.self.key)
        asking, asked = query(hidden[0, 0]).tolist(), key(hidden[0]).tolist()
        size = len(asking) // backbone.config.num_attention_heads
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


def measured(tmp_path, *models, compute=None, **more):
    chosen = {"max_length": 64, "output": str(tmp_path / "e.csv"), **more}
    settings = AttentionEntropySettings(model=tuple(map(str, models)), **chosen)
    more = {"compute": compute} if compute else {}
    return attention_entropy(settings, **more)


TORCH = ComputeSettings(backend=Backend.TORCH)


def alone(folder, passages, length=64):
    """(P, L): each passage in a batch of its own."""
    text = {"passage_max_length": length}
    side = TextEncoder.load(str(folder), text=text, compute=TORCH).sides["passage"]
    ids = side.tokenizer.sentences([f"{title} {body}" for title, body in passages])
    return np.concatenate([layer_entropies(side.encoder.backbone, pad([i], 0)) for i in ids])


@pytest.mark.parametrize("tokens", [1, 30, 8192])
def test_a_curve_is_the_mean_over_passages_each_read_alone(tiny, toy, tmp_path, tokens):
    pytest.importorskip("matplotlib")
    compute, corpus = ComputeSettings(batch_tokens=tokens), str(toy / "corpus.jsonl")
    (found,) = measured(tmp_path, f"own={tiny()}", corpus=corpus, compute=compute)
    each = alone(tiny(), PASSAGES.values())
    assert found.entropy == pytest.approx(each.mean(0), abs=1e-6)
    assert found.deviation == pytest.approx(each.std(0), abs=1e-6)
    with (tmp_path / "e.csv").open() as lines:
        header, *rows = csv.reader(lines)
    assert tuple(header) == ENTROPY_HEADER
    expected = ["own", str(tiny()), corpus, "6", "42", "64"]
    assert [row[:7] for row in rows] == [[*expected, "1"], [*expected, "2"]]
    assert [float(row[7]) for row in rows] == pytest.approx(found.entropy, abs=1e-6)
    assert (tmp_path / "e.png").read_bytes().startswith(b"\x89PNG")


def test_the_sample_is_drawn_once_by_its_seed_from_passages_with_text(tiny, tmp_path):
    texts = [
        f"the {color} {beast}" for color in ("red", "blue") for beast in ("cat", "dog", "fish")
    ]
    with (tmp_path / "c.jsonl").open("w") as out:
        for number, text in enumerate([*texts[:2], "  ", *texts[2:]]):
            out.write(json.dumps({"_id": str(number), "title": "", "text": text}) + "\n")
    chosen = {"corpus": str(tmp_path / "c.jsonl"), "sample": 3, "seed": 5}
    first, second = measured(tmp_path, tiny(), tiny(seed=8), **chosen)
    drawn = [("", texts[i]) for i in choose_items(np.arange(6), 3, seed=5)]
    assert first.entropy == pytest.approx(alone(tiny(), drawn).mean(0), abs=1e-6)
    assert second.entropy == pytest.approx(alone(tiny(seed=8), drawn).mean(0), abs=1e-6)


def test_of_separate_encoders_that_of_passages_is_measured(tiny, toy, tmp_path):
    queries, passages = (read_model_folder(tiny(seed=seed)).passage for seed in (8, 7))
    both = [side.build(RepresentationSettings()) for side in (passages, queries)]
    folder = tmp_path / "both"
    save_model(folder, both[0], load_tokenizer(tiny()), TextSettings(), query=both[1])
    corpus = {"corpus": str(toy / "corpus.jsonl")}
    found, one, other = measured(tmp_path, folder, tiny(), tiny(seed=8), **corpus)
    assert found.entropy == one.entropy != other.entropy


def test_a_t5_has_no_cls(tiny, toy, tmp_path):
    with pytest.raises(ModelError, match=r"a t5 backbone has no \[CLS\] token"):
        measured(tmp_path, tiny("t5"), corpus=str(toy / "corpus.jsonl"))
