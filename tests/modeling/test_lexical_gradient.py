import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from denserk.modeling.lexical_aggregation import aggregate
from denserk.modeling.lexical_gradient import aggregate_packed


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(2, 9), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_maxima_and_gradients_are_those_of_the_literal_form(counts, vocabulary, seed):
    torch.manual_seed(seed)
    shape = (len(counts), max(counts))
    mask = torch.arange(shape[1]) < torch.tensor(counts).unsqueeze(1)
    logits = torch.randn(*shape, vocabulary, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    literal = aggregate(logits, weights, mask)
    packed = aggregate_packed(logits[mask], weights[mask], counts)
    torch.testing.assert_close(packed, literal, rtol=0, atol=0)
    towards = torch.randn_like(literal)
    expected = torch.autograd.grad(literal, (logits, weights), towards)
    found = torch.autograd.grad(packed, (logits, weights), towards)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_numeric_gradient():
    torch.manual_seed(0)
    logits = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z, w: aggregate_packed(z, w, [2, 3]), (logits, weights))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_precision_of_the_gradient_is_that_of_the_logits(dtype):
    logits = torch.randn(3, 5).to(dtype).requires_grad_()
    maxima = aggregate_packed(logits, torch.ones(3), [3])
    maxima.sum().backward()
    assert maxima.dtype == torch.float32
    assert logits.grad is not None
    assert logits.grad.dtype == dtype


def test_only_the_first_of_equal_winners_learns():
    logits = torch.zeros(2, 3, requires_grad=True)
    weights = torch.ones(2, requires_grad=True)
    aggregate_packed(logits, weights, [2]).sum().backward()
    assert weights.grad is not None
    assert weights.grad.tolist() == [1.0, 0.0]
