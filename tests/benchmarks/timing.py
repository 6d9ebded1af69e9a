"""What the benchmarks share: child processes watched from outside, medians, and goals."""

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

DENSERK = str(Path(sys.executable).with_name("denserk"))


class Child(NamedTuple):
    """Resources that a child process used; `peak_mib` includes mapped pages of files."""

    seconds: float
    cpu_seconds: float
    peak_mib: float


def watch(command: Sequence[str], *, count: int = 1) -> Child:
    """Run a command, or `count` copies at once, to the end; their sums, and the longest time.

    In each argument {} is the number of the copy. Call this from a small process: Linux counts the
    moment between fork and exec as the child's. A command that fails ends this process too.
    """
    start = time.perf_counter()
    running = [
        subprocess.Popen(
            [word.replace("{}", str(number)) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for number in range(count)
    ]
    cpu = peak = 0.0
    for process in running:
        assert process.stderr is not None
        messages = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\n{messages.decode()}")
        cpu += usage.ru_utime + usage.ru_stime
        peak += usage.ru_maxrss / 1024
    return Child(time.perf_counter() - start, cpu, peak)


def median_children(commands: Mapping[str, Sequence[str]], rounds: int) -> dict[str, Child]:
    """Run each command once a round; return the run of median CPU time, by name."""
    children: dict[str, list[Child]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            children[name].append(watch(command))
    medians = {}
    for name, runs in children.items():
        by_time = sorted(runs, key=lambda child: child.cpu_seconds)
        medians[name] = by_time[len(runs) // 2]
    return medians


def cpu_seconds(work: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> float:
    """CPU seconds of this process for a piece of work."""
    start = clock()
    work()
    return clock() - start


clock_seconds = partial(cpu_seconds, clock=time.perf_counter)


def medians(
    work: Mapping[str, Callable[[], Any]],
    rounds: int,
    measure: Callable[[Callable[[], Any]], float] = cpu_seconds,
) -> dict[str, float]:
    """Median of each piece of work, one of each a round after one that is not counted."""
    times_by_name: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds + 1):
        for name, piece_of_work in work.items():
            times_by_name[name].append(measure(piece_of_work))
    return {name: statistics.median(times[1:]) for name, times in times_by_name.items()}


MATRIX_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def processor_flags() -> set[str]:
    """Return the flags of this processor, as Linux names them."""
    line = re.search(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return set(line[1].split()) if line else set()


def processor() -> str:
    """Return this processor's name, family and model, and its flags that matter to products."""
    info = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M))
    flags = [flag for flag in MATRIX_FLAGS if flag in processor_flags()]
    name, family, model = (info.get(key, "?") for key in ("model name", "cpu family", "model"))
    return f"{name}, family {family}, model {model}: {' '.join(flags)}"


def zen5() -> bool:
    """Return whether this processor is an AMD Zen 5, on which the bounds of P2 and P4 were set."""
    info = Path("/proc/cpuinfo").read_text()
    return "AuthenticAMD" in info and re.search(r"^cpu family\s*: 26$", info, re.M) is not None


class Goals:
    """Prints the processor, one line for each goal, and exits with 1 if one is missed."""

    def __init__(self) -> None:
        self.missed: list[str] = []
        print(f"processor: {processor()}", flush=True)

    def at_least(self, goal: str, measured: str, value: float, bound: float) -> None:
        """Print a ratio that should be large."""
        self._show(goal, measured, value, f">= {bound:g}", is_met=value >= bound)

    def at_most(self, goal: str, measured: str, value: float, bound: float) -> None:
        """Print a value that should be small."""
        self._show(goal, measured, value, f"<= {bound:g}", is_met=value <= bound)

    def _show(self, goal: str, measured: str, value: float, bound: str, *, is_met: bool) -> None:
        verdict = "" if is_met else "missed"
        print(f"{goal:4} {measured:62} {value:9.3g}  {bound:9} {verdict}", flush=True)
        if not is_met:
            self.missed.append(f"{goal} {measured}")

    def finish(self) -> None:
        """Exit with status 1 if a goal was missed."""
        if self.missed:
            raise SystemExit(f"missed: {'; '.join(self.missed)}")
