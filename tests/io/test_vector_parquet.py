import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet

from denserk.errors import InputError
from denserk.io import vector_parquet
from denserk.io.vector_block import VectorBlock
from denserk.io.vector_parquet import open_sink, read


def block(count):
    ids = [f"d{i}" for i in range(count)]
    return VectorBlock(ids, np.arange(2 * count, dtype=np.float32).reshape(-1, 2))


def test_files_hold_so_many_rows_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(vector_parquet, "ROWS_A_FILE", 4)
    with open_sink(tmp_path / "v", overwrite=False) as append:
        append(block(6))
        append(block(3))
    files = sorted((tmp_path / "v").glob("*.parquet"))
    assert [file.name for file in files] == [f"part-0000{i}.parquet" for i in range(3)]
    assert [parquet.read_metadata(file).num_rows for file in files] == [4, 4, 1]
    back = [part for file in files for part in read(file)]
    ids = [docid for part in back for docid in part.ids]
    assert ids == [*block(6).ids, *block(3).ids]
    expected = np.concatenate([block(6).vectors, block(3).vectors])
    np.testing.assert_array_equal(np.concatenate([part.vectors for part in back]), expected)


def test_the_columns_are_anserinis(tmp_path):
    with open_sink(tmp_path / "v", overwrite=False) as append:
        append(block(2)._replace(vectors=block(2).vectors.astype(np.float16)))
    table = parquet.read_table(tmp_path / "v" / "part-00000.parquet")
    assert [(f.name, str(f.type)) for f in table.schema] == [
        ("docid", "string"),
        ("vector", "list<element: float>"),
    ]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"docid": ["a"], "text": ["b"]}, "found columns docid, text; expected docid and vector"),
        ({"docid": ["a", "b"], "vector": [[1.0], [1.0, 2.0]]}, "vectors of 1, 2 numbers"),
        ({"docid": ["a", "b"], "vector": [[1.0], None]}, "vectors of 1, None numbers"),
        ({"docid": ["a"], "vector": [[1.0, None]]}, "a vector with a hole"),
        ({"docid": ["a"], "vector": [["x"]]}, "numbers"),
        ({"docid": ["a"], "vector": [1.0]}, "vectors of double"),
        ({"docid": ["a b"], "vector": [[1.0]]}, "'a b'"),
    ],
)
def test_other_columns_are_refused(columns, told, tmp_path):
    parquet.write_table(arrow.table(columns), tmp_path / "v.parquet")
    with pytest.raises(InputError) as caught:
        list(read(tmp_path / "v.parquet"))
    assert told in str(caught.value)


def test_doubles_are_taken_and_a_cut_file_is_refused(tmp_path):
    where = tmp_path / "v.parquet"
    parquet.write_table(arrow.table({"id": [1], "vector": [[0.5, 1.0]], "contents": ["t"]}), where)
    (only,) = read(where)
    assert (only.ids, only.vectors.tolist(), only.texts) == (["1"], [[0.5, 1.0]], ["t"])
    where.write_bytes(where.read_bytes()[:-20])
    with pytest.raises(InputError, match="a broken file"):
        list(read(where))
