"""`denserk convert`."""

import logging
from typing import Annotated, Any

import typer

from denserk.commands.app import app
from denserk.commands.options import Overrides, command
from denserk.config.encoding import ComputeSettings, RepresentationSettings, TextSettings
from denserk.config.formats import ConversionSettings

logger = logging.getLogger(__name__)


@command(
    app,
    "convert",
    common=(
        "kind from_format to_format expansions corpus queries teacher tag allow_pickle "
        "overwrite representation l2_norm query_max_length passage_max_length device "
        "dtype batch_size"
    ),
    examples=(
        "denserk convert run.trec run.tsv --to msmarco",
        "denserk convert checkpoint/ model/ --kind model --representation cls",
    ),
)
def convert(
    source: Annotated[str, typer.Argument(help="File, folder, or - for standard input.")],
    target: Annotated[str, typer.Argument(help="File, folder, or - for standard output.")],
    conversion: ConversionSettings,
    representation: Overrides[RepresentationSettings],
    text: Overrides[TextSettings],
    compute: ComputeSettings,
) -> Any:
    """Convert data between formats."""
    from denserk.conversion import convert as task

    result = task(source, target, conversion, representation, text, compute)
    logger.info(f"{target}: {result.count:,} {result.unit} in format {result.format}")
    return result
