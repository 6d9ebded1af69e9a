from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from denserk.models import packed_linear
from denserk.models.packed_linear import OPERATORS, pack, unavailable

DTYPES = [
    pytest.param(
        dtype, marks=pytest.mark.skipif(unavailable(dtype) is not None, reason="not on this CPU")
    )
    for dtype in (torch.float32, torch.bfloat16)
]


@pytest.fixture(autouse=True)
def probed_afresh():
    unavailable.cache_clear()
    yield
    unavailable.cache_clear()


def drawn(*shapes, dtype):
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 7), (5, 7), (2, 3, 7), (130, 7)])
@torch.inference_mode()
def test_products_are_those_of_a_linear_layer(dtype, shape):
    inputs, weight, bias = drawn(shape, (11, 7), (11,), dtype=dtype)
    wide = F.linear(inputs.float(), weight.float(), bias.float())
    near = 1e-5 if dtype is torch.float32 else 2e-2
    layer = pack(weight, bias, dtype)
    assert layer(inputs).shape == (*shape[:-1], 11)
    assert layer(inputs).dtype is layer.dtype is dtype
    torch.testing.assert_close(layer(inputs).float(), wide, rtol=near, atol=near)
    gelu = pack(weight, bias, dtype, activation="gelu")
    torch.testing.assert_close(gelu(inputs).float(), F.gelu(wide), rtol=near, atol=near)
    torch.testing.assert_close(
        pack(weight, None, dtype)(inputs).float(), wide - bias, rtol=near, atol=near
    )
    (other,) = drawn((*shape[:-1], 11), dtype=dtype)
    torch.testing.assert_close(
        layer.added(inputs, other).float(), wide + other, rtol=near, atol=near
    )


@torch.inference_mode()
def test_a_packed_layer_stands_on_its_own():
    if unavailable(torch.float32):
        pytest.skip("not on this CPU")
    inputs, weight, bias = drawn((3, 7), (11, 7), (11,), dtype=torch.float32)
    layer = pack(weight, bias, torch.float32)
    expected = layer(inputs)
    weight.zero_()
    bias.zero_()
    assert torch.equal(layer(inputs), expected)


def test_what_cannot_be_packed_says_why(monkeypatch):
    assert unavailable(torch.float16) == "no packed weights for float16"
    monkeypatch.setattr(packed_linear, "has_bfloat16", lambda: False)
    assert unavailable(torch.bfloat16) in (
        "the processor has no bfloat16 instructions (float32 is faster on it)",
        "torch was built without oneDNN",
    )


def test_a_missing_operator_is_named(monkeypatch):
    some = SimpleNamespace(_reorder_linear_weight=OPERATORS._reorder_linear_weight)
    monkeypatch.setattr(packed_linear, "OPERATORS", some)
    assert str(unavailable(torch.float32)).endswith("has no _linear_pointwise")


@pytest.mark.parametrize(
    ("off", "reason"), [(1.001, "is off by"), (float("nan"), "is off by nan"), (None, "fails: no")]
)
def test_an_operator_that_disagrees_is_not_used(monkeypatch, off, reason):
    class Disagreeing:
        @staticmethod
        def __call__(inputs, weight, bias, *rest):
            if off is None:
                raise RuntimeError("no such kernel")
            return F.linear(inputs, weight, bias) * off

        @staticmethod
        def binary(inputs, other, weight, bias, kind):
            return F.linear(inputs, weight, bias) + other

    operators = SimpleNamespace(
        _reorder_linear_weight=lambda weight, rows: weight, _linear_pointwise=Disagreeing()
    )
    monkeypatch.setattr(packed_linear, "OPERATORS", operators)
    assert reason in str(unavailable(torch.float32))
