"""`denserk convert` and `denserk generate`."""

import logging
from typing import Annotated, Any

import typer

from denserk.commands.options import command
from denserk.config.encoding import ComputeSettings, ModelOptions
from denserk.config.formats import ConversionSettings, CorpusSettings, GenerateSettings

logger = logging.getLogger(__name__)


@command(
    "convert",
    common="kind from_format to_format text_field split_words split_sentences stride expansions "
    "corpus queries teacher tag overwrite representation l2_norm "
    "query_max_length passage_max_length device",
)
def convert(
    source: Annotated[str, typer.Argument(help="File, folder, or - for standard input.")],
    target: Annotated[str, typer.Argument(help="File, folder, or - for standard output.")],
    conversion: ConversionSettings,
    options: ModelOptions,
) -> Any:
    """Convert data between formats.

    denserk convert corpus.jsonl passages.jsonl --split-words 200 --stride 100
    denserk convert checkpoint/ model/ --kind model --representation cls
    """
    from denserk.tasks.convert import convert as task

    result = task(source, target, conversion, options)
    logger.info(f"{target}: {result.count:,} {result.unit} in format {result.format}")
    return result


@command(
    "generate",
    common="corpus output queries_model queries_from continuation_model num_queries "
    "num_continuations round_trip passage_max_length seed resume overwrite shard_id shard_num "
    "device dtype batch_size",
)
def generate(settings: GenerateSettings, corpus: CorpusSettings, compute: ComputeSettings) -> Any:
    """Generate queries for passages, by a model or without one, and continuations.

    denserk generate --corpus corpus.jsonl --output out.jsonl --queries-model T5/
    denserk generate --corpus corpus.jsonl --output out.jsonl --queries-from title,cloze
    """
    from denserk.tasks.generate import generate as task

    result = task(settings, corpus, compute)
    texts = f"{result.queries:,} queries, {result.continuations:,} continuations"
    work = f"{result.generated:,} processed in this run ({texts}; {result.empty:,} without text)"
    speed = f"{result.generated / (result.seconds or 1):,.1f} per second"
    logger.info(f"{settings.output}: {result.count:,} passages; {work}, {speed}")
    return result
