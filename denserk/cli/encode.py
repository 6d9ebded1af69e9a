"""`denserk encode`."""

from denserk.cli.app import app
from denserk.cli.console import console
from denserk.cli.options import Overrides, command
from denserk.settings.encode import EncodeSettings, TextShorthands
from denserk.settings.encoding import ComputeSettings, RepresentationSettings, TextSettings
from denserk.settings.formats import CorpusSettings
from denserk.settings.models import RepresentationShorthands


@command(
    app,
    "encode",
    encoding="Input and output",
    corpus="Corpus",
    representation="Representation, where it differs from the model's own",
    representation_shorthands="Representation, where it differs from the model's own",
    text="Text, where it differs from the model's own",
    text_shorthands="Text, where it differs from the model's own",
    compute="Computation",
)
def encode(
    encoding: EncodeSettings,
    corpus: CorpusSettings,
    representation: Overrides[RepresentationSettings],
    representation_shorthands: RepresentationShorthands,
    text: Overrides[TextSettings],
    text_shorthands: TextShorthands,
    compute: ComputeSettings,
) -> None:
    """Turn passages or queries into vectors."""
    from denserk.tasks.encode import encode as task

    result = task(
        encoding,
        corpus,
        representation_shorthands.overrides(representation),
        text_shorthands.overrides(text, encoding.side),
        compute,
        console(),
    )
    console().note(
        f"{encoding.output}: {result.count:,} vectors of {result.dimension} dimensions; "
        f"{result.encoded:,} encoded now, {result.per_second:,.0f} a second"
    )
