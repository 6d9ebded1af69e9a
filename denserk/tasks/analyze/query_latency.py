"""`denserk analyze query-latency`: the time of encoding one query at a time.

As in Aggretriever's Table 9: the 1st, 50th and 99th percentile.
"""

import time
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch

from denserk.config import analysis, encoding
from denserk.data.sampling import choose_records
from denserk.io.topics import read_queries
from denserk.models.text_encoder import load_models
from denserk.plots import new_axes
from denserk.reporting import track
from denserk.tasks.analyze.results import Row, save

PERCENTILES = (1, 50, 99)


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
