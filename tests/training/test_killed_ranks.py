"""Training under torchrun: a process killed in the middle, and --resume, give the losses of one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import VOCABULARY
from tests.faults import ranks
from tests.tiny_models import write_tiny
from tests.training.finetuning import write_examples
from tests.training.pretraining import write_corpus

COMMANDS = {
    "finetune": (
        "finetune",
        "--train-data",
        "train.jsonl",
        "--group-size",
        "3",
        "--l2-norm",
        "--temperature",
        "0.05",
    ),
    "pretrain": (
        *("pretrain", "--objective", "cocondenser", "--corpus", "corpus.jsonl"),
        *("--cache-chunk-size", "2", "--max-length", "16", "--set", "keep-steps=10"),
    ),
}
OPTIONS = (
    *("--model", "model", "--batch-size", "4", "--max-steps", "20", "--save-steps", "5"),
    *("--set", "logging-steps=1", "--device", "cpu"),
)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A folder with data, and a model without dropout."""
    folder = tmp_path_factory.mktemp("start")
    write_examples(folder / "train.jsonl", range(24))
    write_corpus(folder / "corpus.jsonl")
    write_tiny(folder / "model", "bert", VOCABULARY)
    config = folder / "model" / "config.json"
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    config.write_text(json.dumps(json.loads(config.read_text()) | rates))
    return folder


def losses(output):
    log = json.loads((output / "training.json").read_text())["log"]
    return {entry["step"]: entry["loss"] for entry in log if "loss" in entry}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_killed_rank_is_made_up_for(start, tmp_path, kind):
    one, two = tmp_path / "one", tmp_path / "two"
    work = ["-m", "denserk", *COMMANDS[kind], *OPTIONS, "--output"]
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    several = [torchrun, "--standalone", "--nproc-per-node", "2", *work, str(two)]
    as_torchrun_does = os.environ | {"OMP_NUM_THREADS": "1"}
    alone = [sys.executable, *work, str(one)]
    subprocess.run(alone, cwd=start, check=True, env=as_torchrun_does)
    process = subprocess.Popen(several, cwd=start)
    while not any((two / "checkpoints").glob("checkpoint-1?")):
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(ranks(process.pid)[1], signal.SIGKILL)
    assert process.wait() == 1
    assert not (two / "config.json").exists()
    subprocess.run([*several, "--resume"], cwd=start, check=True)
    expected, found = losses(one), losses(two)
    assert sorted(expected) == sorted(found) == list(range(1, 21))
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)
