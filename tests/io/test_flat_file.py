import io
from pathlib import Path

import numpy as np
import pytest

from denserk.config.retrieval import Metric
from denserk.errors import InputError
from denserk.io.flat_file import (
    HEADER,
    FlatRows,
    FlatWriter,
    is_flat,
    map_flat,
    open_sink,
    read_folder,
)
from denserk.io.vector_block import VectorBlock

VECTORS = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
IDS = ["d1", "d2", "d10", "é", "d5"]
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize("metric", Metric)
def test_what_is_written_block_by_block_is_mapped(metric, tmp_path):
    with (tmp_path / "index").open("wb") as handle:
        writer = FlatWriter(handle, metric)
        writer.add(ROWS[:3].astype(np.float16))
        writer.add(ROWS[3:])
        writer.finish()
    assert HEADER.size == 45
    assert (tmp_path / "index").stat().st_size == 45 + ROWS.nbytes
    assert is_flat(tmp_path / "index")
    rows, found = map_flat(tmp_path / "index")
    assert found is metric
    np.testing.assert_array_equal(rows, ROWS)


@pytest.mark.parametrize("metric", Metric)
def test_faiss_reads_it(metric, tmp_path):
    faiss = pytest.importorskip("faiss")
    memory = io.BytesIO()
    writer = FlatWriter(memory, metric)
    writer.add(ROWS)
    writer.finish()
    index = faiss.deserialize_index(np.frombuffer(memory.getvalue(), np.uint8))
    np.testing.assert_array_equal(index.reconstruct_n(0, 4), ROWS)
    inner = metric is Metric.INNER
    assert index.metric_type == (faiss.METRIC_INNER_PRODUCT if inner else faiss.METRIC_L2)


@pytest.mark.parametrize("data", [b"", b"IxFI", b"IHNf" + bytes(60)])
def test_other_files_are_refused(data, tmp_path):
    (tmp_path / "index").write_bytes(data)
    with pytest.raises(InputError, match="expected a flat index"):
        map_flat(tmp_path / "index")


def test_a_file_larger_than_the_memory_is_mapped(tmp_path):
    count = (1 << 40) // (4 * 1024)  # 1 TiB, all of it a hole
    with (tmp_path / "index").open("wb") as out:
        out.write(HEADER.pack(b"IxFI", 1024, count, 0, 0, True, 0, count * 1024))
        try:
            out.truncate(HEADER.size + (1 << 40))
        except OSError:
            pytest.skip("this file system has no files of that size")
    rows, _ = map_flat(tmp_path / "index")
    assert rows.shape == (count, 1024)
    assert rows[-1].max() == 0


@pytest.mark.parametrize("part", [slice(0, 3), slice(2, 99), slice(None), slice(9, 9)])
def test_rows_read_without_a_mapping(tmp_path, part):
    rows = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    with (tmp_path / "index").open("wb") as handle:
        writer = FlatWriter(handle, Metric.L2)
        writer.add(rows)
        writer.finish()
    stored = FlatRows(tmp_path / "index")
    assert (len(stored), stored.shape, stored.metric) == (10, (10, 4), Metric.L2)
    np.testing.assert_array_equal(stored[part], rows[part])
    np.testing.assert_array_equal(stored[np.array([0, 4, 9])], rows[[0, 4, 9]])
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def write(folder, vectors=VECTORS):
    with open_sink(folder, overwrite=False) as append:
        append(VectorBlock(IDS[:2], vectors[:2]))
        append(VectorBlock(IDS[2:], vectors[2:]))


def test_the_file_is_faiss_own_byte_for_byte(tmp_path):
    faiss = pytest.importorskip("faiss")
    write(tmp_path / "v")
    index = faiss.IndexFlatIP(3)
    index.add(VECTORS)
    faiss.write_index(index, str(tmp_path / "expected"))
    assert (tmp_path / "v" / "index").read_bytes() == (tmp_path / "expected").read_bytes()
    assert (tmp_path / "v" / "docid").read_text("utf-8") == "d1\nd2\nd10\né\nd5\n"


def test_what_is_written_is_read_folder(tmp_path):
    write(tmp_path / "v", VECTORS.astype(np.float16))
    (block,) = read_folder(tmp_path / "v")
    assert block.ids == IDS
    np.testing.assert_array_equal(block.vectors, VECTORS.astype(np.float16))


@pytest.mark.parametrize("ids", ["d1\n", "d1\nd2\nd3\nd4\nd5\nd6\n", "d1\nd2\nd 3\nd4\nd5\n"])
def test_an_id_for_each_vector(ids, tmp_path):
    write(tmp_path / "v")
    (tmp_path / "v" / "docid").write_text(ids)
    with pytest.raises(InputError):
        list(read_folder(tmp_path / "v"))


def test_other_indexes_do_not_hold_their_vectors(tmp_path):
    faiss = pytest.importorskip("faiss")
    write(tmp_path / "v")
    index = faiss.index_factory(3, "HNSW4,Flat", faiss.METRIC_INNER_PRODUCT)
    index.add(VECTORS)
    faiss.write_index(index, str(tmp_path / "v" / "index"))
    with pytest.raises(InputError, match="a flat index"):
        list(read_folder(tmp_path / "v"))
