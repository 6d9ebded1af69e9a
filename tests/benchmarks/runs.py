"""What a search does besides scanning: rows to names, names and scores to a run, beside Pyserini.

`python -m tests.benchmarks.runs [--queries N] [--hits K] [--rounds R]` draws rows of an index of
8,841,823 passages with scores, and writes them as a run of six columns:

- from the rows: denserk's ids of an index and its writer, beside Pyserini's list of ids, an object
  a hit as its `batch_search` makes them (the same comprehension, written here), and its writer;
- from hits alone: the two writers.

Pyserini's writer is its own (`pyserini.output_writer.get_output_writer`) where Pyserini and a
recent Java are installed; else a loop of the same form writes the lines, and the table says so.
Claims: from the rows at least 6 times as fast as Pyserini by CPU time; the lines are Pyserini's but
for its rounding to six decimals. The exit status is 1 where one fails.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from denserk.index.index_folder import PassageIds
from denserk.io.runs import run_writer
from tests.peers import peer_environment

PASSAGES = 8_841_823
GOAL = 6.0
ROUNDING = 6e-7
"""Half of Pyserini's sixth decimal, and a little."""


@dataclass
class Result:
    """What Pyserini's dense searcher makes of a hit."""

    docid: str
    score: float


class Loop:
    """The lines of Pyserini's TREC writer, where Pyserini is not installed."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def write(self, topic: str, hits: list[Result]) -> None:
        """Writes a topic's hits."""
        for rank, hit in enumerate(hits, start=1):
            line = f"{topic} Q0 {hit.docid.strip()} {rank} {hit.score:.6f} Faiss\n"
            self._handle.write(line)


@contextmanager
def loop_writer(path: str) -> Iterator[Loop]:
    """Opens a `Loop`."""
    with Path(path).open("w") as handle:
        yield Loop(handle)


def peer() -> tuple[str, Callable[[str], Any]]:
    """What the peer is called, and its writer."""
    try:
        os.environ.update(peer_environment())
        installed = find_spec("pyserini") is not None
    except pytest.skip.Exception:  # no Java
        installed = False
    if not installed:
        return "Pyserini's loop, written again", loop_writer
    from pyserini.output_writer import OutputFormat, get_output_writer

    return "Pyserini's own writer", lambda path: get_output_writer(
        path, OutputFormat.TREC, "w", max_hits=1000, tag="Faiss", topics=None
    )


class Search:
    """The outcome of a search, and the ways to write it down."""

    def __init__(self, folder: Path, queries: int, hits: int) -> None:
        draw = np.random.default_rng(1)
        self.qids = [str(1_000_000 + query) for query in range(queries)]
        self.rows = draw.integers(0, PASSAGES, (queries, 1)) + 7919 * np.arange(hits)
        self.rows %= PASSAGES
        self.scores = -np.sort(-draw.random((queries, hits), dtype=np.float32) * 10 + 60, axis=1)
        self.docids = list(map(str, range(PASSAGES)))
        (folder / "docid").write_text("\n".join(self.docids) + "\n")
        self.ids = PassageIds(folder / "docid")
        self.folder = folder
        self.name, self.writer = peer()
        self.named = [[self.docids[row] for row in rows] for rows in self.rows.tolist()]
        self.objects = self.results()

    def results(self) -> dict[str, list[Result]]:
        """Pyserini's hits."""
        return {
            qid: [
                Result(self.docids[row], score)
                for score, row in zip(s, r, strict=True)
                if row != -1
            ]
            for qid, s, r in zip(self.qids, self.scores, self.rows, strict=True)
        }

    def pyserini(self, results: dict[str, list[Result]]) -> None:
        """Writes as Pyserini writes."""
        with self.writer(str(self.folder / "pyserini")) as writer:
            for qid, hits in results.items():
                writer.write(qid, hits)

    def denserk(self, name: str, *, rows: bool) -> None:
        """Writes as denserk writes, from rows or from names."""
        with run_writer(self.folder / name, tag="Faiss") as write:
            for place, (qid, scores) in enumerate(zip(self.qids, self.scores, strict=True)):
                docids = self.ids.passages(self.rows[place]) if rows else self.named[place]
                write(qid, docids, scores)

    def ways(self) -> dict[str, Callable[[], None]]:
        """Everything that is timed."""
        return {
            "rows: Pyserini": lambda: self.pyserini(self.results()),
            "rows: denserk": lambda: self.denserk("rows", rows=True),
            "hits: Pyserini": lambda: self.pyserini(self.objects),
            "hits: denserk": lambda: self.denserk("names", rows=False),
        }


def alike(ours: str, theirs: str) -> bool:
    """Whether two lines differ by the rounding of the score alone."""
    mine, other = ours.split(), theirs.split()
    near = abs(float(mine.pop(4)) - float(other.pop(4))) <= ROUNDING
    return near and mine == other


def check(folder: Path) -> None:
    """Refuses runs that differ.

    Raises:
        SystemExit: they do.
    """
    with (folder / "rows").open() as ours, (folder / "pyserini").open() as theirs:
        if not all(alike(*lines) for lines in zip(ours, theirs, strict=True)):
            raise SystemExit("denserk's run and Pyserini's differ")


def measure(search: Search, rounds: int) -> float:
    """Prints the medians; returns how many times Pyserini's CPU time is denserk's, from rows."""
    lines = search.rows.size
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for name, way in search.ways().items():
            start = time.process_time(), time.perf_counter()
            way()
            spent = time.process_time() - start[0], time.perf_counter() - start[1]
            found.setdefault(name, []).append(spent)
    print(f"{lines:,} lines; the peer: {search.name}; medians of {rounds}")
    print(f"{'':22} {'CPU':>9} {'clock':>9} {'lines/CPU s':>12} {'x Pyserini':>11}")
    cpu = {}
    for name, times in found.items():
        cpu[name], clock = (median(each) for each in zip(*times, strict=True))
        ratio = cpu[name.partition(":")[0] + ": Pyserini"] / cpu[name]
        print(
            f"{name:22} {cpu[name]:7.2f} s {clock:7.2f} s {lines / cpu[name]:12,.0f} {ratio:11.1f}"
        )
    return cpu["rows: Pyserini"] / cpu["rows: denserk"]


def main() -> None:
    """Measures, and fails where a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--hits", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ratio = measure(Search(Path(folder), given.queries, given.hits), given.rounds)
        check(Path(folder))
    if ratio < GOAL:
        raise SystemExit(f"less than {GOAL:.0f} times as fast")


if __name__ == "__main__":
    main()
