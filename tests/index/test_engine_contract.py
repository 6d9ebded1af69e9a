"""Every exact engine ranks 2,000 random vectors alike: score descending, then id descending."""

from typing import Any

import numpy as np
import pytest

from denserk.config.retrieval import Engine, Metric, SearchSettings, Ties
from denserk.index.milvus import MilvusIndex
from denserk.index.opening import open_index, open_vector_index
from denserk.index.searcher import Searcher
from denserk.io.flat_file import FlatWriter
from tests.index.test_shards import CPU, raw
from tests.milvus import collection, load, require_milvus, write_vectors

COUNT, DIMENSION, DEPTH = 2000, 24, 100
SEARCH = SearchSettings(hits=DEPTH, ties=Ties.KEEP)
KINDS = ("whole", "real")
RAW = "raw folders"


def drawn(kind, rows, seed):
    """Whole numbers, whose scores are exact and often equal, or real ones, whose are neither."""
    random = np.random.default_rng(seed)
    if kind == "whole":
        return random.integers(-3, 4, (rows, DIMENSION)).astype(np.float32)
    return random.normal(size=(rows, DIMENSION)).astype(np.float32)


IDS = [f"d{number}" for number in np.random.default_rng(5).permutation(COUNT).tolist()]
QIDS = [f"q{number}" for number in range(8)]


def right(kind):
    """The run, from every score in double precision."""
    scores = drawn(kind, len(QIDS), 2).astype(np.float64) @ drawn(kind, COUNT, 1).T
    ranked = [sorted(zip(line, IDS, strict=True), reverse=True)[:DEPTH] for line in scores]
    if kind == "real":  # no two are so close that rounding to float32 could swap them
        assert all(np.diff([score for score, _ in line]).max() < -1e-5 for line in ranked)
    else:
        cuts = [
            (line[-1][0], np.sort(s)[-1 - DEPTH]) for line, s in zip(ranked, scores, strict=True)
        ]
        assert sum(kept == dropped for kept, dropped in cuts) > 1  # a tie lies across the cut
    return [[docid for _, docid in line] for line in ranked]


@pytest.fixture(scope="module", params=[Engine.TORCH, Engine.FAISS, Engine.MILVUS, RAW])
def opened(request, tmp_path_factory):
    """`opened(kind)`: an index of the engine, and the ids of its rows."""
    folder = tmp_path_factory.mktemp(request.param)
    with_milvus = request.param is Engine.MILVUS
    if with_milvus:
        require_milvus()
    held: dict[str, Any] = {}
    for kind in KINDS:
        vectors = drawn(kind, COUNT, 1)
        if request.param is RAW:
            for number, rows in enumerate((slice(0, 700), slice(700, 2000))):
                raw(folder / f"{kind}-{number}", IDS[rows], vectors[rows], block=128)
            shards = open_index([str(folder / f"{kind}-*")], SEARCH, CPU)
            held[kind] = (shards.index, shards.ids)
            continue
        if with_milvus:
            load(write_vectors(folder / f"{kind}.jsonl", IDS, vectors), folder / "m.db", kind)
            index = MilvusIndex(collection(folder / "m.db", kind), SEARCH)
            held[kind] = (index, index.ids)
            continue
        (folder / kind).mkdir()
        with (folder / kind / "index").open("wb") as handle:
            writer = FlatWriter(handle, Metric.INNER)
            writer.add(vectors)
            writer.finish()
        held[kind] = (open_vector_index(folder / kind, request.param, SEARCH), IDS)
    yield held.__getitem__
    if with_milvus:
        for index, _ in held.values():
            index.close()


@pytest.mark.parametrize("kind", KINDS)
def test_exact_engines_rank_alike(opened, kind):
    index, ids = opened(kind)
    assert (len(index), index.dimension, index.is_exhaustive) == (COUNT, DIMENSION, True)
    found = dict(Searcher(index, ids, SEARCH).search(QIDS, drawn(kind, len(QIDS), 2)))
    assert [[docid for docid, _ in found[qid]] for qid in QIDS] == right(kind)
