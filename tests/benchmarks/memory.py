"""Peak memory of `encode` and `index` at 100,000 and at 1,000,000 passages: it must not grow.

`python -m tests.benchmarks.memory [FOLDER]` works in FOLDER or a temporary one (about 1 GB), with
a tiny random model, and prints both sizes side by side; its exit status is 1 where a peak grew by
more than a tenth.
"""

import multiprocessing
import random
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.timing import DENSERK, Child, watch

SIZES = (100_000, 1_000_000)
GROWTH = 1.1
"""How much larger the larger peak may be."""
WORDS = [f"w{number}" for number in range(1000)]


def write_model(folder: Path) -> None:
    """A tiny random BERT; torch is met in the process that makes it, and leaves with it."""
    from tests.tiny_models import write_tiny

    write_tiny(folder, "bert", WORDS, head=False, hidden=64)


def write_corpus(path: Path, count: int) -> None:
    """Passages of 5 to 15 words out of a thousand, one JSON line each, the same every time."""
    draw = random.Random(42)
    with path.open("w") as out:
        for number in range(count):
            text = " ".join(draw.choices(WORDS, k=draw.randint(5, 15)))
            out.write(f'{{"_id": "p{number}", "text": "{text}"}}\n')


def measure(folder: Path, model: Path, count: int) -> dict[str, Child]:
    """Encodes and indexes `count` passages, each command a process of its own."""
    corpus, vectors, index = (folder / f"{name}-{count}" for name in ("corpus", "vectors", "index"))
    corpus = corpus.with_suffix(".jsonl")
    write_corpus(corpus, count)
    encode = [DENSERK, "encode", "--model", str(model), "--corpus", str(corpus), "--output"]
    build = [DENSERK, "index", "--input", str(vectors), "--output", str(index)]
    return {
        "encode": watch([*encode, str(vectors), "--representation", "mean", "--threads", "1"]),
        "index": watch(build),
    }


def main() -> None:
    """Measures both sizes and prints them side by side."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        folder.mkdir(parents=True, exist_ok=True)
        model = multiprocessing.get_context("spawn").Process(
            target=write_model, args=(folder / "model",)
        )
        model.start()
        model.join()
        small, large = (measure(folder, folder / "model", count) for count in SIZES)
    print(f"{'':8} {SIZES[0]:>12,} passages {SIZES[1]:>12,} passages    ratio")
    grew = False
    for command, before in small.items():
        after = large[command]
        ratio = after.peak_mib / before.peak_mib
        grew |= ratio > GROWTH
        print(
            f"{command:8} {before.peak_mib:8,.0f} MiB {before.seconds:5.0f} s"
            f" {after.peak_mib:11,.0f} MiB {after.seconds:5.0f} s {ratio:8.2f}"
        )
    if grew:
        raise SystemExit(f"a peak grew by more than {GROWTH - 1:.0%}")


if __name__ == "__main__":
    main()
