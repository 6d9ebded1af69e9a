"""Makes folders as the installed denserk writes them, for later versions to open.

    python -m tests.old_folders.make VERSION

writes tests/old_folders/VERSION. A folder that exists is never made again: it holds what an older
version wrote. A new one is added when a format changes.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from denserk.commands.data import convert
from denserk.commands.retrieve import encode, fuse, index, rerank, search
from denserk.commands.train import finetune
from denserk.io.json_records import write_objects
from tests.support.tiny_models import write_tiny, write_tiny_classifier
from tests.support.toy import VOCABULARY, WORDS

INDEXES: dict[str, dict[str, Any]] = {
    "flat-faiss": {"type": "flat", "engine": "faiss"},
    "flat-torch": {"type": "flat", "engine": "torch"},
    "hnsw": {"type": "hnsw", "M": 8, "efC": 32},
    "ivf": {"type": "ivf", "nlist": 4},
    "pq": {"type": "pq", "pq_m": 4, "pq_nbits": 4},
    "hnswpq": {"type": "hnswpq", "M": 8, "efC": 32, "pq_m": 4, "pq_nbits": 4},
    "sq8": {"type": "sq8"},
    "sqfp16": {"type": "sqfp16"},
}
# float32: other processors have no bfloat16
CPU = {"device": "cpu", "backend": "torch", "dtype": "float32"}


def sentence(random: np.random.Generator, length: int) -> str:
    return " ".join(random.choice(WORDS, length))


def write_collection() -> None:
    random = np.random.default_rng(5)
    passages = [(f"d{number}", sentence(random, 2), sentence(random, 12)) for number in range(40)]
    queries = [(f"q{number}", sentence(random, 4)) for number in range(5)]
    fields = ("_id", "title", "text")
    write_objects("corpus.jsonl", (dict(zip(fields, row, strict=True)) for row in passages))
    Path("queries.tsv").write_text("".join(f"{qid}\t{text}\n" for qid, text in queries))
    Path("qrels.txt").write_text("".join(f"q{n} 0 d{7 * n} {1 + n % 2}\n" for n in range(5)))
    examples = [
        {"query": text, "positive": passages[n][2], "negative": passages[n + 9][2]}
        for n, (_, text) in enumerate(queries)
    ]
    write_objects("train.jsonl", examples)


def make_models() -> None:
    write_tiny(Path("backbone"), "bert", VOCABULARY)
    write_tiny_classifier(Path("scorer"), "bert", VOCABULARY)
    training = {"batch_size": 2, "group_size": 2, "max_steps": 4, "save_steps": 2, "lr": 1e-3}
    finetune(
        model="backbone",
        train_data="train.jsonl",
        output="model",
        representation="agg",
        agg_dim=12,
        cls_dim=4,
        device="cpu",
        **training,
    )
    shutil.rmtree("model.training")  # checkpoints: those of `interrupt_training` are enough
    for name in ("cls", "mlr"):
        convert(
            source="backbone",
            target=f"model-{name}",
            kind="model",
            to_format="denserk",
            representation=name,
        )


def interrupt_training() -> None:
    """Leave a run that stopped between two checkpoints."""
    options = ["--batch-size", "2", "--group-size", "2", "--max-steps", "40", "--lr", "1e-3"]
    command = ["denserk", "finetune", "--model", "backbone", "--train-data", "train.jsonl"]
    rare = ["--set", "save-steps=2", "--device", "cpu", "--output", "interrupted"]
    process = subprocess.Popen([*command, *options, *rare])
    checkpoints = Path("interrupted.training", "checkpoints")
    while not list(checkpoints.glob("checkpoint-*")) and process.poll() is None:
        time.sleep(0.01)
    process.terminate()
    process.wait()


def make_vectors() -> None:
    encode(model="model", corpus="corpus.jsonl", output="vectors", block_size=16, **CPU)
    encode(model="model", topics="queries.tsv", output="encoded", **CPU)
    encode(model="model-mlr", corpus="corpus.jsonl", output="vectors-mlr", **CPU)


def make_indexes_and_runs() -> None:
    for name, options in INDEXES.items():
        index(input="vectors", output=f"index-{name}", threads=1, **options)
    index(input="vectors-mlr", output="index-mlr", threads=1)
    index(corpus="corpus.jsonl", output="index-bm25", type="bm25")
    topics = {"topics": "queries.tsv", "hits": 10}
    for name in (*INDEXES, "mlr"):
        search(index=f"index-{name}", output=f"{name}.trec", threads=1, **topics, **CPU)
    search(index="index-bm25", output="bm25.trec", **topics)
    search(index="vectors", output="vectors.trec", **topics, **CPU)
    fuse(runs=["bm25.trec", "flat-torch.trec"], method="rrf", output="fused.trec")
    rerank(
        model="scorer",
        run="bm25.trec",
        topics="queries.tsv",
        corpus="corpus.jsonl",
        output="reranked.trec",
        depth=5,
        device="cpu",
    )


def main(name: str) -> None:
    folder = Path(__file__).parent / name
    folder.mkdir()
    os.chdir(folder)
    write_collection()
    make_models()
    interrupt_training()
    make_vectors()
    make_indexes_and_runs()


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(sys.argv[1])
