import fcntl
import json
import re
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
WHOLE, QUERIES = whole_numbers(1, COUNT), whole_numbers(2, 5)
RIGHT = -np.sort(-(QUERIES @ WHOLE.T), axis=1)
LINE = re.compile(r"^error: .*\n(  .*\n)?$")


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A file with a collection of each kind that the tests ask for."""
    folder = tmp_path_factory.mktemp("milvus")
    source = write_vectors(folder / "v.jsonl", IDS, WHOLE)
    load(source, folder / "a.db", "flat")
    load(source, folder / "a.db", "hnsw", milvus_index="HNSW", milvus_params=("M=16",))
    load(source, folder / "a.db", "ivf", milvus_index="IVF_FLAT", milvus_params=("nlist=8",))
    return folder / "a.db"


def searching(database, name, rules=SearchSettings(hits=10), **settings):  # noqa: B008
    return closing(MilvusIndex(collection(database, name, **settings), rules))


@pytest.mark.parametrize(
    ("name", "rules", "given"),
    [
        ("flat", {}, ()),
        ("hnsw", {"ef_search": 2 * COUNT}, ()),
        ("ivf", {"nprobe": 8}, ()),
        ("ivf", {}, ("nprobe=8",)),
    ],
)
def test_all_rows_are_compared_where_asked(database, monkeypatch, name, rules, given):
    """Scores are exact, missing hits are padded, and two queries go into a request."""
    other = SearchSettings(nprobe=9) if name == "hnsw" else SearchSettings(ef_search=9)
    with pytest.raises(UsageError, match=r"--(ef-search|nprobe) 9: .* has an index \w+$"):
        searching(database, name, other)
    rules = SearchSettings(hits=10, **rules)
    with searching(database, name, rules, milvus_params=given or None) as index:
        assert index.is_exhaustive == (name == "flat")
        for depth in (1, COUNT + 30):
            monkeypatch.setattr(milvus, "HITS_AT_ONCE", 2 * depth)
            scores, rows = index.search(QUERIES, depth)
            there = min(depth, COUNT)
            np.testing.assert_array_equal(scores[:, :there], RIGHT[:, :depth])
            assert (scores[:, there:] == -np.inf).all()
            assert (rows[:, there:] == -1).all()
            named = np.take_along_axis(QUERIES @ WHOLE.T, rows[:, :there], axis=1)
            np.testing.assert_array_equal(named, scores[:, :there])


def test_passages_of_several_vectors_are_grouped_without_loss(tmp_path):
    ids = [f"p{n}" for n in range(50)]
    result = load(vector_folder(tmp_path / "v", ids, WHOLE, size=4), tmp_path / "a.db")
    assert result.count == 50
    for hits in (1, 12):
        rules = SearchSettings(hits=hits, ties=Ties.KEEP)
        with searching(tmp_path / "a.db", "passages", rules) as index:
            ranked = found(Searcher(index, index.names, rules, 4), "01234", QUERIES)
        for qid, query in zip("01234", QUERIES, strict=True):
            assert ranked[qid] == best(ids, WHOLE, query, hits, size=4)
    with pytest.raises(UsageError, match="--hits 4097 x 4: Milvus returns at most"):
        searching(tmp_path / "a.db", "passages", SearchSettings(hits=4097))


def test_what_cannot_be_searched(database):
    client = pymilvus.MilvusClient(str(database))
    client.create_collection("foreign", dimension=4)
    client.close()
    with pytest.raises(MismatchError, match=r"foreign of .* was not made by denserk"):
        searching(database, "foreign")
    with pytest.raises(UsageError, match="no collection none of "):
        searching(database, "none")
    with searching(database, "hnsw") as index, pytest.raises(ServerError, match="failed at search"):
        index.search(QUERIES[:, :3], 5)


NAMES = [f"d{n}" for n in range(60)]
REAL = np.random.default_rng(3).normal(size=(60, 4)).astype(np.float32)


@pytest.fixture
def source(tmp_path):
    return write_vectors(tmp_path / "v.jsonl", NAMES, REAL)


@pytest.mark.parametrize("step", [0, 1, 11])
def test_a_load_is_resumed_where_it_was_stopped(database, source, monkeypatch, step):
    """Every vector is the row of its number; one that is written twice is one row."""
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
    assert load(source, database, name, milvus_batch=4, resume=True).count == 60
    assert sent == list(range(step // 4 * 16, 60, 4))
    with closing(Collection(collection(database, name))) as connection:
        connection.call("load_collection")
        connection.write(0, NAMES[:10], REAL[:10])
        assert connection.count() == 60
        fields = ["row", "passage", "vector"]
        rows = connection.call("query", filter="row >= 0", output_fields=fields, limit=1000)
    rows = sorted((row["row"], row["passage"], [float(x) for x in row["vector"]]) for row in rows)
    assert rows == [(n, NAMES[n], REAL[n].tolist()) for n in range(60)]


def test_loads_that_go_wrong(database, tmp_path, source, monkeypatch):
    twice = write_vectors(tmp_path / "twice.jsonl", ["a", "b", "a"], REAL[:3])
    with pytest.raises(InputError, match="the id a twice: passages 1 and 3"):
        load(twice, database, "repeated")
    with pytest.raises(MismatchError, match="unfinished"):
        MilvusIndex(collection(database, "repeated"), SearchSettings())
    monkeypatch.setattr(Collection, "count", lambda self: 59)
    with pytest.raises(ServerError, match="holds 59 rows where 60 were written"):
        load(source, database, "lost")


def test_the_token_reaches_the_server_and_no_message(monkeypatch):
    asked: dict[str, Any] = {}

    def fail(*_, **__):
        raise pymilvus.MilvusException(1, "me:s3cret is unknown, s3cret is wrong\nmore")

    def client(*_, **named):
        asked.update(named)
        return SimpleNamespace(close=None, has_collection=fail)

    monkeypatch.setenv("DENSERK_MILVUS_TOKEN", "me:s3cret")
    monkeypatch.setattr(pymilvus, "MilvusClient", client)
    connection = Collection(CollectionSettings("https://host", "c"))
    assert asked["token"] == "me:s3cret"
    with pytest.raises(ServerError, match="failed at has_collection: ") as caught:
        connection.call("has_collection")
    assert caught.value.message.endswith(": *** is unknown, *** is wrong")


def test_what_cannot_be_opened_or_is_not_taken(tmp_path, monkeypatch):
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
    with pytest.raises(UsageError, match="--engine milvus needs an address and a collection"):
        Collection(CollectionSettings("a.db", None))
    paths, settings = IndexPaths(input=("v",)), IndexSettings(engine=MILVUS.engine, M=32)
    with pytest.raises(UsageError, match="--set M is not for --engine milvus"):
        build_collection(paths, settings, MilvusIndexSettings("a.db", "c"))
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(MissingExtraError, match="--engine milvus needs the package pymilvus"):
        Collection(CollectionSettings("http://127.0.0.1:9", "c"))


def error_of(capsys, *line):
    """Run a command that fails with status 1 or 2; return its error, one line and a hint."""
    assert run([str(word) for word in line]) in (1, 2)
    error = capsys.readouterr().err
    error = error[error.index("error: ") :]
    assert LINE.match(error), error
    return error


def test_the_run_is_that_of_a_folder(toy, tiny, capsys):
    model, vectors = tiny("bert"), str(toy / "v")
    settings = EncodeSettings(model=str(model), corpus=str(toy / "corpus.jsonl"), output=vectors)
    encode(settings, CorpusSettings(), ModelOptions(compute=ComputeSettings(device="cpu")))
    place = ["--engine", "milvus", "--uri", str(toy / "new/a.db"), "--collection", "passages"]
    topics = ["--topics", str(toy / "queries.tsv"), "--hits", "4"]
    assert run(["index", "--input", vectors, *place]) == 0
    assert "collection passages of" in capsys.readouterr().err
    assert run(["index", "--input", vectors, "--output", str(toy / "i")]) == 0
    assert run(["search", *place, *topics, "--output", str(toy / "milvus.trec")]) == 0
    assert run(["search", "--index", str(toy / "i"), *topics, "--output", str(toy / "i.trec")]) == 0
    milvus_run, run_of_folder = (read_run_scores(toy / f"{n}.trec") for n in ("milvus", "i"))
    assert [*milvus_run] == [*run_of_folder]
    for qid, hits in milvus_run.items():
        assert [*hits] == [*run_of_folder[qid]]
    made_from = json.loads((toy / "milvus.trec.manifest.json").read_text())["made_from"]
    assert made_from["index"]["name"] == "collection passages of ./new/a.db"

    other = ["--model", tiny("bert", seed=8), "--output", toy / "o"]
    assert "other weights" in error_of(capsys, "search", *place, *topics, *other)
    assert "already" in error_of(capsys, "index", "--input", vectors, *place)
    changed = ["--input", vectors, *place, "--resume", "--set", "milvus-index=HNSW"]
    assert "milvus_index was 'FLAT', now 'HNSW'" in error_of(capsys, "index", *changed)
    assert run(["index", "--input", vectors, *place, "--overwrite"]) == 0
    assert run(["index", "--input", vectors, *place, "--resume"]) == 0
    assert "is finished: nothing to do" in capsys.readouterr().err


def test_a_collection_of_int8_vectors_is_searched_in_float32(toy, tiny, openvino, caplog):
    """A server has no folder in which the int8 model of the passages could be."""
    vectors = toy / "v"
    settings = EncodeSettings(
        model=str(tiny("bert")), corpus=str(toy / "corpus.jsonl"), output=str(vectors)
    )
    compute = ComputeSettings(device="cpu", backend=Backend.OPENVINO)
    encode(settings, CorpusSettings(), ModelOptions(compute=compute))
    manifest = json.loads((vectors / "manifest.json").read_text())
    manifest["made_from"]["model"]["int8"] = {"sha256": "0" * 64}
    (vectors / "manifest.json").write_text(json.dumps(manifest))
    place = ["--engine", "milvus", "--uri", str(toy / "a.db"), "--collection", "passages"]
    assert run(["index", "--input", str(vectors), *place]) == 0
    search = ["search", *place, "--topics", str(toy / "queries.tsv"), "--backend", "openvino"]
    with caplog.at_level("INFO"):
        assert run([*search, "--output", str(toy / "o.trec")]) == 0
    assert "queries are encoded in float32" in caplog.text
    assert read_run_scores(toy / "o.trec")


@pytest.mark.parametrize("command", ["index", "search"])
def test_a_server_that_is_not_there(tmp_path, capsys, monkeypatch, command):
    monkeypatch.setattr(milvus, "TIMEOUT", 3)
    source = write_vectors(tmp_path / "v.jsonl", ["a"], REAL[:1])
    flag = "--input" if command == "index" else "--encoded-queries"
    line = [command, flag, source, "--engine", "milvus", "--uri", "http://127.0.0.1:9"]
    line += ["--collection", "c"]
    line += ["--output", str(tmp_path / "o")] if command == "search" else []
    start = time.perf_counter()
    assert "c of http://127.0.0.1:9 cannot be reached" in error_of(capsys, *line)
    assert time.perf_counter() - start < 15


MANY = [f"d{n}" for n in range(10_000)]  # more than ten attempts load before they are killed
VECTORS = np.random.default_rng(1).normal(size=(len(MANY), 16)).astype(np.float32)


def test_the_recall_of_an_approximate_index(tmp_path):
    source = write_vectors(tmp_path / "v.jsonl", MANY[:300], VECTORS[:300])
    for lists, least, most in ((1, 1, 1), (64, 0.1, 0.999)):
        kind: dict[str, Any] = {"milvus_index": "IVF_FLAT", "milvus_params": (f"nlist={lists}",)}
        assert least <= (load(source, tmp_path / "a.db", f"c{lists}", **kind).recall or 0) <= most


def command(folder, *more):
    line = [sys.executable, "-m", "denserk", "index", "--input", str(folder / "v.jsonl")]
    line += ["--engine", "milvus", "--uri", str(folder / "a.db"), "--collection", "passages"]
    return [*line, "--set", "milvus-batch=4", *more]


@pytest.mark.slow
def test_a_load_that_is_killed_ten_times(tmp_path):
    write_vectors(tmp_path / "v.jsonl", MANY, VECTORS)
    random, wal, onward = np.random.default_rng(7), tmp_path / "a.db/collections/passages/wal", []
    for _ in range(10):
        resume = ["--resume"] if (tmp_path / "a.db").exists() else []
        with (tmp_path / "log").open("w+") as log:
            process = subprocess.Popen(command(tmp_path, *resume), stderr=log)
            before = size(wal)
            while process.poll() is None and size(wal) == before:
                time.sleep(0.01)
            time.sleep(random.uniform(0, 0.15))
            process.kill()
            assert process.wait() == -signal.SIGKILL, (tmp_path / "log").read_text()
            onward += re.findall(r"([\d,]+) rows are there", (tmp_path / "log").read_text())
    subprocess.run(command(tmp_path, "--resume"), check=True)
    there = [int(rows.replace(",", "")) for rows in onward]
    assert there == sorted(there)
    assert there[-1] > 0
    queries, rules = VECTORS[:5] + 0.5, SearchSettings(hits=100)
    with searching(tmp_path / "a.db", "passages", rules) as index:
        assert len(index) == len(MANY)
        ranked = found(Searcher(index, index.names, rules), "abcde", queries)
    for hits, query in zip(ranked.values(), queries, strict=True):
        assert [d for d, _ in hits] == [d for d, _ in best(MANY, VECTORS, query, 100)]


def size(folder):
    """Bytes of the files of a folder, which may be on its way."""
    try:
        return sum(item.stat().st_size for item in folder.iterdir())
    except FileNotFoundError:
        return 0
