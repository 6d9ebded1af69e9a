"""Start-up: CPU time of help pages, and of `eval` of 10,000 lines: goal S13.

    python -m tests.benchmarks.startup [--rounds 7]

Medians of whole processes. The clock's time is shown, too: it is what a user waits.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from denserk.commands.app import COMMANDS
from tests.benchmarks.eval import write_run
from tests.benchmarks.timing import DENSERK, Goals, watch


def measure(goals: Goals, name: str, command: Sequence[str], rounds: int, bound: float) -> None:
    """Print the medians of a command, and whether its CPU time is within the bound."""
    children = [watch(command) for _ in range(rounds)]
    cpu = median(child.cpu_seconds for child in children)
    clock = median(child.seconds for child in children)
    goals.at_most("S13", f"{name}, s of CPU ({clock:.2f} s by the clock)", cpu, bound)


def bm25_search(folder: Path) -> list[str]:
    """Build a BM25 index, and return the command that searches it for one query."""
    corpus, index, topics = (str(folder / name) for name in ("corpus.jsonl", "bm25", "topics.tsv"))
    lines = (json.dumps({"_id": f"d{n}", "text": f"river {n} bank"}) + "\n" for n in range(1000))
    Path(corpus).write_text("".join(lines))
    Path(topics).write_text("q1\triver bank\n")
    watch([DENSERK, "index", "--type", "bm25", "--corpus", corpus, "--output", index, "--quiet"])
    search = [DENSERK, "search", "--index", index, "--topics", topics, "--overwrite"]
    return [*search, "--output", str(folder / "found.trec")]


def main() -> None:
    """Measure, and fail if a goal is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    goals = Goals()
    bare = median(watch([sys.executable, "-c", "pass"]).cpu_seconds for _ in range(rounds))
    print(f"python -c pass: {bare:.3f} s of CPU")
    measure(goals, "denserk --help", [DENSERK, "--help"], rounds, 0.10)
    for name in COMMANDS:
        measure(goals, f"denserk {name} --help", [DENSERK, name, "--help"], rounds, 0.15)
    with tempfile.TemporaryDirectory() as scratch:
        run, qrels = write_run(Path(scratch), 10, 1000)
        measure(goals, "eval of 10,000 lines", [DENSERK, "eval", run, qrels], rounds, 0.4)
        measure(goals, "BM25 search, one query", bm25_search(Path(scratch)), rounds, 0.8)
    goals.finish()


if __name__ == "__main__":
    main()
