"""Memory of `encode` over passages of Wikipedia's lengths: it must not grow after the first block.

`python -m tests.benchmarks.encode_memory [PASSAGES]` (default 50,000) encodes generated passages
with a small random BERT on one thread and prints the resident memory after the first block and at
the end; its exit status is 1 where it grew by more than a tenth.
"""

import multiprocessing
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.memory import GROWTH, WORDS
from tests.benchmarks.timing import resident

POSITIONS = 256


def write_model(folder: Path) -> None:
    """Write a BERT of two layers that takes 256 tokens."""
    from tests.tiny_models import write_tiny

    write_tiny(folder, "bert", WORDS, head=False, hidden=64, positions=POSITIONS)


def write_corpus(path: Path, count: int) -> None:
    """Write passages of a median of 47 words, 9 in 10 below 161: those of Wikipedia's articles."""
    draw = random.Random(42)
    with path.open("w") as out:
        for number in range(count):
            length = min(max(round(draw.lognormvariate(3.85, 0.95)), 5), 1000)
            text = " ".join(draw.choices(WORDS, k=length))
            out.write(f'{{"_id": "p{number}", "text": "{text}"}}\n')


def measure(folder: Path, count: int) -> tuple[float, float]:
    """Encode `count` passages in a process: its MiB after the first block, and the most later."""
    corpus, model, output = (folder / name for name in ("corpus.jsonl", "model", "vectors"))
    write_corpus(corpus, count)
    maker = multiprocessing.get_context("spawn").Process(target=write_model, args=(model,))
    maker.start()
    maker.join()
    command = [sys.executable, "-m", "denserk", "encode", "--model", str(model), "--threads", "1"]
    command += ["--representation", "mean", "--passage-max-length", str(POSITIONS), "--quiet"]
    process = subprocess.Popen([*command, "--corpus", str(corpus), "--output", str(output)])
    first = most = 0.0
    while process.poll() is None:
        if (output / "block-00000.docid").exists():
            seen = resident("VmRSS", process.pid)
            first, most = first or seen, max(most, seen)
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(process.returncode)
    return first, most


def main() -> None:
    """Measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    with tempfile.TemporaryDirectory() as folder:
        first, most = measure(Path(folder), count)
    print(f"{count:,} passages: {first:,.0f} MiB after the first block, {most:,.0f} MiB later")
    if most > GROWTH * first:
        raise SystemExit(f"it grew {most / first:.2f} times, more than {GROWTH}")


if __name__ == "__main__":
    main()
