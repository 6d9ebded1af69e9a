"""The OpenVINO backend: functions of torch tensors compiled for the CPU, and their int8 versions.

Functions are traced as they are, so nothing here knows an architecture. OpenVINO and NNCF report
their use over the network when they are imported; where the package `openvino_telemetry` is missing
they use stubs of their own, so that package is hidden from them.
"""

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from denserk.errors import ModelError
from denserk.extras import installed, require
from denserk.io.files import temporary_beside
from denserk.reporting import track

HINTS = {torch.float32: "f32", torch.bfloat16: "bf16"}
# Largest difference between compiled and plain results, relative to their size.
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 1e-1}
# Least mean and least 5th percentile of the cosines between int8 and float32 vectors.
LEAST_COSINES = (0.995, 0.98)


def openvino_installed() -> bool:
    """Return True if OpenVINO is installed."""
    return installed("openvino")


def _import(module: str, purpose: str) -> Any:
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    return require(module, purpose)


def _openvino() -> Any:
    return _import("openvino", "the backend openvino")


@contextlib.contextmanager
def _silent(name: str) -> Iterator[None]:
    """Let a logger show errors alone: tracing reads properties that warn."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class _Traced(nn.Module):
    """A function as a module; the weights that it uses belong to `owners`."""

    def __init__(self, function: Callable[..., Any], owners: Sequence[nn.Module]) -> None:
        super().__init__()
        self.owners = nn.ModuleList(owners)
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


class Compiled:
    """A function of tensors that OpenVINO computes on the CPU.

    Args:
        model: OpenVINO's form of the function.
        dtype: precision of the products, float32 or bfloat16.
    """

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self.model = model
        self.dtype = dtype
        self._by_threads: dict[int, Any] = {}

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Compute the function, on as many threads as torch would use; results are float32."""
        threads = torch.get_num_threads()
        if threads not in self._by_threads:
            settings = {
                "INFERENCE_PRECISION_HINT": HINTS[self.dtype],
                "INFERENCE_NUM_THREADS": threads,
                "PERFORMANCE_HINT": "LATENCY",
                "ENABLE_CPU_PINNING": False,  # all processes would be pinned to the same cores
            }
            core = _openvino().Core()
            self._by_threads[threads] = core.compile_model(self.model, "CPU", settings)
        results = self._by_threads[threads]([each.numpy() for each in inputs])
        return [torch.from_numpy(results[place]) for place in range(len(results))]

    def quantized(self, calibration: Sequence[tuple[Tensor, ...]]) -> "Compiled":
        """Return the function with int8 products, whose scales fit the inputs in `calibration`."""
        with contextlib.redirect_stdout(io.StringIO()):  # NNCF's own log and progress
            nncf = _import("nncf", "--int8")
            # NNCF reads all inputs twice
            with track("calibrating int8", 2 * len(calibration), "texts") as progress:

                def item(inputs: tuple[Tensor, ...]) -> list[NDArray[Any]]:
                    progress.advance()
                    return [each.numpy() for each in inputs]

                model = nncf.quantize(
                    self.model,
                    nncf.Dataset(calibration, item),
                    model_type=nncf.ModelType.TRANSFORMER,
                    subset_size=len(calibration),
                )
        return Compiled(model, torch.float32)

    def save(self, path: Path) -> None:
        """Write `path` (.xml) and the .bin beside it, as OpenVINO reads them.

        Both are renamed once they are whole, the .bin last.
        """
        temporary = temporary_beside(path)
        temporary.mkdir()
        _openvino().save_model(self.model, temporary / path.name, compress_to_fp16=False)
        for suffix in (".xml", ".bin"):
            (temporary / path.name).with_suffix(suffix).rename(path.with_suffix(suffix))
        temporary.rmdir()

    @classmethod
    def read(cls, path: Path) -> "Compiled":
        """Read what `save` wrote.

        Raises:
            ModelError: the files are missing or damaged.
        """
        try:
            return cls(_openvino().Core().read_model(path), torch.float32)
        except RuntimeError as error:
            raise ModelError(f"{path}: OpenVINO cannot read this file") from error


def compile_function(
    function: Callable[..., Any],
    owners: Sequence[nn.Module],
    example: tuple[Tensor, ...],
    dtype: torch.dtype,
) -> Compiled:
    """Compile a function of tensors for the CPU, and compare its results on the example.

    Args:
        function: takes tensors and returns one or a tuple.
        owners: the modules whose weights it uses, in float32.
        example: inputs; the sizes of their axes may differ later.
        dtype: precision of the products, float32 or bfloat16.

    Raises:
        ModelError: OpenVINO cannot convert the function, or its results differ from torch's.
    """
    with torch.no_grad(), warnings.catch_warnings(), _silent("transformers"):
        warnings.simplefilter("ignore")  # of tracing: the results are compared below
        expected = function(*example)
        try:
            traced = _Traced(function, owners)
            compiled = Compiled(_openvino().convert_model(traced, example_input=example), dtype)
            found = compiled(*example)
        except (RuntimeError, TypeError, ValueError) as error:
            reason = str(error).strip().splitlines()
            raise ModelError(
                f"OpenVINO cannot convert this model: {reason[0] if reason else error!r}",
                "choose --backend torch",
            ) from error
    pairs = zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True)
    off = max(float((one - other).norm() / other.norm()) for one, other in pairs)
    if not off <= TOLERANCES[dtype]:
        raise ModelError(
            f"OpenVINO's results differ from torch's by {off:.1e} of their size",
            "choose --backend torch",
        )
    return compiled


def certify(reduced: NDArray[np.float32], exact: NDArray[np.float32]) -> dict[str, float]:
    """Compare int8 vectors with float32 vectors, both (N, D).

    Returns:
        The mean and the 5th percentile of the cosines, by name.

    Raises:
        ModelError: one of them is below its bound.
    """
    norms = np.linalg.norm(reduced, axis=1) * np.linalg.norm(exact, axis=1)
    cosines = (reduced * exact).sum(1) / np.maximum(norms, np.finfo(np.float32).tiny)
    found = (float(cosines.mean()), float(np.quantile(cosines, 0.05)))
    if not all(value >= least for value, least in zip(found, LEAST_COSINES, strict=True)):
        raise ModelError(
            f"--int8: cosines to float32 are {found[0]:.4f} in the mean and {found[1]:.4f} at the "
            f"5th percentile, at least {LEAST_COSINES[0]} and {LEAST_COSINES[1]} are needed",
            "this model needs --dtype float32 or bfloat16",
        )
    return {"mean_cosine": round(found[0], 6), "cosine_5th_percentile": round(found[1], 6)}
