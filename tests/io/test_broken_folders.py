"""Broken, changed and crafted vector folders and indexes, through the commands that read them."""

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from denserk.commands.app import run
from tests.conftest import PASSAGES, QUERIES

UNREADABLE = Path("/proc/self/mem")
"""A regular file that gives an input/output error from its first byte on, also to root."""
NULL = object()


@pytest.fixture(scope="module")
def made(tiny, tmp_path_factory):
    """A folder of vectors in three blocks, encoded queries, and indexes of it."""
    root = tmp_path_factory.mktemp("made")
    corpus = [json.dumps({"_id": d, "title": h, "text": t}) for d, (h, t) in PASSAGES.items()]
    (root / "corpus.jsonl").write_text("\n".join(corpus) + "\n")
    (root / "q.tsv").write_text("".join(f"{q}\t{t}\n" for q, t in QUERIES.items()))
    encode = ["encode", "--model", str(tiny()), "--device", "cpu", "--quiet"]
    v, q = str(root / "v"), str(root / "q")
    asked = ["--topics", str(root / "q.tsv"), "--output", q]
    assert run([*encode, *asked]) == 0
    block = ["--block-size", "2", "--corpus", str(root / "corpus.jsonl")]
    assert run([*encode, *block, "--output", v]) == 0
    for kind, options in {"flat": [], "hnsw": ["--set", "M=4"], "ivf": ["--nlist", "2"]}.items():
        given = ["--type", kind, *options, "--input", v, "--output", str(root / kind)]
        assert run(["index", *given, "--quiet"]) == 0
    words = ["--type", "bm25", "--corpus", str(root / "corpus.jsonl")]
    assert run(["index", *words, "--output", str(root / "bm25"), "--quiet"]) == 0
    return root


@pytest.fixture
def own(made, tmp_path):
    """A copy of one of the folders."""
    return lambda name: shutil.copytree(made / name, tmp_path / name)


@pytest.fixture
def search(made, tmp_path):
    def command(folder, *more):
        given = ["--encoded-queries", str(made / "q"), "--output", str(tmp_path / "run.trec")]
        if folder.name == "bm25":
            given[:2] = ["--topics", str(made / "q.tsv")]
        given += ["--device", "cpu", "--overwrite", "--quiet", *more]
        return ["search", "--index", str(folder), *given]

    return command


@pytest.fixture
def index(tmp_path):
    def command(folder, *more):
        given = ["--input", str(folder), "--output", str(tmp_path / "index"), "--overwrite"]
        return ["index", *given, "--quiet", *more]

    return command


@pytest.fixture
def refused(capfd):
    """Runs a command, which must end with one line; returns the line."""

    def refused(command, status=1):
        capfd.readouterr()
        assert run(command) == status
        said = capfd.readouterr().err.splitlines()
        lines = [line for line in said if "chttp2" not in line]  # gRPC of an earlier test's Milvus
        assert lines, command
        assert lines[0].startswith("error:"), lines
        assert len(lines) <= 2
        assert "defect" not in lines[0]
        return lines[0]

    return refused


def change(path, **values):
    """Replaces fields of a JSON file; a dotted name goes into an object."""
    found = json.loads(path.read_text())
    for name, value in values.items():
        *outer, last = name.split("__")
        place = found
        for key in outer:
            place = place[key]
        if value is NULL:
            del place[last]
        else:
            place[last] = value
    path.write_text(json.dumps(found))


def forget_checksums(folder):
    """What a folder of an older version holds."""
    change(folder / "manifest.json", contents__journal_sha256=NULL)
    journal = folder / "blocks.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        del line["sha256"]
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


VECTOR_FIELDS = [
    ("contents__dimension", NULL),
    ("contents__dimension", "16"),
    ("contents__dimension", 2**70),
    ("contents__vectors_per_passage", [1]),
    ("contents__count", -6),
    ("contents__dtype", "float64"),
    ("contents", None),
    ("settings__shard_num", "two"),
    ("made_from__model__representation", 3),
    ("made_from", NULL),
    ("kind", ["vectors"]),
    ("complete", "yes"),
]


@pytest.mark.parametrize(("field", "value"), VECTOR_FIELDS)
def test_a_manifest_of_vectors(own, search, index, refused, field, value):
    folder = own("v")
    change(folder / "manifest.json", **{field: value})
    for command in (search(folder), index(folder)):
        line = refused(command)
        assert "manifest.json: found " in line
        assert field.replace("__", ".") in line


INDEX_FIELDS = [
    ("contents__count", NULL),
    ("contents__vectors_per_passage", 1.5),
    ("contents__sha256", ["index"]),
    ("settings__engine", "nonsense"),
    ("settings__engine", NULL),
]


@pytest.mark.parametrize("name", ["flat", "bm25"])
@pytest.mark.parametrize(("field", "value"), INDEX_FIELDS)
def test_a_manifest_of_an_index(own, search, refused, name, field, value):
    folder = own(name)
    change(folder / "manifest.json", **{field: value})
    line = refused(search(folder))
    assert "manifest.json: found " in line
    assert field.replace("__", ".") in line


@pytest.mark.parametrize("text", ["", "[]", "\ud800"])
def test_a_manifest_that_is_none(own, search, refused, text):
    folder = own("v")
    (folder / "manifest.json").write_text(text, errors="surrogatepass")
    assert "manifest.json: found" in refused(search(folder))


JOURNAL_LINES = [
    '{"number":"0","count":2,"input_sha256":""}',
    '{"number":0,"count":0,"input_sha256":""}',
    '{"number":0,"count":2,"input_sha256":"","sha256":{"npy":1}}',
    '{"number":0,"count":2,"input_sha256":"","odd":1}',
    "{",
]


@pytest.mark.parametrize("line", JOURNAL_LINES)
def test_a_journal(own, search, index, refused, line):
    folder = forget_checksums(own("v"))
    journal = folder / "blocks.jsonl"
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([line, *lines[1:], ""]))
    for command in (search(folder), index(folder)):
        assert "blocks.jsonl, line 1: found" in refused(command)


def test_counts_that_disagree(own, search, refused):
    folder = forget_checksums(own("v"))
    change(folder / "manifest.json", contents__count=7)
    assert "holds 6 passages by its journal, 7 by its manifest" in refused(search(folder))
    change(folder / "manifest.json", contents__count=6, contents__blocks=4)
    assert "holds 3 blocks by its journal, 4 by its manifest" in refused(search(folder))


HEADERS = ["(", "9" * 400, "\0\0\0"] + [
    f"{{'descr': '<{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    for kind, shape in (("f4", (2, 10**20)), ("f4", (-2, 16)), ("x9", (2, 16)))
]


@pytest.mark.parametrize("header", HEADERS)
def test_headers_of_arrays(own, search, index, refused, tmp_path, header):
    folder = own("v")
    text = header.encode() + b"\n"
    broken = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(128)
    (folder / "block-00001.npy").write_bytes(broken)
    for command in (search(folder), index(folder)):
        assert "block-00001.npy: found a broken file" in refused(command)
    (tmp_path / "bare.npy").write_bytes(broken)
    assert "bare.npy: found a broken file" in refused(index(tmp_path / "bare.npy"))


@pytest.mark.parametrize("dtype", ["int64", "float16", "S4"])
def test_arrays_of_another_type(own, search, index, refused, dtype):
    folder = own("v")
    np.save(folder / "block-00001.npy", np.ones((2, 16)).astype(dtype))
    for command in (search(folder), index(folder)):
        line = refused(command)
        assert "block-00001.npy: found" in line
        assert "expected float32 (2, 16)" in line


IDS = [("d3 x\nd4\n", "the passage id 'd3 x'"), ("\nd4\n", "an empty passage id"),
    ("d3\n\u2003d4\n", "the passage id"), ("d3\n", "1 ids"), ("d3\nd4\nd5\n", "3 ids"),
    ("d3\nd\ud8004\n", "not UTF-8")]  # fmt: skip


@pytest.mark.parametrize(("text", "found"), IDS)
def test_ids_of_vectors(own, search, index, refused, text, found):
    folder = own("v")
    (folder / "block-00001.docid").write_text(text, errors="surrogatepass")
    assert "bytes that differ from the checksum" in refused(search(folder))
    forget_checksums(folder)
    for command in (search(folder), index(folder)):
        line = refused(command)
        assert "block-00001.docid" in line
        assert found in line


@pytest.mark.parametrize("name", ["flat", "hnsw"])
@pytest.mark.parametrize(("line", "found"), [("d1", "the id d1 again (first in line 1)"),
    ("a b", "the passage id 'a b'"), ("", "an empty passage id")])  # fmt: skip
def test_ids_of_an_index(own, search, refused, name, line, found):
    """With a checksum any change is seen; ids of other tools' indexes are checked one by one."""
    folder = own(name)
    ids = folder / "docid"
    ids.write_text("".join(f"{i}\n" for i in [*ids.read_text().split()[:-1], line]))
    assert "docid" in refused(search(folder))
    (folder / "manifest.json").unlink()
    told = refused(search(folder))
    assert found in told
    assert "docid, line 6" in told


def test_an_index_cut_short(own, search, refused):
    for name in ("flat", "hnsw", "bm25"):
        folder = own(name)
        path = folder / ("index" if name != "bm25" else "data.csc.index.npy")
        path.write_bytes(path.read_bytes()[:-5])
        assert f"{path.name}: found {path.stat().st_size:,} bytes" in refused(search(folder))


def flip(path):
    """Changes the last byte of a file; its size stays."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(("name", "file"), [("v", "block-00002.npy"), ("v", "blocks.jsonl"),
    ("flat", "index"), ("bm25", "vocab.index.json")])  # fmt: skip
def test_verify_finds_one_bit(own, search, index, refused, name, file, tmp_path):
    folder = own(name)
    assert run([*search(folder), "--verify"]) == 0
    flip(folder / file)
    commands = [[*search(folder), "--verify"]]
    if name in ("v", "flat"):
        commands.append([*index(folder), "--verify"])
    for command in commands:
        assert f"{file}: found bytes that differ from the checksum" in refused(command)


def test_verify_names_what_it_cannot_verify(own, index, refused, capfd):
    assert run([*index(forget_checksums(own("v"))), "--verify"]) == 0
    assert "holds no checksums, and is not verified" in capfd.readouterr().err
    text = ["index", "--type", "bm25", "--corpus", "c", "--output", "x", "--verify"]
    assert "--verify is for --input" in refused(text, 2)


def test_old_folders_are_still_read(own, search, index, made, tmp_path):
    """Without checksums in manifest and journal: the same run as with them."""
    assert run(search(made / "v")) == 0
    expected = (tmp_path / "run.trec").read_bytes()
    old = forget_checksums(own("v"))
    assert run(search(old)) == 0
    assert (tmp_path / "run.trec").read_bytes() == expected
    assert run(index(old)) == 0


@pytest.mark.parametrize("name", ["hnsw", "ivf"])
def test_indexes_of_faiss_that_are_broken(own, search, refused, name):
    """Every fourth byte of the file, as another tool's index: an error of one line, or a run."""
    pytest.importorskip("faiss")
    whole = (folder := own(name)) / "index"
    (folder / "manifest.json").unlink()
    data = whole.read_bytes()
    for place in range(0, min(len(data), 400), 4):
        broken = bytearray(data)
        broken[place] ^= 0x41
        whole.write_bytes(broken)
        status = run(search(folder))
        assert status in (0, 1, 2)
    for size in (0, 40, len(data) - 1):
        whole.write_bytes(data[:size])
        assert "index" in refused(search(folder))


@pytest.mark.skipif(not UNREADABLE.exists(), reason="Linux has such a file")
@pytest.mark.parametrize("file", ["block-00001.npy", "block-00001.docid", "blocks.jsonl",
    "manifest.json"])  # fmt: skip
def test_a_file_that_cannot_be_read(own, search, index, refused, file):
    folder = own("v")
    (folder / file).unlink()
    (folder / file).symlink_to(UNREADABLE)
    for command in (search(folder), index(folder)):
        line = refused(command)
        assert f"{file}: found" in line
        assert "cannot be written" not in line


def test_a_symlink_to_itself(tmp_path, index, refused):
    (tmp_path / "loop").symlink_to("loop")
    assert "Too many levels of symbolic links" in refused(index(tmp_path / "loop"))


def test_resumed_blocks_have_the_same_journal(made, own, tiny, tmp_path):
    """Checksums of blocks are of what was written, whichever run wrote it."""
    folder = own("v")
    change(folder / "manifest.json", complete=False)
    journal = folder / "blocks.jsonl"
    journal.write_text(journal.read_text().splitlines(keepends=True)[1])
    given = ["--corpus", str(made / "corpus.jsonl"), "--block-size", "2", "--device", "cpu"]
    given += ["--model", str(tiny()), "--output", str(folder), "--resume", "--quiet"]
    assert run(["encode", *given]) == 0
    for file in sorted(made.joinpath("v").iterdir()):
        assert (folder / file.name).read_bytes() == file.read_bytes(), file.name
