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
from denserk.io.blocks import JOURNAL, Block
from denserk.io.manifest import Kind, Manifest
from denserk.io.vector_formats import VectorBlock, write_vectors
from denserk.io.vectors import VectorFolderWriter, open_vectors, read_vector_blocks
from tests.support.console import warnings_of
from tests.support.faults import contents
from tests.support.peers import run_pyserini

IDS = [f"d{i}" for i in range(1500)]
TEXTS = [f"text of {docid}" for docid in IDS]
VECTORS = np.random.default_rng(7).standard_normal((1500, 4)).astype(np.float32)
WRITERS = [form for form in VectorFormat if form is not VectorFormat.NPY]


def write(output, form, vectors=VECTORS, ids=IDS, texts=TEXTS, **options):
    halves = (slice(0, 1000), slice(1000, None))
    blocks = [VectorBlock(ids[rows], vectors[rows], texts[rows]) for rows in halves]
    assert write_vectors(str(output), form, blocks, **options) == len(ids)


def gathered(source):
    blocks = list(source.blocks())
    return [d for b in blocks for d in b.ids], np.concatenate([b.vectors for b in blocks])


@pytest.mark.parametrize("form", WRITERS)
def test_what_is_written_is_read_and_its_format_reported(form, tmp_path, caplog):
    write(tmp_path / "v", form)
    caplog.clear()
    source = read_vector_blocks(str(tmp_path / "v"), allow_pickle=True)
    ids, vectors = gathered(source)
    assert ids == IDS
    np.testing.assert_array_equal(vectors, VECTORS)
    assert caplog.messages == [f"{tmp_path / 'v'}: vectors in format {source.format_name}"]
    assert gathered(source)[0] == IDS, "a source can be read again"


@pytest.mark.parametrize("form", WRITERS)
def test_a_writer_stopped_in_the_middle_leaves_nothing(form, tmp_path):
    bad = VECTORS.copy()
    bad[1200, 0] = np.nan
    with pytest.raises(InputError, match="d1200"):
        write(tmp_path / "v", form, bad)
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
    ids, vectors = gathered(read_vector_blocks("-"))
    assert ids == IDS
    np.testing.assert_array_equal(vectors, VECTORS)
    with pytest.raises(UsageError, match="parquet cannot be written to standard output"):
        write("-", VectorFormat.PARQUET)


def test_several_files_of_one_format_are_read_by_name(tmp_path):
    for name, rows in (("b.jsonl", slice(2, 4)), ("a.jsonl.gz", slice(0, 2))):
        block = VectorBlock(IDS[rows], VECTORS[rows])
        write_vectors(str(tmp_path / name), VectorFormat.JSONL, [block])
    assert gathered(read_vector_blocks(str(tmp_path)))[0] == IDS[:4]
    np.save(tmp_path / "c.npy", VECTORS)
    (tmp_path / "c.npy").rename(tmp_path / "c")
    with pytest.raises(InputError, match="files of JSON lines and array; expected one format"):
        read_vector_blocks(str(tmp_path))


def test_a_bare_array_is_numbered(tmp_path):
    np.save(tmp_path / "doc.npy", VECTORS.astype(np.float16))
    ids, vectors = gathered(read_vector_blocks(str(tmp_path / "doc.npy")))
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
    found = [line.split()[1:] for line in printed.splitlines() if line.startswith("found")]
    order = np.argsort(-(VECTORS[:2] @ VECTORS.T), axis=1, kind="stable")[:, :3]
    assert found == [[IDS[row] for row in rows] for rows in order] * 2


# what other toolkits write and read

FEW = np.arange(6, dtype=np.float32).reshape(3, 2)
ABC = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("form", "queries", "line"),
    [
        ("jsonl", True, b'{"id":"d1","contents":"one","vector":[0.1,-2.0]}\n'),
        ("anserini-jsonl", False, b'{"docid":"d1","contents":"one","vector":[0.1,-2.0]}\n'),
        ("anserini-jsonl", True, b'{"qid":"d1","vector":[0.1,-2.0]}\n'),
    ],
)
def test_json_lines_are_those_of_the_toolkits(form, queries, line, tmp_path):
    blocks = [VectorBlock(["d1"], np.array([[0.1, -2.0]], np.float32), ["one"])]
    write_vectors(str(tmp_path / "v"), VectorFormat(form), blocks, queries=queries)
    assert (tmp_path / "v").read_bytes() == line
    (found,) = formats.read_json_lines(tmp_path / "v")
    assert (found.ids, found.texts) == (["d1"], ["one"] if b"contents" in line else [""])


def test_every_float32_survives_the_decimal_digits(tmp_path):
    bits = np.random.default_rng(0).integers(0, 2**32, (1500, 4), dtype=np.uint32)
    vectors = np.where(np.isfinite(bits.view(np.float32)), bits.view(np.float32), 1)
    write(tmp_path / "v", VectorFormat.JSONL, vectors.astype(np.float32))
    _, back = gathered(read_vector_blocks(str(tmp_path / "v")))
    assert back.tobytes() == vectors.astype(np.float32).tobytes()


def test_parquet_has_anserinis_columns_and_doubles_are_read(tmp_path):
    write(tmp_path / "v", VectorFormat.PARQUET, VECTORS.astype(np.float16))
    schema = parquet.read_table(tmp_path / "v" / "part-00000.parquet").schema
    found = [(field.name, str(field.type)) for field in schema]
    assert found == [("docid", "string"), ("vector", "list<element: float>")]
    where = tmp_path / "v.parquet"
    parquet.write_table(arrow.table({"id": [1], "vector": [[0.5, 1.0]], "contents": ["t"]}), where)
    (only,) = formats.read_parquet(where)
    assert (only.ids, only.vectors.tolist(), only.texts) == (["1"], [[0.5, 1.0]], ["t"])


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
    (found,) = formats.read_pickle(tmp_path / "v.pkl")
    assert found.ids == ABC
    np.testing.assert_array_equal(found.vectors, FEW)


def test_tevatrons_pickle_is_an_array_with_a_list(tmp_path):
    write(tmp_path / "v.pkl", VectorFormat.TEVATRON)
    vectors, ids = pickle.loads((tmp_path / "v.pkl").read_bytes())
    assert ids == IDS
    assert vectors.tobytes() == VECTORS.tobytes()


def test_pyserinis_queries_are_a_frame_of_plain_objects_with_texts(tmp_path):
    pandas = pytest.importorskip("pandas")
    form, texts = VectorFormat.PYSERINI_QUERIES, ["one", "two", "three"]
    write_vectors(str(tmp_path / "q"), form, [VectorBlock(ABC, FEW, texts)])
    where = tmp_path / "q" / "embedding.pkl"
    frame = pandas.read_pickle(where)
    assert list(frame.columns) == ["id", "text", "embedding"]
    assert set(map(str, frame.dtypes)) == {"object"}
    assert b"pyarrow" not in where.read_bytes()
    (found,) = formats.read_pickle(where)
    assert (found.ids, found.texts, found.vectors.tolist()) == (ABC, texts, FEW.tolist())
    with pytest.raises(UsageError, match="without texts"):
        write_vectors(str(tmp_path / "none"), form, [VectorBlock(ABC, FEW)])


# what is rejected


class Evil:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def table(**columns):
    file = io.BytesIO()
    parquet.write_table(arrow.table(columns), file)
    return file.getvalue()


START = b'{"id": "a", "vector": [1, 2]}\n'
EVIL = [(os.system, "true"), (eval, "1"), (getattr, "x", "join")]
PICKLES = (
    {"a": 1},
    (FEW, ["a"]),
    (FEW, 5),
    (np.float32(1), "a"),
    (np.array(1), "a"),
    [("a", [1.0]), ("b", [1.0, 2.0])],
)
BROKEN = [
    (b"", "an empty file"),
    (b"text\n", "a file that begins"),
    (b"\x93NUMPY\x01", "a broken file"),
    (START + b'{"docid": "b", "vector": [1, 2]}', "line 2: found the keys docid, vector; exp.* id"),
    (START + b'{"id": "b", "vector": [1]}', r"line 2: found the vector \[1\]; expected a list of"),
    (START + b'{"id": "b", "vector": [1, null]}', "expected a list of 2 numbers"),
    (START + b'{"id": "b", "vector": [[1], [2, 3]]}', "expected a list of 2 numbers"),
    (START + b'{"id": "b", "vector": [1e39, 1]}', "a vector of b that is not finite"),
    (table(docid=["a"], text=["b"]), "found columns docid, text; expected docid and vector"),
    (table(docid=["a", "b"], vector=[[1.0], [1.0, 2.0]]), "vectors of one length"),
    (table(docid=["a"], vector=[[1.0, None]]), "not finite"),
    (table(docid=["a"], vector=[["x"]]), "vectors of object"),
    (table(docid=["a"], vector=[1.0]), "one vector an id"),
    (table(docid=["a"], vector=[[1.0]])[:-20], "a broken file"),
    (b"\x80\x04\x95junk", "a broken pickle"),
    *((pickle.dumps(value), "broken pickle|array of shape") for value in PICKLES),
    *((pickle.dumps((FEW, [Evil(*call)])), "which no array of vectors needs") for call in EVIL),
]


@pytest.mark.parametrize(("data", "said"), BROKEN)
def test_broken_files_are_rejected(data, said, tmp_path):
    (tmp_path / "v").write_bytes(data)
    with pytest.raises(InputError, match=said):
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
    path, blocks = tmp_path / "index", [(ABC[:1], FEW[:1]), (ABC[1:], FEW[1:])]
    assert formats.write_flat(path, metric, blocks) == FEW.shape
    rows, found = formats.map_flat(path)
    assert (rows.tolist(), found) == (FEW.tolist(), metric)
    assert (tmp_path / "docid").read_text().split() == ABC
    faiss = pytest.importorskip("faiss")
    index = (faiss.IndexFlatIP if metric is Metric.INNER else faiss.IndexFlatL2)(2)
    index.add(FEW)
    assert path.read_bytes() == faiss.serialize_index(index).tobytes()


@pytest.mark.parametrize("data", [b"IxFI", b"IHNf" + bytes(60)])
def test_other_files_are_no_flat_index(data, tmp_path):
    (tmp_path / "index").write_bytes(data)
    with pytest.raises(InputError, match="expected a flat index"):
        formats.map_flat(tmp_path / "index")


# denserk's own folder

MANIFEST = Manifest(Kind.VECTORS, complete=False, settings={"block_size": 2})
BLOCKS = [(["a", "b"], [[1, 2, 3], [4, 5, 6]]), (["c"], [[7, 8, 9]])]


def write_folder(folder, numbers=(0, 1), *, finish=True, dtype="float32"):
    folder.mkdir(exist_ok=True)
    writer = VectorFolderWriter(folder, MANIFEST, dtype)
    for number in numbers:
        if number not in writer.finished:
            ids, rows = BLOCKS[number]
            writer.write(Block(number, len(ids), f"sha{number}"), ids, np.array(rows, np.float32))
    if finish:
        writer.finish({"dimension": 3})
    return folder


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_folder_round_trip(tmp_path, dtype):
    folder = open_vectors(write_folder(tmp_path / "v", dtype=dtype))
    assert (folder.manifest.contents["count"], folder.dimension) == (3, 3)
    assert folder.vectors_per_passage == 1
    ids, vectors = gathered(folder)
    assert ids == ["a", "b", "c"]
    assert vectors.dtype == dtype
    np.testing.assert_array_equal(vectors, [row for _, rows in BLOCKS for row in rows])


def test_an_unfinished_folder_is_rejected_and_can_be_resumed(tmp_path):
    folder = write_folder(tmp_path / "v", (0,), finish=False)
    with pytest.raises(MismatchError, match="unfinished"):
        open_vectors(folder)
    with (folder / JOURNAL).open("ab") as journal:
        journal.write(b'{"number":1,"cou')  # killed in the middle of a line
    (folder / ".block-00001.npy.0123abcd.part").write_bytes(b"half")
    resumed = write_folder(folder)
    whole = write_folder(tmp_path / "whole")
    assert contents(resumed) == contents(whole)


def test_what_float16_cannot_hold_is_rejected(tmp_path):
    writer = VectorFolderWriter(tmp_path, MANIFEST, "float16")
    with pytest.raises(InputError, match="vector of a that is not finite in float16"):
        writer.write(Block(0, 1, ""), ["a"], np.array([[1e6]], np.float32))
