import pytest
import torch

from denserk.config.encoding import Dtype
from denserk.errors import UsageError
from denserk.models.devices import DTYPES, choose_device, choose_dtype
from tests.reporters import Heard


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("no_gpu")
def test_only_auto_falls_back_and_says_so():
    notes = Heard()
    assert choose_device("auto") == torch.device("cpu")
    assert notes.notes == ["no GPU is seen: computing on the CPU"]
    for name in ("cuda", "cuda:0"):
        with pytest.raises(UsageError, match=f"--device {name}: this machine shows no GPUs"):
            choose_device(name)


@pytest.mark.parametrize("name", ["gpu", "cuda:x"])
def test_an_unknown_device_is_refused(name):
    with pytest.raises(UsageError, match="no such device"):
        choose_device(name)


def test_a_gpu_beyond_the_last_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device("cuda") == torch.device("cuda")
    with pytest.raises(UsageError, match=r"shows 1 GPU$"):
        choose_device("cuda:1")


def test_precisions():
    cpu = torch.device("cpu")
    assert set(DTYPES) == set(Dtype)
    assert choose_dtype(Dtype.BFLOAT16, cpu) is torch.bfloat16
    assert choose_dtype(Dtype.FLOAT16, torch.device("cuda")) is torch.float16
    with pytest.raises(UsageError, match="float16 on the CPU"):
        choose_dtype(Dtype.FLOAT16, cpu)
