"""Trained models -> how widely their [CLS] looks, layer by layer: Condenser's Figure 2."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from denserk.analysis.attention_entropy import layer_entropies
from denserk.analysis.layer_curves import draw
from denserk.analysis.pictures import draw_if_installed
from denserk.data.batches import by_length, pad
from denserk.data.sampling import choose_records
from denserk.errors import DenserkError, InputError, ModelError, UsageError
from denserk.extras import require
from denserk.formats.csv_rows import write_rows
from denserk.formats.sources import read_passages
from denserk.modeling.model_names import find_model
from denserk.modeling.text_encoder import TextEncoder
from denserk.records import Passage
from denserk.reporting import SILENT, Reporter
from denserk.settings.analysis import AttentionEntropySettings
from denserk.settings.encoding import ComputeSettings, Representation
from denserk.settings.formats import DETECTED, CorpusSettings

HEADER = (
    *("label", "model", "corpus", "passages", "seed", "max_length"),
    *("layer", "entropy", "deviation"),
)
QUANTITY = "entropy of [CLS] attention (nats)"
MAP_BYTES = 1 << 28
"""Attention maps held at once; they grow with the square of the length, in every layer."""


@dataclass(frozen=True)
class AttentionEntropy:
    """One model's curve: a value a layer, from the first to the last.

    `entropy` is the mean over heads and passages, in nats; `deviation` the standard deviation over
    passages of the heads' mean.
    """

    label: str
    model: str
    passages: int
    entropy: tuple[float, ...]
    deviation: tuple[float, ...]


def attention_entropy(
    settings: AttentionEntropySettings,
    corpus: CorpusSettings = DETECTED,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
    reporter: Reporter = SILENT,
) -> list[AttentionEntropy]:
    """Measures models on the same passages; writes the table, and the curves.

    Of a model with separate encoders, the one of passages is measured.

    Args:
        settings: which models, which passages, to where.
        corpus: how passages are read.
        compute: where and how.
        reporter: told of progress.

    Raises:
        UsageError, ModelError: a model or the corpus is not there, or has no [CLS].
        InputError: the corpus is broken, or holds no text.
        DenserkError: a model's attention is no number.
        OutputError: table or curves cannot be written.
    """
    if settings.plot is not None:
        require("matplotlib", "drawing curves")
    for _, model in settings.labelled:  # none is measured before all are found
        find_model(model)
    passages = _sample(settings, corpus, reporter)
    found = [
        _measure(label, model, passages, settings, compute, reporter)
        for label, model in settings.labelled
    ]
    write_rows(settings.output, [HEADER, *_rows(found, settings)])
    curves = {curve.label: curve.entropy for curve in found}
    draw_if_installed(partial(draw, curves, QUANTITY), "the curves", settings.picture, reporter)
    return found


def side_by_side(found: Sequence[AttentionEntropy]) -> tuple[list[str], list[list[str]]]:
    """Curves as a table, its header and rows: a row a layer, a column a model.

    >>> side_by_side([AttentionEntropy("a", "a", 9, (1.5, 1.25), (0.1, 0.2))])
    (['layer', 'a'], [['1', '1.5000'], ['2', '1.2500']])
    """
    layers = range(max(len(curve.entropy) for curve in found))
    rows = [
        [str(i + 1), *(f"{c.entropy[i]:.4f}" if i < len(c.entropy) else "" for c in found)]
        for i in layers
    ]
    return ["layer", *(curve.label for curve in found)], rows


def _sample(
    settings: AttentionEntropySettings, corpus: CorpusSettings, reporter: Reporter
) -> list[Passage]:
    """The passages that every model reads."""
    count, fields = 0, settings.fields or ("title", "text")

    def with_text() -> Iterator[Passage]:
        nonlocal count
        source = read_passages(settings.corpus, corpus, reporter, settings.fields or None)
        with reporter.track(f"drawing from {settings.corpus}", None, "passages") as progress:
            for passage in source:
                if any(passage.field(name).strip() for name in fields):
                    count += 1
                    yield passage
                progress.advance()

    drawn = choose_records(with_text(), settings.sample, settings.seed)
    if not drawn:
        raise InputError(settings.corpus, None, "passages without text alone", "some text")
    reporter.note(f"{len(drawn):,} of {count:,} passages with text, drawn by seed {settings.seed}")
    return drawn


def _measure(
    label: str,
    model: str,
    passages: Sequence[Passage],
    settings: AttentionEntropySettings,
    compute: ComputeSettings,
    reporter: Reporter,
) -> AttentionEntropy:
    text: dict[str, Any] = {"passage_max_length": settings.max_length}
    text |= {"fields": settings.fields} if settings.fields else {}
    text |= {"join": settings.join} if settings.join is not None else {}
    states = {"representation": Representation.MEAN}  # any would do: no vectors are made
    try:
        encoder = TextEncoder.load(model, states, text, replace(compute, plain=True), reporter)
    except UsageError as error:
        raise UsageError(f"{label}: {error.message}", error.hint) from None
    entropies = _entropies(label, encoder, passages, reporter)
    if not np.isfinite(entropies).all():
        raise DenserkError(f"{model} attends by what is no number", "use --dtype float32")
    mean, deviation = entropies.mean(0), entropies.std(0)
    return AttentionEntropy(
        label, model, len(passages), tuple(mean.tolist()), tuple(deviation.tolist())
    )


def _entropies(
    label: str, encoder: TextEncoder, passages: Sequence[Passage], reporter: Reporter
) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """(P, L) of the passages, in their order."""
    side = encoder.passage_side
    backbone = side.encoder.backbone
    if not backbone.architecture.has_cls:
        raise ModelError(
            f"{label}: a {backbone.architecture.model_type} backbone has no [CLS] token, whose "
            "attention is measured"
        )
    ids = side.tokenizer.passages(passages)
    lengths = [len(text) for text in ids]
    column = 4 * backbone.last_layer * backbone.heads * max(lengths)
    tokens = min(encoder.batch_tokens, MAP_BYTES // column)
    entropies = np.empty((len(ids), backbone.last_layer))
    with reporter.track(f"attention of {label}", len(ids), "passages") as progress:
        for members in by_length(lengths, tokens, encoder.compute.batch_size):
            batch = pad([ids[i] for i in members], side.tokenizer.pad_id)
            entropies[members] = layer_entropies(backbone, batch.to(encoder.device))
            progress.advance(len(members))
    return entropies


def _rows(
    found: Sequence[AttentionEntropy], settings: AttentionEntropySettings
) -> Iterator[tuple[str, ...]]:
    """The table under `HEADER`: a row a model and layer."""
    for curve in found:
        told = (curve.label, curve.model, settings.corpus, str(curve.passages))
        chosen = (str(settings.seed), str(settings.max_length))
        for layer, values in enumerate(zip(curve.entropy, curve.deviation, strict=True), start=1):
            yield *told, *chosen, str(layer), *(f"{value:.6f}" for value in values)
