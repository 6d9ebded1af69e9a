"""Memory that a task needs, compared with what the system has before the task starts."""

import logging
from collections.abc import Mapping
from contextlib import suppress
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
    with suppress(OSError, ValueError):
        lines = MEMORY.read_text(encoding="ascii").splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    for most, now, parts in LIMITS:
        with suppress(OSError, ValueError):  # no such file; "max", which is no limit
            limit, used = (int((GROUP / name).read_text(encoding="ascii")) for name in (most, now))
            lines = (GROUP / parts).read_text(encoding="ascii").splitlines()
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


def require_memory(task: str, needs: Mapping[str, int], hint: str) -> None:
    """Log the memory that a task needs, in bytes of each part, and reject it if there is less."""
    total = sum(needs.values())
    parts = ", ".join(f"{what} {in_units(size)}" for what, size in needs.items() if size)
    message = f"{task} needs {in_units(total)} of memory ({parts})"
    available = available_bytes()
    if available is not None and total > available:
        raise UsageError(f"{message}, and {in_units(available)} are available", hint)
    logger.info(message)
