import json
from typing import Any

import pytest
from transformers import AutoTokenizer

from denserk.config.pretraining import Architecture
from denserk.errors import InputError, UsageError
from denserk.training.pretrain import start_folder, train_vocabulary
from denserk.training.trainer import Trainer
from tests.support.faults import Stopped, contents, stopped_at
from tests.support.pretraining import run_of, train, write_expansions
from tests.support.toy import PASSAGES, SPECIALS

KINDS = {
    "cocondenser-cached": {"objective": "cocondenser", "save_steps": 4, "cache_chunk_size": 2},
    "master": {"objective": "master", "save_steps": 4},
    "dupmae-chunks": {"objective": "dupmae", "save_steps": 4, "cache_chunk_size": 3},
}


def all_weights(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_is_uninterrupted(tiny, corpus, tmp_path, kind):
    options = {**KINDS[kind], "corpus": corpus, "model": tiny()}
    if kind == "master":
        options["expansions"] = write_expansions(tmp_path / "expansions.jsonl")
    whole = train(tmp_path / "whole", **options)
    with stopped_at(5, [(Trainer, "training_step")]), pytest.raises(Stopped):
        train(tmp_path / "cut", **options)
    assert not (tmp_path / "cut" / "config.json").exists()
    resumed = train(tmp_path / "cut", **options, resume=True)
    assert (resumed.steps, resumed.first_step) == (6, 4)
    assert resumed.loss == whole.loss
    assert all_weights(tmp_path / "cut") == all_weights(tmp_path / "whole")


NEW: dict[str, Any] = {"architecture": Architecture.TINY, "vocabulary_size": 200}


def test_from_nothing_resumes_with_its_vocabulary(corpus, tmp_path, caplog):
    train(tmp_path / "whole", corpus, "condenser", **NEW)
    with stopped_at(3, [(Trainer, "training_step")]), pytest.raises(Stopped):
        train(tmp_path / "cut", corpus, "condenser", **NEW)
    start_contents = contents(tmp_path / "cut.training" / "start")
    caplog.clear()
    train(tmp_path / "cut", corpus, "condenser", **NEW, resume=True)
    assert "a vocabulary" not in caplog.text
    assert "again" not in caplog.text
    assert contents(tmp_path / "cut.training" / "start") == start_contents
    assert all_weights(tmp_path / "cut") == all_weights(tmp_path / "whole")


def test_the_vocabulary_is_a_tokenizer_of_transformers(tmp_path):
    texts = [f"{title}. {text}" for title, text in PASSAGES.values()] + [
        "The river-bank's boats: 3 fished, 12 didn't!",
        "Élan and naïveté of the 北京 river; \u201cquoted\u201d words...",
    ]
    tokenizer = train_vocabulary(lambda: iter(texts), 200, "texts", positions=64)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert len(loaded) == len(tokenizer) <= 200
    assert loaded.convert_ids_to_tokens([0, 1, 2, 3, 4]) == SPECIALS
    for text in texts:
        assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert loaded.unk_token_id not in loaded(text)["input_ids"]
    assert loaded("the moon", "a cat")["token_type_ids"][-1] == 1
    assert loaded.model_max_length == 64
    assert loaded.tokenize("[MASK] moon")[0] == loaded.mask_token


def start(tmp_path, corpus, name="start", **options):
    """The folder of a new model."""
    run = run_of(tmp_path / "out", corpus, **{**NEW, **options})
    return start_folder(run, tmp_path / name)


def test_a_given_tokenizer_is_taken_over(tiny, tmp_path):
    """It also takes token ids, which make no vocabulary."""
    tokens = tmp_path / "tokens.jsonl"
    tokens.write_text('{"text": [5, 6, 7]}\n')
    with pytest.raises(InputError, match="no text to train a vocabulary on"):
        start(tmp_path, tokens)
    folder = start(tmp_path, tokens, tokenizer=str(tiny()), vocabulary_size=30522)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    given_tokenizer = AutoTokenizer.from_pretrained(tiny())
    assert tokenizer.get_vocab() == given_tokenizer.get_vocab()
    config = json.loads((folder / "config.json").read_text())
    assert config["vocab_size"] == len(given_tokenizer)


def test_a_tokenizer_without_a_mask_is_rejected(tiny, tmp_path, corpus):
    with pytest.raises(UsageError, match=r"no \[MASK\] or no \[CLS\]"):
        start(tmp_path, corpus, tokenizer=str(tiny("t5")), vocabulary_size=30522)
