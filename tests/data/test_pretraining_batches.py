import json
import math
import pickle

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
    return [i for place in range(length) for i in ids_of(WORDS[(number * 7 + place) % len(WORDS)])]


def records(objective, count=23):
    if objective is COCONDENSER:
        return [{"spans": [text(i + j, 3 + i % 9) for j in range(2 + i % 3)]} for i in range(count)]
    extra = {"queries": [text(3, 2)], "next": [text(5, 4)]} if objective is MASTER else {}
    return [{"text": text(i, 1 + 2 * i % 30)} | extra for i in range(count)]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    return {
        objective: store_of(tmp_path_factory.mktemp(objective), records(objective), objective)
        for objective in LAYOUTS
    }


def made(stores, objective, batch_size=6, **options):
    if objective is MASTER:
        options.setdefault("masking", RELEASED)
    return batches_of(stores[objective], objective, batch_size=batch_size, **options)


def rows_of(batch):
    """What becomes of each text in every part, padding aside."""
    parts = {"texts": batch.texts}
    parts |= {f"pass {name}": texts for name, texts in batch.passes.items()}
    parts |= {f"decoder {name}": texts for name, texts in batch.decoders.items()}
    found = []
    for row in range(len(batch.texts.labels)):
        own = []
        for name, texts in parts.items():
            width = int(texts.tokens.attention_mask[row].sum())
            own += [name, tuple(texts.tokens.input_ids[row, :width].tolist())]
            own.append(tuple(texts.labels[row, :width].tolist()))
            if batch.visible is not None:
                own.append(tuple(batch.visible[row, :width, :width].flatten().tolist()))
        found.append(tuple(own))
    return found


@EVERY
def test_a_batch_is_a_function_of_its_step(stores, objective):
    one, other = made(stores, objective, epochs=3), made(stores, objective, epochs=3)
    first = [rows_of(one[step]) for step in range(len(one))]
    backwards = [rows_of(other[step]) for step in reversed(range(len(other)))][::-1]
    assert len(first) == 9
    assert first == backwards
    assert not any(first[step] == first[step + 3] for step in range(6))
    loader = DataLoader(one, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert [rows_of(batch) for batch in loader] == first
    assert rows_of(pickle.loads(pickle.dumps(one))[1]) == first[1]
    seeded = MaskingSettings(**{**vars(RELEASED), "seed": 43})
    assert rows_of(made(stores, objective, masking=seeded)[0]) != first[0]


@EVERY
def test_processes_share_a_batch(stores, objective):
    whole = made(stores, objective)
    parts = [made(stores, objective, rank=rank, world=3) for rank in range(3)]
    for step in range(len(whole)):
        together = sorted(row for part in parts for row in rows_of(part[step]))
        assert together == sorted(rows_of(whole[step]))


def test_two_different_spans_of_a_document_stand_side_by_side(stores):
    batches = made(stores, COCONDENSER, epochs=150)
    documents = [record["spans"] for record in records(COCONDENSER)]
    drawn: dict[int, list[tuple[int, int]]] = {}
    for step in range(len(batches)):
        spans = [ids for ids, _ in readings(batches[step].texts)]
        for first, second in zip(spans[::2], spans[1::2], strict=True):
            (number,) = [i for i, d in enumerate(documents) if first in d and second in d]
            pair = documents[number].index(first), documents[number].index(second)
            drawn.setdefault(number, []).append(pair)
    for number, pairs in drawn.items():
        kinds = len(documents[number]) * (len(documents[number]) - 1)
        assert len({pair for pair in pairs if pair[0] != pair[1]}) == len(set(pairs)) == kinds
        for pair in set(pairs):
            deviation = math.sqrt(len(pairs) / kinds * (1 - 1 / kinds))
            assert abs(pairs.count(pair) - len(pairs) / kinds) < 5 * deviation + 1


@given(epoch=st.integers(0, 10**9), rate=st.sampled_from([0.15, 0.3, 0.5]))
def test_uniform_masks_of_batches(stores, epoch, rate):
    masking = MaskingSettings(mlm_probability=rate)
    for objective, extra in ((CONDENSER, 0), (RETROMAE, 2), (DUPMAE, 2)):
        batches = batches_of(stores[RETROMAE], objective, batch_size=23, masking=masking)
        found = readings(batches.assemble(np.arange(23), epoch).texts)
        assert all(keeps_uniform_law(reading, rate, extra) for reading in found)


def test_whole_word_masks_of_the_example(tmp_path, specs):
    cases = json.loads((specs / "condenser_example.json").read_text())["whole_word_mask"]
    for number, case in enumerate(cases):
        tokens = " ".join(case["tokens"]).replace("city", "old").replace("hall", "house")
        record = {"text": ids_of(tokens.replace("near", "in"))}
        store = store_of(tmp_path / str(number), [record] * 2000, CONDENSER)
        masking = MaskingSettings(mlm_probability=case["mask_rate"])
        batch = batches_of(store, CONDENSER, masking=masking, batch_size=2000)[0]
        drawn = [tuple(map(int, asked)) for _, asked in readings(batch.texts)]
        expected = {tuple(part["mask"]): part["probability"] for part in case["distribution"]}
        assert set(drawn) == set(expected)
        for mask, share in expected.items():
            deviation = math.sqrt(2000 * share * (1 - share))
            assert abs(drawn.count(mask) - 2000 * share) <= 5 * deviation + 1


def test_retromae_reads_its_text_whole(stores):
    batch = made(stores, RETROMAE)[0]
    whole, texts = batch.decoders["retromae"], readings(batch.texts)
    assert [ids for ids, _ in readings(whole)] == [ids for ids, _ in texts]
    assert all(all(asked) for _, asked in readings(whole))
    width = whole.labels.shape[1]
    assert batch.visible.shape == (6, width, width)
    assert batch.visible[:, :, 0].all()
    real = whole.tokens.attention_mask
    assert not (batch.visible & ~real[:, None])[:, :, 1:].any()
    assert not (batch.visible & ~real[:, :, None])[:, :, 1:].any()


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
    for i, row in enumerate(visible[1:-1, 1:-1]):
        # the row's own place is hidden either way, so its word may be whole with it or without
        hidden = (~row).tolist()
        samples = ([*hidden[:i], own, *hidden[i + 1 :]] for own in (True, False))
        assert any(keeps_uniform_law((ids, sample), rate, extra=2) for sample in samples)


def test_single_tokens_are_masked_as_words_of_their_own(tmp_path):
    store = store_of(tmp_path, [{"text": ids_of("guitar ##ist ##s")}] * 300, MLM)
    masking = MaskingSettings(mlm_probability=0.3, masking=Masking.TOKEN, all_mask=True)
    texts = batches_of(store, MLM, batch_size=300, masking=masking)[0].texts
    places = {tuple(asked) for _, asked in readings(texts)}
    assert places == {(True, False, False), (False, True, False), (False, False, True)}
    assert (texts.tokens.input_ids[texts.labels != IGNORED] == ENTRIES.mask_id).all()


def test_unknown_documents_send_npr_to_halves(tmp_path, caplog):
    store = store_of(tmp_path, [{"text": text(1, 9)}])
    caplog.clear()
    batches = batches_of(store, tasks=frozenset({MasterTask.NPR}))
    assert caplog.messages == [
        "no documents are known: npr recovers the second half of each passage"
    ]
    assert list(batches[0].passes) == ["npr"]
