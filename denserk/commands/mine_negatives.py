"""`denserk mine-negatives`."""

import logging
from typing import Any

from denserk.commands.app import app
from denserk.commands.options import Overrides, command
from denserk.config.encoding import ComputeSettings, TextSettings
from denserk.config.formats import CorpusSettings
from denserk.config.mining import MiningPaths, MiningSettings

logger = logging.getLogger(__name__)


@command(
    app,
    "mine-negatives",
    common=(
        "train topics qrels run corpus output output_format depth num_negatives "
        "sampling_strategy range_min relative_margin answers teacher "
        "skip_missing seed overwrite"
    ),
    examples=(
        "denserk mine-negatives --train t.jsonl --run r.trec --corpus c.jsonl --output mined.jsonl",
        "denserk mine-negatives --topics q.tsv --qrels qrels.txt --run r.trec --output out.jsonl",
    ),
)
def mine_negatives(
    paths: MiningPaths,
    settings: MiningSettings,
    corpus: CorpusSettings,
    text: Overrides[TextSettings],
    compute: ComputeSettings,
) -> Any:
    """Mine hard negatives from runs over training queries."""
    from denserk.mining.mining import mine_negatives as task

    result = task(paths, settings, corpus, text, compute)
    logger.info(f"{paths.output}: {result.queries:,} queries, {result.negatives:,} negatives")
    return result
