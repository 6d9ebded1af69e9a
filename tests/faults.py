"""Faults on purpose: a stop at the nth file that takes its name, a disk that is full."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Stopped(KeyboardInterrupt):
    """The stop; a KeyboardInterrupt, so that nothing between catches it."""


@contextmanager
def stopped_at(step: int) -> Iterator[None]:
    """Stops whatever runs inside when the file number `step` (from 0) is about to take its name."""
    replace, left = Path.replace, [step]

    def replace_or_stop(self, target):
        if left[0] == 0:
            raise Stopped
        left[0] -= 1
        return replace(self, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", replace_or_stop)
        yield


def limit_file_size(size: int) -> None:
    """No file of this process may grow past `size` bytes (for a child process: preexec_fn)."""
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by name."""
    return {item.name: item.read_bytes() for item in sorted(folder.iterdir())}
