"""`python -m denserk`, and the console script."""

import io
import os
import signal
import sys
from types import FrameType
from typing import Any

from denserk import let_idle_threads_sleep
from denserk.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _on_signals(handler: Any) -> None:
    for signum in SIGNALS:
        if signal.getsignal(signum) != signal.SIG_IGN:  # under nohup
            signal.signal(signum, handler)


def _catch_signals() -> None:
    """Turn signals into `Interrupted`, so that temporary files go; a second one ends at once."""
    main_process = os.getpid()

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if os.getpid() != main_process:  # a worker process: its parent cleans up
            os._exit(128 + signum)
        _on_signals(signal.SIG_DFL)
        Interrupted.received = Interrupted(signum)
        raise Interrupted.received

    _on_signals(interrupt)


def main() -> None:
    """Run the command line and exit with its status; output is UTF-8 in every locale."""
    let_idle_threads_sleep()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        _catch_signals()
        from denserk.commands.app import run

        status = run()
        _on_signals(signal.SIG_DFL)  # nothing is left to clean up
    except Interrupted as interruption:  # before or after the command itself
        status = 128 + interruption.signum
    raise SystemExit(status)


if __name__ == "__main__":
    main()
