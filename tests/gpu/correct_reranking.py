"""Section `rerank-generate`: a cross-encoder's scores beside the CPU's, and generated queries."""

import time
from typing import Any

import numpy as np

from denserk.api import generate, rerank
from denserk.api.runs import Run
from tests.gpu.models import random_bert, random_t5
from tests.gpu.setup import Setup
from tests.gpu.texts import training_collection, training_file, write_corpus
from tests.gpu.training_runs import tune


def rerank_and_generate(setup: Setup) -> None:
    """Check both."""
    with setup.report.attempt("rerank"):
        check_rerank(setup)
    with setup.report.attempt("generate"):
        check_generate(setup)


def check_rerank(setup: Setup) -> None:
    """Compare scores in float32, and measure them in bfloat16."""
    data = training_file(setup, setup.choose(200, 20), 4)
    options = {"representation": "cross-encoder", "max_steps": 2}
    model = tune(setup, "reranker", random_bert(setup, "small"), data, "cpu", **options)
    collection = training_collection(setup)
    passages = collection.passages[: setup.choose(400, 40)]
    queries = dict(list(collection.queries.items())[: setup.choose(40, 4)])
    depth = setup.choose(50, 10)
    candidates = {}
    for number, qid in enumerate(queries):
        ranked = [passages[(7 * number + rank) % len(passages)] for rank in range(depth)]
        candidates[qid] = {passage.docid: -float(rank) for rank, passage in enumerate(ranked)}
    corpus = write_corpus(setup, "rerank", passages)

    def scores(device: str, dtype: str) -> Run:
        options: dict[str, Any] = {"hits": depth, "device": device, "dtype": dtype}
        return rerank(candidates, model, topics=queries, corpus=corpus, **options)

    expected = scores("cpu", "float32")
    values = [score for hits in expected.values() for score in hits.values()]
    spread = float(np.std(values))
    for dtype in ("float32", "bfloat16"):
        run = scores(setup.device, dtype)
        differences = [
            abs(score - run[qid][docid])
            for qid, hits in expected.items()
            for docid, score in hits.items()
        ]
        difference = max(differences) / spread
        name = f"rerank, {dtype}"
        unit = "largest difference of a score, in standard deviations"
        if dtype == "float32":
            setup.report.check(name, difference, difference < 1e-3, unit, pairs=len(values))
        else:
            setup.report.measure(name, difference, unit, pairs=len(values))


def check_generate(setup: Setup) -> None:
    """Generate queries for every passage, twice; equal queries of a passage count once."""
    passages = training_collection(setup).passages[: setup.choose(64, 6)]
    corpus = write_corpus(setup, "generate", passages)
    records_of_calls = []
    start = time.perf_counter()
    for _ in range(2):
        records = generate(
            corpus,
            queries_model=random_t5(setup),
            num_queries=3,
            query_max_tokens=setup.choose(32, 8),
            passage_max_length=64,
            device=setup.device,
        )
        records_of_calls.append(records)
    counts = [len(record["queries"]) for record in records_of_calls[0]]
    setup.report.check(
        "generate",
        sum(counts),
        len(counts) == len(passages) and sum(counts) > 0 and max(counts) <= 3,
        f"queries for {len(counts)} passages",
        seconds=(time.perf_counter() - start) / 2,
        twice_the_same=records_of_calls[0] == records_of_calls[1],
    )
