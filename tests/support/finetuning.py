"""Small fine-tuning runs: training files of made-up examples, runs from flat settings."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from denserk.config.encoding import Representation
from denserk.config.finetuning import FinetuneRun, resolve_run
from denserk.config.formats import CorpusSettings
from denserk.tasks.finetune import finetune
from denserk.training.run_folder import TrainingResult
from tests.support.training_examples import inline, jsonl

SMALL = {
    "batch_size": 4,
    "group_size": 3,
    "max_steps": 10,
    "lr": 0.01,
    "save_steps": 4,
    "logging_steps": 2,
    "device": "cpu",
}
"""Ten steps of four queries with three passages each; checkpoints at 4, 8 and 10."""
AGG: dict[str, Any] = {"representation": Representation.AGG, "agg_dim": 20, "cls_dim": 6}


def write_examples(path: Path, queries: Iterable[int], *, scored: bool = False) -> str:
    return jsonl(path, (inline(number, 1 + number % 2, 3, scored=scored) for number in queries))


def run_of(output: Path, model: Path | str, train: str | Path, **options: Any) -> FinetuneRun:
    """A run of `SMALL` settings; options by field name replace or add to them."""
    paths = {"model": str(model), "train_data": (str(train),), "output": str(output)}
    preset = options.pop("preset", None)
    return resolve_run(preset, CorpusSettings(), {**SMALL, **paths, **options})


def tune(output: Path, model: Path | str, train: str | Path, **options: Any) -> TrainingResult:
    return finetune(run_of(output, model, train, **options))


def log_of(folder: Path) -> list[dict[str, Any]]:
    log: list[dict[str, Any]] = json.loads((folder / "training.json").read_text())["log"]
    return log


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()
