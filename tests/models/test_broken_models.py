import json
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from denserk.commands.app import run
from denserk.config.encoding import ComputeSettings
from denserk.models import checkpoints
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
        assert "internal error" not in lines[0]
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
    ({"num_hidden_layers": 10_000_000}, "config.json: found num_hidden_layers 10000000"),
    ({"num_hidden_layers": 1e7}, "config.json: found num_hidden_layers 10000000.0"),
    ({"num_hidden_layers": 2.0}, "config.json: found num_hidden_layers 2.0"),
    ({"num_hidden_layers": -1}, "config.json: found num_hidden_layers -1"),
    ({"num_hidden_layers": 900}, "config.json: found 900 layers"),
    ({"vocab_size": 10**12}, "config.json: found sizes of a model of 16,000,000"),
    (
        {"initializer_range": float("nan")},
        "config.json: found text that is not JSON (the value NaN",
    ),
    ({"layer_norm_eps": float("inf")}, "config.json: found text that is not JSON"),
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


TOKENIZERS = {
    "tokenizer.json": (
        *("", "{}", "[]", "[" * 100_000, "junk", '{"version": "1.0"}', '{"added_tokens": []}'),
        '{"added_tokens": [], "model": {"type": "WordPiece", "vocab": {"a": -1}}}',
        '{"added_tokens": [], "model": {"type": "Nonsense"}}',
    ),
    "tokenizer_config.json": ("", "[]", "{", '{"pad_token": 3}', '{"model_max_length": NaN}'),
    "special_tokens_map.json": ("[3", "[]"),
}
CONTENTS = [(name, text) for name, texts in TOKENIZERS.items() for text in texts]


@pytest.mark.parametrize(("name", "text"), CONTENTS, ids=lambda value: value[:40])
def test_a_tokenizer_that_the_library_rejects_is_named(model, refused, name, text):
    (model / name).write_text(text)
    assert str(model / "tokenizer.json" if "pad_token" in text else model / name) in refused()


def test_a_tokenizer_of_another_kind_of_parts(model, refused):
    path = model / "tokenizer.json"
    values = json.loads(path.read_text())
    parts = {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}
    for part, value in (("normalizer", {"type": "Nonsense"}), ("post_processor", parts)):
        path.write_text(json.dumps({**values, part: value}))
        assert str(path) in refused()


@pytest.mark.parametrize("path", ["/etc/passwd", "../other/a.safetensors", "a/../../b", "..\\b"])
def test_weights_outside_of_the_folder_are_not_followed(model, refused, path):
    (model / "model.safetensors").rename(model / "a.safetensors")
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors", "b": path}}))
    assert str(index) in (line := refused())
    assert "leads out of the model's folder" in line


@pytest.mark.parametrize("command", ["encode", "rerank"])
@pytest.mark.parametrize("name", ["./nothere", "nothere", "empty"])
def test_a_model_that_is_not_there_is_noticed_before_anything_else(toy, tmp_path, command, name):
    """Nothing else exists: an error of it would come later; torch is not imported for this one."""
    (toy / "empty").mkdir()
    others = {
        "encode": ("--corpus", "gone.jsonl", "--output", "v"),
        "rerank": ("--run", "gone", "--topics", "gone", "--corpus", "gone", "--output", "r"),
    }
    words = [command, "--model", name, *others[command]]
    script = (
        "import sys; from denserk.commands.app import run\n"
        f"status = run({words!r}); assert status in (1, 2); assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=toy, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert name.removeprefix("./") in done.stderr.splitlines()[0]
    assert "gone" not in done.stderr
    assert not (toy / "v").exists()


@pytest.mark.parametrize("name", checkpoints.LOADS_CODE)
def test_a_config_chooses_no_attention(model, tiny, name):
    """A name of the hub would have transformers fetch and run native code."""
    value = True if name == "output_attentions" else "kernels-community/flash-attn"
    set_config(model, **{name: value})
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
