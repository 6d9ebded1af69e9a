"""`python -m denserk`, and the console script."""

import io
import os
import signal
import sys
from types import FrameType

from denserk.errors import Interrupted


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """Raise in the main process, so that temporary files go; a second signal ends it at once."""
    if os.getpid() != _started:
        os._exit(128 + signum)
    for each in SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    raise Interrupted(signum)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_started = os.getpid()


def main() -> None:
    """Run the command line and exit with its status; output is UTF-8 in every locale."""
    # idle threads of OpenMP sleep: spinning ones halve the speed of a busy machine
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    for each in SIGNALS:
        if signal.getsignal(each) != signal.SIG_IGN:  # nohup stays as it is
            signal.signal(each, _interrupt)
    try:
        from denserk.cli.app import run

        status = run()
    except Interrupted as stop:  # before the command line was there
        status = 128 + stop.signum
    raise SystemExit(status)


if __name__ == "__main__":
    main()
