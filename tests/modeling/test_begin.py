"""Weights to train from: what a folder has is kept, what it lacks starts fresh and is told."""

import dataclasses

import pytest
import torch

from denserk.data.batches import pad
from denserk.data.tokenization import load_tokenizer
from denserk.errors import ModelError
from denserk.modeling.model_folder import save_model
from denserk.modeling.stored_model import read_model_folder
from denserk.settings.encoding import (
    MlmHead,
    Reduction,
    Representation,
    RepresentationSettings,
    TermWeight,
    TextSettings,
)
from tests.reporters import Heard
from tests.tiny_models import BACKBONES, WITH_HEADS

AGG = RepresentationSettings(Representation.AGG, agg_dim=20, cls_dim=6)
FRESH = dataclasses.replace(AGG, mlm_head=MlmHead.FRESH)
MIX = RepresentationSettings(Representation.MLR, reduction=Reduction.SCALAR_MIX)
BATCH = pad([[2, 7, 8, 9, 3], [2, 10, 3]], 0)


def begin(folder, settings, *, untie=False, seed=0):
    """The retriever, and what was noted."""
    torch.manual_seed(seed)
    heard = Heard()
    return read_model_folder(folder).begin(settings, untie=untie), heard.notes


@pytest.mark.parametrize("kind", BACKBONES)
def test_a_plain_start_is_the_stored_model(tiny, kind):
    settings = RepresentationSettings(Representation.MEAN)
    model, notes = begin(tiny(kind), settings)
    stored, _ = read_model_folder(tiny(kind)).build(settings)
    assert (model.shared, model.training, notes) == (True, True, [])
    assert torch.equal(model.eval().encode_queries(BATCH), stored(BATCH))
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_the_pretrained_head_is_kept(tiny, kind):
    model, notes = begin(tiny(kind), AGG)
    pretrained = read_model_folder(tiny(kind)).passage.tensors
    kept = model.passage.backbone.model.state_dict()
    assert all(torch.equal(kept[name], tensor) for name, tensor in pretrained.items())
    assert notes == [
        "randomly initialised: cls_proj.bias, cls_proj.weight, tok_proj.bias, tok_proj.weight"
    ]


@pytest.mark.parametrize("kind", WITH_HEADS)
@pytest.mark.parametrize(("head", "settings"), [(True, FRESH), (False, AGG), (False, FRESH)])
def test_a_fresh_head_is_tied_and_initialised_as_the_backbones_own(tiny, kind, head, settings):
    folder = tiny(kind, head=head)
    stored = read_model_folder(folder).passage
    model, notes = begin(folder, settings)
    backbone = model.passage.backbone
    decoder = backbone.decoder
    embeddings = backbone.model.get_input_embeddings()
    assert decoder.weight is embeddings.weight
    assert torch.equal(
        embeddings.weight, next(t for n, t in stored.tensors.items() if "word_embeddings" in n)
    )
    transform = [
        (name, p)
        for name, p in backbone.model.named_parameters()
        if name.startswith(backbone.architecture.head) and "decoder" not in name
    ]
    for name, parameter in transform:
        norm = "norm" in name.lower() and name.endswith("weight")
        if name.endswith("bias") or norm:
            assert torch.equal(parameter, torch.full_like(parameter, float(norm))), name
        else:  # drawn with the configuration's deviation
            assert 0.2 < parameter.std() < 0.4, name
    assert notes[0] == (
        "a new masked-language-model head in place of the pretrained one"
        if head
        else f"{folder} has no masked-language-model head: a new one, tied to the word embeddings, "
        "is trained; --set mlm-head=none does without"
    )


def test_a_fresh_head_trains_the_embeddings_too(tiny):
    model, _ = begin(tiny("bert", head=False), dataclasses.replace(AGG, term_weight=TermWeight.ABS))
    model.encode_passages(BATCH).values.square().sum().backward()
    weight = model.passage.backbone.model.get_input_embeddings().weight
    seen = set(BATCH.input_ids.flatten().tolist())
    others = [row for row in range(len(weight)) if row not in seen]
    assert weight.grad is not None
    assert weight.grad[others].abs().sum() > 0  # through the decoder alone


def test_fresh_weights_come_from_the_seed(tiny):
    one, again, other = (
        begin(tiny("bert"), FRESH, seed=seed)[0].state_dict() for seed in (1, 1, 2)
    )
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(
        one["passage.representation.tok_proj.weight"],
        other["passage.representation.tok_proj.weight"],
    )


def test_no_head_needs_none(tiny):
    settings = dataclasses.replace(AGG, mlm_head=MlmHead.NONE)
    model, notes = begin(tiny("bert", head=False), settings)
    assert not model.passage.backbone.with_head
    assert all("masked-language-model" not in note for note in notes)


def test_untied_sides_begin_equal_and_apart(tiny):
    model, _ = begin(tiny("bert"), AGG, untie=True)
    assert not model.shared
    query, passage = model.query.state_dict(), model.passage.state_dict()
    assert all(torch.equal(query[name], passage[name]) for name in query)
    addresses = [{p.data_ptr() for p in side.parameters()} for side in (model.query, model.passage)]
    assert not addresses[0] & addresses[1]
    backbone = model.query.backbone  # ties hold within the copy
    decoder = backbone.decoder
    assert decoder.weight is backbone.model.get_input_embeddings().weight


def saved(folder, tiny_folder, model):
    """The model as a folder."""
    query = None if model.shared else model.query
    tokenizer = load_tokenizer(tiny_folder)
    save_model(folder, model.passage, tokenizer, TextSettings(), query)
    return folder


@pytest.mark.parametrize("settings", [AGG, FRESH, MIX], ids=["agg", "fresh", "scalar-mix"])
@pytest.mark.parametrize("untie", [False, True])
def test_a_trained_folder_goes_on_where_it_was(tiny, tmp_path, settings, untie):
    model, _ = begin(tiny("bert"), settings, untie=untie)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter += 0.01 * number
    folder = saved(tmp_path / "model", tiny("bert"), model)
    again, notes = begin(folder, read_model_folder(folder).representation)
    assert again.shared is not untie
    assert notes == []
    expected = model.state_dict()
    assert again.state_dict().keys() == expected.keys()
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_weights_of_another_shape_are_refused(tiny, tmp_path):
    model, _ = begin(tiny("bert"), AGG)
    folder = saved(tmp_path / "model", tiny("bert"), model)
    wider = dataclasses.replace(AGG, cls_dim=7)
    with pytest.raises(ModelError, match=r"size mismatch for cls_proj.weight"):
        begin(folder, wider)


@pytest.mark.parametrize("representation", [Representation.CLS, Representation.AGG])
def test_what_a_backbone_cannot_do_is_refused(tiny, representation):
    with pytest.raises(ModelError, match="which a t5 backbone does not have"):
        begin(tiny("t5"), RepresentationSettings(representation))


def test_layers_beyond_the_backbone_are_refused(tiny):
    settings = RepresentationSettings(Representation.MLR, layers=(2, 5))
    with pytest.raises(ModelError, match="the backbone has the layers 0 to 2, not 5"):
        begin(tiny("bert"), settings)
