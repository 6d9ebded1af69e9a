"""Ties: what `search` writes by default has the figures of the raw scores of all passages."""

import numpy as np
import pytest

import denserk
from denserk.commands.app import run
from tests.support.toy import WORDS
from tests.support.training_examples import jsonl

MEASURES = "nDCG@10 AP@100 R@20 P@5"
HITS, QUERIES, TEXTS = 100, 30, 120


def command(*words):
    assert run([str(word) for word in words]) == 0


def drawn_text(random, most):
    return " ".join(random.choice(WORDS, random.integers(2, most)))


@pytest.fixture
def collection(tmp_path):
    """420 passages, nearly all of them duplicates, and graded relevance judgments of some."""
    random = np.random.default_rng(1)
    texts = [drawn_text(random, 9) for _ in range(TEXTS)]
    docids = [f"d{number}" for number in random.permutation(420).tolist()]
    drawn = zip(docids, random.choice(texts, len(docids)).tolist(), strict=True)
    jsonl(tmp_path / "corpus.jsonl", ({"_id": d, "title": "", "text": text} for d, text in drawn))
    with (tmp_path / "queries.tsv").open("w") as out:
        out.writelines(f"q{number}\t{drawn_text(random, 4)}\n" for number in range(QUERIES))
    with (tmp_path / "qrels.txt").open("w") as out:
        for number in range(QUERIES):
            judged = random.choice(docids, 60, replace=False).tolist()
            out.writelines(f"q{number} 0 {docid} {random.integers(0, 3)}\n" for docid in judged)
    return tmp_path


def build(folder, engine, tiny):
    topics, index = ["--topics", folder / "queries.tsv"], ["--output", folder / "index"]
    corpus = ["--corpus", folder / "corpus.jsonl"]
    if engine == "bm25":
        command("index", "--type", "bm25", *corpus, *index)
    else:
        encode = ["encode", "--model", tiny("bert"), "--representation", "mean", "--l2-norm"]
        command(*encode, *corpus, "--output", folder / "vectors")
        command("index", "--input", folder / "vectors", *index)
    return ["--index", folder / "index", *topics]


@pytest.mark.parametrize("engine", ["vectors", "bm25"])
def test_default_figures_are_those_of_the_raw_scores(collection, engine, tiny, capsys):
    asked = ["search", *build(collection, engine, tiny)]
    command(*asked, "--set", "ties=keep", "--hits", 420, "--output", collection / "raw.trec")
    capsys.readouterr()
    command(*asked, "--hits", HITS, "--output", collection / "run.trec")
    assert "score as the hit above, and stand by descending id" in capsys.readouterr().err
    raw, found = (
        denserk.evaluate(collection / name, collection / "qrels.txt", MEASURES)
        for name in ("raw.trec", "run.trec")
    )
    assert found == pytest.approx(raw, abs=1e-12)
    scores: dict[str, list[float]] = {}
    for line in (collection / "run.trec").read_text().splitlines():
        qid, _, _, _, score, _ = line.split()
        scores.setdefault(qid, []).append(float(np.float32(score)))
    assert all((np.diff(line) < 0).all() for line in scores.values())
