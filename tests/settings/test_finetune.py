"""A run put together from a preset and what was given by hand."""

from typing import Any

import pytest

from denserk.errors import UsageError
from denserk.settings.finetune import PATHS, put_together, shown
from denserk.settings.formats import CorpusSettings
from denserk.settings.presets import CLASSES, OWNERS, find_preset, presets
from denserk.settings.training import DevMetric, OptimizerSettings, SamplingSettings

PLACES = {"model": "m", "train_data": ("t.jsonl",), "output": "o"}


def together(preset=None, **options):
    given: dict[type, dict[str, Any]] = {cls: {} for cls in CLASSES}
    for name, value in {**PLACES, **options}.items():
        given[OWNERS[name]][name] = value
    return put_together(preset, CorpusSettings(), given)


def test_without_a_preset_defaults_stand():
    run = together(lr=0.1)
    assert run.optimizer == OptimizerSettings(lr=0.1)
    assert run.sampling == SamplingSettings()
    assert (run.preset, list(run.lines()), run.representation) == (None, [], {})


@pytest.mark.parametrize("preset", presets().values(), ids=lambda preset: preset.name)
def test_every_preset_makes_a_run_that_tells_itself(preset):
    run = together(preset.name, dev_data="dev.jsonl")
    told = list(run.lines())
    assert told[0] == f"preset {preset.name}: {preset.summary}"
    flags = {line.split()[0] for line in told if line.startswith("    ")}
    assert flags == {name.replace("_", "-") for name in preset.settings}
    assert not any(line.startswith("  * ") for line in told)


def test_what_is_given_by_hand_wins_and_is_marked():
    run = together("aggretriever-marco", lr=0.1, group_size=3, save_steps=7, output="elsewhere")
    assert (run.optimizer.lr, run.sampling.group_size, run.optimizer.batch_size) == (0.1, 3, 8)
    marked = [line.split() for line in run.lines() if line.startswith("  * ")]
    assert marked == [
        ["*", "group-size", "3", "preset:", "8"],
        ["*", "lr", "0.1", "preset:", "5e-06"],
        ["*", "save-steps", "7"],
    ]


def test_the_lines_are_aligned():
    run = together("aggretriever-marco", lr=0.1, passage_max_length=99, seed=1)
    columns = [line.index("preset: ") for line in run.lines() if "preset: " in line]
    assert len(columns) == 3
    assert len(set(columns)) == 1


@pytest.mark.parametrize(
    ("given", "beaten"), [({"max_steps": 5}, "max_steps"), ({"warmup_steps": 3}, "warmup_steps")]
)
def test_the_winning_one_of_two_rivals_is_what_was_given(given, beaten):
    run = together("aggretriever-marco", **given)
    assert getattr(run.optimizer, beaten) == given[beaten]


def test_all_that_is_missing_is_told_at_once():
    with pytest.raises(UsageError, match="--model and --train-data and --output must be given"):
        put_together(None, CorpusSettings(), {cls: {} for cls in CLASSES})
    with pytest.raises(UsageError, match="the preset starts from distilbert-base-uncased"):
        put_together("aggretriever-marco", CorpusSettings(), {cls: {} for cls in CLASSES})


def test_without_dev_data_a_preset_keeps_the_last_weights_and_says_so():
    named = [preset.name for preset in presets().values() if "best_by" in preset.settings]
    assert named
    run = together(named[0])
    assert run.validation.best_by is None
    assert "without --dev-data the last" in run.notes[0]
    kept = together(named[0], dev_data="dev.jsonl")
    assert kept.validation.best_by == find_preset(named[0]).settings["best_by"]
    assert kept.notes == ()
    with pytest.raises(UsageError, match="needs --dev-data"):
        together(named[0], best_by=DevMetric.LOSS)


def test_paths_are_settings():
    assert set(OWNERS) >= PATHS


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "yes"),
        (False, "no"),
        (None, "none"),
        (0, "0"),
        (1, "1"),
        ((), "none"),
        ((8, 12), "8,12"),
    ],
)
def test_values_are_shown_as_typed(value, text):
    assert shown(value) == text
