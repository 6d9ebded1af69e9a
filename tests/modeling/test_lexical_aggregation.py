import json

import pytest
import torch

from denserk.modeling.lexical_aggregation import (
    WEIGHT_RULES,
    aggregate,
    aggregate_in_blocks,
    aggregate_tokens,
)
from denserk.modeling.slice_layout import SliceLayout
from denserk.settings.encoding import AggKind, AggLayout, TermWeight
from tests import oracles

STAR, PAIRED, STRIDED_PLUS = (
    SliceLayout.build(10, 5, kind, layout, 0)
    for kind, layout in [
        (AggKind.STAR, AggLayout.STRIDED),
        (AggKind.PLUS, AggLayout.PAIRED),
        (AggKind.PLUS, AggLayout.STRIDED),
    ]
)


@pytest.fixture(scope="module")
def example(specs):
    return json.loads((specs / "aggretriever_example.json").read_text())


def scores(logits, weights, rule=TermWeight.CLAMP, mask=None):
    """Both forms, held equal."""
    logits = torch.tensor([logits])
    mask = torch.tensor([[True] * logits.shape[1] if mask is None else mask])
    ruled = WEIGHT_RULES[rule](torch.tensor([weights]))
    literal = aggregate(logits, ruled, mask)
    blocks = aggregate_in_blocks(logits, ruled, mask, lambda states: states, 10, rows=1)
    torch.testing.assert_close(blocks, literal, rtol=0, atol=1e-7)
    return literal


def close(tensor, expected):
    torch.testing.assert_close(tensor, torch.tensor([expected]), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["q", "p"])
def test_the_example_with_and_without_head(example, name):
    text = example["texts"][name]
    v = scores(text["logits"], text["term_weights"])
    close(v, text["v"])
    close(STAR.fold(v), text["agg_star"])
    close(PAIRED.fold(v), text["agg_plus_paired"])
    close(STRIDED_PLUS.fold(v), text["agg_plus_strided"])
    ids, weights = torch.tensor([text["token_ids"]]), torch.tensor([text["term_weights"]])
    bare = aggregate_tokens(ids, weights, torch.tensor([[True, True]]), 10)
    close(bare, text["without_mlm"]["v"])
    close(STAR.fold(bare), text["without_mlm"]["agg_star"])


def test_the_dot_products_of_the_example(example):
    q, p = (scores(t["logits"], t["term_weights"])[0] for t in example["texts"].values())
    expected = example["dot_products"]
    got = {
        "v.v": q @ p,
        "agg_plus_paired": PAIRED.fold(q) @ PAIRED.fold(p),
        "agg_plus_strided": STRIDED_PLUS.fold(q) @ STRIDED_PLUS.fold(p),
        "agg_star": STAR.fold(q) @ STAR.fold(p),
    }
    assert {name: value.item() for name, value in got.items()} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rule", "key"),
    [(TermWeight.CLAMP, "relu"), (TermWeight.SIGNED, "signed"), (TermWeight.ABS, "abs")],
)
def test_a_negative_weight_under_three_readings(example, rule, key):
    case = example["negative_term_weight"]
    v = scores(example["texts"]["p"]["logits"], case["term_weights"], rule)
    close(v, case[key]["v"])
    close(STAR.fold(v), case[key]["agg_star"])


@pytest.mark.parametrize(
    ("rule", "key"), [(TermWeight.CLAMP, "relu"), (TermWeight.SIGNED, "signed_unpadded")]
)
def test_only_negative_weights(example, rule, key):
    case = example["all_negative_term_weights"]
    v = scores(example["texts"]["p"]["logits"], case["term_weights"], rule)
    close(v, case[key]["v"])
    close(STAR.fold(v), case[key]["agg_star"])
    assert not (STAR.fold(v) == 0).logical_and(STAR.fold(v).signbit()).any()


@pytest.mark.parametrize("rule", list(TermWeight))
def test_padding_leaves_no_trace(example, rule):
    text, padding = example["texts"]["q"], example["padding"]
    extra = torch.tensor(padding["extra_position_probabilities"]).log().tolist()
    plain = scores(text["logits"], text["term_weights"], rule)
    padded = scores(
        [*text["logits"], extra],
        [*text["term_weights"], padding["extra_position_weight"]],
        rule,
        [bool(m) for m in padding["attention_mask"]],
    )
    assert padded.equal(plain)
    ids = torch.tensor([[*text["token_ids"], 0]])
    mask = torch.tensor([[True, True, False]])
    bare = aggregate_tokens(ids, torch.tensor([[1.5, 1.0, 9.0]]), mask, 10)
    close(bare, text["without_mlm"]["v"])


@pytest.mark.parametrize("rule", list(TermWeight))
@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize("seed", range(3))
def test_both_forms_are_the_paper_s_sum(rule, rows, seed):
    torch.manual_seed(seed)
    logits, raw = torch.randn(4, 6, 30) * 3, torch.randn(4, 6)
    mask = torch.arange(6) < torch.tensor([[6], [1], [4], [2]])
    ids = torch.randint(30, (4, 6))
    weights = WEIGHT_RULES[rule](raw)
    expected = torch.tensor(
        [
            oracles.vocabulary_scores(z.tolist(), w.tolist(), m.tolist(), rule)
            for z, w, m in zip(logits, raw, mask, strict=True)
        ]
    )
    torch.testing.assert_close(aggregate(logits, weights, mask), expected, rtol=1e-5, atol=1e-7)
    blocks = aggregate_in_blocks(logits, weights, mask, lambda states: states, 30, rows)
    torch.testing.assert_close(blocks, expected, rtol=1e-5, atol=1e-7)
    bare = [
        oracles.token_scores(i.tolist(), w.tolist(), m.tolist(), rule, 30)
        for i, w, m in zip(ids, raw, mask, strict=True)
    ]
    assert aggregate_tokens(ids, weights, mask, 30).tolist() == bare


def test_gradient_flows_to_weights_and_logits():
    logits = torch.randn(1, 3, 8, requires_grad=True)
    weights = torch.tensor([[0.5, 2.0, 1.0]], requires_grad=True)
    v = aggregate(logits, torch.relu(weights), torch.tensor([[True, True, False]]))
    v.square().sum().backward()
    assert logits.grad is not None
    assert weights.grad is not None
    assert logits.grad[0, 1].abs().sum() > 0
    assert logits.grad[0, 2].abs().sum() == 0 == weights.grad[0, 2]
