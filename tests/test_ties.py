"""Ties: what `search` writes by default has the measures of the raw scores of all passages."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import denserk
from denserk.commands.app import run
from tests.support.toy import WORDS
from tests.support.training_examples import jsonl

MEASURES = "nDCG@10 AP@100 R@20 P@5"
HITS = 100
PASSAGE_COUNT = 420
TEXT_COUNT = 120  # fewer than passages, so that most passages are duplicates
QUERY_COUNT = 30


def command(*words: object) -> None:
    assert run([str(word) for word in words]) == 0


def random_text(random: np.random.Generator, longest: int) -> str:
    return " ".join(random.choice(WORDS, random.integers(2, longest)))


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """Passages, nearly all of them duplicates, and graded relevance judgments of some."""
    random = np.random.default_rng(1)
    distinct_texts = [random_text(random, 9) for _ in range(TEXT_COUNT)]
    docids = [f"d{number}" for number in random.permutation(PASSAGE_COUNT).tolist()]
    texts = random.choice(distinct_texts, PASSAGE_COUNT).tolist()
    jsonl(
        tmp_path / "corpus.jsonl",
        [
            {"_id": docid, "title": "", "text": text}
            for docid, text in zip(docids, texts, strict=True)
        ],
    )
    with (tmp_path / "queries.tsv").open("w") as out:
        for number in range(QUERY_COUNT):
            out.write(f"q{number}\t{random_text(random, 4)}\n")
    with (tmp_path / "qrels.txt").open("w") as out:
        for number in range(QUERY_COUNT):
            for docid in random.choice(docids, 60, replace=False).tolist():
                out.write(f"q{number} 0 {docid} {random.integers(0, 3)}\n")
    return tmp_path


def build_index(folder: Path, engine: str, tiny: Callable[[str], Path]) -> Path:
    corpus = folder / "corpus.jsonl"
    vectors = folder / "vectors"
    index = folder / "index"
    if engine == "bm25":
        command("index", "--type", "bm25", "--corpus", corpus, "--output", index)
    else:
        representation = ["--representation", "mean", "--l2-norm"]
        model = tiny("bert")
        command(
            "encode", "--model", model, *representation, "--corpus", corpus, "--output", vectors
        )
        command("index", "--input", vectors, "--output", index)
    return index


def scores_by_query(run_file: Path) -> dict[str, list[float]]:
    """The scores of a TREC run as float32, which trec_eval compares."""
    scores: dict[str, list[float]] = {}
    for line in run_file.read_text().splitlines():
        qid, _, _, _, score, _ = line.split()
        scores.setdefault(qid, []).append(float(np.float32(score)))
    return scores


@pytest.mark.parametrize("engine", ["vectors", "bm25"])
def test_default_measures_are_those_of_the_raw_scores(collection, engine, tiny, capsys):
    index = build_index(collection, engine, tiny)
    search = ["search", "--index", index, "--topics", collection / "queries.tsv"]
    raw_run = collection / "raw.trec"
    command(*search, "--set", "ties=keep", "--hits", PASSAGE_COUNT, "--output", raw_run)
    capsys.readouterr()
    default_run = collection / "run.trec"
    command(*search, "--hits", HITS, "--output", default_run)
    assert "score as the hit above, and stand by descending id" in capsys.readouterr().err
    qrels = collection / "qrels.txt"
    raw_values = denserk.evaluate(raw_run, qrels, MEASURES)
    default_values = denserk.evaluate(default_run, qrels, MEASURES)
    assert default_values == pytest.approx(raw_values, abs=1e-12)
    for scores in scores_by_query(default_run).values():
        assert (np.diff(scores) < 0).all()
