"""Processes of one run, started by torchrun: rank and world size, collectives, summed gradients.

In training every process computes the loss of the whole batch from the embeddings of all processes,
with gradients through its own alone; the sum of the processes' gradients is then the gradient of
one process that has the whole batch.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from denserk.errors import DenserkError, UsageError
from denserk.models.devices import choose_device
from denserk.reporting import show_progress

T = TypeVar("T")
# A process may wait for the others for as long as they work.
TIMEOUT = timedelta(days=30)


def launched() -> bool:
    """Return True if torchrun started this process as one of several."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def device_of_rank(name: str) -> str:
    """Return the device of this process: under torchrun, the GPU of its local rank."""
    if not launched():
        return name
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(
            f"--device {name} under torchrun, where each process takes the GPU of its rank",
            "use --device auto, cpu or cuda",
        )
    if choose_device(name).type == "cpu":
        return "cpu"
    return str(choose_device(f"cuda:{os.environ['LOCAL_RANK']}"))


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """Join the processes that torchrun started; only the main process logs and shows progress."""
    if not launched() or dist.is_initialized():
        yield
        return
    gpu = device.startswith("cuda")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", timeout=TIMEOUT)
    logger = logging.getLogger("denserk")
    level = logger.level
    if dist.get_rank():
        logger.setLevel(logging.ERROR)
        show_progress(None)
    try:
        yield
    finally:
        logger.setLevel(level)
        dist.destroy_process_group()


def world() -> tuple[int, int]:
    """Return (rank, number of processes); (0, 1) where there is one."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


@contextmanager
def _lost_process() -> Iterator[None]:
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
    made: list[Any] = [None, None]
    if rank == 0:
        try:
            made = [work(), None]
        except Exception as error:  # noqa: BLE001 - raised again by all
            known = isinstance(error, DenserkError | OSError)  # others may not be picklable
            made = [None, error if known else RuntimeError(f"{type(error).__name__}: {error}")]
    with _lost_process():
        dist.broadcast_object_list(made, src=0)
    if made[1] is not None:
        raise made[1]
    result: T = made[0]
    return result


def main_process_first(work: Callable[[], T]) -> T:
    """Run `work`, which writes files, in the main process; the others follow and find them."""
    rank, size = world()
    if rank:
        dist.barrier()
    done = work()
    if size > 1 and not rank:
        dist.barrier()
    return done


def gather_objects(item: T) -> list[T]:
    """Return the items of all processes in rank order; in other than the main process, []."""
    rank, size = world()
    if size == 1:
        return [item]
    items: list[Any] | None = None if rank else [None] * size
    with _lost_process():
        dist.gather_object(item, items, dst=0)
    return items or []


def gather(tensor: Tensor) -> Tensor:
    """Return all processes' rows by rank, this one's with their graph: (N, ...) -> (R N, ...)."""
    rank, size = world()
    if size == 1:
        return tensor
    parts = [torch.empty_like(tensor) for _ in range(size)]
    dist.all_gather(parts, tensor.detach().contiguous())
    parts[rank] = tensor
    return torch.cat(parts)


def widest(size: int, device: torch.device) -> int:
    """Return the largest size of all processes."""
    return int(gather(torch.tensor([size], device=device)).max())


def widen(tensor: Tensor, size: int, axis: int = 1, value: float = 0) -> Tensor:
    """Pad an axis with a value up to a size: (N, S, ...) -> (N, size, ...)."""
    missing = size - tensor.shape[axis]
    after = [0, 0] * (tensor.dim() - axis - 1)
    return F.pad(tensor, [*after, 0, missing], value=value) if missing else tensor


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Add up the gradients of all processes, in place; a missing one counts as zero.

    A gradient that all lack stays missing: with zero, the optimiser would decay the parameter.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if world()[1] == 1 or not trained:
        return
    present = torch.tensor([p.grad is not None for p in trained], device=trained[0].device).int()
    dist.all_reduce(present)
    for parameter, count in zip(trained, present.tolist(), strict=True):
        if count:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
