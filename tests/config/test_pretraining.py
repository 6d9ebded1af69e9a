"""Pre-training runs resolved from an objective's recipe and from given options."""

import dataclasses

import pytest

from denserk.config.formats import CorpusSettings
from denserk.config.options import spec_of, spelled
from denserk.config.pretraining import (
    CLASSES,
    OBJECTIVES_OF,
    DecoderInit,
    KeywordWeight,
    MasterPreset,
    MasterTask,
    NprKind,
    PretrainingObjective,
    PretrainSettings,
    recipe,
    resolve_run,
)
from denserk.errors import UsageError

FIELDS = {field.name: field for cls in CLASSES for field in dataclasses.fields(cls)}
PLACES = {"model": "m", "corpus": ("c",), "output": "o"}


def resolved(objective, settings=None, **options):
    chosen = {**PLACES, "objective": PretrainingObjective(objective), **(settings or {})}
    return resolve_run(PretrainSettings(**chosen), CorpusSettings(), options)


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ("condenser", (512, 256, 1e-4, 0.15, None, 8.0)),
        ("cocondenser", (128, 2048, 1e-4, 0.15, None, 8.0)),
        ("master", (128, 2048, 3e-4, 0.3, 120_000, 8.0)),
        ("retromae", (512, 256, 1e-4, 0.3, None, 8.0)),
        ("mlm", (512, 256, 1e-4, 0.15, None, 8.0)),
    ],
)
def test_recipes_are_the_papers(objective, expected):
    run = resolved(objective)
    chosen = run.optimizer
    found = (run.units.max_length, chosen.batch_size, chosen.lr, run.masking.mlm_probability)
    assert (*found, chosen.max_steps, chosen.epochs) == expected
    assert (chosen.weight_decay, chosen.warmup_ratio, chosen.max_grad_norm) == (0.01, 0.1, 1)
    losses = run.objective
    assert (losses.n_head_layers, losses.late_mlm, losses.lm_scale) == (2, True, 1)


def test_master_is_the_papers_unless_released_is_asked_for():
    paper, released = (resolved("master", {"preset": preset}) for preset in MasterPreset)
    assert (paper.masking.npr, released.masking.npr) == (NprKind.NEIGHBOUR, NprKind.HALF)
    weights = (paper.masking.keyword_weight, released.masking.keyword_weight)
    assert weights == (KeywordWeight.TFIDF, KeywordWeight.INVERSE_FREQUENCY)
    assert (paper.masking.cmp_rate, released.masking.cmp_rate) == (0.3, 0.5)
    assert (paper.masking.cmp_pass, released.masking.cmp_pass) == (False, True)
    assert (paper.masking.weigh_fragments, released.masking.weigh_fragments) == (True, False)
    inits = (paper.objective.decoder_init, released.objective.decoder_init)
    assert inits == (DecoderInit.NORMAL, DecoderInit.LIBRARY)
    assert paper.objective.tasks == tuple(MasterTask)


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
        told = f"^{spelled(name, *CLASSES)} is for {', '.join(OBJECTIVES_OF[name])}; --objective is"
        with pytest.raises(UsageError, match=told):
            resolved(objective, **{name: FIELDS[name].default})


def test_the_help_shows_what_recipes_set_otherwise():
    for objective in PretrainingObjective:
        for preset in MasterPreset:
            for name, value in recipe(objective, preset).items():
                shown = spec_of(FIELDS[name]).shown_default or ""
                words = {True: "yes", False: "no"}
                text = words[value] if isinstance(value, bool) else str(value)
                assert name == "cmp_pass" or text in shown  # which is off by default


@pytest.mark.parametrize(
    ("objective", "settings", "options", "told"),
    [
        ("mlm", {"expansions": "e"}, {}, "--expansions is for master; --objective is mlm"),
        ("master", {}, {"cmp_encoder_rate": 0.5}, "one encoder pass has one rate"),
        ("master", {}, {"frequency_dict": "f"}, "TF-IDF needs document frequencies"),
    ],
)
def test_what_cannot_be(objective, settings, options, told):
    with pytest.raises(UsageError, match=told):
        resolved(objective, settings, **options)
