import json
import math
import pickle
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from denserk.config.pretraining import Masking, MaskingSettings, MasterTask, NprKind
from denserk.data.masking import IGNORED, words_of
from denserk.data.pretraining_batches import Draws, visible_tokens
from tests.support.prepared_texts import (
    COCONDENSER,
    CONDENSER,
    DUPMAE,
    ENTRIES,
    MASTER,
    MLM,
    NAMES,
    RETROMAE,
    batches_of,
    ids_of,
    keeps_uniform_law,
    readings,
    store_of,
)

WORDS = [name for name in NAMES if name.isalpha() and len(name) > 1] + ["fran ##ce", "guitar ##ist"]
RELEASED = MaskingSettings(npr=NprKind.HALF, cmp_pass=True, cmp_encoder_rate=0.5)
LAYOUTS = RETROMAE, COCONDENSER, MASTER  # blocks, spans, passages
EVERY = pytest.mark.parametrize("objective", LAYOUTS)


def text(number, length):
    """The ids of a text of its own for every number; words of two tokens are among them."""
    words = [WORDS[(number * 7 + position) % len(WORDS)] for position in range(length)]
    return ids_of(" ".join(words))


def records(objective):
    """23 records of prepared text, whose lengths differ."""
    if objective is COCONDENSER:
        return [document(number) for number in range(23)]
    expansion = {}
    if objective is MASTER:
        expansion = {"queries": [text(3, 2)], "next": [text(5, 4)]}
    return [{"text": text(number, 1 + 2 * number % 30), **expansion} for number in range(23)]


def document(number):
    """A document of two to four spans."""
    spans = [text(number + offset, 3 + number % 9) for offset in range(2 + number % 3)]
    return {"spans": spans}


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    return {
        objective: store_of(tmp_path_factory.mktemp(objective), records(objective), objective)
        for objective in LAYOUTS
    }


def batches_on(stores, objective, batch_size=6, **options):
    if objective is MASTER:
        options.setdefault("masking", RELEASED)
    return batches_of(stores[objective], objective, batch_size=batch_size, **options)


def rows_of(batch):
    """What becomes of each text in every input of a batch, padding aside."""
    inputs = {"texts": batch.texts}
    inputs |= {f"pass {name}": texts for name, texts in batch.passes.items()}
    inputs |= {f"decoder {name}": texts for name, texts in batch.decoders.items()}
    rows = []
    for number in range(len(batch.texts.labels)):
        row: list[Any] = []
        for name, texts in inputs.items():
            width = int(texts.tokens.attention_mask[number].sum())
            row.append(name)
            row.append(tuple(texts.tokens.input_ids[number, :width].tolist()))
            row.append(tuple(texts.labels[number, :width].tolist()))
            if batch.visible is not None:
                row.append(tuple(batch.visible[number, :width, :width].flatten().tolist()))
        rows.append(tuple(row))
    return rows


@EVERY
def test_a_batch_is_a_function_of_its_step(stores, objective):
    batches = batches_on(stores, objective, epochs=3)
    rows_by_step = [rows_of(batches[step]) for step in range(9)]
    assert len(batches) == 9
    batches_backwards = batches_on(stores, objective, epochs=3)
    for step in reversed(range(9)):
        assert rows_of(batches_backwards[step]) == rows_by_step[step]
    loader = DataLoader(batches, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert [rows_of(batch) for batch in loader] == rows_by_step
    batches_of_worker = pickle.loads(pickle.dumps(batches))
    assert rows_of(batches_of_worker[1]) == rows_by_step[1]


@EVERY
def test_another_epoch_or_seed_gives_other_batches(stores, objective):
    batches = batches_on(stores, objective, epochs=3)
    for step in range(6):
        assert rows_of(batches[step]) != rows_of(batches[step + 3])
    other_seed = MaskingSettings(**{**vars(RELEASED), "seed": 43})
    batches_of_other_seed = batches_on(stores, objective, masking=other_seed)
    assert rows_of(batches_of_other_seed[0]) != rows_of(batches[0])


@EVERY
def test_processes_share_a_batch(stores, objective):
    batches_of_one_process = batches_on(stores, objective)
    batches_of_ranks = [batches_on(stores, objective, rank=rank, world=3) for rank in range(3)]
    for step in range(len(batches_of_one_process)):
        rows = []
        for batches in batches_of_ranks:
            rows += rows_of(batches[step])
        assert sorted(rows) == sorted(rows_of(batches_of_one_process[step]))


def test_two_different_spans_of_a_document_stand_side_by_side(stores):
    batches = batches_on(stores, COCONDENSER, epochs=150)
    documents = [record["spans"] for record in records(COCONDENSER)]
    pairs_by_document: dict[int, list[tuple[int, int]]] = {}
    for step in range(len(batches)):
        spans = [ids for ids, _ in readings(batches[step].texts)]
        for left_span, right_span in zip(spans[::2], spans[1::2], strict=True):
            holds_both = [
                left_span in document and right_span in document for document in documents
            ]
            assert sum(holds_both) == 1
            number = holds_both.index(True)
            pair = documents[number].index(left_span), documents[number].index(right_span)
            pairs_by_document.setdefault(number, []).append(pair)
    for number, pairs in pairs_by_document.items():
        possible_pairs = set(permutations(range(len(documents[number])), 2))
        assert set(pairs) == possible_pairs
        share = 1 / len(possible_pairs)
        for pair in possible_pairs:
            assert is_near(pairs.count(pair), share, len(pairs))


def is_near(count, share, draws):
    """Whether an event of a known share came about as often as chance allows."""
    deviation = math.sqrt(draws * share * (1 - share))
    return abs(count - draws * share) <= 5 * deviation + 1


@given(epoch=st.integers(0, 10**9), rate=st.sampled_from([0.15, 0.3, 0.5]))
def test_uniform_masks_of_batches(stores, epoch, rate):
    masking = MaskingSettings(mlm_probability=rate)
    for objective, extra in ((CONDENSER, 0), (RETROMAE, 2), (DUPMAE, 2)):
        batches = batches_of(stores[RETROMAE], objective, batch_size=23, masking=masking)
        batch = batches.assemble(np.arange(23), epoch)
        for reading in readings(batch.texts):
            assert keeps_uniform_law(reading, rate, extra)


def test_whole_word_masks_of_the_example(tmp_path, specs):
    cases = json.loads((specs / "condenser_example.json").read_text())["whole_word_mask"]
    for number, case in enumerate(cases):
        tokens = " ".join(case["tokens"]).replace("city", "old").replace("hall", "house")
        record = {"text": ids_of(tokens.replace("near", "in"))}
        store = store_of(tmp_path / str(number), [record] * 2000, CONDENSER)
        masking = MaskingSettings(mlm_probability=case["mask_rate"])
        batch = batches_of(store, CONDENSER, masking=masking, batch_size=2000)[0]
        masks = [tuple(map(int, is_masked)) for _, is_masked in readings(batch.texts)]
        shares = {tuple(entry["mask"]): entry["probability"] for entry in case["distribution"]}
        assert set(masks) == set(shares)
        for mask, share in shares.items():
            assert is_near(masks.count(mask), share, 2000)


def test_retromae_reads_its_text_whole(stores):
    batch = batches_on(stores, RETROMAE)[0]
    decoder_texts = batch.decoders["retromae"]
    encoder_ids = [ids for ids, _ in readings(batch.texts)]
    assert [ids for ids, _ in readings(decoder_texts)] == encoder_ids
    for _, is_label in readings(decoder_texts):
        assert all(is_label)
    width = decoder_texts.labels.shape[1]
    assert batch.visible.shape == (6, width, width)
    assert batch.visible[:, :, 0].all()
    is_padding = ~decoder_texts.tokens.attention_mask
    visible_texts = batch.visible[:, :, 1:]
    assert not (visible_texts & is_padding[:, None, 1:]).any()
    assert not (visible_texts & is_padding[:, :, None]).any()


@pytest.mark.parametrize("rate", [0.15, 0.5, 0.9])
@pytest.mark.parametrize(
    "tokens",
    ["the old fran ##ce [SEP] play ##ing a guitar ##ist ##s [UNK] runs", "song", "moon sun " * 15],
)
def test_views_keep_the_law(tokens, rate):
    """Section 3.3 of RetroMAE: each row sees [CLS], not itself, and a sample of the rest."""
    ids = ids_of(tokens)
    length = len(ids)
    draws = Draws(seed=1, rows=np.array([0]), epoch=0)
    visible = visible_tokens(words_of(np.array([ids]), ENTRIES)[0], rate, draws)
    assert visible.shape == (length + 2, length + 2)
    assert visible[:, 0].all()
    assert visible[: length + 1, length + 1].all()  # [SEP], by all but itself
    assert not visible.diagonal()[1:].any()
    for position, row in enumerate(visible[1:-1, 1:-1]):
        # the row's own token is hidden either way, so its word may be whole with it or without
        hidden_with_token = (~row).tolist()
        hidden_without_token = list(hidden_with_token)
        hidden_with_token[position] = True
        hidden_without_token[position] = False
        assert keeps_uniform_law((ids, hidden_with_token), rate, extra=2) or keeps_uniform_law(
            (ids, hidden_without_token), rate, extra=2
        )


def test_single_tokens_are_masked_as_words_of_their_own(tmp_path):
    store = store_of(tmp_path, [{"text": ids_of("guitar ##ist ##s")}] * 300, MLM)
    masking = MaskingSettings(mlm_probability=0.3, masking=Masking.TOKEN, all_mask=True)
    texts = batches_of(store, MLM, batch_size=300, masking=masking)[0].texts
    masks = {tuple(is_masked) for _, is_masked in readings(texts)}
    assert masks == {(True, False, False), (False, True, False), (False, False, True)}
    assert (texts.tokens.input_ids[texts.labels != IGNORED] == ENTRIES.mask_id).all()


def test_unknown_documents_send_npr_to_halves(tmp_path, caplog):
    store = store_of(tmp_path, [{"text": text(1, 9)}])
    caplog.clear()
    batches = batches_of(store, tasks=frozenset({MasterTask.NPR}))
    assert caplog.messages == [
        "no documents are known: npr recovers the second half of each passage"
    ]
    assert list(batches[0].passes) == ["npr"]
