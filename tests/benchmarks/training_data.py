"""Training data: the peak memory of its preparation at two sizes, and batches a second.

    python -m tests.benchmarks.training_data [folder]

Each preparation is a process of its own: queries with a positive and 29 negatives, ids into a
corpus of 50,000 passages, or texts inline. Batches are 8 queries of 8 passages, on one core, beside
the copy of as many bytes.
"""

import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import orjson

from tests.benchmarks.timing import watch

SIZES = (20_000, 200_000)
CORPUS = 50_000
CANDIDATES = 31
GROWTH = 1.2
"""How much a peak may grow while the queries grow tenfold: memory that the interpreter keeps."""
BATCH, GROUP = 8, 8
WORDS = [f"w{number}" for number in range(2000)]

PREPARE = """
import sys
from pathlib import Path
from tests.benchmarks.training_data import tokenizer
from denserk.data.training_data import TrainingInputs, prepare
data, corpus, folder = sys.argv[1:]
words = tokenizer()
prepare(TrainingInputs([data], corpus=corpus or None), Path(folder), words, words)
"""


def tokenizer():
    """A WordPiece tokenizer of the benchmark's own words."""
    from denserk.config.encoding import TextSettings
    from denserk.data.tokenization import TextTokenizer
    from tests.tiny_models import tiny_tokenizer

    return TextTokenizer(tiny_tokenizer("bert", WORDS), TextSettings())


def write_corpus(path: Path) -> None:
    """Passages of 40 to 90 words, the same every time."""
    draw = random.Random(42)
    with path.open("wb") as out:
        for number in range(CORPUS):
            text = " ".join(draw.choices(WORDS, k=draw.randint(40, 90)))
            out.write(orjson.dumps({"_id": f"p{number}", "text": text}) + b"\n")


def write_ids(path: Path, queries: int) -> None:
    """Queries with the ids of their candidates."""
    draw = random.Random(7)
    with path.open("wb") as out:
        for number in range(queries):
            ids = [f"p{draw.randrange(CORPUS)}" for _ in range(CANDIDATES)]
            record = {
                "query_id": str(number),
                "query_text": " ".join(draw.choices(WORDS, k=7)),
                "positive_document_ids": ids[:1],
                "negative_document_ids": ids[1:],
            }
            out.write(orjson.dumps(record) + b"\n")


def write_inline(path: Path, queries: int) -> None:
    """Queries with the texts of their candidates, of 5 words: it is memory that is measured."""
    draw = random.Random(7)
    with path.open("wb") as out:
        for number in range(queries):
            words = draw.choices(WORDS, k=5 * CANDIDATES)
            texts = [" ".join(words[start : start + 5]) for start in range(0, len(words), 5)]
            record = {
                "query_id": str(number),
                "query": " ".join(words[:7]),
                "positive_passages": [{"docid": "p", "text": texts[0]}],
                "negative_passages": [{"docid": "n", "text": text} for text in texts[1:]],
            }
            out.write(orjson.dumps(record) + b"\n")


def measure(folder: Path) -> bool:
    """Prints the peaks of both shapes at both sizes; whether one grew."""
    corpus = folder / "corpus.jsonl"
    write_corpus(corpus)
    grew = False
    for name, write in (("by id", write_ids), ("inline", write_inline)):
        peaks = []
        for size in SIZES:
            data = folder / f"{name.replace(' ', '-')}-{size}.jsonl"
            write(data, size)
            behind = str(corpus) if write is write_ids else ""
            target = str(data.with_suffix(".prepared"))
            child = watch([sys.executable, "-c", PREPARE, str(data), behind, target])
            print(f"{name:8} {size:8,} queries {child.peak_mib:7,.0f} MiB {child.seconds:6.1f} s")
            peaks.append(child.peak_mib)
        grew |= peaks[1] > peaks[0] * GROWTH
    return grew


def rates(prepared: Path) -> None:
    """Prints batches a second through the whole path, and of its parts."""
    import torch

    from denserk.config.training import SamplingSettings
    from denserk.data.training_batches import TrainingBatches
    from denserk.data.training_data import TrainingStore

    torch.set_num_threads(1)
    batches = TrainingBatches(TrainingStore(prepared), SamplingSettings(GROUP), BATCH)
    count = min(2000, len(batches))
    batch = batches[0]  # the order of the epoch is drawn here
    start = time.perf_counter()
    for step in range(count):
        batch = batches[step]
    built = (time.perf_counter() - start) / count
    values = batch.passages.input_ids.numpy(), batch.queries.input_ids.numpy()
    start = time.perf_counter()
    for _ in range(count):
        for array in values:
            np.copyto(np.empty_like(array), array)
    copied = (time.perf_counter() - start) / count
    print(
        f"batches of {BATCH} x {GROUP}, {values[0].shape[1]} tokens: {1 / built:,.0f} a second, "
        f"{BATCH / built:,.0f} queries a second; a bare copy: {1 / copied:,.0f} a second"
    )


def main() -> None:
    """Measures memory, then speed."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        folder.mkdir(parents=True, exist_ok=True)
        grew = measure(folder)
        rates(folder / f"by-id-{SIZES[1]}.prepared")
    if grew:
        raise SystemExit(f"a peak grew by more than {GROWTH - 1:.0%}")


if __name__ == "__main__":
    main()
