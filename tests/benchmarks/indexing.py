"""Vectors written and indexed beside the way over JSON lines; peak memory; opening an index.

`python -m tests.benchmarks.indexing [--count N] [--large N] [--rounds R]` writes N vectors of 768
dimensions and builds a flat index of them: as a folder of denserk's with `build_index`, and as JSON
lines with Pyserini's writer and `pyserini.index.faiss` (in a process of its own, imports left out),
or with a loop that does the same where Pyserini or its Java is missing; the output says which. Then
`denserk index` runs as a process at N and at --large vectors, and an index of 8,841,823 passages is
opened, its vectors a file of holes. Its exit status is 1 where the ratio is below 50, a peak above
1 GiB, opening above 50 ms, or the two indexes differ.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from denserk.config.retrieval import Engine, IndexPaths, Metric, SearchSettings
from denserk.index.build import build_index
from denserk.index.index_folder import PassageIds
from denserk.index.opening import open_vector_index
from denserk.io.block_journal import Block
from denserk.io.flat_file import HEADER, flat_header
from denserk.io.manifest import Kind, Manifest
from denserk.io.vector_folder import VectorFolderWriter
from denserk.models.devices import has_bfloat16
from tests.benchmarks.timing import DENSERK, watch
from tests.peers import run_pyserini

D, BLOCK, MARCO = 768, 16_384, 8_841_823
RATIO, PEAK_MIB, OPEN_MS = 50, 1024, 50

PYSERINI = """
import runpy, sys, time
import numpy as np
from pyserini.encode._base import JsonlRepresentationWriter
import pyserini.util
source, lines, index = sys.argv[1:]
vectors = np.load(source)
ids = [f"d{n}" for n in range(len(vectors))]
start = time.process_time()
writer = JsonlRepresentationWriter(lines)
with writer:
    for first in range(0, len(ids), 64):
        batch = slice(first, first + 64)
        info = {"id": ids[batch], "text": [""] * len(ids[batch]), "vector": vectors[batch]}
        writer.write(info, ["text"])
sys.argv = ["faiss", "--input", lines, "--output", index, "--threads", "1"]
runpy.run_module("pyserini.index.faiss", run_name="__main__")
print("seconds", time.process_time() - start)
"""


def vectors_of(count: int, first: int = 0) -> np.ndarray:
    """The same vectors every time."""
    return np.random.default_rng(first).standard_normal((count, D), np.float32)


def write_folder(folder: Path, count: int) -> None:
    """Vectors as `denserk encode` writes them."""
    writer = VectorFolderWriter(folder, Manifest(Kind.VECTORS, False), "float32")
    for number, first in enumerate(range(0, count, BLOCK)):
        size = min(BLOCK, count - first)
        ids = [f"d{first + n}" for n in range(size)]
        writer.write(Block(number, size, ""), ids, vectors_of(size, first))
    writer.finish({"dimension": D, "vectors_per_passage": 1})


def ours(folder: Path, vectors: np.ndarray) -> float:
    """CPU seconds of writing and indexing."""
    (folder / "vectors").mkdir()
    ids = [f"d{n}" for n in range(len(vectors))]
    start = time.process_time()
    writer = VectorFolderWriter(folder / "vectors", Manifest(Kind.VECTORS, False), "float32")
    for number, first in enumerate(range(0, len(ids), BLOCK)):
        part = slice(first, first + BLOCK)
        writer.write(Block(number, len(ids[part]), ""), ids[part], vectors[part])
    writer.finish({"dimension": D, "vectors_per_passage": 1})
    paths = IndexPaths(input=(str(folder / "vectors"),), output=str(folder / "index"))
    build_index(paths)
    return time.process_time() - start


def by_hand(folder: Path, vectors: np.ndarray) -> float:
    """CPU seconds of a loop that does what Pyserini's writer and indexer do."""
    import faiss

    (folder / "theirs").mkdir()
    start = time.process_time()
    with (folder / "lines.jsonl").open("w") as out:
        for number, vector in enumerate(vectors):
            record = {"id": f"d{number}", "contents": "", "vector": vector.tolist()}
            out.write(json.dumps(record) + "\n")
    held = []
    with (folder / "lines.jsonl").open() as lines, (folder / "theirs" / "docid").open("w") as ids:
        for line in lines:
            record = json.loads(line)
            ids.write(f"{record['id']}\n")
            held.append(record["vector"])
    index = faiss.IndexFlatIP(D)
    index.add(np.array(held, dtype="float32"))
    faiss.write_index(index, str(folder / "theirs" / "index"))
    return time.process_time() - start


def theirs(folder: Path, vectors: np.ndarray) -> tuple[float, str]:
    """CPU seconds of the way over JSON lines, and who went it."""
    np.save(folder / "vectors.npy", vectors)
    arguments = [folder / name for name in ("vectors.npy", "lines", "theirs")]
    try:
        said = run_pyserini(PYSERINI, *arguments, folder=folder)
    except pytest.skip.Exception as missing:
        return by_hand(folder, vectors), f"a loop like Pyserini's ({missing})"
    return float(said.rpartition("seconds")[2]), "Pyserini"


def beside_json(count: int, rounds: int) -> float:
    """Prints both ways; returns their ratio."""
    vectors = vectors_of(count)
    found, who = [], ""
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            mine = ours(folder, vectors)
            other, who = theirs(folder, vectors)
            found.append((mine, other))
            for name in ("index", "docid"):
                one, two = folder / "index" / name, folder / "theirs" / name
                if one.read_bytes() != two.read_bytes():
                    raise SystemExit(f"the two files {name} differ")
    mine, other = (median(times) for times in zip(*found, strict=True))
    print(f"{count:,} x {D} vectors written and indexed, CPU seconds, medians of {rounds}")
    print(f"{'denserk':10} {mine:8.2f} s\n{'JSON lines':10} {other:8.2f} s   {who}")
    print(f"{'ratio':10} {other / mine:8.0f}; the same bytes")
    return other / mine


def peaks(counts: list[int]) -> float:
    """Prints the peak of `denserk index` for each count; returns the largest."""
    print("\ndenserk index, a process")
    largest = 0.0
    for count in counts:
        with tempfile.TemporaryDirectory() as temporary:
            folder, index = Path(temporary) / "vectors", Path(temporary) / "index"
            folder.mkdir()
            write_folder(folder, count)
            child = watch([DENSERK, "index", "--input", str(folder), "--output", str(index)])
        print(f"{count:10,} vectors {child.peak_mib:6,.0f} MiB {child.cpu_seconds:6.1f} s of a CPU")
        largest = max(largest, child.peak_mib)
    return largest


def opening(rounds: int) -> float:
    """Prints how long a large index takes to open; returns milliseconds of a CPU."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with (folder / "index").open("wb") as out:
            out.write(flat_header(Metric.INNER, D, MARCO))
            out.truncate(HEADER.size + 4 * MARCO * D)
        (folder / "docid").write_text("".join(f"{n}\n" for n in range(MARCO)))
        found: dict[str, list[float]] = {"open": [], "by the clock": [], "first id": []}
        for _ in range(rounds):
            start, clock = time.process_time(), time.perf_counter()
            settings = SearchSettings()
            index = open_vector_index(folder, Engine.FAISS, settings, bfloat16=has_bfloat16())
            ids = PassageIds(folder / "docid", len(index))
            opened = time.process_time()
            found["by the clock"].append(time.perf_counter() - clock)
            assert ids[MARCO - 1] == str(MARCO - 1)
            found["open"].append(opened - start)
            found["first id"].append(time.process_time() - opened)
    times = {name: 1000 * median(each) for name, each in found.items()}
    print(f"\nan index of {MARCO:,} passages: opened in {times['open']:.1f} ms of a CPU", end="")
    print(
        f" ({times['by the clock']:.1f} ms by the clock), its first id {times['first id']:.0f} ms"
    )
    return times["open"]


def main() -> None:
    """Measures, and fails where a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--large", type=int, default=600_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    peak = peaks([given.count, given.large])  # first: a child's peak begins with its parent's
    ratio = beside_json(given.count, given.rounds)
    opened = opening(given.rounds)
    if ratio < RATIO or peak > PEAK_MIB or opened > OPEN_MS:
        raise SystemExit("a claim does not hold")


if __name__ == "__main__":
    main()
