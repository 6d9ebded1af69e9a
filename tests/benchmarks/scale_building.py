"""An IVF-PQ index of many float16 vectors, built out of core: rates, peak memory, their growth.

`python -m tests.benchmarks.scale_building [--counts N,N] [--dimension D] [--factory F] [--folder
DIR]` writes folders of N random float16 vectors, as `denserk encode` does, and has `denserk index`
build F of each from a cold file cache, a process on one thread. Beside both stand the rates of a
plain write of as many bytes to the same disk, of reading the vectors cold, and of the float32
products alone that assigning them to F's lists and training these take. The claim: no peak passes
--limit-gib (4); what it maps of the finished index, the system may take back. Its exit status is 1
where that does not hold. `--counts 1000000,10000000` needs 11 GB of disk.
"""

import argparse
import re
import tempfile
from pathlib import Path
from typing import Any

from denserk.config.retrieval import IndexSettings
from tests.benchmarks.floors import forget, multiply, read_plainly, write_plainly
from tests.benchmarks.many_vectors import show, write_vectors
from tests.benchmarks.timing import DENSERK, Child, apart, watch

ROUNDS = 10
"""Of k-means, in which faiss trains lists."""


def products(count: int, dimension: int, factory: str) -> float:
    """Seconds of comparing vectors with every centroid, and their sample in every round."""
    lists = re.search(r"IVF(\d+)", factory)
    sample = min(count, IndexSettings().train_size)
    compared = count + ROUNDS * sample
    return multiply(compared, int(lists[1]), dimension, "float32") if lists else 0.0


def measure(folder: Path, count: int, given: Any) -> Child:
    """Writes and indexes `count` vectors, and prints the rates."""
    vectors, index = folder / "vectors", folder / "index"
    size = 2 * count * given.dimension
    print(f"{count:,} vectors of {given.dimension} dimensions in float16, {size / 1e9:.2f} GB")
    show("plain write to this disk", write_plainly(folder / "plain", size), size)
    show("written", apart(write_vectors, vectors, range(count), given.dimension), size)
    files = sorted(vectors.glob("*.npy"))
    forget(files)
    show("plain read, cold", read_plainly(files), size)
    least = apart(products, count, given.dimension, given.factory)
    if least:
        show("products with centroids alone", least, size)
    forget(files)
    command = [DENSERK, "index", "--input", str(vectors), "--output", str(index)]
    child = watch([*command, "--factory", given.factory, "--threads", str(given.threads)])
    show(f"denserk index, {count / child.seconds:,.0f} vectors/s", child.seconds, size)
    show("the same in CPU seconds", child.cpu_seconds, size)
    print(f"  {'peak of its memory':40} {child.peak_mib:8,.0f} MiB")
    print(f"  {'its own, mapped files left out':40} {child.own_mib:8,.0f} MiB")
    held = (index / "index").stat().st_size / count
    print(f"  {'index':40} {held:8.1f} bytes a vector", flush=True)
    return child


def main() -> None:
    """Measures both sizes, and fails where a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default="100000,200000")
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--factory", default="IVF1024,PQ16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit-gib", type=float, default=4)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    print(f"{given.factory}, {given.threads} thread(s)")
    found = []
    for count in map(int, given.counts.split(",")):
        with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
            found.append(measure(Path(temporary), count, given))
    grown, own = (
        getattr(found[-1], name) / getattr(found[0], name) for name in ("peak_mib", "own_mib")
    )
    print(f"the peak grew {grown:.2f} times, the process's own memory {own:.2f} times")
    if max(child.peak_mib for child in found) > 1024 * given.limit_gib:
        raise SystemExit("the claim does not hold")


if __name__ == "__main__":
    main()
