import numpy as np
import pytest

from denserk.config.retrieval import Engine, IndexPaths, IndexSettings, MilvusIndexSettings
from denserk.errors import InputError, MismatchError, UsageError
from denserk.index.inputs import expanded, open_sources
from denserk.index.mapped_files import Part, PassageIds
from denserk.io.vector_formats import map_flat
from denserk.tasks.build_collection import build_collection
from tests.support.console import warnings_of
from tests.support.index_folders import MODEL, index, vector_folder
from tests.support.milvus import write_vectors

VECTORS = np.arange(20, dtype=np.float32).reshape(5, 4)
IDS = ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("size", [1, 2])
def test_inputs_stand_one_after_another(tmp_path, size):
    ids = IDS[: 4 // size]
    folder = vector_folder(tmp_path / "v", ids, VECTORS[:4], size=size)
    if size == 1:
        vectors_of_x = write_vectors(tmp_path / "more.jsonl", ["x"], VECTORS[4:])
        rows_of_ids = ["x", "a", "b", "c", "d"]
    else:
        vectors_of_x = vector_folder(tmp_path / "w", ["x"], VECTORS[-size:], size=size)
        rows_of_ids = ["x#0", "x#1", "a#0", "a#1", "b#0", "b#1"]
    assert index(tmp_path / "i", vectors_of_x, folder).count == 1 + len(ids)
    rows, _ = map_flat(tmp_path / "i" / "index")
    assert (rows == np.concatenate([VECTORS[-size:], VECTORS[:4]])).all()
    assert (tmp_path / "i" / "docid").read_text().split() == rows_of_ids


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
def test_an_id_that_occurs_twice_is_named_with_both_folders(tmp_path, size):
    one = vector_folder(tmp_path / "one", IDS[: 4 // size], VECTORS[:4], size=size)
    two = vector_folder(tmp_path / "two", ["b", "z"][: 2 // size], VECTORS[:2], size=size)
    with pytest.raises(InputError, match=f"{two}: found the id b twice: .*, the first in {one}"):
        index(tmp_path / "i", one, two)
    assert not (tmp_path / "i").exists()


def test_vectors_of_another_dimension_are_rejected(tmp_path):
    wide = vector_folder(tmp_path / "wide", IDS, VECTORS)
    narrow = vector_folder(tmp_path / "narrow", ["x"], VECTORS[:1, :3])
    with pytest.raises(InputError, match=r"narrow: found vectors of 3 dimensions.*; expected 4"):
        index(tmp_path / "i", wide, narrow)


def test_a_folder_without_vectors_is_rejected(tmp_path):
    empty = vector_folder(tmp_path / "empty", [], VECTORS[:0])
    with pytest.raises(InputError, match="no vectors; expected at least one"):
        index(tmp_path / "i", empty)


def test_a_vector_that_is_not_finite_is_rejected(tmp_path):
    folder = vector_folder(tmp_path / "v", IDS, VECTORS)
    block = np.load(tmp_path / "v" / "block-00000.npy")
    block[3, 2] = np.nan
    np.save(tmp_path / "v" / "block-00000.npy", block)
    with pytest.raises(InputError, match="a vector of d that is not finite"):
        index(tmp_path / "i", folder)


def shard(folder, number, block_size=512):
    """Write a folder of vectors that is one of four shards."""
    settings = {"shard_id": number, "shard_num": 4, "block_size": block_size}
    return vector_folder(folder, [f"{folder.name}{number}"], VECTORS[:1], settings=settings)


def test_shards_that_are_missing_or_of_other_block_sizes(tmp_path, caplog):
    shard_0 = shard(tmp_path / "a", 0)
    shard_2 = shard(tmp_path / "c", 2)
    open_sources([shard_0])  # one alone may be meant
    assert warnings_of(caplog) == []
    open_sources([shard_0, shard_2])
    assert warnings_of(caplog) == ["shards are missing among the inputs: [1, 3] (counted from 0)"]
    shard_1 = shard(tmp_path / "b", 1, block_size=4096)
    with pytest.raises(MismatchError, match=r"a was .* blocks of 512 passages, .*b in .* 4096"):
        open_sources([shard_0, shard_1, shard_2])
    other_corpus = [
        shard(tmp_path / "d", 0, block_size=4096),
        shard(tmp_path / "e", 2, block_size=4096),
    ]
    assert len(open_sources([shard_0, shard_2, *other_corpus])) == 4


@pytest.mark.parametrize(
    ("content", "ids"),
    [("", []), ("d1\nä d\u2028x", ["d1", "ä d\u2028x"]), ("d1\r\nd2 \n", ["d1", "d2"])],
)
def test_passage_ids(tmp_path, content, ids):
    file = tmp_path / "docid"
    file.write_bytes(content.encode())
    rows = np.arange(len(ids))
    assert PassageIds([Part("i", file, len(ids))])(rows) == ids
    with pytest.raises(MismatchError, match="41 vectors but"):
        PassageIds([Part("i", file, 41)])(np.arange(1))


def in_precision(folder, ids, dtype, head_dtype=None, representation="cls"):
    """Write a folder of vectors whose manifest records the precision that computed them."""
    model = {
        **MODEL,
        "representation": {"representation": representation},
        "dtype": dtype,
        "head_dtype": head_dtype or dtype,
    }
    return vector_folder(folder, ids, VECTORS[: len(ids)], model=model)


def test_the_precision_of_most_passages_is_asked_for(tmp_path):
    one = in_precision(tmp_path / "one", ["a"], "float32")
    two = in_precision(tmp_path / "two", ["b"], "float32")
    larger = in_precision(tmp_path / "larger", ["c", "d", "e"], "bfloat16")
    message = rf"different precisions: float32 \('{one}', '{two}'\) and bfloat16 \('{larger}'\)"
    with pytest.raises(MismatchError, match=message) as error:
        index(tmp_path / "i", one, two, larger)
    assert error.value.hint == (
        f"encode the passages of '{one}', '{two}' again: denserk encode --dtype bfloat16 "
        "--overwrite"
    )
    assert index(tmp_path / "i", one, two).count == 2
    unknown = in_precision(tmp_path / "unknown", ["x"], None)
    foreign = vector_folder(tmp_path / "foreign", ["y"], VECTORS[:1], model=None)
    assert index(tmp_path / "j", larger, unknown, foreign).count == 5


def test_the_projection_of_agg_has_a_precision_of_its_own(tmp_path):
    one = in_precision(tmp_path / "one", ["a", "b"], "float32", "bfloat16", "agg")
    two = in_precision(tmp_path / "two", ["c"], "float32", "float32", "agg")
    with pytest.raises(MismatchError, match="float32, head bfloat16") as error:
        index(tmp_path / "i", one, two)
    assert "--dtype float32 --set head-dtype=bfloat16 --overwrite" in str(error.value.hint)


def test_cls_has_no_projection_whose_precision_could_differ(tmp_path):
    one = in_precision(tmp_path / "one", ["a", "b"], "float32", "bfloat16", "cls")
    two = in_precision(tmp_path / "two", ["c"], "float32", "float32", "cls")
    assert index(tmp_path / "i", one, two).count == 3


def test_vectors_of_a_quantised_model_are_of_another_precision(tmp_path):
    """They are encoded again as the others were: another folder's texts would calibrate anew."""
    model = {**MODEL, "dtype": "float32", "head_dtype": "float32"}
    quantised = {**model, "int8": {"sha256": "0" * 64}}
    one = vector_folder(tmp_path / "one", ["a", "b"], VECTORS[:2], model=quantised)
    two = vector_folder(tmp_path / "two", ["c"], VECTORS[:1], model=model)
    message = rf"different precisions: int8 \('{one}'\) and float32 \('{two}'\)"
    with pytest.raises(MismatchError, match=message) as error:
        index(tmp_path / "i", one, two)
    assert error.value.hint == (
        f"encode the passages of '{one}' again: denserk encode --dtype float32 --overwrite"
    )


def test_indexes_of_mixed_precision_are_not_merged(tmp_path):
    pytest.importorskip("faiss")
    settings = IndexSettings(threads=1)
    one = in_precision(tmp_path / "one", IDS, "float32")
    two = in_precision(tmp_path / "two", [f"other-{docid}" for docid in IDS], "bfloat16")
    index(tmp_path / "index-1", one, factory="IVF1,Flat")
    template = str(tmp_path / "index-1")
    index(tmp_path / "index-2", two, settings=settings, trained_as=template)
    with pytest.raises(MismatchError, match=r"different precisions: float32 .*index-1"):
        index(tmp_path / "merged", template, tmp_path / "index-2", settings=settings)


def test_milvus_takes_no_vectors_of_mixed_precision(tmp_path):
    one = in_precision(tmp_path / "one", ["a"], "float32")
    two = in_precision(tmp_path / "two", ["b"], "bfloat16")
    paths = IndexPaths(input=(one, two))
    milvus = MilvusIndexSettings(uri=str(tmp_path / "m.db"), collection="c")
    with pytest.raises(MismatchError, match="different precisions"):
        build_collection(paths, IndexSettings(engine=Engine.MILVUS), milvus)
