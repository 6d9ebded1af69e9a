"""What processes of one run tell each other: vectors with their gradient, and gradients.

Every process computes the loss of the whole batch from everybody's vectors, with gradients through
its own alone; the sum of the processes' gradients is then the gradient of one process that holds
the whole batch.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

T = TypeVar("T")


def world() -> tuple[int, int]:
    """(rank, number of processes); (0, 1) where there is one."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


@contextmanager
def leaving() -> Iterator[None]:
    """Leaves the other processes when a run is over, however it ends.

    A thread of theirs that still works while the interpreter ends would abort this process.
    """
    try:
        yield
    finally:
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()


def gather(tensor: Tensor) -> Tensor:
    """Everybody's rows in rank order, the own ones with their graph. (N, ...) -> (R N, ...)."""
    rank, size = world()
    if size == 1:
        return tensor
    parts = [torch.empty_like(tensor) for _ in range(size)]
    dist.all_gather(parts, tensor.detach().contiguous())
    parts[rank] = tensor
    return torch.cat(parts)


def widest(size: int, device: torch.device) -> int:
    """The largest of everybody's sizes."""
    if world()[1] == 1:
        return size
    value = torch.tensor(size, device=device)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return int(value)


def widen(tensor: Tensor, size: int, axis: int = 1, value: float = 0) -> Tensor:
    """Fills an axis with zeros (False), or a value, up to a size. (N, S, ...) -> (N, size, ...)."""
    missing = size - tensor.shape[axis]
    after = [0, 0] * (tensor.dim() - axis - 1)
    return F.pad(tensor, [*after, 0, missing], value=value) if missing else tensor


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Adds up the gradients of all processes, in place; one that a process lacks counts as zero.

    One that all processes lack stays away: the optimiser would decay a parameter whose gradient is
    zero, which a single process does not do.
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


def first_then_others(work: Callable[[], T]) -> T:
    """Does work that writes files in the first process; the others follow, and find it done."""
    rank, size = world()
    if size > 1 and rank > 0:
        dist.barrier()
        return work()
    done = work()
    if size > 1:
        dist.barrier()
    return done
