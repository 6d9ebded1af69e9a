"""Choice of device, precision and backend, CPU threads and kernel caches."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from denserk.config.encoding import Backend, Dtype
from denserk.errors import UsageError
from denserk.models.openvino import openvino_installed

logger = logging.getLogger(__name__)

DTYPES = {
    Dtype.FLOAT32: torch.float32,
    Dtype.BFLOAT16: torch.bfloat16,
    Dtype.FLOAT16: torch.float16,
}

# Kernels are kept for each batch size and length. The defaults, 1,024 in oneDNN and as many in
# torch's own cache above it, let memory grow for hours; one batch needs far fewer.
KERNEL_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


def limit_kernel_caches() -> None:
    """Keep 16 CPU kernels of torch, where the user's environment does not set another number.

    Takes effect only before the first product of the process.
    """
    for name in KERNEL_CACHES:
        os.environ.setdefault(name, "16")


def choose_device(name: str) -> torch.device:
    """Return the device of that name; `auto` takes a GPU where there is one.

    Raises:
        UsageError: the name is no device, or the machine does not have it.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise UsageError(f"--device {name}: no such device", "one of auto, cpu, cuda, cuda:N")
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        if not seen:
            logger.info("no GPU is seen: computing on the CPU")
        return torch.device("cuda" if seen else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= seen:
        raise UsageError(
            f"--device {name}: this machine shows {seen or 'no'} GPU{'' if seen == 1 else 's'}",
            "choose --device cpu, or --device auto to take what there is",
        )
    return device


def choose_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """Return torch's dtype of a precision.

    Raises:
        UsageError: float16 on a CPU, which has no arithmetic for it and would take many times as
            long.
    """
    if dtype is Dtype.FLOAT16 and device.type == "cpu":
        raise UsageError(
            "--dtype float16 on the CPU is several times slower than float32",
            "choose --dtype bfloat16, or a GPU",
        )
    return DTYPES[dtype]


@cache
def has_bfloat16() -> bool:
    """Return True if the CPU has instructions for bfloat16 products."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)


def choose_backend(backend: Backend, device: torch.device) -> Backend:
    """Return the backend to try; `auto` takes OpenVINO on a CPU where it is installed.

    Raises:
        UsageError: OpenVINO was asked for on a GPU.
    """
    if backend is Backend.AUTO:
        fits = device.type == "cpu" and openvino_installed()
        return Backend.OPENVINO if fits else Backend.TORCH
    if backend is Backend.OPENVINO and device.type != "cpu":
        raise UsageError(f"--backend openvino computes on the CPU, not on {device}")
    return backend


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Context manager that temporarily sets the number of CPU threads."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
