"""`denserk analyze attention-entropy`: how widely [CLS] attends, layer by layer.

The [CLS] row of an attention head is a distribution p over the tokens of a text. Its entropy
-sum p ln p is 0 where the head attends to one token and ln T where it attends to all T equally, in
nats (Condenser's Figure 2; Clark et al., 2019, "What Does BERT Look At?").
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denserk.config import analysis, encoding
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.data.batches import TokenBatch, plan
from denserk.data.sampling import choose_records
from denserk.errors import DenserkError, InputError, ModelError
from denserk.evaluation.sentences import Floats
from denserk.io.corpus import read_passages
from denserk.models import devices
from denserk.models.backbone import Backbone
from denserk.models.text_encoder import TextEncoder, load_models
from denserk.plots import draw_lines, new_axes
from denserk.records import Passage
from denserk.reporting import track
from denserk.tasks.analyze.results import Row, save

# attention maps in memory at once; they grow with the square of the length, in every layer
MAP_BYTES = 1 << 28


def attention_entropy(
    settings: analysis.AttentionEntropySettings,
    corpus: CorpusSettings = DETECTED,
    compute: encoding.ComputeSettings = encoding.ComputeSettings(),  # noqa: B008  (frozen)
) -> list[Row]:
    """Measure models on the same passages; write the table and the plot.

    A row is a layer: its mean entropy in nats over heads and passages, and the standard deviation
    over passages of the mean over heads. With untied query and passage encoders, the passage
    encoder is measured. It must have a [CLS].
    """
    models = load_models(settings.labelled, _model_options(settings, compute))
    passages_with_text = _passages_with_text(settings.corpus, corpus, settings.fields)
    passages = choose_records(passages_with_text, settings.sample, settings.seed)
    if not passages:
        raise InputError(settings.corpus, None, "only passages without text", "some text")
    rows: list[Row] = []
    for label, model, encoder in models:
        entropies = _entropies(label, encoder, passages, settings.max_length)
        if not np.isfinite(entropies).all():
            raise DenserkError(f"{model}: attention is not a number (NaN)", "use --dtype float32")
        for layer, layer_values in enumerate(entropies.T, start=1):
            rows.append(
                {
                    "label": label,
                    "model": model,
                    "corpus": settings.corpus,
                    "passages": len(passages),
                    "seed": settings.seed,
                    "max_length": settings.max_length,
                    "layer": layer,
                    "entropy": float(layer_values.mean()),
                    "deviation": float(layer_values.std()),
                }
            )
    save(rows, lambda: _draw(rows), settings)
    return rows


def _model_options(
    settings: analysis.AttentionEntropySettings, compute: encoding.ComputeSettings
) -> encoding.ModelOptions:
    """Return the options of models whose attention is read."""
    text: dict[str, Any] = {"passage_max_length": settings.max_length}
    if settings.fields:
        text["fields"] = settings.fields
    if settings.join is not None:
        text["join"] = settings.join
    pooling = {"representation": encoding.Representation.MEAN}  # any: no embeddings are made
    # on a CPU it is float32: what is certified for bfloat16 there are vectors, and not attention
    dtype = devices.choose_precision(compute.dtype, devices.use_device(compute.device))
    with_attention = replace(
        compute, backend=encoding.Backend.TORCH, dtype=encoding.DtypeChoice(dtype)
    )
    return encoding.ModelOptions(pooling, text, with_attention)


def _draw(rows: Sequence[Row]) -> Any:
    """Draw a line of entropies for each model."""
    curves = _curves(rows)
    axes = new_axes(5.5, max(3.2, 0.2 * len(curves)))
    points = {label: list(enumerate(curve, start=1)) for label, curve in curves.items()}
    draw_lines(axes, points)
    axes.set(xlabel="layer", ylabel="entropy of [CLS] attention (nats)")
    axes.locator_params(axis="x", nbins=13, integer=True, min_n_ticks=1)
    return axes


def _curves(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Return the entropy of each layer, by the label of the model."""
    curves: dict[str, list[float]] = {}
    for row in rows:
        curves.setdefault(row["label"], []).append(row["entropy"])
    return curves


def layer_table(rows: Sequence[Row]) -> list[list[str]]:
    """Return header and rows of a table with one row per layer and one column per model.

    >>> layer_table([{"label": "a", "entropy": 1.5}, {"label": "b", "entropy": 2.0}])
    [['layer', 'a', 'b'], ['1', '1.5000', '2.0000']]
    """
    curves = _curves(rows)
    table = [["layer", *curves]]
    for layer, values in enumerate(zip_longest(*curves.values()), start=1):
        cells = ["" if value is None else f"{value:.4f}" for value in values]
        table.append([str(layer), *cells])
    return table


def row_entropy(rows: Tensor, mask: Tensor) -> Tensor:
    """Return the entropy of attention rows (after the softmax) in nats: (B, A, T) -> (B, A).

    mask: (B, T) bool, True for real tokens; attention to padding is ignored.

    >>> rows = torch.tensor([[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]])
    >>> row_entropy(rows, torch.tensor([[True, True, False]]))
    tensor([[0.6931, 0.0000]], dtype=torch.float64)
    """
    unpadded = rows.double().masked_fill(~mask.unsqueeze(1), 0.0)
    entropies: Tensor = torch.special.entr(unpadded).sum(-1)
    return entropies


@torch.inference_mode()
def layer_entropies(backbone: Backbone, batch: TokenBatch) -> NDArray[np.float64]:
    """Return the [CLS] entropy of each layer, averaged over its heads: (B, T) ids -> (B, L)."""
    layers = []
    for attention in backbone.attention_maps(batch):
        layers.append(row_entropy(attention[:, :, 0], batch.attention_mask).mean(1))
    entropies: NDArray[np.float64] = torch.stack(layers, dim=1).cpu().numpy()
    return entropies


def _passages_with_text(
    source: str, corpus: CorpusSettings, fields: Sequence[str]
) -> Iterator[Passage]:
    """Yield the passages that have text in one of the fields."""
    with track(f"drawing from {source}", None, "passages") as progress:
        for passage in read_passages(source, corpus, fields or None):
            progress.advance()
            if any(passage.field(name).strip() for name in fields or ("title", "text")):
                yield passage


def _entropies(label: str, encoder: TextEncoder, passages: list[Passage], longest: int) -> Floats:
    """Return the entropies of all passages, in their order: (P, L)."""
    side = encoder.sides["passage"]
    backbone = side.encoder.backbone
    architecture = backbone.architecture
    if not architecture.has_cls:
        message = f"{label}: a {architecture.model_type} backbone has no [CLS] token to measure"
        raise ModelError(message)
    config = backbone.config
    bytes_of_token = 4 * config.num_hidden_layers * config.num_attention_heads * longest
    batch_tokens = min(encoder.batch_tokens, MAP_BYTES // bytes_of_token)
    ids = side.tokenizer.passages(passages)
    planned = plan(ids, side.tokenizer.pad_id, batch_tokens, encoder.compute.batch_size)
    entropies = np.empty((len(passages), config.num_hidden_layers))
    batches = encoder.in_batches(planned, partial(layer_entropies, backbone))
    with track(f"reading with {label}", len(passages), "passages") as progress:
        for rows, batch_entropies in batches:
            entropies[rows.numpy()] = batch_entropies
            progress.advance(len(rows))
    return entropies
