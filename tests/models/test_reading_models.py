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
    """The vectors of the batch, as queries and as passages."""
    stored = read_model_folder(folder)
    query, passage = stored.build(settings or stored.representation)
    with torch.inference_mode():
        return query(BATCH), passage(BATCH)


def tensors_of(folder):
    """The tensors of the backbone, and those of Aggretriever's heads."""
    backbone = load_file(folder / "model.safetensors")
    names = [name for name in backbone if name.startswith(("tok_proj.", "cls_proj."))]
    heads = {name: backbone.pop(name) for name in names}
    return backbone, heads


def scaled(tensors, factor):
    return {name: tensor * factor for name, tensor in tensors.items()}


def copy_with(tensors, source, target):
    """Copy a folder, but for its weights: a file of these tensors is written in their place."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors", "*.bin"))
    written = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    save_file(written, target / "model.safetensors", metadata={"format": "pt"})
    return target


def copy_with_pickle(tensors, source, target):
    """Copy a folder without denserk's settings, with a pickle of these tensors as weights."""
    omitted = shutil.ignore_patterns("*.safetensors", "*.bin", "denserk.json")
    shutil.copytree(source, target, ignore=omitted)
    torch.save(tensors, target / "pytorch_model.bin")
    return target


def write_authors_heads(folder, query, passage):
    """Write the heads of queries and passages as Aggretriever's authors do."""
    for file, head in (("TermWeightTrans", "tok_proj"), ("pooler", "cls_proj")):
        linears = {}
        for name in (f"{head}.weight", f"{head}.bias"):
            parameter = name.partition(".")[2]
            if name in query:
                linears[f"linear_q.{parameter}"] = query[name]
                linears[f"linear_p.{parameter}"] = passage[name]
        if linears:
            torch.save(linears, folder / f"{file}.pt")


def test_authors_heads_of_passages_without_those_of_queries_are_an_error(tiny_agg, tmp_path):
    source = tiny_agg("bert")
    backbone, heads = tensors_of(source)
    folder = tmp_path / "m"
    copy_with_pickle(backbone, source, folder)
    write_authors_heads(folder, heads, heads)
    path = folder / "pooler.pt"
    linears = torch.load(path)
    only_passages = {name: linears[name] for name in linears if name.startswith("linear_p")}
    torch.save(only_passages, path)
    with pytest.raises(ModelError, match="linear_q"):
        read_model_folder(folder)


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
    tensors, _ = tensors_of(tiny(kind))
    older = {}
    for name, tensor in tensors.items():
        name_then = name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")
        older[name_then] = tensor
    older[f"{kind}.embeddings.position_ids"] = torch.arange(64)[None]
    older[f"{kind}.pooler.dense.weight"] = torch.zeros(HIDDEN, HIDDEN)
    older["cls.seq_relationship.weight"] = torch.zeros(2, HIDDEN)
    folder = copy_with_pickle(older, tiny(kind), tmp_path / "old")
    assert vectors(folder)[0].equal(vectors(tiny(kind))[0])


TIED = (
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "lm_head.decoder.weight",
    "lm_head.decoder.bias",
    "vocab_projector.weight",
)


@pytest.mark.parametrize("kind", WITH_HEADS)
@pytest.mark.parametrize("layout", ["denserk", "aggretriever-pyserini", "aggretriever-authors"])
def test_every_layout_of_an_aggretriever_is_read_and_its_decoder_tied(
    tiny_agg, tmp_path, kind, layout
):
    source = tiny_agg(kind)
    folder = tmp_path / "m"
    backbone, heads = tensors_of(source)
    backbone = {name: tensor for name, tensor in backbone.items() if name not in TIED}
    if layout == "denserk":
        copy_with({**backbone, **heads}, source, folder)
    elif layout == "aggretriever-pyserini":
        renamed = {f"encoder.{name}": tensor for name, tensor in backbone.items()}
        copy_with_pickle({**renamed, **heads}, source, folder)
    else:
        copy_with_pickle(backbone, source, folder)
        write_authors_heads(folder, heads, heads)
    stored = read_model_folder(folder)
    assert stored.representation.representation == "agg"
    assert stored.representation.cls_dim == 6
    assert vectors(folder, AGG)[0].equal(vectors(source)[0])
    model = stored.build(AGG)[0].backbone.model
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_the_authors_layout_with_an_encoder_of_each_side(tiny_agg, tmp_path):
    source = tiny_agg("bert")
    root = tmp_path / "m"
    backbone, heads = tensors_of(source)
    copy_with_pickle(backbone, source, root / "query_model")
    copy_with_pickle(scaled(backbone, 1.5), source, root / "passage_model")
    write_authors_heads(root, heads, scaled(heads, 1.5))
    assert not read_model_folder(root).shared
    query, passage = vectors(root, AGG)
    assert query.equal(vectors(source)[0])
    assert not passage.equal(query)


def test_the_authors_layout_with_one_encoder_and_heads_of_each_side(tiny_agg, tmp_path):
    source = tiny_agg("bert")
    backbone, heads = tensors_of(source)
    folder = copy_with_pickle(backbone, source, tmp_path / "m")
    write_authors_heads(folder, heads, scaled(heads, 2))
    query, passage = vectors(folder, AGG)
    assert query.equal(vectors(source)[0])
    torch.testing.assert_close(passage[:, :6], 2 * query[:, :6])


def test_missing_unexpected_and_misshapen_tensors_are_all_named(tiny, tmp_path):
    tensors, _ = tensors_of(tiny("bert"))
    missing = [name for name in tensors if name.endswith("attention.self.query.bias")]
    for name in missing:
        del tensors[name]
    tensors["bert.encoder.layer.7.output.dense.weight"] = torch.zeros(2, HIDDEN)
    tensors["classifier.weight"] = torch.zeros(2, HIDDEN)
    tensors["bert.embeddings.LayerNorm.weight"] = torch.zeros(3)
    with pytest.raises(ModelError, match=r"LayerNorm.weight is \(3,\), expected \(16,\)") as caught:
        vectors(copy_with(tensors, tiny("bert"), tmp_path / "m"))
    assert "layer.7.output.dense.weight" in caught.value.message
    for name in missing:
        assert name.removeprefix("bert.") in caught.value.message
    assert "classifier" not in caught.value.message


def test_a_fingerprint_is_of_content_not_of_place(tiny, tmp_path):
    copy = shutil.copytree(tiny("bert"), tmp_path / "copy")
    fingerprint = read_model_folder(tiny("bert")).fingerprint()
    (copy / "README.md").write_text("not part of the model")
    assert read_model_folder(copy).fingerprint() == fingerprint
    tokenizer = copy / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    assert read_model_folder(copy).fingerprint() != fingerprint


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
    tensors = model.passage.backbone.model.state_dict()
    for name, pretrained in read_model_folder(tiny()).passage.tensors.items():
        assert torch.equal(tensors[name], pretrained)
    assert caplog.messages == [
        "randomly initialised: cls_proj.bias, cls_proj.weight, tok_proj.bias, tok_proj.weight"
    ]
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
        if not name.startswith(backbone.architecture.head) or "decoder" in name:
            continue
        if name.endswith("bias"):
            assert torch.equal(parameter, torch.zeros_like(parameter)), name
        elif "norm" in name.lower():
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        else:  # drawn with the configuration's deviation
            assert 0.2 < parameter.std() < 0.4, name
    assert caplog.messages[0] == "randomly initialised: the masked-language-model head"
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    was_chosen = settings.mlm_head is MlmHead.FRESH
    assert any("--set mlm-head=none" in record.message for record in warnings) is not was_chosen


@pytest.mark.parametrize("settings", [AGG, FRESH, MIX], ids=["agg", "fresh", "scalar-mix"])
@pytest.mark.parametrize("untie", [False, True])
def test_training_is_resumed_from_a_saved_folder(tiny, tmp_path, settings, untie, caplog):
    model = to_train(tiny("bert"), settings, untie=untie)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter += 0.01 * number
    folder = tmp_path / "model"
    query = model.query if untie else None
    save_model(folder, model.passage, load_tokenizer(tiny("bert")), TextSettings(), query)
    caplog.clear()
    resumed = to_train(folder, read_model_folder(folder).representation)
    assert resumed.shared == (not untie)
    assert caplog.messages == []
    expected = model.state_dict()
    assert resumed.state_dict().keys() == expected.keys()
    for name, tensor in resumed.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
