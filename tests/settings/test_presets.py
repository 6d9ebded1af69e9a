import re
from pathlib import Path
from typing import Any

import pytest

from denserk.errors import UsageError
from denserk.settings.encoding import TextSettings
from denserk.settings.options import from_json
from denserk.settings.preset import CLASSES, OWNERS, Source
from denserk.settings.presets import PRESETS, apply, find_preset, list_rows
from denserk.settings.training import (
    Distillation,
    ObjectiveSettings,
    OptimizerSettings,
    SamplingSettings,
    ValidationSettings,
)

DOCS = Path(__file__).parents[2] / "docs" / "presets.md"
NEEDED = {
    "FinetuneSettings": ("model", "train_data", "output"),
    "ValidationSettings": ("dev_data",),
}
RELEASED = "{retriever1,retriever2,reranker,distil}{,-released}"
ASKED_FOR = (
    "aggretriever-{marco,nq,tqa,hard-negatives,low-data}",
    "condenser-{marco,nq,tqa}{,-low-data,-hard-negatives}",
    "cocondenser-{marco,nq}{,-hard-negatives}",
    "master-{marco,nq}-" + RELEASED,
    "master-tqa-{retriever1,retriever2}-released",
    "mlr-{nq,tqa,squad}-{bert,t5,retromae,retromae-hard-negatives}",
    "mlr-{marco,marco-hard-negatives,beir}",
)


def spread(name: str) -> list[str]:
    """`a-{b,c}` -> `a-b`, `a-c`, as a shell does."""
    before, brace, rest = name.partition("{")
    if not brace:
        return [name]
    inside, _, after = rest.partition("}")
    return [before + choice + tail for choice in inside.split(",") for tail in spread(after)]


def test_names_are_there_and_unique():
    names = [preset.name for preset in PRESETS]
    assert len(names) == len(set(names))
    assert {name for names in ASKED_FOR for name in spread(names)} <= set(names)


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_every_preset_builds_its_settings(preset):
    for cls in CLASSES:
        values = preset.values.get(cls.__name__, {})
        needed = dict.fromkeys(NEEDED.get(cls.__name__, ()), "x")
        built: Any = from_json(cls, {**values, **needed})
        assert {name: getattr(built, name) for name in values} == apply(preset, cls) == values


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_a_preset_says_how_long_and_marks_only_what_it_sets(preset):
    assert preset.start
    assert preset.data
    assert len({"epochs", "max_steps"} & preset.settings.keys()) == 1
    assert len({"warmup_ratio", "warmup_steps"} & preset.settings.keys()) <= 1
    assert preset.sources.keys() <= preset.settings.keys() | {"start", "data"}
    assert preset.settings.keys() <= OWNERS.keys()


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


def test_the_listing_names_source_and_what_differs():
    rows = {row.name: row for row in list_rows()}
    assert list(rows) == [preset.name for preset in PRESETS]
    row = rows["mlr-beir"]
    assert (row.source, row.start) == ("paper", "Shitao/RetroMAE")
    assert row.values == (
        "mlr, 128 queries x 2 passages, 32/144 tokens, lr 1e-05, warm-up 5 %, 10 epochs"
    )
    assert "lost: layer_weight, lr" in row.differing
    assert "guess: batch_size, group_size, start, untie" in row.differing
    assert rows["master-marco-reranker"].values.endswith(
        "192 tokens, lr 3e-05, warm-up 1,000 steps, 3 epochs"
    )
    assert rows["condenser-sts-b"].values == "cls, 16 queries, lr 2e-05, 4 epochs"


def test_the_page_shows_every_preset_as_it_is():
    shown = dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", DOCS.read_text("utf-8"), re.M))
    assert shown == {
        row.name: f"{row.summary} | {row.values} | {row.source}" for row in list_rows()
    }


def test_the_page_explains_every_source():
    page = DOCS.read_text("utf-8")
    assert all(f"| {source} |" in page for source in Source)
