import io
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from denserk.config.encoding import VectorFormat
from denserk.errors import InputError, MismatchError, UsageError
from denserk.io.blocks import JOURNAL, Block
from denserk.io.manifest import Kind, Manifest
from denserk.io.vector_formats import VectorBlock, write_vectors
from denserk.io.vectors import VectorFolderWriter, open_vectors, read_vector_blocks
from tests.peers import run_pyserini
from tests.reporters import Heard

IDS = [f"d{i}" for i in range(1500)]
TEXTS = [f"text of {docid}" for docid in IDS]
VECTORS = np.random.default_rng(7).standard_normal((1500, 4)).astype(np.float32)
WRITERS = [form for form in VectorFormat if form is not VectorFormat.NPY]
UNIT = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)


def write(output, form, vectors=VECTORS, ids=IDS, texts=TEXTS, **options):
    halves = (slice(0, 1000), slice(1000, None))
    blocks = [VectorBlock(ids[rows], vectors[rows], texts[rows]) for rows in halves]
    assert write_vectors(str(output), form, blocks, **options) == len(ids)


def gathered(source):
    blocks = list(source.blocks())
    return [d for b in blocks for d in b.ids], np.concatenate([b.vectors for b in blocks])


@pytest.mark.parametrize("form", WRITERS)
def test_what_is_written_is_read_and_its_format_reported(form, tmp_path):
    write(tmp_path / "v", form)
    heard = Heard()
    source = read_vector_blocks(str(tmp_path / "v"), allow_pickle=True)
    ids, vectors = gathered(source)
    assert ids == IDS
    np.testing.assert_array_equal(vectors, VECTORS)
    assert heard.notes == [f"{tmp_path / 'v'}: vectors in format {source.form}"]
    assert gathered(source)[0] == IDS, "a source can be read again"


@pytest.mark.parametrize("form", WRITERS)
def test_a_writer_stopped_in_the_middle_leaves_nothing(form, tmp_path):
    bad = VECTORS.copy()
    bad[1200, 0] = np.nan
    with pytest.raises(InputError, match="d1200"):
        write(tmp_path / "v", form, bad)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", [VectorFormat.ANSERINI_JSONL, VectorFormat.JSONL])
def test_lucene_needs_unit_length_and_is_warned_of_once(form, tmp_path):
    for vectors, count in ((3 * UNIT, form is VectorFormat.ANSERINI_JSONL), (UNIT, 0)):
        heard = Heard()
        write(tmp_path / f"v{count}", form, vectors, overwrite=True)
        assert len(heard.warnings) == count
        assert all("d0 has a vector of length 3; " in said for said in heard.warnings)


def test_json_lines_go_through_pipes(monkeypatch):
    pipe = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=pipe))
    write("-", VectorFormat.JSONL)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(pipe.getvalue())))
    ids, vectors = gathered(read_vector_blocks("-"))
    assert ids == IDS
    np.testing.assert_array_equal(vectors, VECTORS)


def test_a_folder_does_not_go_through_a_pipe():
    with pytest.raises(UsageError, match="parquet cannot be written to standard output"):
        write("-", VectorFormat.PARQUET)


def test_a_writer_checks_dimensions(tmp_path):
    blocks = [VectorBlock(IDS[:2], VECTORS[:2]), VectorBlock(["x"], np.ones((1, 3), np.float32))]
    with pytest.raises(InputError, match="3 dimensions from x on; expected 4"):
        write_vectors(str(tmp_path / "v"), VectorFormat.JSONL, blocks)


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


@pytest.mark.parametrize(
    ("name", "data", "error"),
    [
        ("v", b"", InputError),
        ("v", b"text\n", InputError),
        ("v.npy", b"\x93NUMPY\x01", InputError),
        ("v.parquet", b"PAR1....PAR1", InputError),
        ("v.pkl", b"\x80\x04N.", UsageError),  # pickles are read on request alone
        ("empty/README", b"text\n", InputError),
        ("empty/notes.txt", b"text\n", UsageError),
    ],
)
def test_what_holds_no_vectors_is_rejected(name, data, error, tmp_path):
    where = tmp_path / name
    where.parent.mkdir(exist_ok=True)
    where.write_bytes(data)
    source = where.parent if "/" in name else where
    with pytest.raises(error):
        list(read_vector_blocks(str(source)).blocks())


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


# denserk's own folder

MANIFEST = Manifest(Kind.VECTORS, complete=False, settings={"block_size": 2})
BLOCK_IDS = [["a", "b"], ["c"], ["d"]]
BLOCK_VECTORS = [
    np.array(rows, np.float32) for rows in ([[1, 2, 3], [4, 5, 6]], [[7, 8, 9]], [[0, 0, 1]])
]


def write_folder(folder, numbers=(0, 1), *, finish=True, dtype="float32"):
    folder.mkdir(exist_ok=True)
    writer = VectorFolderWriter(folder, MANIFEST, dtype)
    for number in numbers:
        if number not in writer.finished:
            block = Block(number, len(BLOCK_IDS[number]), f"sha{number}")
            writer.write(block, BLOCK_IDS[number], BLOCK_VECTORS[number])
    if finish:
        writer.finish({"dimension": 3})
    return folder


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_folder_round_trip(tmp_path, dtype):
    folder = open_vectors(write_folder(tmp_path / "v", dtype=dtype))
    assert (folder.count, folder.dimension, folder.vectors_per_passage) == (3, 3, 1)
    blocks = zip(folder.blocks(), BLOCK_IDS, BLOCK_VECTORS, strict=False)
    for (ids, vectors, _), expected_ids, expected in blocks:
        assert ids == expected_ids
        assert vectors.dtype == dtype
        assert isinstance(vectors, np.memmap)
        np.testing.assert_array_equal(vectors, expected)


def test_an_unfinished_folder_is_rejected_and_can_be_resumed(tmp_path):
    folder = write_folder(tmp_path / "v", (0,), finish=False)
    with pytest.raises(MismatchError, match="unfinished"):
        open_vectors(folder)
    with (folder / JOURNAL).open("ab") as journal:
        journal.write(b'{"number":1,"cou')  # killed in the middle of a line
    (folder / ".block-00001.npy.0123abcd.part").write_bytes(b"half")
    resumed = write_folder(folder)
    whole = write_folder(tmp_path / "whole")
    assert {f.name: f.read_bytes() for f in resumed.iterdir()} == {
        f.name: f.read_bytes() for f in whole.iterdir()
    }


def test_what_float16_cannot_hold_is_rejected(tmp_path):
    writer = VectorFolderWriter(tmp_path, MANIFEST, "float16")
    with pytest.raises(InputError, match="vector of a that is not finite in float16"):
        writer.write(Block(0, 1, ""), ["a"], np.array([[1e6]], np.float32))


def test_a_gap_is_reported(tmp_path):
    folder = write_folder(tmp_path / "v", (0, 2))
    with pytest.raises(MismatchError, match="lacks blocks between 0 and 2"):
        open_vectors(folder)
