"""Bad models, bad text and bad luck: one clear error each, the right status, nothing lost."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from denserk.commands.app import run
from denserk.config.encoding import RepresentationSettings, TextSettings
from denserk.config.options import spelled
from denserk.config.pretraining import CLASSES, PretrainSettings
from denserk.data.tokenization import load_tokenizer
from denserk.models.model_folder import save_model
from denserk.models.stored_model import read_model_folder
from tests.conftest import VOCABULARY
from tests.tiny_models import write_tiny
from tests.training.pretraining import write_corpus


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "corpus.jsonl")


@pytest.fixture
def command(tiny, corpus, tmp_path, capsys):
    """Runs the command; its status, and what stood on stderr."""

    def pretrain(*words, **given):
        basic = {
            "objective": "mlm",
            "model": str(tiny()),
            "corpus": corpus,
            "output": str(tmp_path / "out"),
            "batch_size": "4",
            "max_length": "16",
            "max_steps": "2",
            "device": "cpu",
        }
        options = [
            word
            for name, value in (basic | given).items()
            if value is not None
            for word in given_as(name, value)
        ]
        status = run(["pretrain", *options, *words])
        printed = capsys.readouterr()
        assert printed.out == ""
        assert "Traceback" not in printed.err
        assert "internal error" not in printed.err
        return status, printed.err

    return pretrain


def given_as(name, value):
    """The words that give a field: an option, or a setting."""
    words = spelled(name.replace("-", "_"), *CLASSES, PretrainSettings).split()
    return [*words, str(value)] if len(words) == 1 else [words[0], f"{words[1]}={value}"]


def errors(printed):
    """The lines that tell an error."""
    return [line for line in printed.splitlines() if line.startswith("error: ")]


def test_t5_is_refused_with_the_reason(command, tiny):
    status, printed = command(model=tiny("t5"))
    assert status == 1
    (line,) = errors(printed)
    assert "t5 cannot be pre-trained here, for it has no [CLS] token" in line
    assert "start from a BERT, RoBERTa, DistilBERT or ModernBERT" in " ".join(printed.split())


def test_two_encoders_are_refused(command, tiny, tmp_path):
    passage = read_model_folder(tiny()).passage.build(RepresentationSettings())
    query = read_model_folder(tiny(seed=8)).passage.build(RepresentationSettings())
    folder = tmp_path / "two"
    save_model(folder, passage, load_tokenizer(tiny()), TextSettings(), query)
    status, printed = command(model=folder)
    assert status == 1
    (line,) = errors(printed)
    assert "an encoder for queries and one for passages" in line
    assert f"{folder / 'document'}" in printed


def test_more_tokens_than_positions(command):
    status, printed = command(max_length=100)
    assert status == 2
    assert "--max-length 100" in errors(printed)[0]
    assert "--max-length 64" in printed


def test_missing_expansions_are_told_before_the_text_is_read(command, tmp_path):
    status, printed = command(objective="master")
    assert status == 2
    assert "dor and gor: the corpus has no generated" in errors(printed)[0]
    assert "--set tasks=mkp,cmp,npr" in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["corpus", "expansions", "frequency-dict"])
def test_a_path_that_is_not_there_costs_nothing(command, tmp_path, name):
    assert command()[0] == 0
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    options = {"objective": "master", "tasks": "mkp", "keyword-weight": "inverse-frequency"}
    status, printed = command("--overwrite", **options, **{name: tmp_path / "absent.jsonl"})
    assert status == 2
    assert "absent.jsonl: no such file" in errors(printed)[0]
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before


def test_tokens_of_another_tokenizer(command, tmp_path):
    assert command(tokenize_to=tmp_path / "tokens")[0] == 0
    other = write_tiny(tmp_path / "other", "bert", [*VOCABULARY, "zebra"])
    status, printed = command(model=other, corpus=tmp_path / "tokens", output=tmp_path / "next")
    assert status == 1
    assert "token ids of another tokenizer" in errors(printed)[0]


def test_standard_input_is_read_once_and_not_asked_twice(command, corpus, monkeypatch, tmp_path):
    def given(content):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))

    given(Path(corpus).read_bytes())
    assert command(corpus="-")[0] == 0
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    given(b"")
    assert command("--resume", corpus="-")[0] == 0  # the text is there, prepared
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    status, printed = command("--overwrite", corpus="-", model=None, architecture="tiny")
    assert status == 2
    assert "standard input has one reading" in errors(printed)[0]


@pytest.mark.parametrize(
    ("options", "status", "phrase"),
    [
        ({"model": None}, 2, "--model"),
        ({"architecture": "tiny"}, 2, "--model"),
        ({"model": "nowhere/at-all"}, 1, "nowhere/at-all"),
        ({"expansions": "e.jsonl"}, 2, "--expansions is for master"),
        ({"preset": "released"}, 2, "--preset is for master"),
        ({"tasks": "mkp"}, 2, "--set tasks is for master"),
        ({"skip_from": 1}, 2, "--set skip-from is for condenser, cocondenser"),
        ({"objective": "condenser", "skip_from": 3}, 1, "the head cannot see layer 3"),
        ({"objective": "cocondenser", "dtype": "float16"}, 2, "--dtype float16"),
        ({"objective": "cocondenser", "short_blocks": 0.5}, 2, "--set short-blocks is for"),
        ({"objective": "master", "tasks": "mkp,abc"}, 2, "--set tasks: found 'abc'"),
        ({"device": "tpu"}, 2, "auto, cpu, cuda"),
        ({"batch_size": 0}, 2, "at least 1"),
        ({"tokenizer": "t"}, 2, "--tokenizer needs --architecture"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, dict) else None,
)
def test_refused(command, tmp_path, options, status, phrase):
    found, printed = command(**options)
    assert found == status
    assert phrase in " ".join(printed.split())
    assert len(errors(printed)) == 1
    assert not (tmp_path / "out").exists()
