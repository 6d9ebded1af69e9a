from typing import Any

import numpy as np
import pytest

from denserk.config.training import SamplingSettings
from denserk.data.sampling import Items, choose_items, order_items
from denserk.data.training_batches import ScheduledBatches, items_of_run
from denserk.errors import UsageError
from tests.reporters import Heard


class Numbers(ScheduledBatches[Items]):
    """Batches that are the numbers of their items."""

    def assemble(self, items: Items, epoch: int) -> Items:
        """Return the items."""
        return items


ITEMS = np.arange(100, 111)


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 11),
        ({"train_queries": 4}, 4),
        ({"train_fraction": 0.5}, 6),
        ({"train_fraction": 0.01}, 1),
    ],
)
def test_items_of_a_run(settings, count):
    sampling = SamplingSettings(seed=3, **settings)
    assert items_of_run(ITEMS, sampling).tolist() == choose_items(ITEMS, count, 3).tolist()


def test_more_items_than_there_are():
    heard = Heard()
    assert len(items_of_run(ITEMS, SamplingSettings(train_queries=12))) == 11
    assert heard.warnings == ["--train-queries 12: there are only 11"]


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"epochs": 2}, [4, 4, 4, 4]),
        ({"epochs": 2, "keep_last": True}, [4, 4, 3, 4, 4, 3]),
        ({"epochs": 0.5, "keep_last": True}, [4, 4]),
        ({"max_steps": 3}, [4, 4, 4]),
    ],
)
def test_every_epoch_has_its_own_order(options, sizes):
    schedule = Numbers(ITEMS, 4, 9, **options)
    parts = [schedule.part(step).tolist() for step in range(len(schedule))]
    assert [len(part) for part in parts] == sizes
    for step, part in enumerate(parts):
        epoch, place = divmod(step, schedule.steps_per_epoch)
        assert schedule.epoch_of(step) == epoch
        assert part == order_items(ITEMS, 9, epoch).tolist()[4 * place : 4 * place + 4]


def test_without_shuffling_the_order_is_the_given_one():
    schedule = Numbers(ITEMS, 11, 9, epochs=2, shuffle=False)
    assert [schedule.part(step).tolist() for step in (0, 1)] == [ITEMS.tolist()] * 2


@pytest.mark.parametrize("world", [2, 4])
def test_the_parts_of_all_ranks_are_the_batch(world):
    options: dict[str, Any] = {"epochs": 2, "keep_last": True}
    whole = Numbers(ITEMS, 4, 1, **options)
    ranks = [Numbers(ITEMS, 4, 1, rank=rank, world=world, **options) for rank in range(world)]
    for step in range(len(whole)):
        parts = np.concatenate([rank.part(step) for rank in ranks])
        assert parts.tolist() == whole.part(step).tolist()


@pytest.mark.parametrize("step", [-1, 2])
def test_no_such_step(step):
    with pytest.raises(IndexError, match=f"step {step} of 2"):
        Numbers(ITEMS, 4, 1).part(step)


def test_too_few_items_make_no_batch():
    assert Numbers(ITEMS, 12, 1).steps_per_epoch == 0


def test_a_batch_divides_among_the_processes():
    with pytest.raises(UsageError, match="--batch-size 5 does not divide among 2 processes"):
        Numbers(ITEMS, 5, 1, world=2)
