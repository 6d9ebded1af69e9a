"""A run put together from a preset and what was given by hand."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from denserk.config.encoding import TextSettings
from denserk.config.finetuning import (
    CLASSES,
    OWNERS,
    PATHS,
    apply,
    find_preset,
    list_rows,
    presets,
    resolve_run,
    shown,
)
from denserk.config.formats import CorpusSettings
from denserk.config.options import from_json
from denserk.config.training import (
    DevMetric,
    Distillation,
    ObjectiveSettings,
    OptimizerSettings,
    SamplingSettings,
    ValidationSettings,
)
from denserk.errors import UsageError

NEEDED = {
    "FinetuneSettings": ("model", "train_data", "output"),
    "ValidationSettings": ("dev_data",),
}


def test_no_field_belongs_to_two_classes():
    assert len(OWNERS) == sum(len(dataclasses.fields(cls)) for cls in CLASSES)


@pytest.mark.parametrize("preset", presets().values(), ids=lambda preset: preset.name)
def test_every_preset_builds_its_settings(preset):
    for cls in CLASSES:
        values = apply(preset, cls)
        needed = {n: ["x"] if n == "train_data" else "x" for n in NEEDED.get(cls.__name__, ())}
        built: Any = from_json(cls, {**values, **needed})
        assert {name: getattr(built, name) for name in values} == values


@pytest.mark.parametrize("preset", presets().values(), ids=lambda preset: preset.name)
def test_a_preset_says_how_long(preset):
    assert preset.start
    assert preset.data
    assert len({"epochs", "max_steps"} & preset.settings.keys()) == 1
    assert len({"warmup_ratio", "warmup_steps"} & preset.settings.keys()) <= 1
    assert preset.summary


def test_apply_makes_enums_and_tuples():
    distil = find_preset("master-marco-distil")
    assert apply(distil, ObjectiveSettings)["distillation"] is Distillation.KL
    assert apply(distil, TextSettings)["fields"] == ("title", "text")
    assert apply(distil, ValidationSettings) == {}
    assert ObjectiveSettings(**apply(distil, ObjectiveSettings)).weight_of_contrastive == 0.2


@pytest.mark.parametrize(
    ("name", "cls", "given", "gone"),
    [
        ("master-nq-retriever1", OptimizerSettings, {"epochs": 2.0}, "max_steps"),
        ("master-nq-retriever1", OptimizerSettings, {"warmup_ratio": 0.2}, "warmup_steps"),
        ("condenser-nq-low-data", SamplingSettings, {"train_fraction": 0.1}, "train_queries"),
    ],
)
def test_what_is_given_wins_over_its_rival_too(name, cls, given, gone):
    preset = find_preset(name)
    applied = apply(preset, cls, given)
    assert applied.items() >= given.items()
    assert applied.keys() == (apply(preset, cls).keys() | given.keys()) - {gone}
    assert cls(**applied)


def test_low_data_is_a_share_of_the_same_row():
    full, low = find_preset("condenser-nq"), find_preset("condenser-nq-low-data")
    assert apply(low, OptimizerSettings) == apply(full, OptimizerSettings)
    assert apply(low, SamplingSettings) == {**apply(full, SamplingSettings), "train_queries": 1000}


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [("condenser-marko", "condenser-marco"), ("mlr-squad", "mlr-squad-t5"), ("zzz", "")],
)
def test_an_unknown_name_is_answered_with_the_nearest(typed, nearest):
    with pytest.raises(UsageError, match=f"no preset is called '{typed}'") as caught:
        find_preset(typed)
    assert caught.value.hint
    assert nearest in caught.value.hint
    assert ("did you mean" in caught.value.hint) == bool(nearest)
    assert "--list-presets" in caught.value.hint


def test_the_listing():
    rows = {row.name: row for row in list_rows()}
    assert list(rows) == list(presets())
    row = rows["mlr-beir"]
    assert row.start == "Shitao/RetroMAE"
    assert row.values == (
        "mlr, 128 queries x 2 passages, 32/144 tokens, lr 1e-05, warm-up 5 %, 10 epochs"
    )
    assert rows["master-marco-reranker"].values.endswith(
        "192 tokens, lr 3e-05, warm-up 1,000 steps, 3 epochs"
    )
    assert rows["condenser-sts-b"].values == "cls, 16 queries, lr 2e-05, 4 epochs"


def test_the_page_names_every_preset():
    page = (Path(__file__).parents[2] / "docs" / "presets.md").read_text("utf-8")
    assert set(re.findall(r"`([\w-]+)`", page)) >= presets().keys()


PLACES = {"model": "m", "train_data": ("t.jsonl",), "output": "o"}


def together(preset=None, **options):
    given: dict[type, dict[str, Any]] = {cls: {} for cls in CLASSES}
    for name, value in {**PLACES, **options}.items():
        given[OWNERS[name]][name] = value
    return resolve_run(preset, CorpusSettings(), given)


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
        resolve_run(None, CorpusSettings(), {cls: {} for cls in CLASSES})
    with pytest.raises(UsageError, match="the preset starts from distilbert-base-uncased"):
        resolve_run("aggretriever-marco", CorpusSettings(), {cls: {} for cls in CLASSES})


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
