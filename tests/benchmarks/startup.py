"""How long start-up takes: every `--help`, and `denserk eval` of 10,000 lines, beside Python alone.

`python -m tests.benchmarks.startup [ROUNDS]` prints medians by the clock and of CPU time. Its exit
status is 1 where, by CPU time, `denserk --help` takes longer than 0.2 s, the help of a command
longer than 0.3 s, `eval` longer than 0.5 s, or the help of Pyserini's encoder, where Pyserini and a
recent Java are installed, less than 50 times as long as denserk's.
"""

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import pytest

from denserk.commands.app import COMMANDS
from tests.benchmarks.evaluation import write
from tests.benchmarks.timing import DENSERK, Child, watch
from tests.peers import peer_environment

HELP = "denserk --help"
EVAL = "denserk eval, 10,000 lines"
PYSERINI = "pyserini.encode --help"
LIMITS = {HELP: 0.2, EVAL: 0.5}
"""Seconds of CPU time that a command may take."""
LIMIT = 0.3
"""The same for the help of a command."""
TIMES = 50
"""How many times longer Pyserini's help takes, at least."""
TYPER = "import typer; app = typer.Typer(); app.command()(lambda: None); app()"


def lines(folder: Path) -> dict[str, list[str]]:
    """Name -> command line."""
    run, qrels = write(folder, 10, 1000)
    floors = {
        "python": [sys.executable, "-c", "pass"],
        "typer --help": [sys.executable, "-c", TYPER, "--help"],
    }
    helps = {
        " ".join(["denserk", *words]): [DENSERK, *words]
        for words in [["--help"], *([name, "--help"] for name in COMMANDS)]
    }
    return floors | helps | {EVAL: [DENSERK, "eval", str(run), str(qrels)]}


def pyserini() -> dict[str, list[str]]:
    """The peer, where it can run; its environment is set."""
    if find_spec("pyserini") is None:
        return {}
    try:
        os.environ.update(peer_environment())
    except pytest.skip.Exception:  # no Java
        return {}
    return {PYSERINI: [sys.executable, "-m", "pyserini.encode", "--help"]}


def show(found: Mapping[str, Sequence[Child]]) -> list[str]:
    """Prints the medians; returns the claims that do not hold."""
    failed = []
    cpu: dict[str, float] = {}
    print(f"{'':29} {'clock':>9} {'CPU':>9}")
    for name, children in found.items():
        clock = median(child.seconds for child in children)
        cpu[name] = median(child.cpu_seconds for child in children)
        limit = LIMITS.get(name, LIMIT if name.startswith("denserk") else None)
        late = limit is not None and cpu[name] > limit
        print(f"{name:29} {1000 * clock:6.0f} ms {1000 * cpu[name]:6.0f} ms")
        failed += [f"{name} takes longer than {limit} s"] * late
    if PYSERINI in cpu:
        times = cpu[PYSERINI] / cpu[HELP]
        print(f"{PYSERINI} takes {times:.0f} times as long as {HELP}")
        failed += [f"less than {TIMES} times"] * (times < TIMES)
    return failed


def main() -> None:
    """Times and prints."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    found: dict[str, list[Child]] = {}
    with tempfile.TemporaryDirectory() as folder:
        commands = lines(Path(folder))
        for _ in range(rounds):
            for name, command in commands.items():
                found.setdefault(name, []).append(watch(command))
    found |= {name: [watch(command)] for name, command in pyserini().items()}
    if failed := show(found):
        raise SystemExit("; ".join(failed))


if __name__ == "__main__":
    main()
