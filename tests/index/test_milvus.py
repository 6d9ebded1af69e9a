import fcntl
import sys
import time
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from denserk.config.milvus import CollectionSettings
from denserk.config.retrieval import SearchSettings, Ties
from denserk.errors import (
    InputError,
    MismatchError,
    MissingExtraError,
    OutputError,
    ServerError,
    UsageError,
)
from denserk.index import milvus
from denserk.index.milvus import Collection, MilvusIndex
from denserk.index.searcher import Searcher
from denserk.io.manifest import Kind, Manifest, write_manifest
from tests.faults import Stopped, stopped_at
from tests.milvus import collection, load, require_milvus, write_vectors

require_milvus()
pymilvus: Any = pytest.importorskip("pymilvus")

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
    monkeypatch.setattr(milvus, "HITS_AT_ONCE", 20)
    index = opened("flat")
    np.testing.assert_array_equal(
        index.search(QUERIES, 10)[0], -np.sort(-(QUERIES @ WHOLE.T), axis=1)[:, :10]
    )


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
    search = Collection.search

    def kept(self, queries, depth, parameters):
        seen.append(parameters)
        return search(self, queries, depth, parameters)

    monkeypatch.setattr(Collection, "search", kept)
    index.search(QUERIES, 10)
    assert seen == [asked]


def test_lists_that_are_all_visited_are_exact(opened):
    scores, _ = opened("ivf", SearchSettings(nprobe=8)).search(QUERIES, 10)
    np.testing.assert_array_equal(scores, -np.sort(-(QUERIES @ WHOLE.T), axis=1)[:, :10])


def test_breadths_that_an_index_lacks(opened):
    graph, lists = SearchSettings(ef_search=9), SearchSettings(nprobe=9)
    for name, rules in (("flat", graph), ("hnsw", lists), ("ivf", graph)):
        with pytest.raises(UsageError, match=r"--(ef-search|nprobe) 9: .* has an index \w+$"):
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
    monkeypatch.setattr(milvus, "LIMIT", 50)
    scores, rows = opened("flat").search(QUERIES, 58)  # what is fetched to see ties is cut
    assert (rows[:, 50:] == -1).all()
    assert (rows[:, :50] >= 0).all()
    assert scores.shape == (5, 58)


def test_collections_that_denserk_did_not_make(database, opened):
    client = pymilvus.MilvusClient(str(database))
    client.create_collection("foreign", dimension=4)
    client.close()
    with pytest.raises(MismatchError, match=r"foreign of .* was not made by denserk"):
        opened("foreign")
    with pytest.raises(UsageError, match="no collection none of "):
        opened("none")


def test_queries_of_another_dimension_are_one_line(opened):
    with pytest.raises(ServerError, match="cannot be searched: "):
        opened("hnsw").search(QUERIES[:, :3], 5)


NAMES = [f"d{n}" for n in range(60)]
REAL = np.random.default_rng(3).normal(size=(60, 4)).astype(np.float32)


def rows_of(database, name):
    """Every row: its number, its passage, its vector."""
    with closing(Collection(collection(database, name))) as held:
        held.load()
    client = pymilvus.MilvusClient(str(database))
    fields = ["row", "passage", "vector"]
    found = client.query(name, filter="row >= 0", output_fields=fields, limit=1000)
    client.close()
    rows = sorted((hit["row"], hit["passage"], tuple(hit["vector"])) for hit in found)
    return [(row, passage, [float(x) for x in vector]) for row, passage, vector in rows]


@pytest.fixture
def source(tmp_path):
    return write_vectors(tmp_path / "v.jsonl", NAMES, REAL)


@pytest.mark.parametrize("batch", [1, 7, None])
def test_every_vector_is_a_row_of_its_number(database, source, batch):
    name = f"batch_{batch}"
    result = load(source, database, name, milvus_batch=batch)
    assert (result.count, result.rows) == (60, 60)
    assert rows_of(database, name) == [
        (n, NAMES[n], [float(x) for x in REAL[n]]) for n in range(60)
    ]


@pytest.mark.parametrize("step", [0, 1, 11, 12, 14])
def test_a_load_goes_on_where_it_was_stopped(database, source, monkeypatch, step):
    monkeypatch.setattr(milvus, "KEPT_EVERY", 4)
    name = f"stopped_{step}"
    with pytest.raises(Stopped), stopped_at(step, [(Collection, "write")]):
        load(source, database, name, milvus_batch=4)
    with pytest.raises(MismatchError, match="is unfinished"):
        MilvusIndex(collection(database, name), SearchSettings())
    sent: list[int] = []
    write = Collection.write

    def counted(self, first, ids, vectors):
        sent.append(first)
        write(self, first, ids, vectors)

    monkeypatch.setattr(Collection, "write", counted)
    result = load(source, database, name, milvus_batch=4, resume=True)
    assert sent == list(range(step // 4 * 16, 60, 4))
    assert result.rows == 60
    assert [row for row, _, _ in rows_of(database, name)] == list(range(60))


def test_a_row_that_is_written_twice_is_one(database, source):
    load(source, database, "twice")
    with closing(Collection(collection(database, "twice"))) as held:
        held.load()
        held.write(0, NAMES[:10], REAL[:10])
        assert held.count() == 60


def test_an_id_that_comes_twice(database, tmp_path):
    source = write_vectors(tmp_path / "v.jsonl", ["a", "b", "a"], REAL[:3])
    with pytest.raises(InputError, match=r"the id a again \(vector 3; first as vector 1"):
        load(source, database, "repeated")
    with pytest.raises(MismatchError, match="unfinished"):
        MilvusIndex(collection(database, "repeated"), SearchSettings())


def test_rows_that_the_server_lost_are_noticed(database, source, monkeypatch):
    monkeypatch.setattr(Collection, "count", lambda self: 59)
    with pytest.raises(ServerError, match="holds 59 rows where 60 were written"):
        load(source, database, "lost")


def test_nobody_answers(monkeypatch):
    monkeypatch.setattr(milvus, "TIMEOUT", 3)
    start = time.perf_counter()
    with pytest.raises(ServerError, match=r"c of http://127\.0\.0\.1:9 cannot be reached"):
        Collection(CollectionSettings("http://127.0.0.1:9", "c"))
    assert time.perf_counter() - start < 8


@pytest.mark.parametrize(
    ("message", "kind", "hint"),
    [
        ("no such field", ServerError, None),
        ("[Errno 28] No space left on device", OutputError, "--resume"),
        ("disk quota exceeded, please allocate more resources", OutputError, "--resume"),
        ("auth check failure, please check username", ServerError, "DENSERK_MILVUS_TOKEN"),
        ("me:s3cret is unknown, s3cret is wrong", ServerError, None),
    ],
)
def test_errors_are_one_line_without_the_token(database, monkeypatch, message, kind, hint):
    monkeypatch.setenv("DENSERK_MILVUS_TOKEN", "me:s3cret")

    def fail(*_, **__):
        raise pymilvus.MilvusException(1, f"{message}\nmore")

    with closing(Collection(collection(database))) as held:
        monkeypatch.setattr(held._client, "has_collection", fail)
        with pytest.raises(kind, match="cannot be looked up: ") as caught:
            held.exists()
    scrubbed = message.replace("me:s3cret", "***").replace("s3cret", "***")
    assert caught.value.message.endswith(f"looked up: {scrubbed}")
    assert (hint is None) == (caught.value.hint is None)
    assert hint is None or hint in caught.value.hint


def test_the_token_reaches_the_server_alone(monkeypatch):
    asked: list[dict[str, Any]] = []
    monkeypatch.setenv("DENSERK_MILVUS_TOKEN", "s3cret")
    monkeypatch.setattr(pymilvus, "MilvusClient", lambda uri, **named: asked.append(named))
    Collection(CollectionSettings("https://host", "c"))
    assert asked[0]["token"] == "s3cret"


def test_files_that_cannot_be_opened(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        Collection(collection(tmp_path / "none.db"))
    assert not list(tmp_path.iterdir())
    (tmp_path / "old.db").write_bytes(b"milvus-lite 2")
    with pytest.raises(UsageError, match="not a folder of milvus-lite 3"):
        Collection(collection(tmp_path / "old.db"), create=True)
    (tmp_path / "b.db").mkdir()
    with (tmp_path / "b.db" / "LOCK").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ServerError, match=r"b\.db cannot be opened \(does another process"):
            Collection(collection(tmp_path / "b.db"))


@pytest.mark.parametrize("given", [("a.db", None), (None, "c")])
def test_a_collection_needs_an_address_and_a_name(given):
    with pytest.raises(UsageError, match="--engine milvus needs an address and a collection"):
        Collection(CollectionSettings(*given))


def test_without_the_client(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(MissingExtraError, match="--engine milvus needs the package pymilvus"):
        Collection(CollectionSettings("http://127.0.0.1:9", "c"))
