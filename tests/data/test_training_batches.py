from typing import Any, NamedTuple

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


@pytest.fixture(scope="module")
def store(tmp_path_factory, tokenizer):
    """23 queries with 1 to 3 positives and 3 to 7 negatives."""
    folder = tmp_path_factory.mktemp("batches")
    examples = [inline(query, 1 + query % 3, 3 + query % 5, scored=True) for query in range(23)]
    run = run_on(jsonl(folder / "train.jsonl", examples))
    return prepare(run, folder / "prepared", tokenizer, tokenizer)


@pytest.fixture
def prepared(write, tmp_path, tokenizer):
    """`prepared(examples)`: the store of training examples."""

    def prepare_examples(examples):
        return prepare(run_on(write(examples)), tmp_path / "prepared", tokenizer, tokenizer)

    return prepare_examples


@pytest.fixture
def store_with_gaps(prepared):
    """Ten queries, every other one without negatives."""
    return prepared([inline(query, 1, 3 * (query % 2), scored=True) for query in range(10)])


def texts_of(batch: TokenBatch):
    """The token ids of each text, without padding."""
    rows = zip(batch.input_ids, batch.attention_mask, strict=True)
    return [ids[mask].tolist() for ids, mask in rows]


def passages_by_query(batch):
    """The passages of each query, positive first; None where a negative is missing."""
    passages = [*texts_of(batch.passages), None]
    return [[passages[row] for row in group] for group in batch.groups.tolist()]


class Visit(NamedTuple):
    """A query of a batch with what it is trained on, as lists that compare."""

    item: int
    query: list[int]
    passages: list[list[int] | None]
    scores: list[float]


def visits_of(batch):
    columns = batch.items.tolist(), texts_of(batch.queries), passages_by_query(batch)
    return [Visit(*row) for row in zip(*columns, batch.teacher.tolist(), strict=True)]


@given(
    st.lists(st.integers(2, 40), max_size=60),
    st.integers(1, 100),
    st.none() | st.integers(1, 9),
    st.just(np.inf) | st.integers(1, 99),
)
def test_a_plan_holds_every_text_once_within_its_budget(
    lengths, batch_tokens, batch_size, enough_tokens
):
    texts = [
        list(range(100 * number, 100 * number + length)) for number, length in enumerate(lengths)
    ]
    planned = plan(texts, 7, batch_tokens, batch_size, enough_tokens)
    widths = [batch.input_ids.shape[1] for batch in planned.batches]
    assert widths == sorted(widths, reverse=True)
    text_by_row: dict[int, list[int]] = {}
    for rows, batch in zip(planned.rows, planned.batches, strict=True):
        assert len(rows) == 1 or batch.input_ids.numel() <= batch_tokens
        assert batch_size is None or len(rows) <= batch_size
        text_by_row |= zip(rows.tolist(), texts_of(batch), strict=True)
    assert planned.count == len(texts)
    assert text_by_row == dict(enumerate(texts))
    assert planned.tokens == sum(lengths) <= planned.positions


def expected_visit(store, settings, item, epoch):
    """The visit of a query, by the functions that choose its positive and its negatives.

    The score of passage p of query q is q + p / 100; see `inline`.
    """
    positives = store.positives[item]
    negatives = store.negatives[item]
    positive = choose_positive(settings, len(positives), item, epoch)
    passages = [store.passages[positives[positive]].tolist()]
    scores = [item + positive / 100]
    pool = len(negatives)
    if settings.negative_pool is not None:
        pool = min(settings.negative_pool, pool)
    for negative in choose_negatives(settings, pool, item, epoch):
        if negative < 0:
            passages.append(None)
            scores.append(-np.inf)
        else:
            passages.append(store.passages[negatives[negative]].tolist())
            scores.append(item + (len(positives) + negative) / 100)
    scores_as_stored = np.array(scores, dtype=np.float32).tolist()
    return Visit(item, store.queries[item].tolist(), passages, scores_as_stored)


@pytest.mark.parametrize("fill", FillNegatives)
@pytest.mark.parametrize(
    ("positive", "negative", "pool"),
    [
        (PositiveChoice.ROTATE, NegativeChoice.WINDOW, None),
        (PositiveChoice.FIRST, NegativeChoice.SHUFFLE, 4),
        (PositiveChoice.RANDOM, NegativeChoice.TOP, None),
    ],
)
def test_groups_follow_the_laws_of_sampling(store, positive, negative, pool, fill):
    settings = SamplingSettings(
        group_size=6,
        positive=positive,
        negative=negative,
        negative_pool=pool,
        fill_negatives=fill,
        seed=5,
    )
    batches = TrainingBatches(store, settings, 5, epochs=3, with_scores=True)
    assert len(batches) == 12
    assert batches.steps_per_epoch == 4
    for step in range(12):
        epoch, batch_number = divmod(step, 4)
        order = generator(5, Purpose.ORDER, epoch).permutation(batches.items).tolist()
        items = order[5 * batch_number : 5 * batch_number + 5]
        batch = batches[step]
        visits = [expected_visit(store, settings, item, epoch) for item in items]
        assert visits_of(batch) == visits

        passages = []
        for visit in visits:
            passages += [passage for passage in visit.passages if passage is not None]
        if fill is FillNegatives.REPEAT:
            assert texts_of(batch.passages) == passages
        else:
            assert len(batch.passages.input_ids) == len(set(map(tuple, passages)))
        assert len(set(batch.keys.tolist())) == len(batch.passages.input_ids)


@pytest.mark.parametrize("world", [2, 6])
def test_the_parts_of_all_ranks_are_the_batch(store, world):
    settings = SamplingSettings(3)
    batches_of_one_process = TrainingBatches(store, settings, 6, epochs=2, with_scores=True)
    batches_of_ranks = [
        TrainingBatches(store, settings, 6, epochs=2, with_scores=True, rank=rank, world=world)
        for rank in range(world)
    ]
    for step in range(len(batches_of_one_process)):
        visits = []
        for batches in batches_of_ranks:
            visits += visits_of(batches[step])
        assert visits == visits_of(batches_of_one_process[step])
        # the positives of a rank are rows of its own passages
        positives = batches_of_ranks[0][step].groups[:, 0].tolist()
        assert positives == list(range(0, 18 // world, 3))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_change_nothing(store, method):
    batches = TrainingBatches(store, SamplingSettings(3), 4, epochs=2, with_scores=True)
    loader: DataLoader[Any] = DataLoader(
        batches, batch_size=None, num_workers=2, multiprocessing_context=method
    )
    expected = [visits_of(batches[step]) for step in range(10)]
    assert [visits_of(batch) for batch in loader] == expected


def test_a_passage_of_several_queries_is_one_row(prepared):
    """By its id where it has one, else by its text; a copy within a group is masked."""
    examples = [inline(query, 1, 2, scored=True) for query in range(4)]
    docid = examples[0]["positive_passages"][0]["docid"]
    examples[1]["positive_passages"] = [{"docid": docid, "text": "zoo", "score": 5.0}]
    examples[2]["negative_passages"][0] = {"docid": "", "text": "bird", "score": 6.0}
    examples[3]["negative_passages"] = [
        {"docid": "", "text": "bird", "score": 7.0},
        {"docid": "", "text": "bird", "score": 8.0},
    ]
    settings = SamplingSettings(3, negative=NegativeChoice.TOP)
    batches = TrainingBatches(prepared(examples), settings, 4, with_scores=True)
    batch = batches.assemble(np.arange(4), 0)
    assert batch.groups.tolist() == [[0, 1, 2], [0, 3, 4], [5, 6, 7], [8, 6, -1]]
    assert batch.teacher[3].tolist() == [3.0, 7.0, -torch.inf]
    assert len(batch.passages.input_ids) == 9
    assert len(set(batch.keys.tolist())) == 9


@pytest.mark.parametrize("fill", FillNegatives)
def test_the_known_positives_of_a_query_are_found_by_their_texts(prepared, fill):
    examples = [inline(query, 1 + query % 2, 2) for query in range(6)]
    examples[1]["query"] = examples[0]["query"]
    copied_text = examples[2]["positive_passages"][0]["text"]
    examples[2]["negative_passages"][0]["text"] = copied_text
    examples[4]["negative_passages"][0] = examples[3]["positive_passages"][1]
    examples[5]["positive_passages"][0] = examples[3]["positive_passages"][0]
    store = prepared(examples)
    sampling = SamplingSettings(3, PositiveChoice.FIRST, fill_negatives=fill)
    batch = TrainingBatches(store, sampling, 6, masks=True)[0]
    objective = RetrievalObjective(ObjectiveSettings())
    masked = objective.false_negatives(batch.known_positives, batch.groups, batch.keys)

    positives_by_query: dict[tuple[int, ...], list[list[int]]] = {}
    for query, rows in zip(store.queries[:], store.positives[:], strict=True):
        positives = positives_by_query.setdefault(tuple(query), [])
        positives += [store.passages[row].tolist() for row in rows]
    passages = texts_of(batch.passages)
    for number, query in enumerate(texts_of(batch.queries)):
        own_positive_row = int(batch.groups[number, 0])
        expected = [
            passage in positives_by_query[tuple(query)] and row != own_positive_row
            for row, passage in enumerate(passages)
        ]
        assert masked[number].tolist() == expected
    assert masked.sum() > 2


def test_a_random_passage_stands_in_for_missing_negatives(store_with_gaps, caplog):
    batch = TrainingBatches(store_with_gaps, SamplingSettings(3), 10)[0]
    assert warnings_of(caplog) == ["queries without a negative get random passages: 5"]
    groups = passages_by_query(batch)
    for item, (positive, *negatives) in zip(batch.items.tolist(), groups, strict=True):
        rows = [*store_with_gaps.positives[item], *store_with_gaps.negatives[item]]
        passages_of_query = [store_with_gaps.passages[row].tolist() for row in rows]
        has_negatives = item % 2 == 1
        assert positive == passages_of_query[0]
        assert negatives[0] is not None
        for negative in negatives:
            if negative is not None:
                assert (negative in passages_of_query) == has_negatives


def test_queries_without_negatives_have_nothing_to_distil(store_with_gaps, caplog):
    batches = TrainingBatches(store_with_gaps, SamplingSettings(3), 5, with_scores=True)
    assert batches.items.tolist() == [1, 3, 5, 7, 9]  # a random passage has no score
    assert warnings_of(caplog) == ["queries without a negative have nothing to distil, left out: 5"]
    assert torch.isfinite(batches[0].teacher).all()


def test_a_batch_larger_than_the_data_is_rejected(store):
    with pytest.raises(UsageError, match="--batch-size 24: the data hold 23 queries") as error:
        TrainingBatches(store, SamplingSettings(2), 24)
    assert error.value.hint == "give --batch-size 23 or less, or more data"


def test_a_batch_that_does_not_divide_among_processes_is_rejected(store):
    with pytest.raises(UsageError, match="--batch-size 5 does not divide among 2 processes"):
        TrainingBatches(store, SamplingSettings(2), 5, world=2)


def test_distillation_needs_scores(prepared):
    store = prepared([inline(0, 2, 0)])
    with pytest.raises(InputError, match="no teacher's score of a passage of query q0"):
        TrainingBatches(store, SamplingSettings(2), 1, with_scores=True)
    assert len(TrainingBatches(store, SamplingSettings(1), 1)) == 1


@pytest.mark.parametrize(("size", "examples"), [(2, pairs(11)), (3, triplets(11))])
def test_sentences_come_once_an_epoch_in_its_own_order(write, tmp_path, tokenizer, size, examples):
    store = tokenize_sentences(
        [write(examples)], tmp_path / "prepared", tokenizer, size=size, label_scale=5
    )
    batches = SentenceBatches(store, SamplingSettings(seed=5), 4, epochs=2)
    assert len(batches) == 6
    assert batches.steps_per_epoch == 3
    for step in range(6):
        epoch, batch_number = divmod(step, 3)
        order = generator(5, Purpose.ORDER, epoch).permutation(11).tolist()
        items = order[4 * batch_number : 4 * batch_number + 4]
        batch = to_device(batches[step], "cpu")
        sentences = []
        for item in items:
            rows = store.sentences[size * item : size * item + size]
            sentences += [ids.tolist() for ids in rows]
        assert batch.items.tolist() == items
        assert texts_of(batch.sentences) == sentences
        if size == 2:
            assert batch.labels is not None
            assert batch.labels.tolist() == [float(item % 6) for item in items]
        else:
            assert batch.labels is None


TOKENIZERS = {kind: tiny_tokenizer(kind, VOCABULARY) for kind in RERANKERS}
TEXTS = st.lists(st.sampled_from([*WORDS, "boats", "?"]), min_size=1, max_size=20).map(" ".join)


def joined_pair(joiner, kind, query, passage, settings):
    """A query joined with a passage, each tokenised alone."""
    tokenizer = TextTokenizer(TOKENIZERS[kind], settings)
    [query_ids] = tokenizer.queries([Query("q", query)])
    [passage_ids] = tokenizer.passages([Passage("d", passage)])
    return joiner.join(query_ids, passage_ids)


def pair_by_transformers(kind, query, passage, max_length=None):
    """A query and a passage joined by their tokenizer."""
    return TOKENIZERS[kind](
        query,
        passage,
        truncation="only_second",
        max_length=max_length,
        return_token_type_ids=True,
    )


@given(query=TEXTS, passage=TEXTS, kind=st.sampled_from(RERANKERS))
def test_a_pair_is_joined_as_the_tokenizer_joins_it(query, passage, kind):
    settings = TextSettings(query_max_length=64, passage_max_length=64)
    joiner = PairJoiner(TOKENIZERS[kind], settings, PairSettings(token_types=True))
    pair = joined_pair(joiner, kind, query, passage, settings)
    expected = pair_by_transformers(kind, query, passage)
    assert pair.ids.tolist() == expected["input_ids"]
    types = joiner.batch([pair]).token_types
    assert types is not None
    assert types.tolist() == [expected["token_type_ids"]]


@pytest.mark.parametrize("kind", RERANKERS)
@pytest.mark.parametrize("max_length", [9, 10, 14, 40])
def test_the_passage_is_cut_to_the_joint_limit(kind, max_length):
    query = "the cat and"
    passage = " ".join(WORDS[:20])
    settings = TextSettings(query_max_length=5)
    joiner = PairJoiner(TOKENIZERS[kind], settings, PairSettings(max_length=max_length))
    pair = joined_pair(joiner, kind, query, passage, settings)
    expected = pair_by_transformers(kind, query, passage, max_length)
    assert pair.ids.tolist() == expected["input_ids"]


def test_a_limit_without_room_for_a_passage_is_rejected():
    tokenizer = TOKENIZERS["roberta"]
    settings = TextSettings(query_max_length=8)
    PairJoiner(tokenizer, settings, PairSettings(max_length=11))
    with pytest.raises(UsageError, match="--pair-max-length 10 leaves no room") as caught:
        PairJoiner(tokenizer, settings, PairSettings(max_length=10))
    assert caught.value.hint == "at least 11, or a smaller --query-max-length"


def test_training_pairs_are_those_of_the_training_batches(store, tokenizer):
    joiner = PairJoiner(TOKENIZERS["bert"], tokenizer.settings, PairSettings(max_length=20))
    sampling = SamplingSettings(group_size=3)
    batches = TrainingBatches(store, sampling, 4, epochs=2)
    pair_batches = PairTrainingBatches(joiner, store, sampling, 4, epochs=2)
    assert len(pair_batches) == len(batches) == 10
    for step in range(10):
        batch = batches[step]
        pair_batch = pair_batches[step]
        expected = []
        for query, passages in zip(texts_of(batch.queries), passages_by_query(batch), strict=True):
            expected += [joiner.join(query, passage).ids.tolist() for passage in passages]
        assert texts_of(pair_batch.pairs.tokens) == expected
        assert pair_batch.groups.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
        assert pair_batch.items.equal(batch.items)
