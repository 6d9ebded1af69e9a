import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.data.token_store import (
    HEADER,
    ArrayReader,
    ArrayWriter,
    Ragged,
    RaggedWriter,
    open_array,
)

LISTS = st.lists(st.lists(st.integers(0, 65535), max_size=5), max_size=8)


@given(st.lists(LISTS, max_size=4))
def test_lists_come_back(tmp_path_factory, blocks):
    folder = tmp_path_factory.mktemp("ragged")
    writer = RaggedWriter(folder, "lists", np.uint16)
    for block in blocks:
        writer.extend(block)
    lists = [values for block in blocks for values in block]
    assert (writer.count, writer.values) == (len(lists), sum(map(len, lists)))
    writer.close()
    ragged = Ragged(folder, "lists")
    assert [ragged[row].tolist() for row in range(len(ragged))] == lists
    assert ragged.values.dtype == np.uint16


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32", "S16"])
@pytest.mark.parametrize("count", [0, 3, 100_000])
def test_arrays_are_plain_npy(tmp_path, dtype, count):
    values = np.arange(count).astype(dtype)
    writer = ArrayWriter(tmp_path / "a.npy", dtype)
    for part in np.array_split(values, 3):
        writer.append(part)
    writer.close()
    assert (tmp_path / "a.npy").stat().st_size == HEADER + values.nbytes
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), values)
    np.testing.assert_array_equal(open_array(tmp_path / "a.npy"), values)
    reader = ArrayReader(tmp_path / "a.npy")
    first, rest, nothing = reader.read(2), reader.read(count), reader.read(1)
    reader.close()
    np.testing.assert_array_equal(np.concatenate([first, rest]), values)
    assert len(nothing) == 0


def test_a_mapped_array_is_no_copy(tmp_path):
    writer = ArrayWriter(tmp_path / "a.npy", np.int64)
    writer.append([1, 2, 3])
    writer.close()
    assert not open_array(tmp_path / "a.npy").flags.owndata
