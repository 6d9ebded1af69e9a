"""`denserk search`."""

from denserk.cli.app import app
from denserk.cli.console import console
from denserk.cli.options import Overrides, command
from denserk.settings.encode import TextShorthands
from denserk.settings.encoding import ComputeSettings, RepresentationSettings, TextSettings
from denserk.settings.formats import CorpusSettings
from denserk.settings.models import RepresentationShorthands
from denserk.settings.retrieval import SearchPaths, SearchSettings


@command(
    app,
    "search",
    paths="Input and output",
    settings="Search",
    representation="Representation, where it differs from the model's own",
    representation_shorthands="Representation, where it differs from the model's own",
    text="Text, where it differs from the model's own",
    text_shorthands="Text, where it differs from the model's own",
    corpus="Corpus, for --rerank",
    compute="Computation",
)
def search(
    paths: SearchPaths,
    settings: SearchSettings,
    representation: Overrides[RepresentationSettings],
    representation_shorthands: RepresentationShorthands,
    text: Overrides[TextSettings],
    text_shorthands: TextShorthands,
    corpus: CorpusSettings,
    compute: ComputeSettings,
) -> None:
    """Search an index, or rerank a run, and write a run."""
    representing = representation_shorthands.overrides(representation)
    texts = text_shorthands.overrides(text, "query")
    if paths.rerank is not None:
        from denserk.tasks.rerank import rerank

        reranked = rerank(paths, settings, representing, texts, compute, corpus, console())
        console().note(
            f"{paths.output}: {reranked.queries:,} queries, {reranked.pairs:,} pairs, "
            f"{reranked.per_second:,.1f} pairs a second"
        )
        return
    from denserk.tasks.search import search as task

    result = task(paths, settings, representing, texts, compute, console())
    console().note(
        f"{paths.output}: {result.queries:,} queries, {result.hits:,} hits, "
        f"{result.per_second:,.1f} queries a second"
    )
