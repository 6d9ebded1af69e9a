"""A known positive of a query, by its id or under another id, is never one of its negatives."""

import json
import math

import numpy as np
import pytest

from denserk.commands.app import run
from denserk.config.formats import TrainingFormat
from denserk.io.training import WRITTEN
from tests.support.finetuning import log_of
from tests.support.tiny_models import without_dropout
from tests.support.training_examples import jsonl, words

POSITIVE = "Paris is the capital of France."
CORPUS = {
    "p1": POSITIVE,
    "p2": POSITIVE,
    "p3": "Paris  is the capital\tof France. ",  # white space does not count
    "p4": "Paris Hilton is an heiress.",
    "p5": "PARIS IS THE CAPITAL OF FRANCE.",  # case does
    "p6": "Paris is the capital of France. Lyon is not.",
}
OTHER_TEXTS = {"p4", "p5", "p6"}


@pytest.fixture
def collection(tmp_path, monkeypatch):
    """The working folder: a corpus with copies of the positive, a query, and a run of all."""
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "corpus.jsonl", ({"_id": d, "text": text} for d, text in CORPUS.items()))
    (tmp_path / "topics.tsv").write_text("q1\tcapital of France\n")
    (tmp_path / "qrels.txt").write_text("q1 0 p1 1\n")
    run_lines = [
        f"q1 Q0 {docid} {rank} {9 - rank} r\n" for rank, docid in enumerate(CORPUS, start=1)
    ]
    (tmp_path / "run.trec").write_text("".join(run_lines))
    return tmp_path


def example(positives, negatives, qid="q1", query="capital of France"):
    return {
        "query_id": qid,
        "query": query,
        "positive_passages": [passage(docid) for docid in positives],
        "negative_passages": [passage(docid) for docid in negatives],
    }


def passage(docid):
    return {"docid": docid, "title": "", "text": CORPUS[docid]}


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_copies_of_a_positive_are_not_mined(collection, capsys):
    files = ["--qrels", "qrels.txt", "--run", "run.trec", "--corpus", "corpus.jsonl"]
    assert run(["mine-negatives", "--topics", "topics.tsv", *files, "--output", "m.jsonl"]) == 0
    [mined] = read_lines(collection / "m.jsonl")
    assert {passage["docid"] for passage in mined["negative_passages"]} == OTHER_TEXTS
    assert "text of a positive: 2" in capsys.readouterr().err


def test_copies_of_a_passage_that_the_qrels_judge_relevant_are_not_mined(collection, capsys):
    """The training data names another positive."""
    jsonl(collection / "train.jsonl", [example(["p6"], [])])
    files = ["--qrels", "qrels.txt", "--run", "run.trec", "--corpus", "corpus.jsonl"]
    assert run(["mine-negatives", "--train", "train.jsonl", *files, "--output", "m.jsonl"]) == 0
    [mined] = read_lines(collection / "m.jsonl")
    assert {passage["docid"] for passage in mined["negative_passages"]} == {"p4", "p5"}
    assert "text of a positive: 2" in capsys.readouterr().err


FORMATS_OF_IDS = (
    TrainingFormat.TEVATRON_IDS,
    TrainingFormat.TRIPLES,
    TrainingFormat.NEGATIVES,
    TrainingFormat.ST_IDS,
)


@pytest.mark.parametrize("training_format", WRITTEN)
def test_convert_writes_no_positive_as_a_negative(collection, capsys, training_format):
    negatives = ["p1", "p2", "p3", "p4", "p5"]
    jsonl(collection / "train.jsonl", [example(["p1"], negatives)])
    assert run(["convert", "train.jsonl", "out", "--to", training_format.value]) == 0
    assert "left out: 3" in capsys.readouterr().err
    content = (collection / "out").read_text()
    if training_format in FORMATS_OF_IDS:
        for docid in ("p4", "p5"):
            assert docid in content
        for docid in ("p2", "p3"):
            assert docid not in content
    else:
        for docid in ("p4", "p5"):
            assert CORPUS[docid] in content
        assert "Paris  is" not in content  # of p3


def test_a_triple_whose_negative_is_its_positive_is_not_written(collection):
    (collection / "triples.tsv").write_text("q1\tp1\tp1\nq1\tp1\tp4\n")
    assert run(["convert", "triples.tsv", "out.tsv", "--kind", "training", "--to", "triples"]) == 0
    assert (collection / "out.tsv").read_text() == "q1\tp1\tp4\n"


def finetune(tiny, train, *flags, **options):
    """Train for a step; return the command's status. An option that is None is left out."""
    usual = {"model": tiny("bert"), "train-data": train, "output": "out", "device": "cpu"}
    small = {"max-steps": 1, "batch-size": 1, "group-size": 2}
    words_of_command = ["finetune", "--overwrite", *flags]
    for name, value in {**usual, **small, **options}.items():
        if value is not None:
            words_of_command += [f"--{name}", str(value)]
    return run(words_of_command)


@pytest.mark.parametrize("representation", ["mean", "cross-encoder"])
@pytest.mark.parametrize("fill", ["mask", "repeat"])
def test_training_groups_have_no_positive_among_their_negatives(
    tiny, collection, capsys, representation, fill
):
    """With such a negative the loss would be that of another group."""
    losses = []
    for negatives in (["p1", "p2", "p3", "p4"], ["p4"]):
        train = jsonl(collection / "train.jsonl", [example(["p1"], negatives)])
        flags = ("--set", f"fill-negatives={fill}", "--set", "negative=top")
        assert finetune(tiny, train, *flags, representation=representation) == 0
        losses.append(log_of(collection / "out")[0]["loss"])
    assert losses[0] == losses[1] > 0
    assert "left out: 3" in capsys.readouterr().err


def test_a_positive_of_an_equal_query_elsewhere_is_no_negative(tiny, collection, capsys):
    examples = [example(["p1"], ["p6", "p4"]), example(["p6"], ["p2", "p4"], qid="other")]
    train = jsonl(collection / "train.jsonl", examples)
    assert finetune(tiny, train, representation="mean") == 0
    assert "left out: 2" in capsys.readouterr().err


def test_ids_are_compared_by_the_texts_of_the_corpus(tiny, collection, capsys):
    example_of_ids = {
        "query_id": "q1",
        "query_text": "capital",
        "positive_document_ids": ["p1"],
        "negative_document_ids": ["p2", "p4"],
    }
    train = jsonl(collection / "train.jsonl", [example_of_ids])
    assert finetune(tiny, train, representation="mean", corpus="corpus.jsonl") == 0
    assert "left out: 1" in capsys.readouterr().err


def test_in_a_batch_the_copy_of_a_positive_is_no_negative(tiny, collection):
    """Two queries whose positives are copies: each sees one passage, and the loss is 0."""
    examples = [example(["p1"], []), example(["p2"], [], qid="q2", query="Lyon")]
    train = jsonl(collection / "train.jsonl", examples)
    options = {"batch-size": 2, "group-size": 1}
    assert finetune(tiny, train, representation="mean", **options) == 0
    assert log_of(collection / "out")[0]["loss"] == 0


@pytest.mark.parametrize("positives", [("p1", "p2", "p3"), ("p1", "p5")])
def test_random_negatives_are_no_positives_of_equal_queries(tiny, collection, positives):
    """The model reads these positives alike: as negatives they would give a loss of log 2."""
    examples = [example([docid], []) for docid in positives]
    examples.append(example(["p6"], [], qid="q2", query="Lyon"))
    train = jsonl(collection / "train.jsonl", examples)
    options = {"max-steps": 8, "lr": 1e-9, "representation": "cross-encoder"}
    model = without_dropout(tiny("bert"), collection / "model")
    assert finetune(tiny, train, "--set", "logging-steps=1", **options, model=model) == 0
    for entry in log_of(collection / "out"):
        assert abs(entry["loss"] - math.log(2)) > 1e-6


def test_without_a_passage_beside_the_positives_no_random_negative_is_drawn(
    tiny, collection, capsys
):
    train = jsonl(collection / "train.jsonl", [example(["p1"], ["p2"])])
    assert finetune(tiny, train, representation="mean") == 1
    assert "--group-size 1" in capsys.readouterr().err


def test_a_triplet_of_copies_is_left_out(tiny, collection, capsys):
    triplets = [
        {"anchor": words(n, 3), "positive": words(n + 1, 4), "negative": words(n + 2, 4)}
        for n in range(4)
    ]
    triplets.append({"anchor": "a", "positive": POSITIVE, "negative": CORPUS["p3"]})
    train = jsonl(collection / "train.jsonl", triplets)
    options = {"objective": "triplet", "group-size": None, "batch-size": 4}
    assert finetune(tiny, train, **options) == 0
    assert "left out: 1" in capsys.readouterr().err


def test_the_guide_s_passages_are_those_of_the_data(tiny, collection):
    """A guide reads other fields; the passages of both stand in the same rows."""
    examples = [example(["p1"], ["p4", "p5"]), example(["p2"], ["p6"], query="b")]
    train = jsonl(collection / "train.jsonl", examples)
    options = {"representation": "mean", "batch-size": 2, "guide": tiny("bert")}
    assert finetune(tiny, train, **options) == 0
    assert np.isfinite(log_of(collection / "out")[0]["loss"])
