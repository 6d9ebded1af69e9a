"""Goals P4 and P6: exact search beside faiss' flat index, and runs beside Pyserini's writer.

    python -m tests.benchmarks.search [--counts 100000,600000] [--rounds 3] [--threads 1]

Random unit vectors of 768 dimensions, depth 1,000, batches of 256, CPU time; 600,000 need 4 GB of
memory. Ids must be equal except where float64 cannot tell two products apart. For the runs, rows of
8,841,823 passages with scores are written from the rows, as `search` does.
"""

import argparse
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import faiss  # before denserk loads it: as installed
import numpy as np
import torch
from numpy.typing import NDArray

from denserk.index.exact import ExactIndex
from denserk.index.folder import Part, PassageIds
from denserk.io.runs import write_run
from denserk.models.devices import has_bfloat16
from tests.benchmarks.timing import Goals, medians, zen5
from tests.support.peers import peer_environment

D, DEPTH, BATCH, MARCO = 768, 1000, 256, 8_841_823
NEAR = 1e-6  # difference of two inner products of unit vectors that float32 need not see
ROUNDING = 6e-7  # half of Pyserini's sixth decimal, and a little


def unit_vectors(count: int) -> NDArray[np.float32]:
    """Draw (count, D) unit vectors."""
    vectors = np.random.default_rng(count).standard_normal((count, D), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def exact(goals: Goals, count: int, bound: float, rounds: int) -> None:
    """Compare batches and single queries in `count` vectors."""
    vectors, queries = unit_vectors(count), unit_vectors(BATCH)
    flat, ours = faiss.IndexFlatIP(D), ExactIndex(vectors, bfloat16=has_bfloat16())
    flat.add(vectors)
    mine, theirs = ours.search(queries, DEPTH), flat.search(queries, DEPTH)
    for query, place in np.argwhere(mine[1] != theirs[1]):
        rows = [mine[1][query, place], theirs[1][query, place]]
        one, other = vectors[rows].astype(np.float64) @ queries[query].astype(np.float64)
        if abs(one - other) > NEAR:
            raise SystemExit(f"query {query}: the ids at rank {place + 1} differ")

    def ratio(some: NDArray[np.float32], times: int) -> float:
        both: dict[str, Any] = {"faiss": flat, "ours": ours}
        found = medians({n: partial(i.search, some, DEPTH) for n, i in both.items()}, times)
        return found["faiss"] / found["ours"]

    batches, alone = ratio(queries, rounds), 1 / ratio(queries[:1], 5 * rounds)
    goals.at_least("P4", f"{count:,} vectors, batches of {BATCH}, x faiss flat", batches, bound)
    goals.at_most("P4", f"{count:,} vectors, one query, / faiss flat", alone, 1.2)


class Result(NamedTuple):
    """A hit as Pyserini's dense searcher returns it."""

    docid: str
    score: float


def runs(goals: Goals, folder: Path, queries: int, rounds: int) -> None:
    """Compare rows and scores to a run with Pyserini's objects and writer."""
    os.environ.update(peer_environment())
    from pyserini.output_writer import OutputFormat, get_output_writer

    draw = np.random.default_rng(1)
    qids = [str(1_000_000 + query) for query in range(queries)]
    rows = (draw.integers(0, MARCO, (queries, 1)) + 7919 * np.arange(DEPTH)) % MARCO
    scores = -np.sort(-draw.random((queries, DEPTH), dtype=np.float32) * 10 + 60, axis=1)
    docids = list(map(str, range(MARCO)))
    (folder / "docid").write_text("\n".join(docids) + "\n")
    ids = PassageIds([Part("index", folder / "docid", MARCO)])

    def pyserini() -> None:
        path = str(folder / "pyserini")
        options: dict[str, Any] = {"max_hits": DEPTH, "tag": "Faiss", "topics": None}
        with get_output_writer(path, OutputFormat.TREC, "w", **options) as writer:
            for qid, some, found in zip(qids, scores, rows, strict=True):
                hits = [Result(docids[r], s) for s, r in zip(some, found, strict=True) if r != -1]
                writer.write(qid, hits)

    def ours() -> None:
        results = (
            (qid, list(zip(ids(found), some.tolist(), strict=True)))
            for qid, some, found in zip(qids, scores, rows, strict=True)
        )
        write_run(folder / "ours", results, tag="Faiss")

    seconds = medians({"pyserini": pyserini, "ours": ours}, rounds)
    with (folder / "ours").open() as mine, (folder / "pyserini").open() as theirs:
        for lines in zip(mine, theirs, strict=True):
            one, other = (line.split() for line in lines)
            if abs(float(one.pop(4)) - float(other.pop(4))) > ROUNDING or one != other:
                raise SystemExit(f"the lines differ: {lines}")
    ratio = seconds["pyserini"] / seconds["ours"]
    goals.at_least("P6", f"{rows.size:,} lines of a run, x Pyserini's writer", ratio, 6)


def main() -> None:
    """Measure, and fail if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default="100000,600000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--queries", type=int, default=1000, help="of the runs")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    faiss.omp_set_num_threads(given.threads)
    goals = Goals()
    for count in map(int, given.counts.split(",")):
        small, large = (1.5, 1.7) if zen5() else (1.15, 1.4)
        exact(goals, count, large if count >= 600_000 else small, given.rounds)
    with tempfile.TemporaryDirectory() as folder:
        runs(goals, Path(folder), given.queries, given.rounds)
    goals.finish()


if __name__ == "__main__":
    main()
