"""The contract of an engine: every exact engine finds the same hits, in the same order."""

from typing import Any

import numpy as np
import pytest

from denserk.config.encoding import ComputeSettings
from denserk.config.retrieval import Engine, SearchSettings, Ties
from denserk.errors import InputError, UsageError
from denserk.index import opening
from denserk.index.exact import ExactIndex
from denserk.index.milvus import MilvusIndex
from denserk.index.opening import open_index
from denserk.index.searcher import Searcher
from tests.index.folders import (
    best,
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


def flat(folder, vectors):
    return flat_folder(folder / "i", map(str, range(len(vectors))), vectors)


def test_without_faiss_torch_searches_the_same_folder(tmp_path, monkeypatch):
    vectors, queries = whole_numbers(8, 20), whole_numbers(9, 2)
    monkeypatch.setattr(opening, "installed", lambda module: False)
    opened = open_index([flat(tmp_path, vectors)], SEARCH, CPU, encodes=False)
    assert isinstance(opened.index, ExactIndex)
    ranked = found(opened.searcher(SearchSettings(hits=5, ties=Ties.KEEP)), ["a", "b"], queries)
    ids = list(map(str, range(20)))
    assert list(ranked.values()) == [best(ids, vectors, query, 5) for query in queries]


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
IDS = [f"d{number}" for number in np.random.default_rng(5).permutation(COUNT).tolist()]
QIDS = [f"q{number}" for number in range(8)]


def drawn(kind, rows, seed):
    """Whole numbers, whose scores are exact and often equal, or real ones, whose are neither."""
    if kind == "whole":
        return whole_numbers(seed, rows, DIMENSION)
    return np.random.default_rng(seed).normal(size=(rows, DIMENSION)).astype(np.float32)


@pytest.mark.parametrize("kind", ["whole", "real"])
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
    queries = drawn(kind, len(QIDS), 2)
    ranked = found(Searcher(index, ids, RANKING), QIDS, queries)
    for qid, query in zip(QIDS, queries, strict=True):
        right = best(IDS, vectors, query, DEPTH)
        assert [docid for docid, _ in ranked[qid]] == [docid for docid, _ in right]
    if engine is Engine.MILVUS:
        index.close()
