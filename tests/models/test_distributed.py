"""What processes exchange: gradients in buckets."""

from itertools import chain, pairwise
from unittest.mock import patch

import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.multiprocessing.spawn import spawn

from denserk.models import distributed
from denserk.models.distributed import BUCKET_BYTES, buckets_of, sum_gradients

DTYPES = (torch.float32, torch.bfloat16, torch.float64)
TENSORS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from(DTYPES)))


@given(TENSORS, st.integers(0, 100))
def test_a_bucket_has_one_dtype_and_keeps_to_its_size_and_order(sizes_and_dtypes, most_bytes):
    tensors = [torch.empty(size, dtype=dtype) for size, dtype in sizes_and_dtypes]
    buckets = list(buckets_of(tensors, most_bytes))
    for bucket in buckets:
        assert {tensor.dtype for tensor in bucket} == {bucket[0].dtype}
        assert len(bucket) == 1 or bytes_of(bucket) <= most_bytes
    for dtype in DTYPES:
        buckets_of_dtype = [bucket for bucket in buckets if bucket[0].dtype == dtype]
        expected = [id(tensor) for tensor in tensors if tensor.dtype == dtype]
        assert [id(tensor) for tensor in chain(*buckets_of_dtype)] == expected
        for bucket, next_bucket in pairwise(buckets_of_dtype):
            assert bytes_of([*bucket, next_bucket[0]]) > most_bytes


def bytes_of(tensors):
    return sum(tensor.nbytes for tensor in tensors)


SHAPES = ((30, 7), (), (0, 4), (400,), (5, 2, 3), (64,), (9, 11), (3,), (8, 8), (2,))
PROCESSES = 2
SMALL_BUCKET = 600  # bytes; a tensor of 400 numbers is larger


def parameters_of(rank: int) -> list[nn.Parameter]:
    """Parameters of several dtypes; some lack a gradient in one process, some in all."""
    generator = torch.Generator().manual_seed(rank)
    parameters = []
    for number, shape in enumerate(SHAPES * 3):
        dtype = DTYPES[number % 7 % 3]
        parameter = nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=number != 8)
        if number % 5 != rank and number % 6 != 4 and number != 8:
            gradient = torch.randn(shape, generator=generator).to(dtype)
            if gradient.dim() == 2:  # a gradient need not lie in memory as it is read
                gradient = gradient.T.contiguous().T
            parameter.grad = gradient
        parameters.append(parameter)
    return parameters


def sum_in_a_process(rank: int, meeting: str, out: str) -> None:
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=PROCESSES)
    calls_and_sums = {}
    for size in (SMALL_BUCKET, BUCKET_BYTES):
        parameters = parameters_of(rank)
        with (
            patch.object(distributed, "BUCKET_BYTES", size),
            patch.object(dist, "all_reduce", side_effect=dist.all_reduce) as calls,
        ):
            sum_gradients(parameters)
        sums = [parameter.grad for parameter in parameters]
        calls_and_sums[size] = (calls.call_count, sums)
    torch.save(calls_and_sums, f"{out}-{rank}")
    dist.destroy_process_group()


def test_gradients_in_buckets_are_their_plain_sum(tmp_path):
    spawn(sum_in_a_process, (str(tmp_path / "meeting"), str(tmp_path / "sums")), PROCESSES)
    gradients_of_0 = [parameter.grad for parameter in parameters_of(0)]
    gradients_of_1 = [parameter.grad for parameter in parameters_of(1)]
    gradients = list(zip(gradients_of_0, gradients_of_1, strict=True))
    assert (None, None) in gradients
    assert any(of_0 is None and of_1 is not None for of_0, of_1 in gradients)
    expected = [plain_sum(*both) for both in gradients]
    for rank in range(PROCESSES):
        calls_and_sums = torch.load(tmp_path / f"sums-{rank}")
        calls_of_small_buckets, sums_of_small_buckets = calls_and_sums[SMALL_BUCKET]
        calls, sums = calls_and_sums[BUCKET_BYTES]
        assert calls == 1 + len(DTYPES)  # one tells which gradients there are
        assert calls < calls_of_small_buckets < len(SHAPES * 3)
        assert_equal(sums, expected)
        assert_equal(sums_of_small_buckets, expected)


def plain_sum(of_0, of_1):
    """The sum of a parameter's gradients; None if both processes lack one."""
    if of_0 is None or of_1 is None:
        return of_1 if of_0 is None else of_0
    return of_0 + of_1


def assert_equal(sums, expected_sums):
    for total, expected in zip(sums, expected_sums, strict=True):
        if expected is None:
            assert total is None
        else:
            assert total.dtype == expected.dtype
            assert torch.equal(total, expected)
