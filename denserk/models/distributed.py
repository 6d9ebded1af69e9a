"""Processes of torchrun: who is the main one, and what they exchange.

In training every process computes the loss of the whole batch from the embeddings of all processes,
with gradients through its own alone; the sum of the processes' gradients is then the gradient of
one process that has the whole batch.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from denserk.errors import DenserkError, UsageError
from denserk.models.devices import launched, use_device
from denserk.reporting import set_display

logger = logging.getLogger(__name__)
T = TypeVar("T")
# Gradients are summed over processes in buckets: few calls, and not twice the memory of all. One
# bucket is sent while the next is filled.
BUCKET_BYTES = 25 * 2**20
BUCKETS_UNDER_WAY = 2


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """Join the processes that torchrun started; only the main process logs and shows progress."""
    if launched() and ":" in device:
        raise UsageError(
            f"--device {device} under torchrun, where each process takes the GPU of its rank",
            "use --device auto, cpu or cuda",
        )
    if not launched() or dist.is_initialized():  # a step of a command that has joined them
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
def _lost_process_errors() -> Iterator[None]:
    """Turn torch's error where another process ended, and does not answer, into one of denserk."""
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
    with _lost_process_errors():
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
    with _lost_process_errors():
        dist.gather_object(item, items, dst=0)
    return items or []


def gather(tensor: Tensor) -> Tensor:
    """Return the rows of all R processes by rank: (N, ...) -> (R N, ...), with one N and dtype.

    Gradients pass to this process's own rows alone.
    """
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
    for bucket in buckets_of(_gradients_of_any_process(trained), BUCKET_BYTES):
        sums.append(_Sum(bucket))
        if len(sums) == BUCKETS_UNDER_WAY:
            sums.popleft().copy_back()
    for unfinished_sum in sums:
        unfinished_sum.copy_back()


def _gradients_of_any_process(trained: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return the gradients of parameters that have one in any process, so that all return as many.

    A parameter that lacks one in this process is given zeros.
    """
    has_gradient = [parameter.grad is not None for parameter in trained]
    process_counts = torch.tensor(has_gradient, device=trained[0].device).int()
    dist.all_reduce(process_counts)
    gradients = []
    for parameter, process_count in zip(trained, process_counts.tolist(), strict=True):
        if process_count == 0:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    return gradients


class _Sum:
    """The sum of a bucket of gradients over all processes; to create it starts the exchange."""

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
