"""Trained models -> how long a query takes to encode: the Aggretriever paper's Table 9."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from denserk.analysis.latency import PERCENTILES, percentiles, time_each
from denserk.analysis.latency_plot import draw_times
from denserk.analysis.pictures import draw_if_installed
from denserk.data.sampling import choose_records
from denserk.errors import UsageError
from denserk.extras import require
from denserk.formats.csv_rows import write_rows
from denserk.formats.sources import read_queries
from denserk.modeling.model_names import find_model
from denserk.modeling.text_encoder import NOTHING, TextEncoder
from denserk.records import Query
from denserk.reporting import SILENT, Reporter
from denserk.settings.analysis import QueryLatencySettings
from denserk.settings.encoding import ComputeSettings

HEADER = (
    *("label", "model", "topics", "queries", "seed", "warm_up", "batch_size"),
    *("device", "threads", "dtype", "dimension", *(f"p{p}_ms" for p in PERCENTILES), "mean_ms"),
)
QUANTITY = "milliseconds to encode {}, tokenisation included"


@dataclass(frozen=True)
class QueryLatency:
    """One model's times.

    Attributes:
        label: what tables call it.
        model: its folder or name.
        dimension: of its vectors.
        device: where it ran, a GPU with its name.
        threads: of the CPU.
        times: (N,) milliseconds, one a batch, in the order in which they were measured.
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
    reporter: Reporter = SILENT,
) -> list[QueryLatency]:
    """Measures models on the same queries, one model after the other; writes table and plot.

    A time is that from a query's text to its vector in the memory of the CPU, tokenisation
    included. Without a batch size queries are encoded one at a time.

    Args:
        settings: which models, which queries, to where.
        representation: replaces what a model says about how its vectors are made.
        text: replaces what it says about texts.
        compute: where and how.
        reporter: told of progress, and how the times were taken.

    Raises:
        UsageError, ModelError: a model, the queries or the device is not there.
        InputError: the queries are broken.
        OutputError: table or plot cannot be written.
    """
    if settings.plot is not None:
        require("matplotlib", "drawing times")
    for _, model in settings.labelled:  # none is measured before all are found
        find_model(model)
    queries = choose_records(
        read_queries(settings.topics, reporter=reporter), settings.sample, settings.seed
    )
    batches = as_batches(queries, compute.batch_size or 1)
    found = []
    for label, model in settings.labelled:
        try:
            encoder = TextEncoder.load(model, representation, text, compute, reporter)
        except UsageError as error:
            raise UsageError(f"{label}: {error.message}", error.hint) from None
        found.append(_measure(label, model, encoder, batches, settings.warm_up, reporter))
    write_rows(settings.output, [HEADER, *(_row(each, settings, compute) for each in found)])
    times = {each.label: each.times for each in found}
    what = "a query" if (compute.batch_size or 1) == 1 else f"{compute.batch_size} queries"
    draw = partial(draw_times, times, QUANTITY.format(what))
    draw_if_installed(draw, "the times", settings.picture, reporter)
    return found


def as_batches(queries: Sequence[Query], size: int) -> list[Sequence[Query]]:
    """Batches of one size; what would not fill the last is left out, unless nothing else is there.

    >>> [len(batch) for batch in as_batches([Query(str(i), "?") for i in range(7)], 3)]
    [3, 3]
    """
    full = range(0, len(queries) - size + 1, size)
    return [queries[first : first + size] for first in full] or [queries]


def as_table(found: Sequence[QueryLatency]) -> tuple[list[str], list[list[str]]]:
    """The percentiles in milliseconds, a row a model: header and rows."""
    header = ["model", "device", "threads", *(f"p{p} ms" for p in PERCENTILES)]
    rows = [
        [each.label, each.device, str(each.threads), *(f"{p:.2f}" for p in each.percentiles)]
        for each in found
    ]
    return header, rows


def _measure(
    label: str,
    model: str,
    encoder: TextEncoder,
    batches: Sequence[Sequence[Query]],
    warm_up: int,
    reporter: Reporter,
) -> QueryLatency:
    finish = _finisher(encoder.device)
    for batch in islice(cycle(batches), warm_up):
        encoder.encode_queries(batch)
    with reporter.track(f"encoding with {label}", len(batches), "batches") as progress:
        seconds = time_each(encoder.encode_queries, batches, finish)
        progress.advance(len(batches))
    device, threads = _name(encoder.device), encoder.threads_for(len(batches[0]))
    reporter.note(
        f"{label}: {len(batches):,} times after {warm_up} to warm up, on {device}, "
        f"{threads} thread{'' if threads == 1 else 's'}, {encoder.compute.precision}; from text to "
        "vector, tokenisation included"
    )
    times = seconds * 1000
    return QueryLatency(label, model, encoder.dimension, device, threads, times, percentiles(times))


def _finisher(device: torch.device) -> Callable[[], None]:
    """Waits for a GPU; a CPU is done when its call returns."""

    def finish() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return finish


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return str(device)


def _row(
    found: QueryLatency, settings: QueryLatencySettings, compute: ComputeSettings
) -> tuple[str, ...]:
    """One model under `HEADER`."""
    size = compute.batch_size or 1
    chosen = (settings.seed, settings.warm_up, size, found.device, found.threads)
    measured = (*found.percentiles, found.times.mean())
    return (
        *(found.label, found.model, settings.topics, str(len(found.times) * size)),
        *map(str, (*chosen, compute.precision, found.dimension)),
        *(f"{value:.4f}" for value in measured),
    )
