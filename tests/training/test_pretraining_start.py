"""What a run starts from: given weights, or a tiny model and a vocabulary from nothing."""

import json
from typing import Any

import pytest
from transformers import AutoModelForMaskedLM, AutoTokenizer

from denserk.config.pretraining import Architecture
from denserk.errors import InputError, MismatchError, UsageError
from denserk.training.pretrain import start_folder
from tests.faults import contents
from tests.reporters import Heard
from tests.training.pretraining import run_of, write_corpus

NEW: dict[str, Any] = {"architecture": Architecture.TINY, "vocabulary_size": 200}


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "corpus.jsonl")


def started(tmp_path, corpus, name="start", **options):
    """A start folder's path."""
    run = run_of(tmp_path / "out", corpus, **{**NEW, **options})
    return start_folder(run, tmp_path / name)


def test_a_model_of_the_asked_size_with_a_vocabulary_of_the_corpus(tmp_path, corpus):
    folder = started(tmp_path, corpus)
    config = AutoModelForMaskedLM.from_pretrained(folder).config
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (config.num_hidden_layers, config.hidden_size) == (2, 128)
    assert config.vocab_size == len(tokenizer) <= 200
    assert config.max_position_embeddings == tokenizer.model_max_length == 512
    assert tokenizer.tokenize("The river runs") == ["the", "river", "runs"]


def test_the_same_twice(tmp_path, corpus):
    first, second = (contents(started(tmp_path, corpus, name)) for name in ("a", "b"))
    assert first == second
    other = contents(started(tmp_path, corpus, "c", seed=7))
    assert other["tokenizer.json"] == first["tokenizer.json"]
    assert other["model.safetensors"] != first["model.safetensors"]


def test_a_given_tokenizer_is_taken_over(tiny, tmp_path, corpus):
    folder = started(tmp_path, corpus, tokenizer=str(tiny()), vocabulary_size=30522)
    ours, theirs = (AutoTokenizer.from_pretrained(path) for path in (folder, tiny()))
    assert ours.get_vocab() == theirs.get_vocab()
    config = json.loads((folder / "config.json").read_text())
    assert config["vocab_size"] == len(theirs)


def test_what_is_there_is_used_again_or_replaced(tmp_path, corpus):
    folder = started(tmp_path, corpus)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert (started(tmp_path, corpus) / "model.safetensors").stat().st_mtime_ns == before
    write_corpus(tmp_path / "corpus.jsonl", range(3, 9))
    heard, kept = Heard(), contents(folder)
    run = run_of(tmp_path / "out", corpus, **NEW)
    with pytest.raises(MismatchError, match=r"corpus 1.sha256 was .* now"):
        start_folder(run, folder, again=False)
    assert contents(folder) == kept
    start_folder(run, folder)
    assert contents(folder)["tokenizer.json"] != kept["tokenizer.json"]
    assert any("is prepared again: corpus 1.sha256 was" in note for note in heard.notes)


def test_standard_input_cannot_be_read_twice(tmp_path):
    with pytest.raises(UsageError, match="standard input has one reading"):
        started(tmp_path, "-")


def test_ids_make_no_vocabulary(tiny, tmp_path):
    tokens = tmp_path / "tokens.jsonl"
    tokens.write_text('{"text": [5, 6, 7]}\n')
    with pytest.raises(InputError, match="token ids") as refusal:
        started(tmp_path, tokens)
    assert "--tokenizer" in str(refusal.value.hint)
    folder = started(tmp_path, tokens, tokenizer=str(tiny()), vocabulary_size=30522)
    assert (folder / "config.json").is_file()


def test_a_tokenizer_without_a_mask_is_refused(tiny, tmp_path, corpus):
    with pytest.raises(UsageError, match=r"no \[MASK\] or no \[CLS\]"):
        started(tmp_path, corpus, tokenizer=str(tiny("t5")), vocabulary_size=30522)
