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
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denserk.config.analysis import AttentionEntropySettings, WinningVectorSettings
from denserk.config.encoding import Backend, ComputeSettings, Reduction, Representation
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.data.batches import TokenBatch, plan, to_device
from denserk.data.sampling import choose_records
from denserk.errors import DenserkError, InputError, MismatchError, ModelError
from denserk.io.corpus import find_records, read_passages
from denserk.io.files import some, write_rows
from denserk.io.plots import draw_lines, new_axes, save_if_installed
from denserk.io.qrels import read_qrels
from denserk.io.runs import read_run
from denserk.io.topics import read_queries
from denserk.models.backbone import Backbone
from denserk.models.representation import MultiVector, PassageVectors
from denserk.models.text_encoder import NOTHING, TextEncoder, load_models
from denserk.records import Passage, Query, best_first
from denserk.reporting import track

logger = logging.getLogger(__name__)

ENTROPY_HEADER = (
    *("label", "model", "corpus", "passages", "seed", "max_length"),
    *("layer", "entropy", "deviation"),
)
# attention maps in memory at once; they grow with the square of the length, in every layer
MAP_BYTES = 1 << 28
SHARE_HEADER = (
    *("label", "model", "passages", "queries", "pairs"),
    *("kind", "vector", "wins", "share"),
)
# reductions that keep several vectors apart, at least in training
KEPT_APART = (Reduction.SELF_CONTRASTIVE, Reduction.MULTI_VECTOR)


class AttentionEntropy(NamedTuple):
    """The curve of one model, in nats, one value per layer from the first to the last."""

    label: str
    entropy: list[float]  # mean over heads and passages
    deviation: list[float]  # standard deviation over passages of the mean over heads


def attention_entropy(
    settings: AttentionEntropySettings,
    corpus: CorpusSettings = DETECTED,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
) -> list[AttentionEntropy]:
    """Measure models on the same passages; write the table and the plot.

    With untied query and passage encoders, the passage encoder is measured. It must have a [CLS].
    """
    text: dict[str, Any] = {"passage_max_length": settings.max_length}
    text |= {"fields": settings.fields} if settings.fields else {}
    text |= {"join": settings.join} if settings.join is not None else {}
    pooling = {"representation": Representation.MEAN}  # any: no embeddings are made
    compute = replace(compute, backend=Backend.TORCH)  # whose attention weights can be read
    models = load_models(settings.labelled, pooling, text, compute)
    passages = _sample(settings, corpus)
    found: list[AttentionEntropy] = []
    rows: list[Sequence[str]] = [ENTROPY_HEADER]
    for label, model, encoder in models:
        values = _entropies(label, encoder, passages, settings.max_length)
        if not np.isfinite(values).all():
            raise DenserkError(
                f"{model}: the attention is not a number (NaN)", "use --dtype float32"
            )
        curve = AttentionEntropy(label, values.mean(0).tolist(), values.std(0).tolist())
        source = (label, model, settings.corpus, len(passages), settings.seed, settings.max_length)
        for layer, numbers in enumerate(zip(*curve[1:], strict=True), start=1):
            rows.append((*map(str, (*source, layer)), *(f"{number:.6f}" for number in numbers)))
        found.append(curve)
    write_rows(settings.output, rows)
    save_if_installed(lambda: plot_entropy(found), "the curves", settings.picture)
    return found


def layer_table(found: Sequence[AttentionEntropy]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table with one row per layer and one column per model."""
    columns = ([f"{value:.4f}" for value in curve.entropy] for curve in found)
    layers = enumerate(zip_longest(*columns, fillvalue=""), start=1)
    header = ["layer", *(curve.label for curve in found)]
    return header, [[str(layer), *values] for layer, values in layers]


def plot_entropy(found: Sequence[AttentionEntropy]) -> Any:
    """Draw one curve per model over the layers."""
    axes = new_axes(5.5, max(3.2, 0.2 * len(found)))
    draw_lines(axes, {c.label: list(enumerate(c.entropy, start=1)) for c in found})
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


class WinningVectors(NamedTuple):
    """How often each vector of one model won in query-passage pairs."""

    label: str
    model: str
    passages: str  # `positive` or `retrieved`
    queries: int
    pairs: int
    kind: str  # what a vector stands for: `layer` or `token`
    wins: Mapping[str, int]  # vector -> number of pairs that it won; layers ascending


def winning_vectors(
    settings: WinningVectorSettings,
    representation: Mapping[str, Any] = NOTHING,
    text: Mapping[str, Any] = NOTHING,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
    corpus: CorpusSettings = DETECTED,
) -> list[WinningVectors]:
    """Count which vector wins, for models on the same pairs; write table and plot.

    Memory grows with the pairs, not with the corpus. A model must give a passage several vectors.
    """
    models = load_models(settings.labelled, representation, text, compute)
    pairs = choose_pairs(settings, text.get("fields"), corpus)
    found = [each for one in models for each in _count_wins(*one, pairs)]
    rows = [
        [*map(str, (*each[:-1], name, wins)), f"{wins / each.pairs:.6f}"]
        for each in found
        for name, wins in each.wins.items()
    ]
    write_rows(settings.output, [SHARE_HEADER, *rows])
    save_if_installed(lambda: plot_shares(found), "the shares", settings.picture)
    return found


class Pairs(NamedTuple):
    """Pairs of a query and a passage, in one set or two."""

    queries: Sequence[Query]
    passages: Sequence[Passage]  # in the order of the corpus
    # `positive` or `retrieved` -> (N, 2) row of the query and row of the passage
    sets: Mapping[str, NDArray[np.int64]]


def choose_pairs(
    settings: WinningVectorSettings, fields: Sequence[str] | None, corpus: CorpusSettings
) -> Pairs:
    """Return the pairs that every model is measured on."""
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
    where = " and ".join(name for name in (settings.qrels, settings.run) if name)
    asked = (
        query
        for query in read_queries(settings.topics)
        if all(query.qid in docids for docids in named.values())
    )
    queries = choose_records(asked, settings.sample, settings.seed)
    if not queries:
        raise MismatchError(
            f"no query of {settings.topics} has a passage in {where}",
            "are the queries those of another split?",
        )
    wanted = {d for docids in named.values() for query in queries for d in docids[query.qid]}
    source = read_passages(settings.corpus, corpus, fields)
    passages = find_records(source, wanted, settings.corpus)
    if lacking := wanted - passages.keys():
        logger.warning(
            f"passages that {settings.corpus} does not hold are left out: {len(lacking):,} of "
            f"{len(wanted):,} ({some(sorted(lacking))})"
        )
    row_of = {docid: row for row, docid in enumerate(passages)}
    sets = {}
    for name, docids in named.items():
        rows = [
            (row, row_of[docid])
            for row, query in enumerate(queries)
            for docid in docids[query.qid]
            if docid in row_of
        ]
        if not rows:
            raise MismatchError(
                f"{settings.corpus} holds none of the {name} passages of {where}",
                f"it should hold {some(sorted(wanted))}",
            )
        sets[name] = np.array(rows, dtype=np.int64)
    return Pairs(queries, list(passages.values()), sets)


def share_table(found: Sequence[WinningVectors]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table of shares, one row per vector."""
    header = ["model", "passages", "pairs", "vector", "wins", "share"]
    rows = [
        [
            *(each.label, each.passages, str(each.pairs), f"{each.kind} {name}", str(wins)),
            f"{wins / each.pairs:.4f}",
        ]
        for each in found
        for name, wins in each.wins.items()
    ]
    return header, rows


def plot_shares(found: Sequence[WinningVectors]) -> Any:
    """Draw the shares as bars, one row of bars per model and set of passages."""
    names = {name for each in found for name in each.wins}
    order = sorted(names, key=lambda name: (name.isdecimal(), name.zfill(9)))
    axes = new_axes(min(max(4, 0.42 * len(order) + 0.8), 9), 1.15 * len(found) + 0.5, len(found))
    for row, each in zip(np.atleast_1d(axes), found, strict=True):
        heights = [100 * each.wins.get(name, 0) / each.pairs for name in order]
        bars = row.bar(range(len(order)), heights, width=0.7, color="0.35")
        if len(order) <= 16:
            row.bar_label(bars, [f"{h:.1f}" if h else "" for h in heights], fontsize=7)
        row.set_title(f"{each.label}, {each.passages}: {each.pairs:,} pairs", loc="left")
        row.margins(y=0.18)
        row.yaxis.set_major_formatter("{x:g} %")
    last = np.atleast_1d(axes)[-1]
    step = -(-len(order) // 24)  # at most 24 names below the bars
    last.set_xticks(range(0, len(order), step), order[::step])
    kinds = " or ".join(dict.fromkeys(each.kind for each in found))
    last.set_xlabel(f"{kinds} with the highest product")
    return last


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
def _count_wins(label: str, model: str, encoder: TextEncoder, pairs: Pairs) -> list[WinningVectors]:
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
    queries = torch.from_numpy(encoder.encode_queries(pairs.queries)).to(encoder.device)
    won = {name: np.empty(len(chosen), dtype=np.int64) for name, chosen in pairs.sets.items()}
    row_of = np.full(len(pairs.passages), -1)  # in the batch
    planned, longest = encoder.plan("passage", pairs.passages), 0
    with track(f"reading with {label}", planned.count, "passages") as progress:
        for members, batch in zip(planned.members, planned.batches, strict=True):
            places = members.numpy()
            vectors = side.passage_vectors(to_device(batch, encoder.device))
            if vectors.values.shape[1] == 1:
                raise single
            longest = max(longest, vectors.values.shape[1])
            row_of[places] = np.arange(len(places))
            for name, chosen in pairs.sets.items():
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
        queries_here = len(np.unique(pairs.sets[name][:, 0]))
        wins = dict(zip(names, np.bincount(each, minlength=longest).tolist(), strict=True))
        if kind == "layer":
            wins = dict(reversed(wins.items()))
        found.append(WinningVectors(label, model, name, queries_here, len(each), kind, wins))
    return found
