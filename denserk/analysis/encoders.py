"""Measures of encoders: similarity of sentences, and latency of queries.

Sentence similarity, as in Condenser's Tables 1 and 2. For pairs with labels (STS-B): Spearman's
correlation of the cosine with the label. For triplets (Wikipedia sections): how often the positive
is nearer to the anchor than the negative, by Euclidean distance. Axes: B examples of n sentences
(2 or 3), D dimensions. Latency, as in Aggretriever's Table 9: the 1st, 50th and 99th percentile.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from denserk.config.analysis import QueryLatencySettings, SentenceSimilaritySettings
from denserk.config.encoding import ComputeSettings
from denserk.data.sampling import choose_records
from denserk.errors import DenserkError, InputError
from denserk.io.files import write_rows
from denserk.io.plots import new_axes, save_if_installed
from denserk.io.topics import read_queries
from denserk.io.training import read_sentences
from denserk.models.text_encoder import NOTHING, TextEncoder, load_models
from denserk.records import Query
from denserk.reporting import track

logger = logging.getLogger(__name__)

Floats = NDArray[np.floating]

BLOCK = 1024  # examples encoded at once
SIMILARITY_HEADER = ("model", "data", "kind", "count", "measure", "value")
PERCENTILES = (1, 50, 99)
LATENCY_HEADER = (
    *("label", "model", "topics", "queries", "seed", "warm_up", "batch_size"),
    *("device", "threads", "dtype", "dimension", *(f"p{p}_ms" for p in PERCENTILES), "mean_ms"),
)


@dataclass(frozen=True)
class SentenceSimilarity:
    """The result of one model: `kind` is pairs or triplets, `measure` spearman or accuracy."""

    model: str
    data: str
    kind: str
    count: int
    measure: str
    value: float

    def row(self) -> list[str]:
        """Return the result under `SIMILARITY_HEADER`, as text."""
        return [*map(str, astuple(self)[:-1]), f"{self.value:.4f}"]


def sentence_similarity(
    settings: SentenceSimilaritySettings,
    representation: Mapping[str, Any] = NOTHING,
    text: Mapping[str, Any] = NOTHING,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
) -> list[SentenceSimilarity]:
    """Measure models on pairs or triplets of sentences; write the table if asked to.

    The text settings of passages apply to sentences.
    """
    found = []
    for name in settings.model:
        encoder = TextEncoder.load(name, representation, text, compute)
        found.append(_measure_similarity(name, encoder, settings.data))
    if settings.output is not None:
        write_rows(settings.output, [SIMILARITY_HEADER, *(each.row() for each in found)])
    return found


def score_examples(vectors: Floats) -> NDArray[np.float64]:
    """Score examples from the embeddings of their sentences: (B, n, D) -> (B,).

    For pairs the cosine, 0 if a vector is zero; for triplets 1 where the positive is nearer and 0
    otherwise; NaN where a vector holds NaN.

    >>> score_examples(np.array([[[3.0, 0.0], [1.0, 1.0]]])).round(3)
    array([0.707])
    >>> score_examples(np.array([[[0.0], [1.0], [2.0]], [[0.0], [1.0], [-1.0]]]))
    array([1., 0.])
    """
    exact = vectors.astype(np.float64)
    if exact.shape[1] == 3:
        anchor, positive, negative = exact.swapaxes(0, 1)
        near, far = (np.linalg.norm(anchor - other, axis=1) for other in (positive, negative))
        return np.where(np.isnan(near - far), np.nan, near < far)
    first, second = exact.swapaxes(0, 1)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    products: NDArray[np.float64] = (first * second).sum(1) / np.where(lengths > 0, lengths, 1)
    return products


def figure_of(scores: Floats, labels: Floats | None) -> tuple[str, float]:
    """Return the measure: accuracy of triplets, or Spearman's correlation of pairs with labels.

    scores: (N,), labels: (N,), or None for triplets. The correlation is 0 where a side is constant.
    """
    from scipy.stats import spearmanr  # slow to import

    if labels is None:
        return "accuracy", float(scores.mean())
    constant = not np.ptp(scores) or not np.ptp(labels)
    return "spearman", 0.0 if constant else float(spearmanr(scores, labels).statistic)


def _measure_similarity(name: str, encoder: TextEncoder, data: str) -> SentenceSimilarity:
    """Measure one model, keeping one number per example in memory."""
    scores, labels, size = [], [], 2
    examples = read_sentences(data)
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
        found = f"only the label {labels[0]:g}"
        raise InputError(data, None, found, "labels that differ, to correlate with")
    measure, value = figure_of(together, np.array(labels) if size == 2 else None)
    kind = "pairs" if size == 2 else "triplets"
    return SentenceSimilarity(name, data, kind, len(together), measure, value)


class QueryLatency(NamedTuple):
    """The times of one model's batches, (N,) milliseconds, on a device and so many CPU threads."""

    label: str
    device: str
    threads: int
    times: NDArray[np.float64]

    @property
    def percentiles(self) -> tuple[float, ...]:
        """The 1st, 50th and 99th percentile by nearest rank: each was measured."""
        return tuple(np.percentile(self.times, PERCENTILES, method="inverted_cdf").tolist())


def query_latency(
    settings: QueryLatencySettings,
    representation: Mapping[str, Any] = NOTHING,
    text: Mapping[str, Any] = NOTHING,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
) -> list[QueryLatency]:
    """Measure models on the same queries, one model after the other; write table and plot.

    A time runs from the text of a query to its embedding in CPU memory, tokenization included.
    Without a batch size, queries are encoded one at a time.
    """
    models = load_models(settings.labelled, representation, text, compute)
    queries = choose_records(read_queries(settings.topics), settings.sample, settings.seed)
    size = compute.batch_size or 1
    # an incomplete last batch counts only if it is the only one
    full = range(0, len(queries) - size + 1, size)
    batches = [queries[first : first + size] for first in full] or [queries]
    found: list[QueryLatency] = []
    rows: list[Sequence[str]] = [LATENCY_HEADER]
    for label, model, encoder in models:
        each = _measure_latency(label, encoder, batches, settings.warm_up)
        source = (label, model, settings.topics, len(each.times) * size)
        chosen = (settings.seed, settings.warm_up, size, each.device, each.threads)
        measured = (f"{value:.4f}" for value in (*each.percentiles, each.times.mean()))
        made = (compute.precision, encoder.dimension)
        rows.append((*map(str, (*source, *chosen, *made)), *measured))
        found.append(each)
    write_rows(settings.output, rows)
    what = "a query" if size == 1 else f"{size} queries"
    quantity = f"milliseconds to encode {what}, tokenization included"
    save_if_installed(lambda: plot_times(found, quantity), "the times", settings.picture)
    return found


def latency_table(found: Sequence[QueryLatency]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table of percentiles in milliseconds, one row per model."""
    header = ["model", "device", "threads", *(f"p{p} ms" for p in PERCENTILES)]
    rows = [
        [each.label, each.device, str(each.threads), *(f"{p:.2f}" for p in each.percentiles)]
        for each in found
    ]
    return header, rows


def plot_times(found: Sequence[QueryLatency], quantity: str) -> Any:
    """Draw a row per model: a dot per time, a line per percentile; the slowest are counted."""
    axes = new_axes(6, 0.75 * len(found) + 0.8)
    limit = 1.15 * max(each.percentiles[-1] for each in found)
    labels = []
    for row, each in enumerate(found):
        marks, slower = each.percentiles, int((each.times > limit).sum())
        # multiples of the golden ratio spread the dots evenly, however many there are
        heights = row + 0.5 * (np.arange(len(each.times)) * 0.618034 % 1) - 0.25
        axes.plot(each.times, heights, ls="", marker="o", ms=2.2, mew=0, color="0.25", alpha=0.3)
        axes.vlines(marks, row - 0.35, row + 0.35, color="black", lw=(0.9, 1.8, 0.9))
        more = f"\n{slower} slower, up to {each.times.max():.3g}" if slower else ""
        labels.append(f"{each.label}\n{' | '.join(f'{m:.3g}' for m in marks)}{more}")
    axes.set_yticks(range(len(found)), labels)
    axes.set(ylim=(len(found) - 0.5, -0.5), xlim=(0, limit), xlabel=quantity)
    axes.grid(visible=False, axis="y")
    return axes


def _measure_latency(
    label: str, encoder: TextEncoder, batches: Sequence[Sequence[Query]], warm_up: int
) -> QueryLatency:
    device = encoder.device
    on_gpu = device.type == "cuda"
    for batch in islice(cycle(batches), warm_up):
        encoder.encode_queries(batch)
    with track(f"encoding with {label}", len(batches), "batches") as progress:
        milliseconds = []
        for batch in batches:
            if on_gpu:
                torch.cuda.synchronize(device)
            start = time.perf_counter()
            encoder.encode_queries(batch)  # ends with vectors in CPU memory
            milliseconds.append(1000 * (time.perf_counter() - start))
        progress.advance(len(batches))
    name = f"{device} ({torch.cuda.get_device_name(device)})" if on_gpu else str(device)
    threads = encoder.threads_for(len(batches[0]))
    logger.info(
        f"{label}: {len(batches):,} times after {warm_up} to warm up, on {name}, "
        f"{threads} thread{'' if threads == 1 else 's'}, {encoder.compute.precision}; "
        "tokenization included"
    )
    return QueryLatency(label, name, threads, np.array(milliseconds))
