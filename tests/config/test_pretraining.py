"""A pre-training run put together from a recipe and what was given by hand."""

import dataclasses

import pytest

from denserk.config.formats import CorpusSettings
from denserk.config.options import spec_of, spelled
from denserk.config.pretraining import (
    CLASSES,
    OBJECTIVES_OF,
    DecoderInit,
    KeywordWeight,
    MaskingSettings,
    MasterPreset,
    MasterTask,
    NprKind,
    PretrainingObjective,
    PretrainingObjectiveSettings,
    PretrainOptimizerSettings,
    PretrainSettings,
    TextUnitSettings,
    recipe,
    resolve_run,
)
from denserk.errors import UsageError

GIVEN = (TextUnitSettings, MaskingSettings, PretrainingObjectiveSettings, PretrainOptimizerSettings)
FIELDS = {field.name: (cls, field) for cls in GIVEN for field in dataclasses.fields(cls)}
PLACES = {"model": "m", "corpus": ("c",), "output": "o"}
OBJECTIVES = tuple(PretrainingObjective)


def together(objective, preset=MasterPreset.PAPER, settings=None, **options):
    given: dict[type, dict[str, object]] = {cls: {} for cls in GIVEN}
    for name, value in options.items():
        given[FIELDS[name][0]][name] = value
    chosen = PLACES | (settings or {})
    pretrain = PretrainSettings(objective=PretrainingObjective(objective), preset=preset, **chosen)
    return resolve_run(pretrain, CorpusSettings(), given)


PAPERS = [
    ("condenser", (512, 256, 1e-4, 0.15, None, 8.0)),
    ("cocondenser", (128, 2048, 1e-4, 0.15, None, 8.0)),
    ("master", (128, 2048, 3e-4, 0.3, 120_000, 8.0)),
    ("retromae", (512, 256, 1e-4, 0.3, None, 8.0)),
    ("mlm", (512, 256, 1e-4, 0.15, None, 8.0)),
]


@pytest.mark.parametrize(("objective", "expected"), PAPERS)
def test_recipes_are_the_papers(objective, expected):
    run = together(objective)
    optimizer = run.optimizer
    found = (run.units.max_length, optimizer.batch_size, optimizer.lr)
    assert (*found, run.masking.mlm_probability, optimizer.max_steps, optimizer.epochs) == expected
    assert (optimizer.weight_decay, optimizer.warmup_ratio, optimizer.max_grad_norm) == (
        0.01,
        0.1,
        1,
    )
    assert (run.objective.n_head_layers, run.objective.late_mlm, run.objective.lm_scale) == (
        2,
        True,
        1,
    )


def test_master_is_the_papers_unless_released_is_asked_for():
    paper, released = (together("master", preset) for preset in MasterPreset)
    assert (paper.masking.npr, released.masking.npr) == (NprKind.NEIGHBOUR, NprKind.HALF)
    weights = (paper.masking.keyword_weight, released.masking.keyword_weight)
    assert weights == (KeywordWeight.TFIDF, KeywordWeight.INVERSE_FREQUENCY)
    assert (paper.masking.cmp_rate, released.masking.cmp_rate) == (0.3, 0.5)
    assert (paper.masking.cmp_pass, released.masking.cmp_pass) == (False, True)
    assert (paper.masking.weigh_fragments, released.masking.weigh_fragments) == (True, False)
    inits = (paper.objective.decoder_init, released.objective.decoder_init)
    assert inits == (DecoderInit.NORMAL, DecoderInit.LIBRARY)
    assert paper.objective.master_tasks == frozenset(MasterTask)


def test_what_is_given_by_hand_wins():
    run = together(
        "master", MasterPreset.RELEASED, npr=NprKind.NEIGHBOUR, batch_size=8, tasks=("mkp",)
    )
    assert (run.masking.npr, run.optimizer.batch_size) == (NprKind.NEIGHBOUR, 8)
    assert run.masking.keyword_weight is KeywordWeight.INVERSE_FREQUENCY
    assert run.objective.master_tasks == {MasterTask.MKP}


def test_who_gives_epochs_means_them():
    assert together("master", epochs=3.0).optimizer.max_steps is None
    assert together("master", epochs=3.0, max_steps=5).optimizer.max_steps == 5


@pytest.mark.parametrize("name", OBJECTIVES_OF)
def test_settings_are_refused_where_they_mean_nothing(name):
    value = FIELDS[name][1].default
    for objective in OBJECTIVES:
        if objective in OBJECTIVES_OF[name]:
            together(objective, **{name: value})
            continue
        flag = spelled(name, *CLASSES)
        with pytest.raises(
            UsageError, match=f"{flag} is for .*{OBJECTIVES_OF[name][-1]}$"
        ) as refusal:
            together(objective, **{name: value})
        assert refusal.value.hint == f"leave out {flag}"


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(UsageError) as refusal:
        together("mlm", tasks=("mkp",), skip_from=2)
    assert refusal.value.message == (
        "not under --objective mlm: --set tasks is for master; "
        "--set skip-from is for condenser and cocondenser"
    )


def test_several_are_told_as_words():
    with pytest.raises(UsageError, match=r"is for condenser, cocondenser and master$"):
        together("retromae", n_head_layers=2)


RECIPE_VALUES = sorted(
    {
        item
        for objective in PretrainingObjective
        for preset in MasterPreset
        for item in recipe(objective, preset).items()
    },
    key=str,
)


@pytest.mark.parametrize(("name", "value"), RECIPE_VALUES, ids=str)
def test_the_help_tells_what_recipes_set_otherwise(name, value):
    field = FIELDS[name][1]
    shown = spec_of(field).shown_default or ""
    if name == "cmp_pass":  # off by default, and the help says no more of such
        return
    words = {True: "yes", False: "no"}
    assert str(words[value] if isinstance(value, bool) else value) in shown
    if field.default is not None and not isinstance(field.default, bool):
        assert shown.startswith(str(field.default))


@pytest.mark.parametrize("cls", GIVEN)
def test_recipes_name_settings_that_exist(cls):
    names = {name for name, _ in RECIPE_VALUES} | set(OBJECTIVES_OF)
    assert names <= FIELDS.keys()
    assert {field.name for field in dataclasses.fields(cls)} <= FIELDS.keys()


@pytest.mark.parametrize(
    ("objective", "settings", "options", "phrase"),
    [
        ("mlm", {"model": None}, {}, "either --model, .* or --architecture"),
        ("mlm", {"resume": True, "overwrite": True}, {}, "exclude each other"),
        ("mlm", {"vocabulary_size": 5000}, {}, "vocabulary-size=5000: a tokenizer"),
        ("mlm", {"tokenizer": "t"}, {}, "--tokenizer t: a model brings its own"),
        ("mlm", {"expansions": "e"}, {}, "--expansions are master's; --objective is mlm"),
        ("cocondenser", {}, {"chunk_tokens": 0}, "chunk-tokens=0: at least 1"),
        ("cocondenser", {}, {"fp16": True}, "--dtype float16"),
        ("mlm", {}, {"cache_chunk_size": 0}, "--cache-chunk-size 0: at least 1"),
        ("mlm", {}, {"max_length": 2}, "--max-length 2: at least 3"),
        ("mlm", {}, {"mlm_probability": 1.0}, "mlm-probability 1.0: between 0 and 1"),
        ("mlm", {}, {"fields": ()}, "--fields names no field"),
        ("mlm", {}, {"short_blocks": 2.0}, "short-blocks=2: at least 0, at most 1"),
        ("condenser", {}, {"n_head_layers": 0}, "n-head-layers=0: at least 1"),
        ("condenser", {}, {"skip_from": -1}, "skip-from=-1: at least 0"),
        ("cocondenser", {}, {"lm_scale": -1.0}, "lm-scale=-1: at least 0"),
        ("master", {}, {"tasks": ("abc",)}, "tasks=abc: abc"),
        ("master", {}, {"tasks": ()}, "no task"),
        ("master", {}, {"cmp_encoder_rate": 0.5}, "--set cmp-encoder-rate"),
        ("master", {}, {"frequency_dict": "f"}, "--set frequency-dict"),
    ],
)
def test_refusals(objective, settings, options, phrase):
    with pytest.raises(UsageError, match=phrase):
        together(objective, settings=settings, **options)
