"""Mining over the toy collection, from a run over it."""

from typing import Any

import pytest

from denserk.config.mining import MiningPaths, MiningSettings
from denserk.io.training import read_training
from denserk.tasks.mine_negatives import mine_negatives
from tests.support.mining import RUN, run_text

ALL = MiningSettings(num_negatives=9)


@pytest.fixture
def mine(toy, monkeypatch):
    """`mine(settings, **paths)` returns the result, and the training examples by query."""
    monkeypatch.chdir(toy)
    (toy / "run.trec").write_text(run_text(RUN))

    defaults: dict[str, Any] = {
        "topics": "queries.tsv",
        "qrels": "qrels.txt",
        "run": ("run.trec",),
        "corpus": "corpus.jsonl",
        "output": "mined.jsonl",
    }

    def mine_toy(settings=ALL, **paths):
        paths = defaults | paths
        result = mine_negatives(MiningPaths(**paths), settings)
        return result, {example.qid: example for example in read_training(paths["output"])}

    return mine_toy
