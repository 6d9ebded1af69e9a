"""MASTER's passes and decoders: the papers' examples, and the laws of section 4."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.config.pretraining import KeywordWeight, MaskingSettings, MasterTask, NprKind
from denserk.data.pretraining_data import prepare
from tests.support.prepared_texts import (
    ENTRIES,
    MASTER,
    NAMES,
    SEP,
    TOKENIZER,
    batches_of,
    ids_of,
    is_whole,
    keeps_uniform_law,
    readings,
    run_of,
    store_of,
    words_from,
)
from tests.support.training_examples import jsonl

PAPER = MaskingSettings(mlm_probability=0.3)
RELEASED = MaskingSettings(
    mlm_probability=0.3,
    npr=NprKind.HALF,
    keyword_weight=KeywordWeight.INVERSE_FREQUENCY,
    cmp_encoder_rate=0.5,
    cmp_pass=True,
    weigh_fragments=False,
)
PRESETS = pytest.mark.parametrize("masking", [PAPER, RELEASED], ids=["paper", "released"])
DRAWS = 3000
TEXT = "the old river [SEP] play ##ing a guitar ##ist ##s [UNK] runs to fran ##ce and falls"
OTHER = "song of the capital fran ##ce [SEP] the moon rises"
RECORDS = [
    {"text": ids_of(TEXT), "queries": [ids_of("old river"), ids_of("fran ##ce")], "next": [[]]},
    {"text": ids_of(OTHER), "queries": [], "next": [ids_of("a fish sings in the night")]},
    {"text": ids_of("song")},
    {"text": ids_of("[SEP]"), "queries": [ids_of("moon")], "next": []},
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return store_of(tmp_path_factory.mktemp("master"), RECORDS)


@pytest.fixture(scope="module")
def example(specs):
    return json.loads((specs / "master_example.json").read_text())


def batch_of_all(store, masking, epoch=0, **options):
    """A batch of all items."""
    batches = batches_of(store, masking=masking, **options)
    return batches.assemble(np.arange(len(store)), epoch)


def items_by_length(store):
    """The items of the rows of a batch of all: the longest come first."""
    return sorted(range(len(store)), key=lambda item: -len(store.texts[item]))


def batch_of_copies(folder, record, masking, tasks, max_length=40):
    """A batch of one record many times."""
    store = store_of(folder, [record] * DRAWS, max_length=max_length)
    return batch_of_all(store, masking, tasks=tasks, max_length=max_length)


def is_near(count, share):
    """Whether an event of a known share came about as often in `DRAWS` as chance allows."""
    deviation = math.sqrt(share * (1 - share) * DRAWS)
    return abs(count - share * DRAWS) <= 5 * deviation + 1


def ids_in(texts):
    """The token ids of each text of a part of a batch, as they were before masking."""
    return [ids for ids, _ in readings(texts)]


def masks_in(texts):
    """Which tokens of each text of a part of a batch are masked."""
    return [is_masked for _, is_masked in readings(texts)]


def keeps_keyword_law(reading, rate):
    """Whole words that reach the budget, which the last one alone may exceed."""
    ids, is_masked = reading
    words = words_from(ids)
    word_tokens = sum(map(len, words))
    limit = max(1, round(rate * word_tokens))
    largest = max((len(word) for word in words if is_masked[word[0]]), default=0)
    reaches_limit = sum(is_masked) >= min(limit, word_tokens)
    return is_whole(ids, is_masked) and reaches_limit and sum(is_masked) - largest < limit


@PRESETS
@given(epoch=st.integers(0, 10**6))
def test_the_encoder_s_input_is_masked_uniformly(store, masking, epoch):
    batch = batch_of_all(store, masking, epoch=epoch)
    assert ids_in(batch.texts) == [RECORDS[item]["text"] for item in items_by_length(store)]
    for reading in readings(batch.texts):
        assert keeps_uniform_law(reading, 0.3)


@PRESETS
@given(epoch=st.integers(0, 10**6))
def test_keywords_are_masked_by_their_law(store, masking, epoch):
    batch = batch_of_all(store, masking, epoch=epoch)
    assert ids_in(batch.decoders["mkp"]) == ids_in(batch.texts)
    for reading in readings(batch.decoders["mkp"]):
        assert keeps_keyword_law(reading, 0.5)
    for ids, is_masked in readings(batch.decoders["npr"]):
        assert ids == [] or keeps_keyword_law((ids, is_masked), 0.5)


@PRESETS
@given(epoch=st.integers(0, 10**6))
def test_generated_texts_are_masked_uniformly(store, masking, epoch):
    batch = batch_of_all(store, masking, epoch=epoch)
    expected = [RECORDS[item]["text"] for item in items_by_length(store)]
    # without a continuation, the passage itself
    expected[items_by_length(store).index(1)] = RECORDS[1]["next"][0]
    assert ids_in(batch.decoders["gor"]) == expected
    for reading in readings(batch.decoders["gor"]):
        assert keeps_uniform_law(reading, 0.5)
    for ids, is_masked in readings(batch.decoders["dor"]):
        assert ids == [] or keeps_uniform_law((ids, is_masked), 0.5)


@PRESETS
@given(epoch=st.integers(0, 10**6))
def test_a_complement_is_what_the_encoder_sees(store, masking, epoch):
    batch = batch_of_all(store, masking, epoch=epoch)
    encoder_texts = batch.texts
    rate = 0.3
    if masking.cmp_pass:
        encoder_texts = batch.passes["cmp"]
        rate = 0.5
    rows = zip(readings(encoder_texts), readings(batch.decoders["cmp"]), strict=True)
    for (encoder_ids, encoder_mask), (decoder_ids, decoder_mask) in rows:
        assert keeps_uniform_law((encoder_ids, encoder_mask), rate)
        assert decoder_ids == encoder_ids
        for token, in_encoder, in_decoder in zip(
            encoder_ids, encoder_mask, decoder_mask, strict=True
        ):
            assert in_decoder == (not in_encoder and not ENTRIES.special[token])


@pytest.mark.parametrize("number", [0, 1])
def test_keywords_of_the_example(tmp_path, example, number):
    case = example["keyword_masking"][number]
    table = tmp_path / "frequencies.json"
    counts = {word: count for word, count in case["corpus_frequency"].items() if count}
    table.write_text(json.dumps(counts))
    masking = MaskingSettings(
        keyword_weight=KeywordWeight.INVERSE_FREQUENCY, frequency_dict=str(table)
    )
    record = {"text": ids_of(" ".join(case["tokens"]))}
    batch = batch_of_copies(tmp_path, record, masking, frozenset({MasterTask.MKP}))
    masks = [tuple(map(int, is_masked)) for is_masked in masks_in(batch.decoders["mkp"])]
    shares = {tuple(entry["mask"]): entry["probability"] for entry in case["distribution"]}
    assert set(masks) <= set(shares)
    for mask, share in shares.items():
        assert is_near(masks.count(mask), share)


def test_complement_of_the_example(tmp_path, example):
    case = example["complementary_masking"]
    record = {"text": ids_of(" ".join(case["tokens"]))}
    batch = batch_of_copies(tmp_path, record, RELEASED, frozenset({MasterTask.CMP}))
    encoder_masks = masks_in(batch.passes["cmp"])
    decoder_masks = masks_in(batch.decoders["cmp"])
    assert set(map(sum, encoder_masks)) == {case["budget"]}
    expected_decoder_mask = case["decoder_mask_after_removing_special_tokens"]
    expected_pair = (case["encoder_mask_example"], expected_decoder_mask)
    assert expected_pair in zip(encoder_masks, decoder_masks, strict=True)


def test_halves_of_the_example(tmp_path, example):
    cases = example["neighbouring_split"]
    texts = [[NAMES.index("moon")] * case["kept_text_token_count"] for case in cases]
    store = store_of(tmp_path, [{"text": text} for text in texts])
    batch = batch_of_all(store, RELEASED, tasks=frozenset({MasterTask.NPR}))
    encoder_lengths = list(map(len, ids_in(batch.passes["npr"])))
    decoder_lengths = list(map(len, ids_in(batch.decoders["npr"])))
    for row, item in enumerate(items_by_length(store)):
        expected = cases[item]["encoder_gets_first"], cases[item]["decoder_gets_last"]
        if cases[item]["encoder_gets_first"] == 0:
            expected = 0, 0  # nothing stands before a single token: the row has no NPR term
        assert (encoder_lengths[row], decoder_lengths[row]) == expected


def test_queries_of_the_example(tmp_path, example):
    case = example["query_concatenation"]

    def token_of(number):
        """The token of the vocabulary for a number of the example."""
        return SEP if number == case["separator_id"] else 10 + number

    record = {
        "text": ids_of("moon"),
        "queries": [list(map(token_of, query)) for query in case["queries"]],
        "next": [],
    }
    batch = batch_of_copies(
        tmp_path, record, PAPER, frozenset({MasterTask.DOR}), max_length=case["max_seq_length"]
    )
    crops = ids_in(batch.decoders["dor"])
    possible_crops = [list(map(token_of, crop)) for crop in case["possible_crops"]]
    assert all(crop in possible_crops for crop in crops)
    assert is_near(crops.count(possible_crops[0]), 0.5)
    masked_counts = set(map(sum, masks_in(batch.decoders["dor"])))
    assert masked_counts == {case["mask_budget_at_50_percent"]}


def test_neighbours_are_the_passages_of_ones_document(tmp_path):
    texts = [("d#0", "moon"), ("d#1", "sun"), ("e#0", "star"), ("d#2", "night")]
    corpus = jsonl(tmp_path / "corpus.jsonl", ({"_id": i, "text": t} for i, t in texts))
    store = prepare(run_of([corpus], MASTER), tmp_path / "prepared", TOKENIZER)
    batch = batch_of_all(store, PAPER, tasks=frozenset({MasterTask.NPR}))
    assert ids_in(batch.decoders["npr"]) == [ids_of("sun"), ids_of("moon"), [], []]
    assert batch.passes == {}


def test_a_long_passage_is_cropped_alike_for_every_decoder_of_its_text(tmp_path):
    text = ids_of("moon sun star night day red blue green old new big small runs sleeps eats")
    record = {"text": text, "queries": [], "next": []}  # the continuation is the passage itself
    store = store_of(tmp_path, [record] * 50)
    tasks = frozenset({MasterTask.MKP, MasterTask.CMP, MasterTask.NPR, MasterTask.GOR})
    batch = batch_of_all(store, RELEASED, tasks=tasks, max_length=9)
    crops = ids_in(batch.texts)
    windows = [text[start : start + 7] for start in range(len(text) - 6)]
    assert all(crop in windows for crop in crops)
    assert len(set(map(tuple, crops))) > 5
    assert ids_in(batch.decoders["mkp"]) == crops
    assert ids_in(batch.decoders["cmp"]) == crops
    continuations = ids_in(batch.decoders["gor"])
    assert all(continuation in windows for continuation in continuations)
    assert continuations != crops  # cropped by itself
    halves = zip(ids_in(batch.passes["npr"]), ids_in(batch.decoders["npr"]), strict=True)
    assert [first_half + second_half for first_half, second_half in halves] == crops
