"""How long every `--help` takes, beside Python alone and typer alone.

`python -m tests.benchmarks.startup [ROUNDS]` prints medians; its exit status is 1 where a help
takes longer than 0.3 s.
"""

import sys
from collections.abc import Sequence
from functools import partial

from denserk.cli.app import app, run
from tests.benchmarks.timing import DENSERK, medians, watch

LIMIT = 0.3
"""Seconds a help may take."""
TYPER = "import typer; app = typer.Typer(); app.command()(lambda: None); app()"


def seconds(command: Sequence[str]) -> float:
    """Wall-clock seconds of one run."""
    return watch(command).seconds


def main() -> None:
    """Times and prints."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    run(["--version"])  # every command registers itself
    names = [command.name or "" for command in app.registered_commands]
    floors = {
        "python": [sys.executable, "-c", "pass"],
        "typer --help": [sys.executable, "-c", TYPER, "--help"],
    }
    helps = {
        " ".join(["denserk", *words]): [DENSERK, *words]
        for words in [["--help"], *([name, "--help"] for name in names)]
    }
    found = medians({n: partial(seconds, c) for n, c in (floors | helps).items()}, rounds)
    for name, median in found.items():
        late = "  over the limit" if name in helps and median > LIMIT else ""
        print(f"{name:26} {1000 * median:6.0f} ms{late}")
    print(f"\nmedians of {rounds} runs; the limit of a help is {1000 * LIMIT:.0f} ms")
    if any(found[name] > LIMIT for name in helps):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
