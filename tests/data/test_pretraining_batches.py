"""Batches of pre-training: functions of their step, whoever makes them; and their laws."""

import json
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from denserk.config.pretraining import (
    Masking,
    MaskingSettings,
    MasterTask,
    NprKind,
    PretrainingObjective,
)
from denserk.data.masking import IGNORED
from denserk.errors import InputError, MismatchError, UsageError
from tests.conftest import VOCABULARY
from tests.data.prepared_texts import (
    NAMES,
    PIECES,
    TOKENIZER,
    batches_of,
    ids_of,
    is_whole,
    readings,
    store_of,
    words_from,
)
from tests.reporters import Heard
from tests.tiny_models import tiny_tokenizer

MLM, CONDENSER, COCONDENSER, MASTER, RETROMAE = PretrainingObjective
WORDS = [name for name in NAMES if name.isalpha() and len(name) > 1] + ["fran ##ce", "guitar ##ist"]
RELEASED = MaskingSettings(npr=NprKind.HALF, cmp_pass=True, cmp_encoder_rate=0.5)


def text(number, length):
    """The ids of a text of its own for every number; words of two pieces are among them."""
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
        for objective in PretrainingObjective
    }


def flat(batch):
    """Every tensor of a batch, by its place."""
    parts = {"texts": batch.texts}
    parts |= {f"pass {name}": texts for name, texts in batch.passes.items()}
    parts |= {f"decoder {name}": texts for name, texts in batch.decoders.items()}
    tensors = {"visible": torch.zeros(0) if batch.visible is None else batch.visible}
    for name, texts in parts.items():
        tensors |= {f"{name} ids": texts.tokens.input_ids, f"{name} labels": texts.labels}
        tensors[f"{name} real"] = texts.tokens.attention_mask
    return tensors


def same(one, other):
    first, second = flat(one), flat(other)
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


def rows_of(batch):
    """What becomes of each text in every part, padding aside, in a fixed order."""
    tensors = flat(batch)
    real = {name[:-5]: tensor for name, tensor in tensors.items() if name.endswith(" real")}
    found = []
    for row in range(len(batch.texts.labels)):
        parts = []
        for name, mask in real.items():
            width = int(mask[row].sum())
            parts.append(tuple(tensors[f"{name} ids"][row, :width].tolist()))
            parts.append(tuple(tensors[f"{name} labels"][row, :width].tolist()))
            if batch.visible is not None:
                parts.append(tuple(batch.visible[row, :width, :width].flatten().tolist()))
        found.append(tuple(parts))
    return sorted(found)


EVERY = pytest.mark.parametrize("objective", PretrainingObjective)


def made(stores, objective, batch_size=6, **options):
    if objective is MASTER:
        options.setdefault("masking", RELEASED)
    return batches_of(stores[objective], objective, batch_size=batch_size, **options)


@EVERY
def test_a_batch_is_a_function_of_its_step(stores, objective):
    one, other = made(stores, objective, epochs=3), made(stores, objective, epochs=3)
    first = [one[step] for step in range(len(one))]
    backwards = [other[step] for step in reversed(range(len(other)))][::-1]
    assert len(first) == 9
    assert all(same(a, b) for a, b in zip(first, backwards, strict=True))
    assert not any(same(first[step], first[step + 3]) for step in range(6))


@EVERY
def test_workers_change_nothing(stores, objective):
    batches = made(stores, objective)
    loader = DataLoader(batches, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert all(same(batch, batches[step]) for step, batch in enumerate(loader))


@EVERY
def test_another_process_takes_them_along(stores, objective):
    batches = made(stores, objective)
    assert same(pickle.loads(pickle.dumps(batches))[1], batches[1])


@EVERY
@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_a_batch(stores, objective, world):
    whole = made(stores, objective)
    parts = [made(stores, objective, rank=rank, world=world) for rank in range(world)]
    for step in range(len(whole)):
        together = sorted(row for part in parts for row in rows_of(part[step]))
        assert together == rows_of(whole[step])


@EVERY
def test_another_seed_is_another_run(stores, objective):
    other = MaskingSettings(**{**vars(RELEASED), "seed": 43})
    assert not same(made(stores, objective)[0], made(stores, objective, masking=other)[0])


@pytest.mark.parametrize("objective", [MLM, CONDENSER, MASTER, RETROMAE])
def test_an_epoch_meets_every_text_once(stores, objective):
    batches = made(stores, objective, batch_size=1)
    met = [ids for step in range(len(batches)) for ids, _ in readings(batches[step].texts)]
    assert sorted(met) == sorted(record["text"] for record in records(objective))


@pytest.mark.parametrize("objective", [MLM, CONDENSER, MASTER, RETROMAE])
def test_longest_texts_come_first(stores, objective):
    for step in range(3):
        lengths = made(stores, objective)[step].texts.tokens.attention_mask.sum(1)
        assert lengths.tolist() == sorted(lengths.tolist(), reverse=True)


def test_two_different_spans_of_a_document_stand_side_by_side(stores):
    batches = made(stores, COCONDENSER, epochs=150)
    documents = [record["spans"] for record in records(COCONDENSER)]
    drawn: dict[int, list[tuple[int, int]]] = {}
    for step in range(len(batches)):
        spans = [ids for ids, _ in readings(batches[step].texts)]
        for first, second in zip(spans[::2], spans[1::2], strict=True):
            (number,) = [i for i, d in enumerate(documents) if first in d and second in d]
            assert first != second
            pair = documents[number].index(first), documents[number].index(second)
            drawn.setdefault(number, []).append(pair)
    for number, pairs in drawn.items():
        count = len(documents[number])
        kinds = count * (count - 1)
        assert len(set(pairs)) == kinds
        for pair in set(pairs):
            share = 1 / kinds
            deviation = math.sqrt(len(pairs) * share * (1 - share))
            assert abs(pairs.count(pair) - share * len(pairs)) < 5 * deviation + 1


@given(epoch=st.integers(0, 10**9), rate=st.sampled_from([0.15, 0.3, 0.5]))
def test_uniform_masks_of_batches(stores, epoch, rate):
    masking = MaskingSettings(mlm_probability=rate)
    for objective, extra in ((MLM, 0), (CONDENSER, 0), (RETROMAE, 2)):
        batches = batches_of(stores[objective], objective, batch_size=23, masking=masking)
        for ids, asked in readings(batches.assemble(np.arange(23), epoch).texts):
            left = max(1, round(rate * (len(ids) + extra))) - sum(asked)
            assert is_whole(ids, asked)
            assert left >= 0
            assert all(len(word) > left for word in words_from(ids) if not asked[word[0]])


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
    hidden = whole.labels != IGNORED
    assert torch.equal(whole.tokens.input_ids[hidden], whole.labels[hidden])
    assert batch.visible.shape == (6, *whole.labels.shape[1:] * 2)


def test_single_pieces_are_masked_as_words_of_their_own(tmp_path):
    store = store_of(tmp_path, [{"text": ids_of("guitar ##ist ##s")}] * 300, MLM)
    masking = MaskingSettings(mlm_probability=0.3, masking=Masking.TOKEN)
    batch = batches_of(store, MLM, batch_size=300, masking=masking)[0]
    assert {tuple(asked) for _, asked in readings(batch.texts)} == {
        (True, False, False),
        (False, True, False),
        (False, False, True),
    }


def test_all_mask(stores):
    masking = MaskingSettings(all_mask=True)
    texts = made(stores, MLM, masking=masking)[0].texts
    assert (texts.tokens.input_ids[texts.labels != IGNORED] == PIECES.mask_id).all()


def test_long_texts_are_cropped_once(tmp_path):
    long = text(0, 60)
    store = store_of(tmp_path, [{"text": long}] * 40, CONDENSER)
    kept = [ids for ids, _ in readings(batches_of(store, CONDENSER, 12, 40)[0].texts)]
    assert all(ids in [long[i : i + 10] for i in range(len(long) - 9)] for ids in kept)
    assert len({tuple(ids) for ids in kept}) > 10


def test_steps_end_where_they_were_told_to(stores):
    assert len(made(stores, MLM, epochs=2.5)) == 8
    batches = made(stores, MLM, max_steps=5)
    assert (len(batches), batches.steps_per_epoch, batches.epoch_of(4)) == (5, 3, 1)
    with pytest.raises(IndexError):
        batches[5]


def master(folder, tasks, masking=None, **record):
    store = store_of(folder, [{"text": text(0, 5)} | record])
    told = Heard()
    tasks = frozenset(map(MasterTask, tasks.split()))
    return batches_of(store, masking=masking, tasks=tasks), told.notes


def test_unknown_documents_send_npr_to_halves(tmp_path):
    batches, said = master(tmp_path, "npr")
    assert batches.npr is NprKind.HALF
    assert said == ["no documents are known: npr recovers the second half of each passage"]
    assert list(batches[0].passes) == ["npr"]


def test_halves_asked_for_need_no_word(tmp_path):
    assert master(tmp_path, "npr", MaskingSettings(npr=NprKind.HALF))[1] == []


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        ("dor", r"dor: the corpus has no generated queries or continuations$"),
        ("mkp gor", r"gor: the corpus has no generated"),
        ("mkp cmp npr dor gor", r"dor and gor: the corpus has no generated"),
    ],
)
def test_tasks_without_expansions_are_refused(tmp_path, tasks, told):
    with pytest.raises(UsageError, match=told) as caught:
        master(tmp_path, tasks)
    rest = [task for task in tasks.split() if task not in ("dor", "gor")]
    assert ("--set tasks=" + ",".join(rest) in str(caught.value.hint)) == bool(rest)


def test_another_objectives_text_is_refused(stores):
    with pytest.raises(MismatchError, match="holds blocks; master needs passages"):
        batches_of(stores[CONDENSER], MASTER)


def test_another_tokenizers_text_is_refused(stores):
    from denserk.data.pretraining_batches import PretrainingBatches

    with pytest.raises(MismatchError, match="tokenised by another tokenizer than the model's"):
        PretrainingBatches(
            stores[MLM], tiny_tokenizer("bert", VOCABULARY), MLM, MaskingSettings(), 40, 1
        )
    assert made(stores, MLM).masker.vocabulary.size == len(TOKENIZER)


@pytest.mark.parametrize(
    ("objective", "items"), [(MLM, "23 blocks"), (COCONDENSER, "23 documents")]
)
def test_too_little_text_for_one_batch(stores, objective, items):
    with pytest.raises(InputError, match=f"found {items}; expected at least one batch of 24"):
        made(stores, objective, batch_size=24)


def test_batches_that_do_not_divide(stores):
    with pytest.raises(UsageError, match="--batch-size 6 does not divide among 4 processes"):
        made(stores, MLM, world=4)
