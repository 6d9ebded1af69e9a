"""Whole pipelines, as users type them: text to measures, and with other toolkits.

All tests work in one folder, `made`, and read what it has at the start.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from denserk.commands.app import run
from denserk.index.bm25 import anserini_jar
from denserk.io.runs import read_run_scores
from tests.conftest import PASSAGES, write_toy
from tests.peers import WITHOUT_VECTORS, has_vectors, java_home, peer_environment

# trec_eval 9, which Anserini's jar carries, reads runs from files; 10 reads `-` too.
TREC_EVAL = """#!/bin/bash
if [[ ${@: -1} == - ]]; then cat >piped.txt && set -- "${@:1:$#-1}" piped.txt; fi
exec java -cp "$ANSERINI" trec_eval "$@"
"""


def denserk(line, status=0):
    assert run(line.split()) == status, line


def script(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def ranking(path):
    return {qid: [*hits] for qid, hits in read_run_scores(path).items()}


@pytest.fixture(scope="module", autouse=True)
def made(tiny, tmp_path_factory):
    """Work in a folder with a collection, a model m, an index, a run, and `denserk` in bin."""
    folder = write_toy(tmp_path_factory.mktemp("pipelines") / "made")
    (folder / "queries.tsv").rename(folder / "q.tsv")
    shutil.copytree(tiny("bert"), folder / "m")
    script(folder / "bin/denserk", f'#!/bin/sh\nexec "{sys.executable}" -m denserk "$@"\n')
    with pytest.MonkeyPatch.context() as changed:
        changed.chdir(folder)
        denserk("encode --model m --corpus corpus.jsonl --output vectors")
        denserk("index --input vectors --output idx")
        denserk("search --index idx --topics q.tsv --output run.denserk.txt")
        yield folder


@pytest.fixture
def shell(made, monkeypatch):
    """`shell(line)`: run a line in bash; return its standard output."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("PATH", f"{made}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}")

    def typed(line):
        command = ["bash", "-o", "pipefail", "-c", line]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout

    return typed


@pytest.fixture
def peers(made, shell, monkeypatch):
    """`shell` with Pyserini, its Java, trec_eval and $ANSERINI."""
    pytest.importorskip("pyserini")
    for name, value in (peer_environment() | {"ANSERINI": str(anserini_jar())}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{java_home()}/bin", prepend=":")
    script(made / "bin/trec_eval", TREC_EVAL)
    if not has_vectors(java_home()):
        script(made / "bin/sitecustomize.py", WITHOUT_VECTORS)
        monkeypatch.setenv("PYTHONPATH", f"{made}/bin", prepend=":")
    return shell


@pytest.mark.slow
def test_json_lines_carry_the_model_from_encode_to_search(shell):
    measures = shell(
        "denserk encode --corpus corpus.jsonl --model m --backend torch"
        " --output - --output-format jsonl | tee v.jsonl | denserk index --input - --output piped"
        " && denserk search --index piped --topics q.tsv --output - | tee piped.txt"
        " | denserk eval --qrels qrels.txt --run - --format tsv"
    )
    assert len(measures.splitlines()) == 3
    assert Path("piped.txt").read_bytes() == Path("run.denserk.txt").read_bytes()
    denserk("convert v.jsonl npy --to npy")
    denserk("convert npy again.jsonl --to jsonl")
    for path in ("v.jsonl", "again.jsonl"):
        records = [json.loads(line) for line in Path(path).read_text().splitlines()]
        assert [record.pop("id") for record in records] == [*PASSAGES]
        assert records[0].pop("denserk_manifest")["made_from"]["model"]["name"] == "m"
        assert {tuple(record) for record in records} == {("contents", "vector")}
    Path("v.jsonl").write_text(Path("v.jsonl").read_text().replace('"vectors"', '"cake"', 1))
    denserk("index --input v.jsonl --output broken", status=1)
    assert not Path("broken").exists()


# NQ's rows are bare, TriviaQA's quoted; the third answer is in a title alone.


@pytest.mark.peer
@pytest.mark.slow
def test_anserinis_bm25_is_fused_and_measured_as_by_trec_eval(peers):
    peers(
        "mkdir texts && denserk convert corpus.jsonl texts/corpus.jsonl --to anserini"
        " && java -cp $ANSERINI io.anserini.index.IndexCollection -collection JsonCollection"
        " -input texts -index anserini -threads 1 -optimize"
        " && java -cp $ANSERINI io.anserini.search.SearchCollection -index anserini -topics q.tsv"
        " -topicReader TsvString -output run.anserini.txt -bm25 -hits 1000"
        " && denserk search --index anserini --topics q.tsv --output run.lucene.txt"
    )
    assert ranking("run.lucene.txt") == ranking("run.anserini.txt")
    denserk("fuse run.anserini.txt run.denserk.txt --output run.fused.txt")
    measures = "-m ndcg_cut.3,10 -m map -m recall.2,100 qrels.txt"
    search = "denserk search --index idx --model m --topics q.tsv --output -"
    for theirs, run_file in (
        ("python -m pyserini.eval.trec_eval -c", "run.anserini.txt"),
        ("trec_eval -c", "run.fused.txt"),
        (f"{search} | trec_eval -c", "-"),
    ):
        expected = peers(f"{theirs} {measures} {run_file}").splitlines()
        own = run_file.replace("-", "run.denserk.txt")
        found = peers(f"denserk eval --format trec_eval {measures} {own}").splitlines()
        assert sorted(map(str.split, found)) == sorted(map(str.split, expected))
