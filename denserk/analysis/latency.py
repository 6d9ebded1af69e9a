"""Latency of query encoding: the 1st, 50th and 99th percentile (Aggretriever's Table 9)."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from denserk.analysis.side_by_side import load_models
from denserk.config.analysis import QueryLatencySettings
from denserk.config.encoding import ComputeSettings
from denserk.data.sampling import choose_records
from denserk.io.files import write_rows
from denserk.io.plots import new_axes, save_if_installed
from denserk.io.topics import read_queries
from denserk.models.text_encoder import NOTHING, TextEncoder
from denserk.records import Query
from denserk.reporting import track

logger = logging.getLogger(__name__)

PERCENTILES = (1, 50, 99)
HEADER = (
    *("label", "model", "topics", "queries", "seed", "warm_up", "batch_size"),
    *("device", "threads", "dtype", "dimension", *(f"p{p}_ms" for p in PERCENTILES), "mean_ms"),
)


@dataclass(frozen=True)
class QueryLatency:
    """The times of one model.

    Attributes:
        device: where it ran; a GPU with its name.
        threads: CPU threads.
        times: (N,) milliseconds, one per batch, in the order measured.
        percentiles: the 1st, 50th and 99th of them.
    """

    label: str
    model: str
    dimension: int
    device: str
    threads: int
    times: NDArray[np.float64] = field(repr=False)
    percentiles: tuple[float, ...]


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
    models = load_models(settings, representation, text, compute)
    queries = choose_records(read_queries(settings.topics), settings.sample, settings.seed)
    size = compute.batch_size or 1
    # an incomplete last batch counts only if it is the only one
    full = range(0, len(queries) - size + 1, size)
    batches = [queries[first : first + size] for first in full] or [queries]
    found, rows = [], []
    for label, model, encoder in models:
        each = _measure(label, model, encoder, batches, settings.warm_up)
        found.append(each)
        chosen = (settings.seed, settings.warm_up, size, each.device, each.threads)
        rows.append(
            [
                *map(str, (label, model, settings.topics, len(each.times) * size, *chosen)),
                *map(str, (compute.precision, each.dimension)),
                *(f"{value:.4f}" for value in (*each.percentiles, each.times.mean())),
            ]
        )
    write_rows(settings.output, [HEADER, *rows])
    what = "a query" if size == 1 else f"{size} queries"
    quantity = f"milliseconds to encode {what}, tokenization included"
    times = {each.label: each.times for each in found}
    save_if_installed(lambda: plot(times, quantity), "the times", settings.picture)
    return found


def latency_table(found: Sequence[QueryLatency]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table of percentiles in milliseconds, one row per model."""
    header = ["model", "device", "threads", *(f"p{p} ms" for p in PERCENTILES)]
    rows = [
        [each.label, each.device, str(each.threads), *(f"{p:.2f}" for p in each.percentiles)]
        for each in found
    ]
    return header, rows


def plot(times: Mapping[str, NDArray[np.float64]], quantity: str) -> Any:
    """Draw one row per model: a dot per time, a line at each percentile.

    Times far beyond the largest 99th percentile are not drawn but counted.
    """
    axes = new_axes(6, 0.75 * len(times) + 0.8)
    marks = [percentiles(each) for each in times.values()]
    limit = 1.15 * max(mark[-1] for mark in marks)
    labels = []
    for row, (name, mark) in enumerate(zip(times, marks, strict=True)):
        each, slower = times[name], int((times[name] > limit).sum())
        # multiples of the golden ratio spread the dots evenly, however many there are
        heights = row + 0.5 * (np.arange(len(each)) * 0.618034 % 1) - 0.25
        axes.plot(each, heights, ls="", marker="o", ms=2.2, mew=0, color="0.25", alpha=0.3)
        axes.vlines(mark, row - 0.35, row + 0.35, color="black", lw=(0.9, 1.8, 0.9))
        more = f"\n{slower} slower, up to {each.max():.3g}" if slower else ""
        labels.append(f"{name}\n{' | '.join(f'{m:.3g}' for m in mark)}{more}")
    axes.set_yticks(range(len(times)), labels)
    axes.set(ylim=(len(times) - 0.5, -0.5), xlim=(0, limit), xlabel=quantity)
    axes.grid(visible=False, axis="y")
    return axes


def percentiles(
    times: NDArray[np.float64], wanted: Sequence[float] = PERCENTILES
) -> tuple[float, ...]:
    """Return percentiles by nearest rank, without interpolation: each was measured.

    >>> percentiles(np.array([5.0, 1.0, 3.0, 9.0]), (1, 50, 75, 99))
    (1.0, 3.0, 5.0, 9.0)
    """
    ranked: NDArray[np.float64] = np.percentile(times, wanted, method="inverted_cdf")
    return tuple(ranked.tolist())


def _measure(
    label: str, model: str, encoder: TextEncoder, batches: Sequence[Sequence[Query]], warm_up: int
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
    times = np.array(milliseconds)
    name = f"{device} ({torch.cuda.get_device_name(device)})" if on_gpu else str(device)
    threads = encoder.threads_for(len(batches[0]))
    logger.info(
        f"{label}: {len(batches):,} times after {warm_up} to warm up, on {name}, "
        f"{threads} thread{'' if threads == 1 else 's'}, {encoder.compute.precision}; "
        "tokenization included"
    )
    return QueryLatency(label, model, encoder.dimension, name, threads, times, percentiles(times))
