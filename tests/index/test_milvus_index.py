import numpy as np
import pytest

from denserk.errors import MismatchError, ServerError, UsageError
from denserk.formats.manifest import Kind, Manifest, write_manifest
from denserk.index import milvus_collection, milvus_index
from denserk.index.milvus_connection import Connection
from denserk.index.milvus_index import MilvusIndex
from denserk.index.searcher import Searcher
from denserk.settings.retrieval import SearchSettings, Ties
from tests.milvus import collection, load, require_milvus, write_vectors

require_milvus()

COUNT = 200
IDS = [f"d{n}" for n in range(COUNT)]
WHOLE = np.random.default_rng(1).integers(-3, 4, (COUNT, 6)).astype(np.float32)
QUERIES = np.random.default_rng(2).integers(-3, 4, (5, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A file with a collection of each kind that the tests ask for."""
    folder = tmp_path_factory.mktemp("milvus")
    source = write_vectors(folder / "v.jsonl", IDS, WHOLE)
    load(source, folder / "a.db", "flat")
    load(source, folder / "a.db", "hnsw", milvus_index="HNSW", milvus_params=("M=16",))
    load(source, folder / "a.db", "ivf", milvus_index="IVF_FLAT", milvus_params=("nlist=8",))
    return folder / "a.db"


@pytest.fixture
def opened(database):
    """Opens a collection; closes it afterwards."""
    held: list[MilvusIndex] = []

    def index(name, rules=SearchSettings(hits=10), **settings):  # noqa: B008
        held.append(MilvusIndex(collection(database, name, **settings), rules))
        return held[-1]

    yield index
    for one in held:
        one.close()


@pytest.mark.parametrize("depth", [1, 7, COUNT, COUNT + 30])
def test_scores_are_the_exact_ones_and_missing_hits_are_padded(opened, depth):
    scores, rows = opened("flat").search(QUERIES, depth)
    assert (scores.dtype.name, rows.dtype.name) == ("float32", "int64")
    right = -np.sort(-(QUERIES @ WHOLE.T), axis=1)[:, :depth]
    there = min(depth, COUNT)
    np.testing.assert_array_equal(scores[:, :there], right)
    assert (scores[:, there:] == -np.inf).all()
    assert (rows[:, there:] == -1).all()
    named = np.take_along_axis(QUERIES @ WHOLE.T, rows[:, :there], axis=1)
    np.testing.assert_array_equal(named, scores[:, :there])
    assert all(len(set(line)) == there for line in rows[:, :there].tolist())


def test_many_queries_go_in_several_requests(opened, monkeypatch):
    monkeypatch.setattr(milvus_collection, "HITS_AT_ONCE", 20)
    index = opened("flat")
    np.testing.assert_array_equal(
        index.search(QUERIES, 10)[0], -np.sort(-(QUERIES @ WHOLE.T), axis=1)[:, :10]
    )


def test_ids_that_are_not_at_hand_are_asked_for(opened):
    index = opened("flat")
    assert [index.ids[row] for row in (3, 199, 3)] == ["d3", "d199", "d3"]
    assert len(index.ids) == COUNT
    with pytest.raises(IndexError):
        index.ids[COUNT]


@pytest.mark.parametrize(
    ("name", "rules", "given", "asked"),
    [
        ("hnsw", {}, (), {"ef": 64}),
        ("hnsw", {"ef_search": 90}, (), {"ef": 90}),
        ("hnsw", {}, ("ef=200",), {"ef": 200}),
        ("hnsw", {}, ("ef=2",), {"ef": 10}),
        ("ivf", {}, (), {"nprobe": 1}),
        ("ivf", {"nprobe": 8}, (), {"nprobe": 8}),
        ("ivf", {}, ("nprobe=5",), {"nprobe": 5}),
        ("flat", {}, (), {}),
    ],
)
def test_the_breadth_of_a_search(opened, monkeypatch, name, rules, given, asked):
    index = opened(name, SearchSettings(hits=10, **rules), milvus_params=given or None)
    assert index.is_exhaustive == (name == "flat")
    seen = []
    search = milvus_collection.Collection.search

    def kept(self, queries, depth, parameters):
        seen.append(parameters)
        return search(self, queries, depth, parameters)

    monkeypatch.setattr(milvus_collection.Collection, "search", kept)
    index.search(QUERIES, 10)
    assert seen == [{"metric_type": "IP", "params": asked}]


def test_lists_that_are_all_visited_are_exact(opened):
    scores, _ = opened("ivf", SearchSettings(nprobe=8)).search(QUERIES, 10)
    np.testing.assert_array_equal(scores, -np.sort(-(QUERIES @ WHOLE.T), axis=1)[:, :10])


def test_breadths_that_an_index_lacks(opened):
    graph, lists = SearchSettings(ef_search=9), SearchSettings(nprobe=9)
    for name, rules in (("flat", graph), ("hnsw", lists), ("ivf", graph)):
        with pytest.raises(UsageError, match=r"--(ef-search|nprobe) 9: an index \w+ (is|has) no"):
            opened(name, rules)


@pytest.mark.parametrize("hits", [1, 5, 12])
def test_passages_of_several_vectors_are_grouped_without_loss(tmp_path, hits):
    contents = {"count": 50, "dtype": "float32", "vectors_per_passage": 4, "dimension": 6}
    manifest = Manifest(Kind.VECTORS, True, {}, {}, contents)
    folder = tmp_path / "v"
    folder.mkdir()
    np.save(folder / "block-00000.npy", WHOLE)
    (folder / "block-00000.docid").write_text("".join(f"p{n}\n" for n in range(50)))
    (folder / "blocks.jsonl").write_text('{"number":0,"count":50,"input_sha256":""}\n')
    write_manifest(folder, manifest)
    result = load(str(folder), tmp_path / "a.db")
    assert (result.count, result.rows) == (50, 200)
    rules = SearchSettings(hits=hits, ties=Ties.KEEP)
    qids = [f"q{n}" for n in range(len(QUERIES))]
    index = MilvusIndex(collection(tmp_path / "a.db"), rules)
    try:
        assert index.ids[7] == "p1#3"
        found = dict(Searcher(index, index.ids, rules, 4).search(qids, QUERIES))
    finally:
        index.close()
    best = (QUERIES @ WHOLE.T).reshape(len(QUERIES), 50, 4).max(axis=2)
    for qid, line in zip(qids, best, strict=True):
        ranked = sorted(((score, f"p{n}") for n, score in enumerate(line.tolist())), reverse=True)
        assert found[qid] == [(docid, score) for score, docid in ranked[:hits]]
    with pytest.raises(UsageError, match="--hits 4097 of 4 vectors each: Milvus returns at most"):
        MilvusIndex(collection(tmp_path / "a.db"), SearchSettings(hits=4097))


def test_depth_beyond_the_limit(opened, monkeypatch):
    with pytest.raises(UsageError, match="--hits 16385: Milvus returns at most 16,384") as caught:
        opened("flat", SearchSettings(hits=16_385))
    assert "faiss" in (caught.value.hint or "")
    monkeypatch.setattr(milvus_index, "LIMIT", 50)
    scores, rows = opened("flat").search(QUERIES, 58)  # what is fetched to see ties is cut
    assert (rows[:, 50:] == -1).all()
    assert (rows[:, :50] >= 0).all()
    assert scores.shape == (5, 58)


def test_collections_that_denserk_did_not_make(database, opened):
    with Connection(collection(database)) as connection:
        connection.client.create_collection("foreign", dimension=4)
    with pytest.raises(MismatchError, match=r"foreign of .* was not made by denserk"):
        opened("foreign")
    with pytest.raises(UsageError, match="no collection none of "):
        opened("none")


def test_queries_of_another_dimension_are_one_line(opened):
    with pytest.raises(ServerError, match="cannot be searched: "):
        opened("hnsw").search(QUERIES[:, :3], 5)
