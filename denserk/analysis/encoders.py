"""Measures of encoders: similarity of sentences, and latency of queries.

Sentence similarity, as in Condenser's Tables 1 and 2. For pairs with labels (STS-B): Spearman's
correlation of the cosine with the label. For triplets (Wikipedia sections): how often the positive
is nearer to the anchor than the negative, by Euclidean distance. Axes: B examples of n sentences
(2 or 3), D dimensions. Latency, as in Aggretriever's Table 9: the 1st, 50th and 99th percentile.
"""

import logging
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from denserk.config.analysis import QueryLatencySettings, SentenceSimilaritySettings, SeveralModels
from denserk.config.encoding import DEFAULTS, ModelOptions
from denserk.data.sampling import choose_records
from denserk.errors import DenserkError, InputError
from denserk.io.files import write_rows
from denserk.io.plots import new_axes, save_if_installed
from denserk.io.topics import read_queries
from denserk.io.training import read_sentences
from denserk.models.text_encoder import TextEncoder, load_models
from denserk.reporting import track

logger = logging.getLogger(__name__)

Floats = NDArray[np.floating]
Row = dict[str, Any]  # a result: column of the table -> value

BLOCK = 1024  # examples encoded at once
PERCENTILES = (1, 50, 99)


def as_table(found: Sequence[Row], names: Sequence[str] = (), digits: int = 6) -> list[list[str]]:
    """Return the header and the rows of a table of results: named columns, by default all."""
    names = list(names or found[0])
    values = ([row[name] for name in names] for row in found)
    shown = [[f"{v:.{digits}f}" if isinstance(v, float) else str(v) for v in row] for row in values]
    return [names, *shown]


def save(found: Sequence[Row], draw: Callable[[], Any], settings: SeveralModels) -> None:
    """Write the results as CSV, and their plot."""
    write_rows(settings.output, as_table(found))
    save_if_installed(draw, "the results", settings.picture)


def sentence_similarity(
    settings: SentenceSimilaritySettings, options: ModelOptions = DEFAULTS
) -> list[Row]:
    """Measure models on pairs or triplets of sentences; write the table if asked to.

    The text settings of passages apply to sentences.
    """
    found = []
    for name in settings.model:
        encoder = TextEncoder(name, *options)
        found.append(_measure_similarity(name, encoder, settings.data))
    if settings.output is not None:
        write_rows(settings.output, as_table(found))
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


def _measure_similarity(name: str, encoder: TextEncoder, data: str) -> Row:
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
    kind, count = "pairs" if size == 2 else "triplets", len(together)
    row = {"model": name, "data": data, "kind": kind, "count": count}
    return row | {"measure": measure, "value": value}


def query_latency(settings: QueryLatencySettings, options: ModelOptions = DEFAULTS) -> list[Row]:
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
    save(found, lambda: plot_times(found, times), settings)
    return found


def plot_times(found: Sequence[Row], times: Sequence[Floats]) -> Any:
    """Draw a box per model, whiskers at the first and last percentile, and the times beyond."""
    axes = new_axes(6, 0.75 * len(found) + 0.8)
    whiskers = (PERCENTILES[0], PERCENTILES[-1])
    axes.boxplot(times, orientation="horizontal", whis=whiskers, flierprops={"ms": 2.2})
    axes.set_yticks(range(1, len(found) + 1), [row["label"] for row in found])
    axes.set_xlabel(f"milliseconds (batches of {found[0]['batch_size']}), tokenization included")
    return axes
