import pytest
import torch

from denserk.data.batches import pad
from denserk.modeling.unpadded_tokens import Packing, move


@pytest.mark.parametrize("lengths", [(3, 1, 2), (2, 2), (4,), (0, 2), ()])
def test_packing_keeps_real_tokens_in_order_and_puts_them_back(lengths):
    width = max(lengths, default=0)
    mask = torch.arange(width) < torch.tensor(lengths, dtype=torch.int64)[:, None]
    padded = torch.randn(len(lengths), width, 5)
    packing = Packing.of(mask)
    assert packing.lengths == lengths
    assert packing.pack(padded).equal(padded[mask])
    assert packing.unpack(packing.pack(padded)).equal(padded.masked_fill(~mask[..., None], 0))
    assert packing.starts.tolist() == list(packing.offsets)
    assert packing.total == sum(lengths)


def test_a_mask_is_read_once_and_before_it_moves():
    batch = pad([[1, 2, 3], [4]], 0)
    packing = Packing.of(batch.attention_mask)
    assert Packing.of(batch.attention_mask) is packing
    assert move(batch, torch.device("cpu")).attention_mask is batch.attention_mask
    moved = move(batch, torch.device("meta"))  # a device that nothing can be read from
    assert Packing.of(moved.attention_mask).lengths == (3, 1)
    assert Packing.of(moved.attention_mask).device.type == "meta"


def test_gradients_pass_through():
    packing = Packing((2, 1), 2, torch.device("cpu"))
    padded = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: packing.unpack(packing.pack(x)), padded)


def test_a_mask_seen_in_inference_may_be_trained_on():
    mask = torch.tensor([[True, True], [True, False]])
    padded = torch.randn(2, 2, 3, requires_grad=True)
    with torch.inference_mode():
        Packing.of(mask).pack(padded)
    Packing.of(mask).pack(padded).sum().backward()
    assert padded.grad is not None
    assert padded.grad.sum(-1).tolist() == [[3, 3], [3, 0]]


def test_without_padding_nothing_is_moved():
    padded = torch.randn(2, 3, 4)
    packing = Packing((3, 3), 3, torch.device("cpu"))
    assert packing.pack(padded).data_ptr() == padded.data_ptr()


def test_without_the_first_token():
    packing = Packing((3, 1), 3, torch.device("cpu")).without_first
    padded = torch.arange(6).view(2, 3, 1)
    assert packing.pack(padded[:, 1:]).flatten().tolist() == [1, 2]
    assert packing.offsets == (0, 2, 2)
