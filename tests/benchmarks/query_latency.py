"""How long a query takes alone: Aggretriever beside [CLS], denserk beside the paper's set-up.

    python -m tests.benchmarks.query_latency TOPICS [--queries N]

TOPICS is a file of queries (the 6,980 of MS MARCO dev were taken). A random model of DistilBERT's
size, one thread, one query at a time, from its text to its vector in memory. The paper's set-up
(Table 9): transformers' modules in float32, every query padded to 32 tokens, the head on all
positions. Ways take turns query by query, so that all meet the same machine.

Claimed, and the exit status is 1 where it does not hold: denserk's float32 vectors are the
published ones to 1e-5; bfloat16 has a cosine of at least 0.999 to them; in the same precision as
its backbone or less, denserk's Aggretriever is faster than the paper's set-up.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from denserk.config.encoding import ComputeSettings, Dtype
from denserk.io.topics import read_queries
from denserk.models.text_encoder import TextEncoder
from denserk.records import Query
from tests.benchmarks.aggretrievers import (
    load_plain,
    padded,
    published_agg,
    published_cls,
    write_model,
)

LENGTH = 32
WARM_UP = 20
WAYS = {
    "CLS float32": ({"representation": "cls"}, {}),
    "CLS bfloat16": ({"representation": "cls"}, {"dtype": Dtype.BFLOAT16}),
    "AGG float32": ({}, {}),
    "AGG float32, head bfloat16": ({}, {"head_dtype": Dtype.BFLOAT16}),
    "AGG bfloat16": ({}, {"dtype": Dtype.BFLOAT16}),
}
CLS_OF = {
    "AGG as published": "CLS as published",
    "AGG float32": "CLS float32",
    "AGG float32, head bfloat16": "CLS float32",
    "AGG bfloat16": "CLS bfloat16",
}
EXACT, NEAR = 1e-5, 0.999

Way = Callable[[Query], NDArray[np.float32]]


def ways(model: Path) -> dict[str, Way]:
    """Every way to encode a query."""
    loaded = {name: _load(model, *chosen) for name, chosen in WAYS.items()}
    tokenizer = loaded["AGG float32"].passage_side.tokenizer
    plain = load_plain(model)

    @torch.inference_mode()
    def as_published(query: Query) -> NDArray[np.float32]:
        return published_agg(plain, padded(tokenizer.queries([query]), LENGTH)).numpy()

    @torch.inference_mode()
    def cls_as_published(query: Query) -> NDArray[np.float32]:
        batch = padded(tokenizer.queries([query]), LENGTH)
        return published_cls(plain.backbone, batch).numpy()

    def ours(encoder: TextEncoder) -> Way:
        return lambda query: encoder.encode_queries([query])

    found = {"CLS as published": cls_as_published, "AGG as published": as_published}
    return found | {name: ours(encoder) for name, encoder in loaded.items()}


def _load(model: Path, representation: dict[str, Any], compute: dict[str, Any]) -> TextEncoder:
    settings = ComputeSettings(device="cpu", threads=1, **compute)
    return TextEncoder.load(str(model), representation, {}, settings)


def measure(found: dict[str, Way], queries: list[Query]) -> dict[str, NDArray[np.float64]]:
    """Milliseconds by the clock and of the CPU: (2, N) for each way."""
    for way in found.values():
        for query in queries[:WARM_UP]:
            way(query)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in found}
    for query in queries:
        for name, way in found.items():
            begun = time.perf_counter(), time.thread_time()
            way(query)
            cpu = time.thread_time() - begun[1]
            times[name].append((1e3 * (time.perf_counter() - begun[0]), 1e3 * cpu))
    return {name: np.array(each).T for name, each in times.items()}


def errors(found: dict[str, Way], queries: list[Query]) -> dict[str, tuple[float, float]]:
    """The largest difference from the published vectors, and the lowest cosine to them."""
    told = {}
    expected = np.concatenate([found["AGG as published"](query) for query in queries])
    for name in WAYS:
        if name.startswith("AGG"):
            vectors = np.concatenate([found[name](query) for query in queries])
            sizes = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
            cosines = (vectors * expected).sum(axis=1) / sizes
            told[name] = float(np.abs(vectors - expected).max()), float(cosines.min())
    return told


def show(times: dict[str, NDArray[np.float64]], told: dict[str, tuple[float, float]]) -> None:
    """The table; ratios are of medians of the CPU's own time."""
    print(f"{'ms a query':28}{'p50':>8}{'p99':>8}{'CPU p50':>9}{'/ paper':>9}{'/ CLS':>7}", end="")
    print(f"{'max abs':>10}{'cosine':>9}")
    middle = {name: float(np.median(cpu)) for name, (_, cpu) in times.items()}
    for name, (clock, _) in times.items():
        paper = middle["AGG as published"] / middle[name] if name.startswith("AGG") else None
        cls = middle[name] / middle[CLS_OF[name]] if name in CLS_OF else None
        ratios = f"{paper:9.2f}" if paper else " " * 9
        ratios += f"{cls:7.2f}" if cls else " " * 7
        error = f"{told[name][0]:10.1e}{told[name][1]:9.5f}" if name in told else ""
        p50, p99 = np.percentile(clock, (50, 99))
        print(f"{name:28}{p50:8.1f}{p99:8.1f}{middle[name]:9.1f}{ratios}{error}".rstrip())


def main() -> None:
    """Measures, and fails where a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topics")
    parser.add_argument("--queries", type=int, default=6980)
    given = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(1)
    queries = list(islice(read_queries(given.topics), given.queries))
    with tempfile.TemporaryDirectory() as folder:
        found = ways(write_model(Path(folder), "distilbert"))
    times = measure(found, queries)
    told = errors(found, queries[:200])
    print(f"{len(queries):,} queries one at a time, one thread, torch {torch.__version__}")
    show(times, told)
    slower = [n for n in told if np.median(times[n][1]) > np.median(times["AGG as published"][1])]
    wrong = [f"{name}: slower than the paper's set-up" for name in slower]
    if not told["AGG float32"][0] <= EXACT:
        wrong.append(f"AGG float32: off by {told['AGG float32'][0]:.1e}")
    wrong += [f"{n}: cosine {cosine:.5f}" for n, (_, cosine) in told.items() if not cosine >= NEAR]
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
