"""The whole walk through the command line: text, vectors, index, run, measures."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from denserk.cli.app import run
from tests.conftest import PASSAGES, QRELS, QUERIES

DENSERK = Path(sys.executable).with_name("denserk")


@pytest.fixture
def model(tiny):
    """A plain transformers folder with two random layers."""
    return tiny("bert")


def walk(*words):
    """One command, which must succeed."""
    assert run([str(word) for word in words]) == 0


def ranking(run_file):
    """qid -> docids, as the run lists them."""
    found: dict[str, list[str]] = {}
    for line in run_file.read_text().splitlines():
        qid, _, docid, _, _, _ = line.split()
        found.setdefault(qid, []).append(docid)
    return found


@pytest.mark.parametrize("representation", ["cls", "mean", "agg"])
def test_dense(toy, tiny, tiny_agg, representation, capsys):
    options = ["--model", tiny("bert"), "--representation", representation, "--l2-norm"]
    if representation == "agg":
        options = ["--model", tiny_agg("bert")]
    walk("encode", *options, "--corpus", toy / "corpus.jsonl", "--output", toy / "vectors")
    walk("encode", *options, "--topics", toy / "queries.tsv", "--output", toy / "queries")
    walk("index", "--input", toy / "vectors", "--output", toy / "index")
    walk(
        *("search", "--index", toy / "index", "--encoded-queries", toy / "queries"),
        *("--hits", 4, "--output", toy / "run.trec"),
    )
    passages = np.load(toy / "vectors" / "block-00000.npy")
    scores = np.load(toy / "queries" / "block-00000.npy") @ passages.T
    assert ranking(toy / "run.trec") == {
        qid: [list(PASSAGES)[row] for row in np.argsort(-scores[number])[:4]]
        for number, qid in enumerate(QUERIES)
    }
    capsys.readouterr()
    walk("eval", toy / "run.trec", toy / "qrels.txt", "-m", "Success@4 NumQ", "--format", "json")
    assert json.loads(capsys.readouterr().out)


def test_the_index_knows_the_model_of_its_queries(toy, model):
    walk(
        *("encode", "--model", model, "--corpus", toy / "corpus.jsonl"),
        *("--representation", "mean", "--output", toy / "vectors"),
    )
    walk("index", "--input", toy / "vectors", "--output", toy / "index")
    search = ("search", "--index", toy / "index", "--topics", toy / "queries.tsv", "--hits", 3)
    walk(*search, "--output", toy / "own.trec")
    walk(*search, "--output", toy / "named.trec", "--model", model, "--representation", "mean")
    assert (toy / "own.trec").read_bytes() == (toy / "named.trec").read_bytes()


def test_words(toy, capsys):
    walk("index", "--corpus", toy / "corpus.jsonl", "--type", "bm25", "--output", toy / "bm25")
    walk(
        *("search", "--index", toy / "bm25", "--topics", toy / "queries.tsv"),
        *("--output", toy / "bm25.trec"),
    )
    found = ranking(toy / "bm25.trec")
    assert {qid: docids[0] for qid, docids in found.items()} == {"q1": "d3", "q2": "d5", "q3": "d4"}
    capsys.readouterr()
    evaluate = ("eval", toy / "qrels.txt", toy / "bm25.trec", "-m", "RR@10")
    walk(*evaluate, "--format", "tsv", "--min", "RR@10=1.0")
    assert capsys.readouterr().out == "RR@10\t1.0000\n"
    (toy / "worse.trec").write_text("q1 Q0 d1 1 1.0 x\n")
    assert run([str(w) for w in (*evaluate[:2], toy / "worse.trec", "--min", "RR@10=0.5")]) == 1


def test_converted_judgements_measure_the_same(toy, capsys):
    walk("convert", toy / "qrels.txt", toy / "qrels.tsv")
    (toy / "run.trec").write_text(
        "".join(f"{q} Q0 {d} 1 1.0 x\n" for q, js in QRELS.items() for d in js)
    )
    outputs = []
    for qrels in ("qrels.txt", "qrels.tsv"):
        capsys.readouterr()
        walk("eval", toy / "run.trec", toy / qrels, "--format", "tsv")
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


@pytest.mark.slow
def test_a_pipeline_is_the_same_as_files(toy, model):
    walk(
        *("encode", "--model", model, "--corpus", toy / "corpus.jsonl"),
        *("--output", toy / "vectors"),
    )
    walk("index", "--input", toy / "vectors", "--output", toy / "index")
    pipeline = (
        "set -o pipefail; gzip corpus.jsonl && zcat corpus.jsonl.gz"
        f" | {DENSERK} encode --corpus - --model {model} --output - --output-format jsonl"
        f" | {DENSERK} index --input - --output piped"
        f" && {DENSERK} search --index piped --model {model} --topics queries.tsv --output -"
        f" | {DENSERK} eval --qrels qrels.txt --run - --format tsv"
    )
    piped = subprocess.run(
        ["bash", "-c", pipeline], cwd=toy, capture_output=True, text=True, check=False
    )
    assert piped.returncode == 0, piped.stderr
    assert len(piped.stdout.splitlines()) == 3
    for name in ("index", "docid"):
        assert (toy / "piped" / name).read_bytes() == (toy / "index" / name).read_bytes()


def encoded(toy, tiny, *options):
    """The collection's vectors and their index, and what `search` needs besides."""
    asked = ["encode", "--model", tiny("bert"), "--device", "cpu", *options]
    walk(*asked, "--corpus", toy / "corpus.jsonl", "--output", toy / "vectors")
    walk("index", "--input", toy / "vectors", "--output", toy / "index")
    return ["search", "--topics", toy / "queries.tsv", "--output", toy / "run.trec", "--overwrite"]


def queries_of(toy):
    """The precision that a run's manifest names for its queries."""
    manifest = json.loads((toy / "run.trec.manifest.json").read_text())
    return manifest["made_from"]["model"]["dtype"]


@pytest.mark.parametrize("searched", ["index", "vectors"])
def test_queries_are_encoded_in_the_precision_of_the_index(toy, tiny, searched, capsys):
    asked = [*encoded(toy, tiny, "--bf16"), "--index", toy / searched, "--device", "cpu"]
    capsys.readouterr()
    walk(*asked)
    own = (toy / "run.trec").read_bytes()
    assert "queries are encoded in bfloat16, as the " in capsys.readouterr().err
    assert queries_of(toy) == "bfloat16"
    walk(*asked, "--bf16")
    assert (toy / "run.trec").read_bytes() == own
    capsys.readouterr()
    walk(*asked, "--dtype", "float32")
    told = capsys.readouterr().err
    assert "queries are encoded in float32, as --dtype says; the " in told
    assert "was encoded in bfloat16" in told
    assert queries_of(toy) == "float32"
    assert (toy / "run.trec").read_bytes() != own


def test_an_index_in_float32_needs_no_word_about_precision(toy, tiny, capsys):
    asked = encoded(toy, tiny)
    capsys.readouterr()
    walk(*asked, "--index", toy / "index")
    assert "encoded in" not in capsys.readouterr().err
    assert queries_of(toy) == "float32"
    walk(*asked, "--index", toy / "index", "--bf16")
    assert queries_of(toy) == "bfloat16"


def test_float16_of_a_gpu_is_searched_on_a_cpu(toy, tiny, capsys):
    asked = encoded(toy, tiny)
    manifest = toy / "index" / "manifest.json"
    made = json.loads(manifest.read_text())
    made["made_from"]["model"] |= {"dtype": "float16", "head_dtype": "float16"}
    manifest.write_text(json.dumps(made))
    capsys.readouterr()
    walk(*asked, "--index", toy / "index", "--device", "cpu")
    assert "in float32, as a CPU computes no float16" in capsys.readouterr().err


@pytest.mark.parametrize("factory", ["PQ4x4,RFlat", "IVF8,PQ4x4,RFlat", "PQ4x4,Refine(SQfp16)"])
def test_a_refined_index_finds_more(tmp_path, factory, capsys):
    pytest.importorskip("faiss")
    random = np.random.default_rng(3)
    for name, count in (("v", 2000), ("q", 50)):
        with (tmp_path / f"{name}.jsonl").open("w") as out:
            for number, vector in enumerate(random.normal(size=(count, 16)).tolist()):
                out.write(json.dumps({"id": f"{name}{number}", "vector": vector}) + "\n")
    recalls: list[float] = []
    for made in (factory.rpartition(",")[0], factory):
        folder = tmp_path / str(len(recalls))
        walk("index", "--input", tmp_path / "v.jsonl", "--factory", made, "--output", folder)
        manifest = json.loads((folder / "manifest.json").read_text())
        recalls.append(manifest["contents"]["recall"])
    assert recalls[1] > recalls[0] + 0.1
    walk("index", "--input", tmp_path / "v.jsonl", "--output", tmp_path / "flat")
    encoded = ["--encoded-queries", tmp_path / "q.jsonl", "-k", 10]
    shared = []
    right = None
    for options in (
        ["--index", tmp_path / "flat"],
        ["--index", tmp_path / "1", "--set", f"k-factor={1}"],
        ["--index", tmp_path / "1"],
        ["--index", tmp_path / "1", "--set", f"k-factor={16}"],
    ):
        walk("search", *encoded, *options, "--output", tmp_path / "run.trec", "--overwrite")
        found = ranking(tmp_path / "run.trec")
        right = right or found
        shared.append(sum(len(set(found[qid]) & set(right[qid])) for qid in right))
    assert shared[1] < shared[2] <= shared[3] <= shared[0]
    capsys.readouterr()
    for folder in ("flat", "0"):
        asked = ["search", *encoded, "--index", tmp_path / folder, "--set", f"k-factor={2}"]
        assert run([str(word) for word in [*asked, "--output", tmp_path / "none"]]) == 2
        assert "--set k-factor 2" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
