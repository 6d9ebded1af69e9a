"""The memory that is available, and the check of what a task needs."""

import logging
from collections.abc import Mapping
from pathlib import Path

from rich.filesize import decimal

from denserk.errors import UsageError

logger = logging.getLogger(__name__)

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")  # limits and use of a container (cgroup v2)


def available_bytes() -> int | None:
    """Return the bytes of memory that are available now; None if the system does not report it."""
    sizes = [_available_in_system(), _available_in_container()]
    return min((size for size in sizes if size is not None), default=None)


def _available_in_system() -> int | None:
    """Return the available bytes of the machine."""
    try:
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return None


def _available_in_container() -> int | None:
    """Return the available bytes below the limit of a container; None without such a limit."""
    try:
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
        lines = (CGROUP / "memory.stat").read_text().splitlines()
        statistics = dict(line.split() for line in lines)
    except (OSError, ValueError):  # no container, or the limit is "max": none
        return None
    # the cache of files counts as used, but is given back when memory is asked for
    file_cache = int(statistics["inactive_file"]) + int(statistics["active_file"])
    return max(0, limit - used + file_cache)


def require_memory(task: str, needs: Mapping[str, int], hint: str) -> None:
    """Log the memory that a task needs, or raise a UsageError if less is available.

    `needs` are bytes by what takes them, such as "centroids"; `hint` says how to need less.
    """
    total = sum(needs.values())
    named_sizes = [f"{name} {decimal(size)}" for name, size in needs.items() if size]
    message = f"{task} needs {decimal(total)} of memory ({', '.join(named_sizes)})"
    available = available_bytes()
    if available is not None and total > available:
        raise UsageError(f"{message}, and {decimal(available)} are available", hint)
    logger.info(message)
