import io
import os
import pickle
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet

from denserk.config.encoding import VectorFormat
from denserk.config.retrieval import Metric
from denserk.errors import DenserkError, InputError, MismatchError, UsageError
from denserk.io import vector_formats as formats
from denserk.io.blocks import Block
from denserk.io.manifest import Kind, Manifest
from denserk.io.outputs import JOURNAL
from denserk.io.vector_formats import VectorBlock, write_vectors
from denserk.io.vectors import VectorFolderWriter, open_vectors, read_vector_blocks
from tests.support.console import warnings_of
from tests.support.faults import contents
from tests.support.peers import run_pyserini

IDS = [f"d{i}" for i in range(1500)]
TEXTS = [f"text of {docid}" for docid in IDS]
VECTORS = np.random.default_rng(7).standard_normal((1500, 4)).astype(np.float32)
WRITTEN_FORMATS = [name for name in VectorFormat if name is not VectorFormat.NPY]


def write(output, vector_format, vectors=VECTORS):
    """Write the vectors in two blocks."""
    blocks = [
        VectorBlock(IDS[:1000], vectors[:1000], TEXTS[:1000]),
        VectorBlock(IDS[1000:], vectors[1000:], TEXTS[1000:]),
    ]
    assert write_vectors(str(output), vector_format, blocks) == len(IDS)


def ids_and_vectors(source):
    ids = []
    vectors = []
    for block in source.blocks():
        ids += block.ids
        vectors.append(block.vectors)
    return ids, np.concatenate(vectors)


@pytest.mark.parametrize("vector_format", WRITTEN_FORMATS)
def test_what_is_written_is_read_and_its_format_reported(vector_format, tmp_path, caplog):
    write(tmp_path / "v", vector_format)
    caplog.clear()
    source = read_vector_blocks(str(tmp_path / "v"), allow_pickle=True)
    ids, vectors = ids_and_vectors(source)
    assert ids == IDS
    np.testing.assert_array_equal(vectors, VECTORS)
    assert caplog.messages == [f"{tmp_path / 'v'}: vectors in format {source.format_name}"]
    ids, _ = ids_and_vectors(source)
    assert ids == IDS, "a source can be read again"


@pytest.mark.parametrize("vector_format", WRITTEN_FORMATS)
def test_a_writer_stopped_in_the_middle_leaves_nothing(vector_format, tmp_path):
    vectors = VECTORS.copy()
    vectors[1200, 0] = np.nan
    with pytest.raises(InputError, match="d1200"):
        write(tmp_path / "v", vector_format, vectors)
    assert list(tmp_path.iterdir()) == []


def test_one_warning_of_vectors_for_lucene_that_are_not_normalised(tmp_path, caplog):
    unit = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    write(tmp_path / "unit", VectorFormat.ANSERINI_JSONL, unit)
    write(tmp_path / "v", VectorFormat.ANSERINI_JSONL, 3 * unit)
    (warning,) = warnings_of(caplog)
    assert "has a vector of length 3; " in warning


def test_json_lines_go_through_pipes(monkeypatch):
    pipe = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=pipe))
    write("-", VectorFormat.JSONL)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(pipe.getvalue())))
    ids, vectors = ids_and_vectors(read_vector_blocks("-"))
    assert ids == IDS
    np.testing.assert_array_equal(vectors, VECTORS)
    with pytest.raises(UsageError, match="parquet cannot be written to standard output"):
        write("-", VectorFormat.PARQUET)


def test_several_files_of_one_format_are_read_by_name(tmp_path):
    blocks = {
        "b.jsonl": VectorBlock(IDS[2:4], VECTORS[2:4]),
        "a.jsonl.gz": VectorBlock(IDS[:2], VECTORS[:2]),
    }
    for name, block in blocks.items():
        write_vectors(str(tmp_path / name), VectorFormat.JSONL, [block])
    ids, _ = ids_and_vectors(read_vector_blocks(str(tmp_path)))
    assert ids == IDS[:4]
    np.save(tmp_path / "c.npy", VECTORS)
    (tmp_path / "c.npy").rename(tmp_path / "c")
    with pytest.raises(InputError, match="files of JSON lines and array; expected one format"):
        read_vector_blocks(str(tmp_path))


def test_a_bare_array_is_numbered(tmp_path):
    np.save(tmp_path / "doc.npy", VECTORS.astype(np.float16))
    ids, vectors = ids_and_vectors(read_vector_blocks(str(tmp_path / "doc.npy")))
    assert ids == [str(i) for i in range(1500)]
    assert vectors.dtype == np.float16


@pytest.mark.peer
@pytest.mark.slow
def test_pyserini_searches_them_with_encoded_queries(tmp_path):
    write(tmp_path / "flat", VectorFormat.PYSERINI_FAISS)
    write(tmp_path / "lines" / "v.jsonl", VectorFormat.JSONL)
    queries = VectorBlock(["q0", "q1"], VECTORS[:2], ["first", "second"])
    write_vectors(str(tmp_path / "queries"), VectorFormat.PYSERINI_QUERIES, [queries])
    printed = run_pyserini(
        """
import runpy, sys
from pyserini.encode import QueryEncoder
from pyserini.search.faiss import FaissSearcher
sys.argv = ["index", "--input", "lines", "--output", "built", "--dim", "4"]
runpy.run_module("pyserini.index.faiss", run_name="__main__")
for folder in ("flat", "built"):
    searcher = FaissSearcher(folder, QueryEncoder("queries"))
    for text in ("first", "second"):
        print("found", *(hit.docid for hit in searcher.search(text, 3)))
""",
        folder=tmp_path,
    )
    hits = [line.split()[1:] for line in printed.splitlines() if line.startswith("found")]
    scores = VECTORS[:2] @ VECTORS.T
    best_rows = np.argsort(-scores, axis=1, kind="stable")[:, :3]
    best_ids = np.array(IDS)[best_rows].tolist()
    assert hits == [*best_ids, *best_ids]  # in either folder


# what other toolkits write and read

FEW = np.arange(6, dtype=np.float32).reshape(3, 2)
ABC = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("vector_format", "queries", "line"),
    [
        ("jsonl", True, b'{"id":"d1","contents":"one","vector":[0.1,-2.0]}\n'),
        ("anserini-jsonl", False, b'{"docid":"d1","contents":"one","vector":[0.1,-2.0]}\n'),
        ("anserini-jsonl", True, b'{"qid":"d1","vector":[0.1,-2.0]}\n'),
    ],
)
def test_json_lines_are_those_of_the_toolkits(vector_format, queries, line, tmp_path):
    blocks = [VectorBlock(["d1"], np.array([[0.1, -2.0]], np.float32), ["one"])]
    write_vectors(str(tmp_path / "v"), VectorFormat(vector_format), blocks, queries=queries)
    assert (tmp_path / "v").read_bytes() == line
    (block,) = formats.read_json_lines(tmp_path / "v")
    assert block.ids == ["d1"]
    assert block.texts == (["one"] if b"contents" in line else [""])


def test_every_float32_survives_the_decimal_digits(tmp_path):
    bits = np.random.default_rng(0).integers(0, 2**32, (1500, 4), dtype=np.uint32)
    vectors = bits.view(np.float32)
    vectors[~np.isfinite(vectors)] = 1
    write(tmp_path / "v", VectorFormat.JSONL, vectors)
    _, read = ids_and_vectors(read_vector_blocks(str(tmp_path / "v")))
    assert read.tobytes() == vectors.tobytes()


def test_parquet_has_anserinis_columns_and_doubles_are_read(tmp_path):
    write(tmp_path / "v", VectorFormat.PARQUET, VECTORS.astype(np.float16))
    schema = parquet.read_table(tmp_path / "v" / "part-00000.parquet").schema
    columns = [(field.name, str(field.type)) for field in schema]
    assert columns == [("docid", "string"), ("vector", "list<element: float>")]
    path = tmp_path / "v.parquet"
    parquet.write_table(arrow.table({"id": [1], "vector": [[0.5, 1.0]], "contents": ["t"]}), path)
    (block,) = formats.read_parquet(path)
    assert block.ids == ["1"]
    assert block.vectors.tolist() == [[0.5, 1.0]]
    assert block.texts == ["t"]


@pytest.mark.parametrize("protocol", [0, 5])
@pytest.mark.parametrize(
    "value",
    [
        (FEW, np.array(ABC)),
        (FEW.astype(np.float64), tuple(ABC)),
        list(zip(ABC, FEW, strict=True)),
        [(np.str_(name), row.tolist()) for name, row in zip(ABC, FEW, strict=True)],
    ],
    ids=["tevatron", "float64", "dpr", "dpr-scalars"],
)
def test_pickles_of_other_toolkits_are_read(value, protocol, tmp_path):
    (tmp_path / "v.pkl").write_bytes(pickle.dumps(value, protocol=protocol))
    (block,) = formats.read_pickle(tmp_path / "v.pkl")
    assert block.ids == ABC
    np.testing.assert_array_equal(block.vectors, FEW)


def test_tevatrons_pickle_is_an_array_with_a_list(tmp_path):
    write(tmp_path / "v.pkl", VectorFormat.TEVATRON)
    vectors, ids = pickle.loads((tmp_path / "v.pkl").read_bytes())
    assert ids == IDS
    assert vectors.tobytes() == VECTORS.tobytes()


def test_pyserinis_queries_are_a_frame_of_plain_objects_with_texts(tmp_path):
    pandas = pytest.importorskip("pandas")
    texts = ["one", "two", "three"]
    pyserini = VectorFormat.PYSERINI_QUERIES
    write_vectors(str(tmp_path / "q"), pyserini, [VectorBlock(ABC, FEW, texts)])
    path = tmp_path / "q" / "embedding.pkl"
    frame = pandas.read_pickle(path)
    assert list(frame.columns) == ["id", "text", "embedding"]
    assert set(map(str, frame.dtypes)) == {"object"}
    assert b"pyarrow" not in path.read_bytes()
    (block,) = formats.read_pickle(path)
    assert (block.ids, block.texts, block.vectors.tolist()) == (ABC, texts, FEW.tolist())
    with pytest.raises(UsageError, match="without texts"):
        write_vectors(str(tmp_path / "none"), pyserini, [VectorBlock(ABC, FEW)])


# what is rejected


class Evil:
    """An object that calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.function = function
        self.arguments = arguments

    def __reduce__(self):
        return self.function, self.arguments


def parquet_of(**columns):
    file = io.BytesIO()
    parquet.write_table(arrow.table(columns), file)
    return file.getvalue()


START = b'{"id": "a", "vector": [1, 2]}\n'
EVIL = [Evil(os.system, "true"), Evil(eval, "1"), Evil(getattr, "x", "join")]
NO_VECTORS = [
    {"a": 1},
    (FEW, ["a"]),
    (FEW, 5),
    (np.float32(1), "a"),
    (np.array(1), "a"),
    [("a", [1.0]), ("b", [1.0, 2.0])],
]
BROKEN = [
    (b"", "an empty file"),
    (b"text\n", "a file that begins"),
    (b"\x93NUMPY\x01", "a broken file"),
    (START + b'{"docid": "b", "vector": [1, 2]}', "line 2: found the keys docid, vector; exp.* id"),
    (START + b'{"id": "b", "vector": [1]}', r"line 2: found the vector \[1\]; expected a list of"),
    (START + b'{"id": "b", "vector": [1, null]}', "expected a list of 2 numbers"),
    (START + b'{"id": "b", "vector": [[1], [2, 3]]}', "expected a list of 2 numbers"),
    (START + b'{"id": "b", "vector": [1e39, 1]}', "a vector of b that is not finite"),
    (
        parquet_of(docid=["a"], text=["b"]),
        "found columns docid, text; expected docid and vector",
    ),
    (parquet_of(docid=["a", "b"], vector=[[1.0], [1.0, 2.0]]), "vectors of one length"),
    (parquet_of(docid=["a"], vector=[[1.0, None]]), "not finite"),
    (parquet_of(docid=["a"], vector=[["x"]]), "vectors of object"),
    (parquet_of(docid=["a"], vector=[1.0]), "one vector an id"),
    (parquet_of(docid=["a"], vector=[[1.0]])[:-20], "a broken file"),
    (b"\x80\x04\x95junk", "a broken pickle"),
    *[(pickle.dumps(value), "broken pickle|array of shape") for value in NO_VECTORS],
    *[(pickle.dumps((FEW, [docid])), "which no array of vectors needs") for docid in EVIL],
]


@pytest.mark.parametrize(("data", "message"), BROKEN)
def test_broken_files_are_rejected(data, message, tmp_path):
    (tmp_path / "v").write_bytes(data)
    with pytest.raises(InputError, match=message):
        list(read_vector_blocks(str(tmp_path / "v"), allow_pickle=True).blocks())
    if data.startswith(b"\x80"):
        with pytest.raises(UsageError, match="pickles: programs, not data"):
            read_vector_blocks(str(tmp_path / "v"))


@pytest.mark.parametrize("ids", ["a\n", "a\nb\nc\nd\n", None])
def test_broken_folders_are_rejected(ids, tmp_path):
    folder = str(tmp_path / "v")
    write_vectors(folder, VectorFormat.PYSERINI_FAISS, [VectorBlock(ABC, FEW)])
    if ids is None:
        (tmp_path / "v" / "index").rename(tmp_path / "v" / "notes.txt")
    (tmp_path / "v" / "docid").write_text(ids or "")
    with pytest.raises(DenserkError):
        list(read_vector_blocks(folder).blocks())


# flat indexes


@pytest.mark.parametrize("metric", Metric)
def test_a_flat_index_is_read_back_and_is_faiss_own_byte_for_byte(metric, tmp_path):
    path = tmp_path / "index"
    blocks = [(ABC[:1], FEW[:1]), (ABC[1:], FEW[1:])]
    assert formats.write_flat(path, metric, blocks) == FEW.shape
    rows, read_metric = formats.map_flat(path)
    assert rows.tolist() == FEW.tolist()
    assert read_metric == metric
    assert (tmp_path / "docid").read_text().split() == ABC
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexFlatIP(2) if metric is Metric.INNER else faiss.IndexFlatL2(2)
    index.add(FEW)
    assert path.read_bytes() == faiss.serialize_index(index).tobytes()


@pytest.mark.parametrize("data", [b"IxFI", b"IHNf" + bytes(60)])
def test_other_files_are_no_flat_index(data, tmp_path):
    (tmp_path / "index").write_bytes(data)
    with pytest.raises(InputError, match="expected a flat index"):
        formats.map_flat(tmp_path / "index")


# denserk's own folder

MANIFEST = Manifest(Kind.VECTORS, complete=False, settings={"block_size": 2})
BLOCKS = [
    VectorBlock(["a", "b"], np.array([[1, 2, 3], [4, 5, 6]], np.float32)),
    VectorBlock(["c"], np.array([[7, 8, 9]], np.float32)),
]


def write_folder(folder, numbers=(0, 1), *, finish=True, dtype="float32"):
    """Write blocks by number, unless an earlier call has written them."""
    folder.mkdir(exist_ok=True)
    writer = VectorFolderWriter(folder, MANIFEST, dtype)
    for number in numbers:
        if number not in writer.finished:
            ids, vectors, _ = BLOCKS[number]
            writer.write(Block(number, len(ids), f"sha{number}"), ids, vectors)
    if finish:
        writer.finish({"dimension": 3})
    return folder


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_folder_round_trip(tmp_path, dtype):
    folder = open_vectors(write_folder(tmp_path / "v", dtype=dtype))
    assert (folder.manifest.contents["count"], folder.dimension) == (3, 3)
    assert folder.vectors_per_passage == 1
    ids, vectors = ids_and_vectors(folder)
    assert ids == ["a", "b", "c"]
    assert vectors.dtype == dtype
    assert vectors.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_an_unfinished_folder_is_rejected_and_can_be_resumed(tmp_path):
    folder = write_folder(tmp_path / "v", (0,), finish=False)
    with pytest.raises(MismatchError, match="unfinished"):
        open_vectors(folder)
    with (folder / JOURNAL).open("ab") as journal:
        journal.write(b'{"number":1,"cou')  # killed in the middle of a line
    (folder / ".block-00001.npy.0123abcd.part").write_bytes(b"half")
    resumed = write_folder(folder)
    uninterrupted = write_folder(tmp_path / "uninterrupted")
    assert contents(resumed) == contents(uninterrupted)


def test_what_float16_cannot_hold_is_rejected(tmp_path):
    writer = VectorFolderWriter(tmp_path, MANIFEST, "float16")
    with pytest.raises(InputError, match="vector of a that is not finite in float16"):
        writer.write(Block(0, 1, ""), ["a"], np.array([[1e6]], np.float32))
