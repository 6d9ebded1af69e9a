"""Rows of many files by name, whatever was looked up before; ids that stand for two passages."""

import numpy as np
import pytest

from denserk.errors import MismatchError
from denserk.index.index_folder import part_names
from denserk.index.shards import IdFile, ShardIds


def files_of(folder, *shards, size=1):
    """Two shards whose files have a line a passage, the last one `size` of them."""
    files = []
    for number, ids in enumerate(shards):
        lines = size if number == len(shards) - 1 else 1
        path = folder / f"{number}.docid"
        path.write_text("".join(f"{line}\n" for docid in ids for line in part_names(docid, lines)))
        files.append(IdFile(f"shard-{number}", path, len(ids), lines))
    return files


@pytest.mark.parametrize("size", [1, 2, 12])
def test_rows_by_name(tmp_path, size):
    ids = ["a", "ü#3", "c" * 90, "d", "e"]
    named = ShardIds(files_of(tmp_path, ids[:2], [], ids[2:], size=size), size)
    assert len(named) == 5 * size
    assert list(named) == [docid for docid in ids for _ in range(size)]
    rows = np.array([5 * size - 1, 0, 2 * size])
    assert named.passages(rows) == ["e", "a", "c" * 90]
    assert named.passages(np.array([size])) == ["ü#3"]


def test_an_id_for_two_passages(tmp_path):
    alike = ["12345678-aaa-12345678", "12345678-bbb-12345678"]  # they have one key, and are two ids
    named = ShardIds(files_of(tmp_path, alike, ["x", "y"], ["x", "z", "z"]))
    assert named.passages(np.array([1, 0])) == alike[::-1]
    with pytest.raises(MismatchError, match="the id x stands in shard-1 and in shard-2"):
        named.passages(np.array([2, 4]))
    with pytest.raises(MismatchError, match="the id z stands twice in shard-2"):
        named.passages(np.array([5, 6]))
