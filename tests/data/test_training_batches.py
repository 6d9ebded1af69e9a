from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from denserk.config.encoding import PairSettings, TextSettings
from denserk.config.training import (
    FillNegatives,
    NegativeChoice,
    ObjectiveSettings,
    PositiveChoice,
    SamplingSettings,
)
from denserk.data.batches import PairJoiner, TokenBatch, plan, to_device
from denserk.data.sampling import Purpose, choose_negatives, choose_positive, generator
from denserk.data.tokenization import TextTokenizer
from denserk.data.training_batches import PairTrainingBatches, SentenceBatches, TrainingBatches
from denserk.data.training_data import prepare, tokenize_sentences
from denserk.errors import InputError, UsageError
from denserk.losses.retrieval import RetrievalObjective
from denserk.records import Passage, Query
from tests.support.console import warnings_of
from tests.support.tiny_models import RERANKERS, tiny_tokenizer
from tests.support.toy import VOCABULARY, WORDS
from tests.support.training_examples import inline, jsonl, pairs, run_on, triplets

QUERIES = 23


@pytest.fixture(scope="module")
def store(tmp_path_factory, tokenizer):
    """23 queries with 1 to 3 positives and 3 to 7 negatives."""
    folder = tmp_path_factory.mktemp("batches")
    lines = [inline(q, 1 + q % 3, 3 + q % 5, scored=True) for q in range(QUERIES)]
    inputs = run_on(jsonl(folder / "train.jsonl", lines))
    return prepare(inputs, folder / "prepared", tokenizer, tokenizer)


@pytest.fixture
def lacking(write, tmp_path, tokenizer):
    """Ten queries, every other one without negatives."""
    lines = [inline(query, 1, 3 * (query % 2), scored=True) for query in range(10)]
    return prepare(run_on(write(lines)), tmp_path / "prepared", tokenizer, tokenizer)


def texts(batch: TokenBatch):
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


@given(
    st.lists(st.integers(2, 40), max_size=60),
    st.integers(1, 100),
    st.none() | st.integers(1, 9),
    st.just(np.inf) | st.integers(1, 99),
)
def test_a_plan_holds_every_text_once_within_its_budget(lengths, budget, size, enough):
    ids = [[100 * number + token for token in range(n)] for number, n in enumerate(lengths)]
    planned = plan(ids, 7, budget, size, enough)
    found: dict[int, list[int]] = {}
    longest = [batch.input_ids.shape[1] for batch in planned.batches]
    assert longest == sorted(longest, reverse=True)
    for members, batch in zip(planned.members, planned.batches, strict=True):
        assert len(members) == 1 or batch.input_ids.numel() <= budget
        assert size is None or len(members) <= size
        found |= zip(members.tolist(), texts(batch), strict=True)
    assert [found[place] for place in range(planned.count)] == ids
    assert planned.tokens == sum(lengths) <= planned.positions


@pytest.mark.parametrize("fill", FillNegatives)
@pytest.mark.parametrize(
    ("positive_choice", "negative_choice", "pool"),
    [*zip(PositiveChoice, NegativeChoice, (None, 4, None), strict=True)],
)
def test_groups_are_what_the_laws_say(store, positive_choice, negative_choice, pool, fill):
    settings = SamplingSettings(
        *(6, positive_choice, negative_choice), negative_pool=pool, fill_negatives=fill, seed=5
    )
    batches = TrainingBatches(store, settings, 5, epochs=3, with_scores=True)
    assert (len(batches), batches.steps_per_epoch) == (12, 4)
    for step in range(len(batches)):
        epoch = step // 4
        order = generator(5, Purpose.ORDER, epoch).permutation(batches.items).tolist()
        items = order[step % 4 * 5 : step % 4 * 5 + 5]
        batch = batches[step]
        assert batch.items.tolist() == items
        wanted, scores = [], []
        for item in items:
            own, others = store.positives[item], store.negatives[item]
            count = len(others) if pool is None else min(pool, len(others))
            first = choose_positive(settings, len(own), item, epoch)
            rest = choose_negatives(settings, count, item, epoch)
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


@pytest.mark.parametrize("world", [2, 6])
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
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": method}
    loader = DataLoader(batches, batch_size=None, **options)
    assert [plain(batch) for batch in loader] == [plain(batches[step]) for step in range(10)]


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
    store = prepare(run_on(write(lines)), tmp_path / "prepared", tokenizer, tokenizer)
    settings = SamplingSettings(3, negative=NegativeChoice.TOP)
    batches = TrainingBatches(store, settings, 4, with_scores=True)
    batch = batches.assemble(np.arange(4), 0)
    assert batch.groups.tolist() == [[0, 1, 2], [0, 3, 4], [5, 6, 7], [8, 6, -1]]
    assert batch.teacher is not None
    assert batch.teacher[3].tolist() == [3.0, 7.0, -torch.inf]
    assert len(texts(batch.passages)) == len(set(batch.keys.tolist())) == 9


@pytest.mark.parametrize("fill", FillNegatives)
def test_the_known_positives_of_a_query_are_found_by_their_texts(write, tmp_path, tokenizer, fill):
    lines = [inline(query, 1 + query % 2, 2) for query in range(6)]
    lines[1]["query"] = lines[0]["query"]
    lines[2]["negative_passages"][0] |= {"text": lines[2]["positive_passages"][0]["text"]}
    lines[4]["negative_passages"][0] = lines[3]["positive_passages"][1]
    lines[5]["positive_passages"][0] = lines[3]["positive_passages"][0]
    store = prepare(run_on(write(lines)), tmp_path / "prepared", tokenizer, tokenizer)
    sampling = SamplingSettings(3, PositiveChoice.FIRST, fill_negatives=fill)
    batch = TrainingBatches(store, sampling, 6, masks=True)[0]
    objective = RetrievalObjective(ObjectiveSettings())
    masked = objective.false_negatives(batch.known, batch.groups, batch.keys)
    positives = [[store.passages[row].tolist() for row in own] for own in store.positives[:]]
    asked, own = texts(batch.queries), [positives[item] for item in batch.items]
    for query, (first, *_) in enumerate(batch.groups.tolist()):
        known = [text for other in range(6) if asked[other] == asked[query] for text in own[other]]
        wanted = [text in known and row != first for row, text in enumerate(texts(batch.passages))]
        assert masked[query].tolist() == wanted
    assert masked.sum() > 2


def test_a_random_passage_stands_in_for_no_negatives(lacking, caplog):
    batch = TrainingBatches(lacking, SamplingSettings(3), 10)[0]
    assert warnings_of(caplog) == ["queries without a negative get random passages: 5"]
    for group, item in zip(grouped(batch), batch.items.tolist(), strict=True):
        rows = *lacking.positives[item], *lacking.negatives[item]
        own = [lacking.passages[row].tolist() for row in rows]
        assert group[0] == own[0]
        assert all((text in own) == (item % 2 == 1) for text in group[1:] if text)
        assert group[1]
    batches = TrainingBatches(lacking, SamplingSettings(3), 5, with_scores=True)
    assert batches.items.tolist() == [1, 3, 5, 7, 9]  # a random passage has no score
    assert warnings_of(caplog)[1:] == [
        "queries without a negative have nothing to distil, left out: 5"
    ]
    assert torch.isfinite(batches[0].teacher).all()


def test_what_makes_no_batches(store, write, tmp_path, tokenizer):
    with pytest.raises(InputError, match="found 23 queries; expected at least one batch of 24"):
        TrainingBatches(store, SamplingSettings(2), 24)
    with pytest.raises(UsageError, match="--batch-size 5 does not divide among 2 processes"):
        TrainingBatches(store, SamplingSettings(2), 5, world=2)
    alone = prepare(run_on(write([inline(0, 2, 0)])), tmp_path / "alone", tokenizer, tokenizer)
    with pytest.raises(InputError, match="no teacher's score of a passage of query q0"):
        TrainingBatches(alone, SamplingSettings(2), 1, with_scores=True)
    assert len(TrainingBatches(alone, SamplingSettings(1), 1)) == 1


@pytest.mark.parametrize(("size", "rows"), [(2, pairs(11)), (3, triplets(11))])
def test_every_example_once_an_epoch_in_its_own_order(write, tmp_path, tokenizer, size, rows):
    source = write(rows)
    store = tokenize_sentences([source], tmp_path / "p", tokenizer, size=size, label_scale=5)
    batches = SentenceBatches(store, SamplingSettings(seed=5), 4, epochs=2)
    assert (len(batches), batches.steps_per_epoch) == (6, 3)
    every = [row.tolist() for row in store.sentences[:]]
    for step in range(6):
        epoch, place = divmod(step, 3)
        order = generator(5, Purpose.ORDER, epoch).permutation(11)
        items = order[4 * place : 4 * place + 4].tolist()
        batch = to_device(batches[step], "cpu")
        assert texts(batch.sentences) == [
            every[size * i + part] for i in items for part in range(size)
        ]
        assert batch.items.tolist() == items
        if size == 2:
            assert batch.labels is not None
            assert batch.labels.tolist() == [float(item % 6) for item in items]
        else:
            assert batch.labels is None


TOKENIZERS = {kind: tiny_tokenizer(kind, VOCABULARY) for kind in RERANKERS}
PAIRED = st.lists(st.sampled_from([*WORDS, "boats", "?"]), min_size=1, max_size=20).map(" ".join)
LONG = TextSettings(query_max_length=64, passage_max_length=64)


def pair_of(kind, query, passage, text=LONG, limit=None, token_types=True):
    tokenizer = TOKENIZERS[kind]
    joiner = PairJoiner(tokenizer, text, PairSettings(limit, token_types))
    ids = TextTokenizer(tokenizer, text)
    [first], [second] = ids.queries([Query("q", query)]), ids.passages([Passage("d", passage)])
    return joiner, joiner.join(first, second)


def transformers_own(kind, query, passage, limit):
    tokenizer = TOKENIZERS[kind]
    truncation = {"truncation": "only_second", "max_length": limit}
    return tokenizer(query, passage, **truncation, return_token_type_ids=True)


@given(query=PAIRED, passage=PAIRED, kind=st.sampled_from(RERANKERS))
def test_a_pair_is_the_tokenizer_s_own(query, passage, kind):
    joiner, pair = pair_of(kind, query, passage)
    expected = transformers_own(kind, query, passage, None)
    assert pair.ids.tolist() == expected["input_ids"]
    types = joiner.batch([pair]).token_types
    assert types is not None
    assert types.tolist() == [expected["token_type_ids"]]


@pytest.mark.parametrize("kind", RERANKERS)
@pytest.mark.parametrize("limit", [9, 10, 14, 40])
def test_the_passage_is_cut_to_the_joint_limit(kind, limit):
    query, passage = "the cat and", " ".join(WORDS[:20])
    _, pair = pair_of(kind, query, passage, TextSettings(query_max_length=5), limit)
    assert pair.ids.tolist() == transformers_own(kind, query, passage, limit)["input_ids"]


def test_a_limit_without_room_for_a_passage():
    tokenizer, text = TOKENIZERS["roberta"], TextSettings(query_max_length=8)
    PairJoiner(tokenizer, text, PairSettings(max_length=11))
    with pytest.raises(UsageError, match="--pair-max-length 10 leaves no room") as refusal:
        PairJoiner(tokenizer, text, PairSettings(max_length=10))
    assert refusal.value.hint == "at least 11, or a smaller --query-max-length"


def test_training_pairs_are_those_of_the_training_batches(store, tokenizer):
    joiner = PairJoiner(TOKENIZERS["bert"], tokenizer.settings, PairSettings(max_length=20))
    sampling = SamplingSettings(group_size=3)
    batches = TrainingBatches(store, sampling, 4, epochs=2)
    in_pairs = PairTrainingBatches(joiner, store, sampling, 4, epochs=2)
    assert len(in_pairs) == len(batches) == 10
    for step in range(10):
        found, given = in_pairs[step], batches[step]
        assert found.groups.tolist() == [[3 * row, 3 * row + 1, 3 * row + 2] for row in range(4)]
        assert found.items.equal(given.items)
        own = zip(texts(given.queries), grouped(given), strict=True)
        expected = [joiner.join(query, passage) for query, group in own for passage in group]
        assert texts(found.pairs.tokens) == [pair.ids.tolist() for pair in expected]
