"""Where models run: device, precision and CPU threads."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from denserk.config.encoding import ComputeSettings, Dtype, DtypeChoice
from denserk.errors import DenserkError, UsageError, lack_of_memory
from denserk.models import processor
from denserk.models.openvino_runtime import limit_kept_kernels

logger = logging.getLogger(__name__)
DTYPES: dict[Dtype, torch.dtype] = {dtype: getattr(torch, dtype.value) for dtype in Dtype}
# CPU threads that torch takes by itself
DEFAULT_THREADS = torch.get_num_threads()
# Threads that tokenise for a GPU, by default.
MOST_WORKERS = 8


def launched() -> bool:
    """Return True if torchrun started this process as one of several."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def choose_device(name: str) -> torch.device:
    """Return the device of that name; `auto` takes a GPU where there is one.

    Under torchrun, each process takes the GPU of its local rank.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise UsageError(f"--device {name}: no such device", "one of auto, cpu, cuda, cuda:N")
    gpu_count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto" and gpu_count == 0:
        logger.info("no GPU is seen: computing on the CPU")
        name = "cpu"
    elif name == "auto":
        name = "cuda"
    if name == "cuda" and launched():
        name = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    device = torch.device(name)  # without a number, its index is None: the first GPU
    if device.type == "cuda" and (device.index or 0) >= gpu_count:
        gpus = "1 GPU" if gpu_count == 1 else f"{gpu_count or 'no'} GPUs"
        raise UsageError(
            f"--device {name}: this machine shows {gpus}",
            "choose --device cpu, or --device auto to take what there is",
        )
    return device


def use_device(name: str) -> torch.device:
    """Return the device of that name; a GPU becomes the current one, so that no other is touched.

    Libraries keep some memory on the current GPU, by default the first, whatever device tensors
    are on.
    """
    device = choose_device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)
    return device


def prepare_device(compute: ComputeSettings) -> torch.device:
    """Set the number of CPU threads, if given, and of OpenVINO's kept kernels; return the device.

    A GPU becomes the current one. A chosen bfloat16 that is only emulated is warned of.
    """
    limit_kept_kernels()
    if compute.threads is not None:
        torch.set_num_threads(compute.threads)
    device = use_device(compute.device)
    if compute.dtype is DtypeChoice.BFLOAT16 and not computes_in(Dtype.BFLOAT16, device):
        device_name = "CPU" if device.type == "cpu" else "GPU"
        logger.warning(
            f"this {device_name} has no bfloat16 instructions: --dtype float32 may be faster"
        )
    return device


def choose_precision(choice: DtypeChoice, device: torch.device) -> Dtype:
    """Return the precision that is chosen; `auto` is bfloat16 on a GPU that has it, else float32.

    What `auto` takes is logged. Encoders of texts may take bfloat16 on a CPU, too: see
    `denserk.models.precision`.
    """
    if choice is not DtypeChoice.AUTO:
        return Dtype(choice)
    dtype = automatic_dtype(device)
    if device.type == "cpu":
        logger.info("computing in float32 on the CPU")
    elif dtype is Dtype.FLOAT32:
        logger.info(f"computing in float32: {device} has no bfloat16 instructions")
    else:
        logger.info(f"computing in {dtype} on {device}; --dtype float32 is slower, more precise")
    return dtype


def automatic_dtype(device: torch.device) -> Dtype:
    """Return the precision of `--dtype auto`."""
    if device.type != "cpu" and computes_in(Dtype.BFLOAT16, device):
        return Dtype.BFLOAT16
    return Dtype.FLOAT32


def computes_in(dtype: Dtype, device: torch.device) -> bool:
    """Return whether a device has instructions for a precision, and does not emulate it.

    A GPU must be the current one, which alone torch tells of.
    """
    if dtype is Dtype.FLOAT32:
        return True
    if dtype is Dtype.FLOAT16:
        return device.type != "cpu"
    if device.type == "cpu":
        return processor.has_bfloat16()
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def default_workers(device: torch.device) -> int:
    """Return the number of threads that tokenise for one process.

    On a CPU one does: the model needs the cores. For a GPU one core launches its work and the
    others tokenise, at most 8; processes of torchrun share the cores.
    """
    if device.type == "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return max(1, min(MOST_WORKERS, cores - 1))


def choose_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """Return torch's dtype of a precision; a UsageError for float16 on a CPU."""
    if dtype is Dtype.FLOAT16 and device.type == "cpu":
        raise UsageError("--dtype float16 on the CPU is slow: choose --dtype bfloat16, or a GPU")
    return DTYPES[dtype]


def at_least_float32(tensor: Tensor) -> Tensor:
    """The same numbers, 16-bit ones widened to 32; float64 stays."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Context manager that temporarily sets the number of CPU threads."""
    previous_count = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous_count)


@contextmanager
def memory_errors(work: str, hint: str) -> Iterator[None]:
    """Turn torch's errors for a lack of memory into a DenserkError.

    `work` is what was computed, such as "encoding 8 texts"; `hint` names the option that needs
    less.
    """
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        reason = lack_of_memory(error)
        if not reason:
            raise
        raise DenserkError(f"out of memory while {work} ({reason})", hint) from error
