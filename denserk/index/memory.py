"""How much memory a task needs, beside how much there is: told before it begins."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from denserk.errors import UsageError

logger = logging.getLogger(__name__)

MEMORY = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")
"""Where Linux tells what the machine, and a container, may still take."""
LIMITS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
"""A container's files, in the second and first version: what it may take, what it has, of what."""


@dataclass(frozen=True)
class Need:
    """A part of the memory that a task holds at once.

    Attributes:
        what: a noun phrase, "the training sample".
        size: bytes.
    """

    what: str
    size: int


def available_bytes() -> int | None:
    """Memory that can be had now, in bytes; None where the system does not tell."""
    found: list[int] = []
    try:
        lines = MEMORY.read_text(encoding="ascii").splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        pass
    for most, now, parts in LIMITS:
        try:
            limit, used = (int((GROUP / name).read_text(encoding="ascii")) for name in (most, now))
            lines = (GROUP / parts).read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):  # no such file; "max", which is no limit
            continue
        files = ("inactive_file ", "active_file ")  # copies of files, given back when asked for
        used -= sum(int(line.split()[1]) for line in lines if line.startswith(files))
        found.append(max(0, limit - used))
    return min(found, default=None)


def in_units(size: float) -> str:
    """Bytes as a person reads them.

    >>> in_units(2_150_400), in_units(3_072_000_000)
    ('2.2 MB', '3.1 GB')
    """
    unit, name = (1e9, "GB") if size >= 1e9 else (1e6, "MB")
    return f"{size / unit:,.1f} {name}"


def exact_needs(dimension: int, queries: int, depth: int) -> list[Need]:
    """Memory of an exact search for `depth` hits of so many queries at once, in D dimensions.

    >>> [(need.what, need.size >> 20) for need in exact_needs(768, 1024, 1000)]
    [('a block of vectors', 288), ('the top-k', 175)]
    """
    block = 32_768 * 3 * 4 * dimension  # rows of the widest block; float32, two copies
    hits = queries * depth
    held = 4 * hits * 3 * 10  # held for each hit that is returned; key and query; sorting them
    named = hits * (8 + 4 + 48)  # row, score, id
    return [Need("a block of vectors", block), Need("the top-k", held + named)]


def tell_needs(task: str, needs: Sequence[Need], alternative: str) -> None:
    """Tells what a task will hold in memory, and refuses one that cannot fit.

    Args:
        task: a noun phrase, "building IVF4096,PQ64".
        needs: what is held at the same time.
        alternative: what to do where it does not fit.

    Raises:
        UsageError: the machine has less.
    """
    total = sum(need.size for need in needs)
    parts = ", ".join(f"{need.what} {in_units(need.size)}" for need in needs if need.size)
    told = f"{task} needs {in_units(total)} of memory ({parts})"
    there = available_bytes()
    if there is not None and total > there:
        raise UsageError(f"{told}, and {in_units(there)} can be had", alternative)
    logger.info(told)
