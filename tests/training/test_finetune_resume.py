import shutil
from typing import Any

import pytest

from denserk.config.encoding import Representation
from denserk.config.training import DevMetric
from denserk.errors import MismatchError
from denserk.training.trainer import Trainer
from tests.support.faults import Stopped, contents, stopped_at
from tests.support.finetuning import AGG, log_of, tune, weights, write_examples

MEAN = {"representation": Representation.MEAN}
GUIDED = "agg-cached-guided"
RUNS: dict[str, dict[str, Any]] = {
    GUIDED: AGG | {"grad_cache": True, "q_chunk": 2},
    "cross-encoder": {"representation": Representation.CROSS_ENCODER, "logging_steps": 3},
    "accumulating": MEAN | {"gradient_accumulation_steps": 2},
    "mlr-untied": {"representation": Representation.MLR, "untie": True, "warmup_steps": 3},
}


def stopped_in_step(step):
    return stopped_at(step, [(Trainer, "training_step")])


@pytest.mark.parametrize("name", RUNS)
def test_resumed_is_uninterrupted(tiny, train, tmp_path, name):
    options = dict(RUNS[name])
    if name == GUIDED:
        options["guide"] = str(tiny("distilbert"))
    model = tiny("bert")
    sides = ("query", "document") if options.get("untie") else (".",)

    def assert_equal_weights():
        for side in sides:
            assert weights(tmp_path / "cut" / side) == weights(tmp_path / "whole" / side)

    whole = tune(tmp_path / "whole", model, train, **options)
    with stopped_in_step(6), pytest.raises(Stopped):
        tune(tmp_path / "cut", model, train, **options)
    assert not (tmp_path / "cut" / "config.json").exists()
    resumed = tune(tmp_path / "cut", model, train, **options, resume=True)
    assert resumed.first_step == 4
    assert resumed.steps == 10
    assert resumed.loss == whole.loss
    assert_equal_weights()
    # a finished run is only loaded; the number of checkpoints may differ
    resumed = tune(tmp_path / "cut", model, train, **options, keep_checkpoints=0, resume=True)
    assert resumed.first_step == 10
    assert resumed.steps == 10
    assert_equal_weights()


def test_the_share_that_a_guide_masks_is_logged_and_its_weights_are_compared(tiny, train, tmp_path):
    guide = shutil.copytree(tiny("bert"), tmp_path / "guide")
    options = MEAN | {"guide": str(guide), "guide_margin": -0.1, "max_steps": 2}
    tune(tmp_path / "out", tiny("bert"), train, **options)
    assert 0 < log_of(tmp_path / "out")[0]["masked"] < 1
    shutil.copytree(tiny("distilbert"), guide, dirs_exist_ok=True)
    with pytest.raises(MismatchError, match=r"guide\.fingerprint was"):
        tune(tmp_path / "out", tiny("bert"), train, **options, resume=True)
    # all files there are of denserk
    tune(tmp_path / "out", tiny(), train, **options, overwrite=True)


def test_with_the_best_kept_and_an_early_end(tiny, train, dev, tmp_path):
    options = MEAN | {
        "dev_data": dev,
        "best_by": DevMetric.LOSS,
        "early_stopping": 2,
        "eval_steps": 2,
        "lr": 0.2,
        "max_steps": 40,
        "save_steps": 4,
    }
    whole = tune(tmp_path / "whole", tiny("bert"), train, **options)
    assert 5 < whole.steps < 40
    with stopped_in_step(5), pytest.raises(Stopped):
        tune(tmp_path / "cut", tiny("bert"), train, **options)
    for first_step in (4, whole.steps // 4 * 4):
        resumed = tune(tmp_path / "cut", tiny("bert"), train, **options, resume=True)
        assert resumed.first_step == first_step
        assert resumed.steps == whole.steps
        assert resumed.best == whole.best
        assert weights(tmp_path / "cut") == weights(tmp_path / "whole")


def test_other_data_is_rejected_and_nothing_is_lost(tiny, tmp_path, caplog):
    train = tmp_path / "train.jsonl"
    dev = tmp_path / "dev.jsonl"
    write_examples(train, range(24))
    write_examples(dev, range(24))
    out = tmp_path / "out"
    work = tmp_path / "out.training"
    options = MEAN | {"dev_data": str(dev), "max_steps": 2}
    tune(out, tiny("bert"), train, **options)
    weights_before = weights(out)
    for file, prepared_folder in ((train, work / "training-data"), (dev, work / "dev-data")):
        contents_before = contents(prepared_folder)
        write_examples(file, range(1, 25))
        with pytest.raises(MismatchError, match=r"file 1.sha256 was"):
            tune(out, tiny("bert"), train, **options, resume=True)
        assert weights(out) == weights_before
        assert contents(prepared_folder) == contents_before
        write_examples(file, range(24))
    caplog.clear()
    tune(out, tiny("bert"), train, **options, resume=True)
    assert "prepared again" not in caplog.text


def test_a_finished_model_that_is_resumed_keeps_its_files(tiny, train, tmp_path):
    names = ("config.json", "denserk.json", "model.safetensors", "tokenizer_config.json")
    out = tmp_path / "out"
    tune(out, tiny("bert"), train, **MEAN, max_steps=2)
    before = {name: (out / name).read_bytes() for name in names}
    tune(out, tiny("bert"), train, **MEAN, max_steps=2, resume=True)
    assert {name: (out / name).read_bytes() for name in names} == before
