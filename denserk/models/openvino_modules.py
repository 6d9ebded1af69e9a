"""Modules of torch that OpenVINO computes on a CPU, checked against torch."""

import io
import logging
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from denserk.errors import Interrupted, ModelError
from denserk.io.durability import flush_names, flush_tree
from denserk.io.written_files import temporary_beside
from denserk.models.devices import DTYPES
from denserk.models.openvino_runtime import (
    PRECISION_HINTS,
    CpuModel,
    core,
    import_openvino,
)

logger = logging.getLogger(__name__)
# OpenVINO's names of precisions
HINTS = {DTYPES[dtype]: hint for dtype, hint in PRECISION_HINTS.items()}
# Largest difference between compiled and plain results, relative to their size.
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 1e-1}
# of the cosines between int8 and float32 vectors
LEAST_MEAN_COSINE = 0.995
LEAST_COSINE_5TH_PERCENTILE = 0.98


class Compiled:
    """A module that OpenVINO computes on the CPU, products in `dtype`."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self.model = model
        self.dtype = dtype
        self._cpu_model = CpuModel(model, HINTS[dtype])

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Return the module's outputs in float32, computed on as many threads as torch uses."""
        outputs = self._cpu_model(_numpy_arrays(inputs), torch.get_num_threads())
        return [torch.from_numpy(output) for output in outputs]

    def quantized(self, calibration: Sequence[tuple[Tensor, ...]]) -> "Compiled":
        """Return the module with int8 products, their scales calibrated on these inputs."""
        logger.info(f"calibrating int8 on {len(calibration)} texts")
        with redirect_stdout(io.StringIO()):  # NNCF's own log and progress
            nncf = import_openvino("nncf", "--int8")
            model = nncf.quantize(
                self.model,
                nncf.Dataset(calibration, _numpy_arrays),
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(calibration),
            )
        return Compiled(model, torch.float32)

    def save(self, path: Path) -> None:
        """Write `path` (.xml) and the .bin beside it, which is renamed last, from a temporary."""
        temporary = temporary_beside(path)
        temporary.mkdir()
        import_openvino().save_model(self.model, temporary / path.name, compress_to_fp16=False)
        flush_tree(temporary)
        for suffix in (".xml", ".bin"):
            (temporary / path.name).with_suffix(suffix).rename(path.with_suffix(suffix))
            flush_names(path.parent)
        temporary.rmdir()

    @classmethod
    def read(cls, path: Path) -> "Compiled":
        """Read what `save` wrote."""
        return cls(core().read_model(path), torch.float32)


def _numpy_arrays(tensors: Iterable[Tensor]) -> list[NDArray[Any]]:
    """Return inputs as OpenVINO takes them."""
    return [tensor.numpy() for tensor in tensors]


class Traced(nn.Module):
    """A function as a module that OpenVINO can convert; `owner` has the weights that it reads."""

    def __init__(self, owner: nn.Module, function: Callable[..., Iterable[Tensor]]) -> None:
        super().__init__()
        self.owner = owner
        self.function = function

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the function's results."""
        return tuple(self.function(*inputs))


def compile_module(module: nn.Module, example: tuple[Tensor, ...], dtype: torch.dtype) -> Compiled:
    """Compile a module, which returns a tuple of tensors, for the CPU.

    Inputs may have other sizes than the example. A ModelError if OpenVINO cannot convert the
    module, or its results on the example differ from torch's.
    """
    from denserk.models.checkpoints import silent  # and transformers: slow to import

    hint = "choose --backend torch"
    with torch.no_grad(), warnings.catch_warnings(action="ignore"), silent():
        expected = module(*example)
        try:
            model = import_openvino().convert_model(module, example_input=example)
            compiled = Compiled(model, dtype)
            results = compiled(*example)
        except (RuntimeError, TypeError, ValueError) as error:
            Interrupted.raise_received()  # conversion calls Python, where signals are raised
            reason = str(error).strip().partition("\n")[0] or repr(error)
            raise ModelError(f"OpenVINO cannot convert this model: {reason}", hint) from error
    difference = max(
        float((result - of_torch).norm() / of_torch.norm())
        for result, of_torch in zip(results, expected, strict=True)
    )
    if not difference <= TOLERANCES[dtype]:  # also if it is not a number
        raise ModelError(
            f"OpenVINO's results differ from torch's by {difference:.1e} of their size", hint
        )
    return compiled


def certify(reduced: NDArray[np.float32], exact: NDArray[np.float32]) -> dict[str, float]:
    """Return mean and 5th percentile of the cosines between int8 and float32 vectors (N, D).

    A ModelError if one of them is below its bound.
    """
    norms = np.linalg.norm(reduced, axis=1) * np.linalg.norm(exact, axis=1)
    cosines = (reduced * exact).sum(1) / np.maximum(norms, np.finfo(np.float32).tiny)
    mean = float(cosines.mean())
    percentile_5 = float(np.quantile(cosines, 0.05))
    is_close = mean >= LEAST_MEAN_COSINE and percentile_5 >= LEAST_COSINE_5TH_PERCENTILE
    if not is_close:
        raise ModelError(
            f"--int8: cosines to float32 are {mean:.4f} in the mean and {percentile_5:.4f} at the "
            f"5th percentile, at least {LEAST_MEAN_COSINE} and {LEAST_COSINE_5TH_PERCENTILE} are "
            "needed",
            "this model needs --dtype float32 or bfloat16",
        )
    return {"mean_cosine": round(mean, 6), "cosine_5th_percentile": round(percentile_5, 6)}
