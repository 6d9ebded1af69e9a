"""Ten processes write one output at once, half of them with other settings, round after round.

    python -m tests.races WORK [--rounds 50]

WORK is a folder that is made. The output must be wholly that of one of them each time.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.kills import prepare

COMMANDS = {
    "encode": (
        ["encode", "--model", "model", "--corpus", "corpus.jsonl", "--block-size", "2"],
        ["--representation", "mean"],
    ),
    "index": (["index", "--input", "vectors"], ["--type", "hnsw", "--threads", "1"]),
    "search": (["search", "--index", "index", "--topics", "queries.tsv"], ["--hits", "3"]),
}
WRITERS = 10
CODE = "import sys; from denserk.commands.app import run; sys.exit(run(sys.argv[1:]))"


def start(command: list[str], output: str, *more: str) -> "subprocess.Popen[str]":
    """Start a command in a process of its own."""
    line = [sys.executable, "-c", CODE, *command, "--quiet", "--output", output, *more]
    return subprocess.Popen(line, stderr=subprocess.PIPE, text=True)


def content(output: Path) -> Any:
    """All bytes of an output but the manifest's; of that what it says it is."""
    if output.is_file():
        return output.read_bytes()
    found = {path.name: path.read_bytes() for path in sorted(output.iterdir())}
    manifest = json.loads(found.pop("manifest.json"))
    return found, manifest["complete"], manifest["settings"]


def race(work: Path, name: str, rounds: int) -> None:
    """Let writers race in `work`, the current folder; fails where an output is not one of theirs.

    Raises:
        AssertionError: an output is mixed, or a process says something other than one error.
    """
    command, other = COMMANDS[name]
    possible = []
    for target, more in (("one", []), ("two", other)):
        process = start(command, target, *more)
        told = process.communicate()[1]
        assert process.returncode == 0, told
        possible.append(content(work / target))
    for number in range(rounds):
        flags = ["--overwrite"] if number else []
        started = [start(command, "out", *flags, *other * (n % 2)) for n in range(WRITERS)]
        answers = [each.communicate()[1] for each in started]
        statuses = {each.returncode for each in started}
        assert 0 in statuses, answers
        assert statuses <= {0, 1, 2}, answers
        assert all(len(text.splitlines()) <= 2 for text in answers), answers
        assert content(work / "out") in possible
        assert not list(work.glob(".out*"))


def main() -> None:
    """Race with every command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--rounds", type=int, default=50)
    chosen = parser.parse_args()
    prepare(chosen.work.absolute())
    os.chdir(chosen.work)
    for name in COMMANDS:
        race(Path.cwd(), name, chosen.rounds)
        print(f"{name}: {chosen.rounds} rounds of {WRITERS} writers, each output whole", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
