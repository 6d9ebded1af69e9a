"""Broken, changed and crafted vector folders and indexes, through the commands that read them."""

import io
import json
import shutil

import numpy as np
import pytest

from denserk.commands.app import run
from tests.support.toy import write_toy

NULL = object()  # a field that is removed


@pytest.fixture(scope="module")
def made(tiny, tmp_path_factory):
    """A folder of vectors in three blocks, encoded queries, and indexes of it."""
    root = write_toy(tmp_path_factory.mktemp("made") / "toy")
    encode = ["encode", "--model", str(tiny()), "--device", "cpu", "--quiet"]
    v, q = str(root / "v"), str(root / "q")
    assert run([*encode, "--topics", str(root / "queries.tsv"), "--output", q]) == 0
    block = ["--block-size", "2", "--corpus", str(root / "corpus.jsonl")]
    assert run([*encode, *block, "--output", v]) == 0
    for kind, options in {"flat": [], "hnsw": ["--set", "M=4"], "ivf": ["--nlist", "2"]}.items():
        given = ["--type", kind, *options, "--input", v, "--output", str(root / kind)]
        assert run(["index", *given, "--quiet"]) == 0
    bm25 = ["--type", "bm25", "--corpus", str(root / "corpus.jsonl")]
    assert run(["index", *bm25, "--output", str(root / "bm25"), "--quiet"]) == 0
    return root


@pytest.fixture
def own(made, tmp_path):
    return lambda name: shutil.copytree(made / name, tmp_path / name)


@pytest.fixture
def search(made, tmp_path):
    def command(folder, *more):
        asked = ["--encoded-queries", str(made / "q")]
        if folder.name == "bm25":
            asked = ["--topics", str(made / "queries.tsv")]
        output = ["--output", str(tmp_path / "run.trec"), "--overwrite", "--quiet"]
        return ["search", "--index", str(folder), *asked, *output, "--device", "cpu", *more]

    return command


@pytest.fixture
def index(tmp_path):
    output = ["--output", str(tmp_path / "index"), "--overwrite", "--quiet"]
    return lambda folder, *more: ["index", "--input", str(folder), *output, *more]


@pytest.fixture
def rejected(capfd, search, index):
    """Run search, and index where it reads such a folder: each must fail with one error."""

    def rejected(folder, *more):
        for command in (search, index) if folder.name in ("v", "flat") else (search,):
            capfd.readouterr()
            assert run(command(folder, *more)) == 1
            said = capfd.readouterr().err.splitlines()
            lines = [line for line in said if "chttp2" not in line]  # gRPC of an earlier Milvus
            assert lines[0].startswith("error:"), lines
            assert len(lines) <= 2
        return lines[0]

    return rejected


def change(path, field, value):
    """Replace or remove a field of a JSON file, named with its objects: contents.count."""
    found = place = json.loads(path.read_text())
    *outer, last = field.split(".")
    for key in outer:
        place = place[key]
    place[last] = value
    if value is NULL:
        del place[last]
    path.write_text(json.dumps(found))


def forget_checksums(folder):
    """Make what a folder of an older version holds."""
    change(folder / "manifest.json", "contents.journal_sha256", NULL)
    journal = folder / "blocks.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        del line["sha256"]
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


MANIFESTS = [
    ("v", "contents.dimension", NULL),
    ("v", "contents.dimension", 2**70),
    ("v", "contents.vectors_per_passage", [1]),
    ("v", "contents.count", -6),
    ("v", "contents.dtype", "float64"),
    ("v", "made_from.model.representation", 3),
    ("v", "made_from", NULL),
    ("v", "kind", ["vectors"]),
    ("v", "complete", "yes"),
    ("flat", "contents.count", NULL),
    ("bm25", "contents.sha256", ["index"]),
    ("bm25", "settings.engine", NULL),
]


@pytest.mark.parametrize(("name", "field", "value"), MANIFESTS)
def test_a_manifest(own, rejected, name, field, value):
    folder = own(name)
    change(folder / "manifest.json", field, value)
    line = rejected(folder)
    assert "manifest.json: found " in line
    assert field in line


def array(header):
    """A .npy file with such a header."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(128)


def halves():
    np.save(out := io.BytesIO(), np.ones((2, 16), np.float16))
    return out.getvalue()


@pytest.mark.parametrize(
    ("file", "data", "found"),
    [
        ("blocks.jsonl", b'{"number":0,"count":0,"input_sha256":""}\n', ", line 1: found"),
        ("blocks.jsonl", b"{\n", ", line 1: found"),
        ("manifest.json", b"{", ": found text that is not JSON"),
        ("manifest.json", b"[]", ": found []; expected a JSON object"),
        ("block-00001.npy", array("("), ": found a broken file"),
        ("block-00001.npy", array("9" * 400), ": found a broken file"),
        ("block-00001.npy", halves(), ": found float16 (2, 16); expected float32 (2, 16)"),
    ],
)
def test_a_file_that_is_broken(own, rejected, file, data, found):
    folder = forget_checksums(own("v"))
    (folder / file).write_bytes(data)
    assert f"{file}{found}" in rejected(folder)


@pytest.mark.parametrize("name", ["flat", "hnsw"])
@pytest.mark.parametrize(
    ("line", "found"),
    [("d1", "the id d1 twice: lines 1 and 6"), ("a b", "line 6: found the passage id 'a b'")],
)
def test_ids_of_an_index(own, rejected, name, line, found):
    folder = own(name)
    ids = folder / "docid"
    lines = ids.read_text().split()
    ids.write_text("".join(f"{i}\n" for i in reversed(lines)))
    assert "docid: found bytes that differ" in rejected(folder)
    ids.write_text("".join(f"{i}\n" for i in [*lines[:-1], line]))
    (folder / "manifest.json").unlink()
    said = rejected(folder)
    assert found in said
    assert "docid" in said


@pytest.mark.parametrize("name", ["flat", "hnsw", "bm25"])
def test_an_index_cut_short(own, rejected, name):
    folder = own(name)
    path = folder / ("index" if name != "bm25" else "data.csc.index.npy")
    path.write_bytes(path.read_bytes()[:-5])
    assert f"{path.name}: found {path.stat().st_size:,} bytes" in rejected(folder)


@pytest.mark.parametrize(
    ("name", "file"), [("v", "block-00002.npy"), ("flat", "index"), ("bm25", "vocab.index.json")]
)
def test_verify_finds_one_bit(own, search, rejected, name, file):
    folder = own(name)
    assert run([*search(folder), "--verify"]) == 0
    data = bytearray((folder / file).read_bytes())
    data[-1] ^= 1
    (folder / file).write_bytes(data)
    line = rejected(folder, "--verify")
    assert f"{file}: found bytes that differ from the checksum" in line


def test_old_folders_are_still_read(own, search, index, made, tmp_path, capfd):
    """Without checksums in manifest and journal: the same run as with them."""
    assert run(search(made / "v")) == 0
    expected = (tmp_path / "run.trec").read_bytes()
    old = forget_checksums(own("v"))
    assert run(search(old)) == 0
    assert (tmp_path / "run.trec").read_bytes() == expected
    assert run([*index(old), "--verify"]) == 0
    assert "holds no checksums, and is not verified" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hnsw", "ivf"])
def test_indexes_of_faiss_that_are_broken(own, search, rejected, name):
    """Every eighth byte of the file, as another tool's index: an error of one line, or a run."""
    pytest.importorskip("faiss")
    whole = (folder := own(name)) / "index"
    (folder / "manifest.json").unlink()
    data = whole.read_bytes()
    for place in range(0, min(len(data), 400), 8):
        broken = bytearray(data)
        broken[place] ^= 0x41
        whole.write_bytes(broken)
        assert run(search(folder)) in (0, 1, 2)
    for size in (0, 40, len(data) // 2):
        whole.write_bytes(data[:size])
        assert "index" in rejected(folder)


@pytest.mark.parametrize("name", ["v", "flat", "bm25"])
def test_a_manifest_that_is_nested_deeply_is_named(own, rejected, capfd, index, name):
    folder = own(name)
    (folder / "manifest.json").write_text('{"kind": ' + "[" * 3000 + "]" * 3000 + "}")
    assert "manifest.json" in rejected(folder)


def test_an_output_whose_manifest_is_nested_deeply_is_not_denserks(own, index, tmp_path, capfd):
    vectors, output = own("v"), tmp_path / "index"
    output.mkdir()
    (output / "manifest.json").write_text("[" * 3000 + "]" * 3000)
    assert run(index(vectors)) == 2
    assert "manifest.json, which denserk did not write" in capfd.readouterr().err
