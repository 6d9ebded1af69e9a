"""Runs of cross-encoders."""

from math import log

import pytest
from safetensors.torch import load_file

from denserk.config.encoding import PairSettings
from denserk.models.cross_encoder import read_reranker
from denserk.training.finetune import what_is_trained
from tests.training.finetuning import log_of, run_of, tune

SETTINGS = {"pair_max_length": 24, "query_max_length": 8, "lr": 3e-3}
CROSS_ENCODER = {"representation": "cross-encoder", **SETTINGS}


def test_a_run_learns_validates_and_saves_what_search_takes(tiny, train, tmp_path):
    more = {"max_steps": 60, "r_drop": 0.5, "dev_data": train, "eval_steps": 20, "group_size": 4}
    assert tune(tmp_path / "r", tiny("electra"), train, **CROSS_ENCODER, **more).steps == 60
    stored = read_reranker(tmp_path / "r")
    assert stored.pairs == PairSettings(max_length=24)
    assert stored.text.query_max_length == 8
    history = log_of(tmp_path / "r")
    measured = [entry["eval_dev-loss"] for entry in history if "eval_dev-loss" in entry]
    assert len(measured) == 3
    assert measured[-1] < 0.7 * log(4)  # log 4 is chance
    assert any({"loss_listwise", "loss_agreement"} <= entry.keys() for entry in history)


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_a_published_reranker_is_trained_on(tiny_reranker, train, tmp_path, kind):
    assert what_is_trained(run_of(tmp_path, tiny_reranker(kind), train)) == "cross-encoder"
    tune(tmp_path / "r", tiny_reranker(kind), train, **SETTINGS, max_steps=2)
    before, after = (
        load_file(folder / "model.safetensors") for folder in (tiny_reranker(kind), tmp_path / "r")
    )
    assert before.keys() == after.keys()
    assert not after["classifier.weight"].equal(before["classifier.weight"])
    assert read_reranker(tmp_path / "r").pairs.token_types == (kind == "bert")
