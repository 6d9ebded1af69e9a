"""`python -m denserk`, and the console script."""

import io
import sys

from denserk.cli.app import run


def main() -> None:
    """Run the command line and exit with its status; output is UTF-8 in every locale."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    raise SystemExit(run())


if __name__ == "__main__":
    main()
