import json

import numpy as np
import pytest

from denserk.config.retrieval import Metric
from denserk.errors import InputError, MismatchError, UsageError
from denserk.index.vector_inputs import expanded, gather, known_count, open_sources
from denserk.io.block_journal import Block
from denserk.io.flat_file import map_flat
from denserk.io.manifest import Kind, Manifest
from denserk.io.vector_folder import VectorFolderWriter
from tests.reporters import Heard


def vector_folder(folder, ids, vectors, size=1, settings=None, model=None):
    """A finished folder of vectors, as encode leaves it; two passages a block."""
    folder.mkdir(parents=True)
    made_from = {} if model is None else {"model": model}
    writer = VectorFolderWriter(
        folder, Manifest(Kind.VECTORS, False, settings or {}, made_from), "float32"
    )
    for number, first in enumerate(range(0, len(ids), 2)):
        part = ids[first : first + 2]
        rows = vectors[first * size : (first + 2) * size]
        writer.write(Block(number, len(part), ""), part, rows)
    writer.finish({"dimension": vectors.shape[1], "vectors_per_passage": size})
    return str(folder)


def json_lines(path, ids, vectors):
    with path.open("w") as out:
        for docid, vector in zip(ids, vectors.tolist(), strict=True):
            out.write(json.dumps({"id": docid, "contents": "", "vector": vector}) + "\n")
    return str(path)


VECTORS = np.arange(20, dtype=np.float32).reshape(5, 4)
IDS = ["a", "b", "c", "d", "e"]


def gathered(tmp_path, *inputs):
    result = gather(open_sources(inputs), tmp_path / "index", Metric.INNER)
    rows, _ = map_flat(tmp_path / "index")
    return result, rows, (tmp_path / "docid").read_text().split()


def test_inputs_stand_one_after_another(tmp_path):
    folder = vector_folder(tmp_path / "v", IDS, VECTORS)
    lines = json_lines(tmp_path / "more.jsonl", ["x"], VECTORS[:1])
    result, rows, ids = gathered(tmp_path, lines, folder)
    assert (result.passages, result.dimension, result.vectors_per_passage) == (6, 4, 1)
    assert ids == ["x", *IDS]
    assert (rows == np.concatenate([VECTORS[:1], VECTORS])).all()


def test_several_vectors_a_passage_have_a_line_each(tmp_path):
    folder = vector_folder(tmp_path / "v", ["a", "b"], VECTORS[:4], size=2)
    result, rows, ids = gathered(tmp_path, folder)
    assert (result.passages, result.vectors_per_passage) == (2, 2)
    assert ids == ["a#0", "a#1", "b#0", "b#1"]
    assert (rows == VECTORS[:4]).all()


def test_patterns_are_sorted_by_their_numbers(tmp_path):
    for name in ("s-10", "s-9", "s-1", "other"):
        (tmp_path / name).mkdir()
    names = [str(tmp_path / name) for name in ("s-1", "s-9", "s-10")]
    assert expanded([str(tmp_path / "s-*"), "-"]) == [*names, "-"]
    with pytest.raises(UsageError, match="matches nothing"):
        expanded([str(tmp_path / "t*")])
    with pytest.raises(UsageError, match="given twice"):
        expanded([str(tmp_path / "s-*"), names[1]])


def test_counts_are_known_where_all_sources_tell(tmp_path):
    folder = vector_folder(tmp_path / "v", IDS, VECTORS)
    lines = json_lines(tmp_path / "more.jsonl", ["x"], VECTORS[:1])
    assert known_count(open_sources([folder])) == 5
    assert known_count(open_sources([folder, lines])) is None


@pytest.mark.parametrize("size", [1, 2])
def test_an_id_that_comes_twice_is_named_with_both_places(tmp_path, size):
    one = vector_folder(tmp_path / "one", IDS[: 4 // size], VECTORS[:4], size)
    two = vector_folder(tmp_path / "two", ["b", "z"][: 2 // size], VECTORS[:2], size)
    with pytest.raises(InputError, match=rf"{two}: found the id b again .*in {one}\)"):
        gathered(tmp_path, one, two)
    assert not (tmp_path / "index").exists()
    assert not (tmp_path / "docid").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_none_are_refused_by_id(tmp_path, value):
    vectors = VECTORS.copy()
    folder = vector_folder(tmp_path / "v", IDS, vectors)
    block = np.load(tmp_path / "v" / "block-00001.npy")
    block[1, 2] = value
    np.save(tmp_path / "v" / "block-00001.npy", block)
    with pytest.raises(InputError, match="a vector of d that is not finite"):
        gathered(tmp_path, folder)


def test_other_dimensions_are_refused_with_both(tmp_path):
    one = vector_folder(tmp_path / "one", IDS, VECTORS)
    two = vector_folder(tmp_path / "two", ["x"], VECTORS[:1, :3])
    with pytest.raises(InputError, match=f"{two}: found vectors of 3 dimensions.*; expected 4"):
        gathered(tmp_path, one, two)


def test_other_numbers_of_vectors_are_refused(tmp_path):
    one = vector_folder(tmp_path / "one", IDS, VECTORS)
    two = vector_folder(tmp_path / "two", ["x"], VECTORS[:2], size=2)
    with pytest.raises(MismatchError, match="1 vectors per passage"):
        open_sources([one, two])


def test_nothing_to_index(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError, match="an empty file"):
        open_sources([str(tmp_path / "empty.jsonl")])
    folder = vector_folder(tmp_path / "v", [], VECTORS[:0])
    with pytest.raises(InputError, match="no vectors; expected at least one"):
        gathered(tmp_path, folder)


def test_a_missing_shard_is_told(tmp_path):
    class Warned(Heard):
        text = ""

        def warn(self, text):
            self.text += text

    reporter = Warned()
    shards = [
        vector_folder(
            tmp_path / f"s{i}", [IDS[i]], VECTORS[:1], settings={"shard_id": i, "shard_num": 4}
        )
        for i in (0, 2)
    ]
    open_sources(shards)
    assert reporter.text == "shards are missing among the inputs: 1, 3 (counted from 0)"


def test_shards_of_other_block_sizes_are_rejected(tmp_path):
    """Shards are whole blocks: these would overlap, or leave passages out without a word."""

    def shard(name, number, size, of=3):
        settings = {"shard_id": number, "shard_num": of, "block_size": size}
        return vector_folder(
            tmp_path / name, [name], np.ones((1, 2), np.float32), settings=settings
        )

    first, second, third = shard("a", 0, 512), shard("b", 1, 4096), shard("c", 2, 512)
    with pytest.raises(MismatchError, match=r"a was .* blocks of 512 passages, .*b in .* 4096:"):
        open_sources([first, second, third])
    assert len(open_sources([first, third])) == 2
    other_corpus = [shard("d", 0, 4096), shard("e", 2, 4096)]
    assert len(open_sources([first, third, *other_corpus])) == 4
