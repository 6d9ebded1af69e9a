import numpy as np
import pytest

from denserk.errors import InputError, MismatchError
from denserk.io.block_journal import JOURNAL, Block
from denserk.io.manifest import Kind, Manifest
from denserk.io.vector_folder import VectorFolderWriter, open_vectors

MANIFEST = Manifest(Kind.VECTORS, complete=False, settings={"block_size": 2})
IDS = [["a", "b"], ["c"], ["d"]]
VECTORS = [
    np.array(rows, np.float32) for rows in ([[1, 2, 3], [4, 5, 6]], [[7, 8, 9]], [[0, 0, 1]])
]


def write(folder, numbers=(0, 1), *, finish=True, dtype="float32"):
    folder.mkdir(exist_ok=True)
    writer = VectorFolderWriter(folder, MANIFEST, dtype)
    for number in numbers:
        if number not in writer.finished:
            block = Block(number, len(IDS[number]), f"sha{number}")
            writer.write(block, IDS[number], VECTORS[number])
    if finish:
        writer.finish({"dimension": 3})
    return folder


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_round_trip(tmp_path, dtype):
    folder = open_vectors(write(tmp_path / "v", dtype=dtype))
    assert (folder.count, folder.dimension, folder.vectors_per_passage) == (3, 3, 1)
    for (ids, vectors), expected_ids, expected in zip(folder.blocks(), IDS, VECTORS, strict=False):
        assert ids == expected_ids
        assert vectors.dtype == dtype
        assert isinstance(vectors, np.memmap)
        np.testing.assert_array_equal(vectors, expected)


def test_an_unfinished_folder_is_refused_and_can_be_continued(tmp_path):
    folder = write(tmp_path / "v", (0,), finish=False)
    with pytest.raises(MismatchError, match="unfinished"):
        open_vectors(folder)
    with (folder / JOURNAL).open("ab") as journal:
        journal.write(b'{"number":1,"cou')  # killed in the middle of a line
    (folder / ".block-00001.npy.0123abcd.part").write_bytes(b"half")
    continued = write(folder)
    whole = write(tmp_path / "whole")
    assert {f.name: f.read_bytes() for f in continued.iterdir()} == {
        f.name: f.read_bytes() for f in whole.iterdir()
    }


def test_what_float16_cannot_hold_is_rejected(tmp_path):
    writer = VectorFolderWriter(tmp_path, MANIFEST, "float16")
    with pytest.raises(InputError, match="vector of a that is not finite in float16"):
        writer.write(Block(0, 1, ""), ["a"], np.array([[1e6]], np.float32))


def test_a_gap_is_told(tmp_path):
    folder = write(tmp_path / "v", (0, 2))
    with pytest.raises(MismatchError, match="lacks blocks between 0 and 2"):
        open_vectors(folder)
