"""`denserk pretrain`."""

import logging
from typing import Any

from denserk.commands.app import app
from denserk.commands.options import Given, command
from denserk.config.formats import CorpusSettings
from denserk.config.pretraining import (
    MaskingSettings,
    PretrainingObjectiveSettings,
    PretrainOptimizerSettings,
    PretrainSettings,
    TextUnitSettings,
    resolve_run,
)

logger = logging.getLogger(__name__)


@command(
    app,
    "pretrain",
    config=True,
    common=(
        "objective model architecture corpus expansions output max_length spans "
        "mlm_probability batch_size epochs max_steps lr dtype save_steps seed device "
        "resume"
    ),
    examples=(
        "denserk pretrain --objective condenser --model bert-base-uncased --corpus t.txt "
        "--output m/",
        "denserk pretrain --objective mlm --architecture tiny --corpus t.txt --output m/",
    ),
)
def pretrain(
    pretraining: PretrainSettings,
    corpus: CorpusSettings,
    units: Given[TextUnitSettings],
    masking: Given[MaskingSettings],
    objective: Given[PretrainingObjectiveSettings],
    optimizer: Given[PretrainOptimizerSettings],
) -> Any:
    """Pre-train a backbone for retrieval."""
    run = resolve_run(pretraining, corpus, {**units, **masking, **objective, **optimizer})
    from denserk.training.pretrain import pretrain as task

    result = task(run)
    loss = "" if result.loss is None else f", loss {result.loss:.4f}"
    logger.info(f"{pretraining.output}: {result.steps:,} steps{loss}")
    return result
