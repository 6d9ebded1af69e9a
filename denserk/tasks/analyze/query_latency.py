"""`denserk analyze query-latency`: the time of encoding one query at a time.

As in Aggretriever's Table 9: the 1st, 50th and 99th percentile.
"""

import time
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from denserk.config import analysis, encoding
from denserk.data.sampling import choose_records
from denserk.io.manifest import precision_of
from denserk.io.topics import read_queries
from denserk.models.text_encoder import TextEncoder, load_models
from denserk.plots import new_axes
from denserk.records import Query
from denserk.reporting import track
from denserk.tasks.analyze.results import Row, save

PERCENTILES = (1, 50, 99)
Batches = Sequence[Sequence[Query]]


def query_latency(
    settings: analysis.QueryLatencySettings, options: encoding.ModelOptions = encoding.DEFAULTS
) -> list[Row]:
    """Measure models on the same queries, one model after the other; write table and plot.

    A time runs from the text of a query to its embedding in CPU memory, tokenization included.
    Without a batch size, queries are encoded one at a time.
    """
    models = load_models(settings.labelled, options)
    queries = choose_records(read_queries(settings.topics), settings.sample, settings.seed)
    batch_size = options.compute.batch_size or 1
    batches = whole_batches(queries, batch_size)
    query_count = len(batches) * len(batches[0])
    rows: list[Row] = []
    times_of_models: list[NDArray[np.float64]] = []
    for label, model, encoder in models:
        for batch in islice(cycle(batches), settings.warm_up):
            encoder.encode_queries(batch)
        milliseconds = 1000 * _seconds(label, encoder, batches)
        row: Row = {
            "label": label,
            "model": model,
            "topics": settings.topics,
            "queries": query_count,
            "seed": settings.seed,
            "warm_up": settings.warm_up,
            "batch_size": batch_size,
            "device": _device_name(encoder),
            "threads": encoder.threads_for(len(batches[0])),
            "dtype": precision_of(encoder.description()),
            "dimension": encoder.dimension,
        }
        for percent in PERCENTILES:  # by nearest rank: a time that was measured
            value = np.percentile(milliseconds, percent, method="inverted_cdf")
            row[f"p{percent}_ms"] = float(value)
        row["mean_ms"] = float(milliseconds.mean())
        rows.append(row)
        times_of_models.append(milliseconds)
    labels = [row["label"] for row in rows]
    save(rows, lambda: _draw(labels, times_of_models, batch_size), settings)
    return rows


def whole_batches(queries: Sequence[Query], size: int) -> Batches:
    """Return batches of that size; an incomplete last one counts only if it is the only one.

    >>> queries = [Query("q1", "a"), Query("q2", "b"), Query("q3", "c")]
    >>> [len(batch) for batch in whole_batches(queries, 2)]
    [2]
    >>> [len(batch) for batch in whole_batches(queries, 4)]
    [3]
    """
    starts = range(0, len(queries) - size + 1, size)
    return [queries[start : start + size] for start in starts] or [queries]


def _seconds(label: str, encoder: TextEncoder, batches: Batches) -> NDArray[np.float64]:
    """Return the seconds that each batch took."""
    on_gpu = encoder.device.type == "cuda"
    seconds = []
    with track(f"encoding with {label}", len(batches), "batches") as progress:
        for batch in batches:
            if on_gpu:
                torch.cuda.synchronize(encoder.device)
            started = time.perf_counter()
            encoder.encode_queries(batch)  # ends with vectors in CPU memory
            seconds.append(time.perf_counter() - started)
        progress.advance(len(batches))  # not while times are taken
    return np.array(seconds)


def _device_name(encoder: TextEncoder) -> str:
    """Return the device, a GPU with its name."""
    if encoder.device.type != "cuda":
        return str(encoder.device)
    return f"{encoder.device} ({torch.cuda.get_device_name(encoder.device)})"


def _draw(labels: Sequence[str], times: Sequence[NDArray[np.float64]], batch_size: int) -> Any:
    """Draw a box for each model, from the first to the last percentile, and the times beyond."""
    axes = new_axes(6, 0.75 * len(labels) + 0.8)
    whiskers = (PERCENTILES[0], PERCENTILES[-1])
    axes.boxplot(times, orientation="horizontal", whis=whiskers, flierprops={"ms": 2.2})
    axes.set_yticks(range(1, len(labels) + 1), labels)
    axes.set_xlabel(f"milliseconds (batches of {batch_size}), tokenization included")
    return axes
