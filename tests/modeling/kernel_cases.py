"""The kernels of Aggretriever's lexical part beside its literal form, autograd through it included.

Run by `test_lexical_kernels.py` in a process of its own, where Triton interprets kernels on the
CPU; on a GPU the same cases run compiled: `TRITON_INTERPRET=0 DEVICE=cuda pytest` on this file.
"""

import os
from itertools import pairwise
from typing import Any

import pytest
import torch

from denserk.data.batches import pad
from denserk.modeling import fused_aggregation
from denserk.modeling.architectures import ARCHITECTURES
from denserk.modeling.backbone import Backbone
from denserk.modeling.encoder import Encoder
from denserk.modeling.fused_aggregation import fused_aggregate
from denserk.modeling.gpu_paths import skip_padding, take_kernels
from denserk.modeling.kernel_trial import kernels_problem
from denserk.modeling.lexical_aggregation import WEIGHT_RULES, aggregate
from denserk.modeling.slice_layout import SliceLayout
from denserk.settings.encoding import (
    AggKind,
    AggLayout,
    Representation,
    RepresentationSettings,
    TermWeight,
)
from tests.tiny_models import tiny_config

fused: Any = fused_aggregate
DEVICE = torch.device(os.environ.get("DEVICE", "cpu"))
VOCABULARY, HIDDEN = 83, 5
OFFSETS = (0, 6, 7, 10, 12)
"""Four texts, one of a single position."""
LAYOUTS = {
    "none": None,
    "star": (AggKind.STAR, AggLayout.STRIDED),
    "plus": (AggKind.PLUS, AggLayout.STRIDED),
    "paired": (AggKind.PLUS, AggLayout.PAIRED),
    "random": (AggKind.STAR, AggLayout.RANDOM),
    "random-plus": (AggKind.PLUS, AggLayout.RANDOM),
}


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Tiles smaller than the inputs, so that every loop goes round."""
    monkeypatch.setattr(fused_aggregation, "ROW_STEP", {"width": 64})
    monkeypatch.setattr(fused_aggregation, "TILE", {"width": 32, "tall": 4})


def layout_of(name, vocabulary=VOCABULARY, dimension=10):
    kinds = LAYOUTS[name]
    return None if kinds is None else SliceLayout.build(vocabulary, dimension, *kinds, seed=3)


def inputs(
    rule=TermWeight.SIGNED, dtype=torch.float64, vocabulary=VOCABULARY, offsets=OFFSETS
) -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(1)
    count = offsets[-1]
    drawn = [  # products without any rounding, so that what ties does so on every processor
        torch.randn(count, HIDDEN, dtype=dtype).mul(1024).round().div(1024),
        torch.randn(vocabulary, HIDDEN, dtype=dtype).mul(1024).round().div(1024),
        torch.randn(vocabulary, dtype=dtype).mul(1024).round().div(1024),
        WEIGHT_RULES[rule](torch.randn(count, dtype=dtype)),
    ]
    states, weight, bias, terms = (tensor.to(DEVICE).requires_grad_() for tensor in drawn)
    return states, weight, bias, terms


def literally(states, weight, bias, terms, offsets, layout):
    texts = [slice(*ends) for ends in pairwise(offsets)]
    logits = states @ weight.t() + bias
    best = torch.cat(
        [
            aggregate(logits[t][None], terms[t][None], torch.ones_like(terms[t][None]) > 0)
            for t in texts
        ]
    )
    return best if layout is None else layout.fold(best)


literal: Any = literally


def assert_alike(tensors, layout, offsets=OFFSETS, rows=8, **close):
    expected = literal(*tensors, offsets=offsets, layout=layout)
    found = fused(*tensors, offsets=offsets, layout=layout, rows=rows)
    torch.testing.assert_close(found, expected, **close)
    target = torch.randn(expected.shape, dtype=expected.dtype, device=DEVICE)
    for got, wanted in zip(
        torch.autograd.grad(found, tensors, target),
        torch.autograd.grad(expected, tensors, target),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, **close)


@pytest.mark.parametrize(
    ("name", "rule"),
    [*((name, TermWeight.SIGNED) for name in LAYOUTS), *(("star", rule) for rule in WEIGHT_RULES)],
)
def test_vectors_and_gradients_are_the_literal_ones(name, rule):
    assert_alike(inputs(rule), layout_of(name))


@pytest.mark.parametrize("rows", [1, 7, 100])
def test_chunks_leave_no_trace(rows):
    assert_alike(inputs(), layout_of("star"), rows=rows)


@pytest.mark.parametrize("name", ["none", "star"])
def test_in_float32(name):
    assert_alike(inputs(dtype=torch.float32), layout_of(name), rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("vocabulary", [64, 63, 17])
def test_vocabularies_that_fill_their_rows_or_not_even_the_slices(vocabulary):
    assert_alike(inputs(vocabulary=vocabulary), layout_of("star", vocabulary))


def test_first_entries_of_the_vocabulary_may_be_dropped():
    assert_alike(inputs(), SliceLayout(83, 10, AggKind.PLUS, modulus=10, dropped=3, appended=0))


def test_tokens_that_tie_share_their_gradient():
    states, weight, bias, terms = inputs()
    with torch.no_grad():
        weight[40:80], bias[40:80] = weight[:40].clone(), bias[:40].clone()  # the slices of each
    assert_alike((states, weight, bias, terms), layout_of("star"))


def test_of_positions_that_tie_the_first_gets_the_gradient():
    tensors = inputs(TermWeight.ABS)
    states, _, _, terms = tensors
    with torch.no_grad():
        states[1:4], terms[1:4] = states[1].clone(), terms[1].clone()
    layout, target = layout_of("star"), torch.randn(4, 10, dtype=torch.float64, device=DEVICE)
    found, expected = (
        torch.autograd.grad(form(*tensors, OFFSETS, layout), tensors, target)
        for form in (fused, literal)
    )
    for got, wanted in zip(found[1:3], expected[1:3], strict=True):
        torch.testing.assert_close(got, wanted)
    for part in (0, 3):
        torch.testing.assert_close(found[part][1:4].sum(0), expected[part][1:4].sum(0))
        assert (found[part][2:4] == 0).all()


def test_a_text_of_weights_that_are_all_zero_is_zero():
    states, weight, bias, terms = (tensor.detach() for tensor in inputs())
    terms[:6] = 0
    assert (fused(states, weight, bias, terms, OFFSETS, layout_of("star"))[0] == 0).all()


def test_gradients_only_where_they_are_asked():
    states, weight, bias, terms = inputs()
    vectors = fused(states, weight.detach(), None, terms, OFFSETS, layout_of("plus"))
    vectors.sum().backward()
    assert states.grad is not None
    assert terms.grad is not None
    assert weight.grad is None is bias.grad


def test_no_texts_are_no_vectors():
    states, weight, bias, terms = inputs(offsets=(0,))
    assert fused(states, weight, bias, terms, (0,), layout_of("star")).shape == (0, 10)


def test_finite_differences():
    assert torch.autograd.gradcheck(
        lambda *tensors: fused(*tensors, offsets=(0, 2, 3), layout=layout_of("star", 7, 2)),
        inputs(vocabulary=7, offsets=(0, 2, 3)),
    )


@pytest.mark.parametrize("master", [torch.bfloat16, torch.float32])
def test_products_in_16_bits(master):
    states, *others = inputs(dtype=torch.float32)
    states = states.detach().to(master).requires_grad_()
    tensors = (states, *others)
    expected = literal(states.float(), *others, offsets=OFFSETS, layout=layout_of("star"))
    with torch.autocast(DEVICE.type, torch.bfloat16):
        found = fused(*tensors, offsets=OFFSETS, layout=layout_of("star"))
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.02)
    gradients = torch.autograd.grad(found.sum(), tensors)
    assert [g.dtype for g in gradients] == [master, *[torch.float32] * 3]
    wanted = torch.autograd.grad(expected.sum(), tensors)
    for got, want in zip(gradients, wanted, strict=True):
        assert (got - want).norm() < 0.1 * want.norm()


@pytest.mark.parametrize(
    "chosen",
    [
        {"agg_dim": 10, "cls_dim": 4},
        {"agg_dim": 10, "cls_dim": 4, "term_weight": TermWeight.ONE},
        {"agg_kind": AggKind.NONE},
        {"agg_kind": AggKind.LINEAR, "agg_dim": 6, "cls_dim": 0},
    ],
    ids=["star", "one", "none", "linear"],
)
def test_encoders_on_kernels_are_the_plain_ones(chosen):
    torch.manual_seed(2)
    settings = RepresentationSettings(Representation.AGG, **chosen)
    backbone = Backbone(ARCHITECTURES["bert"], tiny_config("bert", VOCABULARY), with_head=True)
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    encoder = Encoder(backbone.float(), settings).eval().to(DEVICE)
    batch = pad([[5, 6, 7, 8, 9], [10, 11], [12, 13, 14]], 0).to(DEVICE)
    parameters = [p for p in encoder.parameters() if p.requires_grad]
    plain = encoder(batch)
    assert skip_padding(backbone) is None is take_kernels(encoder)
    quick = encoder(batch)
    torch.testing.assert_close(quick, plain, rtol=1e-3, atol=1e-4)
    with torch.inference_mode():
        torch.testing.assert_close(encoder(batch), plain, rtol=1e-3, atol=1e-4)
    found, expected = (
        torch.autograd.grad(vectors.sin().sum(), parameters, allow_unused=True)
        for vectors in (quick, plain)
    )
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-3)


def test_the_trial_trusts_them():
    assert kernels_problem(DEVICE) is None
