"""Faults on purpose: a stop at the nth file that takes its name, a disk that is full."""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class Stopped(KeyboardInterrupt):
    """The stop; a KeyboardInterrupt, so that nothing between catches it."""


NAMING = ((Path, "replace"),)
"""The moment at which a file takes its name."""


@contextmanager
def stopped_at(step: int, calls: Iterable[tuple[Any, str]] = NAMING) -> Iterator[None]:
    """Stops whatever runs inside when one of `calls` is made for the time `step` (from 0)."""
    left = [step]

    def or_stop(function):
        def call(*arguments, **named):
            if left[0] == 0:
                raise Stopped
            left[0] -= 1
            return function(*arguments, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in calls:
            patch.setattr(owner, name, or_stop(getattr(owner, name)))
        yield


def limit_file_size(size: int) -> None:
    """No file of this process may grow past `size` bytes (for a child process: preexec_fn)."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    # Python before 3.14 keeps bytecode that was cut off at the limit, and every later import fails
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def kill_and_resume(command: list[str], output: Path, checkpoint: str) -> None:
    """Kills a training command once a checkpoint of such a name is there, and resumes it.

    Args:
        command: without its --output.
        output: the folder of the run.
        checkpoint: a pattern of names.
    """
    command = [*command, "--output", str(output)]
    process = subprocess.Popen(command)
    while not any((output / "checkpoints").glob(checkpoint)):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (output / "config.json").exists()
    subprocess.run([*command, "--resume"], check=True)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by name."""
    return {item.name: item.read_bytes() for item in sorted(folder.iterdir())}


def ranks(torchrun: int) -> dict[int, int]:
    """The processes that a torchrun started, by rank; needs Linux's /proc."""
    found: dict[int, int] = {}
    for child in Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split():
        told = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        found |= {int(word[5:]): int(child) for word in told if word.startswith(b"RANK=")}
    return found
