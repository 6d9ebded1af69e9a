"""Pre-training runs resolved from an objective's recipe and from given options."""

import dataclasses

import pytest

from denserk.config.formats import CorpusSettings
from denserk.config.options import spelled
from denserk.config.pretraining import (
    CLASSES,
    OBJECTIVES_OF,
    KeywordWeight,
    MasterPreset,
    MasterTask,
    NprKind,
    PretrainingObjective,
    PretrainSettings,
    resolve_run,
)
from denserk.errors import UsageError

FIELDS = {field.name: field for cls in CLASSES for field in dataclasses.fields(cls)}
PLACES = {"model": "m", "corpus": ("c",), "output": "o"}


def resolved(objective, settings=None, **options):
    chosen = {**PLACES, "objective": PretrainingObjective(objective), **(settings or {})}
    return resolve_run(PretrainSettings(**chosen), CorpusSettings(), options)


def test_given_values_win():
    run = resolved(
        "master", {"preset": MasterPreset.RELEASED}, npr=NprKind.NEIGHBOUR, tasks=(MasterTask.MKP,)
    )
    assert (run.masking.npr, run.objective.tasks) == (NprKind.NEIGHBOUR, (MasterTask.MKP,))
    assert run.masking.keyword_weight is KeywordWeight.INVERSE_FREQUENCY
    assert resolved("master", epochs=3.0).optimizer.max_steps is None
    assert resolved("master", epochs=3.0, max_steps=5).optimizer.max_steps == 5


@pytest.mark.parametrize("name", sorted(OBJECTIVES_OF.keys() & FIELDS.keys()))
def test_settings_are_rejected_where_they_mean_nothing(name):
    for objective in PretrainingObjective:
        if objective in OBJECTIVES_OF[name]:
            resolved(objective, **{name: FIELDS[name].default})
            continue
        message = (
            f"^{spelled(name, *CLASSES)} is for {', '.join(OBJECTIVES_OF[name])}; --objective is"
        )
        with pytest.raises(UsageError, match=message):
            resolved(objective, **{name: FIELDS[name].default})


@pytest.mark.parametrize(
    ("objective", "settings", "options", "message"),
    [
        ("master", {}, {"cmp_encoder_rate": 0.5}, "one encoder pass has one rate"),
        ("master", {}, {"frequency_dict": "f"}, "TF-IDF needs document frequencies"),
    ],
)
def test_what_cannot_be(objective, settings, options, message):
    with pytest.raises(UsageError, match=message):
        resolved(objective, settings, **options)
