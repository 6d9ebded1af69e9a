"""Which device computes; see also `test_text_encoder` for names that are rejected."""

from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.multiprocessing.spawn import spawn

from denserk.config.encoding import ComputeSettings
from denserk.models import devices
from denserk.models.devices import BUCKET_BYTES, buckets_of, prepare_device, sum_gradients


@pytest.fixture
def current(monkeypatch):
    """The numbers of the GPUs that become current, on a machine that shows two."""
    numbers: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", numbers.append)
    return numbers


@pytest.mark.parametrize(
    ("name", "numbers"), [("cuda:1", [1]), ("cuda", [0]), ("auto", [0]), ("cpu", [])]
)
def test_no_other_gpu_than_the_chosen_one_is_touched(current, name, numbers):
    prepare_device(ComputeSettings(device=name))
    assert current == numbers


KINDS = (torch.float32, torch.bfloat16, torch.float64)
TENSORS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from(KINDS)))


@given(TENSORS, st.integers(0, 100))
def test_a_bucket_has_one_dtype_and_keeps_to_its_size_and_order(tensors, most_bytes):
    made = [torch.empty(size, dtype=dtype) for size, dtype in tensors]
    buckets = [*buckets_of(made, most_bytes)]
    for dtype in KINDS:
        of_dtype = [bucket for bucket in buckets if bucket[0].dtype == dtype]
        found = [id(tensor) for bucket in of_dtype for tensor in bucket]
        assert found == [id(tensor) for tensor in made if tensor.dtype == dtype]
        for bucket, following in pairwise(of_dtype):
            assert sum(tensor.nbytes for tensor in [*bucket, following[0]]) > most_bytes
    for bucket in buckets:
        assert {tensor.dtype for tensor in bucket} == {bucket[0].dtype}
        assert len(bucket) == 1 or sum(tensor.nbytes for tensor in bucket) <= most_bytes


SHAPES = ((30, 7), (), (0, 4), (400,), (5, 2, 3), (64,), (9, 11), (3,), (8, 8), (2,))
PROCESSES = 2
SMALL_BUCKET = 600  # bytes; a tensor of 400 numbers is larger


def parameters_of(rank: int) -> list[nn.Parameter]:
    """Parameters of several dtypes; some lack a gradient in one process, some in all."""
    drawn = torch.Generator().manual_seed(rank)
    parameters = []
    for number, shape in enumerate(SHAPES * 3):
        dtype = KINDS[number % 7 % 3]
        parameter = nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=number != 8)
        if number % 5 != rank and number % 6 != 4 and number != 8:
            gradient = torch.randn(shape, generator=drawn).to(dtype)
            # a gradient need not lie in memory as it is read
            parameter.grad = gradient.T.contiguous().T if gradient.dim() == 2 else gradient
        parameters.append(parameter)
    return parameters


def sum_in_a_process(rank: int, meeting: str, out: str) -> None:
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=PROCESSES)
    found = {}
    for size in (SMALL_BUCKET, BUCKET_BYTES):
        parameters = parameters_of(rank)
        with (
            patch.object(devices, "BUCKET_BYTES", size),
            patch.object(dist, "all_reduce", side_effect=dist.all_reduce) as calls,
        ):
            sum_gradients(parameters)
        found[size] = calls.call_count, [parameter.grad for parameter in parameters]
    torch.save(found, f"{out}-{rank}")
    dist.destroy_process_group()


def test_gradients_in_buckets_are_their_plain_sum(tmp_path):
    spawn(sum_in_a_process, (str(tmp_path / "meeting"), str(tmp_path / "sums")), PROCESSES)
    by_rank = [[parameter.grad for parameter in parameters_of(rank)] for rank in range(PROCESSES)]
    assert any(one is None and other is not None for one, other in zip(*by_rank, strict=True))
    assert (None, None) in zip(*by_rank, strict=True)
    for rank in range(PROCESSES):
        found = torch.load(tmp_path / f"sums-{rank}")
        calls_of_small_buckets, _ = found[SMALL_BUCKET]
        calls, _ = found[BUCKET_BYTES]
        assert calls == 1 + len(KINDS)  # one tells which gradients there are
        assert calls < calls_of_small_buckets < len(SHAPES * 3)
        for _, sums in found.values():
            for one, other, total in zip(*by_rank, sums, strict=True):
                if one is None and other is None:
                    assert total is None
                    continue
                present = [gradient for gradient in (one, other) if gradient is not None]
                expected = torch.stack(present).sum(0) if len(present) == 2 else present[0]
                assert total.dtype == expected.dtype
                assert torch.equal(total, expected)
