"""The contract of an engine: what the exact torch engine answers, every exact engine answers."""

import numpy as np
import pytest
import torch

from denserk.config.retrieval import Engine, IndexSettings, IndexType, Metric, SearchSettings
from denserk.errors import InputError, MismatchError, UsageError
from denserk.index import opening
from denserk.index.exact import ExactIndex
from denserk.index.opening import chosen_engine, open_vector_index
from denserk.io.flat_file import FlatWriter

ENGINES = [Engine.TORCH, Engine.FAISS]
SEARCH = SearchSettings()


def whole_numbers(seed, rows, dimension=6):
    """Small whole numbers: inner products are exact in float32, in any order, and often equal."""
    return np.random.default_rng(seed).integers(-3, 4, (rows, dimension)).astype(np.float32)


def write_flat(folder, vectors, metric=Metric.INNER):
    folder.mkdir(exist_ok=True)
    with (folder / "index").open("wb") as handle:
        writer = FlatWriter(handle, metric)
        writer.add(vectors)
        writer.finish()
    return folder


def by_hand(vectors, queries, depth, metric=Metric.INNER, size=1):
    """Every (score, row) of a query sorted, the best of each passage, cut."""
    results = []
    for query in queries:
        hits = []
        for row, vector in enumerate(vectors):
            score = query @ vector if metric is Metric.INNER else -((query - vector) ** 2).sum()
            hits.append((float(score), row))
        hits.sort(key=lambda hit: (-hit[0], hit[1]))
        first: dict[int, tuple[float, int]] = {}
        for score, row in hits:
            first.setdefault(row // size, (score, row))
        results.append(list(first.values())[:depth])
    return results


def hits(result):
    return [
        [(s, r) for s, r in zip(scores, rows, strict=True) if r >= 0]
        for scores, rows in zip(result[0].tolist(), result[1].tolist(), strict=True)
    ]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize(
    ("rows", "depth"), [(50, 1), (50, 7), (50, 50), (50, 80), (1, 3), (2500, 9)]
)
def test_exact_engines_give_the_right_answer(tmp_path, engine, metric, rows, depth):
    vectors, queries = whole_numbers(1, rows), whole_numbers(2, 25)
    folder = write_flat(tmp_path / "i", vectors, metric)
    index = open_vector_index(folder, engine, SEARCH)
    scores, found = index.search(queries, depth)
    assert (scores.dtype.name, found.dtype.name) == ("float32", "int64")
    assert scores.shape == found.shape == (25, depth)
    assert (scores[:, rows:] == -np.inf).all()
    assert (found[:, rows:] == -1).all()
    everything = by_hand(vectors, queries, rows, metric)
    for hit, all_hits in zip(hits((scores, found)), everything, strict=True):
        right = all_hits[:depth]
        assert [score for score, _ in hit] == [score for score, _ in right]
        cut = right[-1][0]  # which of the equal ones at the cut come back is the engine's choice
        assert [h for h in hit if h[0] > cut] == [h for h in right if h[0] > cut]
        assert set(hit) <= set(all_hits)
        if engine is Engine.TORCH:
            assert hit == right
    assert (len(index), index.dimension, index.is_exhaustive) == (rows, 6, True)


@pytest.mark.parametrize("engine", ENGINES)
def test_real_numbers_agree_within_rounding(tmp_path, engine):
    random = np.random.default_rng(3)
    vectors = random.normal(size=(400, 32)).astype(np.float32)
    queries = random.normal(size=(30, 32)).astype(np.float32)
    scores, rows = open_vector_index(write_flat(tmp_path / "i", vectors), engine, SEARCH).search(
        queries, 10
    )
    exact = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    assert (rows == np.argsort(-exact, axis=1)[:, :10]).all()
    np.testing.assert_allclose(scores, -np.sort(-exact, axis=1)[:, :10], rtol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_several_vectors_a_passage(size):
    vectors, queries = whole_numbers(4, 40), whole_numbers(5, 3)
    index = ExactIndex(vectors, vectors_per_passage=size)
    for depth in (1, 4, 60):
        assert hits(index.search(queries, depth)) == by_hand(vectors, queries, depth, size=size)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("depth", [5, 3000])
def test_exact_engines_on_a_gpu(tmp_path, engine, depth):
    vectors, queries = whole_numbers(6, 4000), whole_numbers(7, 8)
    index = open_vector_index(write_flat(tmp_path / "i", vectors), engine, SEARCH, device="cuda")
    found = hits(index.search(queries, depth))
    right = by_hand(vectors, queries, depth)
    assert [[s for s, _ in row] for row in found] == [[s for s, _ in row] for row in right]


def test_without_faiss_torch_serves_the_same_folder(tmp_path, monkeypatch):
    vectors, queries = whole_numbers(8, 20), whole_numbers(9, 2)
    folder = write_flat(tmp_path / "i", vectors)
    monkeypatch.setattr(opening, "installed", lambda module: False)
    index = open_vector_index(folder, Engine.FAISS, SEARCH)
    assert isinstance(index, ExactIndex)
    assert hits(index.search(queries, 5)) == by_hand(vectors, queries, 5)
    assert chosen_engine(IndexSettings()) is Engine.TORCH


@pytest.mark.parametrize("option", [{"ef_search": 9}, {"nprobe": 9}])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_breadth_that_a_flat_index_lacks_is_refused(tmp_path, engine, option):
    folder = write_flat(tmp_path / "i", whole_numbers(8, 20))
    with pytest.raises(UsageError, match=r"--(ef-search|nprobe) 9"):
        open_vector_index(folder, engine, SearchSettings(**option))


def test_what_is_no_index_of_vectors_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no file index"):
        open_vector_index(tmp_path, Engine.TORCH, SEARCH)
    with pytest.raises(MismatchError, match="BM25"):
        open_vector_index(tmp_path, Engine.BM25S, SEARCH)
    (tmp_path / "index").write_bytes(b"IxFI and then nothing")
    with pytest.raises(InputError, match="flat index"):
        open_vector_index(tmp_path, Engine.TORCH, SEARCH)
    with pytest.raises(InputError, match="cannot read"):
        open_vector_index(tmp_path, Engine.FAISS, SEARCH)


def test_a_flat_file_cut_short_is_refused_by_its_size(tmp_path):
    folder = write_flat(tmp_path / "i", whole_numbers(8, 20))
    whole = (folder / "index").read_bytes()
    (folder / "index").write_bytes(whole[:-4])
    with pytest.raises(InputError, match="521 bytes; expected 525"):
        open_vector_index(folder, Engine.TORCH, SEARCH)


def test_types_choose_their_engine():
    assert chosen_engine(IndexSettings(type=IndexType.BM25)) is Engine.BM25S
    assert chosen_engine(IndexSettings(type=IndexType.HNSW)) is Engine.FAISS
    assert chosen_engine(IndexSettings(engine=Engine.TORCH)) is Engine.TORCH
