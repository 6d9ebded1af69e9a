import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from denserk.config.encoding import PairSettings, TextSettings
from denserk.config.training import SamplingSettings
from denserk.data.pairs import PairJoiner, Template
from denserk.data.tokenization import TextTokenizer
from denserk.data.training_batches import PairTrainingBatches, TrainingBatches
from denserk.data.training_data import prepare
from denserk.errors import UsageError
from denserk.records import Passage, Query
from tests.conftest import VOCABULARY, WORDS
from tests.data.conftest import inline
from tests.tiny_models import RERANKERS, tiny_tokenizer

TOKENIZERS = {kind: tiny_tokenizer(kind, VOCABULARY) for kind in RERANKERS}
TEXTS = st.lists(st.sampled_from([*WORDS, "boats", "?"]), min_size=1, max_size=20).map(" ".join)
LONG = TextSettings(query_max_length=64, passage_max_length=64)


def joined(kind, query, passage, text=LONG, limit=None, token_types=True):
    tokenizer = TOKENIZERS[kind]
    joiner = PairJoiner(tokenizer, text, PairSettings(limit, token_types))
    ids = TextTokenizer(tokenizer, text)
    [first], [second] = ids.queries([Query("q", query)]), ids.passages([Passage("d", passage)])
    return joiner, joiner.join(first, second)


def transformers_own(kind, query, passage, limit):
    tokenizer = TOKENIZERS[kind]
    truncation = {"truncation": "only_second", "max_length": limit}
    return tokenizer(query, passage, **truncation, return_token_type_ids=True)


@given(query=TEXTS, passage=TEXTS, kind=st.sampled_from(RERANKERS))
def test_a_pair_is_the_tokenizer_s_own(query, passage, kind):
    joiner, pair = joined(kind, query, passage)
    expected = transformers_own(kind, query, passage, None)
    assert pair.ids.tolist() == expected["input_ids"]
    types = joiner.batch([pair]).token_types
    assert types is not None
    assert types.tolist() == [expected["token_type_ids"]]


def test_empty_texts_leave_the_separators():
    _, pair = joined("bert", "", "")
    assert (pair.ids.tolist(), pair.boundary) == ([2, 3, 3], 2)


@pytest.mark.parametrize("kind", RERANKERS)
@pytest.mark.parametrize("limit", [9, 10, 14, 40])
def test_the_passage_is_cut_to_the_joint_limit(kind, limit):
    query, passage = "the cat and", " ".join(WORDS[:20])
    _, pair = joined(kind, query, passage, TextSettings(query_max_length=5), limit)
    assert pair.ids.tolist() == transformers_own(kind, query, passage, limit)["input_ids"]


def test_each_text_is_cut_to_its_own_limit_first():
    text = TextSettings(query_max_length=5, passage_max_length=6)
    _, pair = joined("bert", "the cat and the dog", "a red boat on blue water", text)
    expected = TOKENIZERS["bert"]("the cat and", "a red boat on")["input_ids"]
    assert pair.ids.tolist() == expected


def test_a_limit_without_room_for_a_passage():
    tokenizer, text = TOKENIZERS["roberta"], TextSettings(query_max_length=8)
    PairJoiner(tokenizer, text, PairSettings(max_length=11))
    with pytest.raises(UsageError, match="--pair-max-length 10 leaves no room") as refusal:
        PairJoiner(tokenizer, text, PairSettings(max_length=10))
    assert refusal.value.hint == "at least 11, or a smaller --query-max-length"


def test_without_a_limit_of_its_own_a_pair_is_as_long_as_its_texts_may_be():
    joiner, _ = joined("bert", "cat", "dog", TextSettings())
    assert joiner.limit == 32 + 128 - 1
    roberta, _ = joined("roberta", "cat", "dog", TextSettings())
    assert roberta.limit == 32 + 128


def test_templates():
    assert Template.of(TOKENIZERS["bert"]) == Template((2,), (3,), (3,), 1, 1, passage_type=1)
    assert Template.of(TOKENIZERS["roberta"]) == Template((0,), (2, 2), (2,), 1, 1, passage_type=0)


def test_a_batch_is_padded_and_its_parts_are_as_wide_as_they_need():
    joiner, short = joined("bert", "cat", "dog")
    _, long = joined("bert", "cat", "the old river runs")
    batch = joiner.batch([short, short, long])
    assert batch.tokens.input_ids.shape == (3, len(long.ids))
    assert batch.tokens.attention_mask.sum(1).tolist() == [5, 5, 8]
    assert batch.token_types is not None
    assert batch.token_types[0].tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    part = batch.part(0, 2)
    assert part.tokens.input_ids.tolist() == [short.ids.tolist()] * 2
    assert part.token_types is not None
    assert part.token_types.tolist() == [[0, 0, 0, 1, 1]] * 2
    silent, _ = joined("bert", "cat", "dog", token_types=False)
    assert silent.batch([short]).token_types is None
    assert silent.batch([short]).to("cpu").part(0, 1).token_types is None


def test_training_pairs_are_those_of_the_training_batches(tokenizer, tmp_path, write):
    files = [write([inline(query, 1, 3) for query in range(5)])]
    store = prepare(files, tmp_path / "store", tokenizer, tokenizer)
    batches = TrainingBatches(store, SamplingSettings(group_size=3), 2, epochs=2)
    joiner = PairJoiner(TOKENIZERS["bert"], tokenizer.settings, PairSettings(max_length=20))
    pairs = PairTrainingBatches(batches, joiner)
    assert len(pairs) == len(batches) == 4
    for step in range(4):
        found, given = pairs[step].to("cpu"), batches[step]
        assert found.groups.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert found.items.equal(given.items)
        assert found.pairs.tokens.input_ids.shape[0] == 6
        for row in range(6):
            query, passage = (
                side.input_ids[i][side.attention_mask[i]].numpy()
                for side, i in ((given.queries, row // 3), (given.passages, row))
            )
            mask = found.pairs.tokens.attention_mask[row]
            ids = found.pairs.tokens.input_ids[row][mask].numpy()
            np.testing.assert_array_equal(ids, joiner.join(query, passage).ids)
    with pytest.raises(IndexError):
        pairs[4]


def test_masks_are_boolean():
    joiner, pair = joined("bert", "cat", "dog")
    assert joiner.batch([pair]).tokens.attention_mask.dtype == torch.bool
