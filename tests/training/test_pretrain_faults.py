import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from denserk.config.encoding import RepresentationSettings, TextSettings
from denserk.data.tokenization import load_tokenizer
from denserk.models.model_folder import read_model_folder
from denserk.models.saving import save_model
from tests.support.tiny_models import write_tiny
from tests.support.toy import VOCABULARY


@pytest.fixture
def command(denserk, tiny, corpus, tmp_path):
    small = {"batch-size": 4, "max-length": 16, "max-steps": 2, "device": "cpu"}
    usual = {"model": tiny(), "corpus": corpus, "output": tmp_path / "out", **small}

    def pretrain(*flags, objective="mlm", **options):
        options = {name.replace("_", "-"): value for name, value in options.items()}
        return denserk("pretrain", {"objective": objective, **usual, **options}, *flags)

    return pretrain


def test_two_encoders_are_rejected(command, tiny, tmp_path):
    passage = read_model_folder(tiny()).passage.build(RepresentationSettings())
    query = read_model_folder(tiny(seed=8)).passage.build(RepresentationSettings())
    folder = tmp_path / "two"
    save_model(folder, passage, load_tokenizer(tiny()), TextSettings(), query)
    status, printed = command(model=folder)
    assert status == 1
    assert "an encoder for queries and one for passages" in printed
    assert f"{folder / 'document'}" in printed


@pytest.mark.parametrize("name", ["corpus", "expansions", "frequency-dict"])
def test_a_path_that_is_not_there_costs_nothing(command, tmp_path, name):
    assert command()[0] == 0
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    flags = ["--overwrite", "--set", "tasks=mkp", "--set", "keyword-weight=inverse-frequency"]
    options = {"objective": "master"}
    absent = tmp_path / "absent.jsonl"
    if name == "frequency-dict":
        flags += ["--set", f"frequency-dict={absent}"]
    else:
        options[name] = absent
    status, printed = command(*flags, **options)
    assert status == 2
    assert "absent.jsonl: no such file" in printed
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before


def test_tokens_of_another_tokenizer(command, tmp_path):
    assert command("--set", f"tokenize-to={tmp_path / 'tokens'}")[0] == 0
    other = write_tiny(tmp_path / "other", "bert", [*VOCABULARY, "zebra"])
    status, printed = command(model=other, corpus=tmp_path / "tokens", output=tmp_path / "next")
    assert status == 1
    assert "token ids of another tokenizer" in printed


def test_standard_input_is_read_once_and_not_asked_twice(command, corpus, monkeypatch, tmp_path):
    def give_stdin(content):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))

    give_stdin(Path(corpus).read_bytes())
    assert command(corpus="-")[0] == 0
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    give_stdin(b"")
    assert command("--resume", corpus="-")[0] == 0  # the text is there, prepared
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    status, printed = command("--overwrite", corpus="-", model=None, architecture="tiny")
    assert status == 2
    assert "standard input can be read once" in printed


@pytest.mark.parametrize(
    ("options", "expected_status", "phrase"),
    [
        ({"model": "nowhere/at-all"}, 1, "nowhere/at-all"),
        ({"max_length": 100}, 2, "add --max-length 64, or less"),
        ({"expansions": "e.jsonl"}, 2, "--expansions: not used by --objective mlm"),
        ({"objective": "condenser", "set": "skip-from=3"}, 1, "the head cannot see layer 3"),
        ({"objective": "cocondenser", "dtype": "float16"}, 2, "--dtype float16"),
        ({"tokenizer": "t"}, 2, "--tokenizer needs --architecture"),
        ({"objective": "condenser", "set": "npr=half"}, 2, "--set npr: not used by --objective co"),
        ({"objective": "master", "set": "cmp-encoder-rate=0.5"}, 2, "one encoder pass has one"),
        ({"objective": "master", "set": "frequency-dict=f"}, 2, "TF-IDF needs document"),
        ({"objective": "master"}, 2, "dor and gor: the corpus has no generated"),
    ],
    ids=str,
)
def test_rejected(command, tmp_path, options, expected_status, phrase):
    status, printed = command(**options)
    assert status == expected_status
    assert phrase in printed
    assert not (tmp_path / "out").exists()
