"""Where the check computes, what it reads and where it writes."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.gpu.report import Report

T = TypeVar("T")

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, eq=False)
class Setup:
    """Device, inputs and outputs of a check.

    `data` is a folder of BEIR collections and `minilm` one of MiniLM's weights, if there are any;
    `work` is a temporary folder. A rehearsal runs every section on a CPU, as small as it gets.
    """

    report: Report
    work: Path
    rehearsal: bool = False
    data: Path | None = None
    minilm: Path | None = None

    @property
    def device(self) -> str:
        """The device that is checked; in a rehearsal the CPU, which is then compared with itself.

        >>> Setup(Report(Path("out"), "title"), Path("work"), rehearsal=True).device
        'cpu'
        """
        return "cpu" if self.rehearsal else "cuda"

    def choose(self, on_gpu: T, in_rehearsal: T) -> T:
        """Return a size, or something else, that a rehearsal has smaller."""
        return in_rehearsal if self.rehearsal else on_gpu


def run_python(
    words: Sequence[str],
    *,
    seconds: float,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, from the repository; what it prints is text.

    Tokenizers take all cores, as they do where nothing forbids it. After `seconds` the process is
    killed with all that it started, and that is a TimeoutExpired.
    """
    environment = {**os.environ, **(variables or {})}
    environment.pop("TOKENIZERS_PARALLELISM", None)  # denserk sets it for this process
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{REPOSITORY}{os.pathsep}{path}" if path else str(REPOSITORY)
    process = subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except BaseException:  # what it started, torchrun's workers say, would go on to hold the card
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def last_lines(text: str, count: int = 3) -> str:
    """Return the last lines of what a process printed, on one line.

    >>> last_lines("one\\ntwo\\n\\nthree\\n", 2)
    'two / three'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-count:])


def counted(queries: int) -> str:
    """Return a number of queries in words.

    >>> counted(1), counted(1024)
    ('1 query', '1,024 queries')
    """
    return "1 query" if queries == 1 else f"{queries:,} queries"
