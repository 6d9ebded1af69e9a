import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from denserk.errors import UsageError
from denserk.settings.encoding import TextSettings
from denserk.settings.options import from_json
from denserk.settings.presets import CLASSES, OWNERS, apply, find_preset, list_rows, presets
from denserk.settings.training import (
    Distillation,
    ObjectiveSettings,
    OptimizerSettings,
    SamplingSettings,
    ValidationSettings,
)

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
