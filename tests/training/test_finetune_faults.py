"""Bad data and bad luck: one clear error or a counted warning each, and no checkpoint lost."""

import re
import subprocess
import sys

import orjson
import pytest

from denserk.commands.app import run
from tests.data.conftest import inline
from tests.faults import limit_file_size
from tests.training.finetuning import write_examples


@pytest.fixture
def lines():
    """Eight examples, to be spoiled."""
    return [inline(number, 1, 3, scored=True) for number in range(8)]


@pytest.fixture
def command(tiny, tmp_path, capsys):
    """Runs the command over lines or a file's bytes; its status, and what stood on stderr."""

    def finetune(examples, *options, model=None):
        if not isinstance(examples, bytes):
            examples = b"".join(orjson.dumps(line) + b"\n" for line in examples)
        (tmp_path / "train.jsonl").write_bytes(examples)
        basic = {
            "--model": str(model or tiny("bert")),
            "--train-data": str(tmp_path / "train.jsonl"),
            "--output": str(tmp_path / "out"),
            "--representation": "mean",
            "--batch-size": "4",
            "--group-size": "3",
            "--max-steps": "2",
            "--device": "cpu",
        }
        given = dict(zip(options[::2], options[1::2], strict=False))
        words = [
            word for pair in {**basic, **given}.items() if pair[1] is not None for word in pair
        ]
        status = run(["finetune", *words, *(options[-1:] if len(options) % 2 else ())])
        printed = capsys.readouterr()
        assert printed.out == ""
        assert "Traceback" not in printed.err
        assert "internal error" not in printed.err
        return status, printed.err

    return finetune


@pytest.mark.parametrize("lr", ["1e30", "1e6"])
def test_weights_that_exploded_are_no_model(command, lines, tmp_path, lr):
    """The loss before the last update is finite: the weights after it are looked at."""
    options = ("--lr", lr, "--max-steps", "1", "--warmup-ratio", "0")
    status, printed = command(lines, *options)
    assert status == 1
    assert re.search(r"^error: training diverged: after step 1 the weights ", printed, re.MULTILINE)
    assert "lower --lr" in printed
    assert not list((tmp_path / "out").rglob("*.safetensors"))


def test_a_checkpoint_before_the_weights_explode_stays(command, lines, tmp_path):
    rising = (
        "--lr",
        "1e7",
        "--max-steps",
        "1000000",
        "--save-steps",
        "5",
        "--set",
        "warmup-steps=1000000",
    )
    status, printed = command(lines, *rising)
    assert status == 1
    (kept,) = (tmp_path / "out" / "checkpoints").iterdir()
    assert f"{kept} is the last good checkpoint" in printed
    assert command(lines, "--model", str(kept), "--overwrite")[0] == 2  # it lies in the output
    assert command(lines, "--model", str(kept), "--output", str(tmp_path / "next"))[0] == 0


def test_normalised_vectors_need_a_temperature(command, lines, tmp_path):
    status, printed = command(lines, "--l2-norm")
    assert status == 2
    assert "add --temperature 0.05, or --no-l2-norm" in printed
    assert not (tmp_path / "out").exists()
    assert command(lines, "--temperature", "0.02", "--l2-norm")[0] == 0
    given = ("--model", str(tmp_path / "out"), "--output", str(tmp_path / "next"))
    assert command(lines, *given, "--representation", None)[0] == 2  # as the folder says


@pytest.mark.parametrize(
    ("options", "status", "phrase"),
    [
        (("--model", None), 2, "--model must be given"),
        (("--model", "nowhere/at-all"), 1, "nowhere/at-all"),
        (("--train-data", "absent.jsonl"), 2, "absent.jsonl"),
        (("--preset", "aggretriever-macro"), 2, "did you mean aggretriever-marco"),
        (("--representation", "mlr", "--layers", "2,5"), 1, "the layers 0 to 2"),
        (("--representation", "colbert", "--reduction", "scalar-mix"), 2, "--reduction"),
        (("--device", "tpu"), 2, "auto, cpu, cuda"),
        (("--best-by", "RR@10"), 2, "needs --dev-data or --dev-corpus"),
        (("--query-max-length", "400"), 2, "64 positions"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_refused(command, lines, tmp_path, options, status, phrase):
    found, printed = command(lines, *options)
    assert found == status
    assert phrase in printed
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_a_refused_run_leaves_the_one_before(command, lines, tmp_path):
    assert command(lines)[0] == 0
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert command(lines, "--model", "nowhere/at-all", "--overwrite")[0] == 1
    assert command(lines)[0] == 2  # neither --resume nor --overwrite
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "what"),
    [(30_000, "model.safetensors"), (60_000, "checkpoints")],
    ids=["model", "optimizer"],
)
def test_files_that_may_not_grow(tiny, tmp_path, size, what):
    """A real limit, met by denserk's writer (the model) and by torch's (the optimiser's state)."""
    train = write_examples(tmp_path / "train.jsonl", range(24))
    options = [
        *("--model", str(tiny("bert")), "--train-data", train, "--representation", "mean"),
        *("--batch-size", "4", "--group-size", "3", "--save-steps", "2", "--device", "cpu"),
        *("--output", str(tmp_path / "out"), "--max-steps", "6"),
    ]
    failed = subprocess.run(
        [sys.executable, "-m", "denserk", "finetune", *options],
        preexec_fn=lambda: limit_file_size(size),
        capture_output=True,
        text=True,
        check=False,
    )
    assert failed.returncode == 1
    assert re.search(rf"^error: .*{what} cannot be written", failed.stderr, re.MULTILINE)
    assert "Traceback" not in failed.stderr
    assert list((tmp_path / "out" / "checkpoints").iterdir()) == []
