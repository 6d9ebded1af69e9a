"""Shards together are one index of everything; what does not belong together is told."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.config.encoding import ComputeSettings
from denserk.config.retrieval import Engine, IndexPaths, IndexSettings, Metric, SearchSettings, Ties
from denserk.errors import InputError, MismatchError, UsageError
from denserk.index import shards
from denserk.index.build import build_index
from denserk.index.exact import ExactIndex
from denserk.index.index_folder import part_names
from denserk.index.opening import open_index, open_vector_index
from denserk.index.searcher import Searcher
from denserk.index.shards import ChainedVectors, IdFile, ShardIds, VectorFile
from denserk.index.vector_inputs import expanded
from denserk.io.block_journal import Block
from denserk.io.flat_file import FlatWriter
from denserk.io.manifest import Kind, Manifest, write_manifest
from denserk.io.vector_folder import VectorFolderWriter
from tests.index.test_engines import whole_numbers
from tests.reporters import Heard

DIMENSION = 6
CPU = ComputeSettings(device="cpu", threads=1)


def model(weights="w"):
    return {"model": {"name": f"m-{weights}", "fingerprint": weights}}


def raw(folder, ids, vectors, *, dtype="float32", block=7, size=1, made_from=None):
    """Writes vectors as `denserk encode` does, in small blocks."""
    folder.mkdir()
    made = Manifest(Kind.VECTORS, False, {}, made_from or model())
    writer = VectorFolderWriter(folder, made, dtype)
    for number, first in enumerate(range(0, len(ids), block)):
        part = ids[first : first + block]
        rows = vectors[first * size : (first + block) * size]
        writer.write(Block(number, len(part), ""), part, rows)
    contents = {"dimension": vectors.shape[1]}
    writer.finish(contents if size == 1 else contents | {"vectors_per_passage": size})
    return str(folder)


def flat(folder, ids, vectors, *, size=1, metric=Metric.INNER):
    """Writes a flat index as Pyserini does, or with denserk's manifest for several vectors."""
    folder.mkdir()
    with (folder / "index").open("wb") as handle:
        writer = FlatWriter(handle, metric)
        writer.add(vectors)
        writer.finish()
    lines = [line for docid in ids for line in part_names(docid, size)]
    (folder / "docid").write_text("".join(f"{line}\n" for line in lines))
    if size > 1:
        settings = {"engine": "faiss", "metric": metric}
        made = Manifest(Kind.INDEX, True, settings, model())
        made = replace(made, contents={"count": len(ids), "vectors_per_passage": size})
        write_manifest(folder, made)
    return str(folder)


def by_hand(ids, vectors, query, hits, size=1):
    """Every passage scored and sorted."""
    scores = (vectors.astype(np.float64) @ query).reshape(-1, size).max(1)
    return sorted(zip(ids, scores.tolist(), strict=True), key=lambda hit: hit[::-1], reverse=True)[
        :hits
    ]


def found(names, queries, settings, compute=CPU):
    opened = open_index(names, settings, compute)
    searcher = Searcher(opened.index, opened.ids, settings, opened.vectors_per_passage)
    return [hits for _, hits in searcher.search([f"q{n}" for n in range(len(queries))], queries)]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    "dtypes", [("float32", "float32"), ("float16", "float16"), ("float16", "float32")]
)
@pytest.mark.parametrize("hits", [1, 5, 40, 500])
def test_shards_together_are_one_index(tmp_path, size, dtypes, hits):
    """Whole numbers: many ties, within shards and across them, at every depth."""
    passages = 60
    vectors, queries = whole_numbers(1, passages * size, DIMENSION), whole_numbers(2, 5, DIMENSION)
    ids = [f"d{n}" for n in np.random.default_rng(3).permutation(passages)]
    names = [
        raw(tmp_path / "s-1", ids[:20], vectors[: 20 * size], dtype=dtypes[0], size=size),
        raw(
            tmp_path / "s-2", ids[20:25], vectors[20 * size : 25 * size], dtype=dtypes[1], size=size
        ),
        flat(tmp_path / "s-10", ids[25:], vectors[25 * size :], size=size),
    ]
    settings = SearchSettings(hits=hits, query_batch=2, ties=Ties.KEEP)
    expected = [by_hand(ids, vectors, query, hits, size) for query in queries]
    assert found([str(tmp_path / "s-*")], queries, settings) == expected
    assert found(names, queries, settings) == expected


def test_many_blocks_are_scanned_with_floors(tmp_path):
    """Enough rows for the floors of the scan, real numbers, threads, more files than are open."""
    random = np.random.default_rng(4)
    vectors = random.normal(size=(20_000, DIMENSION)).astype(np.float16)
    queries = random.normal(size=(40, DIMENSION)).astype(np.float32)
    ids = [f"p{n:05d}" for n in range(len(vectors))]
    names = [
        raw(tmp_path / "a", ids[:9000], vectors[:9000], dtype="float16", block=100),
        raw(tmp_path / "b", ids[9000:], vectors[9000:], dtype="float16", block=3000),
    ]
    settings = SearchSettings(hits=50, ties=Ties.KEEP)
    one = open_vector_index(
        flat(tmp_path / "one", ids, vectors.astype(np.float32)), Engine.TORCH, settings
    )
    whole = Searcher(one, ids, settings).search([f"q{n}" for n in range(40)], queries)
    together = found(names, queries, settings, compute=replace(CPU, threads=2))
    for (_, expected), hits in zip(whole, together, strict=True):
        assert [docid for docid, _ in hits] == [docid for docid, _ in expected]
        assert np.allclose([s for _, s in hits], [s for _, s in expected], rtol=1e-5)


def test_approximate_indexes_are_searched_by_their_engines(tmp_path):
    pytest.importorskip("faiss")
    vectors, queries = whole_numbers(5, 90, DIMENSION), whole_numbers(6, 4, DIMENSION)
    ids = [f"d{n}" for n in range(90)]
    names = [
        raw(tmp_path / name, ids[a:b], vectors[a:b]) for name, a, b in (("a", 0, 30), ("b", 30, 60))
    ]
    last = raw(tmp_path / "c", ids[60:], vectors[60:])
    for name, factory in ((names[1], "IVF1,Flat"), (last, "HNSW16")):
        build_index(IndexPaths(input=(name,), output=f"{name}-i"), IndexSettings(factory=factory))
    heard = Heard()
    shards = [f"{names[1]}-i", names[0], f"{last}-i"]
    together = found(shards, queries, SearchSettings(hits=90, ties=Ties.KEEP))
    assert together == [by_hand(ids, vectors, query, 90) for query in queries]
    assert "3 shards, 90 passages, compared by inner product, approximate ones by their own" in str(
        heard.notes
    )
    with pytest.raises(UsageError, match="--nprobe 2: every shard is searched exactly"):
        found(names, queries, SearchSettings(nprobe=2))


def test_distances_hold_for_raw_vectors_beside_an_index_of_distances(tmp_path):
    vectors, queries = whole_numbers(7, 20, DIMENSION), whole_numbers(8, 2, DIMENSION)
    ids = [f"d{n}" for n in range(20)]
    names = [
        raw(tmp_path / "a", ids[:9], vectors[:9]),
        flat(tmp_path / "b", ids[9:], vectors[9:], metric=Metric.L2),
    ]
    for query, hits in zip(
        queries, found(names, queries, SearchSettings(hits=20, ties=Ties.KEEP)), strict=True
    ):
        scores = -np.square(vectors - query).sum(1)
        pairs = zip(ids, scores.tolist(), strict=True)
        expected = sorted(pairs, key=lambda hit: hit[::-1], reverse=True)
        assert hits == expected


def one(n, width=DIMENSION):
    return [f"d{n}"], np.ones((1, width), np.float32)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda p: [raw(p / "a", *one(1)), raw(p / "b", *one(2, 4))],
            r"a has 6 dimensions, .*b has 4",
        ),
        (
            lambda p: [raw(p / "a", *one(1)), raw(p / "b", *one(2), made_from=model("x"))],
            r"a and .*b were not made alike: other weights: m-w and m-x",
        ),
        (
            lambda p: [raw(p / "a", *one(1)), raw(p / "b", ["d2"], np.ones((2, 6), "f4"), size=2)],
            r"a has 1 vectors per passage, .*b has 2",
        ),
        (
            lambda p: [flat(p / "a", *one(1)), flat(p / "b", *one(2), metric=Metric.L2)],
            r"a compares by inner, .*b by l2",
        ),
        (
            lambda p: [raw(p / "a", *one(1)), flat(p / "b", *one(1))],
            r"the id d1 occurs in .*a and in .*b",
        ),
    ],
)
def test_what_does_not_belong_together(tmp_path, make, message):
    with pytest.raises(MismatchError, match=message) as refusal:
        found(make(tmp_path), np.ones((1, DIMENSION), "f4"), SearchSettings(hits=2))
    assert "\n" not in refusal.value.message


def test_what_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"--index .*s-\*: the pattern matches nothing"):
        expanded([str(tmp_path / "s-*")], "--index")
    name = raw(tmp_path / "a", *one(1))
    with pytest.raises(UsageError, match="no such file or folder"):
        found([name, str(tmp_path / "b")], np.ones((1, DIMENSION), "f4"), SearchSettings())
    ids = tmp_path / "a" / "block-00000.docid"
    kept = ids.read_bytes()
    ids.unlink()
    with pytest.raises(InputError, match=r"block-00000.docid: found nothing"):
        found([name], np.ones((1, DIMENSION), "f4"), SearchSettings())
    ids.write_bytes(kept)
    (tmp_path / "a" / "block-00000.npy").unlink()
    with pytest.raises(InputError, match=r"block-00000.npy: found nothing"):
        found([name], np.ones((1, DIMENSION), "f4"), SearchSettings())


def test_memory_is_told_before_and_refused(tmp_path, monkeypatch):
    name, heard = raw(tmp_path / "a", *one(1)), Heard()
    queries = np.ones((1, DIMENSION), "f4")
    found([name], queries, SearchSettings())
    assert "searching needs" in str(heard.notes)
    monkeypatch.setattr("denserk.index.memory.available_bytes", lambda: 1 << 20)
    with pytest.raises(
        UsageError, match=r"searching needs .*, and 1.0 MB are available"
    ) as refusal:
        found([name], queries, SearchSettings(query_batch=2**20))
    assert "--query-batch 131072, or less deep" in str(refusal.value.hint)


def chain(whole, cuts, dtypes):
    edges = [0, *cuts, len(whole)]
    parts = [whole[a:b].astype(d) for a, b, d in zip(edges, edges[1:], dtypes, strict=False)]
    pieces = [VectorFile(len(part), part.dtype, partial(np.asarray, part)) for part in parts]
    return ChainedVectors(pieces, whole.shape[1])


@given(st.data())
def test_as_one_array(data):
    rows = data.draw(st.integers(1, 40))
    cuts = sorted(data.draw(st.lists(st.integers(0, rows), min_size=3, max_size=3)))
    dtypes = data.draw(st.lists(st.sampled_from(["f2", "f4"]), min_size=4, max_size=4))
    whole = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    chained = chain(whole, cuts, dtypes)
    first, last = sorted(data.draw(st.tuples(st.integers(0, rows), st.integers(0, rows + 9))))
    some = np.array(data.draw(st.lists(st.integers(0, rows - 1))), np.int64)
    assert (chained.shape, len(chained)) == (whole.shape, rows)
    assert chained.dtype == (dtypes[0] if len(set(dtypes)) == 1 else "f4")
    for found, expected in ((chained[first:last], whole[first:last]), (chained[some], whole[some])):
        assert found.dtype == chained.dtype
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("order", [range(6), reversed(range(6))])
def test_few_files_are_open(monkeypatch, order):
    monkeypatch.setattr(shards, "OPEN", 2)
    opened: list[int] = []

    def rows_of(number):
        opened.append(number)
        return np.full((1, 1), number, np.float32)

    pieces = [VectorFile(1, np.dtype("f4"), partial(rows_of, n)) for n in range(6)]
    chained = ChainedVectors(pieces, 1)
    for number in order:
        assert chained[number : number + 1].item() == number
    last = opened[-1]
    assert chained[last : last + 1].item() == last
    assert len(opened) == 6


@pytest.mark.parametrize("count", [3, 40])
def test_exact_search_takes_them(count):
    """Blocks, and rows of a sample, of two types."""
    whole = np.random.default_rng(1).normal(size=(5000, 8)).astype("f2").astype("f4")
    queries = np.random.default_rng(2).normal(size=(count, 8)).astype("f4")
    chained = chain(whole, [700, 2500], ["f2", "f4", "f2"])
    found = ExactIndex(chained, bfloat16=True).search(queries, 50)
    expected = ExactIndex(whole, bfloat16=True).search(queries, 50)
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])


def files_of(folder, *shards, size=1):
    """Two shards whose files have a line a passage, the last one `size` of them."""
    files = []
    for number, ids in enumerate(shards):
        lines = size if number == len(shards) - 1 else 1
        path = folder / f"{number}.docid"
        path.write_text("".join(f"{line}\n" for docid in ids for line in part_names(docid, lines)))
        files.append(IdFile(f"shard-{number}", path, len(ids), lines))
    return files


@pytest.mark.parametrize("size", [1, 2, 12])
def test_rows_by_name(tmp_path, size):
    ids = ["a", "ü#3", "c" * 90, "d", "e"]
    named = ShardIds(files_of(tmp_path, ids[:2], [], ids[2:], size=size), size)
    assert len(named) == 5 * size
    assert list(named) == [docid for docid in ids for _ in range(size)]
    rows = np.array([5 * size - 1, 0, 2 * size])
    assert named.passages(rows) == ["e", "a", "c" * 90]
    assert named.passages(np.array([size])) == ["ü#3"]


def test_an_id_for_two_passages(tmp_path):
    alike = ["12345678-aaa-12345678", "12345678-bbb-12345678"]  # they have one key, and are two ids
    named = ShardIds(files_of(tmp_path, alike, ["x", "y"], ["x", "z", "z"]))
    assert named.passages(np.array([1, 0])) == alike[::-1]
    with pytest.raises(MismatchError, match="the id x occurs in shard-1 and in shard-2"):
        named.passages(np.array([2, 4]))
    with pytest.raises(MismatchError, match="the id z occurs twice in shard-2"):
        named.passages(np.array([5, 6]))
