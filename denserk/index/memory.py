"""Memory that a task needs, compared with what the system has before the task starts."""

import logging
from collections.abc import Mapping
from pathlib import Path

from denserk.errors import UsageError

logger = logging.getLogger(__name__)

# files of Linux with the memory of the machine and of a container (cgroup v2, cgroup v1):
# limit, use, and what the use consists of
MEMORY = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")
LIMITS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


def available_bytes() -> int | None:
    """Return the bytes of memory that are available now; None if the system does not report it."""
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
    """Format bytes as MB or GB.

    >>> in_units(2_150_400), in_units(3_072_000_000)
    ('2.2 MB', '3.1 GB')
    """
    unit, name = (1e9, "GB") if size >= 1e9 else (1e6, "MB")
    return f"{size / unit:,.1f} {name}"


def exact_search_needs(dimension: int, queries: int, depth: int) -> dict[str, int]:
    """Return the bytes of an exact search: `queries` at once, `depth` hits each, D dimensions.

    >>> {what: size >> 20 for what, size in exact_search_needs(768, 1024, 1000).items()}
    {'a block of vectors': 288, 'the top-k': 175}
    """
    block = 32_768 * 3 * 4 * dimension  # rows of the widest block; float32, two copies
    hits = queries * depth
    held = 4 * hits * 3 * 10  # held for each hit that is returned; key and query; sorting them
    named = hits * (8 + 4 + 48)  # row, score, id
    return {"a block of vectors": block, "the top-k": held + named}


def require_memory(task: str, needs: Mapping[str, int], hint: str) -> None:
    """Log the memory that a task needs, and raise an error if there is less.

    Args:
        task: a noun phrase, "building IVF4096,PQ64".
        needs: bytes of each part, by a noun phrase; all are held at the same time.
        hint: what to do if the memory does not suffice.

    Raises:
        UsageError: the memory does not suffice.
    """
    total = sum(needs.values())
    parts = ", ".join(f"{what} {in_units(size)}" for what, size in needs.items() if size)
    message = f"{task} needs {in_units(total)} of memory ({parts})"
    available = available_bytes()
    if available is not None and total > available:
        raise UsageError(f"{message}, and {in_units(available)} are available", hint)
    logger.info(message)
