"""The runs that docs/quickstart.sh left in demo/: each system improves on the one before it."""

import json
from pathlib import Path

import pytest

from denserk.config.evaluation import PREVIOUS, ComparisonSettings, EvaluationSettings
from denserk.evaluation.significance import compare
from denserk.tasks.evaluate import evaluate
from tests.support.finetuning import log_of

DEMO = Path(__file__).parents[2] / "demo"
PICTURE = DEMO / "measures.png"
pytestmark = pytest.mark.skipif(
    not PICTURE.exists(), reason="no demo/measures.png: run bash docs/quickstart.sh"
)


@pytest.fixture(scope="module")
def gains():
    """nDCG@10 of each system minus that of the one before it."""
    runs = [str(DEMO / f"{name}.trec") for name in ("bm25", "minilm", "finetuned", "hybrid")]
    result = evaluate(runs, str(DEMO / "qrels.txt"), EvaluationSettings(("nDCG@10",)))
    values = {run.name: run.per_query for run in result.runs}
    comparison = compare(values, result.measures, PREVIOUS, ComparisonSettings())
    return {name: measures["nDCG@10"] for name, measures in comparison.differences.items()}


@pytest.mark.parametrize("name", ["minilm", "finetuned"])
def test_a_significant_gain(gains, name):
    assert gains[name].mean > 0
    assert gains[name].corrected < 0.05


def test_fusion_gains(gains):
    assert gains["hybrid"].mean > 0


def test_the_choice_is_among_the_best():
    decision = json.loads((DEMO / "choice" / "choice.json").read_text())
    assert decision["leader"] in ("finetuned", "hybrid")
    assert "bm25" not in decision["may_be_best"]


def test_training_was_logged_and_validated():
    log = log_of(DEMO / "model")
    assert sum("loss" in entry for entry in log) >= 20
    assert sum("eval_dev-loss" in entry for entry in log) >= 5
    held_out_queries = query_ids(DEMO / "train" / "dev.jsonl")
    assert 0 < len(held_out_queries) <= 64
    assert held_out_queries.isdisjoint(query_ids(DEMO / "train" / "train.jsonl"))


def query_ids(examples):
    lines = examples.read_text("utf-8").splitlines()
    return {json.loads(line)["query_id"] for line in lines}
