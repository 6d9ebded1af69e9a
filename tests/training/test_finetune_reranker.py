from math import log

import pytest
from safetensors.torch import load_file

from denserk.config.encoding import PairSettings
from denserk.errors import UsageError
from denserk.models.cross_encoder import read_reranker
from denserk.training.finetune import finetune, what_is_trained
from tests.conftest import PASSAGES, QUERIES
from tests.data.conftest import jsonl
from tests.training.finetuning import log_of, run_of

POSITIVES = {"q1": "d3", "q2": "d1", "q3": "d4"}
SETTINGS = {
    "representation": "cross-encoder",
    "group_size": 6,
    "batch_size": 3,
    "max_steps": 8,
    "lr": 3e-3,
    "pair_max_length": 24,
    "query_max_length": 8,
}


@pytest.fixture
def train(tmp_path):
    def passage(docid):
        return {"docid": docid, "title": PASSAGES[docid][0], "text": PASSAGES[docid][1]}

    lines = [
        {
            "query_id": qid,
            "query": QUERIES[qid],
            "positive_passages": [passage(positive)],
            "negative_passages": [passage(docid) for docid in PASSAGES if docid != positive],
        }
        for qid, positive in POSITIVES.items()
    ]
    return jsonl(tmp_path / "train.jsonl", lines)


def weights(folder):
    return load_file(folder / "model.safetensors")


def test_a_run_learns_validates_and_saves_what_search_takes(tiny, train, tmp_path):
    more = {"max_steps": 120, "r_drop": 0.5, "dev_data": train, "eval_steps": 40}
    assert finetune(run_of(tmp_path / "r", tiny("electra"), train, **SETTINGS | more)).steps == 120
    stored = read_reranker(tmp_path / "r")
    assert stored.pairs == PairSettings(max_length=24)
    assert stored.text.query_max_length == 8
    history = log_of(tmp_path / "r")
    measured = [entry["eval_dev-loss"] for entry in history if "eval_dev-loss" in entry]
    assert len(measured) == 3
    assert measured[-1] < 0.7 * log(6)  # log 6 is chance
    assert any({"loss_listwise", "loss_agreement"} <= entry.keys() for entry in history)


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_a_published_reranker_is_trained_on(tiny_reranker, train, tmp_path, kind):
    settings = {name: v for name, v in SETTINGS.items() if name != "representation"}
    run = run_of(tmp_path / "r", tiny_reranker(kind), train, **settings)
    assert what_is_trained(run) == "cross-encoder"
    finetune(run)
    before, after = weights(tiny_reranker(kind)), weights(tmp_path / "r")
    assert before.keys() == after.keys()
    assert not after["classifier.weight"].equal(before["classifier.weight"])
    assert read_reranker(tmp_path / "r").pairs.token_types == (kind == "bert")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"l2_norm": True}, "--l2-norm: "),
        ({"untie": True, "temperature": 2.0}, "--untie, --temperature: not used by cross-encoder"),
        ({"group_size": 1}, "--group-size 1"),
    ],
)
def test_settings_of_vectors_are_rejected(tiny, train, tmp_path, given, words):
    with pytest.raises(UsageError, match=words):
        finetune(run_of(tmp_path / "r", tiny(), train, **SETTINGS | given))
