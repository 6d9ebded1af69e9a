"""Memory that is available, and checks of what a task needs."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rich.filesize import decimal

from denserk.errors import (
    UsageError,
)

logger = logging.getLogger(__name__)

MEMORY = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")  # of a container


def available_bytes() -> int | None:
    """Return the bytes of memory that are available now; None if the system does not report it."""
    found: list[int] = []
    with suppress(OSError):
        lines = MEMORY.read_text(encoding="ascii").splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):  # no container; "max", which is no limit
        limit, used = (int((GROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        stat = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        files = int(stat["inactive_file"]) + int(stat["active_file"])  # given back when asked for
        found.append(max(0, limit - used + files))
    return min(found, default=None)


def require_memory(task: str, needs: Mapping[str, int], hint: str) -> None:
    """Log the memory that a task needs, in bytes of each part, and reject it if there is less."""
    total = sum(needs.values())
    parts = ", ".join(f"{what} {decimal(size)}" for what, size in needs.items() if size)
    message = f"{task} needs {decimal(total)} of memory ({parts})"
    available = available_bytes()
    if available is not None and total > available:
        raise UsageError(f"{message}, and {decimal(available)} are available", hint)
    logger.info(message)
