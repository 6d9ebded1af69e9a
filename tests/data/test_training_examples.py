"""A prepared folder is used again while nothing differs, and never half written."""

from pathlib import Path

import pytest

from denserk.data import training_preparation
from denserk.data.example_columns import ColumnsWriter
from denserk.data.tokenization import TextTokenizer
from denserk.data.training_examples import prepare
from denserk.errors import InputError, MismatchError, OutputError, UsageError
from denserk.formats.manifest import Kind, Manifest, read_manifest, write_manifest
from denserk.settings.encoding import TextSettings
from tests.conftest import VOCABULARY
from tests.data.conftest import inline
from tests.reporters import Heard
from tests.tiny_models import tiny_tokenizer


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def train(write):
    return write([inline(query, 1, 3, scored=True) for query in range(4)])


def test_nothing_is_prepared_twice(train, tmp_path, tokenizer, monkeypatch):
    folder = tmp_path / "prepared"
    prepare([train], folder, tokenizer, tokenizer)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    monkeypatch.setattr(training_preparation, "read_training", None)
    heard = Heard()
    assert len(prepare([train], folder, tokenizer, tokenizer)) == 4
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert heard.notes == []


def test_the_same_inputs_give_the_same_bytes(train, tmp_path, tokenizer):
    for name in ("one", "two"):
        prepare([train], tmp_path / name, tokenizer, tokenizer)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def other_file(train, tokenizer):
    Path(train).write_bytes(Path(train).read_bytes().replace(b"the", b"and"))
    return [train], tokenizer, {}


def other_settings(train, tokenizer):
    longer = TextSettings(query_max_length=12, passage_max_length=17)
    return [train], TextTokenizer(tiny_tokenizer("bert", VOCABULARY), longer), {}


def other_vocabulary(train, tokenizer):
    swapped = tiny_tokenizer("bert", [*VOCABULARY[:-2], VOCABULARY[-1], VOCABULARY[-2]])
    return [train], TextTokenizer(swapped, tokenizer.settings), {}


def more_files(train, tokenizer):
    return [train, train], tokenizer, {}


def other_choice(train, tokenizer):
    return [train], tokenizer, {"skip_missing": True}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (other_file, "file 1.sha256 was"),
        (other_settings, "passage.passage_max_length was 16, now 17"),
        (other_vocabulary, "passage.tokenizer was"),
        (more_files, "file 2 was None"),
        (other_choice, "skip_missing was False, now True"),
    ],
)
def test_what_differs_is_told_and_prepared_again(train, tmp_path, tokenizer, change, told):
    folder = tmp_path / "prepared"
    prepare([train], folder, tokenizer, tokenizer)
    sources, changed, options = change(train, tokenizer)
    heard = Heard()
    again = prepare(sources, folder, tokenizer, changed, **options)
    assert told in heard.notes[0]
    fresh = prepare(sources, tmp_path / "fresh", tokenizer, changed, **options)
    assert contents(again.folder) == contents(fresh.folder)


def test_scores_are_missed_in_a_prepared_folder_too(write, tmp_path, tokenizer):
    train = write([inline(0, 1, 1, scored=True), inline(1, 1, 1)])
    folder = tmp_path / "prepared"
    assert prepare([train], folder, tokenizer, tokenizer).contents["unscored"] == 2
    with pytest.raises(InputError, match="no teacher's score of passage d1-0 for query q1"):
        prepare([train], folder, tokenizer, tokenizer, require_scores=True)


def test_a_failure_leaves_what_was_there(train, tmp_path, tokenizer, monkeypatch):
    folder = tmp_path / "prepared"
    prepare([train], folder, tokenizer, tokenizer)
    before = contents(folder)
    Path(train).write_text("nothing of the kind\n")
    with pytest.raises(InputError):
        prepare([train], folder, tokenizer, tokenizer)
    assert contents(folder) == before
    assert {path.name for path in tmp_path.iterdir()} == {"prepared", "train.jsonl"}


def test_a_full_disk_is_told(train, tmp_path, tokenizer, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ColumnsWriter, "append", full)
    with pytest.raises(OutputError, match="no room left on the disk"):
        prepare([train], tmp_path / "prepared", tokenizer, tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]


def test_other_folders_are_left_alone(train, tmp_path, tokenizer):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "notes.txt").write_text("dear diary")
    with pytest.raises(UsageError, match="it is not training data that denserk wrote"):
        prepare([train], folder, tokenizer, tokenizer)
    write_manifest(folder, Manifest(Kind.INDEX, complete=True))
    with pytest.raises(MismatchError, match="holds index, not training data"):
        prepare([train], folder, tokenizer, tokenizer)
    assert (folder / "notes.txt").read_text() == "dear diary"


def test_no_such_file(tmp_path, tokenizer):
    with pytest.raises(UsageError, match=r"nowhere.jsonl: no such file"):
        prepare([str(tmp_path / "nowhere.jsonl")], tmp_path / "prepared", tokenizer, tokenizer)


def test_the_manifest_says_what_it_was_made_from(train, toy, tmp_path, tokenizer):
    folder = tmp_path / "prepared"
    prepare([train], folder, tokenizer, tokenizer, corpus=str(toy))
    manifest = read_manifest(folder, Kind.TRAINING)
    assert manifest.made_from["file 1"]["name"] == train
    assert set(manifest.made_from["corpus"]["sha256"]) == {
        "corpus.jsonl",
        "qrels.txt",
        "queries.tsv",
    }
    assert manifest.settings["passage"]["passage_max_length"] == 16
    assert manifest.contents["examples"] == 4
    assert manifest.contents["passages"] == 16


def test_standard_input_is_never_taken_for_the_same(train, tmp_path, tokenizer, monkeypatch):
    heard = Heard()
    for _ in range(2):
        with Path(train).open("rb") as handle:
            monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": handle}))
            prepare(["-"], tmp_path / "prepared", tokenizer, tokenizer)
    assert "standard input may hold something else" in heard.notes[1]
