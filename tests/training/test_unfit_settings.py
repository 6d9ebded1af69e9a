"""Settings that cannot do what they say, and weights that are not worth keeping."""

from typing import Any

import pytest

from denserk.config.presets import presets
from tests.support.finetuning import log_of, write_examples
from tests.support.training_examples import jsonl, words

# how the models of the tests are trained, by command and options
TRAININGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bi-encoder": ("finetune", {"representation": "mean"}),
    "cross-encoder": ("finetune", {"representation": "cross-encoder"}),
    "sentences": ("finetune", {"objective": "cosine-mse"}),
    "mlm": ("pretrain", {"objective": "mlm", "max-length": 16}),
    "cocondenser": ("pretrain", {"objective": "cocondenser", "max-length": 16}),
}


@pytest.fixture
def command(denserk, tiny, corpus, tmp_path):
    """Run a training for some steps."""
    train = write_examples(tmp_path / "train.jsonl", range(8))
    sentences = (
        {"sentence1": words(n, 4), "sentence2": words(n + 5, 3), "label": n / 8} for n in range(8)
    )
    pairs = jsonl(tmp_path / "pairs.jsonl", sentences)

    def run(training, *flags, **options):
        name, options_of_training = TRAININGS[training]
        all_options = {
            "model": tiny("bert"),
            "output": tmp_path / "out",
            "device": "cpu",
            "batch-size": 4,
            "max-steps": 2,
            **options_of_training,
        }
        if name == "pretrain":
            all_options["corpus"] = corpus
        elif training == "sentences":
            all_options["train-data"] = pairs
        else:
            all_options["train-data"] = train
        for option, value in options.items():
            all_options[option.replace("_", "-")] = value
        return denserk(name, all_options, *flags)

    return run


@pytest.mark.parametrize("training", TRAININGS)
def test_a_single_step_at_an_absurd_learning_rate_saves_nothing(command, tmp_path, training):
    status, printed = command(training, lr=1e30, max_steps=1)
    assert status == 1
    assert "--lr" in printed
    assert not list((tmp_path / "out").rglob("*.safetensors"))


def test_a_single_step_trains(command, tmp_path):
    assert command("bi-encoder", lr=0.01, max_steps=1)[0] == 0
    [entry] = log_of(tmp_path / "out")
    assert entry["learning_rate"] == 0.01


def test_weights_of_chosen_steps_are_looked_at_before_they_are_kept(command, tmp_path):
    options = {"lr": 1e30, "max_steps": 3}
    status, _ = command("mlm", "--set", "keep-steps=1", "--set", "warmup-steps=0", **options)
    assert status == 1
    assert not list((tmp_path / "out").rglob("*.safetensors"))


def test_the_best_weights_are_looked_at_before_they_are_kept(command, tmp_path):
    dev = write_examples(tmp_path / "dev.jsonl", range(30, 36))
    flags = ("--set", "warmup-steps=0", "--l2-norm")
    measured = {"dev_data": dev, "best_by": "dev-loss", "eval_steps": 1, "temperature": 0.05}
    status, _ = command("bi-encoder", *flags, **measured, lr=1e30, max_steps=3)
    assert status == 1
    assert not list((tmp_path / "out").rglob("*.safetensors"))


@pytest.mark.parametrize("training", ["bi-encoder", "mlm"])
def test_a_warm_up_as_long_as_the_training_is_rejected(command, tmp_path, training):
    status, printed = command(training, "--set", "warmup-steps=2")
    assert status == 2
    assert "warmup-steps=2" in printed
    assert "--warmup-ratio" in printed
    assert not list((tmp_path / "out").rglob("*.safetensors"))
    assert command(training, "--overwrite", warmup_ratio=0.1)[0] == 0


def test_a_preset_whose_warm_up_is_too_long_for_the_data_is_warned_of(command, tmp_path):
    preset = tmp_path / "own.yaml"
    preset.write_text("summary: s\nstart: m\ndata: d\nwarmup_steps: 100\n")
    status, printed = command("bi-encoder", preset=preset)
    assert status == 0
    assert "warning" in printed
    assert "--warmup-ratio" in printed


@pytest.mark.parametrize(
    "preset",
    [preset for preset in presets().values() if "train_queries" in preset.settings],
    ids=lambda preset: preset.name,
)
def test_presets_of_few_queries_warm_up_for_a_part_of_their_steps(preset):
    settings = preset.settings
    steps_per_epoch = settings["train_queries"] // settings["batch_size"]
    assert settings.get("warmup_steps", 0) < steps_per_epoch * settings["epochs"]
