"""What is known of the processor and of GPUs without torch, which is slow to import."""

import hashlib
import os
import sys
from functools import cache
from pathlib import Path

from denserk.config.encoding import Dtype

# names in /dev that the drivers of GPUs give: NVIDIA's, Tegra's, AMD's, and WSL's
GPU_DEVICES = ("nvidia*", "nvhost*", "nvmap", "kfd", "dxg")
# flags of the processor: x86 and ARM
FLAG_LINES = ("flags", "Features")
NAME_LINES = ("model name", "CPU implementer", "CPU part")


@cache
def _lines() -> dict[str, str]:
    """Return what Linux tells of the first core, by its names; nothing on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    lines = {}
    for line in text.partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        lines[name.strip()] = value.strip()
    return lines


@cache
def has_bfloat16() -> bool:
    """Return True if the CPU has instructions for bfloat16 products."""
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(_flags())


def cpu_computes_in(dtype: Dtype) -> bool:
    """Return whether the CPU has instructions for a precision, and does not emulate it."""
    if dtype is Dtype.BFLOAT16:
        return has_bfloat16()
    return dtype is Dtype.FLOAT32


@cache
def has_amx() -> bool:
    """Return True if the CPU multiplies tiles of matrices in bfloat16 (AMX)."""
    return "amx_bf16" in _flags()


def processor_name() -> str:
    """Return the name of the processor with a hash of its instructions."""
    names = [_lines()[name] for name in NAME_LINES if name in _lines()]
    flags = hashlib.sha256(" ".join(sorted(_flags())).encode()).hexdigest()[:16]
    return " ".join([*names, flags])


def _flags() -> list[str]:
    """Return the instructions of the processor, as Linux names them."""
    flags = []
    for name in FLAG_LINES:
        flags += _lines().get(name, "").split()
    return flags


def is_surely_cpu(device: str) -> bool:
    """Return True if `--device` means the CPU; False too where only torch can tell."""
    if device != "auto":
        return device == "cpu"
    torch = sys.modules.get("torch")
    if torch is not None:
        return not torch.cuda.is_available()
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return True
    return not any(any(Path("/dev").glob(pattern)) for pattern in GPU_DEVICES)
