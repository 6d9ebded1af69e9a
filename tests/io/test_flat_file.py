import numpy as np
import pytest

from denserk.config.retrieval import Metric
from denserk.errors import InputError
from denserk.io.vector_formats import flat_header, is_flat, map_flat, write_flat

IDS = [f"d{n}" for n in range(10)]
ROWS = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)


def test_rows_come_back(tmp_path):
    path = tmp_path / "index"
    assert write_flat(path, Metric.L2, [(IDS[:3], ROWS[:3]), (IDS[3:], ROWS[3:])]) == (10, 4)
    assert (tmp_path / "docid").read_text().split() == IDS
    assert is_flat(path)
    assert map_flat(path)[1] is Metric.L2
    np.testing.assert_array_equal(map_flat(path)[0], ROWS)


@pytest.mark.parametrize("metric", Metric)
def test_it_is_faiss_own_byte_for_byte(metric, tmp_path):
    faiss = pytest.importorskip("faiss")
    write_flat(tmp_path / "index", metric, [(IDS[:3], ROWS[:3]), (IDS[3:], ROWS[3:])])
    index = faiss.IndexFlatIP(4) if metric is Metric.INNER else faiss.IndexFlatL2(4)
    index.add(ROWS)
    assert (tmp_path / "index").read_bytes() == faiss.serialize_index(index).tobytes()


@pytest.mark.parametrize("data", [b"IxFI", b"IHNf" + bytes(60)])
def test_other_files_are_rejected(data, tmp_path):
    (tmp_path / "index").write_bytes(data)
    with pytest.raises(InputError, match="expected a flat index"):
        map_flat(tmp_path / "index")


def test_a_file_larger_than_the_memory_is_mapped(tmp_path):
    count = (1 << 40) // (4 * 1024)  # 1 TiB, all of it a hole
    with (tmp_path / "index").open("wb") as out:
        out.write(flat_header(Metric.INNER, 1024, count))
        try:
            out.truncate(out.tell() + (1 << 40))
        except OSError:
            pytest.skip("this file system has no files of that size")
    rows, _ = map_flat(tmp_path / "index")
    assert rows.shape == (count, 1024)
    assert rows[-1].max() == 0
