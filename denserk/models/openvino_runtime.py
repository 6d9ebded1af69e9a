"""OpenVINO: its import, and models that it compiles for the CPU; nothing here imports torch.

OpenVINO and NNCF report their use over the network when they are imported; where the package
`openvino_telemetry` is missing they use stubs of their own, so that package is hidden from them.
"""

import os
import sys
from collections.abc import Sequence
from functools import cache
from threading import Lock
from typing import Any

from numpy.typing import NDArray

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


class CpuModel:
    """A model that OpenVINO computes on the CPU, compiled once for each number of threads.

    What OpenVINO compiles has one set of inputs and outputs: threads that call this model at once
    take turns.
    """

    def __init__(self, model: Any, precision_hint: str) -> None:
        self._model = model
        self._precision_hint = precision_hint
        self._compiled_by_threads: dict[int, Any] = {}
        self._turn = Lock()

    def __call__(self, inputs: Sequence[NDArray[Any]], threads: int) -> list[NDArray[Any]]:
        """Return copies of the model's outputs, computed on so many threads."""
        with self._turn:
            if threads not in self._compiled_by_threads:
                compiled = compile_for_cpu(self._model, self._precision_hint, threads)
                self._compiled_by_threads[threads] = compiled
            outputs = self._compiled_by_threads[threads](inputs)
        return [outputs[number] for number in range(len(outputs))]


def limit_kept_kernels() -> None:
    """Keep 16 CPU kernels, unless the user set another number.

    They are kept for each batch size and length, by default 1,024 in oneDNN and in torch, so that
    memory would grow for hours.
    """
    for name in KEPT_KERNELS:
        os.environ.setdefault(name, "16")
