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
def toy_folders(tiny, tmp_path_factory):
    """A folder of vectors in three blocks, encoded queries, and indexes of it."""
    root = write_toy(tmp_path_factory.mktemp("toy-folders") / "toy")
    corpus = str(root / "corpus.jsonl")
    vectors = str(root / "v")
    encode = ["encode", "--model", str(tiny()), "--device", "cpu", "--quiet"]
    topics = ["--topics", str(root / "queries.tsv")]
    assert run([*encode, *topics, "--output", str(root / "q")]) == 0
    assert run([*encode, "--corpus", corpus, "--block-size", "2", "--output", vectors]) == 0
    options_by_type = {"flat": [], "hnsw": ["--set", "M=4"], "ivf": ["--nlist", "2"]}
    for index_type, options in options_by_type.items():
        index = ["index", "--type", index_type, *options, "--input", vectors, "--quiet"]
        assert run([*index, "--output", str(root / index_type)]) == 0
    bm25 = ["index", "--type", "bm25", "--corpus", corpus, "--quiet"]
    assert run([*bm25, "--output", str(root / "bm25")]) == 0
    return root


@pytest.fixture
def copied(toy_folders, tmp_path):
    """`copied("flat")`: a copy of a folder, which a test may change."""
    return lambda name: shutil.copytree(toy_folders / name, tmp_path / name)


@pytest.fixture
def search(toy_folders, tmp_path):
    """`search(folder, *options)`: the command that searches a folder."""

    def command(folder, *options):
        queries = ["--encoded-queries", str(toy_folders / "q")]
        if folder.name == "bm25":
            queries = ["--topics", str(toy_folders / "queries.tsv")]
        output = ["--output", str(tmp_path / "run.trec"), "--overwrite", "--quiet"]
        return ["search", "--index", str(folder), *queries, *output, "--device", "cpu", *options]

    return command


@pytest.fixture
def index(tmp_path):
    """`index(folder, *options)`: the command that indexes a folder."""
    output = ["--output", str(tmp_path / "index"), "--overwrite", "--quiet"]
    return lambda folder, *options: ["index", "--input", str(folder), *output, *options]


@pytest.fixture
def rejected(capfd, search, index):
    """`rejected(folder, *options)`: the one error with which search, and index, must fail."""

    def rejected(folder, *options):
        commands = [search(folder, *options)]
        if folder.name in ("v", "flat"):  # which index reads, too
            commands.append(index(folder, *options))
        for command in commands:
            capfd.readouterr()
            assert run(command) == 1
            printed = capfd.readouterr().err.splitlines()
            lines = [line for line in printed if "chttp2" not in line]  # gRPC of an earlier Milvus
            assert lines[0].startswith("error:"), lines
            assert len(lines) <= 2  # the error and its hint
        return lines[0]

    return rejected


def change(path, field, value):
    """Replace or remove a field of a JSON file, named with its objects: contents.count."""
    content = json.loads(path.read_text())
    *parents, key = field.split(".")
    parent = content
    for name in parents:
        parent = parent[name]
    if value is NULL:
        del parent[key]
    else:
        parent[key] = value
    path.write_text(json.dumps(content))


def forget_checksums(folder):
    """Remove what a folder of an older version does not hold."""
    change(folder / "manifest.json", "contents.journal_sha256", NULL)
    journal = folder / "blocks.jsonl"
    blocks = [json.loads(line) for line in journal.read_text().splitlines()]
    for block in blocks:
        del block["sha256"]
    journal.write_text("".join(json.dumps(block) + "\n" for block in blocks))
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
def test_a_manifest(copied, rejected, name, field, value):
    folder = copied(name)
    change(folder / "manifest.json", field, value)
    line = rejected(folder)
    assert "manifest.json: found " in line
    assert field in line


def array(header):
    """A .npy file with such a header."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(128)


def float16_array():
    out = io.BytesIO()
    np.save(out, np.ones((2, 16), np.float16))
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
        ("block-00001.npy", float16_array(), ": found float16 (2, 16); expected float32 (2, 16)"),
    ],
)
def test_a_file_that_is_broken(copied, rejected, file, data, found):
    folder = forget_checksums(copied("v"))
    (folder / file).write_bytes(data)
    assert f"{file}{found}" in rejected(folder)


@pytest.mark.parametrize("name", ["flat", "hnsw"])
@pytest.mark.parametrize(
    ("line", "found"),
    [("d1", "the id d1 twice: lines 1 and 6"), ("a b", "line 6: found the passage id 'a b'")],
)
def test_ids_of_an_index(copied, rejected, name, line, found):
    folder = copied(name)
    ids_file = folder / "docid"
    ids = ids_file.read_text().split()
    ids_file.write_text("".join(f"{docid}\n" for docid in reversed(ids)))
    assert "docid: found bytes that differ" in rejected(folder)
    ids_file.write_text("".join(f"{docid}\n" for docid in [*ids[:-1], line]))
    (folder / "manifest.json").unlink()  # and with it the checksum of the ids
    message = rejected(folder)
    assert found in message
    assert "docid" in message


@pytest.mark.parametrize("name", ["flat", "hnsw", "bm25"])
def test_an_index_cut_short(copied, rejected, name):
    folder = copied(name)
    path = folder / "index"
    if name == "bm25":
        path = folder / "data.csc.index.npy"
    path.write_bytes(path.read_bytes()[:-5])
    assert f"{path.name}: found {path.stat().st_size:,} bytes" in rejected(folder)


@pytest.mark.parametrize(
    ("name", "file"), [("v", "block-00002.npy"), ("flat", "index"), ("bm25", "vocab.index.json")]
)
def test_verify_finds_one_bit(copied, search, rejected, name, file):
    folder = copied(name)
    assert run(search(folder, "--verify")) == 0
    data = bytearray((folder / file).read_bytes())
    data[-1] ^= 1
    (folder / file).write_bytes(data)
    line = rejected(folder, "--verify")
    assert f"{file}: found bytes that differ from the checksum" in line


def test_old_folders_are_still_read(copied, search, index, toy_folders, tmp_path, capfd):
    """Without checksums in manifest and journal: the same run as with them."""
    assert run(search(toy_folders / "v")) == 0
    expected = (tmp_path / "run.trec").read_bytes()
    old_folder = forget_checksums(copied("v"))
    assert run(search(old_folder)) == 0
    assert (tmp_path / "run.trec").read_bytes() == expected
    assert run(index(old_folder, "--verify")) == 0
    assert "holds no checksums, and is not verified" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hnsw", "ivf"])
def test_indexes_of_faiss_that_are_broken(copied, search, rejected, name):
    """Every eighth byte of the file, as another tool's index: an error of one line, or a run."""
    pytest.importorskip("faiss")
    folder = copied(name)
    (folder / "manifest.json").unlink()
    index_file = folder / "index"
    data = index_file.read_bytes()
    for position in range(0, min(len(data), 400), 8):
        broken = bytearray(data)
        broken[position] ^= 0x41
        index_file.write_bytes(broken)
        assert run(search(folder)) in (0, 1, 2)
    for size in (0, 40, len(data) // 2):
        index_file.write_bytes(data[:size])
        assert "index" in rejected(folder)


@pytest.mark.parametrize("name", ["v", "flat", "bm25"])
def test_a_manifest_that_is_nested_deeply_is_named(copied, rejected, capfd, index, name):
    folder = copied(name)
    (folder / "manifest.json").write_text('{"kind": ' + "[" * 3000 + "]" * 3000 + "}")
    assert "manifest.json" in rejected(folder)


def test_an_output_whose_manifest_is_nested_deeply_is_not_denserks(copied, index, tmp_path, capfd):
    vectors = copied("v")
    output = tmp_path / "index"
    output.mkdir()
    (output / "manifest.json").write_text("[" * 3000 + "]" * 3000)
    assert run(index(vectors)) == 2
    assert "manifest.json, which denserk did not write" in capfd.readouterr().err
