"""A simulated GPU: tensors that say `cuda:0`, are computed on the CPU, and mix with no others.

A tensor of the GPU is a tensor in the CPU's memory whose class is `GpuTensor`. `SimulatedGpu` sees
every call of a torch function: it labels what a call on the GPU returns, refuses a call that mixes
devices, and counts the calls in which Python waits for the GPU.

What it cannot show: speed, memory, kernels, the CUDA random state, and what a torch function that
is written in Python does inside. Autocast is that of the CPU, with the dtype that was asked for.
Clipping gradients counts as one wait: torch asks below Python for their device, which is the CPU.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import denserk

PACKAGE = f"{Path(denserk.__file__).parent}/"
CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
MEMORY = 80 << 30  # bytes

# How `nn.Module.to` moves a parameter.
SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]
# Functions that take tensors of both devices.
COPIES = {SET_DATA, Tensor.copy_, Tensor.type_as, torch._has_compatible_shallow_copy_type}
# Functions that take indices of the CPU for a tensor of the GPU.
INDEXING = {Tensor.__getitem__, Tensor.__setitem__}
MOVES = {Tensor.to, Tensor.cpu, Tensor.cuda}
# Functions that copy numbers of Python or NumPy.
CONVERSIONS = {torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor}
PINNING: dict[Any, Callable[..., Any]] = {
    Tensor.pin_memory: lambda tensor, *_: tensor,
    Tensor.is_pinned: lambda tensor, *_: False,
}
BACKWARD = {Tensor.backward, torch.autograd.backward}
TO_NUMPY: set[Any] = {Tensor.numpy, Tensor.__array__}
# Functions whose result, or its shape, Python needs to know.
WAITING = {
    Tensor.item: "item",
    Tensor.tolist: "tolist",
    Tensor.__bool__: "bool",
    Tensor.__int__: "int",
    Tensor.__float__: "float",
    Tensor.__index__: "index",
    Tensor.__contains__: "in",
    Tensor.is_nonzero: "is_nonzero",
    Tensor.equal: "equal",
    Tensor.allclose: "allclose",
    Tensor.nonzero: "nonzero",
    Tensor.masked_select: "masked_select",
    Tensor.unique: "unique",
    Tensor.unique_consecutive: "unique_consecutive",
    torch.equal: "equal",
    torch.allclose: "allclose",
    torch.nonzero: "nonzero",
    torch.masked_select: "masked_select",
    torch.unique: "unique",
    torch.unique_consecutive: "unique_consecutive",
}


class GpuTensor(Tensor):
    """A tensor that says that it is on the GPU."""

    # the mode does all the work
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def detach(self) -> Tensor:
        """See `Tensor`; hooks of torch's checkpoints call it where no mode sees it."""
        return label(super().detach())


class CpuAutocast(torch.autocast):
    """Autocast of the GPU, done by that of the CPU."""

    def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(device_type.replace("cuda", "cpu"), *args, **kwargs)


class SimulatedGpu(TorchFunctionMode):
    """While it is entered, this thread has the GPU.

    Attributes:
        waits: how often Python waited for the GPU, by what for and the function of denserk.

    A call that mixes devices is a RuntimeError, as on a GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self._is_backward = False

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in BACKWARD:
            assert not any(kwargs.values())
            return self._run_backward(*args)
        if func in MOVES:
            return self._move(func, *args, **kwargs)
        tensors = list(tensors_in((args, kwargs)))
        # activations that torch saved come back without their class; who reads `device` sees that
        if self._is_backward and func.__name__ != "__get__":
            for tensor in tensors:
                label(tensor)
        if any(isinstance(tensor, GpuTensor) for tensor in tensors):
            self._reject_mixed(func, args, tensors)
            self._count_waits(func, args, kwargs)
            if func in TO_NUMPY:
                raise TypeError("can't convert cuda:0 device type tensor to numpy")
            if func is Tensor.__deepcopy__:
                return deep_copy(*args)
            if func is Tensor.__reduce_ex__:  # no file has a class of the tests
                return on_cpu(args[0]).__reduce_ex__(*args[1:])
        return self._call(func, args, kwargs, tensors)

    def _call(self, func, args, kwargs, tensors):
        """Call a function on the CPU; label what it makes from tensors of the GPU, or for it."""
        if func in PINNING:
            return PINNING[func](*args, **kwargs)
        on_gpu = any(isinstance(tensor, GpuTensor) for tensor in tensors)
        device = kwargs.get("device")
        if device is not None and func is not torch.device:
            on_gpu = is_gpu(device)
            if on_gpu:
                kwargs["device"] = CPU
            if on_gpu and func in CONVERSIONS:
                self._count("copy to the GPU")
        result = func(*args, **kwargs)
        if func == SET_DATA and isinstance(args[1], GpuTensor):
            label(args[0])
        if on_gpu:
            arguments = {id(tensor) for tensor in tensors}
            for tensor in tensors_in(result):
                if id(tensor) not in arguments:
                    label(tensor)
        return result

    def _move(self, func, tensor, *args, **kwargs):
        """Do `to`, `cpu` or `cuda`: the result is another tensor if the device is another."""
        was_on_gpu = isinstance(tensor, GpuTensor)
        goes_to_gpu = was_on_gpu
        if func is Tensor.cpu:
            args = (CPU, *args)
        elif func is Tensor.cuda:
            args = (GPU, *args)
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, Tensor):
                goes_to_gpu = isinstance(argument, GpuTensor)
            elif isinstance(argument, str | torch.device):
                goes_to_gpu = is_gpu(argument)
        others = [CPU if names_gpu(argument) else argument for argument in args]
        options = {name: CPU if names_gpu(value) else value for name, value in kwargs.items()}
        result = tensor.to(*others, **options)
        if was_on_gpu == goes_to_gpu:
            return label(result) if goes_to_gpu else result
        if was_on_gpu:
            self._count("copy to the CPU")
            return on_cpu(result)
        if not kwargs.get("non_blocking"):
            self._count("copy to the GPU")
        return label(tensor.clone() if result is tensor else result)

    def _run_backward(self, loss: Tensor) -> None:
        """Do `loss.backward()` so that what is computed again in it is seen, too."""
        # no mode is active in what torch's public functions call
        engine = torch.autograd.Variable._execution_engine
        gradient = torch.ones_like(loss)
        self._is_backward = isinstance(loss, GpuTensor)
        try:
            with self:
                engine.run_backward(
                    *((loss,), (gradient,), False, False, ()),
                    allow_unreachable=True,
                    accumulate_grad=True,
                )
        finally:
            self._is_backward = False

    def _reject_mixed(self, func, args, tensors) -> None:
        """Raise a RuntimeError if a call on the GPU has a tensor of the CPU that is no number."""
        if func in COPIES:
            return
        if func in INDEXING and isinstance(args[0], GpuTensor):
            return
        for tensor in tensors:
            if not isinstance(tensor, GpuTensor) and tensor.dim() > 0:
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two "
                    f"devices, cuda:0 and cpu! ({func.__name__} at {place()})"
                )

    def _count_waits(self, func, args, kwargs) -> None:
        """Count a call whose result Python waits for."""
        if func in WAITING:
            self._count(WAITING[func])
        elif func is torch.where and len(args) + len(kwargs) == 1:
            self._count("nonzero")
        elif func in (torch.repeat_interleave, Tensor.repeat_interleave):
            if kwargs.get("output_size") is None:
                self._count("repeat_interleave")
        elif func in INDEXING:
            for index in tensors_in(args[1]):
                if not isinstance(index, GpuTensor):
                    self._count("copy to the GPU")
                elif index.dtype is torch.bool:
                    self._count("nonzero")

    def _count(self, reason: str) -> None:
        self.waits[f"{reason} at {place()}"] += 1


@contextmanager
def simulated_gpu(patch: pytest.MonkeyPatch) -> Iterator[SimulatedGpu]:
    """Give this thread a GPU; `patch` replaces functions of `torch.cuda`, and undoes it."""

    def nothing(*_: Any, **__: Any) -> None:
        pass

    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "mem_get_info": (MEMORY, MEMORY),
        "is_bf16_supported": True,
        "max_memory_allocated": 0,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
    }
    for name, answer in answers.items():
        patch.setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    for name in (
        *("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats"),
        *("set_rng_state", "manual_seed", "manual_seed_all"),
    ):
        patch.setattr(torch.cuda, name, nothing)
    patch.setattr(torch.accelerator, "is_available", lambda: True)
    # what the thread asks that pins batches of other processes
    patch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    patch.setattr(torch.accelerator, "set_device_index", nothing)
    for module in (torch, torch.amp):
        patch.setattr(module, "autocast", CpuAutocast)
    products = torch.backends.cuda.matmul
    reduced = products.allow_bf16_reduced_precision_reduction
    try:
        with SimulatedGpu() as gpu:
            yield gpu
    finally:  # exact search sets it for the whole process
        products.allow_bf16_reduced_precision_reduction = reduced


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def is_gpu(device: Any) -> bool:
    return torch.device(device).type == "cuda"


def names_gpu(value: Any) -> bool:
    return isinstance(value, str | torch.device) and is_gpu(value)


def label(tensor: Tensor) -> Tensor:
    """Put a tensor on the GPU, in place."""
    is_parameter = isinstance(tensor, nn.Parameter)
    tensor.__class__ = GpuTensor
    if is_parameter:
        tensor._is_param = True  # what isinstance asks for
    return tensor


def deep_copy(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """Return a copy, in `memo` also, as `copy.deepcopy` needs it."""
    copy = label(tensor.detach().clone())
    copy.requires_grad_(tensor.requires_grad)
    if isinstance(tensor, nn.Parameter):
        copy._is_param = True
    memo[id(tensor)] = copy
    return copy


def on_cpu(tensor: Tensor) -> Tensor:
    """Return the same values as a tensor of the CPU."""
    copy = tensor.clone()
    copy.__class__ = Tensor
    return copy


def place() -> str:
    """Return the innermost function of denserk that is running, and its file below denserk/."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(PACKAGE):
            return f"{path.removeprefix(PACKAGE)} {frame.f_code.co_name}"
        frame = frame.f_back
    return "a test"
