import os
import pickle

import numpy as np
import pytest

from denserk.errors import InputError, UsageError
from denserk.io.vector_block import VectorBlock
from denserk.io.vector_pickle import QUERIES_FILE, open_queries_sink, open_tevatron_sink, read
from denserk.io.vectors import read_vector_blocks

VECTORS = np.arange(6, dtype=np.float32).reshape(3, 2)
IDS = ["a", "b", "c"]


def write(path, value, protocol=4):
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        (VECTORS, IDS),
        [VECTORS, IDS],
        (VECTORS, np.array(IDS)),
        (VECTORS.astype(np.float64), tuple(IDS)),
        list(zip(IDS, VECTORS, strict=True)),
        [(np.str_(name), row.tolist()) for name, row in zip(IDS, VECTORS, strict=True)],
    ],
    ids=["tevatron", "list", "array-of-ids", "float64", "dpr", "dpr-scalars"],
)
def test_the_peers_forms_are_read_when_allowed(value, protocol, tmp_path):
    (block,) = read(write(tmp_path / "v.pkl", value, protocol))
    assert block.ids == IDS
    np.testing.assert_array_equal(block.vectors, VECTORS)


def test_two_pairs_are_no_array_with_ids(tmp_path):
    value = [("a", VECTORS[0]), ("b", VECTORS[1])]
    (block,) = read(write(tmp_path / "v.pkl", value))
    assert block.ids == ["a", "b"]


def test_nothing_is_unpickled_unless_asked_for_by_name(tmp_path):
    with pytest.raises(UsageError) as caught:
        read_vector_blocks(str(write(tmp_path / "v.pkl", (VECTORS, IDS))))
    assert "--allow-pickle" in str(caught.value.hint)


class Evil:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("call", [(os.system, "true"), (eval, "1"), (getattr, "x", "join")])
def test_even_then_it_may_call_nothing_but_constructors_of_arrays(call, tmp_path):
    where = write(tmp_path / "v.pkl", (VECTORS, [Evil(*call)]))
    with pytest.raises(InputError, match="which no array of vectors needs"):
        next(read(where))


@pytest.mark.parametrize(
    "value",
    [{"a": 1}, [1, 2], (VECTORS, ["a"]), ("a", "b", "c"), [("a", [1.0]), ("b", [1.0, 2.0])], 3],
)
def test_other_pickles_are_refused(value, tmp_path):
    with pytest.raises(InputError):
        list(read(write(tmp_path / "v.pkl", value)))


@pytest.mark.parametrize("data", [b"", b"\x80\x04", b"\x80\x04\x95junk", b"cos\n"])
def test_broken_pickles_are_refused(data, tmp_path):
    (tmp_path / "v.pkl").write_bytes(data)
    with pytest.raises(InputError, match="a broken pickle"):
        next(read(tmp_path / "v.pkl"))


def test_tevatrons_pickle_is_an_array_with_a_list(tmp_path):
    with open_tevatron_sink(tmp_path / "v.pkl") as append:
        append(VectorBlock(IDS[:1], VECTORS[:1]))
        append(VectorBlock(IDS[1:], VECTORS[1:]))
    vectors, ids = pickle.loads((tmp_path / "v.pkl").read_bytes())
    assert ids == IDS
    assert (vectors.dtype, vectors.tolist()) == (np.float32, VECTORS.tolist())


def test_encoded_queries_are_a_frame_of_plain_objects(tmp_path):
    pandas = pytest.importorskip("pandas")
    texts = ["one", "two", "three"]
    with open_queries_sink(tmp_path / "q", overwrite=False) as append:
        append(VectorBlock(IDS, VECTORS, texts))
    frame = pandas.read_pickle(tmp_path / "q" / QUERIES_FILE)
    assert list(frame.columns) == ["id", "text", "embedding"]
    assert set(map(str, frame.dtypes)) == {"object"}
    assert b"pyarrow" not in (tmp_path / "q" / QUERIES_FILE).read_bytes()
    (block,) = read(tmp_path / "q" / QUERIES_FILE)
    assert (block.ids, block.texts, block.vectors.tolist()) == (IDS, texts, VECTORS.tolist())


def test_encoded_queries_need_their_texts(tmp_path):
    pytest.importorskip("pandas")
    with (
        pytest.raises(UsageError, match="without texts"),
        open_queries_sink(tmp_path / "q", overwrite=False) as append,
    ):
        append(VectorBlock(IDS, VECTORS))
    assert list(tmp_path.iterdir()) == []
