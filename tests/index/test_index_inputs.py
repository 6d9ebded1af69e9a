"""What an index is made of and what stands in its folder: inputs, ids, manifest."""

import json

import numpy as np
import pytest

from denserk.config.retrieval import Engine, Metric
from denserk.errors import InputError, MismatchError, UsageError
from denserk.index.opening import PassageIds
from denserk.index.vector_inputs import (
    expanded,
    gather,
    known_count,
    open_sources,
    read_index_manifest,
)
from denserk.io.flat_file import map_flat
from denserk.io.manifest import Kind, Manifest, write_manifest
from tests.index.folders import vector_folder
from tests.reporters import Heard

VECTORS = np.arange(20, dtype=np.float32).reshape(5, 4)
IDS = ["a", "b", "c", "d", "e"]


def json_lines(path, ids, vectors):
    with path.open("w") as out:
        for docid, vector in zip(ids, vectors.tolist(), strict=True):
            out.write(json.dumps({"id": docid, "contents": "", "vector": vector}) + "\n")
    return str(path)


def gathered(tmp_path, *inputs):
    result = gather(open_sources(inputs), tmp_path / "index", Metric.INNER)
    rows, _ = map_flat(tmp_path / "index")
    return result, rows, (tmp_path / "docid").read_text().split()


def test_inputs_stand_one_after_another(tmp_path):
    folder = vector_folder(tmp_path / "v", IDS, VECTORS)
    lines = json_lines(tmp_path / "more.jsonl", ["x"], VECTORS[:1])
    result, rows, ids = gathered(tmp_path, lines, folder)
    assert (result.count, result.dimension, result.vectors_per_passage) == (6, 4, 1)
    assert ids == ["x", *IDS]
    assert (rows == np.concatenate([VECTORS[:1], VECTORS])).all()
    assert known_count(open_sources([folder])) == 5
    assert known_count(open_sources([folder, lines])) is None


def test_several_vectors_a_passage_have_a_line_each(tmp_path):
    folder = vector_folder(tmp_path / "v", ["a", "b"], VECTORS[:4], size=2)
    result, rows, ids = gathered(tmp_path, folder)
    assert (result.count, result.vectors_per_passage) == (2, 2)
    assert ids == ["a#0", "a#1", "b#0", "b#1"]
    assert (rows == VECTORS[:4]).all()


def test_patterns_are_sorted_by_their_numbers(tmp_path):
    for name in ("s-10", "s-9", "s-1", "other"):
        (tmp_path / name).mkdir()
    names = [str(tmp_path / name) for name in ("s-1", "s-9", "s-10")]
    assert expanded([str(tmp_path / "s-*"), "-"]) == [*names, "-"]
    with pytest.raises(UsageError, match=r"--index .*t\*: the pattern matches nothing"):
        expanded([str(tmp_path / "t*")], "--index")
    with pytest.raises(UsageError, match="given twice"):
        expanded([str(tmp_path / "s-*"), names[1]])


@pytest.mark.parametrize("size", [1, 2])
def test_an_id_that_occurs_twice_is_named_with_both_places(tmp_path, size):
    one = vector_folder(tmp_path / "one", IDS[: 4 // size], VECTORS[:4], size=size)
    two = vector_folder(tmp_path / "two", ["b", "z"][: 2 // size], VECTORS[:2], size=size)
    with pytest.raises(InputError, match=rf"{two}: found the id b again .*in {one}\)"):
        gathered(tmp_path, one, two)
    assert not (tmp_path / "index").exists()
    assert not (tmp_path / "docid").exists()


def test_broken_inputs(tmp_path):
    one = vector_folder(tmp_path / "one", IDS, VECTORS)
    two = vector_folder(tmp_path / "two", ["x"], VECTORS[:1, :3])
    with pytest.raises(InputError, match=f"{two}: found vectors of 3 dimensions.*; expected 4"):
        gathered(tmp_path, one, two)
    double = vector_folder(tmp_path / "double", ["x"], VECTORS[:2], size=2)
    with pytest.raises(MismatchError, match=r"one has 1 vectors per passage, .*double has 2"):
        open_sources([one, double])
    empty = vector_folder(tmp_path / "empty", [], VECTORS[:0])
    with pytest.raises(InputError, match="no vectors; expected at least one"):
        gathered(tmp_path, empty)
    block = np.load(tmp_path / "one" / "block-00000.npy")
    block[3, 2] = np.nan
    np.save(tmp_path / "one" / "block-00000.npy", block)
    with pytest.raises(InputError, match="a vector of d that is not finite"):
        gathered(tmp_path, one)


def shard(folder, number, size=512, of=4):
    settings = {"shard_id": number, "shard_num": of, "block_size": size}
    return vector_folder(folder, [folder.name], VECTORS[:1], settings=settings)


def test_shards_that_are_missing_or_of_other_block_sizes(tmp_path):
    """Shards are whole blocks: of two sizes, they would overlap or leave passages out."""
    heard = Heard()
    first, third = shard(tmp_path / "a", 0), shard(tmp_path / "c", 2)
    open_sources([first, third])
    assert heard.warnings == ["shards are missing among the inputs: 1, 3 (counted from 0)"]
    second = shard(tmp_path / "b", 1, 4096)
    with pytest.raises(MismatchError, match=r"a was .* blocks of 512 passages, .*b in .* 4096:"):
        open_sources([first, second, third])
    other_corpus = [shard(tmp_path / "d", 0, 4096), shard(tmp_path / "e", 2, 4096)]
    assert len(open_sources([first, third, *other_corpus])) == 4


@pytest.mark.parametrize(
    ("content", "ids"),
    [("", []), ("d1\nä d\u2028x", ["d1", "ä d\u2028x"]), ("d1\r\nd2 \n", ["d1", "d2"])],
)
def test_passage_ids(tmp_path, content, ids):
    (tmp_path / "docid").write_bytes(content.encode())
    assert PassageIds(tmp_path / "docid")(np.arange(len(ids))) == ids


def test_passage_ids_by_number(tmp_path):
    (tmp_path / "docid").write_text("".join(f"d{n}#{part}\n" for n in range(40) for part in "01"))
    found = PassageIds(tmp_path / "docid", 80, 2)
    assert found(np.array([39, 0, 7])) == ["d39", "d0", "d7"]
    with pytest.raises(MismatchError, match="41 vectors but 80 ids"):
        PassageIds(tmp_path / "docid", 41)
    with pytest.raises(UsageError, match="no file docid"):
        PassageIds(tmp_path / "absent" / "docid")


def test_an_index_of_another_tool_has_no_manifest(tmp_path):
    with pytest.raises(UsageError, match="no such file or folder"):
        read_index_manifest(tmp_path / "absent")
    (tmp_path / "index").touch()
    (tmp_path / "docid").touch()
    assert read_index_manifest(tmp_path) == (None, Engine.FAISS)
    write_manifest(tmp_path, Manifest(Kind.VECTORS, False))
    with pytest.raises(MismatchError, match="holds vectors, not index"):
        read_index_manifest(tmp_path)
    write_manifest(tmp_path, Manifest(Kind.INDEX, False))
    with pytest.raises(MismatchError, match="unfinished"):
        read_index_manifest(tmp_path)
