import json

import numpy as np
import pytest
import torch

from denserk.config.encoding import ComputeSettings, ModelLayout, TextSettings
from denserk.data.tokenization import load_tokenizer
from denserk.errors import ModelError
from denserk.models.model_folder import convert_model, save_model
from denserk.models.stored_model import read_model_folder
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage
from tests.reporters import Heard

CPU = ComputeSettings(device="cpu")
PASSAGES = [Passage("a", "the old river", "Moon"), Passage("b", ""), Passage("c", "cat dog fish")]
LENGTHS = {"query_max_length": 32, "passage_max_length": 64}
PYSERINI, AUTHORS = ModelLayout.AGGRETRIEVER_PYSERINI, ModelLayout.AGGRETRIEVER_AUTHORS


def same_vectors(one, other):
    # another file may align its tensors otherwise, which changes the last bits of products
    np.testing.assert_allclose(vectors(one), vectors(other), rtol=0, atol=1e-6)


def vectors(folder, **overrides):
    return TextEncoder.load(str(folder), overrides, LENGTHS, CPU).encode_passages(PASSAGES)


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
@pytest.mark.parametrize("layout", [PYSERINI, AUTHORS])
def test_there_and_back(tiny_agg, tmp_path, kind, layout):
    source = tiny_agg(kind, agg_dim=640, cls_dim=128)
    convert_model(str(source), tmp_path / "there", layout, text=LENGTHS)
    there = read_model_folder(tmp_path / "there")
    assert there.layout == layout.value
    assert there.representation == read_model_folder(source).representation
    same_vectors(tmp_path / "there", source)
    convert_model(str(tmp_path / "there"), tmp_path / "back", ModelLayout.DENSERK, text=LENGTHS)
    same_vectors(tmp_path / "back", source)
    names = ("model.safetensors", "config.json")
    for name in names:
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()


def test_the_files_of_the_one_file_layout(tiny_agg, tmp_path):
    convert_model(str(tiny_agg(agg_dim=640, cls_dim=128)), tmp_path / "m", PYSERINI, text=LENGTHS)
    tensors = torch.load(tmp_path / "m/pytorch_model.bin", weights_only=True)
    heads = {n for n in tensors if not n.startswith("encoder.")}
    assert heads == {"tok_proj.weight", "tok_proj.bias", "cls_proj.weight", "cls_proj.bias"}
    assert tensors["cls_proj.weight"].shape == (128, 16)
    assert {"encoder.cls.predictions.decoder.weight", "encoder.cls.predictions.bias"} < set(tensors)
    assert json.loads((tmp_path / "m/config.json").read_text())["output_hidden_states"] is True
    assert not (tmp_path / "m/denserk.json").exists()


def test_the_files_of_the_authors_layout(tiny_agg, tmp_path):
    convert_model(str(tiny_agg(agg_dim=30)), tmp_path / "m", AUTHORS, text=LENGTHS)
    pooler = torch.load(tmp_path / "m/pooler.pt", weights_only=True)
    assert {n: tuple(t.shape) for n, t in pooler.items()} == {
        f"linear_{side}.{leaf}": shape
        for side in "qp"
        for leaf, shape in (("weight", (6, 16)), ("bias", (6,)))
    }
    weight = json.loads((tmp_path / "m/TermWeightTrans_config.json").read_text())
    assert weight == {"input_dim": 16, "output_dim": 1, "tied": True}
    assert (tmp_path / "m/pooler_config.json").is_file()
    words = (tmp_path / "m/vocab.txt").read_text().split()
    assert [words[i] for i in (0, 3, 5)] == ["[PAD]", "[SEP]", "the"]
    expected = vectors(tiny_agg(agg_dim=30))
    np.testing.assert_allclose(vectors(tmp_path / "m", agg_dim=30), expected, rtol=0, atol=1e-6)


def test_two_sides_go_through_the_authors_layout(tiny_agg, tmp_path):
    stored = read_model_folder(tiny_agg())
    encoders = [stored.build(stored.representation)[0] for _ in range(2)]
    with torch.no_grad():
        for parameter in encoders[0].parameters():
            parameter.mul_(1.1)
    text = TextSettings(query_max_length=32, passage_max_length=64)
    save_model(tmp_path / "a", encoders[1], load_tokenizer(tiny_agg()), text, encoders[0])
    convert_model(str(tmp_path / "a"), tmp_path / "b", AUTHORS)
    assert {p.name for p in (tmp_path / "b").iterdir() if p.is_dir()} == {
        "query_model",
        "passage_model",
    }
    convert_model(
        str(tmp_path / "b"), tmp_path / "c", ModelLayout.DENSERK, {"agg_dim": 20}, LENGTHS
    )
    for name in ("query/model.safetensors", "document/model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "c" / name).read_bytes()


@pytest.mark.parametrize(
    ("options", "layout", "words"),
    [
        ({}, PYSERINI, "agg-dim is 20, not 640; cls-dim is 6, not 128"),
        ({"agg_kind": "plus", "agg_dim": 640, "cls_dim": 128}, PYSERINI, "agg-kind is plus"),
        ({"term_weight": "abs"}, AUTHORS, "term-weight is abs, not clamp"),
        ({"mlm_head": "none", "agg_layout": "random"}, AUTHORS, "agg-layout is random.*mlm-head"),
        ({"agg_kind": "average"}, AUTHORS, "agg-kind is average"),
    ],
)
def test_what_a_layout_cannot_hold_is_refused(tiny_agg, tmp_path, options, layout, words):
    from denserk.config.encoding import AggKind, AggLayout, MlmHead, TermWeight

    enums = {
        "agg_kind": AggKind,
        "term_weight": TermWeight,
        "mlm_head": MlmHead,
        "agg_layout": AggLayout,
    }
    typed = {name: enums[name](v) if name in enums else v for name, v in options.items()}
    with pytest.raises(ModelError, match=words) as caught:
        convert_model(str(tiny_agg(**typed)), tmp_path / "m", layout)
    assert "--to denserk" in str(caught.value.hint)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("layout", [PYSERINI, AUTHORS])
def test_published_readers_know_no_roberta(tiny_agg, tmp_path, layout):
    source = tiny_agg("roberta", agg_dim=640, cls_dim=128)
    with pytest.raises(ModelError, match="its backbone is roberta"):
        convert_model(str(source), tmp_path / "m", layout)


def test_what_is_not_recorded_is_told(tiny_agg, tmp_path):
    notes: list[str] = []

    class Notes(Heard):
        def note(self, text: str) -> None:
            notes.append(text)

    Notes()

    convert_model(str(tiny_agg()), tmp_path / "m", AUTHORS)
    assert notes == [
        "aggretriever-authors does not record agg-kind star, agg-dim 20, agg-order cls-agg, "
        "lengths 32 and 128"
    ]


def test_a_sentence_transformers_folder_becomes_denserk_s(tiny, tmp_path):
    from tests.models.test_sentence_transformers_folder import make

    source = make(tiny(), tmp_path / "st")
    convert_model(str(source), tmp_path / "m", ModelLayout.DENSERK)
    before, after = (
        TextEncoder.load(str(folder), compute=CPU) for folder in (source, tmp_path / "m")
    )
    assert (before.text, before.representation) == (after.text, after.representation)
    np.testing.assert_array_equal(before.encode_passages(PASSAGES), after.encode_passages(PASSAGES))
