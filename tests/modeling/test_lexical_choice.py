import dataclasses

import numpy as np
import pytest
import torch

from denserk.errors import UsageError
from denserk.modeling import lexical_choice
from denserk.modeling.packed_linear import unavailable
from denserk.modeling.text_encoder import TextEncoder
from denserk.records import Passage
from denserk.settings.encoding import (
    AggKind,
    AggLayout,
    ComputeSettings,
    Dtype,
    MlmHead,
    TermWeight,
)
from tests.modeling.test_representation import CASES
from tests.reporters import Heard
from tests.tiny_models import WITH_HEADS

CPU = ComputeSettings(device="cpu")
PLAIN = dataclasses.replace(CPU, plain=True)
LOW_HEAD = dataclasses.replace(CPU, head_dtype=Dtype.BFLOAT16)
PASSAGES = [Passage(f"d{i}", "river bank money water fish"[: 4 + 3 * i]) for i in range(8)]
WITHOUT_SLICES = (
    {"agg_kind": AggKind.NONE},
    {"agg_kind": AggKind.LINEAR},
    {"agg_kind": AggKind.AVERAGE},
    {"agg_dim": 0},
    {"mlm_head": MlmHead.NONE},
)

pytestmark = pytest.mark.skipif(
    unavailable(torch.float32) is not None, reason="no packed weights on this CPU"
)


def load(folder, compute=CPU):
    heard = Heard()
    return TextEncoder.load(str(folder), {}, {}, compute), heard.warnings


def is_fast(encoder):
    return encoder.passage_side.encoder.representation.folding is not None


@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize("kind", WITH_HEADS)
def test_vectors_are_those_of_the_plain_form(kind, options, tiny_agg):
    folder = tiny_agg(kind, **options)
    (fast, warned), (plain, silent) = load(folder), load(folder, PLAIN)
    assert (is_fast(fast), is_fast(plain)) == (options not in WITHOUT_SLICES, False)
    assert warned == silent == []
    expected = plain.encode_passages(PASSAGES)
    np.testing.assert_allclose(
        fast.encode_passages(PASSAGES), expected, rtol=0, atol=1e-5 * np.abs(expected).max()
    )


@pytest.mark.parametrize("bias", [-100.0, 100.0])
@pytest.mark.parametrize("rule", list(TermWeight))
def test_weights_of_one_sign(rule, bias, tiny_agg):
    folder = tiny_agg("bert", term_weight=rule)
    (fast, _), (plain, _) = load(folder), load(folder, PLAIN)
    for encoder in (fast, plain):
        weight = encoder.passage_side.encoder.representation.tok_proj
        if weight is not None:
            torch.nn.init.constant_(weight.bias, bias)
    expected = plain.encode_passages(PASSAGES)
    np.testing.assert_allclose(
        fast.encode_passages(PASSAGES), expected, rtol=0, atol=1e-5 * np.abs(expected).max()
    )


@pytest.mark.skipif(unavailable(torch.bfloat16) is not None, reason="no bfloat16 on this CPU")
def test_a_head_of_less_precision_than_the_backbone(tiny_agg):
    folder = tiny_agg("bert", agg_layout=AggLayout.RANDOM)
    (low, warned), (exact, _) = load(folder, LOW_HEAD), load(folder)
    assert warned == []
    assert low.description()["head_dtype"] == "bfloat16"
    near, expected = low.encode_passages(PASSAGES), exact.encode_passages(PASSAGES)
    cls = low.passage_side.encoder.representation.cls_dim  # it has nothing to do with the head
    assert np.array_equal(near[:, :cls], expected[:, :cls])
    np.testing.assert_allclose(np.abs(near), np.abs(expected), rtol=0.1, atol=0.02)
    assert not np.array_equal(near, expected)


def test_a_head_that_disagrees_is_not_taken(tiny_agg, monkeypatch):
    monkeypatch.setattr(lexical_choice, "difference", lambda *_: 0.25)
    encoder, warned = load(tiny_agg("bert"))
    assert not is_fast(encoder)
    assert warned == [
        "computing the head by its plain form, which is slower: "
        "the fast head of this model is off by 2.5e-01"
    ]


def test_without_the_operator_the_plain_form_is_taken_and_told(tiny_agg, monkeypatch):
    monkeypatch.setattr(lexical_choice, "unavailable", lambda _: "it is Tuesday")
    encoder, warned = load(tiny_agg("bert"))
    assert not is_fast(encoder)
    assert warned == ["computing the head by its plain form, which is slower: it is Tuesday"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"head_dtype": Dtype.FLOAT16}, "--head-dtype float16"),
        ({"head_dtype": Dtype.BFLOAT16, "plain": True}, "with --plain the head computes"),
    ],
)
def test_precisions_that_no_head_has(fields, message):
    with pytest.raises(UsageError, match=message):
        ComputeSettings(**fields)
