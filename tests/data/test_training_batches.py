"""Batches depend on data, settings and step alone: not on ranks, workers, or where a run began."""

import multiprocessing
import pickle
from itertools import chain
from typing import Any

import orjson
import pytest
import torch
from torch.utils.data import DataLoader

from denserk.config.training import FillNegatives, NegativeChoice, PositiveChoice, SamplingSettings
from denserk.data.batches import TokenBatch
from denserk.data.sampling import choose_negatives, choose_positive, order_items
from denserk.data.training_batches import TrainingBatches
from denserk.data.training_data import prepare
from denserk.errors import InputError, UsageError
from tests.data.conftest import inline
from tests.reporters import Heard

QUERIES = 23


@pytest.fixture(scope="module")
def store(tmp_path_factory, tokenizer):
    """23 queries with 1 to 3 positives and 3 to 7 negatives."""
    folder = tmp_path_factory.mktemp("batches")
    lines = [inline(q, 1 + q % 3, 3 + q % 5, scored=True) for q in range(QUERIES)]
    (folder / "train.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lines)))
    return prepare([str(folder / "train.jsonl")], folder / "prepared", tokenizer, tokenizer)


@pytest.fixture
def lacking(write, tmp_path, tokenizer):
    """Ten queries, every other one without negatives."""
    lines = [inline(query, 1, 3 * (query % 2), scored=True) for query in range(10)]
    return prepare([write(lines)], tmp_path / "prepared", tokenizer, tokenizer)


def texts(batch: TokenBatch):
    """The token ids of a batch without their padding."""
    rows = zip(batch.input_ids, batch.attention_mask, strict=True)
    return [ids[mask].tolist() for ids, mask in rows]


def plain(batch):
    """A batch as lists that compare, free of padding."""
    teacher = None if batch.teacher is None else batch.teacher.tolist()
    return texts(batch.queries), grouped(batch), teacher, batch.items.tolist()


def grouped(batch):
    """The passages of each query, positive first; None where a negative is missing."""
    passages = [*texts(batch.passages), None]
    return [[passages[row] for row in group] for group in batch.groups.tolist()]


def joined(parts):
    """The batch of several ranks' parts, one after another."""
    return tuple(list(chain(*columns)) for columns in zip(*map(plain, parts), strict=True))


@pytest.mark.parametrize("positive_choice", PositiveChoice)
@pytest.mark.parametrize("negative_choice", NegativeChoice)
@pytest.mark.parametrize("fill", FillNegatives)
@pytest.mark.parametrize("pool", [None, 4])
def test_groups_are_what_the_laws_say(store, positive_choice, negative_choice, pool, fill):
    settings = SamplingSettings(
        *(6, positive_choice, negative_choice), negative_pool=pool, fill_negatives=fill, seed=5
    )
    batches = TrainingBatches(store, settings, 5, epochs=3, with_scores=True)
    assert (len(batches), batches.steps_per_epoch) == (12, 4)
    for step in range(len(batches)):
        epoch = step // 4
        order = order_items(batches.items, 5, epoch).tolist()
        items = order[step % 4 * 5 : step % 4 * 5 + 5]
        batch = batches[step]
        assert batch.items.tolist() == items
        wanted, scores = [], []
        for item in items:
            own, others = store.positives(item), store.negatives(item)
            count = len(others) if pool is None else min(pool, len(others))
            first = choose_positive(positive_choice, len(own), item, 5, epoch)
            rest = choose_negatives(negative_choice, count, item, 5, epoch, 5, fill)
            rows = [own[first], *(others[place] if place >= 0 else -1 for place in rest)]
            wanted.append([store.passages[row].tolist() if row >= 0 else None for row in rows])
            places = [first, *(len(own) + place for place in rest)]
            present = zip(places, [first, *rest], strict=True)
            scores.append([item + p / 100 if place >= 0 else -torch.inf for p, place in present])
        assert grouped(batch) == wanted
        flat = [text for group in wanted for text in group if text]
        if fill is FillNegatives.REPEAT:
            assert texts(batch.passages) == flat
        else:
            assert len(batch.passages.input_ids) == len(set(map(tuple, flat)))
        assert len(set(batch.keys.tolist())) == len(batch.passages.input_ids)
        assert texts(batch.queries) == [store.queries[item].tolist() for item in items]
        torch.testing.assert_close(batch.teacher, torch.tensor(scores, dtype=torch.float32))


def test_shapes(store):
    batch = TrainingBatches(store, SamplingSettings(3), 4)[0]
    longest = max(map(len, texts(batch.passages)))
    assert batch.passages.input_ids.shape == batch.passages.attention_mask.shape == (12, longest)
    assert batch.queries.input_ids.shape == (4, max(map(len, texts(batch.queries))))
    numbers = (batch.passages.input_ids, batch.items, batch.groups, batch.keys)
    assert {each.dtype for each in numbers} == {torch.int64}
    assert batch.teacher is None
    assert plain(batch.to("cpu")) == plain(batch)


@pytest.mark.parametrize("world", [2, 3, 6])
def test_the_parts_of_all_ranks_are_the_batch(store, world):
    settings = SamplingSettings(3)
    options: dict[str, Any] = {"epochs": 2, "with_scores": True}
    whole = TrainingBatches(store, settings, 6, **options)
    parts = [
        TrainingBatches(store, settings, 6, rank=rank, world=world, **options)
        for rank in range(world)
    ]
    for step in range(len(whole)):
        assert joined(part[step] for part in parts) == plain(whole[step])
        assert parts[0][step].groups[:, 0].tolist() == list(range(0, 18 // world, 3))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_change_nothing(store, method):
    batches = TrainingBatches(store, SamplingSettings(3), 4, epochs=2, with_scores=True)
    loader = DataLoader(
        batches,
        batch_size=None,
        num_workers=2,
        multiprocessing_context=multiprocessing.get_context(method),
    )
    assert [plain(batch) for batch in loader] == [plain(batches[step]) for step in range(10)]


def test_a_loader_without_workers_and_a_run_continued(store):
    batches = TrainingBatches(store, SamplingSettings(3), 4, epochs=3)
    all_of_them = [plain(batches[step]) for step in range(len(batches))]
    again = TrainingBatches(store, SamplingSettings(3), 4, epochs=3)
    continued = DataLoader(again, batch_size=None, sampler=range(7, len(again)))
    assert [plain(batch) for batch in continued] == all_of_them[7:]


def test_steps_end_where_they_are_told_to(store):
    batches = TrainingBatches(store, SamplingSettings(2), 4, max_steps=13)
    assert len(batches) == 13
    assert [batches.epoch_of(step) for step in (0, 4, 5, 12)] == [0, 0, 1, 2]
    epochs = [
        [i for step in steps for i in batches[step].items.tolist()]
        for steps in (range(5), range(5, 10))
    ]
    assert [len(set(items)) for items in epochs] == [20, 20]
    assert epochs[0] != epochs[1]
    for step in (-1, 13):
        with pytest.raises(IndexError):
            batches[step]


@pytest.mark.parametrize(("epochs", "steps"), [(1, 5), (0.5, 3), (2.2, 11)])
def test_a_part_of_an_epoch(store, epochs, steps):
    assert len(TrainingBatches(store, SamplingSettings(2), 4, epochs=epochs)) == steps


def test_in_the_order_of_the_files_to_the_last_query(store):
    batches = TrainingBatches(store, SamplingSettings(2), 5, shuffle=False, keep_last=True)
    items = [batch.items.tolist() for batch in (batches[step] for step in range(len(batches)))]
    assert items == [list(range(start, min(start + 5, 23))) for start in range(0, 23, 5)]
    ranks = [
        TrainingBatches(
            store, SamplingSettings(2), 6, rank=rank, world=6, shuffle=False, keep_last=True
        )
        for rank in range(6)
    ]
    last = [rank[3].items.tolist() for rank in ranks]
    assert last == [[], [18], [19], [20], [21], [22]]
    assert ranks[0][3].passages.input_ids.shape == (0, 0)


@pytest.mark.parametrize(
    ("share", "count"), [({"train_queries": 9}, 9), ({"train_fraction": 0.5}, 12), ({}, 23)]
)
def test_a_share_of_the_queries(store, share, count):
    batches = TrainingBatches(store, SamplingSettings(2, **share, seed=3), 3)
    assert len(batches.items) == count
    larger = TrainingBatches(store, SamplingSettings(2, train_queries=20, seed=3), 3)
    shared = set(batches.items.tolist()) & set(larger.items.tolist())
    assert len(shared) == min(count, 20)
    seen = {item for step in range(len(batches)) for item in batches[step].items.tolist()}
    assert seen <= set(batches.items.tolist())


def test_more_queries_than_there_are(store):
    heard = Heard()
    batches = TrainingBatches(store, SamplingSettings(2, train_queries=50), 3)
    assert len(batches.items) == 23
    assert heard.warnings == ["--train-queries 50: there are only 23"]


@pytest.mark.parametrize("fill", FillNegatives)
def test_short_lists_are_counted_once(store, fill):
    heard = Heard()
    settings = SamplingSettings(6, fill_negatives=fill)
    batches = TrainingBatches(store, settings, 4)
    encoded = [len(texts(batches[step].passages)) for step in range(len(batches))]
    assert all(count == 24 for count in encoded) is (fill is FillNegatives.REPEAT)
    short = sum(3 + query % 5 < 5 for query in range(QUERIES))
    what = {"mask": "the missing ones masked", "repeat": "drawn with replacement"}[fill]
    assert heard.warnings == [
        f"queries with fewer than the 5 negatives of --group-size 6, {what}: {short} of 23 "
        "(the longest list has 7)"
    ]


def test_one_passage_of_several_queries_is_one_row(write, tmp_path, tokenizer):
    """By its id where it has one, else by its text; a copy within a group is masked."""
    lines = [inline(query, 1, 2, scored=True) for query in range(4)]
    shared = lines[0]["positive_passages"][0]
    lines[1]["positive_passages"] = [{"docid": shared["docid"], "text": "zoo", "score": 5.0}]
    lines[2]["negative_passages"][0] = {"docid": "", "text": "bird", "score": 6.0}
    lines[3]["negative_passages"] = [
        {"docid": "", "text": "bird", "score": 7.0},
        {"docid": "", "text": "bird", "score": 8.0},
    ]
    store = prepare([write(lines)], tmp_path / "prepared", tokenizer, tokenizer)
    settings = SamplingSettings(3, negative=NegativeChoice.TOP)
    batches = TrainingBatches(store, settings, 4, shuffle=False, with_scores=True)
    batch = batches[0]
    assert batch.groups.tolist() == [[0, 1, 2], [0, 3, 4], [5, 6, 7], [8, 6, -1]]
    assert batch.teacher is not None
    assert batch.teacher[3].tolist() == [3.0, 7.0, -torch.inf]
    assert len(texts(batch.passages)) == len(set(batch.keys.tolist())) == 9
    halves = [
        TrainingBatches(store, settings, 4, shuffle=False, with_scores=True, rank=rank, world=2)[0]
        for rank in range(2)
    ]
    assert halves[1].groups.tolist() == [[0, 1, 2], [3, 1, -1]]
    assert [half.keys.tolist() for half in halves] == [
        batch.keys[:5].tolist(),
        batch.keys[5:].tolist(),
    ]


def test_a_random_passage_stands_in_for_no_negatives(lacking):
    heard = Heard()
    batch = TrainingBatches(lacking, SamplingSettings(3), 10)[0]
    assert heard.warnings == ["queries without a negative get random passages: 5"]
    for group, item in zip(grouped(batch), batch.items.tolist(), strict=True):
        rows = *lacking.positives(item), *lacking.negatives(item)
        own = [lacking.passages[row].tolist() for row in rows]
        assert group[0] == own[0]
        assert all((text in own) == (item % 2 == 1) for text in group[1:] if text)
        assert group[1]
    assert plain(TrainingBatches(lacking, SamplingSettings(3), 10)[0]) == plain(batch)


def test_a_random_passage_has_no_score(lacking):
    heard = Heard()
    batches = TrainingBatches(lacking, SamplingSettings(3), 5, with_scores=True)
    assert batches.items.tolist() == [1, 3, 5, 7, 9]
    assert heard.warnings == ["queries without a negative have nothing to distil, left out: 5"]
    teacher = batches[0].teacher
    assert teacher is not None
    assert torch.isfinite(teacher).all()


def test_positives_alone(lacking):
    batch = TrainingBatches(lacking, SamplingSettings(1), 10)[0]
    assert batch.groups.tolist() == [[row] for row in range(10)]
    own = [lacking.passages[lacking.positives(item)[0]].tolist() for item in batch.items.tolist()]
    assert texts(batch.passages) == own


def test_what_makes_no_batches(store, write, tmp_path, tokenizer):
    with pytest.raises(InputError, match="found 23 queries; expected at least one batch of 24"):
        TrainingBatches(store, SamplingSettings(2), 24)
    with pytest.raises(UsageError, match="--batch-size 5 does not divide among 2 processes"):
        TrainingBatches(store, SamplingSettings(2), 5, world=2)
    alone = prepare([write([inline(0, 2, 0)])], tmp_path / "alone", tokenizer, tokenizer)
    with pytest.raises(InputError, match="no passage but their positives"):
        TrainingBatches(alone, SamplingSettings(2), 1)
    with pytest.raises(InputError, match="no teacher's score of passage d0-0 for query q0"):
        TrainingBatches(alone, SamplingSettings(2), 1, with_scores=True)
    assert len(TrainingBatches(alone, SamplingSettings(1), 1)) == 1


def test_batches_travel_light(store):
    batches = TrainingBatches(store, SamplingSettings(2), 4)
    other = pickle.loads(pickle.dumps(batches))
    assert plain(other[2]) == plain(batches[2])
