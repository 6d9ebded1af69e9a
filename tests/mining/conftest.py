"""Mining over the toy collection."""

from typing import Any

import pytest

from denserk.config.mining import MiningPaths
from denserk.io.training import read_training
from denserk.mining.mining import mine_negatives
from tests.mining.toy_runs import ALL, RUN, run_text


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
