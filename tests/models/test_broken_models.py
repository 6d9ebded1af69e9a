"""Broken and crafted model folders, through the command that people use first."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from denserk.commands.app import run
from denserk.config.encoding import ComputeSettings
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage


@pytest.fixture
def model(tiny, tmp_path):
    return shutil.copytree(tiny("bert"), tmp_path / "model")


@pytest.fixture
def refused(toy, tmp_path, model, capfd):
    """Encodes with the model, which must end with one line; returns the line."""

    def encode():
        output = tmp_path / "vectors"
        given = ["--model", str(model), "--corpus", str(toy / "corpus.jsonl"), "--device", "cpu"]
        status = run(["encode", *given, "--output", str(output), "--overwrite", "--quiet"])
        lines = capfd.readouterr().err.splitlines()
        assert status == 1, lines
        assert "defect" not in lines[0]
        assert len([line for line in lines if line.startswith("error:")]) == 1
        assert len(lines) <= 2, lines  # the error and its hint
        return lines[0]

    return encode


def set_config(model, **values):
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


MADE = "config.json: transformers makes no model of it"
SHAPE = "the weights are not those of its config.json"
CONFIGS = [
    ({"hidden_act": "nonsense"}, MADE),
    ({"hidden_size": 0}, MADE),
    ({"hidden_size": 32}, SHAPE),
    ({"hidden_size": 32768}, "describes a model of"),
    ({"num_hidden_layers": 3}, SHAPE),
    ({"num_hidden_layers": 10_000_000}, "10,000,000 layers"),
    ({"vocab_size": 10_000_000_000}, "describes a model of"),
    ({"model_type": ["bert"]}, "model_type"),
    ({"model_type": "nonsense"}, "the backbone 'nonsense' is not supported"),
    ({"pad_token_id": 10_000}, MADE),
    ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "cannot be"),
]


@pytest.mark.parametrize(("values", "named"), CONFIGS, ids=[str(c[0])[:60] for c in CONFIGS])
def test_a_broken_config_is_one_line(model, refused, values, named):
    set_config(model, **values)
    line = refused()
    assert named in line


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"a": "\ud800"}'])
def test_a_config_that_is_no_object(model, refused, text):
    (model / "config.json").write_text(text, errors="surrogatepass")
    assert "config.json" in refused()


@pytest.mark.parametrize("name", ["_attn_implementation", "attn_implementation"])
def test_a_config_chooses_no_attention(model, tiny, name):
    """A name of the hub would have transformers fetch and run native code."""
    set_config(model, **{name: "kernels-community/flash-attn"})
    passages, compute = [Passage("d", "river boat")], ComputeSettings(device="cpu")
    found, expected = (
        TextEncoder.load(str(folder), compute=compute).encode_passages(passages)
        for folder in (model, tiny("bert"))
    )
    assert np.array_equal(found, expected)


def test_tensors_of_whole_numbers(model, refused):
    tensors = load_file(model / "model.safetensors")
    name = next(name for name in tensors if name.endswith("query.weight"))
    tensors[name] = tensors[name].to(torch.int32)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    assert f"{name.removeprefix('bert.')} holds int32, expected floating point" in refused()


INDEXES = [
    ({}, "no weight_map"),
    ({"weight_map": ["model.safetensors"]}, "weight_map"),
    ({"weight_map": {"a": 1}}, "weight_map.a that is 1"),
    ({"weight_map": {"a": "../model/part.safetensors"}}, "'../model/part.safetensors'"),
    ({"weight_map": {"a": "/etc/passwd"}}, "'/etc/passwd'"),
    ({"weight_map": {"a": "absent.safetensors"}}, "absent.safetensors is missing"),
]


@pytest.mark.parametrize(("index", "named"), INDEXES, ids=[str(i[0]) for i in INDEXES])
def test_a_broken_index_of_weights(model, refused, index, named):
    (model / "model.safetensors").rename(model / "part.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert named in refused()


def test_modules_of_sentence_transformers_stay_in_their_folder(model, refused):
    kinds = ("Transformer", "Pooling")
    modules = [{"type": f"sentence_transformers.models.{k}", "path": "../model"} for k in kinds]
    (model / "modules.json").write_text(json.dumps(modules))
    assert "the path '../model'" in refused()


def test_a_token_beyond_the_vocabulary(model, refused):
    """The number of tokens is right, and one of them has a number of its own."""
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["vocab"]["river"] = 999_999
    path.write_text(json.dumps(tokenizer))
    assert "999999" in refused().replace(",", "")


UNREADABLE = Path("/proc/self/mem")
"""A regular file that gives an input/output error from its first byte on, also to root."""


@pytest.mark.skipif(not UNREADABLE.exists(), reason="Linux has such a file")
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_files_that_cannot_be_read(model, refused, name):
    (model / name).unlink()
    (model / name).symlink_to(UNREADABLE)
    line = refused()
    assert "Input/output error" in line
    assert "is missing" not in line


class _Evil:
    def __reduce__(self):
        return print, ("executed",)


def test_pickles_are_read_for_tensors_alone(model, refused, capfd):
    """The reason is denserk's; torch's own goes on to say how the file is opened all the same."""
    weights = model / "model.safetensors"
    weights.write_bytes(pickle.dumps(_Evil()))
    assert "model.safetensors cannot be read" in refused()
    weights.unlink()
    weights = model / "pytorch_model.bin"
    torch.save({"a": _Evil()}, weights)
    line = refused()
    assert "it asks for print, which is no tensor" in line
    assert "weights_only" not in line
    for content in (b"", b"junk", pickle.dumps(_Evil()), pickle.dumps(np.zeros(3))):
        weights.write_bytes(content)
        assert "weights_only" not in refused()
    torch.save({"step": 3}, weights)
    assert "something other than named tensors" in refused()
    assert "executed" not in capfd.readouterr().out
