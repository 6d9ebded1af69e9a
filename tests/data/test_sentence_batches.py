from itertools import chain

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from denserk.config.training import SamplingSettings
from denserk.data.sampling import choose_items, order_items
from denserk.data.training_batches import SentenceBatches
from denserk.data.training_data import prepare_sentences
from tests.data.test_sentence_data import pairs, texts, triplets

SEEDED = SamplingSettings(seed=5)


@pytest.fixture(params=[2, 3], ids=["pairs", "triplets"])
def store(request, write, tmp_path, tokenizer):
    """Eleven pairs or triplets."""
    rows = pairs(11) if request.param == 2 else triplets(11)
    return prepare_sentences(
        [write(rows)], tmp_path / "data", tokenizer, size=request.param, label_scale=5
    )


def plain(batch):
    """A batch as lists that compare, free of padding."""
    rows = zip(*batch.sentences, strict=True)
    labels = None if batch.labels is None else batch.labels.tolist()
    return [ids[mask].tolist() for ids, mask in rows], labels, batch.items.tolist()


def test_every_example_once_an_epoch_in_its_own_order(store):
    batches = SentenceBatches(store, SEEDED, 4, epochs=2)
    assert (len(batches), batches.steps_per_epoch) == (6, 3)
    every = texts(store)
    for step in range(6):
        epoch, place = divmod(step, 3)
        items = order_items(np.arange(11), 5, epoch)[4 * place : 4 * place + 4].tolist()
        wanted = [every[store.size * item + i] for item in items for i in range(store.size)]
        labels = [float(item % 6) for item in items] if store.size == 2 else None
        assert plain(batches[step]) == (wanted, labels, items)
        assert plain(batches[step].to("cpu")) == (wanted, labels, items)


@pytest.mark.parametrize("world", [2, 4])
def test_the_parts_of_all_ranks_are_the_batch(store, world):
    whole = SentenceBatches(store, SEEDED, 4, epochs=2)
    ranks = [SentenceBatches(store, SEEDED, 4, epochs=2, rank=r, world=world) for r in range(world)]
    for step in range(len(whole)):
        parts = [plain(rank[step]) for rank in ranks]
        expected = plain(whole[step])
        assert list(chain(*(part[0] for part in parts))) == expected[0]
        assert list(chain(*(part[2] for part in parts))) == expected[2]


def test_a_part_may_be_empty(store):
    empty = SentenceBatches(store, SEEDED, 4, rank=0, world=4)[2]
    assert plain(empty) == ([], [] if store.size == 2 else None, [])


def test_fewer_examples(store):
    batches = SentenceBatches(store, SamplingSettings(train_queries=3, seed=5), 4, max_steps=2)
    chosen = choose_items(np.arange(11), 3, 5).tolist()
    assert [sorted(batches[step].items.tolist()) for step in range(2)] == [chosen, chosen]


def test_loader_workers_change_nothing(store):
    batches = SentenceBatches(store, SEEDED, 4)
    loader = DataLoader(batches, batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert [plain(batch) for batch in loader] == [plain(batches[step]) for step in range(3)]
    assert batches[0].items.dtype == torch.int64
