"""`denserk search`."""

import logging
from typing import Any

from denserk.commands.app import app
from denserk.commands.options import Given, Overrides, command
from denserk.config.encoding import ComputeSettings, RepresentationSettings, TextSettings
from denserk.config.retrieval import CollectionSettings, SearchPaths, SearchSettings

logger = logging.getLogger(__name__)


@command(
    app,
    "search",
    common=(
        "index topics topics_format qrels model encoded_queries output hits ef_search nprobe "
        "remove_query output_format overwrite device dtype threads quiet"
    ),
    examples=(
        "denserk search --index index/ --topics queries.tsv --output run.trec",
        "denserk search --index index/ --encoded-queries queries/ --output run.trec --hits 100",
    ),
)
def search(
    paths: SearchPaths,
    settings: SearchSettings,
    representation: Overrides[RepresentationSettings],
    text: Overrides[TextSettings],
    computing: Given[ComputeSettings],
    milvus: CollectionSettings,
) -> Any:
    """Search an index and write a run."""
    compute = ComputeSettings(**computing)
    own_precision = not {"dtype", "fp16", "bf16", "head_dtype"}.isdisjoint(computing)
    if paths.engine is None:
        milvus.reject_without_milvus()
    from denserk.index.search import search as task

    result = task(
        paths, settings, representation, text, compute, milvus, own_precision=own_precision
    )
    logger.info(
        f"{paths.output}: {result.queries:,} queries, {result.hits:,} hits, "
        f"{result.per_second:,.1f} queries per second"
    )
    return result
