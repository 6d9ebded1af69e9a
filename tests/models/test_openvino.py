import itertools
import sys

import numpy as np
import pytest
import torch
from torch import nn

from denserk.config.encoding import Backend, ComputeSettings, Dtype
from denserk.errors import MissingExtraError, ModelError, UsageError
from denserk.models.devices import certify, compile_function
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from tests.reporters import Heard
from tests.tiny_models import BACKBONES

pytestmark = pytest.mark.usefixtures("openvino")
TORCH = ComputeSettings(device="cpu", backend=Backend.TORCH)
OPENVINO = ComputeSettings(device="cpu", backend=Backend.OPENVINO)
LOW = ComputeSettings(device="cpu", backend=Backend.OPENVINO, dtype=Dtype.BFLOAT16)
WORDS = ["river", "bank", "money", "water", "fish", "boat", "tree"]
PASSAGES = [
    Passage(f"d{i}", " ".join(WORDS[(i * j) % 7] for j in range(i % 9)), "cat" if i % 3 else "")
    for i in range(25)
]
QUERIES = [Query("q1", "river boat"), Query("q2", "a cat in the house")]


def assert_near(got, expected, tolerance):
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("kind", BACKBONES)
def test_vectors_equal_torchs(tiny, kind):
    settings = {"representation": "mean"}
    folder = str(tiny(kind))
    expected = TextEncoder.load(folder, settings, compute=TORCH)
    got = TextEncoder.load(folder, settings, compute=OPENVINO)
    assert (expected.backend, got.backend) == (Backend.TORCH, Backend.OPENVINO)
    assert_near(got.encode_passages(PASSAGES), expected.encode_passages(PASSAGES), 1e-5)
    assert_near(got.encode_queries(QUERIES), expected.encode_queries(QUERIES), 1e-5)


@pytest.mark.parametrize(
    "settings", [{}, {"agg_kind": "plus"}, {"term_weight": "signed"}, {"agg_kind": "none"}], ids=str
)
def test_aggretriever_equals_torchs(tiny_agg, settings):
    folder = str(tiny_agg("bert"))
    expected = TextEncoder.load(folder, settings, compute=TORCH).encode_passages(PASSAGES)
    found = TextEncoder.load(folder, settings, compute=OPENVINO).encode_passages(PASSAGES)
    assert_near(found, expected, 1e-5)
    low = TextEncoder.load(folder, settings, compute=LOW).encode_passages(PASSAGES)
    assert_near(low, expected, 0.1)


def test_layers_equal_torchs(tiny):
    settings = {"representation": "mlr", "layers": (0, 1, 2), "reduction": "multi-vector"}
    expected = TextEncoder.load(str(tiny()), settings, compute=TORCH)
    got = TextEncoder.load(str(tiny()), settings, compute=OPENVINO)
    assert_near(got.encode_passages(PASSAGES), expected.encode_passages(PASSAGES), 1e-5)


def test_auto_takes_openvino_where_it_is_installed(tiny, monkeypatch):
    auto = ComputeSettings(device="cpu")
    assert TextEncoder.load(str(tiny()), compute=auto).backend is Backend.OPENVINO
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert TextEncoder.load(str(tiny()), compute=auto).backend is Backend.TORCH
    with pytest.raises(MissingExtraError, match="openvino"):
        TextEncoder.load(str(tiny()), compute=OPENVINO)


@pytest.mark.parametrize("part", ["backbone", "representation"])
def test_what_it_cannot_compile_is_computed_by_torch(tiny_agg, monkeypatch, part):
    def fail(*_):
        raise ModelError("OpenVINO cannot convert this model")

    monkeypatch.setattr(f"denserk.models.{part}.compile_function", fail)
    heard, folder = Heard(), str(tiny_agg())
    encoder = TextEncoder.load(folder, compute=ComputeSettings(device="cpu"))
    assert encoder.backend is Backend.TORCH
    assert any("cannot convert" in line for line in heard.warnings)
    expected = TextEncoder.load(folder, compute=TORCH).encode_passages(PASSAGES)
    assert np.array_equal(encoder.encode_passages(PASSAGES), expected)
    with pytest.raises(ModelError, match="cannot convert"):
        TextEncoder.load(folder, compute=OPENVINO)


def test_a_function_that_gives_other_results_is_rejected():
    factors = itertools.chain([1.0], itertools.repeat(2.0))
    layer = nn.Linear(4, 4)

    def unsteady(inputs):
        return layer(inputs) * next(factors)

    with pytest.raises(ModelError, match="differ from torch"):
        compile_function(unsteady, [layer], (torch.ones(2, 4),), torch.float32)


def test_certificates():
    exact = np.eye(3, dtype=np.float32)
    assert certify(exact * 2, exact) == {"mean_cosine": 1, "cosine_5th_percentile": 1}
    with pytest.raises(ModelError, match="cosines to float32"):
        certify(np.roll(exact, 1, axis=0), exact)
    with pytest.raises(ModelError, match="cosines to float32"):
        certify(exact * np.nan, exact)


def test_int8_needs_openvino_and_float32(tiny):
    for compute in (TORCH, LOW):
        with pytest.raises(UsageError, match="--int8"):
            TextEncoder.load(str(tiny()), compute=compute).quantize("passage", PASSAGES)
