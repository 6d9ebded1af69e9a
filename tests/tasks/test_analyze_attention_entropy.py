"""Entropies beside a slow restatement: Condenser's Figure 2, one text, head and token at a time."""

import csv
import json
import math

import numpy as np
import pytest
import torch

from denserk.commands.app import run
from denserk.config.analysis import AttentionEntropySettings
from denserk.config.encoding import Backend, ComputeSettings, RepresentationSettings, TextSettings
from denserk.data.batches import pad
from denserk.data.tokenization import load_tokenizer
from denserk.errors import ModelError
from denserk.models.model_folder import StoredEncoder, read_model_folder
from denserk.models.saving import save_model
from denserk.models.text_encoder import TextEncoder
from denserk.tasks.analyze.attention_entropy import attention_entropy, layer_entropies, row_entropy
from tests.support.toy import PASSAGES

TEXTS = [[2, 9, 14, 30, 8, 3], [2, 17, 3], [2, 20, 21, 22, 23, 24, 25, 26, 3], [2, 3]]


def attention_layers(backbone):
    """The query and key projections of each layer; DistilBERT names them in its own way."""
    if backbone.architecture.model_type == "distilbert":
        for layer in backbone.encoder.get_submodule("transformer.layer"):
            yield layer.attention.q_lin, layer.attention.k_lin
    else:
        for layer in backbone.encoder.get_submodule("encoder.layer"):
            yield layer.attention.self.query, layer.attention.self.key


def head_entropy(query, keys):
    """Entropy of the softmax of one head's scaled products, in Python's numbers."""
    scores = []
    for key in keys:
        product = sum(q * k for q, k in zip(query, key, strict=True))
        scores.append(product / math.sqrt(len(query)))
    total = sum(math.exp(score) for score in scores)
    distribution = [math.exp(score) / total for score in scores]
    return -sum(p * math.log(p) for p in distribution)


def expected_entropies(backbone, text):
    """[CLS] entropy of each layer, the mean over its heads, from the layers' hidden states."""
    *inputs_of_layers, _ = backbone.hidden_states(pad([text], pad_id=0))
    head_count = backbone.config.num_attention_heads
    entropies = []
    for (to_query, to_key), hidden in zip(
        attention_layers(backbone), inputs_of_layers, strict=True
    ):
        query_heads = to_query(hidden[0, 0]).reshape(head_count, -1).tolist()
        key_heads = to_key(hidden[0]).reshape(len(text), head_count, -1).swapaxes(0, 1).tolist()
        of_heads = [head_entropy(q, k) for q, k in zip(query_heads, key_heads, strict=True)]
        entropies.append(sum(of_heads) / head_count)
    return entropies


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra"])
def test_entropies_of_padded_texts_equal_the_restatement(tiny, kind):
    backbone = StoredEncoder.read(tiny(kind)).backbone().double()
    expected = [expected_entropies(backbone, text) for text in TEXTS]
    entropies = layer_entropies(backbone, pad(TEXTS, backbone.config.pad_token_id))
    assert entropies == pytest.approx(torch.tensor(expected).numpy(), abs=1e-6)
    for text, entropies_of_text in zip(TEXTS, entropies, strict=True):
        alone = layer_entropies(backbone, pad([text], 0))
        assert alone[0] == pytest.approx(entropies_of_text, abs=1e-12)


def test_the_example_of_the_specification(specs):
    example = json.loads((specs / "condenser_example.json").read_text())["cls_attention_entropy"]
    layers = []
    for layer in ("cls_attention_layer1", "cls_attention_layer2"):
        rows = torch.tensor(example[layer])
        layers.append(row_entropy(rows, rows[:, 0] > 0))
    expected = torch.tensor(example["entropy_layer_example_head"], dtype=torch.float64)
    assert torch.stack(layers).allclose(expected, atol=1e-5)
    means = [float(layer.mean()) for layer in layers]
    assert means == pytest.approx(example["per_layer_mean"], abs=1e-5)


@pytest.fixture
def measure(toy, tmp_path):
    """`measure("label=FOLDER", ...)`: the rows of models on the toy corpus."""

    def measured(*models, compute=None):
        settings = AttentionEntropySettings(
            model=tuple(map(str, models)),
            corpus=str(toy / "corpus.jsonl"),
            max_length=64,
            output=str(tmp_path / "entropies.csv"),
        )
        return attention_entropy(settings, compute=compute or ComputeSettings())

    return measured


def curve(rows, label):
    return [row["entropy"] for row in rows if row["label"] == label]


def entropies_one_by_one(folder):
    """(P, L): the entropies of each toy passage, in a batch of its own."""
    encoder = TextEncoder(
        str(folder),
        text={"passage_max_length": 64},
        compute=ComputeSettings(backend=Backend.TORCH),
    )
    side = encoder.sides["passage"]
    texts = [f"{title} {body}" for title, body in PASSAGES.values()]
    entropies = []
    for ids in side.tokenizer.sentences(texts):
        entropies.append(layer_entropies(side.encoder.backbone, pad([ids], 0)))
    return np.concatenate(entropies)


@pytest.mark.parametrize("batch_tokens", [1, 30, 8192])
def test_a_row_is_mean_and_deviation_over_passages(tiny, toy, tmp_path, measure, batch_tokens):
    pytest.importorskip("matplotlib")
    rows = measure(f"bert={tiny()}", compute=ComputeSettings(batch_tokens=batch_tokens))
    entropies = entropies_one_by_one(tiny())
    assert curve(rows, "bert") == pytest.approx(entropies.mean(0), abs=1e-6)
    assert [row["deviation"] for row in rows] == pytest.approx(entropies.std(0), abs=1e-6)

    with (tmp_path / "entropies.csv").open() as lines:
        header, layer1, layer2 = csv.reader(lines)
    assert header[:7] == ["label", "model", "corpus", "passages", "seed", "max_length", "layer"]
    assert header[7:] == ["entropy", "deviation"]
    same_columns = ["bert", str(tiny()), str(toy / "corpus.jsonl"), "6", "42", "64"]
    assert layer1[:7] == [*same_columns, "1"]
    assert layer2[:7] == [*same_columns, "2"]
    written = [float(layer1[7]), float(layer2[7])]
    assert written == pytest.approx(curve(rows, "bert"), abs=1e-6)
    assert (tmp_path / "entropies.png").read_bytes().startswith(b"\x89PNG")


def test_of_untied_encoders_the_passage_encoder_is_measured(tiny, tmp_path, measure):
    passages = read_model_folder(tiny(seed=7)).passage.build(RepresentationSettings())
    queries = read_model_folder(tiny(seed=8)).passage.build(RepresentationSettings())
    untied = tmp_path / "untied"
    save_model(untied, passages, load_tokenizer(tiny()), TextSettings(), query=queries)
    rows = measure(f"untied={untied}", f"passages={tiny(seed=7)}")
    assert curve(rows, "untied") == curve(rows, "passages")


def test_a_model_without_cls_is_rejected(tiny, measure):
    with pytest.raises(ModelError, match=r"t5 backbone has no \[CLS\]"):
        measure(tiny("t5"))


@pytest.mark.parametrize("separator", [[], ["--model"]])
def test_models_may_follow_one_option(tiny, toy, tmp_path, capsys, separator):
    command = ["analyze", "attention-entropy", "--corpus", str(toy / "corpus.jsonl"), "--quiet"]
    command += ["--max-length", "64", "--output", str(tmp_path / "e.csv")]
    command += ["--model", f"a={tiny()}", *separator, f"b={tiny(seed=8)}"]
    assert run(command) == 0
    header, layer1, layer2 = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert header == ["layer", "a", "b"]
    assert [layer1[0], layer2[0]] == ["1", "2"]
    for entropy in [*layer1[1:], *layer2[1:]]:
        assert 0 < float(entropy) < math.log(64)
