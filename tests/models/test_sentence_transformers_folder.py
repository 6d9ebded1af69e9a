import json
import shutil

import pytest

from denserk.commands.app import run
from denserk.config.encoding import Representation
from denserk.errors import ModelError
from denserk.models.model_folder import read_model_folder

ST, LENGTHS = "sentence_transformers.models.", "sentence_bert_config.json"
POOLING, PROMPTS = "1_Pooling/config.json", "config_sentence_transformers.json"


def make(source, target, *, modules=("Transformer", "Pooling", "Normalize"), **files):
    """A folder as sentence-transformers writes it; `files` replace or add JSON files."""
    shutil.copytree(source, target)
    chain = [
        {"idx": i, "name": str(i), "path": "" if i == 0 else f"{i}_{name}", "type": ST + name}
        for i, name in enumerate(modules)
    ]
    contents = {
        "modules.json": chain,
        POOLING: {"pooling_mode_mean_tokens": True},
        LENGTHS: {"max_seq_length": 20, "do_lower_case": False},
        **files,
    }
    for name, content in contents.items():
        path = target / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return target


def test_pooling_norm_and_length_are_read(tiny, tmp_path):
    stored = read_model_folder(make(tiny(), tmp_path / "m"))
    assert stored.has_settings
    assert stored.representation.l2_norm
    assert (stored.text.query_max_length, stored.text.passage_max_length) == (20, 20)
    bare = read_model_folder(make(tiny(), tmp_path / "b", modules=("Transformer", "Pooling")))
    assert not bare.representation.l2_norm
    assert bare.fingerprint() != stored.fingerprint()
    for lengths, expected in (
        ({}, (64, 64)),  # the tokenizer's limit
        ({"max_seq_length": 20, "query_length": 9}, (9, 20)),
        ({"max_seq_length": 20, "document_length": 12}, (20, 12)),
    ):
        text = read_model_folder(make(tiny(), tmp_path / str(expected), **{LENGTHS: lengths})).text
        assert (text.query_max_length, text.passage_max_length) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": ["max"]}, "max"),
        ({"pooling_mode": "lasttoken", "include_prompt": True}, "last"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({}, "mean"),
    ],
)
def test_poolings(tiny, tmp_path, config, expected):
    folder = make(tiny(), tmp_path / "m", **{POOLING: config})
    assert read_model_folder(folder).representation.representation == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"modules": ("Transformer", "Pooling", "Dense")}, "Transformer, Pooling, Dense"),
        ({"modules": ("Router",)}, "Router"),
        ({POOLING: {"pooling_mode": ["cls", "mean"]}}, "pools by cls and mean"),
        ({POOLING: {"include_prompt": False}}, "leaves the prompt out"),
        ({LENGTHS: {"do_lower_case": True}}, "lower-cases"),
        ({LENGTHS: {"query_expansion": {"length": 9}}}, "expands queries"),
        ({LENGTHS: {"transformer_task": "fill-mask"}}, "fill-mask"),
    ],
)
def test_what_denserk_does_not_do_is_refused_by_name(tiny, tmp_path, change, words):
    with pytest.raises(ModelError, match=words):
        read_model_folder(make(tiny(), tmp_path / "m", **change))


@pytest.mark.parametrize(
    ("prompts", "query", "passage"),
    [
        ({"prompts": {"query": "the ", "passage": "a "}}, "the ", "a "),
        ({"prompts": {"any": "old "}, "default_prompt_name": "any"}, "old ", "old "),
        ({"prompts": {"any": "old "}, "default_prompt_name": None}, "", ""),
    ],
)
def test_prompts_become_prefixes(tiny, tmp_path, prompts, query, passage):
    text = read_model_folder(make(tiny(), tmp_path / "m", **{PROMPTS: prompts})).text
    assert (text.query_prefix, text.passage_prefix) == (query, passage)


def saved(source, target, *options):
    words = ("convert", source, target, "--kind", "model", "--to", "denserk", *options)
    assert run([str(word) for word in words]) == 0
    return target


def test_denserk_reads_its_own_file_and_not_these(tiny, tmp_path):
    folder = saved(tiny(), tmp_path / "m", "--representation", "cls", "--query-prefix", "the ")
    before = read_model_folder(folder)
    for name in ("modules.json", LENGTHS, PROMPTS, "README.md"):
        (folder / name).write_text("[]")
    (folder / POOLING).unlink()
    after = read_model_folder(folder)
    assert (after.representation, after.text) == (before.representation, before.text)
    assert after.fingerprint() == before.fingerprint()


def test_a_transformer_in_a_folder_of_its_own(tiny, tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(tiny(), folder / "0_Transformer")
    names = ("Transformer", "Pooling")
    chain = [{"path": f"{i}_{name}", "type": ST + name} for i, name in enumerate(names)]
    (folder / "modules.json").write_text(json.dumps(chain))
    with pytest.raises(ModelError, match=r"config.json is missing"):
        read_model_folder(folder)
    (folder / "1_Pooling").mkdir()
    (folder / POOLING).write_text('{"pooling_mode": "cls"}')
    assert read_model_folder(folder).representation.representation is Representation.CLS
