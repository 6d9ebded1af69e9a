import pytest
import torch
from torch import nn

from denserk.modeling import lexical_head
from denserk.modeling.architectures import HeadParts
from denserk.modeling.lexical_aggregation import WEIGHT_RULES, aggregate
from denserk.modeling.lexical_head import LexicalHead, vocabulary_blocks
from denserk.modeling.packed_linear import unavailable
from denserk.modeling.slice_layout import SliceLayout
from denserk.settings.encoding import AggKind, AggLayout, TermWeight

HIDDEN, VOCABULARY = 16, 75
MASK = torch.arange(9) < torch.tensor([[9], [1], [4], [6], [3]])
LAYOUTS = {
    "star": SliceLayout.build(VOCABULARY, 10, AggKind.STAR, AggLayout.STRIDED, 0),
    "plus": SliceLayout.build(VOCABULARY, 10, AggKind.PLUS, AggLayout.STRIDED, 0),
    "paired": SliceLayout.build(VOCABULARY, 10, AggKind.PLUS, AggLayout.PAIRED, 0),
    "random": SliceLayout.build(VOCABULARY, 10, AggKind.STAR, AggLayout.RANDOM, 5),
    "dropped": SliceLayout(VOCABULARY, 10, AggKind.STAR, 20, dropped=15, appended=0),
    "wide": SliceLayout.build(VOCABULARY, 40, AggKind.STAR, AggLayout.STRIDED, 0),
}
PRECISIONS = [
    pytest.param(
        dtype,
        marks=pytest.mark.skipif(unavailable(dtype) is not None, reason=str(unavailable(dtype))),
    )
    for dtype in (torch.float32, torch.bfloat16)
]


def make_parts(scale=1.0, shift=0.0):
    torch.manual_seed(2)
    parts = HeadParts(
        nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY)
    )
    with torch.no_grad():
        parts.decoder.weight.mul_(scale)
        parts.decoder.bias.add_(shift)
    return parts


def literal(parts, states, weights, layout):
    hidden = parts.norm(nn.functional.gelu(parts.dense(states)))
    return layout.halves(aggregate(parts.decoder(hidden), weights, MASK))


@pytest.fixture(autouse=True)
def few_columns(monkeypatch):
    monkeypatch.setattr(lexical_head, "COLUMNS", 40)
    monkeypatch.setattr(lexical_head, "ROWS", 7)


@pytest.mark.parametrize("rule", [TermWeight.CLAMP, TermWeight.ABS, TermWeight.ONE])
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", PRECISIONS)
@torch.inference_mode()
def test_it_is_the_literal_form(dtype, name, rule):
    parts, layout = make_parts(4), LAYOUTS[name]
    states = torch.randn(*MASK.shape, HIDDEN)
    weights = WEIGHT_RULES[rule](torch.randn(MASK.shape) + 0.2)
    expected = literal(parts, states, weights, layout)
    found = LexicalHead(parts, layout, dtype).halves(states, weights, MASK)
    assert found.dtype is torch.float32
    rtol, atol = (1e-5, 1e-7) if dtype is torch.float32 else (0.1, 0.01)
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("shift", [-200.0, 200.0])
@torch.inference_mode()
def test_logits_far_from_zero_do_not_overflow(shift):
    parts, layout = make_parts(shift=shift), LAYOUTS["star"]
    states, weights = torch.randn(*MASK.shape, HIDDEN), torch.rand(MASK.shape)
    found = LexicalHead(parts, layout, torch.float32).halves(states, weights, MASK)
    expected = literal(parts, states, weights, layout)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)  # 200 costs two digits


@torch.inference_mode()
def test_a_text_without_a_positive_weight_is_zero():
    head = LexicalHead(make_parts(), LAYOUTS["star"], torch.float32)
    folded = head(torch.randn(*MASK.shape, HIDDEN), torch.zeros(MASK.shape), MASK)
    assert folded.tolist() == [[0.0] * 10] * 5
    assert not folded.signbit().any()


@pytest.mark.parametrize("name", LAYOUTS)
def test_blocks_hold_every_id_once_and_whole_rounds(name):
    layout = LAYOUTS[name]
    blocks = vocabulary_blocks(make_parts(), layout, torch.float32)
    biases = [block.logits.bias for block in blocks]
    widths = [len(bias) for bias in biases if bias is not None]
    assert sum(widths) == VOCABULARY + layout.appended
    assert sum(b.rounds for b in blocks) * layout.modulus + layout.dropped == sum(widths)
    appended = [int(bias.isinf().sum()) for bias in biases if bias is not None]
    assert sum(appended) == layout.appended
