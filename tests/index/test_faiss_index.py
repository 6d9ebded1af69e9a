"""What a search of inverted lists leaves in memory, and the BLAS kernels that faiss loads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from denserk.commands.app import run
from denserk.config.retrieval import IndexSettings, SearchSettings
from denserk.index import faiss_index
from denserk.index.faiss_building import build
from denserk.index.faiss_index import CORE, FaissIndex, _has_avx512, load_faiss
from denserk.io.runs import read_run_scores

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


@pytest.mark.parametrize(
    ("told", "has"),
    [("flags\t: fpu avx2 avx512f sse\n", True), ("flags\t: fpu avx2\n", False), ("", False)],
)
def test_what_linux_tells_of_the_processor(tmp_path, told, has):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{told}")
    assert _has_avx512(tmp_path / "cpuinfo") is has
    assert _has_avx512(tmp_path / "absent") is False


@pytest.mark.parametrize(
    ("avx512", "given", "seen"),
    [(True, None, "SkylakeX"), (True, "Zen", "Zen"), (False, None, None)],
)
def test_the_widest_kernels_unless_the_user_says_otherwise(monkeypatch, avx512, given, seen):
    met = []
    monkeypatch.setattr(faiss_index, "_has_avx512", lambda: avx512)
    monkeypatch.setattr(faiss_index, "require", lambda *_: met.append(os.environ.get(CORE)))
    monkeypatch.delenv(CORE, raising=False)
    if given:
        monkeypatch.setenv(CORE, given)
    load_faiss.cache_clear()
    load_faiss()
    load_faiss.cache_clear()
    assert met == [seen]
    assert os.environ.get(CORE) == given


@pytest.mark.skipif(not _has_avx512(), reason="no AVX-512")
def test_openblas_takes_the_hint():
    script = (
        "from denserk.index.faiss_index import load_faiss; load_faiss()\n"
        "from threadpoolctl import threadpool_info\n"
        "print([d['architecture'] for d in threadpool_info() if 'faiss' in d['filepath']"
        " and d['internal_api'] == 'openblas'])"
    )
    pytest.importorskip("threadpoolctl")
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() in ("['SkylakeX']", "[]")


def denserk(*words):
    """Run one command, which must succeed."""
    assert run([str(word) for word in words]) == 0


@pytest.mark.parametrize("factory", ["PQ4x4,RFlat", "IVF8,PQ4x4,RFlat", "PQ4x4,Refine(SQfp16)"])
def test_a_refined_index_finds_more(tmp_path, factory, capsys):
    random = np.random.default_rng(3)
    for name, count in (("v", 2000), ("q", 50)):
        with (tmp_path / f"{name}.jsonl").open("w") as out:
            for number, vector in enumerate(random.normal(size=(count, 16)).tolist()):
                out.write(json.dumps({"id": f"{name}{number}", "vector": vector}) + "\n")
    recalls: list[float] = []
    for made in (factory.rpartition(",")[0], factory):
        folder = tmp_path / str(len(recalls))
        denserk("index", "--input", tmp_path / "v.jsonl", "--factory", made, "--output", folder)
        manifest = json.loads((folder / "manifest.json").read_text())
        recalls.append(manifest["contents"]["recall"])
    assert recalls[1] > recalls[0] + 0.1
    denserk("index", "--input", tmp_path / "v.jsonl", "--output", tmp_path / "flat")
    encoded = ["--encoded-queries", tmp_path / "q.jsonl", "-k", 10]
    shared = []
    right = None
    for options in (
        ["--index", tmp_path / "flat"],
        ["--index", tmp_path / "1", "--set", f"k-factor={1}"],
        ["--index", tmp_path / "1"],
        ["--index", tmp_path / "1", "--set", f"k-factor={16}"],
    ):
        denserk("search", *encoded, *options, "--output", tmp_path / "run.trec", "--overwrite")
        found = read_run_scores(tmp_path / "run.trec")
        right = right or found
        shared.append(sum(len(set(found[qid]) & set(right[qid])) for qid in right))
    assert shared[1] < shared[2] <= shared[3] <= shared[0]
    capsys.readouterr()
    for folder in ("flat", "0"):
        asked = ["search", *encoded, "--index", tmp_path / folder, "--set", f"k-factor={2}"]
        assert run([str(word) for word in [*asked, "--output", tmp_path / "none"]]) == 2
        assert "--set k-factor 2" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
