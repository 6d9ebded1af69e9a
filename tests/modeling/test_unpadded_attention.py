from typing import Any

import pytest
import torch

from denserk.modeling import unpadded_attention
from denserk.modeling.unpadded_attention import attend, padded_attention
from denserk.modeling.unpadded_tokens import Packing


def literal(query, key, value, packing):
    """`softmax(Q K^T / sqrt(E)) V` of each text and head."""
    parts = []
    for q, k, v in zip(
        *(part.split(list(packing.lengths)) for part in (query, key, value)), strict=True
    ):
        scores = torch.einsum("iae,jae->aij", q, k) / q.shape[-1] ** 0.5
        parts.append(torch.einsum("aij,jae->iae", scores.softmax(-1), v))
    return torch.cat(parts)


def drawn(packing, **kind) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    shape = (3, packing.total, 2, 4)
    query, key, value = (t.requires_grad_() for t in torch.randn(shape, **kind))
    return query, key, value


@pytest.mark.parametrize("lengths", [(3, 1, 5), (2, 2)])
def test_every_text_attends_to_itself_alone(lengths):
    packing = Packing(lengths, max(lengths), torch.device("cpu"))
    leaves = drawn(packing, dtype=torch.float64)
    found, expected = attend(*leaves, packing), literal(*leaves, packing)
    torch.testing.assert_close(found, expected)
    target = torch.randn_like(found)
    for got, wanted in zip(
        torch.autograd.grad(found, leaves, target),
        torch.autograd.grad(expected, leaves, target),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted)


def test_dropout_drops_weights():
    packing = Packing((4, 3), 4, torch.device("cpu"))
    leaves = drawn(packing)
    assert not attend(*leaves, packing, 0.5).equal(attend(*leaves, packing, 0.5))


@pytest.mark.parametrize(
    ("kernel", "kept"),
    [
        (padded_attention, True),
        (lambda *given: padded_attention(*given) * 1.1, False),
        (lambda *given: [][0], False),
    ],
    ids=["agrees", "is off", "fails"],
)
def test_a_kernel_is_taken_where_it_agrees(monkeypatch, kernel, kept):
    monkeypatch.setattr(unpadded_attention, "torch_attention", kernel)
    monkeypatch.setattr(unpadded_attention, "flash_attention", kernel)
    cpu = torch.device("cpu")
    assert unpadded_attention._agrees(kernel, cpu, torch.bfloat16) == kept


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_kernels_of_a_gpu(dtype):
    packing = Packing((77, 1, 128), 128, torch.device("cuda"))
    assert unpadded_attention._kernel(packing.device, dtype, False) is not padded_attention
    query, key, value = (
        torch.randn(packing.total, 12, 64, device="cuda", dtype=dtype) for _ in range(3)
    )
    found = attend(query, key, value, packing).float()
    expected = literal(query.double(), key.double(), value.double(), packing).float()
    assert (found - expected).norm() < 1e-2 * expected.norm()
