import fcntl
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from denserk.commands.app import run
from denserk.config.encoding import Backend, ComputeSettings, EncodeSettings, ModelOptions
from denserk.config.formats import CorpusSettings
from denserk.config.retrieval import (
    CollectionSettings,
    IndexPaths,
    IndexSettings,
    MilvusIndexSettings,
    SearchSettings,
    Ties,
)
from denserk.errors import InputError, MismatchError, MissingExtraError, ServerError, UsageError
from denserk.index import milvus
from denserk.index.milvus import Collection, MilvusIndex
from denserk.index.searcher import Searcher
from denserk.io.runs import read_run_scores
from denserk.tasks.build_collection import build_collection
from denserk.tasks.encode import encode
from tests.support.faults import Stopped, stopped_at
from tests.support.index_folders import best, found, vector_folder, whole_numbers
from tests.support.milvus import MILVUS, collection, load, require_milvus, write_vectors

require_milvus()
pymilvus: Any = pytest.importorskip("pymilvus")

COUNT = 200
IDS = [f"d{n}" for n in range(COUNT)]
VECTORS = whole_numbers(1, COUNT)
QUERIES = whole_numbers(2, 5)
PRODUCTS = QUERIES @ VECTORS.T
SORTED_PRODUCTS = -np.sort(-PRODUCTS, axis=1)
ERROR_AND_HINT = re.compile(r"^error: .*\n(  .*\n)?$")


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A file with a collection of each kind that the tests ask for."""
    folder = tmp_path_factory.mktemp("milvus")
    source = write_vectors(folder / "v.jsonl", IDS, VECTORS)
    load(source, folder / "a.db", "flat")
    load(source, folder / "a.db", "hnsw", milvus_index="HNSW", milvus_params=("M=16",))
    load(source, folder / "a.db", "ivf", milvus_index="IVF_FLAT", milvus_params=("nlist=8",))
    return folder / "a.db"


def opened(database, name, settings=SearchSettings(hits=10), **parameters):  # noqa: B008
    """An open collection, which is closed at the end of a `with`."""
    return closing(MilvusIndex(collection(database, name, **parameters), settings))


@pytest.mark.parametrize(
    ("name", "options", "milvus_params"),
    [
        ("flat", {}, None),
        ("hnsw", {"ef_search": 2 * COUNT}, None),
        ("ivf", {"nprobe": 8}, None),
        ("ivf", {}, ("nprobe=8",)),
    ],
)
def test_a_search_of_all_rows(database, monkeypatch, name, options, milvus_params):
    """Scores are exact, missing hits are padded, and two queries go into a request."""
    settings = SearchSettings(hits=10, **options)
    with opened(database, name, settings, milvus_params=milvus_params) as index:
        assert index.is_exhaustive == (name == "flat")
        for depth in (1, COUNT + 30):
            monkeypatch.setattr(milvus, "HITS_AT_ONCE", 2 * depth)
            scores, rows = index.search(QUERIES, depth)
            hit_count = min(depth, COUNT)
            np.testing.assert_array_equal(scores[:, :hit_count], SORTED_PRODUCTS[:, :depth])
            assert (scores[:, hit_count:] == -np.inf).all()
            assert (rows[:, hit_count:] == -1).all()
            products_of_rows = np.take_along_axis(PRODUCTS, rows[:, :hit_count], axis=1)
            np.testing.assert_array_equal(products_of_rows, scores[:, :hit_count])


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("flat", SearchSettings(ef_search=9)),
        ("hnsw", SearchSettings(nprobe=9)),
        ("ivf", SearchSettings(ef_search=9)),
    ],
)
def test_an_option_of_another_type_of_index(database, name, settings):
    with pytest.raises(UsageError, match=r"--(ef-search|nprobe) 9: .* has an index \w+$"):
        opened(database, name, settings)


def test_passages_of_several_vectors_are_grouped_without_loss(tmp_path):
    ids = [f"p{n}" for n in range(50)]
    source = vector_folder(tmp_path / "v", ids, VECTORS, size=4)
    assert load(source, tmp_path / "a.db").count == 50
    for hits in (1, 12):
        settings = SearchSettings(hits=hits, ties=Ties.KEEP)
        with opened(tmp_path / "a.db", "passages", settings) as index:
            ranking = found(Searcher(index, index.names, settings, 4), "01234", QUERIES)
        for qid, query in zip("01234", QUERIES, strict=True):
            assert ranking[qid] == best(ids, VECTORS, query, hits, size=4)
    with pytest.raises(UsageError, match="--hits 4097 x 4: Milvus returns at most"):
        opened(tmp_path / "a.db", "passages", SearchSettings(hits=4097))


def test_what_cannot_be_searched(database):
    client = pymilvus.MilvusClient(str(database))
    client.create_collection("foreign", dimension=4)
    client.close()
    with pytest.raises(MismatchError, match=r"foreign of .* was not made by denserk"):
        opened(database, "foreign")
    with pytest.raises(UsageError, match="no collection none of "):
        opened(database, "none")
    with opened(database, "hnsw") as index, pytest.raises(ServerError, match="failed at search"):
        index.search(QUERIES[:, :3], 5)


LOADED_IDS = [f"d{n}" for n in range(60)]
LOADED_VECTORS = np.random.default_rng(3).normal(size=(60, 4)).astype(np.float32)


@pytest.fixture
def source(tmp_path):
    return write_vectors(tmp_path / "v.jsonl", LOADED_IDS, LOADED_VECTORS)


# four passages in a request; after four requests the number of rows is noted
@pytest.mark.parametrize(("finished_requests", "first_row"), [(0, 0), (1, 0), (11, 2 * 4 * 4)])
def test_a_load_is_resumed_where_it_was_stopped(
    database, source, monkeypatch, finished_requests, first_row
):
    monkeypatch.setattr(milvus, "KEPT_EVERY", 4)
    name = f"stopped_{finished_requests}"
    with pytest.raises(Stopped), stopped_at(finished_requests, [(Collection, "write")]):
        load(source, database, name, milvus_batch=4)
    with pytest.raises(MismatchError, match="is unfinished"):
        opened(database, name)
    written_rows: list[int] = []
    write = Collection.write

    def write_and_count(self, first, ids, vectors):
        written_rows.append(first)
        write(self, first, ids, vectors)

    monkeypatch.setattr(Collection, "write", write_and_count)
    assert load(source, database, name, milvus_batch=4, resume=True).count == 60
    assert written_rows == list(range(first_row, 60, 4))
    assert_loaded(database, name)


@pytest.mark.parametrize("finished", [False, True])
def test_a_load_is_not_resumed_with_other_vectors(database, tmp_path, finished):
    name = f"other_vectors_{finished}"
    source = vector_folder(tmp_path / "v", LOADED_IDS, LOADED_VECTORS)
    if finished:
        load(source, database, name)
    else:
        with pytest.raises(Stopped), stopped_at(2, [(Collection, "write")]):
            load(source, database, name, milvus_batch=4)
    shutil.rmtree(source)
    vector_folder(tmp_path / "v", LOADED_IDS, LOADED_VECTORS + 1)
    with pytest.raises(MismatchError, match="was encoded again"):
        load(source, database, name, milvus_batch=4, resume=True)


def assert_loaded(database, name):
    """Every vector is the row of its number; one that is written twice is one row."""
    with closing(Collection(collection(database, name))) as connection:
        connection.call("load_collection")
        connection.write(0, LOADED_IDS[:10], LOADED_VECTORS[:10])
        assert connection.count() == 60
        fields = ["row", "passage", "vector"]
        rows = connection.call("query", filter="row >= 0", output_fields=fields, limit=1000)
    rows = sorted(rows, key=lambda row: row["row"])
    assert [row["row"] for row in rows] == list(range(60))
    assert [row["passage"] for row in rows] == LOADED_IDS
    np.testing.assert_array_equal([row["vector"] for row in rows], LOADED_VECTORS)


def test_an_id_that_occurs_twice_is_not_loaded(database, tmp_path):
    source = write_vectors(tmp_path / "twice.jsonl", ["a", "b", "a"], LOADED_VECTORS[:3])
    with pytest.raises(InputError, match="the id a twice: passages 1 and 3"):
        load(source, database, "repeated")
    with pytest.raises(MismatchError, match="unfinished"):
        opened(database, "repeated")


def test_a_server_that_loses_rows(database, source, monkeypatch):
    monkeypatch.setattr(Collection, "count", lambda self: 59)
    with pytest.raises(ServerError, match="holds 59 rows where 60 were written"):
        load(source, database, "lost")


def test_the_token_reaches_the_server_and_no_message(monkeypatch):
    client_options: dict[str, Any] = {}

    def fail(*_, **__):
        raise pymilvus.MilvusException(1, "me:s3cret is unknown, s3cret is wrong\nmore")

    def client(*_, **options):
        client_options.update(options)
        return SimpleNamespace(close=None, has_collection=fail)

    monkeypatch.setenv("DENSERK_MILVUS_TOKEN", "me:s3cret")
    monkeypatch.setattr(pymilvus, "MilvusClient", client)
    connection = Collection(CollectionSettings("https://host", "c"))
    assert client_options["token"] == "me:s3cret"
    with pytest.raises(ServerError, match="failed at has_collection: ") as caught:
        connection.call("has_collection")
    assert caught.value.message.endswith(": *** is unknown, *** is wrong")


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


def test_what_is_missing_or_has_no_effect(monkeypatch):
    with pytest.raises(UsageError, match="--engine milvus needs an address and a collection"):
        Collection(CollectionSettings("a.db", None))
    paths = IndexPaths(input=("v",))
    settings = IndexSettings(engine=MILVUS.engine, M=32)
    with pytest.raises(UsageError, match="--set M is not for --engine milvus"):
        build_collection(paths, settings, MilvusIndexSettings("a.db", "c"))
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(MissingExtraError, match="--engine milvus needs the package pymilvus"):
        Collection(CollectionSettings("http://127.0.0.1:9", "c"))


def error_of(capsys, *words):
    """Run a command that fails with status 1 or 2; return its error, one line and a hint."""
    assert run([str(word) for word in words]) in (1, 2)
    printed = capsys.readouterr().err
    error = printed[printed.index("error: ") :]
    assert ERROR_AND_HINT.match(error), error
    return error


def encode_toy(toy, model, **compute):
    """Encode the toy corpus by a model; return the folder of the vectors."""
    settings = EncodeSettings(
        model=str(model), corpus=str(toy / "corpus.jsonl"), output=str(toy / "v")
    )
    options = ModelOptions(compute=ComputeSettings(device="cpu", **compute))
    encode(settings, CorpusSettings(), options)
    return str(toy / "v")


def test_the_run_is_that_of_a_folder(toy, tiny, capsys):
    vectors = encode_toy(toy, tiny("bert"))
    in_milvus = ["--engine", "milvus", "--uri", str(toy / "new/a.db"), "--collection", "passages"]
    topics = ["--topics", str(toy / "queries.tsv"), "--hits", "4"]
    assert run(["index", "--input", vectors, *in_milvus]) == 0
    assert "collection passages of" in capsys.readouterr().err
    assert run(["index", "--input", vectors, "--output", str(toy / "i")]) == 0
    assert run(["search", *in_milvus, *topics, "--output", str(toy / "milvus.trec")]) == 0
    assert run(["search", "--index", str(toy / "i"), *topics, "--output", str(toy / "i.trec")]) == 0
    milvus_run = read_run_scores(toy / "milvus.trec")
    run_of_folder = read_run_scores(toy / "i.trec")
    assert list(milvus_run) == list(run_of_folder)
    for qid, hits in milvus_run.items():
        assert list(hits) == list(run_of_folder[qid])
    made_from = json.loads((toy / "milvus.trec.manifest.json").read_text())["made_from"]
    assert made_from["index"]["name"] == "collection passages of ./new/a.db"

    by_another_model = ["--model", tiny("bert", seed=8), "--output", toy / "o"]
    assert "other weights" in error_of(capsys, "search", *in_milvus, *topics, *by_another_model)
    loading = ["index", "--input", vectors, *in_milvus]
    assert "already" in error_of(capsys, *loading)
    as_hnsw = ["--resume", "--set", "milvus-index=HNSW"]
    assert "milvus_index was 'FLAT', now 'HNSW'" in error_of(capsys, *loading, *as_hnsw)
    assert run([*loading, "--overwrite"]) == 0
    assert run([*loading, "--resume"]) == 0
    assert "is finished: nothing to do" in capsys.readouterr().err


def test_a_collection_of_int8_vectors_is_searched_in_float32(toy, tiny, openvino, caplog):
    """A server has no folder in which the int8 model of the passages could be."""
    vectors = encode_toy(toy, tiny("bert"), backend=Backend.OPENVINO)
    manifest_file = toy / "v" / "manifest.json"
    manifest = json.loads(manifest_file.read_text())
    manifest["made_from"]["model"]["int8"] = {"sha256": "0" * 64}
    manifest_file.write_text(json.dumps(manifest))
    in_milvus = ["--engine", "milvus", "--uri", str(toy / "a.db"), "--collection", "passages"]
    assert run(["index", "--input", vectors, *in_milvus]) == 0
    search = ["search", *in_milvus, "--topics", str(toy / "queries.tsv"), "--backend", "openvino"]
    with caplog.at_level("INFO"):
        assert run([*search, "--output", str(toy / "o.trec")]) == 0
    assert "queries are encoded in float32" in caplog.text
    assert read_run_scores(toy / "o.trec")


@pytest.mark.parametrize(
    "words", [["index", "--input"], ["search", "--output", "run.trec", "--encoded-queries"]]
)
def test_a_server_that_is_not_there(tmp_path, capsys, monkeypatch, words):
    monkeypatch.setattr(milvus, "TIMEOUT", 3)
    monkeypatch.chdir(tmp_path)
    source = write_vectors(tmp_path / "v.jsonl", ["a"], LOADED_VECTORS[:1])
    server = ["--engine", "milvus", "--uri", "http://127.0.0.1:9", "--collection", "c"]
    started = time.perf_counter()
    error = error_of(capsys, *words, source, *server)
    assert "c of http://127.0.0.1:9 cannot be reached" in error
    assert time.perf_counter() - started < 15


MANY_IDS = [f"d{n}" for n in range(10_000)]  # more than ten attempts load before they are killed
MANY_VECTORS = np.random.default_rng(1).normal(size=(len(MANY_IDS), 16)).astype(np.float32)


@pytest.mark.parametrize(("lists", "least", "most"), [(1, 1, 1), (64, 0.1, 0.999)])
def test_the_recall_of_an_approximate_index(tmp_path, lists, least, most):
    source = write_vectors(tmp_path / "v.jsonl", MANY_IDS[:300], MANY_VECTORS[:300])
    milvus_params = (f"nlist={lists}",)
    result = load(source, tmp_path / "a.db", milvus_index="IVF_FLAT", milvus_params=milvus_params)
    assert result.recall is not None
    assert least <= result.recall <= most


def load_command(folder, *options):
    """The command that loads v.jsonl of a folder, four passages in a request."""
    program = [sys.executable, "-m", "denserk", "index", "--input", str(folder / "v.jsonl")]
    in_milvus = ["--engine", "milvus", "--uri", str(folder / "a.db"), "--collection", "passages"]
    return [*program, *in_milvus, "--set", "milvus-batch=4", *options]


@pytest.mark.slow
def test_a_load_that_is_killed_ten_times(tmp_path):
    write_vectors(tmp_path / "v.jsonl", MANY_IDS, MANY_VECTORS)
    random = np.random.default_rng(7)
    write_ahead_log = tmp_path / "a.db/collections/passages/wal"
    log_file = tmp_path / "log"
    resumed_at = []
    for _ in range(10):
        options = ["--resume"] if (tmp_path / "a.db").exists() else []
        with log_file.open("w+") as log:
            process = subprocess.Popen(load_command(tmp_path, *options), stderr=log)
            size_before = size(write_ahead_log)
            while process.poll() is None and size(write_ahead_log) == size_before:
                time.sleep(0.01)
            time.sleep(random.uniform(0, 0.15))
            process.kill()
            assert process.wait() == -signal.SIGKILL, log_file.read_text()
        for count in re.findall(r"([\d,]+) rows are there", log_file.read_text()):
            resumed_at.append(int(count.replace(",", "")))
    subprocess.run(load_command(tmp_path, "--resume"), check=True)
    assert resumed_at == sorted(resumed_at)
    assert resumed_at[-1] > 0
    queries = MANY_VECTORS[:5] + 0.5
    settings = SearchSettings(hits=100)
    with opened(tmp_path / "a.db", "passages", settings) as index:
        assert len(index) == len(MANY_IDS)
        ranking = found(Searcher(index, index.names, settings), "abcde", queries)
    for hits, query in zip(ranking.values(), queries, strict=True):
        expected = best(MANY_IDS, MANY_VECTORS, query, 100)
        assert [docid for docid, _ in hits] == [docid for docid, _ in expected]


def size(folder):
    """Bytes of the files of a folder, which may be on its way."""
    try:
        return sum(item.stat().st_size for item in folder.iterdir())
    except FileNotFoundError:
        return 0
