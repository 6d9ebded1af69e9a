"""What single layers do: entropy of the [CLS] attention, and the vectors that win in retrieval.

The [CLS] row of an attention head is a distribution p over the tokens of a text. Its entropy
-sum p ln p is 0 where the head attends to one token and ln T where it attends to all T equally, in
nats (Condenser's Figure 2; Clark et al., 2019, "What Does BERT Look At?").

A passage's vector wins where it has the highest inner product with the query: equation 2 of
"Investigating Multi-layer Representations for Dense Passage Retrieval" (Xie and Lukasiewicz, 2025).
Its share is that of the query-passage pairs in which it wins; among equals the first wins, as in
training (in MLR: the last layer).
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denserk.analysis.encoders import Row, save
from denserk.config.analysis import AttentionEntropySettings, WinningVectorSettings
from denserk.config.encoding import (
    DEFAULTS,
    Backend,
    ComputeSettings,
    ModelOptions,
    Reduction,
    Representation,
)
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.data.batches import TokenBatch, plan, to_device
from denserk.data.sampling import choose_records
from denserk.errors import DenserkError, InputError, MismatchError, ModelError
from denserk.io.corpus import find_records, read_passages
from denserk.io.files import some
from denserk.io.plots import draw_lines, new_axes
from denserk.io.qrels import read_qrels
from denserk.io.runs import read_run
from denserk.io.topics import read_queries
from denserk.models.backbone import Backbone
from denserk.models.representation import MultiVector, PassageVectors
from denserk.models.text_encoder import TextEncoder, load_models
from denserk.records import Passage, Query, best_first
from denserk.reporting import track

logger = logging.getLogger(__name__)

# attention maps in memory at once; they grow with the square of the length, in every layer
MAP_BYTES = 1 << 28
Pairs = tuple[Sequence[Query], Sequence[Passage], Mapping[str, NDArray[np.int64]]]
# reductions that keep several vectors apart, at least in training
KEPT_APART = (Reduction.SELF_CONTRASTIVE, Reduction.MULTI_VECTOR)


def attention_entropy(
    settings: AttentionEntropySettings,
    corpus: CorpusSettings = DETECTED,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
) -> list[Row]:
    """Measure models on the same passages; write the table and the plot.

    A row is a layer: its mean entropy in nats over heads and passages, and the standard deviation
    over passages of the mean over heads. With untied query and passage encoders, the passage
    encoder is measured. It must have a [CLS].
    """
    text: dict[str, Any] = {"passage_max_length": settings.max_length}
    text |= {"fields": settings.fields} if settings.fields else {}
    text |= {"join": settings.join} if settings.join is not None else {}
    pooling = {"representation": Representation.MEAN}  # any: no embeddings are made
    compute = replace(compute, backend=Backend.TORCH)  # whose attention weights can be read
    models = load_models(settings.labelled, ModelOptions(pooling, text, compute))
    passages = _sample(settings, corpus)
    source = {"corpus": settings.corpus, "passages": len(passages), "seed": settings.seed}
    source |= {"max_length": settings.max_length}
    found: list[Row] = []
    for label, model, encoder in models:
        values = _entropies(label, encoder, passages, settings.max_length)
        if not np.isfinite(values).all():
            raise DenserkError(
                f"{model}: the attention is not a number (NaN)", "use --dtype float32"
            )
        for layer, column in enumerate(values.T, start=1):
            numbers = {"entropy": float(column.mean()), "deviation": float(column.std())}
            found.append({"label": label, "model": model, **source, "layer": layer, **numbers})
    save(found, lambda: plot_entropy(found), settings)
    return found


def _curves(found: Sequence[Row]) -> dict[str, list[float]]:
    """Return the entropy of each layer, by the label of the model."""
    curves: dict[str, list[float]] = {}
    for row in found:
        curves.setdefault(row["label"], []).append(row["entropy"])
    return curves


def layer_table(found: Sequence[Row]) -> list[list[str]]:
    """Return header and rows of a table with one row per layer and one column per model."""
    curves = _curves(found)
    columns = ([f"{value:.4f}" for value in curve] for curve in curves.values())
    layers = enumerate(zip_longest(*columns, fillvalue=""), start=1)
    return [["layer", *curves], *([str(layer), *values] for layer, values in layers)]


def plot_entropy(found: Sequence[Row]) -> Any:
    """Draw one curve per model over the layers."""
    curves = _curves(found)
    axes = new_axes(5.5, max(3.2, 0.2 * len(curves)))
    draw_lines(axes, {label: list(enumerate(curve, start=1)) for label, curve in curves.items()})
    axes.set(xlabel="layer", ylabel="entropy of [CLS] attention (nats)")
    axes.locator_params(axis="x", nbins=13, integer=True, min_n_ticks=1)
    return axes


def row_entropy(rows: Tensor, mask: Tensor) -> Tensor:
    """Return the entropy of attention rows (after the softmax) in nats: (B, A, T) -> (B, A).

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
    """Draw the passages that every model reads, of those with text."""
    fields = settings.fields or ("title", "text")

    def with_text() -> Iterator[Passage]:
        with track(f"drawing from {settings.corpus}", None, "passages") as progress:
            for passage in read_passages(settings.corpus, corpus, settings.fields or None):
                progress.advance()
                if any(passage.field(name).strip() for name in fields):
                    yield passage

    drawn = choose_records(with_text(), settings.sample, settings.seed)
    if not drawn:
        raise InputError(settings.corpus, None, "only passages without text", "some text")
    return drawn


def _entropies(
    label: str, encoder: TextEncoder, passages: Sequence[Passage], max_length: int
) -> NDArray[np.float64]:
    """Return the entropies of all passages, in their order: (P, L)."""
    side = encoder.sides["passage"]
    backbone = side.encoder.backbone
    if not backbone.architecture.has_cls:
        raise ModelError(
            f"{label}: a {backbone.architecture.model_type} backbone has no [CLS] token, whose "
            "attention is measured"
        )
    config = backbone.config
    each = 4 * config.num_hidden_layers * config.num_attention_heads * max_length
    tokens = min(encoder.batch_tokens, MAP_BYTES // each)
    ids = side.tokenizer.passages(passages)
    planned = plan(ids, side.tokenizer.pad_id, tokens, encoder.compute.batch_size)
    entropies = np.empty((len(passages), config.num_hidden_layers))
    with track(f"reading with {label}", len(passages), "passages") as progress:
        for places, batch in zip(planned.members, planned.batches, strict=True):
            entropies[places.numpy()] = layer_entropies(backbone, to_device(batch, encoder.device))
            progress.advance(len(places))
    return entropies


def winning_vectors(
    settings: WinningVectorSettings,
    options: ModelOptions = DEFAULTS,
    corpus: CorpusSettings = DETECTED,
) -> list[Row]:
    """Count which vector wins, for models on the same pairs; write table and plot.

    A row is a layer or token: in how many pairs its vector won. Memory grows with the pairs, not
    with the corpus. A model must give a passage several vectors.
    """
    models = load_models(settings.labelled, options)
    pairs = choose_pairs(settings, options.text.get("fields"), corpus)
    found = [row for one in models for row in _count_wins(*one, pairs)]
    save(found, lambda: plot_shares(found), settings)
    return found


def choose_pairs(
    settings: WinningVectorSettings, fields: Sequence[str] | None, corpus: CorpusSettings
) -> Pairs:
    """Return queries, passages, and the rows of `positive` and `retrieved` pairs: (N, 2)."""
    named: dict[str, dict[str, list[str]]] = {}
    if settings.qrels is not None:
        positive = named.setdefault("positive", {})
        for qrel in read_qrels(settings.qrels):
            if qrel.relevance >= settings.relevance_level:
                positive.setdefault(qrel.qid, []).append(qrel.docid)
    if settings.run is not None:
        retrieved = named.setdefault("retrieved", {})
        for hits in read_run(settings.run):
            ranked = best_first(zip(hits.docids, hits.scores, strict=True))
            retrieved[hits.qid] = [docid for docid, _ in ranked[: settings.depth]]
    asked = (q for q in read_queries(settings.topics) if all(q.qid in of for of in named.values()))
    queries = choose_records(asked, settings.sample, settings.seed)
    wanted = {d for docids in named.values() for query in queries for d in docids[query.qid]}
    source = read_passages(settings.corpus, corpus, fields)
    passages = find_records(source, wanted, settings.corpus)
    row_of = {docid: row for row, docid in enumerate(passages)}
    sets = {}
    for name, docids in named.items():
        pairs = [(row, d) for row, query in enumerate(queries) for d in docids[query.qid]]
        rows = [(row, row_of[docid]) for row, docid in pairs if docid in row_of]
        if not rows:
            raise MismatchError(
                f"no query of {settings.topics} has a {name} passage in {settings.corpus}",
                "are queries and passages those of the same collection and split?",
            )
        sets[name] = np.array(rows, dtype=np.int64)
    if lacking := wanted - passages.keys():
        logger.warning(
            f"passages that {settings.corpus} does not hold are left out: {len(lacking):,} of "
            f"{len(wanted):,} ({some(sorted(lacking))})"
        )
    return queries, list(passages.values()), sets


def plot_shares(found: Sequence[Row]) -> Any:
    """Draw the shares over the vectors, one line per model and set of passages."""
    order = list(dict.fromkeys(row["vector"] for row in found))
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in found:
        title = f"{row['label']}, {row['passages']}: {row['pairs']:,} pairs"
        lines.setdefault(title, []).append((order.index(row["vector"]), 100 * row["share"]))
    axes = new_axes(7, max(3.2, 0.2 * len(lines)))
    draw_lines(axes, lines)
    step = -(-len(order) // 24)  # at most 24 names below the axis
    axes.set_xticks(range(0, len(order), step), order[::step])
    kinds = " or ".join(dict.fromkeys(row["kind"] for row in found))
    axes.set(xlabel=f"{kinds} with the highest product", ylabel="% of the pairs")
    return axes


def winners(queries: Tensor, passages: PassageVectors) -> Tensor:
    """Return the winning vector of N pairs, (N, D), (N, S, D) -> (N,); -1 where a product is NaN.

    >>> passage = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]])
    >>> winners(torch.tensor([[1.0, 2.0]]), PassageVectors(passage)).tolist()
    [1]
    """
    scores = torch.einsum("nd,nsd->ns", queries, passages.values)
    if passages.mask is not None:
        scores = scores.masked_fill(~passages.mask, -torch.inf)
    return scores.argmax(1).masked_fill(scores.isnan().any(1), -1)


@torch.inference_mode()
def _count_wins(label: str, model: str, encoder: TextEncoder, pairs: Pairs) -> list[Row]:
    """Count for one model, for each set of pairs."""
    single = ModelError(
        f"{label} gives a passage one vector: there is no maximum to win",
        "use a model trained with --representation mlr, me-bert or colbert, and --reduction "
        f"{' or '.join(KEPT_APART)}",
    )
    side = encoder.sides["passage"].encoder
    pooling = side.representation
    if not isinstance(pooling, MultiVector) or encoder.representation.reduction not in KEPT_APART:
        raise single
    asking, passages, sets = pairs
    queries = torch.from_numpy(encoder.encode_queries(asking)).to(encoder.device)
    won = {name: np.empty(len(chosen), dtype=np.int64) for name, chosen in sets.items()}
    row_of = np.full(len(passages), -1)  # in the batch
    planned, longest = encoder.plan("passage", passages), 0
    with track(f"reading with {label}", planned.count, "passages") as progress:
        for members, batch in zip(planned.members, planned.batches, strict=True):
            places = members.numpy()
            vectors = side.passage_vectors(to_device(batch, encoder.device))
            if vectors.values.shape[1] == 1:
                raise single
            longest = max(longest, vectors.values.shape[1])
            row_of[places] = np.arange(len(places))
            for name, chosen in sets.items():
                inside = row_of[chosen[:, 1]] >= 0
                rows = torch.from_numpy(row_of[chosen[inside, 1]]).to(encoder.device)
                asked = queries[chosen[inside, 0]]
                won[name][inside] = winners(asked, vectors.of(rows)).cpu().numpy()
            row_of[places] = -1
            progress.advance(len(places))
    if any((each < 0).any() for each in won.values()):
        raise DenserkError(f"{model}: an embedding is not a number (NaN)", "use --dtype float32")
    shape, kind = pooling.settings.representation, "token"
    first = ["mean"] if shape is Representation.ME_BERT and not pooling.by_cls else []
    names = [*first, *map(str, range(longest - len(first)))]
    if shape is Representation.MLR:
        kind, names = "layer", list(map(str, pooling.layers))
    found = []
    for name, each in won.items():
        counted = len(np.unique(sets[name][:, 0]))
        row = {"label": label, "model": model, "passages": name, "queries": counted}
        row |= {"pairs": len(each), "kind": kind}
        counts = zip(names, np.bincount(each, minlength=longest).tolist(), strict=True)
        ordered = reversed(list(counts)) if kind == "layer" else counts  # layers ascending
        found += [row | {"vector": v, "wins": n, "share": n / len(each)} for v, n in ordered]
    return found
