"""Commands take runs, qrels, queries and corpora that are one JSON object."""

import gzip
import json
from pathlib import Path

import pytest

import denserk
from denserk.commands.app import run

RUN = {"q1": {"d1": 0.9, "d2": 0.5}, "q2": {"d1": 1.5}}
GRADES = {"q1": {"d2": 1}, "q2": {"d1": 2, "d2": 0}}
RIGHT = "nDCG@10\t0.8155"  # (1 / log2(3) + 1) / 2


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in {"a.json": RUN, "b.json": GRADES}.items():
        Path(name).write_text(json.dumps(value))
    Path("whole.json").write_text(json.dumps({"q1": {"d1": 9, "d2": 5}, "q2": {"d1": 15}}))
    Path("points.json").write_text(json.dumps({"q1": {"d2": 1.0}, "q2": {"d1": 2.0, "d2": 0.0}}))
    Path("qrels.txt").write_text("q1 0 d2 1\nq2 0 d1 2\nq2 0 d2 0\n")
    Path("run.trec").write_text("q1 Q0 d1 1 0.9 t\nq1 Q0 d2 2 0.5 t\nq2 Q0 d1 1 1.5 t\n")
    return tmp_path


@pytest.mark.parametrize(
    "inputs",
    [
        "a.json qrels.txt",
        "qrels.txt a.json",
        "--run a.json --qrels qrels.txt",
        "a.json b.json",
        "b.json a.json",
        "run.trec b.json",
        "--run run.trec --qrels b.json",
        "whole.json qrels.txt",
        "whole.json b.json",
        "a.json points.json",
        "run.trec points.json",
        "whole.json --qrels b.json",
    ],
)
def test_eval(inputs, capsys):
    assert run(["eval", *inputs.split(), "-m", "nDCG@10", "--quiet"]) == 0
    assert capsys.readouterr().out.strip() == RIGHT


def test_one_object_alone_is_no_run_with_qrels(capsys):
    assert run(["eval", "whole.json"]) == 2
    assert "no run given beside the qrels whole.json" in capsys.readouterr().err


def test_eval_explains_a_query(capsys):
    assert run(["eval", "a.json", "b.json", "--explain", "q1", "-m", "nDCG@10"]) == 0
    assert "0.6309" in capsys.readouterr().out


def test_fuse_and_convert():
    assert (
        run(["fuse", "a.json", "run.trec", "--output", "fused.json", "--output-format", "json"])
        == 0
    )
    fused = json.loads(Path("fused.json").read_text())
    assert list(fused["q1"]) == ["d1", "d2"]
    # the name of a run says its format, as the name of a target of `convert` does
    assert run(["fuse", "a.json", "run.trec", "--output", "named.json"]) == 0
    assert Path("named.json").read_text() == Path("fused.json").read_text()
    assert run(["fuse", "a.json", "run.trec", "--output", "named.jsonl.gz"]) == 0
    lines = gzip.decompress(Path("named.jsonl.gz").read_bytes()).splitlines()
    assert [json.loads(line)["docid"] for line in lines[:2]] == ["d1", "d2"]
    trec = ["--output", "trec.json", "--output-format", "trec"]
    assert run(["fuse", "a.json", "run.trec", *trec]) == 0
    assert Path("trec.json").read_text().startswith("q1 Q0 d1 1 ")
    assert run(["convert", "a.json", "back.trec", "--tag", "t"]) == 0
    assert Path("back.trec").read_text() == Path("run.trec").read_text()
    assert run(["convert", "back.trec", "back.json"]) == 0
    assert json.loads(Path("back.json").read_text()) == RUN
    assert run(["convert", "b.json", "back.qrels"]) == 0
    assert Path("back.qrels").read_text() == Path("qrels.txt").read_text()
    assert run(["convert", "back.qrels", "qrels.json"]) == 0
    assert json.loads(Path("qrels.json").read_text()) == GRADES


def test_mining_from_a_run_and_qrels_with_texts_by_id():
    Path("queries.json").write_text(json.dumps({"q1": "who", "q2": "what"}))
    Path("corpus.json").write_text(json.dumps({"d1": "one", "d2": {"title": "h", "text": "two"}}))
    command = "mine-negatives --topics queries.json --qrels b.json --run a.json "
    assert run([*command.split(), "--corpus", "corpus.json", "--output", "train.jsonl"]) == 0
    first_example = json.loads(Path("train.jsonl").read_text().splitlines()[0])
    assert first_example["query"] == "who"
    assert [passage["text"] for passage in first_example["positive_passages"]] == ["two"]
    assert [passage["docid"] for passage in first_example["negative_passages"]] == ["d1"]


def test_a_data_set_of_llama_index_is_converted():
    value = {
        "queries": {"a1": "who runs", "a2": "what"},
        "corpus": {"n1": "one", "n2": "two"},
        "relevant_docs": {"a1": ["n2"], "a2": ["n1"]},
        "mode": "text",
    }
    Path("dataset.json").write_text(json.dumps(value))
    targets = {
        "queries.tsv": "a1\twho runs\na2\twhat\n",
        "collection.tsv": "n1\tone\nn2\ttwo\n",
        "qrels.txt": "a1 0 n2 1\na2 0 n1 1\n",
    }
    for name, text in targets.items():
        assert run(["convert", "dataset.json", name, "--overwrite"]) == 0
        assert Path(name).read_text() == text
    assert run(["convert", "dataset.json", "train.jsonl", "--to", "flag"]) == 0
    first_example = json.loads(Path("train.jsonl").read_text().splitlines()[0])
    assert first_example == {"query": "who runs", "pos": ["two"], "neg": []}


def test_python_takes_files_and_dicts():
    for run_like, qrels in (("a.json", "b.json"), (RUN, GRADES), (Path("a.json"), GRADES)):
        result = denserk.evaluate(run_like, qrels, measures=["nDCG@10"])
        assert result["nDCG@10"] == pytest.approx(0.8155, abs=5e-5)
    assert denserk.Run.load("a.json") == RUN


def test_a_broken_object_is_one_message(capsys):
    Path("a.json").write_text('{"q1": {"d1": NaN}}')
    assert run(["eval", "a.json", "qrels.txt"]) == 1
    assert (
        capsys.readouterr().err.splitlines()[-1].startswith("error: a.json: found NaN under q1, d1")
    )


def test_data_sets_of_llama_index_are_not_written(capsys):
    command = "mine-negatives --topics q --qrels b.json --run a.json --output t.jsonl"
    assert run([*command.split(), "--output-format", "llama-index"]) == 2
    assert "is read alone" in capsys.readouterr().err
