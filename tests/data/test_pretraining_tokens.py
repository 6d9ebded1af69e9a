"""Tokenised text as JSON lines: written from a prepared folder, read back to the same."""

import json
from pathlib import Path

import pytest

from denserk.config.pretraining import PretrainingObjective, TextUnitSettings
from denserk.data.pretraining_data import FREQUENCIES, prepare, write_tokens
from denserk.errors import DenserkError
from denserk.io.manifest import Kind, read_manifest
from denserk.io.pretraining_text import TOKENS
from tests.data.prepared_texts import MASTER, SEP, TOKENIZER, ids_of, store_of
from tests.faults import contents

UNITS = TextUnitSettings(max_length=40, short_blocks=0.0)
TEXTS = ids_of("the fran ##ce [SEP] runs"), ids_of("a cat"), ids_of("capital song the")
RECORDS = {
    PretrainingObjective.MLM: [{"text": text} for text in TEXTS],
    PretrainingObjective.COCONDENSER: [
        {"spans": [TEXTS[0], TEXTS[1]]},
        {"spans": [TEXTS[2], TEXTS[1], TEXTS[0]]},
    ],
    MASTER: [
        {"text": TEXTS[0], "queries": [ids_of("a cat"), ids_of("song")], "next": [ids_of("the")]},
        {"text": TEXTS[1]},
        {"text": TEXTS[2], "queries": [], "next": []},
    ],
}


def lines(folder):
    return [json.loads(line) for line in (folder / TOKENS).read_text().splitlines()]


@pytest.mark.parametrize("objective", RECORDS, ids=str)
def test_what_is_written_is_what_was_read(tmp_path, objective):
    store = store_of(tmp_path / "a", RECORDS[objective], objective)
    write_tokens(store, tmp_path / "tokens", "a model", SEP)
    assert lines(tmp_path / "tokens") == RECORDS[objective]
    again = prepare([str(tmp_path / "tokens")], tmp_path / "b", TOKENIZER, objective, units=UNITS)
    arrays = [
        {name: found for name, found in contents(Path(s.folder)).items() if name != "manifest.json"}
        for s in (store, again)
    ]
    assert arrays[0] == arrays[1]


def test_frequencies_are_those_of_merged_words(tmp_path):
    store = store_of(tmp_path / "a", RECORDS[MASTER])
    write_tokens(store, tmp_path / "tokens", "a model", SEP)
    table = json.loads((tmp_path / "tokens" / FREQUENCIES).read_text())
    assert table == {
        "the": 2, "fran##ce": 1, "runs": 1, "a": 1, "cat": 1, "capital": 1, "song": 1,
    }  # fmt: skip


def test_the_manifest_names_tokenizer_and_source(tmp_path):
    store = store_of(tmp_path / "a", RECORDS[MASTER])
    write_tokens(store, tmp_path / "tokens", "a model", SEP)
    told = read_manifest(tmp_path / "tokens", Kind.TOKENS)
    source = read_manifest(store.folder, Kind.PRETRAINING)
    assert told.settings == {**source.settings, "name": "a model"}
    assert (told.made_from, told.contents) == (source.made_from, {"documents": 3})
    assert told.complete


def test_the_same_is_left_alone_and_another_written_again(tmp_path):
    folder = tmp_path / "tokens"
    store = store_of(tmp_path / "a", RECORDS[MASTER])
    write_tokens(store, folder, "a model", SEP)
    (folder / TOKENS).write_text("")
    write_tokens(store, folder, "a model", SEP)
    assert (folder / TOKENS).read_text() == ""
    other = store_of(tmp_path / "b", RECORDS[MASTER][:1])
    write_tokens(other, folder, "a model", SEP)
    assert lines(folder) == RECORDS[MASTER][:1]


def test_a_folder_of_something_else_is_not_touched(tmp_path):
    folder = tmp_path / "tokens"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    store = store_of(tmp_path / "a", RECORDS[MASTER])
    with pytest.raises(DenserkError):
        write_tokens(store, folder, "a model", SEP)
    assert (folder / "thesis.txt").read_text() == "years of work"
