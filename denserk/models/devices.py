"""Where models run: device, precision, CPU threads, processes of torchrun, and OpenVINO.

In training every process computes the loss of the whole batch from the embeddings of all processes,
with gradients through its own alone; the sum of the processes' gradients is then the gradient of
one process that has the whole batch.
"""

import io
import logging
import os
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from denserk.config.encoding import ComputeSettings, Dtype, DtypeChoice
from denserk.errors import DenserkError, Interrupted, ModelError, UsageError, lack_of_memory
from denserk.io.durability import flush_names, flush_tree
from denserk.io.files import temporary_beside
from denserk.models import processor
from denserk.models.openvino_runtime import (
    PRECISION_HINTS,
    compile_for_cpu,
    core,
    import_openvino,
    limit_kept_kernels,
)
from denserk.reporting import set_display

logger = logging.getLogger(__name__)

T = TypeVar("T")

DTYPES: dict[Dtype, torch.dtype] = {dtype: getattr(torch, dtype.value) for dtype in Dtype}
# OpenVINO's names of precisions
HINTS = {DTYPES[dtype]: hint for dtype, hint in PRECISION_HINTS.items()}
# CPU threads that torch takes by itself
DEFAULT_THREADS = torch.get_num_threads()
# Largest difference between compiled and plain results, relative to their size.
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 1e-1}
# of the cosines between int8 and float32 vectors
LEAST_MEAN_COSINE = 0.995
LEAST_COSINE_5TH_PERCENTILE = 0.98
# Threads that tokenise for a GPU, by default.
MOST_WORKERS = 8
# Gradients are summed over processes in buckets: few calls, and not twice the memory of all.
BUCKET_BYTES = 25 * 2**20
BUCKETS_UNDER_WAY = 2


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
    device = torch.device(name)
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
    """Set the number of CPU threads, if given, and of kept kernels, and return the device."""
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

    Of GPUs, it must be the current one.
    """
    if dtype is Dtype.FLOAT32:
        return True
    if dtype is Dtype.FLOAT16:
        return device.type != "cpu"
    if device.type == "cpu":
        return processor.has_bfloat16()
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def default_workers(device: torch.device) -> int:
    """Return the number of threads that tokenise for one process: on a CPU the model has the cores.

    A GPU waits for one thread, so all cores but one tokenise, at most 8; processes of torchrun
    share them.
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
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def memory_errors(work: str, hint: str) -> Iterator[None]:
    """Turn torch's lack of memory into one error: `work` is what was computed, "encoding 8 texts".

    `hint` names the option that needs less.
    """
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        reason = lack_of_memory(error)
        if not reason:
            raise
        raise DenserkError(f"out of memory while {work} ({reason})", hint) from error


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """Join the processes that torchrun started; only the main process logs and shows progress."""
    if launched() and ":" in device:
        raise UsageError(
            f"--device {device} under torchrun, where each process takes the GPU of its rank",
            "use --device auto, cpu or cuda",
        )
    if not launched() or dist.is_initialized():
        yield
        return
    is_gpu = use_device(device).type == "cuda"
    backend = "cpu:gloo,cuda:nccl" if is_gpu else "gloo"
    # a process may wait for the others for as long as they work
    dist.init_process_group(backend, timeout=timedelta(days=30))
    package_logger = logging.getLogger("denserk")
    level = package_logger.level
    if dist.get_rank() != 0:
        package_logger.setLevel(logging.ERROR)
        set_display(None)
    try:
        yield
    finally:
        package_logger.setLevel(level)
        dist.destroy_process_group()


def world() -> tuple[int, int]:
    """Return (rank, number of processes); (0, 1) where there is one."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


@contextmanager
def _lost_process() -> Iterator[None]:
    """Turn the error of torch where another process ended into one that says so."""
    try:
        yield
    except RuntimeError:
        raise DenserkError(
            "another process of this run ended before it was done",
            "finished work is kept: continue with --resume",
        ) from None


def from_main_process(work: Callable[[], T]) -> T:
    """Run `work` in the main process; every process returns its result, or raises its error."""
    rank, size = world()
    if size == 1:
        return work()
    result_and_error: list[Any] = [None, None]
    if rank == 0:
        try:
            result_and_error[0] = work()
        except Exception as error:  # noqa: BLE001 - raised again by all
            result_and_error[1] = _picklable(error)
    with _lost_process():
        dist.broadcast_object_list(result_and_error, src=0)
    result: T
    result, main_error = result_and_error
    if main_error is not None:
        raise main_error
    return result


def _picklable(error: Exception) -> Exception:
    """Return an error that can be sent to other processes; those of libraries may not be."""
    if isinstance(error, DenserkError | OSError):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def main_process_first(work: Callable[[], T]) -> T:
    """Run `work`, which writes files, in the main process; the others follow and find them."""
    rank, size = world()
    if rank != 0:
        dist.barrier()  # until the main process has reached the one below
    result = work()
    if size > 1 and rank == 0:
        dist.barrier()
    return result


def gather_objects(item: T) -> list[T]:
    """Return the items of all processes in rank order; in other than the main process, []."""
    rank, size = world()
    if size == 1:
        return [item]
    items: list[Any] | None = [None] * size if rank == 0 else None
    with _lost_process():
        dist.gather_object(item, items, dst=0)
    return items or []


def gather(tensor: Tensor) -> Tensor:
    """Return all processes' rows by rank, this one's with their graph: (N, ...) -> (R N, ...)."""
    rank, size = world()
    if size == 1:
        return tensor
    tensors = [torch.empty_like(tensor) for _ in range(size)]
    dist.all_gather(tensors, tensor.detach().contiguous())
    tensors[rank] = tensor
    return torch.cat(tensors)


def widest(size: int, device: torch.device) -> int:
    """Return the largest size of all processes."""
    return int(gather(torch.tensor([size], device=device)).max())


def widen(tensor: Tensor, size: int, axis: int = 1, value: float = 0) -> Tensor:
    """Pad an axis with a value up to a size: (N, S, ...) -> (N, size, ...).

    >>> widen(torch.tensor([[1, 2]]), 4).tolist()
    [[1, 2, 0, 0]]
    """
    missing = size - tensor.shape[axis]
    if not missing:
        return tensor
    # torch takes (before, after) for each axis, the last axis first
    later_axes = [0, 0] * (tensor.dim() - axis - 1)
    return F.pad(tensor, [*later_axes, 0, missing], value=value)


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Add up the gradients of all processes, in place; a missing one counts as zero.

    A gradient that all lack stays missing: with zero, the optimiser would decay the parameter.
    Gradients are sent many at a time, the next while the last are under way.
    """
    _, size = world()
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if size == 1 or not trained:
        return
    sums: deque[_Sum] = deque()  # those that are under way
    for bucket in buckets_of(_gradients_of_all(trained), BUCKET_BYTES):
        sums.append(_Sum(bucket))
        if len(sums) == BUCKETS_UNDER_WAY:
            sums.popleft().copy_back()
    for unfinished_sum in sums:
        unfinished_sum.copy_back()


def _gradients_of_all(trained: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return the gradients of parameters that have one in any process; here, perhaps new zeros."""
    has_gradient = [parameter.grad is not None for parameter in trained]
    counts = torch.tensor(has_gradient, device=trained[0].device).int()
    dist.all_reduce(counts)
    gradients = []
    for parameter, processes in zip(trained, counts.tolist(), strict=True):
        if processes == 0:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    return gradients


class _Sum:
    """The sum of a bucket of gradients over all processes, which starts when this is made."""

    def __init__(self, gradients: Sequence[Tensor]) -> None:
        self._gradients = gradients
        self._values = torch.cat([gradient.flatten() for gradient in gradients])
        self._work = dist.all_reduce(self._values, async_op=True)

    def copy_back(self) -> None:
        """Wait for the sum, and write it over the gradients."""
        self._work.wait()
        sizes = [gradient.numel() for gradient in self._gradients]
        sums = torch.split(self._values, sizes)
        for gradient, flat_sum in zip(self._gradients, sums, strict=True):
            gradient.copy_(flat_sum.view_as(gradient))


def buckets_of(tensors: Iterable[Tensor], most_bytes: int) -> Iterator[list[Tensor]]:
    """Group tensors of one dtype and device, in their order, up to a size in bytes.

    A larger tensor is alone. Equal shapes and dtypes in every process give equal buckets.
    """
    buckets: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        key = (tensor.dtype, tensor.device)
        bucket = buckets.setdefault(key, [])
        bucket_bytes = sum(member.nbytes for member in bucket)
        if bucket and bucket_bytes + tensor.nbytes > most_bytes:
            yield bucket
            bucket = []
            buckets[key] = bucket
        bucket.append(tensor)
    yield from buckets.values()


class Compiled:
    """A module that OpenVINO computes on the CPU, products in `dtype`."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self.model = model
        self.dtype = dtype
        self._by_threads: dict[int, Any] = {}

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Return the module's outputs in float32, computed on as many threads as torch uses."""
        threads = torch.get_num_threads()
        if threads not in self._by_threads:
            self._by_threads[threads] = compile_for_cpu(self.model, HINTS[self.dtype], threads)
        arrays = self._by_threads[threads](_numpy_arrays(inputs))
        return [torch.from_numpy(arrays[output]) for output in range(len(arrays))]

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
