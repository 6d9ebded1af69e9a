"""Starts commands at once that write one output, and compares it with what each writes alone.

    python -m tests.support.writers WORK [WRITERS [ROUNDS]]

WORK is a folder that is made. Of the writers of an output, each uses one of two settings. Whoever
comes too early or too late must say so; the output must be wholly that of one setting. Prints a
line a command, and exits with 1 at the first difference.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.finetuning import write_examples
from tests.support.kills import clear, contents_of_output
from tests.support.tiny_models import write_tiny
from tests.support.toy import VOCABULARY, write_toy

PASSAGES = 200
OUTPUT = "new-output"  # a name that no other file has
BUSY = "is being written by"


class Writers(NamedTuple):
    """A command without its output, and the two settings that its writers choose from."""

    command: list[str]
    settings: tuple[list[str], list[str]]


TRAINING = ["--train-data", "train.jsonl", "--device", "cpu", "--batch-size", "4"]
ENCODE = ["encode", "--model", "model", "--corpus", "passages.jsonl", "--dtype", "float32"]
COMMANDS = {
    "encode": Writers(
        [*ENCODE, "--block-size", "16"],
        (["--representation", "cls"], ["--representation", "mean"]),
    ),
    "index": Writers(
        ["index", "--input", "vectors", "--threads", "1"], (["--type", "flat"], ["--type", "hnsw"])
    ),
    "search": Writers(
        ["search", "--index", "vectors", "--topics", "queries.tsv"],
        (["--hits", "100"], ["--hits", "50"]),
    ),
    "finetune": Writers(
        ["finetune", "--model", "model", *TRAINING, "--max-steps", "4"],
        (["--group-size", "2"], ["--group-size", "3"]),
    ),
    "convert": Writers(["convert", "passages.jsonl"], (["--to", "anserini"], ["--to", "tevatron"])),
}


def command_line(writers: Writers, setting: list[str], *more: str) -> list[str]:
    command = [sys.executable, "-m", "denserk", *writers.command]
    if writers.command[0] == "convert":
        return [*command, OUTPUT, *setting, *more]
    return [*command, *setting, "--output", OUTPUT, *more]


def prepare(work: Path) -> None:
    """Write what the commands read; the working directory is `work` from then on."""
    write_toy(work)
    write_tiny(work / "model", "bert", VOCABULARY)
    write_examples(work / "train.jsonl", range(24))
    with (work / "passages.jsonl").open("w") as out:
        for number in range(PASSAGES):
            text = f"the old river {'runs to the south ' * (number % 5)}"
            out.write(json.dumps({"_id": f"d{number}", "title": "", "text": text}) + "\n")
    os.chdir(work)
    encode = [*COMMANDS["encode"].command, "--output", "vectors"]
    subprocess.run([sys.executable, "-m", "denserk", *encode], check=True, capture_output=True)


def written_alone(work: Path, writers: Writers) -> list[dict[str, Any]]:
    """Return what the output is with each setting when nobody disturbs its writer."""
    states = []
    for setting in writers.settings:
        command = command_line(writers, setting, "--overwrite")
        subprocess.run(command, check=True, capture_output=True)
        states.append(comparable(work))
    return states


def comparable(work: Path) -> dict[str, Any]:
    """Return the bytes of the output and of what lies beside it, without times."""
    files = contents_of_output(work, OUTPUT)
    for name, content in files.items():
        if name.endswith("config.yaml"):
            # whether the command was given --overwrite is no difference
            files[name] = [line for line in content.splitlines() if b"overwrite" not in line]
    return files


def write_at_once(writers: Writers, count: int) -> Counter[str]:
    """Start the writers together; count how they end, and reject any end that is not named."""
    processes = [
        subprocess.Popen(
            command_line(writers, writers.settings[number % 2], "--overwrite"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    endings: Counter[str] = Counter()
    for process in processes:
        _, messages = process.communicate()
        if process.returncode == 0:
            endings["written"] += 1
        else:
            assert BUSY in messages, f"status {process.returncode}:\n{messages}"
            endings["sent away"] += 1
    return endings


def main(work: str, writers: str = "10", rounds: str = "1") -> None:
    folder = Path(work).absolute()
    prepare(folder)
    for name, case in COMMANDS.items():
        alone = written_alone(folder, case)
        endings: Counter[str] = Counter()
        for _ in range(int(rounds)):
            endings += write_at_once(case, int(writers))
            assert comparable(folder) in alone, f"{name}: the output is of no setting alone"
        assert endings["written"] > 0, f"{name}: nobody wrote the output"
        print(f"{name}: {dict(endings)}, nothing is mixed", flush=True)  # noqa: T201
        clear(folder, OUTPUT)


if __name__ == "__main__":
    main(*sys.argv[1:])
