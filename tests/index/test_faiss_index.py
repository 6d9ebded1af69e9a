"""What a search of faiss's inverted lists leaves in memory."""

from pathlib import Path

import numpy as np
import pytest

from denserk.index.faiss_building import build
from denserk.index.faiss_index import FaissIndex
from denserk.settings.retrieval import IndexSettings, SearchSettings

VECTORS = np.random.default_rng(0).standard_normal((5000, 16)).astype(np.float32)


def mapped_kib(path):
    """KiB of a file that this process maps and has in memory."""
    held, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line.split()[0].endswith(":"):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            held += int(line.split()[1])
    return held


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")
def test_a_search_lets_go_of_the_lists_that_it_visited(tmp_path, monkeypatch):
    path = tmp_path / "index"
    build(VECTORS, path, IndexSettings(factory="IVF8,Flat", threads=1))
    index = FaissIndex(path, SearchSettings(nprobe=8))
    for lists in index._mapped:
        lists.prefetch_nthread = 0  # threads that read ahead may read on after a search
    first = index.search(VECTORS[:3], 10)
    assert mapped_kib(path) == 0
    assert (index.search(VECTORS[:3], 10)[1] == first[1]).all()
    monkeypatch.setattr(index, "_let_go", lambda: None)
    index.search(VECTORS[:3], 10)
    assert mapped_kib(path) > 0
