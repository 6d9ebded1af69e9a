import pickle

import pytest

from denserk.data import prepared, training_data
from denserk.data.training_data import SentenceStore, prepare_sentences
from denserk.errors import InputError, MismatchError
from denserk.io.manifest import Kind, Manifest, read_manifest, write_manifest
from tests.data.conftest import words
from tests.reporters import Heard


def pairs(count, label=None):
    return [
        {
            "sentence1": words(2 * number, 3 + number % 4),
            "sentence2": words(2 * number + 1, 2 + number % 5),
            "label": number % 6 if label is None else label,
        }
        for number in range(count)
    ]


def triplets(count):
    names = ("anchor", "positive", "negative")
    return [
        {name: words(3 * number + place, 4) for place, name in enumerate(names)}
        for number in range(count)
    ]


def texts(store):
    return [store.sentences[row].tolist() for row in range(len(store.sentences))]


def test_pairs(write, tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(prepared, "BATCH", 4)
    files = [write(pairs(7), "a.jsonl"), write(pairs(3), "b.jsonl")]
    store = prepare_sentences(files, tmp_path / "data", tokenizer, size=2, label_scale=5)
    given = [*pairs(7), *pairs(3)]
    assert (len(store), store.size, store.pad_id) == (10, 2, tokenizer.pad_id)
    assert store.labels.tolist() == [float(pair["label"]) for pair in given]
    sentences = [pair[name] for pair in given for name in ("sentence1", "sentence2")]
    assert texts(store) == tokenizer.sentences(sentences)
    assert read_manifest(tmp_path / "data", Kind.TRAINING).contents == {"examples": 10}


def test_triplets(write, tmp_path, tokenizer):
    store = prepare_sentences([write(triplets(5))], tmp_path / "data", tokenizer, size=3)
    assert (len(store), store.size, len(store.labels)) == (5, 3, 0)
    assert texts(store) == tokenizer.sentences([t for row in triplets(5) for t in row.values()])


def test_sentences_are_read_as_passages_are(tokenizer):
    long = words(1, 40)
    assert len(tokenizer.sentences([f" {long} "])[0]) == tokenizer.settings.passage_max_length
    assert tokenizer.sentences(["cat"]) == tokenizer.sentences([" cat\n"])


def test_a_store_travels_to_another_process(write, tmp_path, tokenizer):
    store = prepare_sentences(
        [write(pairs(3))], tmp_path / "data", tokenizer, size=2, label_scale=5
    )
    assert texts(pickle.loads(pickle.dumps(store))) == texts(store)


def test_nothing_is_prepared_twice(write, tmp_path, tokenizer, monkeypatch):
    file, folder = write(pairs(3)), tmp_path / "data"
    heard = Heard()
    prepare_sentences([file], folder, tokenizer, size=2, label_scale=5)
    monkeypatch.setattr(training_data, "read_sentences", None)
    prepare_sentences([file], folder, tokenizer, size=2, label_scale=5)
    assert heard.notes == []
    monkeypatch.undo()
    prepare_sentences([file], folder, tokenizer, size=2, label_scale=6)
    assert heard.notes == [f"{folder} is prepared again: label_scale was 5, now 6"]


@pytest.mark.parametrize("label", [1.5, -1.25])
def test_a_label_beyond_the_scale(write, tmp_path, tokenizer, label):
    file = write([*pairs(1, label=1), *pairs(1, label=label)])
    with pytest.raises(InputError, match=rf"found the label {label} of pair 2; expected labels up"):
        prepare_sentences([file], tmp_path / "data", tokenizer, size=2)
    assert not (tmp_path / "data").exists()


def test_a_folder_of_something_else(write, tmp_path, tokenizer):
    (tmp_path / "data").mkdir()
    write_manifest(tmp_path / "data", Manifest(Kind.VECTORS, complete=True))
    with pytest.raises(MismatchError, match="holds vectors, not training data"):
        prepare_sentences([write(pairs(1))], tmp_path / "data", tokenizer, size=2, label_scale=5)
    with pytest.raises(MismatchError):
        SentenceStore(tmp_path / "data")
