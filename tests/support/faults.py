"""Faults on purpose: a stop at the nth renamed file, a full disk, a process that ends.

Also `denserk`, a command in a process of its own, and `contents`, all bytes of a folder to compare.
"""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMING = ((Path, "replace"),)  # the moment at which a complete file is renamed


class Stopped(KeyboardInterrupt):
    """The stop; a KeyboardInterrupt, so that nothing between catches it."""


@contextmanager
def stopped_at(step: int, calls: Iterable[tuple[Any, str]] = NAMING) -> Iterator[None]:
    """Stop whatever runs inside when one of `calls` is made for the time `step` (from 0)."""
    calls_left = step

    def or_stop(function):
        def call(*arguments, **keywords):
            nonlocal calls_left
            if calls_left == 0:
                raise Stopped
            calls_left -= 1
            return function(*arguments, **keywords)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in calls:
            patch.setattr(owner, name, or_stop(getattr(owner, name)))
        yield


def limit_file_size(size: int) -> None:
    """Limit the size of files that this process writes (for a child process: preexec_fn)."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    # Python before 3.14 keeps bytecode that was cut off at the limit, and every later import fails
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def denserk(*words: Any, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a command in a process of its own; what it prints is text."""
    command = [sys.executable, "-m", "denserk", *words]
    run_options = {"capture_output": True, "text": True, **options}
    return subprocess.run(command, check=False, **run_options)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def ranks(torchrun: int) -> dict[int, int]:
    """Return the processes that a torchrun started, by rank; needs Linux's /proc."""
    process_by_rank: dict[int, int] = {}
    for child in Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split():
        for variable in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            if variable.startswith(b"RANK="):
                rank = int(variable.removeprefix(b"RANK="))
                process_by_rank[rank] = int(child)
    return process_by_rank
