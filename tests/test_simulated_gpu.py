"""The simulated GPU itself: tests on it would pass without it if it let everything pass."""

import pytest
import torch

from tests.support.simulated_gpu import CpuAutocast, simulated_gpu


@pytest.fixture
def gpu_matrix(simulated_gpu):
    return torch.ones(2, 3, device="cuda")


def test_what_is_made_of_a_tensor_stays_on_its_device(gpu_matrix):
    for tensor in (gpu_matrix + 1, gpu_matrix.T, gpu_matrix[0], *gpu_matrix.max(1)):
        assert str(tensor.device) == "cuda:0"
        assert tensor.is_cuda
    linear = torch.nn.Linear(3, 2).to("cuda:0")
    linear(gpu_matrix).sum().backward()
    assert linear.weight.grad is not None
    assert linear.weight.grad.device == linear.weight.device == gpu_matrix.device
    assert isinstance(linear.weight, torch.nn.Parameter)
    assert gpu_matrix.cpu().device == torch.ones(2).device == torch.device("cpu")
    assert gpu_matrix.to("cpu").numpy().sum() == 6


def test_mixing_devices_is_an_error(gpu_matrix):
    vector = torch.ones(3)
    for mix in (
        lambda: gpu_matrix + vector,
        lambda: torch.cat([gpu_matrix[0], vector]),
        lambda: vector[gpu_matrix[0].long()],
        lambda: torch.nn.Linear(3, 2)(gpu_matrix),
    ):
        with pytest.raises(RuntimeError, match="all tensors to be on the same device"):
            mix()
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        gpu_matrix.numpy()
    assert (gpu_matrix * torch.tensor(2.0)).sum() == 12  # a number of the CPU is no mix


def test_what_waits_for_the_gpu_is_counted(simulated_gpu, gpu_matrix):
    indices = torch.tensor([0])
    simulated_gpu.waits.clear()
    gpu_matrix.to(torch.float16).sum().mul(2)
    indices.to("cuda", non_blocking=True)
    assert not simulated_gpu.waits
    for count, wait in enumerate(
        (
            lambda: gpu_matrix.tolist(),
            lambda: gpu_matrix.cpu(),
            lambda: gpu_matrix.nonzero(),
            lambda: gpu_matrix[gpu_matrix > 0],
            lambda: bool(gpu_matrix.all()),
            lambda: float(gpu_matrix.sum()),
            lambda: indices.to("cuda"),
            lambda: torch.tensor([1], device="cuda"),
        ),
        start=1,
    ):
        wait()
        assert simulated_gpu.waits.total() == count


def state_of_torch():
    reduced = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    return torch.cuda.is_available(), torch.cuda.device_count(), torch.autocast, reduced


def test_afterwards_torch_is_as_it_was():
    before = state_of_torch()
    with pytest.MonkeyPatch.context() as patch, simulated_gpu(patch):
        assert torch.cuda.is_available()
        assert torch.autocast is CpuAutocast
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    assert state_of_torch() == before
    assert torch.ones(2).is_cpu
