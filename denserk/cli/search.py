"""`denserk search`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from denserk.cli.app import app
from denserk.cli.console import console
from denserk.cli.drawing import show_suites
from denserk.cli.options import Given, Overrides, command
from denserk.errors import UsageError
from denserk.settings.encode import TextShorthands
from denserk.settings.encoding import ComputeSettings, RepresentationSettings, TextSettings
from denserk.settings.evaluation import ReportSettings
from denserk.settings.formats import CorpusSettings
from denserk.settings.fusion import FusionSettings
from denserk.settings.milvus import MilvusSearchSettings
from denserk.settings.models import RepresentationShorthands
from denserk.settings.retrieval import SearchPaths, SearchSettings
from denserk.settings.suites import SuiteSearchSettings


@command(
    app,
    "search",
    common=(
        "index topics model encoded_queries output hits ef_search nprobe rerank run "
        "corpus fuse method weights suite output_format device threads"
    ),
    examples=(
        "denserk search --index index/ --topics queries.tsv --output run.trec",
        "denserk search --fuse bm25.trec dense.trec --output fused.trec",
    ),
    paths="Input and output",
    settings="Search",
    suites="Suites, for --suite",
    fusion="Fusion, for --fuse",
    representation="Representation, where it differs from the model's own",
    representation_shorthands="Representation, where it differs from the model's own",
    text="Text, where it differs from the model's own",
    text_shorthands="Text, where it differs from the model's own",
    corpus="Corpus, for --rerank and --suite",
    computing="Computation",
    milvus="Milvus, for --engine milvus",
)
def search(
    paths: SearchPaths,
    settings: SearchSettings,
    suites: SuiteSearchSettings,
    fusion: FusionSettings,
    representation: Overrides[RepresentationSettings],
    representation_shorthands: RepresentationShorthands,
    text: Overrides[TextSettings],
    text_shorthands: TextShorthands,
    corpus: CorpusSettings,
    computing: Given[ComputeSettings],
    milvus: MilvusSearchSettings,
    more: Annotated[
        list[str] | None, typer.Argument(metavar="RUN", help="With --fuse: its other runs.")
    ] = None,
) -> None:
    """Search an index, rerank a run, or fuse several, and write a run; or run whole suites."""
    compute = ComputeSettings(**computing)
    own_precision = not {"dtype", "fp16", "bf16", "head_dtype"}.isdisjoint(computing)
    if not paths.suite:
        suites.refuse_in_vain()
    if paths.engine is None:
        milvus.refuse_in_vain()
    if more or paths.fuse:
        _fuse(paths, more or [], fusion, settings)
        return
    fusion.refuse_in_vain()
    representing = representation_shorthands.overrides(representation)
    if paths.suite:
        from denserk.tasks.search_suites import search_suites

        texts = _of_both_sides(text, text_shorthands)
        found = search_suites(
            paths, suites, settings, representing, texts, corpus, compute, console()
        )
        show_suites(found, ReportSettings())
        return
    texts = text_shorthands.overrides(text, "query")
    if paths.rerank is not None:
        from denserk.tasks.rerank import rerank

        reranked = rerank(
            paths,
            settings,
            representing,
            texts,
            compute,
            corpus,
            console(),
            own_precision=own_precision,
        )
        console().note(
            f"{paths.output}: {reranked.queries:,} queries, {reranked.pairs:,} pairs, "
            f"{reranked.per_second:,.1f} pairs a second"
        )
        return
    from denserk.tasks.search import search as task

    result = task(
        paths,
        settings,
        representing,
        texts,
        compute,
        console(),
        milvus,
        own_precision=own_precision,
    )
    console().note(
        f"{paths.output}: {result.queries:,} queries, {result.hits:,} hits, "
        f"{result.per_second:,.1f} queries a second"
    )


def _of_both_sides(text: Mapping[str, Any], shorthands: TextShorthands) -> dict[str, Any]:
    """The text settings where queries and passages are encoded at once."""
    for name in ("max_length", "prefix"):
        if getattr(shorthands, name) is not None:
            option = name.replace("_", "-")
            raise UsageError(
                f"--{option}: --suite encodes both sides",
                f"say which: --query-{option} or --passage-{option}",
            )
    return shorthands.overrides(text, "passage")


def _fuse(
    paths: SearchPaths, more: list[str], fusion: FusionSettings, settings: SearchSettings
) -> None:
    if not paths.fuse:
        raise UsageError(f"what is {more[0]} for?", "runs to fuse: --fuse a.trec b.trec")
    if len(paths.fuse) > 1 and more:
        raise UsageError(
            "runs after one --fuse, or each with its own: not both, since weights go by order"
        )
    from denserk.tasks.fuse import fuse

    paths = replace(paths, fuse=(*paths.fuse, *more))
    result = fuse(paths, fusion, settings, console())
    console().note(
        f"{paths.output}: {len(paths.fuse)} runs, {result.queries:,} queries, {result.hits:,} hits"
    )
