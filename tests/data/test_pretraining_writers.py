"""Who is whose neighbour, whose expansion is whose, and what a store opens."""

import pickle

import numpy as np
import pytest

from denserk.data.pretraining_preparation import prepare
from denserk.data.pretraining_store import Layout, PretrainingStore
from denserk.data.pretraining_writers import CutDocument, PassageWriter
from denserk.errors import MismatchError, UsageError
from denserk.formats.id_ledger import digest
from denserk.settings.pretraining import PretrainingObjective
from tests.data.prepared_texts import NAMES, PIECES, store_of
from tests.tiny_models import tiny_tokenizer


def written(folder, documents, expansions=()):
    writer = PassageWriter(folder, np.uint16, PIECES, NAMES)
    with writer.files:
        for part in (documents[:2], documents[2:]):  # documents come in batches
            if part:
                writer.write(part)
        for docid, queries in expansions:
            writer.expand(queries, [], digest(docid))
        counts = writer.finish()
    rows = np.load(folder / "expansion-rows.npy").tolist()
    return counts, np.load(folder / "neighbours.npy").tolist(), rows


def documents(*told):
    """Documents of one passage each: (docid, title)."""
    return [CutDocument(docid, title, [[7]]) for docid, title in told]


@pytest.mark.parametrize(
    ("told", "neighbours"),
    [
        ([("1", "A"), ("2", "A"), ("3", "A")], [1, 1, -1]),
        ([("1", "A"), ("2", "B"), ("3", "A")], [0, 0, 0]),
        ([("1", ""), ("2", ""), ("3", "-"), ("4", "-")], [0, 0, 0, 0]),
        ([("d#0", ""), ("d#1", ""), ("e#0", ""), ("e#1", "")], [1, -1, 1, -1]),
        ([("#0", ""), ("#1", "")], [0, 0]),
        ([("d#0", "A"), ("d#1", "B")], [1, -1]),
    ],
)
def test_neighbours(tmp_path, told, neighbours):
    counts, found, _ = written(tmp_path, documents(*told))
    assert found == neighbours
    assert counts["with_neighbour"] == sum(number != 0 for number in neighbours)


def test_passages_cut_from_one_document_are_neighbours(tmp_path):
    cut = [CutDocument("a", "", [[7], [8], [9]]), CutDocument("b", "", [[7]])]
    assert written(tmp_path, cut)[1] == [1, 1, -1, 0]


def test_expansions_find_their_passages_by_id(tmp_path):
    cut = [CutDocument("a", "", [[7], [8]]), CutDocument("b", "", [[9]], ([1, 2], [3]))]
    made = [("a#1", [5]), ("stranger", [6]), ("b", [4]), ("a", [3])]
    counts, _, rows = written(tmp_path, cut, made)
    # row 0 came with b itself, and wins; a is cut, so its own id is nobody's
    assert rows == [-1, 1, 0]
    assert (counts["expanded"], counts["expansions"], counts["words"]) == (2, 5, 3)
    assert not (tmp_path / "digests.npy").exists()


def test_a_layout_for_every_objective():
    assert {objective: Layout.of(objective).value for objective in PretrainingObjective} == {
        "mlm": "blocks",
        "condenser": "blocks",
        "retromae": "blocks",
        "cocondenser": "spans",
        "master": "passages",
    }


@pytest.mark.parametrize(
    ("objective", "record", "items"),
    [("mlm", {"text": [7]}, "blocks"), ("cocondenser", {"spans": [[7], [8]]}, "documents")],
)
def test_a_store_says_what_it_holds(tmp_path, objective, record, items):
    store = store_of(tmp_path, [record] * 3, PretrainingObjective(objective))
    again = pickle.loads(pickle.dumps(store))
    assert (len(store), store.items, len(again), again.items) == (3, items, 3, items)
    assert again.texts[0].tolist() == [7]


def test_a_store_of_nothing_and_of_something_else(tmp_path):
    with pytest.raises(UsageError):
        PretrainingStore(tmp_path / "none")
    with pytest.raises((UsageError, MismatchError)):
        PretrainingStore(tmp_path)


@pytest.mark.parametrize(("entries", "dtype"), [(65_536, np.uint16), (65_537, np.int32)])
def test_large_vocabularies_take_four_bytes(tmp_path, entries, dtype):
    words = [f"w{number}" for number in range(entries - 5)]
    (tmp_path / "c.txt").write_text(words[-1])
    tokenizer, objective = tiny_tokenizer("bert", words), PretrainingObjective.MLM
    store = prepare([str(tmp_path / "c.txt")], tmp_path / "p", tokenizer, objective)
    assert store.texts.values.dtype == dtype
    assert store.texts[0].tolist() == [entries - 1]
