"""Weights to train from: what a folder has is kept, what it lacks starts fresh and is told."""

import dataclasses
import json
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from denserk.config.encoding import (
    MlmHead,
    Reduction,
    Representation,
    RepresentationSettings,
    TermWeight,
    TextSettings,
)
from denserk.data.batches import pad
from denserk.data.tokenization import load_tokenizer
from denserk.errors import InputError, ModelError, UsageError
from denserk.models.model_folder import save_model
from denserk.models.stored_model import StoredEncoder, read_model_folder
from tests.reporters import Heard
from tests.tiny_models import BACKBONES, HIDDEN, WITH_HEADS

BATCH = pad([[2, 9, 14, 30, 8, 3], [2, 17, 3]], pad_id=0)
AGG_TOLD = RepresentationSettings(Representation.AGG, cls_dim=6, agg_dim=20)


def vectors(folder, settings=None):
    stored = read_model_folder(folder)
    query, passage = stored.build(settings or stored.representation)
    with torch.inference_mode():
        return query(BATCH), passage(BATCH)


def tensors_of(folder):
    return load_file(folder / "model.safetensors")


def rewrite(source, target, tensors, *, pickled=False, leave=()):
    """A copy of a folder with other weights."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors", "*.bin", *leave))
    if pickled:
        torch.save(tensors, target / "pytorch_model.bin")
    else:
        owned = {n: t.clone().contiguous() for n, t in tensors.items()}
        save_file(owned, target / "model.safetensors", metadata={"format": "pt"})
    return target


TIED = (
    *("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"),
    *("lm_head.decoder.weight", "lm_head.decoder.bias", "vocab_projector.weight"),
)


def without_tied(tensors):
    return {n: t for n, t in tensors.items() if n not in TIED}


@pytest.mark.parametrize("kind", BACKBONES)
@pytest.mark.parametrize("head", [True, False])
def test_plain_folders(tiny, kind, head):
    stored = read_model_folder(tiny(kind, head=head))
    assert stored.layout == "transformers"
    assert not stored.told
    expected = Representation.MEAN if kind == "t5" else Representation.CLS
    assert stored.representation == RepresentationSettings(expected)
    assert stored.build(stored.representation)[1].dimension == HIDDEN
    if kind != "t5":
        with_head, without = vectors(tiny(kind))[0], vectors(tiny(kind, head=False))[0]
        assert with_head.equal(without)


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_a_folder_of_an_older_transformers(tiny, tiny_agg, tmp_path, kind):
    """Pickled, with `position_ids`, pooler, old norm names and another pre-training head."""
    prefix = f"{kind}."
    old = {
        n.replace("LayerNorm.weight", "LayerNorm.gamma"): t
        for n, t in tensors_of(tiny(kind)).items()
    }
    old = {n.replace("LayerNorm.bias", "LayerNorm.beta"): t for n, t in old.items()}
    old[f"{prefix}embeddings.position_ids"] = torch.arange(64)[None]
    if kind != "distilbert":
        old[f"{prefix}pooler.dense.weight"] = torch.zeros(HIDDEN, HIDDEN)
    if kind == "bert":
        old["cls.seq_relationship.weight"] = torch.zeros(2, HIDDEN)
    folder = rewrite(tiny(kind), tmp_path / "old", old, pickled=True)
    torch.save({"c_head.0.weight": torch.zeros(1)}, folder / "model.pt")
    assert vectors(folder)[0].equal(vectors(tiny(kind))[0])


@pytest.mark.parametrize("kind", WITH_HEADS)
@pytest.mark.parametrize("layout", ["denserk", "one-file", "authors"])
def test_the_decoder_is_tied_in_every_layout(tiny_agg, tmp_path, kind, layout):
    folder = tiny_agg(kind)
    expected = vectors(folder)[0]
    tensors = without_tied(tensors_of(folder))
    heads = {n: tensors.pop(n) for n in list(tensors) if n.startswith(("tok_", "cls_proj"))}
    if layout == "denserk":
        target = rewrite(folder, tmp_path / "m", {**tensors, **heads})
    else:
        target = tmp_path / "m"
        prefix = "encoder." if layout == "one-file" else ""
        inside = heads if layout == "one-file" else {}
        renamed = {prefix + n: t for n, t in tensors.items()} | inside
        rewrite(folder, target, renamed, pickled=True, leave=("denserk.json",))
        if layout == "authors":
            write_authors_heads(target, heads, heads)
    assert vectors(target, AGG_TOLD)[0].equal(expected)
    for encoder in read_model_folder(target).build(AGG_TOLD):
        decoder = encoder.backbone.model.get_output_embeddings().weight
        assert decoder is encoder.backbone.model.get_input_embeddings().weight


def write_authors_heads(folder, query, passage):
    for file, name in (("TermWeightTrans", "tok_proj"), ("pooler", "cls_proj")):
        linears = {
            f"linear_{letter}.{leaf}": heads[f"{name}.{leaf}"]
            for letter, heads in (("q", query), ("p", passage))
            for leaf in ("weight", "bias")
        }
        torch.save(linears, folder / f"{file}.pt")


def test_the_one_file_layout_tells_what_it_is(tiny_agg, tmp_path):
    folder = tiny_agg("bert")
    renamed = {
        n if n.startswith(("tok_", "cls_proj")) else f"encoder.{n}": t
        for n, t in tensors_of(folder).items()
    }
    target = rewrite(folder, tmp_path / "m", renamed, pickled=True, leave=("denserk.json",))
    config = json.loads((target / "config.json").read_text())
    config |= {"architectures": ["BERTAggretrieverEncoder"], "output_hidden_states": False}
    (target / "config.json").write_text(json.dumps(config))
    stored = read_model_folder(target)
    assert stored.layout == "aggretriever-pyserini"
    assert stored.representation == RepresentationSettings(Representation.AGG, cls_dim=6)
    assert vectors(target, AGG_TOLD)[0].equal(vectors(folder)[0])


def test_the_authors_layout_with_weights_of_each_side(tiny_agg, tmp_path):
    query, passage = tiny_agg("bert"), tiny_agg("bert", agg_seed=1)
    root = tmp_path / "m"
    heads = []
    for side, source, factor in (("query_model", query, 1.0), ("passage_model", passage, 1.5)):
        tensors = {n: t * factor for n, t in tensors_of(source).items()}
        own = {n: tensors.pop(n) for n in list(tensors) if n.startswith(("tok_", "cls_proj"))}
        heads.append(own)
        rewrite(source, root / side, tensors, pickled=True, leave=("denserk.json",))
    write_authors_heads(root, *heads)
    stored = read_model_folder(root)
    assert (stored.layout, stored.shared) == ("aggretriever-authors", False)
    got = vectors(root, AGG_TOLD)
    assert got[0].equal(vectors(query)[0])
    assert not got[1].equal(got[0])


def test_the_authors_layout_with_heads_of_each_side(tiny_agg, tmp_path):
    folder = tiny_agg("bert")
    tensors = tensors_of(folder)
    heads = {n: tensors.pop(n) for n in list(tensors) if n.startswith(("tok_", "cls_proj"))}
    target = rewrite(folder, tmp_path / "m", tensors, pickled=True, leave=("denserk.json",))
    write_authors_heads(target, heads, {n: 2 * t for n, t in heads.items()})
    query, passage = vectors(target, AGG_TOLD)
    assert query.equal(vectors(folder)[0])
    torch.testing.assert_close(passage[:, :6], 2 * query[:, :6])


def test_without_cls_part_the_authors_write_no_pooler(tiny_agg, tmp_path):
    folder = tiny_agg("bert", cls_dim=0)
    tensors = tensors_of(folder)
    heads = {n: tensors.pop(n) for n in list(tensors) if n.startswith("tok_")}
    target = rewrite(folder, tmp_path / "m", tensors, pickled=True, leave=("denserk.json",))
    linears = {
        f"linear_{s}.{leaf}": heads[f"tok_proj.{leaf}"] for s in "qp" for leaf in ("weight", "bias")
    }
    torch.save(linears, target / "TermWeightTrans.pt")
    assert read_model_folder(target).representation.cls_dim == 0
    torch.save({"linear_q.weight": heads["tok_proj.weight"]}, target / "TermWeightTrans.pt")
    with pytest.raises(ModelError, match=r"TermWeightTrans.pt lacks linear_q.bias"):
        read_model_folder(target)


@pytest.mark.parametrize("layout", ["plain", "denserk"])
def test_missing_and_unexpected_tensors_are_all_named(tiny, tiny_agg, tmp_path, layout):
    source = tiny("bert") if layout == "plain" else tiny_agg("bert")
    tensors = tensors_of(source)
    lost = [n for n in tensors if n.endswith("attention.self.query.bias")]
    for name in lost:
        del tensors[name]
    tensors["bert.encoder.layer.7.output.dense.weight"] = torch.zeros(2, HIDDEN)
    tensors["classifier.weight"] = torch.zeros(2, HIDDEN)
    folder = rewrite(source, tmp_path / "m", tensors)
    with pytest.raises(ModelError) as caught:
        vectors(folder)
    for name in ("layer.7.output.dense.weight", *(n.removeprefix("bert.") for n in lost)):
        assert name in caught.value.message
    assert "classifier" not in caught.value.message


def test_a_tensor_of_another_shape_is_named(tiny, tmp_path):
    tensors = tensors_of(tiny("bert"))
    name = "bert.embeddings.LayerNorm.weight"
    folder = rewrite(tiny("bert"), tmp_path / "m", {**tensors, name: torch.zeros(3)})
    with pytest.raises(ModelError, match=r"LayerNorm.weight is \(3,\), expected \(16,\)"):
        vectors(folder)


def test_weights_in_several_files(tiny, tmp_path):
    names = sorted(tensors_of(tiny("bert")))
    tensors = tensors_of(tiny("bert"))
    folder = rewrite(tiny("bert"), tmp_path / "m", tensors)
    (folder / "model.safetensors").unlink()
    where = {n: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, n in enumerate(names)}
    for file in set(where.values()):
        save_file({n: tensors[n].clone() for n in names if where[n] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    assert vectors(folder)[0].equal(vectors(tiny("bert"))[0])
    assert read_model_folder(folder).fingerprint() != read_model_folder(tiny("bert")).fingerprint()


def test_a_fingerprint_is_of_content_not_of_place(tiny, tmp_path):
    copy = shutil.copytree(tiny("bert"), tmp_path / "copy")
    mark = read_model_folder(tiny("bert")).fingerprint()
    assert read_model_folder(copy).fingerprint() == mark
    (copy / "README.md").write_text("not part of the model")
    assert read_model_folder(copy).fingerprint() == mark
    tokenizer = copy / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    assert read_model_folder(copy).fingerprint() != mark


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


@pytest.mark.parametrize(
    "content", [b"", b"junk", pickle.dumps(Evil()), pickle.dumps({"a": Evil()})], ids=range(4)
)
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_broken_weights_are_told_and_never_executed(tiny, tmp_path, capsys, name, content):
    folder = tmp_path / "m"
    shutil.copytree(tiny("bert"), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / name).write_bytes(content)
    with pytest.raises(ModelError, match=name):
        read_model_folder(folder)
    assert "executed" not in capsys.readouterr().out


def test_a_file_of_something_else_than_tensors(tiny, tmp_path):
    folder = rewrite(tiny("bert"), tmp_path / "m", {"a": torch.zeros(1)}, pickled=True)
    torch.save({"step": 3}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="something other than named tensors"):
        read_model_folder(folder)


@pytest.mark.parametrize(
    ("files", "error", "words"),
    [
        ({}, ModelError, "holds no model"),
        ({"config.json": "{"}, InputError, "not JSON"),
        ({"config.json": "[]"}, InputError, "expected a JSON object"),
        ({"config.json": '{"model_type": "vit"}'}, ModelError, "'vit' is not supported"),
        ({"config.json": '{"model_type": "bert"}'}, ModelError, "holds no weights"),
        ({"denserk.json": '{"format_version": 99}'}, ModelError, "format version 99"),
        ({"denserk.json": '{"format_version": 1}'}, ModelError, "broken"),
        ({"modules.json": "{}"}, InputError, "a JSON array"),
        ({"modules.json": "[3]"}, InputError, "a JSON array of objects"),
    ],
)
def test_folders_that_are_no_models(tmp_path, files, error, words):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(error, match=words):
        read_model_folder(tmp_path)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        read_model_folder(tmp_path / "absent")


AGG = RepresentationSettings(Representation.AGG, agg_dim=20, cls_dim=6)
FRESH = dataclasses.replace(AGG, mlm_head=MlmHead.FRESH)
MIX = RepresentationSettings(Representation.MLR, reduction=Reduction.SCALAR_MIX)


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
    with pytest.raises(ModelError, match="the backbone has the layers 0 to 2"):
        begin(tiny("bert"), settings)


@pytest.mark.parametrize("kind", WITH_HEADS)
@pytest.mark.parametrize("head", [True, False])
def test_a_backbone_to_pre_train(tiny, kind, head):
    heard = Heard()
    stored = StoredEncoder.read(tiny(kind, head=head))
    backbone = stored.begin_masked_lm()
    assert backbone.training
    assert len(heard.notes) == (0 if head else 1)
    decoder = backbone.decoder
    assert decoder.weight is backbone.encoder.embeddings.word_embeddings.weight
    backbone.eval()
    assert backbone.vocabulary_logits(torch.ones(3, HIDDEN)).shape == (3, backbone.vocabulary)
    plain = StoredEncoder.read(tiny(kind)).begin_masked_lm().eval()
    assert backbone(BATCH).equal(plain(BATCH))


@pytest.mark.parametrize(("kind", "lacks"), [("t5", "CLS"), ("electra", "masked-language-model")])
def test_backbones_without_what_pre_training_needs(tiny, kind, lacks):
    with pytest.raises(
        ModelError, match=f"{kind} cannot be pre-trained.* has no .*{lacks}"
    ) as told:
        StoredEncoder.read(tiny(kind)).begin_masked_lm()
    assert told.value.hint == "start from a BERT, RoBERTa, DistilBERT or ModernBERT"
