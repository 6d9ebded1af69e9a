"""`denserk fuse`."""

import logging
from typing import Annotated, Any

import typer

from denserk.commands.app import app
from denserk.commands.options import command
from denserk.config.retrieval import FusionSettings, RankingSettings, RunOutput

logger = logging.getLogger(__name__)


@command(
    app,
    "fuse",
    common=(
        "output method weights alpha rrf_k normalization missing depth hits "
        "tag output_format overwrite quiet"
    ),
    examples=(
        "denserk fuse bm25.trec dense.trec --output fused.trec",
        "denserk fuse bm25.trec dense.trec --method linear --weights 0.3,0.7 --output fused.trec",
    ),
)
def fuse(
    paths: RunOutput,
    fusion: FusionSettings,
    settings: RankingSettings,
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN", help="Two or more runs; - for standard input.")
    ],
) -> Any:
    """Fuse several runs into one."""
    from denserk.index.fusion import fuse as task

    result = task(runs, paths.output, fusion, settings)
    logger.info(
        f"{paths.output}: {len(runs)} runs, {result.queries:,} queries, {result.hits:,} hits"
    )
    return result
