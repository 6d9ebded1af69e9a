"""Models that an analysis compares: all are looked for first, then loaded one by one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from denserk.config.analysis import SeveralModels
from denserk.config.encoding import ComputeSettings
from denserk.data.batches import TokenBatch, by_length, pad
from denserk.errors import UsageError
from denserk.extras import require
from denserk.models.checkpoints import find_model
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage
from denserk.reporting import track


def load_models(
    settings: SeveralModels,
    representation: Mapping[str, Any],
    text: Mapping[str, Any],
    compute: ComputeSettings,
    *,
    eager: bool = False,
) -> Iterator[tuple[str, str, TextEncoder]]:
    """Return (label, model, encoder) of every model; errors begin with its label.

    Raises:
        UsageError: there is no such model.
        MissingExtraError: a plot was asked for, and matplotlib is not installed.
    """
    if settings.plot is not None:
        require("matplotlib", "drawing plots")
    for _, model in settings.labelled:
        find_model(model)

    def load(label: str, model: str) -> TextEncoder:
        try:
            return TextEncoder.load(model, representation, text, compute, eager=eager)
        except UsageError as error:
            raise UsageError(f"{label}: {error.message}", error.hint) from None

    return ((label, model, load(label, model)) for label, model in settings.labelled)


def passage_batches(
    encoder: TextEncoder, passages: Sequence[Passage], label: str, batch_tokens: int
) -> Iterator[tuple[list[int], TokenBatch]]:
    """Yield batches of passages of similar length with their places; report progress."""
    tokenizer = encoder.passage_side.tokenizer
    ids = tokenizer.passages(passages)
    with track(f"reading with {label}", len(ids), "passages") as progress:
        for places in by_length(list(map(len, ids)), batch_tokens, encoder.compute.batch_size):
            yield places, pad([ids[i] for i in places], tokenizer.pad_id).to(encoder.device)
            progress.advance(len(places))
