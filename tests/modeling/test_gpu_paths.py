import pytest
import torch

from denserk.data.batches import pad
from denserk.modeling import gpu_paths, unpadded_forward
from denserk.modeling.architectures import ARCHITECTURES
from denserk.modeling.backbone import Backbone
from denserk.modeling.encoder import Encoder
from denserk.modeling.gpu_paths import skip_padding, take_gpu_paths, take_kernels
from denserk.modeling.kernel_trial import kernels_problem
from denserk.settings.encoding import Representation, RepresentationSettings
from tests.reporters import Heard
from tests.tiny_models import tiny_config


@pytest.fixture
def encoder():
    torch.manual_seed(4)
    backbone = Backbone(ARCHITECTURES["bert"], tiny_config("bert", 40), with_head=True).float()
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    settings = RepresentationSettings(Representation.AGG, agg_dim=6, cls_dim=2)
    return Encoder(backbone, settings).eval()


def test_without_padding_states_and_vectors_stay_the_same(encoder):
    batch = pad([[5, 6, 7, 8], [9, 10]], 0)
    plain = encoder(batch)
    assert skip_padding(encoder.backbone.train()) is None
    assert encoder.backbone.training
    assert encoder.backbone.lean is not None
    torch.testing.assert_close(encoder.eval()(batch), plain, rtol=1e-4, atol=1e-5)


def test_layers_of_another_kind_stay_as_they_are():
    backbone = Backbone(ARCHITECTURES["t5"], tiny_config("t5", 40), with_head=False)
    assert skip_padding(backbone) is None
    assert backbone.lean is None


def test_a_forward_that_disagrees_is_not_taken(encoder, monkeypatch):
    forward = unpadded_forward.UnpaddedForward.__call__
    monkeypatch.setattr(
        unpadded_forward.UnpaddedForward, "__call__", lambda *given: forward(*given) * 1.01
    )
    assert "is off by 1.0e-02" in str(skip_padding(encoder.backbone))
    assert encoder.backbone.lean is None


def test_kernels_are_for_gpus(encoder):
    assert take_kernels(encoder) == "they are for GPUs"
    assert not encoder.representation.on_kernels


@pytest.mark.parametrize(
    ("installed", "error", "reason"),
    [
        (False, 0.0, "triton is not installed"),
        (True, 0.1, "on trial they disagreed with the literal form in torch.float32"),
        (True, float("nan"), "on trial they disagreed with the literal form"),
        (True, 0.0, None),
    ],
)
def test_kernels_are_tried(monkeypatch, installed, error, reason):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    trial = "denserk.modeling.kernel_trial"
    monkeypatch.setattr(f"{trial}.installed", lambda module: installed)
    monkeypatch.setattr(f"{trial}._trial_error", lambda *given: error)
    found = kernels_problem.__wrapped__(torch.device("cpu"))
    assert (found or "").startswith(reason or "")
    assert (found is None) == (reason is None)


def test_kernels_that_fail_are_left(monkeypatch):
    def fail(*given):
        raise RuntimeError("no compiler\nat all")

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr("denserk.modeling.kernel_trial.installed", lambda module: True)
    monkeypatch.setattr("denserk.modeling.kernel_trial._trial_error", fail)
    problem = kernels_problem.__wrapped__(torch.device("cpu"))
    assert problem == "they failed on trial: RuntimeError: no compiler"


def test_on_the_cpu_nothing_changes_and_nothing_is_told(encoder):
    heard = Heard()
    take_gpu_paths(encoder)
    assert encoder.backbone.lean is None
    assert not heard.warnings


def test_on_a_gpu_reasons_are_told_once(encoder, monkeypatch):
    heard = Heard()
    monkeypatch.setattr(torch.nn.Parameter, "is_cuda", True, raising=False)
    for name in ("skip_padding", "take_kernels"):
        monkeypatch.setattr(gpu_paths, name, lambda part: "it is off")
    take_gpu_paths(encoder, plain=True)
    assert not heard.warnings
    take_gpu_paths(encoder)
    assert heard.warnings == ["computing by the plain path, which is slower: it is off"]
