"""What the benchmarks share: child processes, watched from outside."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

DENSERK = str(Path(sys.executable).with_name("denserk"))
"""The console script of this interpreter's environment."""


class Child(NamedTuple):
    """What a child process used: seconds by the clock, largest resident set, seconds of a CPU."""

    seconds: float
    peak_mib: float
    cpu_seconds: float


def watch(command: Sequence[str]) -> Child:
    """Runs a command to its end, its output thrown away.

    The caller should be small itself: Linux counts the moment between fork and exec as the child's.

    Raises:
        SystemExit: the command failed; what it said on stderr is the message.
    """
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{said.decode()}")
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return Child(time.perf_counter() - start, usage.ru_maxrss / 1024, cpu_seconds)


def medians(work: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median of each piece of work, one of each a round, so that all meet the same machine."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, piece in work.items():
            seconds[name].append(piece())
    return {name: statistics.median(found) for name, found in seconds.items()}
