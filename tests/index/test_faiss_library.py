"""Which kernels faiss's BLAS is told to use, seen from a process of its own."""

import os
import subprocess
import sys

import pytest

from denserk.index import faiss_library
from denserk.index.faiss_library import CORE, _has_avx512, load_faiss

pytest.importorskip("faiss")


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
    monkeypatch.setattr(faiss_library, "_has_avx512", lambda: avx512)
    monkeypatch.setattr(faiss_library, "require", lambda *_: met.append(os.environ.get(CORE)))
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
        "from denserk.index.faiss_library import load_faiss; load_faiss()\n"
        "from threadpoolctl import threadpool_info\n"
        "print([d['architecture'] for d in threadpool_info() if 'faiss' in d['filepath']"
        " and d['internal_api'] == 'openblas'])"
    )
    pytest.importorskip("threadpoolctl")
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() in ("['SkylakeX']", "[]")
