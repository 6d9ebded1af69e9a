"""`denserk rerank`."""

import logging
from typing import Any

from denserk.commands.app import app
from denserk.commands.options import Overrides, command
from denserk.config.encoding import ComputeSettings, TextSettings
from denserk.config.formats import CorpusSettings
from denserk.config.retrieval import RerankPaths, RerankSettings

logger = logging.getLogger(__name__)


@command(
    app,
    "rerank",
    common=(
        "model run topics corpus output depth hits pair_max_length query_max_length "
        "passage_max_length fields output_format overwrite device dtype batch_tokens quiet"
    ),
    examples=(
        "denserk rerank --model M --run in.trec --topics q.tsv --corpus c.jsonl --output out.trec",
        "denserk rerank --model M --run - --depth 100 --topics q.tsv --corpus c.jsonl --output -",
    ),
)
def rerank(
    paths: RerankPaths,
    settings: RerankSettings,
    text: Overrides[TextSettings],
    corpus: CorpusSettings,
    compute: ComputeSettings,
) -> Any:
    """Rerank the hits of a run with a cross-encoder."""
    from denserk.index.rerank import rerank as task

    result = task(paths, settings, text, compute, corpus)
    logger.info(
        f"{paths.output}: {result.queries:,} queries, {result.pairs:,} pairs, "
        f"{result.per_second:,.1f} pairs per second"
    )
    return result
