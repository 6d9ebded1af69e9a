"""Mining over the toy collection, from a run over it."""

from typing import Any

import pytest

from denserk.config.training import MiningPaths, MiningSettings
from denserk.io.training import read_training
from denserk.tasks.mine_negatives import mine_negatives

RUN = {
    "q1": {"d3": 9.0, "d10": 8.0, "d1": 7.0, "d2": 6.0},
    "q3": {"d5": 5.0, "d4": 4.5, "d3": 4.0},
    "q2": {"d5": 3.0, "d2": 2.5, "d1": 2.0, "d4": 1.5, "d3": 1.0},
}
ALL = MiningSettings(num_negatives=9)


def run_text(run, tag="made"):
    return "".join(
        f"{qid} Q0 {docid} {rank} {score} {tag}\n"
        for qid, hits in run.items()
        for rank, (docid, score) in enumerate(hits.items(), start=1)
    )


def ids(candidates):
    return [candidate.docid for candidate in candidates]


def negatives(examples):
    return {qid: ids(example.negatives) for qid, example in examples.items()}


@pytest.fixture
def mine(toy, monkeypatch):
    """`mine(settings, **paths)`: what came out, and the examples by query."""
    monkeypatch.chdir(toy)
    (toy / "run.trec").write_text(run_text(RUN))

    def mined(settings=ALL, **given):
        paths: dict[str, Any] = {"topics": "queries.tsv", "qrels": "qrels.txt"}
        paths |= {"run": ("run.trec",), "corpus": "corpus.jsonl", "output": "mined.jsonl", **given}
        result = mine_negatives(MiningPaths(**paths), settings)
        return result, {example.qid: example for example in read_training(paths["output"])}

    return mined
