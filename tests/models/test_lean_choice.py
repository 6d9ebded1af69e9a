import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from denserk.config.encoding import ComputeSettings, Dtype
from denserk.models import lean_choice, lean_forward, packed_linear
from denserk.models.packed_linear import OPERATORS, unavailable
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage
from tests.reporters import Heard
from tests.tiny_models import BACKBONES

CPU = ComputeSettings(device="cpu")
MEAN = {"representation": "mean"}
PASSAGES = [Passage(f"d{i}", "river bank money water fish"[: 4 + 3 * i]) for i in range(8)]
REASON = "computing by the plain path, which is slower: "

pytestmark = pytest.mark.skipif(
    unavailable(torch.float32) is not None, reason="no packed weights on this CPU"
)


@pytest.fixture(autouse=True)
def probed_afresh():
    unavailable.cache_clear()
    yield
    unavailable.cache_clear()


def load(folder, compute=CPU, representation=MEAN, *, eager=False):
    heard = Heard()
    loaded = TextEncoder.load(str(folder), representation, {}, compute, eager=eager)
    return loaded, heard.warnings


def is_lean(encoder):
    return encoder.passage_side.encoder.backbone.lean is not None


@pytest.mark.parametrize("kind", BACKBONES)
def test_vectors_are_those_of_the_plain_path(tiny, kind):
    fast, warned = load(tiny(kind))
    plain, silent = load(tiny(kind), eager=True)
    assert (is_lean(fast), is_lean(plain)) == (kind != "t5", False)
    assert warned == silent == []
    expected = plain.encode_passages(PASSAGES)
    np.testing.assert_allclose(
        fast.encode_passages(PASSAGES), expected, rtol=0, atol=1e-5 * np.abs(expected).max()
    )


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_aggretriever_too(tiny_agg, kind):
    fast, _ = load(tiny_agg(kind), representation={})
    plain, _ = load(tiny_agg(kind), representation={}, eager=True)
    assert is_lean(fast)
    expected = plain.encode_passages(PASSAGES)
    np.testing.assert_allclose(
        fast.encode_passages(PASSAGES), expected, rtol=0, atol=1e-5 * np.abs(expected).max()
    )


def test_layers_too(tiny):
    layers = {"representation": "mlr", "layers": (0, 1, 2), "reduction": "multi-vector"}
    fast, _ = load(tiny(), representation=layers)
    plain, _ = load(tiny(), representation=layers, eager=True)
    assert is_lean(fast)
    np.testing.assert_allclose(
        fast.encode_passages(PASSAGES), plain.encode_passages(PASSAGES), rtol=0, atol=1e-5
    )


def test_the_plain_path_packs_nothing(tiny, monkeypatch):
    def refused(*_):
        raise AssertionError

    monkeypatch.setattr(lean_forward, "pack", refused)
    assert not is_lean(load(tiny(), eager=True)[0])
    with pytest.raises(AssertionError):
        load(tiny())


def test_without_the_operator_the_plain_path_is_taken_and_told(tiny, monkeypatch):
    expected = load(tiny(), eager=True)[0].encode_passages(PASSAGES)
    some = SimpleNamespace(_reorder_linear_weight=OPERATORS._reorder_linear_weight)
    monkeypatch.setattr(packed_linear, "OPERATORS", some)
    encoder, warned = load(tiny())
    assert warned == [f"{REASON}this torch ({torch.__version__}) has no _linear_pointwise"]
    assert np.array_equal(encoder.encode_passages(PASSAGES), expected)


def test_a_forward_that_disagrees_is_not_used(tiny, monkeypatch):
    expected = load(tiny(), eager=True)[0].encode_passages(PASSAGES)
    monkeypatch.setattr(lean_forward, "attention_bias", lambda mask, dtype: None)
    encoder, warned = load(tiny())
    assert len(warned) == 1
    assert warned[0].startswith(f"{REASON}the lean forward of this model is off by")
    assert np.array_equal(encoder.encode_passages(PASSAGES), expected)


def test_a_processor_without_bfloat16_is_told_once(tiny, monkeypatch):
    monkeypatch.setattr(packed_linear, "has_bfloat16", lambda: False)
    low = dataclasses.replace(CPU, dtype=Dtype.BFLOAT16)
    encoder, warned = load(tiny(), low)
    assert warned == [
        f"{REASON}the processor has no bfloat16 instructions (float32 is faster on it)"
    ]
    plain, _ = load(tiny(), low, eager=True)
    assert np.array_equal(encoder.encode_passages(PASSAGES), plain.encode_passages(PASSAGES))


def test_two_sides_tell_one_reason_once(tiny, monkeypatch):
    backbone = load(tiny(), eager=True)[0].passage_side.encoder.backbone
    monkeypatch.setattr(lean_choice, "unavailable", lambda dtype: "a reason")
    heard = Heard()
    lean_choice.quicken([backbone, backbone], torch.float32)
    assert heard.warnings == [f"{REASON}a reason"]
