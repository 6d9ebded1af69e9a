"""Dropout and attention in bfloat16 on a CPU, beside torch's own and float32."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from denserk.config.encoding import Dtype
from denserk.training.cpu_dropout import (
    AttentionWithDropout,
    Dropout,
    cpu_bfloat16_autocast,
    random_keep_bits,
)
from denserk.training.trainer import Trainer
from tests.support.faults import Stopped, stopped_at
from tests.support.finetuning import log_of, tune, weights

TEXTS = 3
HEADS = 4
LENGTH = 21
SIZE = 8


@pytest.fixture
def states():
    """Queries, keys, values and a gradient, (B, A, T, D), in the strides of a transformer."""
    torch.manual_seed(3)
    shape = TEXTS, LENGTH, HEADS, SIZE
    return [torch.randn(shape).bfloat16().transpose(1, 2) for _ in range(4)]


@pytest.fixture
def mask():
    """Two texts have padding, whose last one sees nothing in one row: (B, 1, T, T)."""
    mask = torch.ones(TEXTS, 1, LENGTH, LENGTH, dtype=torch.bool)
    mask[1, :, :, 15:] = False
    mask[2, :, :, 2:] = False
    mask[2, :, -1] = False
    return mask


def attention_as_written(query, key, value, mask, keep_bits, probability):
    """Softmax, dropout and sum, one after the other."""
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    attention = scores.masked_fill(~mask, -1e9).softmax(-1).masked_fill(~mask, 0)
    factors = keep_bits.ne(0).to(attention.dtype) / (1 - probability)
    return (attention * factors) @ value


def leaves(tensors, dtype):
    return [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]


def relative_error(tensor, reference):
    difference = tensor.detach().float() - reference.detach()
    return float(difference.norm() / reference.detach().norm())


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_attention_and_its_gradients_are_those_of_float32(states, mask, probability):
    *inputs, gradient = states
    torch.manual_seed(5)
    keep_bits = random_keep_bits((TEXTS, HEADS, LENGTH, LENGTH), probability)
    exact = leaves(inputs, torch.float32)
    query, key, value = exact
    expected = attention_as_written(query, key, value, mask, keep_bits, probability)
    expected.backward(gradient.float())
    fast = leaves(inputs, torch.bfloat16)
    query, key, value = fast
    torch.manual_seed(5)
    with cpu_bfloat16_autocast():
        attended = F.scaled_dot_product_attention(query, key, value, mask, probability)
    assert type(attended.grad_fn).__name__ == "AttentionWithDropoutBackward"
    attended.backward(gradient)
    assert relative_error(attended, expected) < 0.01
    for fast_input, exact_input in zip(fast, exact, strict=True):
        assert relative_error(fast_input.grad, exact_input.grad) < 0.01


def test_dropout_keeps_the_same_elements_forward_and_backward():
    tensor = torch.ones(400, 500, dtype=torch.bfloat16, requires_grad=True)
    with cpu_bfloat16_autocast():
        dropped = F.dropout(tensor, 0.2)
    dropped.backward(torch.full_like(dropped, 2))
    assert set(dropped.unique().tolist()) == {0, 1.25}
    assert tensor.grad is not None
    assert torch.equal(tensor.grad, 2 * dropped)
    assert float(dropped.detach().float().mean()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("probability", [1e-9, 0.1, 0.5, 0.999])
def test_the_share_of_dropped_elements(probability):
    torch.manual_seed(1)
    keep_bits = random_keep_bits((300, 1001), probability)
    assert set(keep_bits.unique().tolist()) <= {0, -1}
    dropped = keep_bits.eq(0).float()
    assert float(dropped.mean()) == pytest.approx(probability, abs=0.003)
    rows_are_alike = torch.corrcoef(dropped[:2])[0, 1]
    assert not abs(rows_are_alike) > 0.15  # NaN where nothing is dropped


def test_random_numbers_follow_the_state_of_torch():
    torch.manual_seed(7)
    keep_bits = random_keep_bits((50,), 0.5)
    next_keep_bits = random_keep_bits((50,), 0.5)
    torch.manual_seed(7)
    assert torch.equal(random_keep_bits((50,), 0.5), keep_bits)
    assert not torch.equal(keep_bits, next_keep_bits)


def test_checkpointing_drops_the_same_elements_again(states):
    query, key, value, gradient = states

    def encode(query, key, value):
        with cpu_bfloat16_autocast():
            attended = F.scaled_dot_product_attention(query, key, value, dropout_p=0.3)
            return F.dropout(attended, 0.3)

    gradients = []
    for run in (encode, lambda *inputs: checkpoint(encode, *inputs, use_reentrant=False)):
        inputs = leaves([query, key, value], torch.bfloat16)
        torch.manual_seed(2)
        run(*inputs).backward(gradient)
        gradients.append([tensor.grad for tensor in inputs])
    for plain, checkpointed in zip(*gradients, strict=True):
        assert torch.equal(plain, checkpointed)


def test_what_is_not_replaced_is_torchs(states):
    query, key, value, _ = leaves(states, torch.bfloat16)
    attention = F.scaled_dot_product_attention
    scores = torch.zeros(LENGTH, LENGTH)  # an additive mask
    calls = [
        lambda: F.dropout(query.float(), 0.2),
        lambda: F.dropout(query, 0.2, training=False),
        lambda: F.dropout(query, 1.0),
        lambda: attention(query.float(), key.float(), value.float(), scale=0.1),
        lambda: attention(query, key, value),
        lambda: attention(query, key, value, scores.bfloat16(), 0.1),
        lambda: attention(query, key, value, None, 0.1, is_causal=True),
    ]
    for call in calls:
        torch.manual_seed(4)
        with torch.autocast("cpu", torch.bfloat16):
            expected = call()
        torch.manual_seed(4)
        with cpu_bfloat16_autocast():
            assert torch.equal(call(), expected)


@pytest.fixture
def calls(monkeypatch):
    """Count the calls of this module's dropout and attention."""
    counts = {Dropout: 0, AttentionWithDropout: 0}

    def count(function):
        forward = function.forward

        def counted(*arguments):
            counts[function] += 1
            return forward(*arguments)

        monkeypatch.setattr(function, "forward", staticmethod(counted))

    for function in counts:
        count(function)
    return counts


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert"])
def test_a_bfloat16_run_is_resumed_byte_by_byte(tiny, train, tmp_path, monkeypatch, calls, name):
    monkeypatch.setattr("denserk.models.processor.has_bfloat16", lambda: True)
    options = {"dtype": Dtype.BFLOAT16}
    whole = tune(tmp_path / "whole", tiny(name), train, **options)
    assert all(count > 0 for count in calls.values())
    stopped = stopped_at(6, [(Trainer, "training_step")])
    with stopped, pytest.raises(Stopped):
        tune(tmp_path / "cut", tiny(name), train, **options)
    resumed = tune(tmp_path / "cut", tiny(name), train, **options, resume=True)
    assert resumed.first_step == 4
    assert resumed.loss == whole.loss
    assert log_of(tmp_path / "cut") == log_of(tmp_path / "whole")
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")


@pytest.mark.parametrize("options", [{}, {"dtype": Dtype.BFLOAT16, "gradient_checkpointing": True}])
def test_float32_and_gradient_checkpointing_are_torchs(tiny, train, tmp_path, calls, options):
    tune(tmp_path / "out", tiny("bert"), train, max_steps=2, **options)
    assert set(calls.values()) == {0}
