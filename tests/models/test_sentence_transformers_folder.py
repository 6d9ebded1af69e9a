import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import denserk
from denserk.commands.app import run
from denserk.config.encoding import Representation
from denserk.errors import DenserkError, ModelError
from denserk.models.model_folder import read_model_folder
from tests.support.finetuning import write_examples
from tests.support.sentence_transformers_folders import (
    LENGTHS,
    POOLING,
    PROMPTS,
    module,
    write_folder,
)


def test_pooling_norm_and_length_are_read(tiny, tmp_path):
    stored = read_model_folder(write_folder(tiny(), tmp_path / "m"))
    assert stored.has_settings
    assert stored.representation.l2_norm
    assert stored.text.query_max_length == 20
    assert stored.text.passage_max_length == 20
    without_norm = write_folder(
        tiny(),
        tmp_path / "without-norm",
        modules=("Transformer", "Pooling"),
        **{PROMPTS: {"similarity_fn_name": "dot"}},
    )
    assert not read_model_folder(without_norm).representation.l2_norm
    assert read_model_folder(without_norm).fingerprint() != stored.fingerprint()


@pytest.mark.parametrize(
    ("lengths", "query_length", "passage_length"),
    [
        ({}, 64, 64),  # the tokenizer's limit
        ({"max_seq_length": 20, "query_length": 9}, 9, 20),
        ({"max_seq_length": 20, "document_length": 12}, 20, 12),
        # as Arctic's folders, whose vectors need no pooler
        ({"max_seq_length": 16, "model_args": {"add_pooling_layer": False}}, 16, 16),
    ],
)
def test_lengths_of_each_side(tiny, tmp_path, lengths, query_length, passage_length):
    text = read_model_folder(write_folder(tiny(), tmp_path / "m", **{LENGTHS: lengths})).text
    assert text.query_max_length == query_length
    assert text.passage_max_length == passage_length


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
    folder = write_folder(tiny(), tmp_path / "m", **{POOLING: config})
    assert read_model_folder(folder).representation.representation == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modules": ("Transformer", "Pooling", "LayerNorm")}, "modules.json.*LayerNorm"),
        ({"modules": ("Transformer", "WeightedLayerPooling", "Pooling")}, "WeightedLayerPooling"),
        ({"modules": ("Transformer", "Pooling", "Normalize", "Dense")}, "Normalize, Dense"),
        ({"modules": ("Router",)}, "modules.json.*Router"),
        ({"modules": ("StaticEmbedding",)}, "modules.json.*StaticEmbedding"),
        ({"modules.json": [{"type": "custom_st.Transformer"}]}, "modules.json.*custom_st"),
        ({POOLING: {"pooling_mode": ["cls", "mean"]}}, f"{POOLING}: pooling_mode.*cls and mean"),
        ({POOLING: {"pooling_mode_weightedmean_tokens": True}}, "pooling_mode.*weightedmean"),
        ({POOLING: {"pooling_mode_new": True}}, f"{POOLING}: pooling_mode_new"),
        ({POOLING: {"include_prompt": False}}, f"{POOLING}: include_prompt"),
        ({LENGTHS: {"do_lower_case": True}}, f"{LENGTHS}: do_lower_case"),
        ({LENGTHS: {"query_expansion": {"length": 9}}}, f"{LENGTHS}: query_expansion"),
        ({LENGTHS: {"transformer_task": "fill-mask"}}, f"{LENGTHS}: transformer_task.*fill-mask"),
        (
            {LENGTHS: {"processing_kwargs": {"text": {"padding": "max_length"}}}},
            "processing_kwargs",
        ),
        ({LENGTHS: {"tokenizer_args": {"padding_side": "left"}}}, "tokenizer_args.padding_side"),
        ({LENGTHS: {"max_seq_length": "long"}}, f"{LENGTHS}.*max_seq_length"),
        (
            {PROMPTS: {"similarity_fn_name": "manhattan"}},
            f"{PROMPTS}: similarity_fn_name.*manhattan",
        ),
        ({PROMPTS: {"similarity_fn_name": "maxsim"}}, f"{PROMPTS}: similarity_fn_name.*maxsim"),
        ({PROMPTS: {"similarity_fn_name": "dot", "truncate_dim": 4}}, f"{PROMPTS}: truncate_dim"),
        ({PROMPTS: {"truncate_dim": "all"}}, f"{PROMPTS}: truncate_dim"),
        ({PROMPTS: {"model_type": "SparseEncoder"}}, f"{PROMPTS}: model_type.*SparseEncoder"),
        ({PROMPTS: {"default_prompt_name": "gone"}}, f"{PROMPTS}: default_prompt_name.*gone"),
        ({PROMPTS: {"prompts": ["a"]}}, f"{PROMPTS}.*prompts"),
        ({"adapter_config.json": {"peft_type": "LORA"}}, "adapter_config.json.*adapter"),
    ],
)
def test_what_denserk_does_not_compute_is_refused_by_file_and_setting(
    tiny, toy, tmp_path, capfd, change, message
):
    folder = write_folder(tiny(), tmp_path / "m", **change)
    options = ("--model", folder, "--corpus", toy / "corpus.jsonl", "--output", tmp_path / "v")
    assert run(["encode", *map(str, options)]) == 1
    error, *hint_lines = capfd.readouterr().err.splitlines()
    assert re.search(message, error)
    assert hint_lines
    assert not (tmp_path / "v").exists()
    with pytest.raises(DenserkError, match=message):
        denserk.Encoder.load(folder)


DENSE = {"in_features": 16, "out_features": 4, "activation_function": "torch.nn.Tanh"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_residual": True}, "use_residual"),
        (
            {"activation_function": "torch.nn.modules.activation.PReLU"},
            "activation_function.*PReLU",
        ),
        ({"activation_function": "os.system"}, "activation_function.*os.system"),
        ({"module_input_name": "token_embeddings"}, "module_input_name"),
        ({"out_features": 0}, "out_features"),
        ({}, "has no weights"),
    ],
)
def test_a_linear_layer_of_another_kind_is_refused(tiny, tmp_path, change, message):
    chain = ("Transformer", "Pooling", "Dense")
    files = {"2_Dense/config.json": {**DENSE, **change}}
    folder = write_folder(tiny(), tmp_path / "m", modules=chain, **files)
    with pytest.raises(DenserkError, match=f"2_Dense.*{message}"):
        denserk.Encoder.load(folder)


def test_a_linear_layer_of_another_size_is_refused(tiny, tmp_path):
    chain = ("Transformer", "Pooling", "Dense")
    folder = write_folder(tiny(), tmp_path / "m", modules=chain, **{"2_Dense/config.json": DENSE})
    tensors = {"linear.weight": torch.ones(4, 9), "linear.bias": torch.ones(4)}
    save_file(tensors, folder / "2_Dense/model.safetensors")
    with pytest.raises(ModelError, match=r"projection.weight"):
        denserk.Encoder.load(folder)


@pytest.mark.parametrize("path", ["../other", "/etc", "a/../../b", "C:\\models", "..\\up"])
def test_modules_outside_of_the_folder_are_not_followed(tiny, tmp_path, path):
    folder = write_folder(tiny(), tmp_path / "m")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(DenserkError, match=r"modules.json: found the path .* leads out"):
        denserk.Encoder.load(folder)


@pytest.fixture
def chain(tiny, toy, tmp_path, monkeypatch, capfd):
    """Runs commands in the toy folder on a folder of Transformer and Pooling; returns messages."""
    monkeypatch.chdir(toy)

    def command(line, status=0):
        assert run(line.split()) == status
        return capfd.readouterr().err

    def start(**model_config):
        modules = ("Transformer", "Pooling")
        write_folder(tiny(), toy / "m", modules=modules, **{PROMPTS: model_config})
        return command

    return start


def recorded(folder, *names):
    value = json.loads(Path(folder, "manifest.json").read_text())
    for name in names:
        value = value[name]
    return value


REPRESENTATION = ("made_from", "model", "representation")


@pytest.mark.parametrize("model_config", [{}, {"similarity_fn_name": "cosine"}])
def test_vectors_of_a_cosine_model_are_normalised_and_it_is_said_once(chain, model_config):
    command = chain(**model_config)
    messages = command("encode --model m --corpus corpus.jsonl --output v --output-format npy")
    assert messages.count("--no-l2-norm") == 1
    assert recorded("v", *REPRESENTATION)["l2_norm"]
    vectors = denserk.Encoder.load("m").encode_passages(["the river", "a cat"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert "--no-l2-norm" not in command("index --input v --output ix")
    command("search --index ix --topics queries.tsv --output run")


def test_a_given_norm_wins_over_cosine_and_search_warns_of_such_an_index(chain):
    command = chain(similarity_fn_name="cosine")
    messages = command("encode --model m --corpus corpus.jsonl --output v --no-l2-norm")
    assert "cosine" not in messages
    assert not recorded("v", *REPRESENTATION)["l2_norm"]
    command("index --input v --output ix")
    search = "search --index ix --topics queries.tsv"
    assert "cosine" in command(f"{search} --output run")
    assert "cosine" not in command(f"{search} --output run2 --no-l2-norm")


def test_vectors_of_a_euclidean_model_are_indexed_by_distance_unless_told_otherwise(chain):
    command = chain(similarity_fn_name="euclidean")
    assert "--metric l2" in command("encode --model m --corpus corpus.jsonl --output v")
    assert recorded("v", "made_from", "model", "metric") == "l2"
    command("index --input v --output ix")
    assert recorded("ix", "settings", "metric") == "l2"
    assert "WARNING" not in command("search --index ix --topics queries.tsv --output run")
    assert "Euclidean" in command("index --input v --output inner --metric inner")
    assert recorded("inner", "settings", "metric") == "inner"
    messages = command("search --index inner --topics queries.tsv --output run2")
    assert "--metric l2" in messages
    assert denserk.Run.load("run") != denserk.Run.load("run2")
    assert denserk.Encoder.load("m").metric == "l2"


def test_an_index_of_a_model_that_names_no_metric_records_inner_product(chain):
    command = chain(similarity_fn_name="dot")
    command("encode --model m --corpus corpus.jsonl --output v")
    command("index --input v --output ix")
    assert recorded("ix", "settings", "metric") == "inner"
    assert "metric" not in recorded("v", "made_from", "model")


def test_fine_tuning_starts_from_what_a_foreign_folder_says(chain):
    command = chain(similarity_fn_name="cosine")
    write_examples(Path("t.jsonl"), range(8))
    line = "finetune --model m --train-data t.jsonl --group-size 2 --max-steps 1 --output"
    assert "--temperature" in command(f"{line} a", 2)
    messages = command(f"{line} b --temperature 0.05")
    assert json.loads(Path("b/denserk.json").read_text())["representation"]["l2_norm"]
    assert "cosine" not in messages  # it was said before
    command(f"{line} c --no-l2-norm")
    assert not json.loads(Path("c/denserk.json").read_text())["representation"]["l2_norm"]


def test_prompts_of_other_names_are_mentioned(chain):
    command = chain(similarity_fn_name="dot", prompts={"s2p_query": "find: ", "document": "a "})
    encode = "encode --model m --corpus corpus.jsonl"
    assert "s2p_query" in command(f"{encode} --output v")
    assert "s2p_query" not in command(f"{encode} --output w --query-prefix find:")


@pytest.mark.parametrize("default", ["query", "document"])
def test_a_prompt_of_one_side_that_the_other_has_by_default_is_mentioned(chain, default):
    """`encode` of sentence-transformers gives it to all texts, `encode_document` to none."""
    command = chain(
        similarity_fn_name="dot", prompts={default: "find: "}, default_prompt_name=default
    )
    encode = "encode --model m --corpus corpus.jsonl"
    assert "default prompt" in command(f"{encode} --output v")
    assert "default prompt" not in command(f"{encode} --output w --passage-prefix find:")


@pytest.mark.parametrize(
    ("prompts", "query", "passage"),
    [
        ({"prompts": {"query": "the ", "passage": "a "}}, "the ", "a "),
        ({"prompts": {"any": "old "}, "default_prompt_name": "any"}, "old ", "old "),
        ({"prompts": {"any": "old "}, "default_prompt_name": None}, "", ""),
    ],
)
def test_prompts_become_prefixes(tiny, tmp_path, prompts, query, passage):
    text = read_model_folder(write_folder(tiny(), tmp_path / "m", **{PROMPTS: prompts})).text
    assert text.query_prefix == query
    assert text.passage_prefix == passage


def convert_to_denserk(source, target, *options):
    words = ("convert", source, target, "--kind", "model", "--to", "denserk", *options)
    assert run([str(word) for word in words]) == 0
    return target


def test_denserk_reads_its_own_file_and_not_these(tiny, tmp_path):
    options = ("--representation", "cls", "--query-prefix", "the ")
    folder = convert_to_denserk(tiny(), tmp_path / "m", *options)
    before = read_model_folder(folder)
    fingerprint = before.fingerprint()
    for name in ("modules.json", LENGTHS, PROMPTS, "README.md"):
        (folder / name).write_text("[]")
    (folder / POOLING).unlink()
    after = read_model_folder(folder)
    assert after.representation == before.representation
    assert after.text == before.text
    assert after.fingerprint() == fingerprint


def test_a_transformer_in_a_folder_of_its_own(tiny, tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(tiny(), folder / "0_Transformer")
    chain = [module(0, "Transformer", "0_Transformer"), module(1, "Pooling", "1_Pooling")]
    (folder / "modules.json").write_text(json.dumps(chain))
    with pytest.raises(ModelError, match=r"config.json is missing"):
        read_model_folder(folder)
    (folder / "1_Pooling").mkdir()
    (folder / POOLING).write_text('{"pooling_mode": "cls"}')
    assert read_model_folder(folder).representation.representation is Representation.CLS
