"""OpenVINO: its import, and models that it compiles for the CPU; nothing here imports torch.

OpenVINO and NNCF report their use over the network when they are imported; where the package
`openvino_telemetry` is missing they use stubs of their own, so that package is hidden from them.
"""

import os
import sys
from functools import cache
from typing import Any

from denserk.config.encoding import Dtype
from denserk.extras import require

# OpenVINO's names of precisions
PRECISION_HINTS = {Dtype.FLOAT32: "f32", Dtype.BFLOAT16: "bf16"}
# variables by which oneDNN and torch keep kernels
KEPT_KERNELS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


def import_openvino(module: str = "openvino", purpose: str = "the backend openvino") -> Any:
    """Import OpenVINO, or a package that imports it, without reports over the network."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    return require(module, purpose)


@cache
def core() -> Any:
    """Return OpenVINO's Core.

    One for the whole process, kept to its end: a Core that ends before a later one leaves the main
    thread a signal stack that is no longer mapped, and the next signal is a crash.
    """
    return import_openvino().Core()


def compile_for_cpu(model: Any, precision_hint: str, threads: int) -> Any:
    """Compile a model for products in a precision, on so many threads."""
    settings = {
        "INFERENCE_PRECISION_HINT": precision_hint,
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,  # all processes would be pinned to the same cores
    }
    return core().compile_model(model, "CPU", settings)


def limit_kept_kernels() -> None:
    """Keep 16 CPU kernels, unless the user set another number.

    They are kept for each batch size and length, by default 1,024 in oneDNN and in torch, so that
    memory would grow for hours.
    """
    for name in KEPT_KERNELS:
        os.environ.setdefault(name, "16")
