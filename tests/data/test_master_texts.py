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


def assembled(store, masking, epoch=0, **options):
    """A batch of all items, and the items of its rows: the longest come first."""
    order = sorted(range(len(store)), key=lambda item: -len(store.texts[item]))
    batches = batches_of(store, masking=masking, **options)
    return batches.assemble(np.arange(len(store)), epoch), order


def many(folder, record, masking, **options):
    limits = {"max_length": options.get("max_length", 40)}
    return assembled(store_of(folder, [record] * DRAWS, **limits), masking, **options)[0]


def near(count, probability, draws=DRAWS):
    deviation = math.sqrt(probability * (1 - probability) * draws)
    return abs(count - probability * draws) <= 5 * deviation + 1


def keeps_keyword_law(reading, rate):
    """Whole words that reach the budget, which the last one alone may exceed."""
    ids, asked = reading
    words = words_from(ids)
    limit = max(1, round(rate * sum(map(len, words))))
    largest = max((len(word) for word in words if asked[word[0]]), default=0)
    reached = sum(asked) >= min(limit, sum(map(len, words)))
    return is_whole(ids, asked) and reached and sum(asked) - largest < limit


@PRESETS
@given(epoch=st.integers(0, 10**6))
def test_laws_of_every_text(store, masking, epoch):
    batch, rows = assembled(store, masking, epoch=epoch)
    texts = [RECORDS[row]["text"] for row in rows]
    found = {name: readings(texts) for name, texts in batch.decoders.items()}
    passes = {"e1": readings(batch.texts)} | {n: readings(t) for n, t in batch.passes.items()}
    assert [ids for ids, _ in passes["e1"]] == [ids for ids, _ in found["mkp"]] == texts
    following = [RECORDS[1]["next"][0] if row == 1 else RECORDS[row]["text"] for row in rows]
    assert [ids for ids, _ in found["gor"]] == following  # without a continuation, the passage
    assert all(keeps_uniform_law(reading, 0.3) for reading in passes["e1"])
    assert all(keeps_keyword_law(reading, 0.5) for reading in found["mkp"])
    assert all(keeps_uniform_law(reading, 0.5) for reading in found["dor"] if reading[0])
    assert all(keeps_uniform_law(reading, 0.5) for reading in found["gor"])
    encoder = passes["cmp" if masking.cmp_pass else "e1"]
    assert all(keeps_uniform_law(r, 0.5 if masking.cmp_pass else 0.3) for r in encoder)
    for (ids, seen), (same, recovered) in zip(encoder, found["cmp"], strict=True):
        assert same == ids
        special = [ENTRIES.special[i] for i in ids]
        expected = [not a and not s for a, s in zip(seen, special, strict=True)]
        assert recovered == expected
    for reading in found["npr"]:
        assert keeps_keyword_law(reading, 0.5) or not reading[0]


@pytest.mark.parametrize("number", [0, 1])
def test_keywords_of_the_example(tmp_path, example, number):
    case = example["keyword_masking"][number]
    table = tmp_path / "frequencies.json"
    table.write_text(json.dumps({w: c for w, c in case["corpus_frequency"].items() if c}))
    masking = MaskingSettings(
        keyword_weight=KeywordWeight.INVERSE_FREQUENCY, frequency_dict=str(table)
    )
    record = {"text": ids_of(" ".join(case["tokens"]))}
    batch = many(tmp_path, record, masking, tasks=frozenset({MasterTask.MKP}))
    drawn = [tuple(map(int, asked)) for _, asked in readings(batch.decoders["mkp"])]
    expected = {tuple(part["mask"]): part["probability"] for part in case["distribution"]}
    assert set(drawn) <= set(expected)
    assert all(near(drawn.count(mask), share) for mask, share in expected.items())


def test_complement_of_the_example(tmp_path, example):
    case = example["complementary_masking"]
    record = {"text": ids_of(" ".join(case["tokens"]))}
    batch = many(tmp_path, record, RELEASED, tasks=frozenset({MasterTask.CMP}))
    seen, asked = (
        [mask for _, mask in readings(texts["cmp"])] for texts in (batch.passes, batch.decoders)
    )
    assert set(map(sum, seen)) == {case["budget"]}
    after = case["decoder_mask_after_removing_special_tokens"]
    assert (case["encoder_mask_example"], after) in zip(seen, asked, strict=True)


def test_halves_of_the_example(tmp_path, example):
    cases = example["neighbouring_split"]
    texts = [[NAMES.index("moon")] * case["kept_text_token_count"] for case in cases]
    store = store_of(tmp_path, [{"text": text} for text in texts])
    batch, rows = assembled(store, RELEASED, tasks=frozenset({MasterTask.NPR}))
    first = [len(ids) for ids, _ in readings(batch.passes["npr"])]
    second = [len(ids) for ids, _ in readings(batch.decoders["npr"])]
    for row, lengths in zip(rows, zip(first, second, strict=True), strict=True):
        expected = cases[row]["encoder_gets_first"], cases[row]["decoder_gets_last"]
        # nothing stands before a single piece: the row has no NPR term
        assert lengths == (expected if expected[0] else (0, 0))


def test_queries_of_the_example(tmp_path, example):
    case = example["query_concatenation"]
    places = {part: 10 + part for query in case["queries"] for part in query}
    places[case["separator_id"]] = SEP
    record = {
        "text": ids_of("moon"),
        "queries": [[places[part] for part in query] for query in case["queries"]],
        "next": [],
    }
    length = case["max_seq_length"]
    batch = many(tmp_path, record, PAPER, tasks=frozenset({MasterTask.DOR}), max_length=length)
    found = readings(batch.decoders["dor"])
    crops = [[places[part] for part in crop] for crop in case["possible_crops"]]
    assert all(ids in crops for ids, _ in found)
    assert near(sum(ids == crops[0] for ids, _ in found), 0.5)
    assert {sum(asked) for _, asked in found} == {case["mask_budget_at_50_percent"]}


def test_neighbours_are_the_passages_of_ones_document(tmp_path):
    texts = [("d#0", "moon"), ("d#1", "sun"), ("e#0", "star"), ("d#2", "night")]
    corpus = jsonl(tmp_path / "corpus.jsonl", ({"_id": i, "text": t} for i, t in texts))
    store = prepare(run_of([corpus], MASTER), tmp_path / "prepared", TOKENIZER)
    batch, _ = assembled(store, PAPER, tasks=frozenset({MasterTask.NPR}))
    said = [ids for ids, _ in readings(batch.decoders["npr"])]
    assert said == [ids_of("sun"), ids_of("moon"), [], []]
    assert batch.passes == {}


def test_a_long_passage_is_cropped_alike_for_every_decoder_of_its_text(tmp_path):
    text = ids_of("moon sun star night day red blue green old new big small runs sleeps eats")
    store = store_of(tmp_path, [{"text": text}] * 50)
    tasks = frozenset({MasterTask.MKP, MasterTask.CMP, MasterTask.NPR})
    batch, _ = assembled(store, RELEASED, tasks=tasks, max_length=9)
    kept = [ids for ids, _ in readings(batch.texts)]
    windows = [text[start : start + 7] for start in range(len(text) - 6)]
    assert all(window in windows for window in kept)
    assert len({tuple(window) for window in kept}) > 5
    assert [ids for ids, _ in readings(batch.decoders["mkp"])] == kept
    assert [ids for ids, _ in readings(batch.decoders["cmp"])] == kept
    halves = zip(readings(batch.passes["npr"]), readings(batch.decoders["npr"]), strict=True)
    assert [first + second for (first, _), (second, _) in halves] == kept
