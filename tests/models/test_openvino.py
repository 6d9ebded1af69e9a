import itertools
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from denserk.config.encoding import Backend, ComputeSettings, DtypeChoice
from denserk.errors import Interrupted, MissingExtraError, ModelError, UsageError
from denserk.models.devices import certify, compile_module
from denserk.models.text_encoder import TextEncoder
from tests.models.test_text_encoder import PASSAGES
from tests.support.console import warnings_of
from tests.support.tiny_models import BACKBONES

pytestmark = pytest.mark.usefixtures("openvino")
TORCH = ComputeSettings(device="cpu", backend=Backend.TORCH)
OPENVINO = ComputeSettings(device="cpu", backend=Backend.OPENVINO)
BFLOAT16 = ComputeSettings(device="cpu", backend=Backend.OPENVINO, dtype=DtypeChoice.BFLOAT16)
MLR = {"representation": "mlr", "layers": (0, 1, 2), "reduction": "multi-vector"}


def assert_near(vectors, expected, tolerance):
    assert vectors.shape == expected.shape
    assert np.abs(vectors - expected).max() <= tolerance * np.abs(expected).max()


CASES = [*[(kind, {"representation": "mean"}) for kind in BACKBONES], ("bert", MLR), ("agg", {})]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "settings"), CASES, ids=str)
def test_vectors_equal_torchs(tiny, tiny_agg, kind, settings):
    folder = str(tiny_agg("bert") if kind == "agg" else tiny(kind))
    by_torch = TextEncoder(folder, settings, compute=TORCH)
    by_openvino = TextEncoder(folder, settings, compute=OPENVINO)
    assert by_torch.backend is Backend.TORCH
    assert by_openvino.backend is Backend.OPENVINO
    expected = by_torch.encode_passages(PASSAGES)
    assert_near(by_openvino.encode_passages(PASSAGES), expected, 1e-5)
    if kind == "agg":
        in_bfloat16 = TextEncoder(folder, settings, compute=BFLOAT16)
        assert_near(in_bfloat16.encode_passages(PASSAGES), expected, 0.1)


def test_auto_takes_openvino_where_it_is_installed(tiny, monkeypatch):
    auto = ComputeSettings(device="cpu")
    assert TextEncoder(str(tiny()), compute=auto).backend is Backend.OPENVINO
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert TextEncoder(str(tiny()), compute=auto).backend is Backend.TORCH
    with pytest.raises(MissingExtraError, match="openvino"):
        TextEncoder(str(tiny()), compute=OPENVINO)


def test_what_it_cannot_compile_is_computed_by_torch(tiny, monkeypatch, caplog):
    def fail(*_):
        raise ModelError("OpenVINO cannot convert this model")

    monkeypatch.setattr("denserk.models.backbone.compile_module", fail)
    assert TextEncoder(str(tiny()), compute=ComputeSettings(device="cpu")).backend is Backend.TORCH
    assert any("cannot convert" in line for line in warnings_of(caplog))
    with pytest.raises(ModelError, match="cannot convert"):
        TextEncoder(str(tiny()), compute=OPENVINO)


def test_a_module_that_gives_other_results_is_rejected():
    class Unsteady(nn.Linear):
        factors = itertools.chain([1.0], itertools.repeat(2.0))

        def forward(self, inputs):
            return (super().forward(inputs) * next(self.factors),)

    with pytest.raises(ModelError, match="differ from torch"):
        compile_module(Unsteady(4, 4), (torch.ones(2, 4),), torch.float32)


def test_certificates_of_int8(tiny):
    exact = np.eye(3, dtype=np.float32)
    assert certify(exact * 2, exact) == {"mean_cosine": 1, "cosine_5th_percentile": 1}
    for far_vectors in (np.roll(exact, 1, axis=0), exact * np.nan):
        with pytest.raises(ModelError, match="cosines to float32"):
            certify(far_vectors, exact)
    with pytest.raises(UsageError, match="--int8"):
        TextEncoder(str(tiny()), compute=TORCH).quantize("passage", PASSAGES)


SIGNALLED = """
import signal
import torch
from denserk.models.devices import compile_module
class Softmax(torch.nn.Module):
    def forward(self, inputs):
        return (inputs.softmax(-1),)
def compiled():
    return compile_module(Softmax(), (torch.ones(2, 3),), torch.float32)
signal.signal(signal.SIGTERM, lambda *_: print("handled"))
first, second = compiled(), compiled()
first = None
second = None
signal.raise_signal(signal.SIGTERM)
"""


def test_a_signal_is_handled_after_models_are_gone():
    process = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert process.stdout == "handled\n"


def test_a_signal_during_conversion_ends_the_command(monkeypatch):
    def interrupted(*_, **__):
        """OpenVINO calls Python, where a signal is raised, and reports an error of its own."""
        Interrupted.received = Interrupted(signal.SIGTERM)
        raise RuntimeError("Check 'false' failed at frontend.cpp:53")

    monkeypatch.setattr(Interrupted, "received", None)
    monkeypatch.setattr("openvino.convert_model", interrupted)
    with pytest.raises(Interrupted):
        compile_module(nn.Identity(), (torch.ones(2, 3),), torch.float32)
