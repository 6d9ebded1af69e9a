"""Small pre-training runs: a corpus of made-up documents, runs from flat settings."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from denserk.config.formats import CorpusSettings
from denserk.config.options import select
from denserk.config.pretraining import (
    PretrainingObjective,
    PretrainRun,
    PretrainSettings,
    resolve_run,
)
from denserk.tasks.pretrain import pretrain
from denserk.training.run_folder import TrainingResult
from tests.support.training_examples import jsonl, words

SMALL = {
    "batch_size": 4,
    "max_length": 16,
    "max_steps": 6,
    "lr": 0.01,
    "save_steps": 2,
    "logging_steps": 1,
    "device": "cpu",
}
"""Six steps of four texts; checkpoints at 2, 4 and 6."""


def write_corpus(path: Path, documents: Iterable[int] = range(12)) -> str:
    """Documents of a few sentences, two passages each, known by their ids `n#0` and `n#1`."""
    lines = []
    for number in documents:
        for passage in range(2):
            sentences = []
            for position in range(4):
                sentence = words(
                    100 * number + 10 * passage + position, 5 + (number + position) % 4
                )
                sentences.append(sentence.capitalize())
            lines.append({"_id": f"{number}#{passage}", "text": ". ".join(sentences) + "."})
    return jsonl(path, lines)


def write_expansions(path: Path, documents: Iterable[int] = range(12)) -> str:
    """Two queries and a continuation for every passage of `write_corpus`."""
    lines = [
        {
            "docid": f"{number}#{part}",
            "queries": [words(number + 7, 4), words(number + 9, 3)],
            "next": [words(number + 11, 9)],
        }
        for number in documents
        for part in range(2)
    ]
    return jsonl(path, lines)


def run_of(
    output: Path,
    corpus: str | Path,
    objective: str = "mlm",
    model: str | Path | None = None,
    **options: Any,
) -> PretrainRun:
    """A run of `SMALL` settings; options by field name replace or add to them."""
    inputs = {
        "objective": PretrainingObjective(objective),
        "corpus": (str(corpus),),
        "output": str(output),
        "model": None if model is None else str(model),
    }
    run_options = {**SMALL, **inputs, **options}
    settings = PretrainSettings(**select(run_options, PretrainSettings))
    return resolve_run(settings, CorpusSettings(), run_options)


def train(output: Path, *arguments: Any, **options: Any) -> TrainingResult:
    return pretrain(run_of(output, *arguments, **options))
