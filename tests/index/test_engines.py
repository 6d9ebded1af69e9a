"""The contract of an engine: every exact engine finds the same hits, in the same order."""

from typing import Any

import numpy as np
import pytest

from denserk.config.encoding import ComputeSettings
from denserk.config.retrieval import Engine, IndexSettings, IndexType, Metric, SearchSettings, Ties
from denserk.errors import InputError, MissingExtraError, UsageError
from denserk.index import build, opening
from denserk.index.build import with_engine
from denserk.index.exact import ExactIndex
from denserk.index.milvus import MilvusIndex
from denserk.index.opening import open_index
from denserk.index.searcher import Searcher
from tests.index.folders import (
    flat_folder,
    found,
    names_of,
    open_flat,
    vector_folder,
    whole_numbers,
)
from tests.milvus import collection, load, require_milvus, write_vectors

ENGINES = [Engine.TORCH, Engine.FAISS]
SEARCH = SearchSettings()
CPU = ComputeSettings(device="cpu", threads=1)


def by_hand(vectors, queries, depth, metric=Metric.INNER):
    """The best (score, row) pairs of every query."""
    results = []
    for query in queries:
        scores = vectors @ query if metric is Metric.INNER else -((query - vectors) ** 2).sum(1)
        pairs = sorted(zip(scores.tolist(), range(len(vectors)), strict=True), key=_by_score)
        results.append(pairs[:depth])
    return results


def _by_score(hit):
    return -hit[0], hit[1]


def hits(result):
    return [
        [(s, r) for s, r in zip(scores, rows, strict=True) if r >= 0]
        for scores, rows in zip(result[0].tolist(), result[1].tolist(), strict=True)
    ]


def flat(folder, vectors, metric=Metric.INNER):
    return flat_folder(folder / "i", map(str, range(len(vectors))), vectors, metric=metric)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize(("rows", "depth"), [(50, 7), (50, 80), (1, 3), (2500, 9)])
def test_exact_engines_give_the_right_answer(tmp_path, engine, metric, rows, depth):
    vectors, queries = whole_numbers(1, rows), whole_numbers(2, 25)
    index = open_flat(flat(tmp_path, vectors, metric), engine)
    scores, best = index.search(queries, depth)
    assert (scores.dtype.name, best.dtype.name) == ("float32", "int64")
    assert scores.shape == best.shape == (25, depth)
    assert (scores[:, rows:] == -np.inf).all()
    assert (best[:, rows:] == -1).all()
    everything = by_hand(vectors, queries, rows, metric)
    for hit, all_hits in zip(hits((scores, best)), everything, strict=True):
        right = all_hits[:depth]
        assert [score for score, _ in hit] == [score for score, _ in right]
        cut = right[-1][0]  # which of the equal ones at the cut come back is the engine's choice
        assert [h for h in hit if h[0] > cut] == [h for h in right if h[0] > cut]
        assert set(hit) <= set(all_hits)
        if engine is Engine.TORCH:
            assert hit == right
    assert (len(index), index.dimension, index.is_exhaustive) == (rows, 6, True)


def test_without_faiss_torch_searches_the_same_folder(tmp_path, monkeypatch):
    vectors, queries = whole_numbers(8, 20), whole_numbers(9, 2)
    monkeypatch.setattr(opening, "installed", lambda module: False)
    index = open_index([flat(tmp_path, vectors)], SEARCH, CPU, encodes=False).index
    assert isinstance(index, ExactIndex)
    assert hits(index.search(queries, 5)) == by_hand(vectors, queries, 5)


def test_types_choose_their_engine(monkeypatch):
    assert with_engine(IndexSettings(type=IndexType.HNSW)).engine is Engine.FAISS
    assert with_engine(IndexSettings(engine=Engine.TORCH)).engine is Engine.TORCH
    monkeypatch.setattr(build, "installed", lambda module: False)
    assert with_engine(IndexSettings()).engine is Engine.TORCH
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(MissingExtraError, match="--type hnsw needs the package faiss"):
        with_engine(IndexSettings(type=IndexType.HNSW))


@pytest.mark.parametrize("encodes", [True, False])
def test_what_is_no_index_of_vectors(tmp_path, encodes):
    def opened(folder, settings=SEARCH):
        return open_index([str(folder)], settings, CPU, encodes=encodes)

    (tmp_path / "docid").write_text("a\n")
    with pytest.raises(UsageError, match="has no manifest"):
        opened(tmp_path)
    (tmp_path / "index").write_bytes(b"IxFI and then nothing")
    with pytest.raises(InputError, match=r"flat index|cannot read"):
        opened(tmp_path)
    folder = flat(tmp_path, whole_numbers(8, 20))
    with pytest.raises(UsageError, match="--nprobe 9"):
        opened(folder, SearchSettings(nprobe=9))
    path = tmp_path / "i" / "index"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"521 bytes; expected 525|cannot read"):
        opened(folder)


COUNT, DIMENSION, DEPTH = 2000, 24, 100
RANKING = SearchSettings(hits=DEPTH, ties=Ties.KEEP)
KINDS = ("whole", "real")
IDS = [f"d{number}" for number in np.random.default_rng(5).permutation(COUNT).tolist()]
QIDS = [f"q{number}" for number in range(8)]


def drawn(kind, rows, seed):
    """Whole numbers, whose scores are exact and often equal, or real ones, whose are neither."""
    if kind == "whole":
        return whole_numbers(seed, rows, DIMENSION)
    return np.random.default_rng(seed).normal(size=(rows, DIMENSION)).astype(np.float32)


def right(kind):
    """The run, from every score in double precision."""
    scores = drawn(kind, len(QIDS), 2).astype(np.float64) @ drawn(kind, COUNT, 1).T
    ranked = [sorted(zip(line, IDS, strict=True), reverse=True)[:DEPTH] for line in scores]
    if kind == "real":  # no two are so close that rounding to float32 could swap them
        assert all(np.diff([score for score, _ in line]).max() < -1e-5 for line in ranked)
    else:  # a tie lies across the cut
        cuts = zip(ranked, scores, strict=True)
        assert sum(line[-1][0] == np.sort(s)[-1 - DEPTH] for line, s in cuts) > 1
    return [[docid for _, docid in line] for line in ranked]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", [*ENGINES, Engine.MILVUS, "vector folders"])
def test_exact_engines_rank_alike(tmp_path, engine, kind):
    vectors = drawn(kind, COUNT, 1)
    index: Any
    if engine == "vector folders":
        for number, rows in enumerate((slice(0, 700), slice(700, 2000))):
            vector_folder(tmp_path / f"{number}", IDS[rows], vectors[rows], block=128)
        shards = open_index([str(tmp_path / "*")], RANKING, CPU)
        index, ids = shards.index, shards.ids
    elif engine is Engine.MILVUS:
        require_milvus()
        load(write_vectors(tmp_path / "v.jsonl", IDS, vectors), tmp_path / "m.db")
        index = MilvusIndex(collection(tmp_path / "m.db"), RANKING)
        ids = index.names
    else:
        index, ids = open_flat(flat(tmp_path, vectors), engine), names_of(IDS)
    assert (len(index), index.dimension, index.is_exhaustive) == (COUNT, DIMENSION, True)
    ranked = found(Searcher(index, ids, RANKING), QIDS, drawn(kind, len(QIDS), 2))
    assert [[docid for docid, _ in ranked[qid]] for qid in QIDS] == right(kind)
    if engine is Engine.MILVUS:
        index.close()
