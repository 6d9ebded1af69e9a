import re

import pytest

from tests.support.faults import denserk, limit_file_size
from tests.support.finetuning import weights, write_examples

CROSS_ENCODER = {"representation": "cross-encoder"}
PAIRS = {"objective": "cosine-mse", "group_size": None}


@pytest.fixture
def command(denserk, tiny, tmp_path):
    train = write_examples(tmp_path / "train.jsonl", range(8), scored=True)
    files = {"model": tiny("bert"), "train-data": train, "output": tmp_path / "out"}
    small = {"batch-size": 4, "group-size": 3, "max-steps": 2, "device": "cpu"}
    usual = {**files, "representation": "mean", **small}

    def finetune(*flags, **options):
        options = {name.replace("_", "-"): value for name, value in options.items()}
        return denserk("finetune", usual | options, *flags)

    return finetune


def test_normalised_vectors_need_a_temperature(command, tmp_path):
    status, _ = command("--l2-norm", temperature=0.02)
    assert status == 0
    # the pooling and the norm are those of the folder
    status, printed = command(model=tmp_path / "out", output=tmp_path / "next", representation=None)
    assert status == 2
    assert "add --temperature 0.05, or --no-l2-norm" in printed


@pytest.mark.parametrize(
    ("options", "expected_status", "phrase"),
    [
        ({"model": None}, 2, "--model must be given"),
        ({"train_data": "absent.jsonl"}, 2, "absent.jsonl"),
        ({"representation": "mlr", "layers": "2,5"}, 1, "the layers 0 to 2"),
        ({"representation": "colbert", "reduction": "scalar-mix"}, 2, "--reduction"),
        ({"best_by": "RR@10"}, 2, "needs --dev-data or --dev-corpus"),
        ({"query_max_length": 400}, 2, "64 positions"),
        ({"dimensions": "16,17"}, 2, "--dimensions 17: the model's vectors have 16 dimensions"),
        ({"dimensions": "8,0"}, 2, "--dimensions 0: at least 1"),
        ({"dimensions": "8", "representation": "agg"}, 2, "--dimensions: the first dimensions of"),
        (CROSS_ENCODER | {"group_size": 1}, 2, "--group-size 1"),
        ({"batch_size": 1, "group_size": 1}, 2, "a query has no passage but its positive"),
        ({"distillation": "kl", "group_size": 1}, 2, "--distillation with --group-size 1"),
        (CROSS_ENCODER | {"temperature": 2}, 2, "--temperature: not used by cross-encoder"),
        (CROSS_ENCODER | {"guide": "m"}, 2, "--guide: not used by cross-encoder"),
        ({"guide": "nowhere/at-all"}, 1, "nowhere/at-all"),
        ({"guide": "m", "train_data": "-"}, 2, "--guide reads --train-data twice"),
        ({"objective": "triplet"}, 2, "--group-size: not used by triplet"),
        (PAIRS | CROSS_ENCODER, 2, "--representation cross-encoder: not used by cosine-mse"),
        (PAIRS | {"dev_data": "d", "best_by": "RR@10"}, 2, "--best-by RR@10 is not measured under"),
        # the loss before the last update is finite: the weights after it are looked at
        ({"lr": 1e6, "max_steps": 1, "warmup_ratio": 0}, 1, "diverged: after step 1 the norm"),
    ],
    ids=str,
)
def test_rejected(command, tmp_path, options, expected_status, phrase):
    status, printed = command(**options)
    assert status == expected_status
    assert phrase in printed
    assert not list(tmp_path.rglob("out/**/*.safetensors"))


def test_a_contrast_of_no_weight_leaves_no_loss_without_a_teacher(command):
    status, printed = command("--set", "contrastive-weight=0")
    assert status == 2
    assert "--distillation" in printed
    assert command("--set", "contrastive-weight=0", distillation="kl")[0] == 0


def test_a_rejected_run_leaves_the_one_before(command, tmp_path):
    def status_of(*flags, **options):
        status, _ = command(*flags, **options)
        return status

    assert status_of() == 0
    weights_before = weights(tmp_path / "out")
    assert status_of("--overwrite", model="nowhere/at-all") == 1
    assert status_of() == 2  # neither --resume nor --overwrite
    [checkpoint] = (tmp_path / "out.training" / "checkpoints").iterdir()
    assert status_of("--overwrite", model=checkpoint) == 2  # it lies in the output
    assert weights(tmp_path / "out") == weights_before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "file"),
    [(30_000, "model.safetensors"), (60_000, "checkpoints")],
    ids=["model", "optimizer"],
)
def test_files_that_may_not_grow(tiny, tmp_path, size, file):
    """A real limit, met by denserk's writer (the model) and by torch's (the optimiser's state)."""
    train = write_examples(tmp_path / "train.jsonl", range(24))
    options = [
        *("--model", str(tiny("bert")), "--train-data", train, "--representation", "mean"),
        *("--batch-size", "4", "--group-size", "3", "--save-steps", "2", "--device", "cpu"),
        *("--output", str(tmp_path / "out"), "--max-steps", "6"),
    ]
    failed = denserk("finetune", *options, preexec_fn=lambda: limit_file_size(size))
    assert failed.returncode == 1
    assert re.search(rf"^error: .*{file}.* cannot be written", failed.stderr, re.MULTILINE)
    assert "Traceback" not in failed.stderr
    assert not list(tmp_path.rglob("checkpoint-*"))
