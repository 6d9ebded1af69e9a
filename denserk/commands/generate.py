"""`denserk generate`."""

import logging
from typing import Any

from denserk.commands.app import app
from denserk.commands.options import Given, command
from denserk.config.encoding import ComputeSettings
from denserk.config.formats import CorpusSettings
from denserk.config.generate import (
    ContinuationSettings,
    GenerateSettings,
    GenerateTextSettings,
    QuerySettings,
)

logger = logging.getLogger(__name__)


@command(
    app,
    "generate",
    common=(
        "corpus output queries_model continuation_model num_queries "
        "num_continuations passage_max_length "
        "seed resume overwrite shard_id shard_num device dtype batch_size"
    ),
    examples=(
        "denserk generate --corpus corpus.jsonl --output out.jsonl --queries-model T5/",
        "denserk generate --corpus corpus.jsonl --output out.jsonl --continuation-model gpt2",
    ),
)
def generate(
    settings: GenerateSettings,
    queries: Given[QuerySettings],
    continuations: Given[ContinuationSettings],
    text: GenerateTextSettings,
    corpus: CorpusSettings,
    compute: ComputeSettings,
) -> Any:
    """Generate queries (doc2query) and continuations for passages."""
    from denserk.models.generation import generate as task

    result = task(settings, queries, continuations, text, corpus, compute)
    logger.info(
        f"{settings.output}: {result.count:,} passages; {result.generated:,} processed in this run "
        f"({result.queries:,} queries, {result.continuations:,} continuations; {result.empty:,} "
        f"without text), {result.per_second:,.1f} per second"
    )
    return result
