import numpy as np
import pytest

from denserk.errors import InputError
from denserk.formats.vector_block import VectorBlock
from denserk.formats.vector_faiss import open_sink, read

VECTORS = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
IDS = ["d1", "d2", "d10", "é", "d5"]


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


def test_what_is_written_is_read(tmp_path):
    write(tmp_path / "v", VECTORS.astype(np.float16))
    (block,) = read(tmp_path / "v")
    assert block.ids == IDS
    np.testing.assert_array_equal(block.vectors, VECTORS.astype(np.float16))


@pytest.mark.parametrize("ids", ["d1\n", "d1\nd2\nd3\nd4\nd5\nd6\n", "d1\nd2\nd 3\nd4\nd5\n"])
def test_an_id_for_each_vector(ids, tmp_path):
    write(tmp_path / "v")
    (tmp_path / "v" / "docid").write_text(ids)
    with pytest.raises(InputError):
        list(read(tmp_path / "v"))


def test_other_indexes_do_not_hold_their_vectors(tmp_path):
    faiss = pytest.importorskip("faiss")
    write(tmp_path / "v")
    index = faiss.index_factory(3, "HNSW4,Flat", faiss.METRIC_INNER_PRODUCT)
    index.add(VECTORS)
    faiss.write_index(index, str(tmp_path / "v" / "index"))
    with pytest.raises(InputError, match="a flat index"):
        list(read(tmp_path / "v"))
