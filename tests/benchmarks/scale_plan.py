"""The plan of docs/scale.md: rates of one core of this machine, and what follows from them.

`python -m tests.benchmarks.scale_plan [--folder DIR] [--rates PRODUCTS,COMPARISONS,ADDED]` measures
products in float32, exact search of 600,000 vectors to a depth of 1,000 in batches of 1,024, and
adding to IVF4096_HNSW32,PQ96, all of 768 dimensions, by seconds of CPU time on one thread; or takes
the rates that are given. Then it prints the table, which is computed. Measuring needs 2 GB of disk.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from denserk.index.faiss_building import ID_BYTES
from tests.benchmarks.timing import apart

D, CODE = 768, 96
FACTORY, ADDED = f"IVF4096_HNSW32,PQ{CODE}", 16_384
POINTS, ROUNDS = 39, 10
"""Training vectors of a list, and rounds of k-means."""
LINKS = 268
"""Bytes of an HNSW32's links, of each centroid."""
SIZES = (
    ("MARCO", 8_841_823, 16_384),
    ("Wikipedia", 21_015_324, 16_384),
    ("100 million", 100_000_000, 65_536),
    ("1 billion", 1_000_000_000, 65_536),
)


class Rates(NamedTuple):
    """A second of one core: float32 operations, comparisons of exact search, vectors added."""

    products: float
    comparisons: float
    added: float


def search_rates(folder: str, which: int) -> float:
    """Operations or comparisons a second."""
    import torch

    from denserk.index.exact import ExactIndex
    from denserk.io.flat_file import map_flat
    from denserk.models.devices import has_bfloat16
    from tests.benchmarks import search

    torch.set_num_threads(1)
    if which == 0:
        return 1e9 * search.matrix_rates(5)["float32"]
    path, queries = search.collection(Path(folder), "random", 600_000)
    vectors, _ = map_flat(path)
    index = ExactIndex(vectors, bfloat16=has_bfloat16())
    work = {"search": lambda: index.search(queries, search.DEPTH)}
    return len(vectors) * len(queries) / search.interleaved(work, 3)["search"]


def adding_rate() -> float:
    """Random vectors added a second, once the index is trained on as many."""
    from denserk.index.faiss_index import load_faiss

    faiss = load_faiss()
    faiss.omp_set_num_threads(1)
    vectors = np.random.default_rng(0).standard_normal((ADDED, D), np.float32)
    index = faiss.index_factory(D, FACTORY, faiss.METRIC_INNER_PRODUCT)
    index.do_polysemous_training = False
    index.train(vectors)
    start = time.process_time()
    index.add(vectors)
    return ADDED / (time.process_time() - start)


def measured(folder: str) -> Rates:
    """The rates, each in a process of its own."""
    return Rates(apart(search_rates, folder, 0), apart(search_rates, folder, 1), apart(adding_rate))


def duration(seconds: float) -> str:
    """Seconds in the unit that one would say them in.

    >>> duration(39.4), duration(444), duration(4464)
    ('39 s', '7.4 min', '1.2 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def gigabytes(size: float) -> str:
    """Bytes in GB, three figures at most.

    >>> gigabytes(919e6), gigabytes(13.58e9), gigabytes(1536e9)
    ('0.92 GB', '13.6 GB', '1,536 GB')
    """
    places = 2 if size < 1e9 else 1 if size < 1e11 else 0
    return f"{size / 1e9:,.{places}f} GB"


def plan(rates: Rates) -> dict[str, list[str]]:
    """The rows of the table that are computed."""
    entry = CODE + ID_BYTES
    rows: dict[str, list[str]] = {}
    for _, count, lists in SIZES:
        sample, centroids = 2 * POINTS * lists * D * 4, lists * (D * 4 + LINKS)
        training = ROUNDS * 2 * POINTS * lists * lists * D
        for what, told in (
            ("vectors on the disk", gigabytes(count * D * 2)),
            ("exact search of 1,000 queries", duration(count * 1000 / rates.comparisons)),
            ("index on the disk", gigabytes(count * entry)),
            ("disk while it is built", gigabytes(count * (D * 4 + 2 * entry))),
            ("memory: sample", gigabytes(sample)),
            ("memory: centroids", gigabytes(centroids)),
            ("memory while it is built", gigabytes(sample + centroids)),
            ("training", duration(training / rates.products)),
            ("adding", duration(count / rates.added)),
            ("a batch at 1 GB/s", duration(count * D * 2 / 1e9)),
        ):
            rows.setdefault(what, []).append(told)
    return rows


def main() -> None:
    """Measures, and prints the plan."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder")
    parser.add_argument("--rates")
    given = parser.parse_args()
    if given.rates:
        rates = Rates(*map(float, given.rates.split(",")))
    else:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            rates = measured(folder)
    print(f"products in float32     {rates.products / 1e9:10,.0f} GFLOP/s")
    print(f"exact search            {rates.comparisons / 1e6:10,.0f} million comparisons/s")
    print(f"adding to {FACTORY} {rates.added:,.0f} vectors/s")
    print(f"{'':32}" + "".join(f"{name:>14}" for name, *_ in SIZES))
    for what, told in plan(rates).items():
        print(f"{what:32}" + "".join(f"{cell:>14}" for cell in told))


if __name__ == "__main__":
    main()
