from typing import Any

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


# What the papers and their code say, by preset: queries of a batch, passages of a query, learning
# rate, length of the training in epochs or steps, tokens of queries and passages.
SIZES = {
    "aggretriever-marco": (8, 8, 5e-6, 3, 32, 128),
    "aggretriever-nq": (128, 2, 1e-5, 40, 32, 156),
    "aggretriever-tqa": (128, 2, 1e-5, 40, 32, 156),
    "aggretriever-nq-dpr": (128, 2, 2e-5, 40, 32, 156),
    "aggretriever-low-data": (8, 8, 5e-6, 40, 32, 128),
    "aggretriever-hard-negatives": (8, 8, 5e-6, 2, 32, 128),
    "condenser-marco": (8, 8, 5e-6, 3, 32, 128),
    "condenser-marco-hard-negatives": (8, 8, 5e-6, 3, 32, 128),
    "condenser-nq": (128, 2, 1e-5, 40, 32, 256),
    "condenser-nq-hard-negatives": (128, 2, 1e-5, 20, 32, 256),
    "cocondenser-nq": (128, 2, 5e-6, 40, 32, 256),
    "master-marco-retriever1": (64, 16, 2e-5, 3, 32, 144),
    "master-marco-retriever2": (64, 16, 2e-5, 3, 32, 144),
    "master-marco-reranker": (64, 64, 3e-5, 3, 32, 192),
    "master-marco-distil": (64, 24, 3e-5, 6, 32, 144),
    "master-nq-retriever1": (64, 16, 1e-5, 20_000, 32, 192),
    "master-marco-retriever1-released": (64, 32, 5e-6, 30_000, 32, 128),
    "master-marco-retriever2-released": (64, 32, 5e-6, 40_000, 32, 128),
    "master-marco-reranker-released": (64, 64, 1e-5, 33_000, 32, 128),
    "master-marco-distil-released": (512, 42, 5e-6, 25_000, 32, 128),
    "master-nq-retriever1-released": (256, 2, 1e-5, 80_000, 128, 128),
    "master-nq-retriever2-released": (128, 2, 5e-6, 50_000, 128, 128),
    "master-tqa-retriever2-released": (64, 2, 5e-6, 80_000, 128, 128),
    "mlr-nq-bert": (128, 2, 2e-5, 40, 256, 256),
    "mlr-nq-t5": (128, 2, 5e-4, 40, 256, 256),
    "mlr-nq-retromae": (128, 2, 5e-6, 40, 256, 256),
    "mlr-nq-retromae-hard-negatives": (128, 2, 5e-6, 20, 256, 256),
    "mlr-marco": (128, 16, 2e-5, 4, 32, 140),
    "mlr-beir": (128, 2, 1e-5, 10, 32, 144),
}
WARMUPS_AND_CLIPPING = {
    "aggretriever-marco": (0.1, 1.0),
    "aggretriever-nq-dpr": (1237, 2.0),
    "condenser-marco": (0.1, 1.0),
    "condenser-nq": (1237, 2.0),
    "master-marco-retriever1": (1000, 1.0),
    "master-marco-retriever1-released": (1000, 2.0),
    "master-nq-retriever1-released": (8000, 2.0),
    "master-marco-reranker-released": (2000, 2.0),
    "master-marco-distil-released": (0.1, 2.0),
    "mlr-nq-bert": (0.05, 2.0),
    "mlr-marco": (0.05, 2.0),
}
# temperature, L2 norm, separate encoders, and other settings that a loss depends on
LOSSES: dict[str, tuple[float, bool, bool, dict[str, Any]]] = {
    "aggretriever-marco": (1.0, False, False, {"cls_weight": 0.5, "agg_weight": 0.5}),
    "condenser-marco": (1.0, False, False, {}),
    "condenser-nq": (1.0, False, True, {}),
    "master-marco-retriever1": (0.02, True, False, {"contrastive": "full"}),
    "master-marco-distil": (0.02, True, False, {"distillation": "kl", "contrastive_weight": 0.2}),
    "master-nq-distil": (0.02, True, False, {"distillation": "kl", "contrastive_weight": 1.0}),
    "master-marco-retriever1-released": (1.0, False, True, {"contrastive": "in-batch"}),
    "master-marco-distil-released": (
        1.0,
        False,
        True,
        {"distillation": "soft-cross-entropy", "contrastive_weight": 0.2},
    ),
    "master-nq-distil-released": (1.0, False, True, {"contrastive_weight": 0.0}),
    "mlr-nq-bert": (1.0, False, True, {"layer_weight": 1.0, "layers": (12, 10)}),
    "mlr-nq-bert-multi-vector": (1.0, False, True, {"layers": (12, 8)}),
    "mlr-nq-t5": (1.0, False, True, {"layers": (12, 8), "reduction": "multi-vector"}),
    "mlr-nq-retromae": (1.0, False, True, {"layer_weight": 0.1, "layers": (12, 10)}),
    "mlr-marco": (1.0, False, True, {"layer_weight": 0.01}),
    "mlr-beir": (1.0, False, False, {"layer_weight": 0.1}),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_presets_are_the_papers(name):
    settings = presets()[name].settings
    names = ("batch_size", "group_size", "lr", "query_max_length", "passage_max_length")
    values = [settings[setting] for setting in names]
    values.insert(3, settings.get("max_steps", settings.get("epochs")))
    assert tuple(values) == SIZES[name]


@pytest.mark.parametrize("name", WARMUPS_AND_CLIPPING)
def test_warm_up_and_clipping_of_presets_are_the_papers(name):
    settings = presets()[name].settings
    warmup = settings.get("warmup_steps", settings.get("warmup_ratio"))
    assert (warmup, settings["max_grad_norm"]) == WARMUPS_AND_CLIPPING[name]
    assert settings["weight_decay"] == 0


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_presets_are_the_papers(name):
    settings = presets()[name].settings
    temperature, is_normalised, is_untied, others = LOSSES[name]
    assert settings["temperature"] == temperature
    assert settings["l2_norm"] == is_normalised
    assert settings["untie"] == is_untied
    assert settings.items() >= others.items()


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
