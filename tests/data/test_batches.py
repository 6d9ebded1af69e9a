import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from denserk.data.batches import by_length, pad

LENGTHS = st.lists(st.integers(2, 40), max_size=60)


@given(LENGTHS, st.integers(1, 100), st.none() | st.integers(1, 9))
def test_batches_hold_every_text_once_within_their_budget(lengths, budget, cap):
    batches = list(by_length(lengths, budget, cap))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or max(lengths[i] for i in batch) * len(batch) <= budget
        assert cap is None or len(batch) <= cap
    longest = [lengths[batch[0]] for batch in batches]
    assert longest == sorted(longest, reverse=True)


@given(LENGTHS, st.integers(40, 400))
def test_a_batch_ends_only_when_the_next_text_does_not_fit(lengths, budget):
    batches = list(by_length(lengths, budget))
    for batch in batches[:-1]:
        assert (len(batch) + 1) * lengths[batch[0]] > budget


def test_a_batch_is_as_wide_as_its_longest_text():
    batch = pad([[7], [8, 9]], pad_id=3)
    assert batch.input_ids.tolist() == [[7, 3], [8, 9]]
    assert batch.attention_mask.tolist() == [[True, False], [True, True]]
    assert [str(t.dtype) for t in batch] == ["torch.int64", "torch.bool"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_batch_moves_to_a_device():
    assert pad([[1]], 0).to("cuda").input_ids.is_cuda
