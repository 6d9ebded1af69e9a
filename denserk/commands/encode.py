"""`denserk encode`."""

import logging
import os
from typing import Any

from denserk.commands.app import app
from denserk.commands.console import per_second
from denserk.commands.options import Overrides, command
from denserk.config.encoding import (
    ComputeSettings,
    EncodeSettings,
    RepresentationSettings,
    TextSettings,
)
from denserk.config.formats import CorpusSettings

logger = logging.getLogger(__name__)


@command(
    app,
    "encode",
    common=(
        "model corpus topics qrels output output_format resume overwrite shard_id "
        "shard_num representation l2_norm passage_max_length query_max_length device dtype int8 "
        "batch_size"
    ),
    examples=(
        "denserk encode --model minilm --corpus corpus.jsonl --output vectors/",
        "denserk encode --model minilm --topics queries.tsv --output encoded-queries/",
    ),
)
def encode(
    encoding: EncodeSettings,
    corpus: CorpusSettings,
    representation: Overrides[RepresentationSettings],
    text: Overrides[TextSettings],
    compute: ComputeSettings,
) -> Any:
    """Encode passages or queries into vectors."""
    from denserk.models.encode import encode as task

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the number of threads is --workers
    result = task(encoding, corpus, representation, text, compute)
    logger.info(
        f"{encoding.output}: {result.count:,} vectors of {result.dimension} dimensions; "
        f"{result.encoded:,} encoded in this run, {per_second(result.per_second)} per second"
    )
    if result.encoded:
        logger.info(
            f"{result.tokens_per_second:,.0f} tokens per second, {result.padding:.1%} padding"
        )
    return result
