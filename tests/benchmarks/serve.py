"""Load on `denserk serve`: several clients at once, and requests that no client should send.

    python -m tests.benchmarks.serve WORK [--passages 100000] [--clients 8] [--seconds 60]
        [--mangled 10000]

WORK takes a made-up corpus, its BM25 index, and random unit vectors in place of its embeddings, of
the dimension of MiniLM: queries are encoded by it (`minilm`, which the extra `demo` has), so that
the time of a search is that of real vectors, and its hits are meaningless. What WORK has already is
used again. For each index, and for both fused, each client sends queries of 3 to 8 words one after
the other over its own connection, for so many seconds after 5 that are not counted; then the
mangled requests come (tests/support/mangled_requests.py). Printed: requests per second, errors,
median and 99th percentile of the time of a request as the client sees it, the CPU time of the
server for each, and the memory that it holds before and after, mapped pages of files included. The
goals are no errors, no internal errors, and memory that does not grow by more than a tenth.
"""

import argparse
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from itertools import accumulate
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import numpy as np

import denserk
from tests.benchmarks.timing import DENSERK, Goals, watch
from tests.support.mangled_requests import send_all
from tests.support.serving import ServerProcess, running_server

MODEL = "minilm"
DIMENSION = 384
VOCABULARY = 20_000  # made-up words, the n-th as often as 1/n
PASSAGE_WORDS = 60
WARM_UP_SECONDS = 5.0
INDEXES = ("bm25", "vectors", "bm25+vectors")
MIB = 1 << 20


def words(count: int) -> list[str]:
    """Return made-up words, all different."""
    draw = random.Random(0)
    syllables = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        drawn["".join(draw.choices(syllables, k=draw.randrange(2, 5)))] = None
    return list(drawn)


def write_corpus(path: Path, passages: int) -> None:
    """Write passages of words that are drawn by Zipf's law."""
    draw = random.Random(1)
    vocabulary = words(VOCABULARY)
    frequencies = list(accumulate(1 / rank for rank in range(1, VOCABULARY + 1)))
    with path.open("w") as out:
        for number in range(passages):
            text = " ".join(draw.choices(vocabulary, cum_weights=frequencies, k=PASSAGE_WORDS))
            out.write(json.dumps({"_id": f"d{number}", "title": "", "text": text}) + "\n")


def build_indexes(work: Path, passages: int) -> None:
    """Write the corpus and both indexes, unless they are there."""
    corpus = work / "corpus.jsonl"
    if not corpus.exists():
        write_corpus(corpus, passages)
    bm25 = work / "bm25"
    if not bm25.exists():
        index = [DENSERK, "index", "--type", "bm25", "--corpus", str(corpus)]
        watch([*index, "--output", str(bm25), "--quiet"])
    vectors = work / "vectors"
    if not vectors.exists():
        draw = np.random.default_rng(2)
        rows = draw.standard_normal((passages, DIMENSION), np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        ids = [f"d{number}" for number in range(passages)]
        denserk.Index.build(rows, ids=ids, output=vectors).close()


@dataclass
class Load:
    """What the clients saw."""

    seconds: list[float] = field(default_factory=list)  # of each request that was answered
    statuses: Counter[str] = field(default_factory=Counter)  # or the name of an error

    @property
    def errors(self) -> int:
        """The number of requests that were not answered with status 200."""
        return sum(self.statuses.values()) - self.statuses["200"]


def send_queries(address: str, index: str, seed: int, until: float, load: Load) -> None:
    """Send queries one after the other until a time, and note how they were answered."""
    draw = random.Random(seed)
    vocabulary = words(VOCABULARY)
    host = urlsplit(address).netloc
    connection = HTTPConnection(host, timeout=60)
    while time.monotonic() < until:
        query = " ".join(draw.choices(vocabulary[:2000], k=draw.randrange(3, 9)))
        started = time.perf_counter()
        try:
            connection.request("GET", f"/v1/{index}/search?{urlencode({'query': query})}")
            response = connection.getresponse()
            response.read()
        except (OSError, HTTPException) as error:
            load.statuses[type(error).__name__] += 1
            connection.close()
            continue
        load.seconds.append(time.perf_counter() - started)
        load.statuses[str(response.status)] += 1
    connection.close()


def load_of_clients(address: str, index: str, clients: int, seconds: float) -> Load:
    """Return what several clients saw that sent queries at once."""
    until = time.monotonic() + seconds
    loads = [Load() for _ in range(clients)]
    threads = [
        threading.Thread(target=send_queries, args=(address, index, seed, until, load))
        for seed, load in enumerate(loads)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = Load()
    for load in loads:
        total.seconds += load.seconds
        total.statuses += load.statuses
    return total


def measure_load(
    goals: Goals, server: ServerProcess, index: str, clients: int, seconds: float
) -> None:
    """Measure one index under load."""
    load_of_clients(server.address, index, clients, WARM_UP_SECONDS)
    memory_before = server.memory() / MIB
    cpu_before = server.cpu_seconds()
    load = load_of_clients(server.address, index, clients, seconds)
    cpu_seconds = server.cpu_seconds() - cpu_before
    memory_after = server.memory() / MIB
    milliseconds = np.array(load.seconds) * 1000
    rate = len(milliseconds) / seconds
    print(
        f"{index}: {len(milliseconds):,} requests of {clients} clients in {seconds:g} s, "
        f"{rate:,.1f} per second, p50 {np.percentile(milliseconds, 50):,.1f} ms, "
        f"p99 {np.percentile(milliseconds, 99):,.1f} ms, "
        f"{cpu_seconds * 1000 / len(milliseconds):,.1f} ms of CPU each, {load.errors} errors "
        f"{dict(load.statuses)}, memory {memory_before:,.0f} -> {memory_after:,.0f} MiB",
        flush=True,
    )
    goals.at_most("V1", f"{index}: errors", load.errors, 0)
    goals.at_most("V2", f"{index}: memory after / before", memory_after / memory_before, 1.1)


def measure_mangled(goals: Goals, server: ServerProcess, count: int) -> None:
    """Send what no client should send."""
    memory_before = server.memory() / MIB
    started = time.perf_counter()
    statuses = send_all(server.address, count, seed=1)
    seconds = time.perf_counter() - started
    memory_after = server.memory() / MIB
    shown_statuses = {str(status): number for status, number in statuses.most_common()}
    print(
        f"mangled: {count:,} requests in {seconds:,.0f} s: {shown_statuses}, "
        f"memory {memory_before:,.0f} -> {memory_after:,.0f} MiB",
        flush=True,
    )
    internal_errors = sum(
        number for status, number in statuses.items() if status is not None and status >= 500
    )
    log = server.log.read_text("utf-8")
    goals.at_most("V3", "mangled: status 500 and above", internal_errors, 0)
    goals.at_most("V3", "mangled: tracebacks in the log", log.count("Traceback"), 0)
    goals.at_most("V2", "mangled: memory after / before", memory_after / memory_before, 1.1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the load test."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("work", type=Path, metavar="WORK")
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--mangled", type=int, default=10_000)
    options = parser.parse_args(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    goals = Goals()
    build_indexes(options.work, options.passages)
    served = ["--index", "bm25", "--index", "vectors", "--model", MODEL]
    with running_server(options.work, *served, "--corpus", "corpus.jsonl") as server:
        for index in INDEXES:
            measure_load(goals, server, index, options.clients, options.seconds)
        measure_mangled(goals, server, options.mangled)
    goals.finish()


if __name__ == "__main__":
    main()
