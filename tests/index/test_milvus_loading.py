import json
import re
import signal
import subprocess
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

from denserk.commands.app import run
from denserk.config.encoding import ComputeSettings, EncodeSettings
from denserk.config.formats import CorpusSettings
from denserk.config.milvus import MilvusIndexSettings
from denserk.config.retrieval import IndexPaths, IndexSettings, IndexType, SearchSettings
from denserk.errors import UsageError
from denserk.index import milvus
from denserk.index.build import build_index
from denserk.index.exact import ExactIndex
from denserk.index.milvus import MilvusIndex, build_collection
from denserk.index.searcher import Searcher
from denserk.tasks.encode import encode
from tests.faults import limit_file_size
from tests.milvus import MILVUS, collection, require_milvus, write_vectors
from tests.reporters import Heard

require_milvus()

CPU = ComputeSettings(device="cpu")
LINE = re.compile(r"^error: .*\n(  .*\n)?$")


def vectors_of(toy, model, name, side="corpus"):
    source = toy / ("corpus.jsonl" if side == "corpus" else "queries.tsv")
    given: dict[str, Any] = {side: str(source)}
    settings = EncodeSettings(model=str(model), output=str(toy / name), **given)
    encode(settings, CorpusSettings(), {}, {}, CPU)
    return str(toy / name)


def told(capsys, *line):
    """A command's exit status, and its error, which is one line and a hint."""
    status = run(line)
    error = capsys.readouterr().err
    error = error[error.index("error: ") :] if "error: " in error else ""
    assert status == 0 or LINE.match(error), error
    return status, error


def test_the_run_is_that_of_a_folder(toy, tiny, capsys):
    model = tiny("bert")
    vectors = vectors_of(toy, model, "v")
    place = ["--engine", "milvus", "--uri", str(toy / "new/a.db"), "--collection", "passages"]
    topics = ["--topics", str(toy / "queries.tsv"), "--hits", "4"]
    assert run(["index", "--input", vectors, *place]) == 0
    assert "collection passages of" in capsys.readouterr().err
    assert run(["index", "--input", vectors, "--output", str(toy / "i")]) == 0
    assert run(["search", *place, *topics, "--output", str(toy / "milvus.trec")]) == 0
    assert run(["search", "--index", str(toy / "i"), *topics, "--output", str(toy / "i.trec")]) == 0
    columns = [
        [line.split()[:4] for line in (toy / name).read_text().splitlines()]
        for name in ("milvus.trec", "i.trec")
    ]
    assert columns[0] == columns[1]
    made_from = json.loads((toy / "milvus.trec.manifest.json").read_text())["made_from"]
    assert made_from["index"]["name"] == f"collection passages of {toy / 'new/a.db'}"

    other = ["--model", str(tiny("bert", seed=8)), "--output", str(toy / "o")]
    status, error = told(capsys, "search", *place, *topics, *other)
    assert status == 1
    assert "were not made alike: other weights" in error
    write_vectors(toy / "q.jsonl", ["q1"], np.ones((1, 3), np.float32))
    short = ["--encoded-queries", str(toy / "q.jsonl"), "--output", str(toy / "o")]
    status, error = told(capsys, "search", *place, *short)
    assert status == 1
    assert re.search(
        r"collection passages of .* holds vectors of \d+ dimensions, .* makes 3", error
    )

    status, error = told(capsys, "index", "--input", vectors, *place)
    assert status == 2
    assert "already" in error
    assert run(["index", "--input", vectors, *place, "--resume"]) == 0
    assert "is finished: nothing to do" in capsys.readouterr().err
    flags = ["--resume", "--set", "milvus-index=HNSW"]
    status, error = told(capsys, "index", "--input", vectors, *place, *flags)
    assert status == 1
    assert "milvus_index was 'FLAT', now 'HNSW'" in error
    assert run(["index", "--input", vectors, *place, "--overwrite"]) == 0


def test_the_recall_of_an_approximate_index(tmp_path):
    vectors = np.random.default_rng(1).normal(size=(300, 8)).astype(np.float32)
    source = write_vectors(tmp_path / "v.jsonl", [f"d{n}" for n in range(300)], vectors)
    reporter = Heard()
    recalls: list[Any] = [
        build_collection(
            IndexPaths(input=(source,)),
            MILVUS,
            MilvusIndexSettings(
                str(tmp_path / "a.db"), f"c{lists}", milvus_index=kind, milvus_params=params
            ),
        ).recall
        for lists, kind, params in (
            (1, "IVF_FLAT", ("nlist=1",)),
            (64, "IVF_FLAT", ("nlist=64",)),
            (0, "FLAT", None),
        )
    ]
    assert recalls[0] == 1
    assert 0.1 < recalls[1] < 1
    assert recalls[2] is None
    told = f"IVF_FLAT: recall@10 {recalls[1]:.3f}, for 100 of its own vectors"
    assert any(note.startswith(told) for note in reporter.notes)


@pytest.mark.parametrize("command", ["index", "search"])
def test_a_server_that_is_not_there(tmp_path, capsys, monkeypatch, command):
    monkeypatch.setattr(milvus, "TIMEOUT", 3)
    source = write_vectors(tmp_path / "v.jsonl", ["a"], np.ones((1, 3), np.float32))
    flag = "--input" if command == "index" else "--encoded-queries"
    line = [command, flag, source, "--engine", "milvus", "--uri", "http://127.0.0.1:9"]
    line += ["--collection", "c"]
    line += ["--output", str(tmp_path / "o")] if command == "search" else []
    status, error = told(capsys, *line)
    assert status == 1
    assert "c of http://127.0.0.1:9 cannot be reached" in error


def test_kinds_of_index_that_the_server_does_not_know(tmp_path, capsys):
    source = write_vectors(tmp_path / "v.jsonl", ["a"], np.ones((1, 3), np.float32))
    line = ["index", "--input", source, "--engine", "milvus", "--uri", str(tmp_path / "a.db")]
    status, error = told(capsys, *line, "--collection", "c", "--set", "milvus-index=NOPE")
    assert status == 1
    assert "NOPE" in error


@pytest.mark.parametrize(
    ("paths", "settings", "message"),
    [
        ({"input": ("v",), "output": "o"}, {}, "--output o is not for"),
        ({"input": ("v",), "trained_as": "i"}, {}, "--trained-as i is not for"),
        ({"corpus": "c"}, {}, "--corpus c is not for"),
        ({"input": ("v",)}, {"type": IndexType.HNSW}, "--type hnsw is not for --engine milvus"),
        ({"input": ("v",)}, {"factory": "Flat"}, "--factory Flat is not for"),
        ({"input": ("v",)}, {"M": 32}, "--set M 32 is not for --engine milvus"),
    ],
)
def test_what_a_collection_does_not_take(paths, settings, message):
    chosen = IndexSettings(engine=MILVUS.engine, **settings)
    with pytest.raises(UsageError, match=message):
        build_collection(IndexPaths(**paths), chosen, MilvusIndexSettings("a.db", "c"))


def test_a_folder_needs_a_name():
    for settings in (IndexSettings(), MILVUS):
        with pytest.raises(UsageError, match="an index goes into a folder"):
            build_index(IndexPaths(input=("v",)), settings)


COUNT = 10_000  # more than ten attempts load before they are killed
IDS = [f"d{n}" for n in range(COUNT)]
VECTORS = np.random.default_rng(1).normal(size=(COUNT, 16)).astype(np.float32)


def command(folder, *more):
    line = [sys.executable, "-m", "denserk", "index", "--input", str(folder / "v.jsonl")]
    line += ["--engine", "milvus", "--uri", str(folder / "a.db"), "--collection", "passages"]
    return [*line, "--set", "milvus-batch=4", *more]


@pytest.mark.slow
def test_a_disk_that_is_full(tmp_path):
    write_vectors(tmp_path / "v.jsonl", IDS, VECTORS)
    small = partial(limit_file_size, 100_000)
    done = subprocess.run(
        command(tmp_path), preexec_fn=small, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert LINE.match(done.stderr[done.stderr.index("error: ") :]), done.stderr
    assert "File too large" in done.stderr
    subprocess.run(command(tmp_path, "--resume"), check=True)
    assert_complete(tmp_path)


def assert_complete(folder):
    """The collection's count, and its 100 best for some queries, are those of exact search."""
    queries = np.random.default_rng(2).normal(size=(5, 16)).astype(np.float32)
    qids = [f"q{n}" for n in range(len(queries))]
    rules = SearchSettings(hits=100)
    index = MilvusIndex(collection(folder / "a.db"), rules)
    try:
        assert len(index) == COUNT
        found = dict(Searcher(index, index.ids, rules).search(qids, queries))
    finally:
        index.close()
    right = dict(Searcher(ExactIndex(VECTORS), IDS, rules).search(qids, queries))
    for qid in qids:
        assert [docid for docid, _ in found[qid]] == [docid for docid, _ in right[qid]]


@pytest.mark.slow
def test_a_load_that_is_killed_ten_times(tmp_path):
    write_vectors(tmp_path / "v.jsonl", IDS, VECTORS)
    random = np.random.default_rng(7)
    onward, killed = [], 0
    while killed < 10:
        with (tmp_path / "told").open("w+") as told_to:
            process = subprocess.Popen(
                command(tmp_path, *(["--resume"] if (tmp_path / "a.db").exists() else [])),
                stderr=told_to,
            )
            wal = tmp_path / "a.db/collections/passages/wal"
            before = sizes(wal)
            while process.poll() is None and sizes(wal) == before:
                time.sleep(0.01)
            time.sleep(random.uniform(0, 0.15))
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL, told_to.seek(0) or told_to.read()
            killed += 1
            told_to.seek(0)
            onward += re.findall(r"([\d,]+) rows are there", told_to.read())
    done = subprocess.run(
        command(tmp_path, "--resume"), stderr=subprocess.PIPE, text=True, check=True
    )
    there = [int(rows.replace(",", "")) for rows in onward]
    assert there == sorted(there)
    assert there[-1] > 0
    assert f"{COUNT:,} rows" in done.stderr
    assert_complete(tmp_path)


def sizes(folder):
    """Bytes of the files of a folder, which may be on its way."""
    try:
        return sum(item.stat().st_size for item in folder.iterdir())
    except FileNotFoundError:
        return 0
