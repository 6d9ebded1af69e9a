"""Mining from a large run: lines a second beside `cut` on the same file, and peak memory.

`python -m tests.benchmarks.mining [--scale SHARE] [--folder FOLDER]` writes a run of 502,939
queries with 200 hits each over 8,841,823 passages, its queries in another order than the training
data's, and mines from it twice: ids alone, and with the texts of the passages. A scale of 0.01
takes a hundredth of queries and passages. At full size it needs 10 GB in FOLDER, where inputs that
are there already are used again, and 4 GB for temporary files (TMPDIR). Its exit status is 1 where
a peak is above 3 GB.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.benchmarks.timing import DENSERK, Child, watch

QUERIES, HITS, PASSAGES = 502_939, 200, 8_841_823
LIMIT_MIB = 3e9 / 2**20
WORDS = [f"w{number}" for number in range(1000)]
SCORES = [[f"{90 + draw / 99 - place / 7:.6f}" for place in range(HITS)] for draw in range(97)]
RANKS = range(1, HITS + 1)


def docid(query: int, place: int, passages: int) -> int:
    """A hit of a query; those of different places differ."""
    return (query * 104_729 + place * (1 + query * 7919 % (passages // HITS))) % passages


def docids(query: int, passages: int) -> list[int]:
    """The hits of a query, best first."""
    first, second = (docid(query, place, passages) for place in (0, 1))
    return [(first + place * (second - first)) % passages for place in range(HITS)]


def run_lines(queries: int, passages: int) -> Iterator[str]:
    """The run, a query at a time, in an order of its own."""
    order = list(range(queries))
    Random(1).shuffle(order)
    for query in order:
        hits = zip(docids(query, passages), RANKS, SCORES[query % len(SCORES)], strict=True)
        name = f"{1_000_000 + query} Q0"
        yield "".join([f"{name} {docid} {rank} {score} run\n" for docid, rank, score in hits])


def train_lines(queries: int, passages: int) -> Iterator[str]:
    """Training data by id: the positive of a query is one of its hits."""
    for query in range(queries):
        positive = str(docid(query, query % HITS, passages))
        example = {
            "query_id": str(1_000_000 + query),
            "query_text": f"the words of query {query}",
            "positive_document_ids": [positive],
            "negative_document_ids": [],
        }
        yield json.dumps(example) + "\n"


def corpus_lines(passages: int) -> Iterator[str]:
    """Passages of 10 words."""
    draw = Random(2)
    texts = [" ".join(draw.choices(WORDS, k=10)) for _ in range(10_000)]
    for number in range(passages):
        yield f'{{"_id": "{number}", "title": "", "text": "{texts[number % 10_000]} {number}"}}\n'


def write(path: Path, lines: Iterator[str]) -> Path:
    """Writes a file, unless it is there."""
    if not path.exists():
        part = path.with_suffix(".part")
        with part.open("w") as out:
            out.writelines(lines)
        part.rename(path)
    return path


def inputs(folder: Path, queries: int, passages: int) -> tuple[Path, Path, Path]:
    """Run, training data and corpus."""
    return (
        write(folder / f"run-{queries}.trec", run_lines(queries, passages)),
        write(folder / f"train-{queries}.jsonl", train_lines(queries, passages)),
        write(folder / f"corpus-{passages}.jsonl", corpus_lines(passages)),
    )


def measure(folder: Path, scale: float) -> bool:
    """Mines and prints; whether memory stayed within its limit."""
    queries, passages = (max(HITS, round(count * scale)) for count in (QUERIES, PASSAGES))
    run, train, corpus = inputs(folder, queries, passages)
    lines = queries * HITS
    print(f"{queries:,} queries, {lines:,} lines, {run.stat().st_size / 1e9:.2f} GB", flush=True)
    mine = [DENSERK, "mine-negatives", "--train", str(train), "--run", str(run), "--quiet"]
    commands = {
        "cut": ["cut", "-d", " ", "-f", "3", str(run)],
        "ids": [*mine, "--output", str(folder / "ids.jsonl"), "--output-format", "tevatron-ids"],
        "with texts": [*mine, "--output", str(folder / "mined.jsonl"), "--corpus", str(corpus)],
    }
    used: dict[str, Child] = {}
    print(f"{'':12} {'clock':>9} {'CPU':>9} {'lines/CPU s':>12} {'of cut':>7} {'peak':>9}")
    for name, command in commands.items():
        used[name] = child = watch(command)
        print(
            f"{name:12} {child.seconds:7.0f} s {child.cpu_seconds:7.1f} s"
            f" {lines / child.cpu_seconds:12,.0f}"
            f" {used['cut'].cpu_seconds / child.cpu_seconds:7.3f} {child.peak_mib:5,.0f} MiB",
            flush=True,
        )
    return all(child.peak_mib < LIMIT_MIB for child in used.values())


def main() -> None:
    """Measures, and fails where a peak is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not measure(given.folder or Path(folder), given.scale):
            raise SystemExit("a peak is above 3 GB")


if __name__ == "__main__":
    main()
