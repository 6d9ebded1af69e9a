from typing import Any

import pytest

from denserk.config.formats import CorpusSettings
from denserk.config.options import select, typed_values
from denserk.config.pretraining import (
    CLASSES,
    PretrainingObjective,
    PretrainingPreset,
    PretrainSettings,
    resolve_run,
)

PAPERS: dict[tuple[str, str], dict[str, Any]] = {
    ("condenser", "paper"): {
        "max_length": 512,
        "batch_size": 256,
        "lr": 1e-4,
        "weight_decay": 0.01,
        "epochs": 8,
        "warmup_ratio": 0.1,
        "max_grad_norm": 1.0,
        "mlm_probability": 0.15,
        "late_mlm": True,
        "n_head_layers": 2,
        "skip_from": None,
        "masking": "word",
        "loss_average": "update",
    },
    ("cocondenser", "paper"): {"max_length": 128, "batch_size": 2048, "lr": 1e-4, "lm_scale": 1},
    ("master", "paper"): {
        "max_length": 128,
        "batch_size": 2048,
        "lr": 3e-4,
        "weight_decay": 0.01,
        "max_steps": 120_000,
        "mlm_probability": 0.3,
        "decoder_mlm_probability": 0.5,
        "npr": "neighbour",
        "keyword_weight": "tfidf",
        "cmp_pass": False,
        "all_mask": False,
        "decoder_init": "normal",
        "weigh_fragments": True,
        "cmp_encoder_rate": None,
        "tasks": ("mkp", "cmp", "npr", "dor", "gor"),
    },
    ("master", "released"): {
        "batch_size": 2048,
        "lr": 3e-4,
        "mlm_probability": 0.3,
        "decoder_mlm_probability": 0.5,
        "npr": "half",
        "keyword_weight": "inverse-frequency",
        "cmp_pass": True,
        "decoder_init": "library",
        "weigh_fragments": False,
        "cmp_encoder_rate": 0.5,
    },
    ("retromae", "paper"): {
        "max_length": 512,
        "batch_size": 256,
        "lr": 1e-4,
        "weight_decay": 0.01,
        "epochs": 8,
        "mlm_probability": 0.3,
        "decoder_mlm_probability": 0.5,
    },
}


@pytest.mark.parametrize(("objective", "preset"), PAPERS)
def test_settings_are_those_of_the_papers(objective, preset):
    settings = PretrainSettings(
        objective=PretrainingObjective(objective),
        model="m",
        corpus=("c",),
        output="o",
        preset=PretrainingPreset(preset),
    )
    run = resolve_run(settings, CorpusSettings(), {})
    values: dict[str, Any] = {}
    for section in (run.units, run.masking, run.objective, run.optimizer):
        values |= vars(section)
    assert values.items() >= PAPERS[objective, preset].items()


@pytest.mark.parametrize("objective", PretrainingObjective)
def test_a_config_file_repeats_the_run(objective):
    settings = PretrainSettings(objective=objective, model="m", corpus=("c",), output="o")
    run = resolve_run(settings, CorpusSettings(), {})
    config = typed_values("", run.config(), PretrainSettings, CorpusSettings, *CLASSES)
    assert resolve_run(settings, CorpusSettings(), select(config, *CLASSES)) == run
