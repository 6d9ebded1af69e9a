"""Entropy of the [CLS] attention, layer by layer (Condenser's Figure 2).

The [CLS] row of an attention head is a distribution p over the tokens of a text. Its entropy
-sum p ln p is 0 where the head attends to one token and ln T where it attends to all T equally. As
in Clark et al. (2019, "What Does BERT Look At?"), in nats.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denserk.analysis.side_by_side import load_models, passage_batches
from denserk.config.analysis import AttentionEntropySettings
from denserk.config.encoding import ComputeSettings, Representation
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.data.batches import TokenBatch
from denserk.data.sampling import choose_records
from denserk.errors import DenserkError, InputError, ModelError
from denserk.io.corpus import read_passages
from denserk.io.files import write_rows
from denserk.io.plots import draw_lines, new_axes, save_if_installed
from denserk.models.backbone import Backbone
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage
from denserk.reporting import track

logger = logging.getLogger(__name__)

HEADER = (
    *("label", "model", "corpus", "passages", "seed", "max_length"),
    *("layer", "entropy", "deviation"),
)
# attention maps in memory at once; they grow with the square of the length, in every layer
MAP_BYTES = 1 << 28


@dataclass(frozen=True)
class AttentionEntropy:
    """The curve of one model over so many passages, one value per layer from the first to the last.

    Attributes:
        entropy: mean over heads and passages, in nats.
        deviation: standard deviation over passages of the mean over heads.
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
) -> list[AttentionEntropy]:
    """Measure models on the same passages; write the table and the plot.

    With untied query and passage encoders, the passage encoder is measured.

    Raises:
        ModelError: a model has no [CLS].
        InputError: the corpus is broken or holds no text.
        DenserkError: the attention of a model is not a number.
    """
    text: dict[str, Any] = {"passage_max_length": settings.max_length}
    text |= {"fields": settings.fields} if settings.fields else {}
    text |= {"join": settings.join} if settings.join is not None else {}
    states = {"representation": Representation.MEAN}  # any pooling: no embeddings are made
    models = load_models(settings, states, text, compute, eager=True)
    passages = _sample(settings, corpus)
    found, rows = [], []
    for label, model, encoder in models:
        values = _entropies(label, encoder, passages, settings.max_length)
        if not np.isfinite(values).all():
            raise DenserkError(
                f"{model}: the attention is not a number (NaN)", "use --dtype float32"
            )
        mean, deviation = tuple(values.mean(0).tolist()), tuple(values.std(0).tolist())
        found.append(AttentionEntropy(label, model, len(passages), mean, deviation))
        source = (label, model, settings.corpus, len(passages), settings.seed, settings.max_length)
        for layer, numbers in enumerate(zip(mean, deviation, strict=True), start=1):
            rows.append([*map(str, (*source, layer)), *(f"{number:.6f}" for number in numbers)])
    write_rows(settings.output, [HEADER, *rows])
    save_if_installed(lambda: plot(found), "the curves", settings.picture)
    return found


def layer_table(found: Sequence[AttentionEntropy]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table with one row per layer and one column per model.

    >>> layer_table([AttentionEntropy("a", "a", 9, (1.5, 1.25), (0.1, 0.2))])
    (['layer', 'a'], [['1', '1.5000'], ['2', '1.2500']])
    """
    layers = range(max(len(curve.entropy) for curve in found))
    rows = [
        [str(i + 1), *(f"{c.entropy[i]:.4f}" if i < len(c.entropy) else "" for c in found)]
        for i in layers
    ]
    return ["layer", *(curve.label for curve in found)], rows


def plot(found: Sequence[AttentionEntropy]) -> Any:
    """Draw one curve per model over the layers."""
    axes = new_axes(5.5, max(3.2, 0.2 * len(found)))
    draw_lines(axes, {c.label: list(enumerate(c.entropy, start=1)) for c in found})
    axes.set(xlabel="layer", ylabel="entropy of [CLS] attention (nats)")
    axes.locator_params(axis="x", nbins=13, integer=True, min_n_ticks=1)
    return axes


def row_entropy(rows: Tensor, mask: Tensor) -> Tensor:
    """Return the entropy of attention rows in nats: (B, A, T) -> (B, A) float64.

    Args:
        rows: attention of one token in each head, after the softmax.
        mask: (B, T) bool, True for real tokens; attention to padding is ignored.

    >>> rows = torch.tensor([[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]])
    >>> row_entropy(rows, torch.tensor([[True, True, False]]))
    tensor([[0.6931, 0.0000]], dtype=torch.float64)
    """
    seen = rows.double().masked_fill(~mask.unsqueeze(1), 0.0)
    entropies: Tensor = torch.special.entr(seen).sum(-1)
    return entropies


@torch.inference_mode()
def layer_entropies(backbone: Backbone, batch: TokenBatch) -> NDArray[np.float64]:
    """Return the [CLS] entropy of each layer, averaged over its heads: (B, T) ids -> (B, L)."""
    maps = backbone.attention_maps(batch)
    found = [row_entropy(layer[:, :, 0], batch.attention_mask).mean(1) for layer in maps]
    entropies: NDArray[np.float64] = torch.stack(found, dim=1).cpu().numpy()
    return entropies


def _sample(settings: AttentionEntropySettings, corpus: CorpusSettings) -> list[Passage]:
    """Draw the passages that every model reads."""
    count, fields = 0, settings.fields or ("title", "text")

    def with_text() -> Iterator[Passage]:
        nonlocal count
        source = read_passages(settings.corpus, corpus, settings.fields or None)
        with track(f"drawing from {settings.corpus}", None, "passages") as progress:
            for passage in source:
                if any(passage.field(name).strip() for name in fields):
                    count += 1
                    yield passage
                progress.advance()

    drawn = choose_records(with_text(), settings.sample, settings.seed)
    if not drawn:
        raise InputError(settings.corpus, None, "only passages without text", "some text")
    logger.info(f"{len(drawn):,} of {count:,} passages with text, drawn by seed {settings.seed}")
    return drawn


def _entropies(
    label: str, encoder: TextEncoder, passages: Sequence[Passage], max_length: int
) -> NDArray[np.float64]:
    """Return the entropies of all passages, in their order: (P, L)."""
    backbone = encoder.passage_side.encoder.backbone
    if not backbone.architecture.has_cls:
        raise ModelError(
            f"{label}: a {backbone.architecture.model_type} backbone has no [CLS] token, whose "
            "attention is measured"
        )
    column = 4 * backbone.last_layer * backbone.heads * max_length
    tokens = min(encoder.batch_tokens, MAP_BYTES // column)
    entropies = np.empty((len(passages), backbone.last_layer))
    for places, batch in passage_batches(encoder, passages, label, tokens):
        entropies[places] = layer_entropies(backbone, batch)
    return entropies
