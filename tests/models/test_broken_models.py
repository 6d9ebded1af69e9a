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
def encode_error(toy, tmp_path, model, capfd):
    """`encode_error()`: the one line with which encoding by the model must end."""

    def encode():
        words = ["encode", "--model", str(model), "--corpus", str(toy / "corpus.jsonl")]
        words += ["--output", str(tmp_path / "v"), "--overwrite", "--device", "cpu", "--quiet"]
        status = run(words)
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


@pytest.mark.parametrize(("values", "message"), CONFIGS, ids=str)
def test_a_broken_config_is_one_line(model, encode_error, values, message):
    set_config(model, **values)
    assert message in encode_error()


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"a": "\ud800"}'], ids=len)
def test_a_config_that_is_no_object(model, encode_error, text):
    (model / "config.json").write_text(text, errors="surrogatepass")
    assert "config.json" in encode_error()


TOKENIZER_FILES = [
    ("tokenizer.json", ""),
    ("tokenizer.json", "{}"),
    ("tokenizer.json", "[]"),
    ("tokenizer.json", "[" * 100_000),
    ("tokenizer.json", "junk"),
    ("tokenizer.json", '{"version": "1.0"}'),
    ("tokenizer.json", '{"added_tokens": []}'),
    (
        "tokenizer.json",
        '{"added_tokens": [], "model": {"type": "WordPiece", "vocab": {"a": -1}}}',
    ),
    ("tokenizer.json", '{"added_tokens": [], "model": {"type": "Nonsense"}}'),
    ("tokenizer_config.json", ""),
    ("tokenizer_config.json", "[]"),
    ("tokenizer_config.json", "{"),
    ("tokenizer_config.json", '{"model_max_length": NaN}'),
    ("special_tokens_map.json", "[3"),
    ("special_tokens_map.json", "[]"),
]


@pytest.mark.parametrize(("name", "text"), TOKENIZER_FILES, ids=lambda value: value[:40])
def test_a_tokenizer_that_the_library_rejects_is_named(model, encode_error, name, text):
    (model / name).write_text(text)
    assert str(model / name) in encode_error()


def test_a_padding_token_that_is_no_text(model, encode_error):
    (model / "tokenizer_config.json").write_text('{"pad_token": 3}')
    assert str(model / "tokenizer.json") in encode_error()


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Nonsense"}},
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [],
                "pair": [],
                "special_tokens": {},
            }
        },
    ],
)
def test_a_tokenizer_of_another_kind_of_parts(model, encode_error, change):
    path = model / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert str(path) in encode_error()


@pytest.mark.parametrize("path", ["/etc/passwd", "../other/a.safetensors", "a/../../b", "..\\b"])
def test_weights_outside_of_the_folder_are_not_followed(model, encode_error, path):
    (model / "model.safetensors").rename(model / "a.safetensors")
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors", "b": path}}))
    error = encode_error()
    assert str(index) in error
    assert "leads out of the model's folder" in error


@pytest.mark.parametrize("command", ["encode", "rerank"])
@pytest.mark.parametrize("name", ["./nothere", "nothere", "empty"])
def test_a_model_that_is_not_there_is_noticed_before_anything_else(toy, tmp_path, command, name):
    """Nothing else exists: an error of it would come later; torch is not imported for this one."""
    (toy / "empty").mkdir()
    options = {
        "encode": ("--corpus", "gone.jsonl", "--output", "v"),
        "rerank": ("--run", "gone", "--topics", "gone", "--corpus", "gone", "--output", "r"),
    }
    words = [command, "--model", name, *options[command]]
    script = (
        "import sys; from denserk.commands.app import run\n"
        f"status = run({words!r}); assert status in (1, 2); assert 'torch' not in sys.modules"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], cwd=toy, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert name.removeprefix("./") in process.stderr.splitlines()[0]
    assert "gone" not in process.stderr
    assert not (toy / "v").exists()


@pytest.mark.parametrize("name", checkpoints.LOADS_CODE)
def test_a_config_chooses_no_attention(model, tiny, name):
    """A name of the hub would have transformers fetch and run native code."""
    value = True if name == "output_attentions" else "kernels-community/flash-attn"
    set_config(model, **{name: value})
    passages = [Passage("d", "river boat")]
    compute = ComputeSettings(device="cpu")
    vectors = TextEncoder(str(model), compute=compute).encode_passages(passages)
    expected = TextEncoder(str(tiny("bert")), compute=compute).encode_passages(passages)
    np.testing.assert_array_equal(vectors, expected)


class _Evil:
    def __reduce__(self):
        return print, ("executed",)


def test_pickles_are_read_for_tensors_alone(model, encode_error, capfd):
    """torch's own message says how the code in the file could be run all the same."""
    weights = model / "model.safetensors"
    weights.write_bytes(pickle.dumps(_Evil()))
    assert "model.safetensors cannot be read" in encode_error()
    weights.unlink()
    weights = model / "pytorch_model.bin"
    torch.save({"a": _Evil()}, weights)
    assert "a pickle that is broken or holds more than tensors" in encode_error()
    for content in (b"", b"junk", pickle.dumps(_Evil()), pickle.dumps(np.zeros(3))):
        weights.write_bytes(content)
        assert "weights_only" not in encode_error()
    torch.save({"step": 3}, weights)
    assert "something other than named tensors" in encode_error()
    assert "executed" not in capfd.readouterr().out
