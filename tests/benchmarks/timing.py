"""What the benchmarks share: child processes, watched from outside."""

import multiprocessing
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

DENSERK = str(Path(sys.executable).with_name("denserk"))
"""The console script of this interpreter's environment."""


LOOKS = 200
"""Looks a second at what memory a process holds."""


class Child(NamedTuple):
    """What a child process used.

    Attributes:
        seconds: by the clock.
        peak_mib: its largest resident set, pages of mapped files among it.
        cpu_seconds: of a CPU.
        own_mib: the most that was seen of its own memory (RssAnon), which no file stands behind.
    """

    seconds: float
    peak_mib: float
    cpu_seconds: float
    own_mib: float


def resident(kind: str, process: int | str = "self") -> float:
    """MiB of a process that are its own (RssAnon) or those of files it maps (RssFile)."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(kind)), 0) / 1024


@contextmanager
def largest(kind: str, process: int | str = "self", looks: int = LOOKS) -> Iterator[list[float]]:
    """The most MiB of a kind that a process held while the block ran, looked at many times."""
    found, ended = [0.0], threading.Event()

    def look() -> None:
        while not ended.wait(1 / looks):
            found[0] = max(found[0], resident(kind, process))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


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
    with largest("RssAnon", process.pid) as own:
        said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{said.decode()}")
    cpu_seconds = usage.ru_utime + usage.ru_stime
    peak_mib = usage.ru_maxrss / 1024
    return Child(time.perf_counter() - start, peak_mib, cpu_seconds, own[0])


def apart(work: Callable[..., float], *given: Any) -> float:
    """Does a piece of work in a process of its own, so that this one stays small."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, given)


def medians(work: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median of each piece of work, one of each a round, so that all meet the same machine."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, piece in work.items():
            seconds[name].append(piece())
    return {name: statistics.median(found) for name, found in seconds.items()}
