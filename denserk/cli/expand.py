"""`denserk expand`."""

from denserk.cli.app import app
from denserk.cli.console import console
from denserk.cli.options import Given, command
from denserk.settings.encoding import ComputeSettings
from denserk.settings.expand import (
    ContinuationDrawing,
    ExpandSettings,
    ExpandTextSettings,
    QueryDrawing,
)
from denserk.settings.formats import CorpusSettings


@command(
    app,
    "expand",
    expansion="Input and output",
    queries="Queries",
    continuations="Continuations",
    text="Text",
    corpus="Corpus",
    compute="Computation",
)
def expand(
    expansion: ExpandSettings,
    queries: Given[QueryDrawing],
    continuations: Given[ContinuationDrawing],
    text: ExpandTextSettings,
    corpus: CorpusSettings,
    compute: ComputeSettings,
) -> None:
    """Generate queries and continuations of passages."""
    from denserk.tasks.expand import expand as task

    result = task(expansion, queries, continuations, text, corpus, compute, console())
    console().note(
        f"{expansion.output}: {result.count:,} passages; {result.expanded:,} expanded now "
        f"({result.queries:,} queries, {result.continuations:,} continuations; {result.empty:,} "
        f"without text), {result.per_second:,.1f} a second"
    )
