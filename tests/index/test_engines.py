"""The contract of an engine: every exact engine finds the same hits, in the same order."""

from typing import Any

import numpy as np
import pytest

from denserk.config.encoding import ComputeSettings
from denserk.config.retrieval import Engine, Metric, SearchSettings, Ties
from denserk.errors import InputError, UsageError
from denserk.index.milvus import MilvusIndex
from denserk.index.opening import OpenedIndex, open_index
from tests.index.folders import best, flat_folder, found, vector_folder, whole_numbers
from tests.milvus import collection, load, require_milvus, write_vectors

CPU = ComputeSettings(device="cpu", threads=1)
COUNT, DIMENSION, DEPTH = 3000, 24, 100  # enough rows and queries for the floors of a scan
RANKING = SearchSettings(hits=DEPTH, ties=Ties.KEEP)
IDS = [f"d{number}" for number in np.random.default_rng(5).permutation(COUNT).tolist()]
QIDS = [f"q{number}" for number in range(40)]


def opened(folder, settings=RANKING):
    return open_index([str(folder)], settings, CPU)


def test_what_is_no_index_of_vectors(tmp_path):
    (tmp_path / "docid").write_text("a\n")
    with pytest.raises(UsageError, match="has no manifest"):
        opened(tmp_path)
    (tmp_path / "index").write_bytes(b"IxFI and then nothing")
    with pytest.raises(InputError, match="flat index"):
        opened(tmp_path)
    (tmp_path / "index").write_bytes(b"IHNf and then nothing")
    with pytest.raises(InputError, match="cannot read"):
        opened(tmp_path)
    flat_folder(tmp_path / "i", IDS[:20], whole_numbers(8, 20))
    with pytest.raises(UsageError, match="--nprobe 9"):
        opened(tmp_path / "i", SearchSettings(nprobe=9))
    path = tmp_path / "i" / "index"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match="521 bytes; expected 525"):
        opened(tmp_path / "i")
    vector_folder(tmp_path / "v", [], np.empty((0, 6), np.float32))
    with pytest.raises(InputError, match="no vectors"):
        opened(tmp_path / "v")


def drawn(kind, rows, seed):
    """Whole numbers, whose scores are exact and often equal, or real ones, whose are neither."""
    if kind == "whole":
        return whole_numbers(seed, rows, DIMENSION)
    return np.random.default_rng(seed).normal(size=(rows, DIMENSION)).astype(np.float32)


@pytest.mark.parametrize("kind", ["whole", "real"])
@pytest.mark.parametrize("engine", ["flat", "flat l2", "vector folders", Engine.MILVUS])
def test_exact_engines_rank_alike(tmp_path, engine, kind):
    vectors, index = drawn(kind, COUNT, 1), None
    metric = Metric.L2 if engine == "flat l2" else Metric.INNER
    if engine == "vector folders":
        for number, rows in enumerate((slice(0, 700), slice(700, COUNT))):
            vector_folder(tmp_path / f"{number}", IDS[rows], vectors[rows], block=50)
        found_index = opened(tmp_path / "*")
    elif engine is Engine.MILVUS:
        require_milvus()
        load(write_vectors(tmp_path / "v.jsonl", IDS, vectors), tmp_path / "m.db")
        index = MilvusIndex(collection(tmp_path / "m.db"), RANKING)
        found_index = OpenedIndex(["m"], index, index.names, [index.manifest])
    else:
        found_index = opened(flat_folder(tmp_path / "i", IDS, vectors, metric=metric))
    engine_index: Any = found_index.index
    assert (len(engine_index), engine_index.dimension) == (COUNT, DIMENSION)
    assert engine_index.is_exhaustive
    queries = drawn(kind, len(QIDS), 2)
    ranked = found(found_index.searcher(RANKING), QIDS, queries)
    for qid, query in zip(QIDS, queries, strict=True):
        right = best(IDS, vectors, query, DEPTH, metric=metric)
        assert [docid for docid, _ in ranked[qid]] == [docid for docid, _ in right]
    if index:
        index.close()
