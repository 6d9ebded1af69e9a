import json
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from denserk.data.batches import pad
from denserk.errors import InputError, ModelError, UsageError
from denserk.modeling.stored_model import read_model_folder
from denserk.settings.encoding import Representation, RepresentationSettings
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
        ({"config.json": "[]"}, InputError, "JSON list"),
        ({"config.json": '{"model_type": "vit"}'}, ModelError, "'vit' is not supported"),
        ({"config.json": '{"model_type": "bert"}'}, ModelError, "holds no weights"),
        ({"denserk.json": '{"format_version": 99}'}, ModelError, "format version 99"),
        ({"denserk.json": '{"format_version": 1}'}, ModelError, "broken"),
        ({"modules.json": "{}"}, InputError, "JSON dict"),
        ({"modules.json": "[3]"}, InputError, "no objects"),
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
