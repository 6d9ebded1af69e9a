"""Whole pipelines, as users type them: text to measures, questions to answers, other toolkits.

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
    """Run one command in this process."""
    assert run(line.split()) == status, line


def script(path, text):
    """Write a program."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def ranking(path):
    """Return qid -> docids in the order of a run."""
    return {qid: [*hits] for qid, hits in read_run_scores(path).items()}


@pytest.fixture(scope="module", autouse=True)
def made(tiny, tmp_path_factory):
    """Work in a folder with a collection, a model m, indexes, two runs, and `denserk` in bin."""
    folder = write_toy(tmp_path_factory.mktemp("pipelines") / "made")
    (folder / "queries.tsv").rename(folder / "q.tsv")
    shutil.copytree(tiny("bert"), folder / "m")
    script(folder / "bin/denserk", f'#!/bin/sh\nexec "{sys.executable}" -m denserk "$@"\n')
    with pytest.MonkeyPatch.context() as changed:
        changed.chdir(folder)
        denserk("encode --model m --corpus corpus.jsonl --output vectors")
        denserk("index --input vectors --output idx")
        denserk("index --corpus corpus.jsonl --type bm25 --output bm25")
        denserk("search --index idx --topics q.tsv --output run.denserk.txt")
        denserk("search --index bm25 --topics q.tsv --output run.bm25.txt")
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


PSGS = """id\ttext\ttitle
1\tthe old river runs to the south\tSahara
2\t"the star ""falls"" in the night"\tStar
3\tthe Cat, it sleeps in the house\tHouse
4\tthe moon rises and the star falls\tMoon
5\ta red café on blue water\tCafé
6\tthe big dog eats fish\tDog
"""
# NQ's rows are bare, TriviaQA's quoted; the third answer is in a title alone.
QA = """who sleeps in the house\t['cat', 'a tiger']
what falls\t"['the star', ""moon's light""]"
what is dry\t['Sahara']
what is red\t['cafe\u0301']
"""
ANSWERS = [["cat", "a tiger"], ["the star", "moon's light"], ["Sahara"], ["cafe\u0301"]]
HOLDS: list[set[str]] = [{"3"}, {"2", "4"}, set(), {"5"}]
EVALUATE = "eval --run qa.trec --corpus psgs_w100.tsv --set topk=1,2,6 --format tsv --answers"


@pytest.fixture(scope="module")
def hits():
    """Questions with answers in every format, and a run; returns the hits of each question."""
    Path("psgs_w100.tsv").write_text(PSGS)
    Path("nq.qa.csv").write_text(QA)
    asked = [line.split("\t")[0] for line in QA.splitlines()]
    rows = [{"question": q, "answers": a} for q, a in zip(asked, ANSWERS, strict=True)]
    Path("trivia.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    positives = [{"passage_id": "1", "title": "Sahara", "text": "the old river runs to the south"}]
    contexts = {"positive_ctxs": positives, "negative_ctxs": [], "hard_negative_ctxs": []}
    Path("train.json").write_text(json.dumps([row | contexts for row in rows], indent=1))
    denserk("encode --model m --corpus psgs_w100.tsv --output qa-emb")
    denserk("index --input qa-emb --output qa-idx")
    denserk("search --index qa-idx --topics nq.qa.csv --output qa.trec")
    written = "--write-dpr-json contexts.json --write-pyserini-json pyserini.json"
    denserk(f"{EVALUATE} nq.qa.csv {written}")
    return [*ranking("qa.trec").values()]


def by_hand(hits, depth):
    """Return the share of questions with an answer among their first hits."""
    return sum(bool(h & {*d[:depth]}) for h, d in zip(HOLDS, hits, strict=True)) / len(HOLDS)


def test_answers_of_every_format_are_counted_as_by_hand(hits, capsys):
    assert by_hand(hits, 6) == 0.75
    for answers in ["nq.qa.csv", "trivia.jsonl", "train.json", "contexts.json", "pyserini.json"]:
        capsys.readouterr()
        denserk(f"{EVALUATE} {answers}")
        found = capsys.readouterr().out.splitlines()
        assert found == [f"Success@{k}\t{by_hand(hits, k):.4f}" for k in (1, 2, 6)], answers
    entries = json.loads(Path("contexts.json").read_text())
    assert [entry["answers"] for entry in entries] == ANSWERS
    assert [[context["id"] for context in entry["ctxs"]] for entry in entries] == hits
    for entry, holds in zip(entries, HOLDS, strict=True):
        assert {context["id"] for context in entry["ctxs"] if context["has_answer"]} == holds
    assert entries[1]["ctxs"][hits[1].index("2")]["text"] == 'the star "falls" in the night'


@pytest.mark.peer
@pytest.mark.slow
def test_pyserini_searches_fuses_and_counts_answers(hits, peers):
    peers(
        "denserk encode --topics q.tsv --model m --output enc-q --output-format pyserini-queries"
        " && python -m pyserini.search.faiss --index idx --encoded-queries enc-q --topics q.tsv"
        " --output run.pyserini.txt"
        " && python -m pyserini.fusion --method rrf --runs run.bm25.txt run.denserk.txt"
        " --output run.rrf.txt --runtag rrf"
    )
    assert ranking("run.pyserini.txt") == ranking("run.denserk.txt")
    denserk("fuse run.bm25.txt run.denserk.txt --output own.rrf.txt --set ties=keep")
    theirs, ours = read_run_scores("run.rrf.txt"), read_run_scores("own.rrf.txt")
    assert {qid: pytest.approx(found, abs=1e-6) for qid, found in theirs.items()} == ours
    questions = json.loads(Path("pyserini.json").read_text())
    for context in (context for question in questions.values() for context in question["contexts"]):
        del context["has_answer"]  # Pyserini then looks for the answers itself
    Path("unmatched.json").write_text(json.dumps(questions))
    expected = [f"Top{k}\taccuracy: {by_hand(hits, k):.4f}" for k in (1, 2, 6)]
    evaluate = "python -m pyserini.eval.evaluate_dpr_retrieval --topk 1 2 6 --retrieval"
    for name in ("pyserini", "unmatched"):
        assert peers(f"{evaluate} {name}.json").splitlines() == expected


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
