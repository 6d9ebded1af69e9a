"""What the benchmarks of training share: training data, and the cost of a step beside a peer's.

A step's CPU time is that of whole commands of 11 and of 3 steps, (11 steps - 3 steps) / 8; what is
left of the shorter one is the fixed cost of a start. All commands run in alternation on one thread.
"""

import gzip
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tests.benchmarks.timing import Child, watch

FEW_STEPS, MANY_STEPS = 3, 11
# a function of the number of steps, which returns the command
Command = Callable[[int], Sequence[str]]


class Cost(NamedTuple):
    """Medians of a training command."""

    step_seconds: float
    fixed_seconds: float
    peak_mib: float


def use_one_thread() -> None:
    """Let child processes compute on one thread, and look nothing up on the network."""
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")


def costs(commands: Mapping[str, Command], rounds: int) -> dict[str, Cost]:
    """Return the cost of each command, by its name."""
    costs_by_name: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            cost = _cost(watch(command(FEW_STEPS)), watch(command(MANY_STEPS)))
            costs_by_name[name].append(cost)
    medians = {}
    for name, costs_of_rounds in costs_by_name.items():
        medians[name] = Cost(*(median(values) for values in zip(*costs_of_rounds, strict=True)))
        step, fixed, peak = medians[name]
        print(f"{name}: {step:.3f} s a step, {fixed:.2f} s fixed, at most {peak:,.0f} MiB")
    return medians


def _cost(few: Child, many: Child) -> Cost:
    """Return the cost of a command from its runs of few and of many steps."""
    step_seconds = (many.cpu_seconds - few.cpu_seconds) / (MANY_STEPS - FEW_STEPS)
    return Cost(step_seconds, few.cpu_seconds - FEW_STEPS * step_seconds, many.peak_mib)


def script(text: str, *arguments: str) -> list[str]:
    """Return the command of a peer's script."""
    return [sys.executable, "-c", text, *arguments]


def read_texts(path: Path) -> dict[str, str]:
    """Return the texts of a corpus or of topics in BEIR layout, gzipped, by their ids."""
    texts = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            record: dict[str, Any] = json.loads(line)
            texts[record["_id"]] = record["text"]
    return texts


def write_corpus(collection: Path, output: Path) -> None:
    """Write the passages of a collection in BEIR layout, without titles."""
    with output.open("w", encoding="utf-8") as lines:
        for docid, text in read_texts(collection / "corpus.jsonl.gz").items():
            lines.write(json.dumps({"_id": docid, "title": "", "text": text}) + "\n")


def write_pairs(collection: Path, output: Path) -> None:
    """Write each relevant passage of a collection once, with a query of it, as training data."""
    passages = read_texts(collection / "corpus.jsonl.gz")
    queries = read_texts(collection / "queries.jsonl.gz")
    written: set[str] = set()
    with output.open("w", encoding="utf-8") as lines:
        for path in sorted((collection / "qrels").iterdir()):
            for row in path.read_text().splitlines()[1:]:
                query_id, docid, *_ = row.split("\t")
                if docid in written:
                    continue
                written.add(docid)
                positive = {"docid": docid, "title": "", "text": passages[docid]}
                record = {
                    "query": queries[query_id],
                    "positive_passages": [positive],
                    "negative_passages": [],
                }
                lines.write(json.dumps(record) + "\n")
