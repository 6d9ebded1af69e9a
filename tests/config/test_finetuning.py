import pytest

from denserk.config.finetuning import resolve_run
from denserk.config.formats import CorpusSettings
from denserk.config.options import select, typed_values
from denserk.config.presets import presets
from denserk.config.training import CLASSES, DevMetric
from denserk.errors import UsageError

PATHS = {"model": "m", "train_data": ("t.jsonl",), "output": "o"}


def resolve(preset=None, **options):
    return resolve_run(preset, CorpusSettings(), {**PATHS, **options})


@pytest.mark.parametrize("preset", presets().values(), ids=lambda preset: preset.name)
def test_every_preset_makes_a_run_that_its_config_file_repeats(preset):
    assert preset.start
    assert preset.data
    assert len({"epochs", "max_steps"} & preset.settings.keys()) == 1
    assert len({"warmup_ratio", "warmup_steps"} & preset.settings.keys()) <= 1
    run = resolve(preset.name, dev_data="dev.jsonl")
    assert run.notes[0] == f"preset {preset.name}: {preset.summary}"
    assert not any("overridden" in note for note in run.notes)
    config = typed_values("config.yaml", run.config(), CorpusSettings, *CLASSES)
    assert config.items() >= preset.settings.items()
    run_of_config = resolve(**select(config, *CLASSES))
    for section in ("sampling", "objective", "optimizer", "cache", "validation"):
        assert getattr(run_of_config, section) == getattr(run, section)


@pytest.mark.parametrize(
    ("preset", "option", "value", "rival"),
    [
        ("master-nq-retriever1", "epochs", 2.0, "max-steps"),
        ("master-nq-retriever1", "warmup-ratio", 0.2, "warmup-steps"),
        ("condenser-nq-low-data", "train-fraction", 0.1, "train-queries"),
    ],
)
def test_a_given_option_disables_its_rival(preset, option, value, rival):
    assert rival in resolve(preset).config()
    config = resolve(preset, **{option.replace("-", "_"): value}).config()
    assert config[option] == value
    assert rival not in config


def test_without_dev_data_a_preset_keeps_the_last_weights_and_says_so():
    preset = next(preset for preset in presets().values() if "best_by" in preset.settings)
    run = resolve(preset.name)
    assert run.validation.best_by is None
    assert "without --dev-data the last" in run.notes[-1]
    run_with_dev_data = resolve(preset.name, dev_data="dev.jsonl")
    assert run_with_dev_data.validation.best_by == preset.settings["best_by"]
    with pytest.raises(UsageError, match="needs --dev-data"):
        resolve(preset.name, best_by=DevMetric.LOSS)


def test_options_that_override_a_preset_are_printed_with_their_values():
    notes = resolve("aggretriever", passage_max_length=60).notes
    (note,) = [note for note in notes if "overridden" in note]
    assert "passage-max-length: 60" in note
