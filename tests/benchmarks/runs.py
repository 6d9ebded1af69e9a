"""Goal S10: a run that is written from the rows of an index, beside Pyserini's writer.

    python -m tests.benchmarks.runs [--queries 1000] [--rounds 3]

Rows of 8,841,823 passages with scores, 1,000 a query, are ranked and written as `denserk search`
does, and as Pyserini's dense searcher and its writer do. CPU time; queries, ranks and scores must
be equal, but for Pyserini's six decimals and the order of ties.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import SearchSettings
from denserk.index.engines import Rows, Scores
from denserk.index.mapped_files import Part, PassageIds
from denserk.index.searcher import Searcher
from denserk.io.runs import write_run
from tests.benchmarks.timing import Goals, medians
from tests.support.peers import peer_environment

DEPTH, TAIL, PASSAGES = 1000, 100, 8_841_823
NEAR = 1e-5  # ties are written with the next lower float32, and Pyserini's scores rounded


class Result(NamedTuple):
    """A hit as Pyserini's dense searcher returns it."""

    docid: str
    score: float


class FoundRows:
    """An index whose hits are known; queries are the (B, 1) numbers of their rows."""

    dimension = 1
    is_exhaustive = True
    breadth = ()

    def __init__(self, scores: Scores, rows: Rows) -> None:
        self._scores = scores
        self._rows = rows

    def search(self, queries: NDArray[Any], depth: int) -> tuple[Scores, Rows]:
        """Return the best rows of queries."""
        numbers = queries[:, 0].astype(int)
        return self._scores[numbers, :depth], self._rows[numbers, :depth]

    def __len__(self) -> int:
        return PASSAGES


def main() -> None:
    """Measure, and fail if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ.update(peer_environment())
    from pyserini.output_writer import OutputFormat, get_output_writer

    draw = np.random.default_rng(1)
    qids = [str(1_000_000 + query) for query in range(options.queries)]
    first_rows = draw.integers(0, PASSAGES, (options.queries, 1))
    rows = (first_rows + 7919 * np.arange(DEPTH + TAIL)) % PASSAGES
    scores = -np.sort(-draw.random(rows.shape, dtype=np.float32) * 10 + 60, axis=1)
    docids = list(map(str, range(PASSAGES)))
    numbers = np.arange(options.queries, dtype=np.float32)[:, None]
    goals = Goals()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "docid").write_text("\n".join(docids) + "\n")
        ids = PassageIds([Part("index", folder / "docid", PASSAGES)])
        searcher = Searcher(FoundRows(scores, rows), ids, SearchSettings(hits=DEPTH))

        def pyserini() -> None:
            settings: dict[str, Any] = {"max_hits": DEPTH, "tag": "Faiss", "topics": None}
            path = str(folder / "pyserini")
            with get_output_writer(path, OutputFormat.TREC, "w", **settings) as writer:
                for qid, query_scores, query_rows in zip(qids, scores, rows, strict=True):
                    best = zip(query_scores[:DEPTH], query_rows[:DEPTH], strict=True)
                    writer.write(qid, [Result(docids[row], s) for s, row in best if row != -1])

        def denserk() -> None:
            write_run(folder / "denserk", searcher.ranked_hits(qids, numbers), tag="Faiss")

        seconds = medians({"Pyserini": pyserini, "denserk": denserk}, options.rounds)
        check_lines(folder / "denserk", folder / "pyserini")
    lines = options.queries * DEPTH
    for tool, value in seconds.items():
        print(f"{tool}: {value * 1e9 / lines:.0f} ns a line")
    ratio = seconds["Pyserini"] / seconds["denserk"]
    goals.at_least("S10", f"{lines:,} lines of a run, x Pyserini's writer", ratio, 6)
    goals.finish()


def check_lines(ours: Path, theirs: Path) -> None:
    """Exit unless the lines of two runs are equal, passages with near scores in any order."""
    with ours.open() as our_lines, theirs.open() as their_lines:
        for lines in zip(our_lines, their_lines, strict=True):
            our_qid, _, _, our_rank, our_score, _ = lines[0].split()
            qid, _, _, rank, score, _ = lines[1].split()
            is_near = abs(float(our_score) - float(score)) <= NEAR
            if (our_qid, our_rank) != (qid, rank) or not is_near:
                raise SystemExit(f"the lines differ: {lines}")


if __name__ == "__main__":
    main()
