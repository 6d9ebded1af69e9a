import io
import os
import pickle

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet

from denserk.config.encoding import VectorFormat
from denserk.errors import InputError, UsageError
from denserk.io import vector_formats as formats
from denserk.io.vector_formats import VectorBlock, checked_block, joined, write_vectors

VECTORS = np.arange(6, dtype=np.float32).reshape(3, 2)
IDS = ["a", "b", "c"]


def block(start, count):
    ids = [f"d{i}" for i in range(start, start + count)]
    vectors = np.arange(2 * start, 2 * (start + count), dtype=np.float32).reshape(-1, 2)
    return VectorBlock(ids, vectors, [f"text of {docid}" for docid in ids])


@pytest.mark.parametrize(
    ("ids", "vectors", "said"),
    [
        (["a", "b"], np.ones((1, 2)), "with 2 ids"),
        (["a"], np.ones((1, 0)), "shape (1, 0)"),
        (["a b"], np.ones((1, 2)), "'a b'"),
        ([None], np.ones((1, 2)), "null"),
        (["a"], np.array([["x"]]), "vectors of <U1"),
        (["a"], np.array([[np.nan]], "float32"), "a vector of a that is not finite"),
        (["a"], np.array([[1e300]]), "not finite in float32"),
    ],
)
def test_what_is_no_block_is_rejected(ids, vectors, said):
    with pytest.raises(InputError) as caught:
        checked_block(ids, vectors, None, "v")
    assert said in str(caught.value)
    assert checked_block(["a"], np.ones((1, 2), "int8"), None, "v").vectors.dtype == np.float32


@pytest.mark.parametrize(
    ("form", "queries", "line"),
    [
        ("jsonl", True, b'{"id":"d1","contents":"one","vector":[0.1,-2.0]}\n'),
        (
            VectorFormat.ANSERINI_JSONL,
            False,
            b'{"docid":"d1","contents":"one","vector":[0.1,-2.0]}\n',
        ),
        ("anserini-jsonl", True, b'{"qid":"d1","vector":[0.1,-2.0]}\n'),
    ],
)
def test_json_lines_are_the_peers(form, queries, line, tmp_path):
    vectors = np.array([[0.1, -2.0]], np.float32)
    blocks = [VectorBlock(["d1"], vectors, ["one"])]
    write_vectors(str(tmp_path / "v"), VectorFormat(form), blocks, queries=queries)
    assert (tmp_path / "v").read_bytes() == line
    (found,) = formats.read_json_file(tmp_path / "v")
    assert (found.ids, found.texts) == (["d1"], ["one"] if b"contents" in line else [""])
    np.testing.assert_array_equal(found.vectors, vectors)


def test_every_float32_survives_the_decimal_digits(tmp_path):
    bits = np.random.default_rng(0).integers(0, 2**32, (3000, 4), dtype=np.uint32)
    vectors = np.where(np.isfinite(bits.view(np.float32)), bits.view(np.float32), 1)
    block = VectorBlock([str(i) for i in range(3000)], vectors.astype(np.float32))
    formats.write_json_lines(tmp_path / "v", [block], "id")
    back = joined(list(formats.read_json_file(tmp_path / "v"))).vectors
    assert back.tobytes() == vectors.astype(np.float32).tobytes()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"id": "b"}', "line 2: found the keys id; expected id and vector"),
        (b'{"docid": "b", "vector": [1, 2]}', "line 2: found the keys docid, vector"),
        (b'{"id": "b", "vector": [1]}', "found a vector of 1 numbers; expected 2"),
        (b'{"id": "b", "vector": [1, null]}', "no list of numbers"),
        (b'{"id": "b", "vector": [[1], [2, 3]]}', "no list of numbers"),
        (b'{"id": "b", "vector": []}', "no list of numbers"),
        (b'{"id": "b", "vector": "AAAA"}', "no list of numbers"),
        (b'{"id": "b", "vector": [1e39, 1]}', "a vector of b that is not finite"),
        (b"[1]", "line 2: found JSON list"),
    ],
)
def test_broken_json_lines(line, said):
    with pytest.raises(InputError) as caught:
        list(formats.read_json_lines(io.BytesIO(b'{"id": "a", "vector": [1, 2]}\n' + line), "v"))
    assert said in str(caught.value)


def test_parquet_files_have_anserinis_columns_and_at_most_so_many_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "ROWS_A_FILE", 4)
    first = block(0, 3)._replace(vectors=block(0, 3).vectors.astype(np.float16))
    blocks = [first, block(3, 1), block(4, 2), block(6, 3)]
    formats.write_parquet(tmp_path / "v", blocks, overwrite=False)
    files = sorted((tmp_path / "v").glob("*.parquet"))
    assert [file.name for file in files] == [f"part-0000{i}.parquet" for i in range(3)]
    assert [parquet.read_metadata(file).num_rows for file in files] == [4, 2, 3]
    assert [(field.name, str(field.type)) for field in parquet.read_table(files[0]).schema] == [
        ("docid", "string"),
        ("vector", "list<element: float>"),
    ]
    back = joined([part for file in files for part in formats.read_parquet(file)])
    assert back.ids == block(0, 9).ids
    np.testing.assert_array_equal(back.vectors, block(0, 9).vectors)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"docid": ["a"], "text": ["b"]}, "found columns docid, text; expected docid and vector"),
        ({"docid": ["a", "b"], "vector": [[1.0], [1.0, 2.0]]}, "all the expected size"),
        ({"docid": ["a", "b"], "vector": [[1.0], None]}, "with 2 ids"),
        ({"docid": ["a", "b"], "vector": [None, [1.0]]}, "expected Parquet with vectors"),
        ({"docid": ["a"], "vector": [[1.0, None]]}, "not finite"),
        ({"docid": ["a"], "vector": [["x"]]}, "vectors of object"),
        ({"docid": ["a"], "vector": [1.0]}, "expected Parquet with vectors"),
    ],
)
def test_other_columns_are_rejected(columns, said, tmp_path):
    parquet.write_table(arrow.table(columns), tmp_path / "v.parquet")
    with pytest.raises(InputError) as caught:
        list(formats.read_parquet(tmp_path / "v.parquet"))
    assert said in str(caught.value)


def test_doubles_are_read_and_a_cut_file_is_rejected(tmp_path):
    where = tmp_path / "v.parquet"
    parquet.write_table(arrow.table({"id": [1], "vector": [[0.5, 1.0]], "contents": ["t"]}), where)
    (only,) = formats.read_parquet(where)
    assert (only.ids, only.vectors.tolist(), only.texts) == (["1"], [[0.5, 1.0]], ["t"])
    where.write_bytes(where.read_bytes()[:-20])
    with pytest.raises(InputError, match="a broken file"):
        list(formats.read_parquet(where))


def flat(folder):
    blocks = VectorBlock(IDS[:2], VECTORS[:2]), VectorBlock(IDS[2:], VECTORS[2:].astype(np.float16))
    formats.write_flat(folder, blocks, overwrite=False)


def test_only_flat_indexes_hold_vectors(tmp_path):
    faiss = pytest.importorskip("faiss")
    flat(tmp_path / "v")
    assert (tmp_path / "v" / "docid").read_text("utf-8") == "a\nb\nc\n"
    (found,) = formats.read_flat(tmp_path / "v")
    assert (found.ids, found.vectors.tolist()) == (IDS, VECTORS.tolist())
    graph = faiss.index_factory(2, "HNSW4,Flat", faiss.METRIC_INNER_PRODUCT)
    graph.add(VECTORS)
    faiss.write_index(graph, str(tmp_path / "v" / "index"))
    with pytest.raises(InputError, match="a flat index"):
        list(formats.read_flat(tmp_path / "v"))


@pytest.mark.parametrize("ids", ["a\n", "a\nb\nc\nd\n", "a\nb\nc d\n"])
def test_an_id_for_each_vector(ids, tmp_path):
    flat(tmp_path / "v")
    (tmp_path / "v" / "docid").write_text(ids)
    with pytest.raises(InputError):
        list(formats.read_flat(tmp_path / "v"))


def pickled(path, value, protocol=4):
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        (VECTORS, IDS),
        (VECTORS, np.array(IDS)),
        (VECTORS.astype(np.float64), tuple(IDS)),
        list(zip(IDS, VECTORS, strict=True)),
        [(np.str_(name), row.tolist()) for name, row in zip(IDS, VECTORS, strict=True)],
    ],
    ids=["tevatron", "array-of-ids", "float64", "dpr", "dpr-scalars"],
)
def test_the_peers_pickles_are_read(value, protocol, tmp_path):
    (found,) = formats.read_pickle(pickled(tmp_path / "v.pkl", value, protocol))
    assert found.ids == IDS
    np.testing.assert_array_equal(found.vectors, VECTORS)


class Evil:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("call", [(os.system, "true"), (eval, "1"), (getattr, "x", "join")])
def test_a_pickle_may_call_nothing_but_constructors_of_arrays(call, tmp_path):
    where = pickled(tmp_path / "v.pkl", (VECTORS, [Evil(*call)]))
    with pytest.raises(InputError, match="which no array of vectors needs"):
        next(formats.read_pickle(where))


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80\x04", b"\x80\x04\x95junk", b"cos\n"]
    + [
        pickle.dumps(value)
        for value in (
            *({"a": 1}, [1, 2], (VECTORS, ["a"]), (VECTORS, 5), ("a", "b", "c"), 3),
            [("a", [1.0]), ("b", [1.0, 2.0])],
        )
    ],
)
def test_other_pickles_are_rejected(data, tmp_path):
    (tmp_path / "v.pkl").write_bytes(data)
    with pytest.raises(InputError):
        list(formats.read_pickle(tmp_path / "v.pkl"))


def test_tevatrons_pickle_is_an_array_with_a_list(tmp_path):
    blocks = [VectorBlock(IDS[:1], VECTORS[:1]), VectorBlock(IDS[1:], VECTORS[1:])]
    formats.write_tevatron(tmp_path / "v.pkl", blocks)
    vectors, ids = pickle.loads((tmp_path / "v.pkl").read_bytes())
    assert ids == IDS
    assert (vectors.dtype, vectors.tolist()) == (np.float32, VECTORS.tolist())


def test_pyserinis_queries_are_a_frame_of_plain_objects_with_texts(tmp_path):
    pandas = pytest.importorskip("pandas")
    texts = ["one", "two", "three"]
    blocks = [VectorBlock(IDS, VECTORS, texts)]
    formats.write_pyserini_queries(tmp_path / "q", blocks, overwrite=False)
    where = tmp_path / "q" / "embedding.pkl"
    frame = pandas.read_pickle(where)
    assert list(frame.columns) == ["id", "text", "embedding"]
    assert set(map(str, frame.dtypes)) == {"object"}
    assert b"pyarrow" not in where.read_bytes()
    (found,) = formats.read_pickle(where)
    assert (found.ids, found.texts, found.vectors.tolist()) == (IDS, texts, VECTORS.tolist())
    without = [VectorBlock(IDS, VECTORS)]
    with pytest.raises(UsageError, match="without texts"):
        formats.write_pyserini_queries(tmp_path / "none", without, overwrite=False)
    assert not (tmp_path / "none").exists()
