"""The analyses of `denserk analyze`: sentence similarity, latency, attention, and winning vectors.

Sentence similarity, as in Condenser's Tables 1 and 2. For pairs with labels (STS-B): Spearman's
correlation of the cosine with the label. For triplets (Wikipedia sections): how often the positive
is nearer to the anchor than the negative, by Euclidean distance. Axes: B examples of n sentences
(2 or 3), D dimensions. Latency, as in Aggretriever's Table 9: the 1st, 50th and 99th percentile.

The [CLS] row of an attention head is a distribution p over the tokens of a text. Its entropy
-sum p ln p is 0 where the head attends to one token and ln T where it attends to all T equally, in
nats (Condenser's Figure 2; Clark et al., 2019, "What Does BERT Look At?").

A passage's vector wins where it has the highest inner product with the query: equation 2 of
"Investigating Multi-layer Representations for Dense Passage Retrieval" (Xie and Lukasiewicz, 2025).
Its share is that of the query-passage pairs in which it wins; among equals the first wins, as in
training (in MLR: the last layer).
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice, zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denserk.config import analysis, encoding
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.data.batches import TokenBatch, plan, to_device
from denserk.data.sampling import choose_records
from denserk.errors import DenserkError, InputError, MismatchError, ModelError
from denserk.evaluation.sentences import Floats, figure_of, score_examples
from denserk.io.corpus import find_records, read_passages
from denserk.io.files import some, write_rows
from denserk.io.runs import read_run
from denserk.io.topics import grades_by_query, read_qrels, read_queries
from denserk.io.training import read_sentences
from denserk.models.backbone import Backbone
from denserk.models.representation import MultiVector, PassageVectors
from denserk.models.text_encoder import TextEncoder, load_models
from denserk.plots import draw_lines, new_axes, save_if_installed
from denserk.records import Passage, Query, best_first
from denserk.reporting import track

logger = logging.getLogger(__name__)

Row = dict[str, Any]  # a result: column of the table -> value
Pairs = tuple[Sequence[Query], Sequence[Passage], Mapping[str, NDArray[np.int64]]]

BLOCK = 1024  # examples encoded at once
PERCENTILES = (1, 50, 99)
# attention maps in memory at once; they grow with the square of the length, in every layer
MAP_BYTES = 1 << 28
# reductions that keep several vectors apart, at least in training
KEPT_APART = (encoding.Reduction.SELF_CONTRASTIVE, encoding.Reduction.MULTI_VECTOR)


def as_table(found: Sequence[Row], names: Sequence[str] = (), digits: int = 6) -> list[list[str]]:
    """Return the header and the rows of a table of results: named columns, by default all."""
    names = list(names or found[0])
    values = ([row[name] for name in names] for row in found)
    shown = [[f"{v:.{digits}f}" if isinstance(v, float) else str(v) for v in row] for row in values]
    return [names, *shown]


def save(found: Sequence[Row], draw: Callable[[], Any], settings: analysis.SeveralModels) -> None:
    """Write the results as CSV, and their plot."""
    write_rows(settings.output, as_table(found))
    save_if_installed(draw, "the results", settings.picture)


def sentence_similarity(
    settings: analysis.SentenceSimilaritySettings,
    options: encoding.ModelOptions = encoding.DEFAULTS,
) -> list[Row]:
    """Measure models on pairs or triplets of sentences; write the table if asked to.

    The text settings of passages apply to sentences.
    """
    found, data = [], settings.data
    for label, name, encoder in load_models(settings.labelled, options):
        examples = read_sentences(data)
        scores, labels, size = [], [], 2  # one number per example
        with track(f"encoding {data}", None, "examples") as progress:
            while block := list(islice(examples, BLOCK)):
                size = len(block[0].texts)
                vectors = encoder.encode_sentences([text for each in block for text in each.texts])
                scores.append(score_examples(vectors.reshape(len(block), size, encoder.dimension)))
                labels += [example.label for example in block if example.label is not None]
                progress.advance(len(block))
        together = np.concatenate(scores)
        if np.isnan(together).any():
            raise DenserkError(f"{name}: an embedding is not a number (NaN)", "use --dtype float32")
        if size == 2 and len(set(labels)) < 2:
            one = f"only the label {labels[0]:g}"
            raise InputError(data, None, one, "labels that differ, to correlate with")
        measure, value = figure_of(together, np.array(labels) if size == 2 else None)
        row: Row = {"label": label, "model": name, "data": data}
        row |= {"kind": "pairs" if size == 2 else "triplets", "count": len(together)}
        found.append(row | {"measure": measure, "value": value})
    if settings.output is not None:
        write_rows(settings.output, as_table(found))
    return found


def query_latency(
    settings: analysis.QueryLatencySettings, options: encoding.ModelOptions = encoding.DEFAULTS
) -> list[Row]:
    """Measure models on the same queries, one model after the other; write table and plot.

    A time runs from the text of a query to its embedding in CPU memory, tokenization included.
    Without a batch size, queries are encoded one at a time.
    """
    models = load_models(settings.labelled, options)
    queries = choose_records(read_queries(settings.topics), settings.sample, settings.seed)
    size = options.compute.batch_size or 1
    # an incomplete last batch counts only if it is the only one
    full = range(0, len(queries) - size + 1, size)
    batches = [queries[first : first + size] for first in full] or [queries]
    found, times = [], []
    for label, model, encoder in models:
        device, on_gpu = str(encoder.device), encoder.device.type == "cuda"
        if on_gpu:
            device += f" ({torch.cuda.get_device_name(encoder.device)})"
        for batch in islice(cycle(batches), settings.warm_up):
            encoder.encode_queries(batch)
        seconds = []
        with track(f"encoding with {label}", len(batches), "batches") as progress:
            for batch in batches:
                if on_gpu:
                    torch.cuda.synchronize(encoder.device)
                start = time.perf_counter()
                encoder.encode_queries(batch)  # ends with vectors in CPU memory
                seconds.append(time.perf_counter() - start)
            progress.advance(len(batches))
        milliseconds = 1000 * np.array(seconds)
        row: Row = {"label": label, "model": model, "topics": settings.topics}
        row |= {"queries": len(batches) * len(batches[0]), "seed": settings.seed}
        row |= {"warm_up": settings.warm_up, "batch_size": size, "device": device}
        row |= {"threads": encoder.threads_for(len(batches[0])), "dtype": options.compute.precision}
        row |= {"dimension": encoder.dimension}
        for percent in PERCENTILES:  # by nearest rank: each was measured
            value = np.percentile(milliseconds, percent, method="inverted_cdf")
            row[f"p{percent}_ms"] = float(value)
        found.append(row | {"mean_ms": float(milliseconds.mean())})
        times.append(milliseconds)

    def draw() -> Any:
        axes = new_axes(6, 0.75 * len(found) + 0.8)
        whiskers = (PERCENTILES[0], PERCENTILES[-1])  # and the times beyond as points
        axes.boxplot(times, orientation="horizontal", whis=whiskers, flierprops={"ms": 2.2})
        axes.set_yticks(range(1, len(found) + 1), [row["label"] for row in found])
        axes.set_xlabel(f"milliseconds (batches of {size}), tokenization included")
        return axes

    save(found, draw, settings)
    return found


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
    text: dict[str, Any] = {"passage_max_length": settings.max_length}
    text |= {"fields": settings.fields} if settings.fields else {}
    text |= {"join": settings.join} if settings.join is not None else {}
    pooling = {"representation": encoding.Representation.MEAN}  # any: no embeddings are made
    compute = replace(compute, backend=encoding.Backend.TORCH)  # its attention can be read
    models = load_models(settings.labelled, encoding.ModelOptions(pooling, text, compute))
    read = _with_text(settings.corpus, corpus, settings.fields)
    passages = choose_records(read, settings.sample, settings.seed)
    if not passages:
        raise InputError(settings.corpus, None, "only passages without text", "some text")
    source = {"corpus": settings.corpus, "passages": len(passages), "seed": settings.seed}
    source |= {"max_length": settings.max_length}
    found: list[Row] = []
    for label, model, encoder in models:
        values = _entropies(label, encoder, passages, settings.max_length)
        if not np.isfinite(values).all():
            raise DenserkError(f"{model}: attention is not a number (NaN)", "use --dtype float32")
        for layer, column in enumerate(values.T, start=1):
            numbers = {"entropy": float(column.mean()), "deviation": float(column.std())}
            found.append({"label": label, "model": model, **source, "layer": layer, **numbers})

    def draw() -> Any:
        curves = _curves(found)
        axes = new_axes(5.5, max(3.2, 0.2 * len(curves)))
        draw_lines(axes, {label: list(enumerate(each, 1)) for label, each in curves.items()})
        axes.set(xlabel="layer", ylabel="entropy of [CLS] attention (nats)")
        axes.locator_params(axis="x", nbins=13, integer=True, min_n_ticks=1)
        return axes

    save(found, draw, settings)
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


def _with_text(source: str, corpus: CorpusSettings, fields: Sequence[str]) -> Iterator[Passage]:
    with track(f"drawing from {source}", None, "passages") as progress:
        for passage in read_passages(source, corpus, fields or None):
            progress.advance()
            if any(passage.field(name).strip() for name in fields or ("title", "text")):
                yield passage


def _entropies(label: str, encoder: TextEncoder, passages: list[Passage], longest: int) -> Floats:
    """Return the entropies of all passages, in their order: (P, L)."""
    side = encoder.sides["passage"]
    backbone = side.encoder.backbone
    kind = backbone.architecture.model_type
    if not backbone.architecture.has_cls:
        raise ModelError(f"{label}: a {kind} backbone has no [CLS] token to measure")
    config = backbone.config
    each = 4 * config.num_hidden_layers * config.num_attention_heads * longest
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
    settings: analysis.WinningVectorSettings,
    options: encoding.ModelOptions = encoding.DEFAULTS,
    corpus: CorpusSettings = DETECTED,
) -> list[Row]:
    """Count which vector wins, for models on the same pairs; write table and plot.

    A row is a layer or token: in how many pairs its vector won. Memory grows with the pairs, not
    with the corpus. A model must give a passage several vectors.
    """
    models = load_models(settings.labelled, options)
    pairs = choose_pairs(settings, options.text.get("fields"), corpus)
    found = [row for one in models for row in _count_wins(*one, pairs)]

    def draw() -> Any:
        order = list(dict.fromkeys(row["vector"] for row in found))
        lines: dict[str, list[tuple[float, float]]] = {}  # for each model and set of passages
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

    save(found, draw, settings)
    return found


def choose_pairs(
    settings: analysis.WinningVectorSettings, fields: Sequence[str] | None, corpus: CorpusSettings
) -> Pairs:
    """Return queries, passages, and the rows of `positive` and `retrieved` pairs: (N, 2)."""
    named: dict[str, dict[str, list[str]]] = {}
    if settings.qrels is not None:
        level = settings.relevance_level
        relevant = grades_by_query(q for q in read_qrels(settings.qrels) if q.relevance >= level)
        named["positive"] = {qid: list(grades) for qid, grades in relevant.items()}
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
            said = f"no query of {settings.topics} has a {name} passage in {settings.corpus}"
            raise MismatchError(said, "are they of the same collection and split?")
        sets[name] = np.array(rows, dtype=np.int64)
    if lacking := wanted - passages.keys():
        which = f"{len(lacking):,} of {len(wanted):,} ({some(sorted(lacking))})"
        logger.warning(f"passages that {settings.corpus} does not hold are left out: {which}")
    return queries, list(passages.values()), sets


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
    apart = f"--representation mlr, me-bert or colbert, and --reduction {' or '.join(KEPT_APART)}"
    said = f"{label} gives a passage one vector: there is no maximum to win"
    single = ModelError(said, f"use a model trained with {apart}")
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
    first = ["mean"] if shape is encoding.Representation.ME_BERT and not pooling.by_cls else []
    names = [*first, *map(str, range(longest - len(first)))]
    if shape is encoding.Representation.MLR:
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
