"""Device, precision, CPU threads, and torch modules that OpenVINO computes.

OpenVINO and NNCF report their use over the network when they are imported; where the package
`openvino_telemetry` is missing they use stubs of their own, so that package is hidden from them.
"""

import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from denserk.config.encoding import ComputeSettings, Dtype
from denserk.errors import ModelError, UsageError
from denserk.extras import require
from denserk.io.files import temporary_beside

logger = logging.getLogger(__name__)

DTYPES: dict[Dtype, torch.dtype] = {dtype: getattr(torch, dtype.value) for dtype in Dtype}

# CPU kernels are kept for each batch size and length, by default 1,024 in oneDNN and in torch, so
# that memory would grow for hours; 16 are kept.
KERNEL_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")

# OpenVINO's names of precisions
HINTS = {torch.float32: "f32", torch.bfloat16: "bf16"}
# Largest difference between compiled and plain results, relative to their size.
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 1e-1}
# Least mean and least 5th percentile of the cosines between int8 and float32 vectors.
LEAST_COSINES = (0.995, 0.98)


def choose_device(name: str) -> torch.device:
    """Return the device of that name; `auto` takes a GPU where there is one."""
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


def prepare_device(compute: ComputeSettings) -> torch.device:
    """Set the number of CPU threads, if given, and of kept kernels, and return the device."""
    for name in KERNEL_CACHES:
        os.environ.setdefault(name, "16")
    if compute.threads is not None:
        torch.set_num_threads(compute.threads)
    return choose_device(compute.device)


def choose_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """Return torch's dtype of a precision; a UsageError for float16 on a CPU."""
    if dtype is Dtype.FLOAT16 and device.type == "cpu":
        raise UsageError("--dtype float16 on the CPU is slow: choose --dtype bfloat16, or a GPU")
    return DTYPES[dtype]


def at_least_float32(tensor: Tensor) -> Tensor:
    """The same numbers, 16-bit ones widened to 32; float64 stays."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


@cache
def has_bfloat16() -> bool:
    """Return True if the CPU has instructions for bfloat16 products."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Context manager that temporarily sets the number of CPU threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _import(module: str, purpose: str = "the backend openvino") -> Any:
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    return require(module, purpose)


@cache
def _core() -> Any:
    # One for the whole process, kept to its end: a Core that ends before a later one leaves the
    # main thread a signal stack that is no longer mapped, and the next signal is a crash.
    return _import("openvino").Core()


class Compiled:
    """A module that OpenVINO computes on the CPU, products in `dtype`."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype
        self._by_threads: dict[int, Any] = {}

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Return the module's outputs in float32, computed on as many threads as torch uses."""
        threads = torch.get_num_threads()
        if threads not in self._by_threads:
            settings = {
                "INFERENCE_PRECISION_HINT": HINTS[self.dtype],
                "INFERENCE_NUM_THREADS": threads,
                "PERFORMANCE_HINT": "LATENCY",
                "ENABLE_CPU_PINNING": False,  # all processes would be pinned to the same cores
            }
            self._by_threads[threads] = _core().compile_model(self.model, "CPU", settings)
        results = self._by_threads[threads]([each.numpy() for each in inputs])
        return [torch.from_numpy(results[place]) for place in range(len(results))]

    def quantized(self, calibration: Sequence[tuple[Tensor, ...]]) -> "Compiled":
        """Return the module with int8 products, their scales calibrated on these inputs."""
        logger.info(f"calibrating int8 on {len(calibration)} texts")
        with redirect_stdout(io.StringIO()):  # NNCF's own log and progress
            nncf = _import("nncf", "--int8")
            model = nncf.quantize(
                self.model,
                nncf.Dataset(calibration, lambda inputs: [each.numpy() for each in inputs]),
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(calibration),
            )
        return Compiled(model, torch.float32)

    def save(self, path: Path) -> None:
        """Write `path` (.xml) and the .bin beside it, which is renamed last, from a temporary."""
        temporary = temporary_beside(path)
        temporary.mkdir()
        _import("openvino").save_model(self.model, temporary / path.name, compress_to_fp16=False)
        for suffix in (".xml", ".bin"):
            (temporary / path.name).with_suffix(suffix).rename(path.with_suffix(suffix))
        temporary.rmdir()

    @classmethod
    def read(cls, path: Path) -> "Compiled":
        """Read what `save` wrote."""
        return cls(_core().read_model(path), torch.float32)


class Traced(nn.Module):
    """A function as a module that OpenVINO can convert; `owner` has the weights that it reads."""

    def __init__(self, owner: nn.Module, function: Callable[..., Iterable[Tensor]]) -> None:
        super().__init__()
        self.owner, self.function = owner, function

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the function's results."""
        return tuple(self.function(*inputs))


def compile_module(module: nn.Module, example: tuple[Tensor, ...], dtype: torch.dtype) -> Compiled:
    """Compile a module, which returns a tuple of tensors, for the CPU.

    Inputs may have other sizes than the example. A ModelError if OpenVINO cannot convert the
    module, or its results on the example differ from torch's.
    """
    from denserk.models.checkpoints import silent  # and transformers: slow to import

    with torch.no_grad(), warnings.catch_warnings(action="ignore"), silent():
        expected = module(*example)
        try:
            model = _import("openvino").convert_model(module, example_input=example)
            compiled = Compiled(model, dtype)
            found = compiled(*example)
        except (RuntimeError, TypeError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0] or repr(error)
            raise ModelError(
                f"OpenVINO cannot convert this model: {reason}", "choose --backend torch"
            ) from error
    pairs = zip(found, expected, strict=True)
    off = max(float((one - other).norm() / other.norm()) for one, other in pairs)
    if not off <= TOLERANCES[dtype]:
        raise ModelError(
            f"OpenVINO's results differ from torch's by {off:.1e} of their size",
            "choose --backend torch",
        )
    return compiled


def certify(reduced: NDArray[np.float32], exact: NDArray[np.float32]) -> dict[str, float]:
    """Return mean and 5th percentile of the cosines between int8 and float32 vectors (N, D).

    A ModelError if one of them is below its bound.
    """
    norms = np.linalg.norm(reduced, axis=1) * np.linalg.norm(exact, axis=1)
    cosines = (reduced * exact).sum(1) / np.maximum(norms, np.finfo(np.float32).tiny)
    found = float(cosines.mean()), float(np.quantile(cosines, 0.05))
    if not all(value >= least for value, least in zip(found, LEAST_COSINES, strict=True)):
        raise ModelError(
            f"--int8: cosines to float32 are {found[0]:.4f} in the mean and {found[1]:.4f} at the "
            f"5th percentile, at least {LEAST_COSINES[0]} and {LEAST_COSINES[1]} are needed",
            "this model needs --dtype float32 or bfloat16",
        )
    return {"mean_cosine": round(found[0], 6), "cosine_5th_percentile": round(found[1], 6)}
