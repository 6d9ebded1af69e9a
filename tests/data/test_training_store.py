import pickle

import pytest

from denserk.data.training_examples import prepare
from denserk.data.training_store import TrainingStore
from denserk.errors import UsageError
from tests.data.conftest import inline


@pytest.fixture
def store(write, tmp_path, tokenizer):
    train = write([inline(query, 1 + query % 2, 2, scored=True) for query in range(50)])
    return prepare([train], tmp_path / "prepared", tokenizer, tokenizer)


def test_a_store_is_its_folder_to_another_process(store):
    packed = pickle.dumps(store)
    assert len(packed) < 500
    other = pickle.loads(packed)
    assert other.qid(49) == "q49"
    assert other.candidates.values.tolist() == store.candidates.values.tolist()


def test_nothing_is_read_into_memory(store):
    arrays = (store.queries, store.passages, store.candidates)
    assert not any(a.values.flags.owndata or a.ends.flags.owndata for a in arrays)
    assert not store.scores.flags.owndata


def test_positives_come_before_negatives(store):
    assert store.positives(1).tolist() == [3, 4]
    assert store.negatives(1).tolist() == [5, 6]
    start = store.candidates.ends[1]
    assert store.scores[start : start + 4].tolist() == pytest.approx([1.0, 1.01, 1.02, 1.03])


def test_another_folder_is_no_store(tmp_path):
    with pytest.raises(UsageError, match="it is not training data that denserk wrote"):
        TrainingStore(tmp_path)
