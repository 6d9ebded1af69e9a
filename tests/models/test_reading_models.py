import dataclasses
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from denserk.config.encoding import (
    MlmHead,
    Reduction,
    Representation,
    RepresentationSettings,
    TextSettings,
)
from denserk.data.batches import pad
from denserk.data.tokenization import load_tokenizer
from denserk.errors import DenserkError, ModelError
from denserk.models.model_folder import read_model_folder
from denserk.models.representation import Retriever
from denserk.models.saving import save_model
from tests.support.tiny_models import BACKBONES, HIDDEN, WITH_HEADS

BATCH = pad([[2, 9, 14, 30, 8, 3], [2, 17, 3]], pad_id=0)
AGG = RepresentationSettings(Representation.AGG, cls_dim=6, agg_dim=20)
FRESH = dataclasses.replace(AGG, mlm_head=MlmHead.FRESH)
MIX = RepresentationSettings(Representation.MLR, reduction=Reduction.SCALAR_MIX)


def vectors(folder, settings=None):
    stored = read_model_folder(folder)
    query, passage = stored.build(settings or stored.representation)
    with torch.inference_mode():
        return query(BATCH), passage(BATCH)


def tensors_of(folder):
    tensors = load_file(folder / "model.safetensors")
    heads = {n: tensors.pop(n) for n in list(tensors) if n.startswith(("tok_", "cls_proj"))}
    return tensors, heads


def rewrite(source, target, tensors, *, pickled=False, leave=()):
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors", "*.bin", *leave))
    if pickled:
        torch.save(tensors, target / "pytorch_model.bin")
    else:
        owned = {n: t.clone().contiguous() for n, t in tensors.items()}
        save_file(owned, target / "model.safetensors", metadata={"format": "pt"})
    return target


def write_authors_heads(folder, query, passage):
    for file, name in (("TermWeightTrans", "tok_proj"), ("pooler", "cls_proj")):
        linears = {
            f"linear_{letter}.{leaf}": heads[f"{name}.{leaf}"]
            for letter, heads in (("q", query), ("p", passage))
            for leaf in ("weight", "bias")
            if f"{name}.{leaf}" in heads
        }
        if linears:
            torch.save(linears, folder / f"{file}.pt")


@pytest.mark.parametrize("kind", BACKBONES)
def test_plain_folders_and_those_of_an_older_transformers(tiny, tmp_path, kind):
    """Older ones: pickled, with `position_ids`, pooler, old norm names and another head."""
    stored = read_model_folder(tiny(kind))
    assert not stored.has_settings
    expected = Representation.MEAN if kind == "t5" else Representation.CLS
    assert stored.representation == RepresentationSettings(expected)
    assert stored.build(stored.representation)[1].dimension == HIDDEN
    if kind == "t5":
        return
    assert vectors(tiny(kind))[0].equal(vectors(tiny(kind, head=False))[0])
    old, _ = tensors_of(tiny(kind))
    for new, former in (("Norm.weight", "Norm.gamma"), ("Norm.bias", "Norm.beta")):
        old = {name.replace(new, former): tensor for name, tensor in old.items()}
    old[f"{kind}.embeddings.position_ids"] = torch.arange(64)[None]
    old[f"{kind}.pooler.dense.weight"] = torch.zeros(HIDDEN, HIDDEN)
    old["cls.seq_relationship.weight"] = torch.zeros(2, HIDDEN)
    folder = rewrite(tiny(kind), tmp_path / "old", old, pickled=True)
    assert vectors(folder)[0].equal(vectors(tiny(kind))[0])


TIED = (
    *("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"),
    *("lm_head.decoder.weight", "lm_head.decoder.bias", "vocab_projector.weight"),
)


@pytest.mark.parametrize("kind", WITH_HEADS)
@pytest.mark.parametrize("layout", ["denserk", "aggretriever-pyserini", "aggretriever-authors"])
def test_every_layout_of_an_aggretriever_is_read_and_its_decoder_tied(
    tiny_agg, tmp_path, kind, layout
):
    folder, target = tiny_agg(kind), tmp_path / "m"
    tensors, heads = tensors_of(folder)
    tensors = {n: t for n, t in tensors.items() if n not in TIED}
    if layout == "denserk":
        rewrite(folder, target, {**tensors, **heads})
    else:
        one_file = layout == "aggretriever-pyserini"
        prefix = "encoder." if one_file else ""
        renamed = {prefix + n: t for n, t in tensors.items()} | (heads if one_file else {})
        rewrite(folder, target, renamed, pickled=True, leave=("denserk.json",))
        if not one_file:
            write_authors_heads(target, heads, heads)
    stored = read_model_folder(target)
    assert (stored.representation.representation, stored.representation.cls_dim) == ("agg", 6)
    assert vectors(target, AGG)[0].equal(vectors(folder)[0])
    model = stored.build(AGG)[0].backbone.model
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_the_authors_layout_with_weights_of_each_side(tiny_agg, tmp_path):
    source, root, heads = tiny_agg("bert"), tmp_path / "m", []
    for side, factor in (("query_model", 1.0), ("passage_model", 1.5)):
        tensors, own = ({n: t * factor for n, t in part.items()} for part in tensors_of(source))
        heads.append(own)
        rewrite(source, root / side, tensors, pickled=True, leave=("denserk.json",))
    write_authors_heads(root, *heads)
    assert not read_model_folder(root).shared
    query, passage = vectors(root, AGG)
    assert query.equal(vectors(source)[0])
    assert not passage.equal(query)
    tensors, own = tensors_of(source)  # one encoder, and heads of each side
    target = rewrite(source, tmp_path / "h", tensors, pickled=True, leave=("denserk.json",))
    write_authors_heads(target, own, {n: 2 * t for n, t in own.items()})
    query, passage = vectors(target, AGG)
    assert query.equal(vectors(source)[0])
    torch.testing.assert_close(passage[:, :6], 2 * query[:, :6])


def test_missing_unexpected_and_misshapen_tensors_are_all_named(tiny, tmp_path):
    tensors, _ = tensors_of(tiny("bert"))
    lost = [n for n in tensors if n.endswith("attention.self.query.bias")]
    for name in lost:
        del tensors[name]
    tensors["bert.encoder.layer.7.output.dense.weight"] = torch.zeros(2, HIDDEN)
    tensors["classifier.weight"] = torch.zeros(2, HIDDEN)
    tensors["bert.embeddings.LayerNorm.weight"] = torch.zeros(3)
    with pytest.raises(ModelError, match=r"LayerNorm.weight is \(3,\), expected \(16,\)") as caught:
        vectors(rewrite(tiny("bert"), tmp_path / "m", tensors))
    for name in ("layer.7.output.dense.weight", *(n.removeprefix("bert.") for n in lost)):
        assert name in caught.value.message
    assert "classifier" not in caught.value.message


def test_a_fingerprint_is_of_content_not_of_place(tiny, tmp_path):
    copy = shutil.copytree(tiny("bert"), tmp_path / "copy")
    mark = read_model_folder(tiny("bert")).fingerprint()
    (copy / "README.md").write_text("not part of the model")
    assert read_model_folder(copy).fingerprint() == mark
    tokenizer = copy / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    assert read_model_folder(copy).fingerprint() != mark


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", '{"model_type": "vit"}', "'vit' is not supported"),
        ("config.json", '{"model_type": "bert"}', "has no weights"),
        ("denserk.json", '{"format_version": 99}', "format version 99"),
        ("modules.json", "[3]", "a JSON object"),
    ],
)
def test_folders_that_are_no_models(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(DenserkError, match=words):
        read_model_folder(tmp_path)


def to_train(folder, settings, *, untie=False, seed=0):
    torch.manual_seed(seed)
    sides = read_model_folder(folder).build(settings, train=True, untie=untie)
    return Retriever(*sides)


def test_the_pretrained_head_is_kept(tiny, caplog):
    model = to_train(tiny(), AGG)
    kept = model.passage.backbone.model.state_dict()
    pretrained = read_model_folder(tiny()).passage.tensors
    assert all(torch.equal(kept[name], tensor) for name, tensor in pretrained.items())
    new = "cls_proj.bias, cls_proj.weight, tok_proj.bias, tok_proj.weight"
    assert caplog.messages == [f"randomly initialised: {new}"]
    caplog.clear()
    without = to_train(tiny(head=False), dataclasses.replace(AGG, mlm_head=MlmHead.NONE))
    assert without.passage.backbone.decoder is None
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("kind", WITH_HEADS)
@pytest.mark.parametrize(("head", "settings"), [(True, FRESH), (False, AGG)])
def test_a_fresh_head_is_tied_and_initialised_as_the_backbones_own(
    tiny, kind, head, settings, caplog
):
    model = to_train(tiny(kind, head=head), settings)
    backbone = model.passage.backbone
    assert backbone.decoder.weight is backbone.model.get_input_embeddings().weight
    for name, parameter in backbone.model.named_parameters():
        if name.startswith(backbone.architecture.head) and "decoder" not in name:
            norm = "norm" in name.lower() and name.endswith("weight")
            if name.endswith("bias") or norm:
                assert torch.equal(parameter, torch.full_like(parameter, float(norm))), name
            else:  # drawn with the configuration's deviation
                assert 0.2 < parameter.std() < 0.4, name
    assert caplog.messages[0] == "randomly initialised: the masked-language-model head"


@pytest.mark.parametrize("settings", [AGG, FRESH, MIX], ids=["agg", "fresh", "scalar-mix"])
@pytest.mark.parametrize("untie", [False, True])
def test_training_is_resumed_from_a_saved_folder(tiny, tmp_path, settings, untie, caplog):
    model = to_train(tiny("bert"), settings, untie=untie)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter += 0.01 * number
    query, folder = (model.query if untie else None), tmp_path / "model"
    save_model(folder, model.passage, load_tokenizer(tiny("bert")), TextSettings(), query)
    caplog.clear()
    again = to_train(folder, read_model_folder(folder).representation)
    assert again.shared == (not untie)
    assert caplog.messages == []
    expected = model.state_dict()
    assert again.state_dict().keys() == expected.keys()
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
