"""Presets, and runs resolved from a preset and from given options."""

import dataclasses
from typing import Any

import pytest

from denserk.config.formats import CorpusSettings
from denserk.config.options import from_json
from denserk.config.training import (
    CLASSES,
    OWNERS,
    PATHS,
    DevMetric,
    OptimizerSettings,
    SamplingSettings,
    find_preset,
    overridden,
    presets,
    resolve_run,
)
from denserk.errors import UsageError

PLACES = {"model": "m", "train_data": ("t.jsonl",), "output": "o"}


def resolved(preset=None, **options):
    return resolve_run(preset, CorpusSettings(), {**PLACES, **options})


def test_every_setting_belongs_to_one_class():
    assert len(OWNERS) == sum(len(dataclasses.fields(cls)) for cls in CLASSES)
    assert set(OWNERS) >= PATHS


@pytest.mark.parametrize("preset", presets().values(), ids=lambda preset: preset.name)
def test_every_preset_makes_a_run_that_describes_itself(preset):
    assert preset.start
    assert preset.data
    assert len({"epochs", "max_steps"} & preset.settings.keys()) == 1
    assert len({"warmup_ratio", "warmup_steps"} & preset.settings.keys()) <= 1
    run = resolved(preset.name, dev_data="dev.jsonl")
    lines = list(run.lines())
    assert lines[0] == f"preset {preset.name}: {preset.summary}"
    flags = {line.split()[0] for line in lines if line.startswith("    ")}
    assert flags == {name.replace("_", "-") for name in preset.settings}
    assert not any(line.startswith("  * ") for line in lines)
    config = {name.replace("-", "_"): value for name, value in run.config().items()}
    for cls in {OWNERS[name] for name in preset.settings}:
        mine = {n: v for n, v in config.items() if OWNERS.get(n) is cls}
        built: Any = from_json(cls, {**mine, **({"output": "o"} if "train_data" in mine else {})})
        own = {name: v for name, v in preset.settings.items() if OWNERS[name] is cls}
        assert {name: getattr(built, name) for name in own} == own


@pytest.mark.parametrize(
    ("name", "cls", "given", "gone"),
    [
        ("master-nq-retriever1", OptimizerSettings, {"epochs": 2.0}, "max_steps"),
        ("master-nq-retriever1", OptimizerSettings, {"warmup_ratio": 0.2}, "warmup_steps"),
        ("condenser-nq-low-data", SamplingSettings, {"train_fraction": 0.1}, "train_queries"),
    ],
)
def test_a_given_option_disables_its_rival(name, cls, given, gone):
    preset = find_preset(name)
    applied = overridden(preset.settings, given)
    assert applied.items() >= given.items()
    assert applied.keys() == (preset.settings.keys() | given.keys()) - {gone}
    assert cls(**{name: value for name, value in applied.items() if OWNERS[name] is cls})


def test_an_unknown_preset_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match="no preset is called 'condenser-marko'") as caught:
        find_preset("condenser-marko")
    assert "condenser-marco" in str(caught.value.hint)


def test_given_values_win_and_are_marked():
    run = resolved("aggretriever-marco", lr=0.1, group_size=3, save_steps=7, output="elsewhere")
    assert (run.optimizer.lr, run.sampling.group_size, run.optimizer.batch_size) == (0.1, 3, 8)
    assert [line for line in run.lines() if line.startswith("  * ")] == [
        "  * group-size 3 (preset: 8)",
        "  * lr 0.1 (preset: 5e-06)",
        "  * save-steps 7",
    ]


def test_all_that_is_missing_is_reported_at_once():
    with pytest.raises(UsageError, match="--model and --train-data and --output must be given"):
        resolve_run(None, CorpusSettings(), {})
    with pytest.raises(UsageError, match="the preset starts from distilbert-base-uncased"):
        resolve_run("aggretriever-marco", CorpusSettings(), {})


def test_without_dev_data_a_preset_keeps_the_last_weights_and_says_so():
    name = next(preset.name for preset in presets().values() if "best_by" in preset.settings)
    run = resolved(name)
    assert run.validation.best_by is None
    assert "without --dev-data the last" in run.notes[0]
    kept = resolved(name, dev_data="dev.jsonl")
    assert kept.validation.best_by == find_preset(name).settings["best_by"]
    assert kept.notes == ()
    with pytest.raises(UsageError, match="needs --dev-data"):
        resolved(name, best_by=DevMetric.LOSS)
