from pathlib import Path

import numpy as np
import pytest

from denserk.errors import OutputError
from denserk.index import faiss_building, inverted_lists
from denserk.index.faiss_building import build
from denserk.index.faiss_index import FaissIndex
from denserk.index.inverted_lists import ListsOnDisk
from denserk.settings.retrieval import IndexSettings, Metric, SearchSettings

faiss = pytest.importorskip("faiss")
VECTORS = np.random.default_rng(3).normal(size=(3000, 8)).astype(np.float32)
LISTS = ["IVF9,Flat", "IVF9,PQ4x4", "PCA4,IVF9_HNSW4,SQ8", "PCA4,IVF9,PQ2x4np"]
OTHERS = ["HNSW4,Flat", "PQ4x4", "IVF9,PQ4x4fs", "IVF9,SQ8,RFlat"]


@pytest.fixture
def small(monkeypatch):
    """A run every 500 vectors or so, joined a few lists at a time."""
    monkeypatch.setattr(faiss_building, "ADD_ROWS", 250)
    monkeypatch.setattr(inverted_lists, "HELD_BYTES", 5_000)
    monkeypatch.setattr(inverted_lists, "LIST_BYTES", 0)
    monkeypatch.setattr(inverted_lists, "JOINED_BYTES", 1_000)


def settings_for(factory, metric=Metric.INNER):
    return IndexSettings(factory=factory, metric=metric, threads=1)


@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("factory", LISTS)
def test_lists_that_were_put_aside_give_the_bytes_of_faiss(tmp_path, small, factory, metric):
    build(VECTORS, tmp_path / "i", settings_for(factory, metric))
    assert [item.name for item in tmp_path.iterdir()] == ["i"]
    whole = faiss.read_index(str(tmp_path / "i"))
    assert whole.ntotal == len(VECTORS)
    whole.reset()
    whole.add(VECTORS)
    assert faiss.serialize_index(whole).tobytes() == (tmp_path / "i").read_bytes()


@pytest.mark.parametrize("filled", [1, 4, 5, 9])
def test_empty_lists_are_told_as_faiss_tells_them(tmp_path, small, filled):
    index = faiss.index_factory(8, "IVF9,Flat")
    index.train(VECTORS)
    centroids = index.quantizer.reconstruct_n(0, filled)
    rows = np.repeat(centroids, 60, axis=0)
    lists = ListsOnDisk(index, tmp_path / "i")
    for first in range(0, len(rows), 20):
        lists.add(rows[first : first + 20])
    with (tmp_path / "i").open("wb") as handle:
        written = lists.write(handle)
    assert written == (len(rows) * (32 + 8) >= 5_000)
    lists.close()
    index.reset()
    index.add(rows)
    if written:
        assert (tmp_path / "i").read_bytes() == faiss.serialize_index(index).tobytes()


@pytest.mark.parametrize("factory", [*LISTS, *OTHERS])
def test_which_indexes_have_nothing_but_lists_that_grow(factory):
    index = faiss.index_factory(8, factory)
    assert ListsOnDisk.spillable(index) == (factory in LISTS)


@pytest.mark.parametrize("factory", [*LISTS, *OTHERS[1:]])
def test_lists_stay_in_their_file_when_searched_and_the_folder_may_move(tmp_path, small, factory):
    (tmp_path / "a").mkdir()
    build(VECTORS, tmp_path / "a" / "i", settings_for(factory))
    (tmp_path / "a").rename(tmp_path / "b")
    moved = FaissIndex(tmp_path / "b" / "i", SearchSettings())
    whole = faiss.read_index(str(tmp_path / "b" / "i"))
    if factory.startswith(("IVF", "PCA")):
        ivf = faiss.extract_index_ivf(whole)
        ivf.nprobe = max(1, ivf.nlist // 16)
    scores, rows = whole.search(VECTORS[:20], 5)
    found, at = moved.search(VECTORS[:20], 5)
    np.testing.assert_array_equal(found, np.where(rows < 0, -np.inf, scores))
    assert [set(line) for line in at.tolist()] == [set(line) for line in rows.tolist()]
    if factory in LISTS:
        assert str(tmp_path / "b" / "i") in Path("/proc/self/maps").read_text()


def test_a_disk_that_takes_no_run(tmp_path, small, monkeypatch):
    monkeypatch.setattr(
        ListsOnDisk, "_held", lambda lists: np.full(lists._ivf.nlist, 10**6, np.int64)
    )
    with pytest.raises(OutputError, match="the disk took only a part"):
        build(VECTORS, tmp_path / "i", settings_for("IVF9,Flat"))
    assert not list(tmp_path.iterdir())
