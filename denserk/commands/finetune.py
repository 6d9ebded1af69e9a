"""`denserk finetune`."""

import logging
from typing import Any

from denserk.commands.app import app
from denserk.commands.console import print_table
from denserk.commands.options import Given, Overrides, command
from denserk.config.encoding import RepresentationSettings, TextSettings
from denserk.config.finetuning import COLUMNS, PresetSettings, list_presets, resolve_run
from denserk.config.formats import CorpusSettings
from denserk.config.training import (
    CacheSettings,
    FinetuneSettings,
    ObjectiveSettings,
    OptimizerSettings,
    RerankingSettings,
    SamplingSettings,
    ValidationSettings,
)

logger = logging.getLogger(__name__)


@command(
    app,
    "finetune",
    config=True,
    common=(
        "preset model train_data corpus output representation objective temperature "
        "distillation batch_size epochs lr group_size grad_cache dtype dev_data "
        "device resume"
    ),
    examples=(
        "denserk finetune --model bert-base-uncased --train-data train.jsonl --output model/",
        "denserk finetune --model bert-base-uncased --representation agg --train-data t.jsonl "
        "--output m/",
    ),
)
def finetune(
    presets: PresetSettings,
    finetuning: Given[FinetuneSettings],
    corpus: CorpusSettings,
    representation: Overrides[RepresentationSettings],
    text: Overrides[TextSettings],
    sampling: Given[SamplingSettings],
    objective: Given[ObjectiveSettings],
    optimizer: Given[OptimizerSettings],
    cache: Given[CacheSettings],
    reranking: Given[RerankingSettings],
    validation: Given[ValidationSettings],
) -> Any:
    """Fine-tune a retriever or a cross-encoder."""
    if presets.list_presets:
        print_table(COLUMNS, list_presets())
        return None
    groups = (finetuning, representation, text, sampling, objective, optimizer, cache, reranking)
    given = {name: value for group in (*groups, validation) for name, value in group.items()}
    run = resolve_run(presets.preset, corpus, given)
    for line in run.lines():
        logger.info(line)
    from denserk.training.finetune import finetune as task

    result = task(run)
    loss = "" if result.loss is None else f", loss {result.loss:.4f}"
    best = "" if result.best is None else f", best {run.validation.best_by} {result.best:.4f}"
    logger.info(f"{run.finetune.output}: {result.steps:,} steps{loss}{best}")
    return result
