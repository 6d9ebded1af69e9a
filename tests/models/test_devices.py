"""Which device computes; see also `test_text_encoder` for names that are rejected."""

import pytest
import torch

from denserk.config.encoding import ComputeSettings
from denserk.models.devices import prepare_device


@pytest.fixture
def current_gpus(monkeypatch):
    """The numbers of the GPUs that become current, on a machine that shows two."""
    numbers: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", numbers.append)
    return numbers


@pytest.mark.parametrize(
    ("name", "numbers"), [("cuda:1", [1]), ("cuda", [0]), ("auto", [0]), ("cpu", [])]
)
def test_no_other_gpu_than_the_chosen_one_is_touched(current_gpus, name, numbers):
    prepare_device(ComputeSettings(device=name))
    assert current_gpus == numbers
