import json
import pickle
import shutil

import numpy as np
import pytest
import torch

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
        given = ["--model", str(model), "--corpus", str(toy / "corpus.jsonl"), "--device", "cpu"]
        status = run(["encode", *given, "--output", str(tmp_path / "v"), "--overwrite", "--quiet"])
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


CONFIGS = [
    ({"hidden_act": "nonsense"}, "config.json: transformers makes no model of it"),
    ({"hidden_size": 0}, "config.json: transformers makes no model of it"),
    ({"hidden_size": 32}, "the weights are not those of its config.json"),
    ({"num_hidden_layers": 3}, "the weights are not those of its config.json"),
    ({"model_type": ["bert"]}, "model_type"),
    ({"model_type": "nonsense"}, "does not know the model_type 'nonsense'"),
    ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "cannot be"),
]


@pytest.mark.parametrize(("values", "named"), CONFIGS, ids=str)
def test_a_broken_config_is_one_line(model, refused, values, named):
    set_config(model, **values)
    assert named in refused()


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"a": "\ud800"}'], ids=len)
def test_a_config_that_is_no_object(model, refused, text):
    (model / "config.json").write_text(text, errors="surrogatepass")
    assert "config.json" in refused()


@pytest.mark.parametrize("name", ["_attn_implementation", "attn_implementation"])
def test_a_config_chooses_no_attention(model, tiny, name):
    """A name of the hub would have transformers fetch and run native code."""
    set_config(model, **{name: "kernels-community/flash-attn"})
    passages, compute = [Passage("d", "river boat")], ComputeSettings(device="cpu")
    found, expected = (
        TextEncoder(str(folder), compute=compute).encode_passages(passages)
        for folder in (model, tiny("bert"))
    )
    assert np.array_equal(found, expected)


class _Evil:
    def __reduce__(self):
        return print, ("executed",)


def test_pickles_are_read_for_tensors_alone(model, refused, capfd):
    """torch's own message says how the code in the file could be run all the same."""
    weights = model / "model.safetensors"
    weights.write_bytes(pickle.dumps(_Evil()))
    assert "model.safetensors cannot be read" in refused()
    weights.unlink()
    weights = model / "pytorch_model.bin"
    torch.save({"a": _Evil()}, weights)
    assert "a pickle that is broken or holds more than tensors" in refused()
    for content in (b"", b"junk", pickle.dumps(_Evil()), pickle.dumps(np.zeros(3))):
        weights.write_bytes(content)
        assert "weights_only" not in refused()
    torch.save({"step": 3}, weights)
    assert "something other than named tensors" in refused()
    assert "executed" not in capfd.readouterr().out
