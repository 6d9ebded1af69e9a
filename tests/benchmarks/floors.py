"""What disk and processor reach when they do nothing else, to stand beside a command's rates."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

CHUNK = 1 << 24
"""Bytes written or read at once."""


def write_plainly(path: Path, size: int) -> float:
    """Seconds in which the disk takes so many bytes; the file is removed."""
    block = bytes(CHUNK)
    start = time.perf_counter()
    with path.open("wb", buffering=0) as out:
        for first in range(0, size, CHUNK):
            out.write(block[: size - first])
        os.fsync(out.fileno())
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds


def forget(paths: Iterable[Path]) -> None:
    """Has the file cache let go of files."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def read_plainly(paths: Iterable[Path]) -> float:
    """Seconds of reading files from the start to the end."""
    held = bytearray(CHUNK)
    start = time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as handle:
            while handle.readinto(held):
                pass
    return time.perf_counter() - start


def multiply(count: int, others: int, dimension: int, dtype: str) -> float:
    """CPU seconds of the products of `count` vectors with `others`, on one thread.

    Computed from blocks of 2,048 in the caches, each multiplied for half a second.
    """
    import torch

    torch.set_num_threads(1)
    kind = getattr(torch, dtype)
    some = min(others, 1024)
    rows, asked = (torch.randn(n, dimension).to(kind) for n in (2048, some))
    out = torch.empty(2048, some, dtype=kind)
    done, start = 0, time.process_time()
    while (seconds := time.process_time() - start) < 0.5 or done < 10:
        torch.mm(rows, asked.T, out=out)
        done += 1
    return seconds / done / len(rows) / some * count * others
