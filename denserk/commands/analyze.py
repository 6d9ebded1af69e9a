"""`denserk analyze`: one subcommand per analysis."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, TypeVar

import typer

from denserk.commands.app import app
from denserk.commands.console import print_table
from denserk.commands.options import Overrides, command
from denserk.config.analysis import (
    AttentionEntropySettings,
    QueryLatencySettings,
    SentenceSimilaritySettings,
    WinningVectorSettings,
)
from denserk.config.encoding import ComputeSettings, RepresentationSettings, TextSettings
from denserk.config.formats import CorpusSettings

MoreModels = Annotated[
    list[str] | None, typer.Argument(metavar="[LABEL=]MODEL", help="More models, like --model.")
]

Several = TypeVar("Several", AttentionEntropySettings, QueryLatencySettings, WinningVectorSettings)


def _with(settings: Several, more: list[str] | None) -> Several:
    """Add the positional models to --model."""
    return replace(settings, model=(*settings.model, *(more or ())))


def _print(output: str | None, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, unless standard output has it as CSV."""
    if output != "-":
        print_table(header, rows)


analyze = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(analyze, name="analyze", help="Analyze trained models.")


@analyze.callback()
def group() -> None:
    """Analyze trained models."""


@command(
    analyze,
    "sentence-similarity",
    common=(
        "model data output representation l2_norm passage_max_length passage_prefix "
        "device dtype batch_size overwrite"
    ),
    examples=(
        "denserk analyze sentence-similarity --model minilm --data sts.tsv",
        "denserk analyze sentence-similarity --model model/ --data nli.jsonl --output out.csv",
    ),
)
def sentence_similarity(
    settings: SentenceSimilaritySettings,
    representation: Overrides[RepresentationSettings],
    text: Overrides[TextSettings],
    compute: ComputeSettings,
) -> None:
    """Evaluate embeddings on labelled sentence pairs or on triplets."""
    from denserk.analysis.sentence_similarity import HEADER
    from denserk.analysis.sentence_similarity import sentence_similarity as task

    found = task(settings, representation, text, compute)
    _print(settings.output, HEADER, [each.row() for each in found])


@command(
    analyze,
    "attention-entropy",
    common=("model corpus sample seed max_length output plot device dtype batch_size overwrite"),
    examples=(
        "denserk analyze attention-entropy --model bert-base-uncased --corpus corpus.jsonl",
        "denserk analyze attention-entropy --model a/ --model b/ --corpus corpus.jsonl",
    ),
)
def attention_entropy(
    settings: AttentionEntropySettings,
    corpus: CorpusSettings,
    compute: ComputeSettings,
    more: MoreModels = None,
) -> None:
    """Measure the entropy of [CLS] attention per layer."""
    from denserk.analysis.attention_entropy import attention_entropy as task
    from denserk.analysis.attention_entropy import layer_table

    found = task(_with(settings, more), corpus, compute)
    _print(settings.output, *layer_table(found))


@command(
    analyze,
    "query-latency",
    common=(
        "model topics sample warm_up output plot representation query_max_length "
        "query_prefix device dtype threads overwrite"
    ),
    examples=(
        "denserk analyze query-latency --model minilm --topics queries.tsv",
        "denserk analyze query-latency --model minilm --topics queries.tsv --threads 4",
    ),
)
def query_latency(
    settings: QueryLatencySettings,
    representation: Overrides[RepresentationSettings],
    text: Overrides[TextSettings],
    compute: ComputeSettings,
    more: MoreModels = None,
) -> None:
    """Measure the latency of query encoding, one query at a time."""
    from denserk.analysis.latency import latency_table
    from denserk.analysis.latency import query_latency as task

    found = task(_with(settings, more), representation, text, compute)
    _print(settings.output, *latency_table(found))


@command(
    analyze,
    "layers",
    common=(
        "model topics corpus qrels run depth sample seed output plot representation "
        "layers query_max_length passage_max_length device dtype batch_size overwrite"
    ),
    examples=(
        "denserk analyze layers --model model/ --topics q.tsv --corpus c.jsonl --qrels qrels.txt",
        "denserk analyze layers --model model/ --topics q.tsv --corpus c.jsonl --run run.trec",
    ),
)
def layers(
    settings: WinningVectorSettings,
    representation: Overrides[RepresentationSettings],
    text: Overrides[TextSettings],
    corpus: CorpusSettings,
    compute: ComputeSettings,
    more: MoreModels = None,
) -> None:
    """Count which vector of a passage scores best (for mlr: which layer)."""
    from denserk.analysis.winning_vectors import share_table
    from denserk.analysis.winning_vectors import winning_vectors as task

    found = task(_with(settings, more), representation, text, compute, corpus)
    _print(settings.output, *share_table(found))
