import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.faults import ranks
from tests.support.finetuning import log_of, write_examples
from tests.support.pretraining import write_corpus, write_expansions
from tests.support.tiny_models import write_tiny
from tests.support.toy import VOCABULARY
from tests.support.training_examples import words

# `torchrun`, also where PyTorch is installed outside of the environment
TORCHRUN = [
    *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
    *("--nproc-per-node", "2"),
]
FINETUNE = "finetune --model model --train-data train.jsonl --group-size 3 --representation"
PRETRAIN = "pretrain --corpus corpus.jsonl --max-length 16 --objective"
RUNS = {
    "cls": f"{FINETUNE} cls",
    "agg": f"{FINETUNE} agg --agg-dim 20 --cls-dim 6 --dev-data dev.jsonl --best-by avg-rank "
    "--eval-steps 4 --num-workers 1",
    "agg-cache": f"{FINETUNE} agg --agg-dim 20 --cls-dim 6 --grad-cache --set q-chunk=1 "
    "--set p-chunk=2",
    "mlr": f"{FINETUNE} mlr --untie --grad-cache --set q-chunk=1 --set p-chunk=2 "
    "--gradient-accumulation-steps 2 --guide model",
    "cross-encoder": f"{FINETUNE} cross-encoder --pair-max-length 24 --query-max-length 8 "
    "--grad-cache --set p-chunk=3",
    # one process has no part of the last of five
    "pairs": "finetune --model model --train-data pairs.tsv --objective cosine-mse "
    "--representation mean",
    "mlm": f"{PRETRAIN} mlm --model model",
    "condenser": f"{PRETRAIN} condenser --model model --gradient-accumulation-steps 2",
    "cocondenser": f"{PRETRAIN} cocondenser --model model --cache-chunk-size 2 --set keep-steps=3",
    "master": f"{PRETRAIN} master --model model --expansions expansions.jsonl",
    "nothing": f"{PRETRAIN} retromae --architecture tiny --set vocabulary-size=200 "
    "--set tokenize-to=tokens",
}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    write_examples(folder / "train.jsonl", range(24))
    write_examples(folder / "dev.jsonl", range(30, 36))
    pairs = (f"{words(n, 3)}\t{words(39 - n, 2)}\t{n / 4}\n" for n in range(5))
    (folder / "pairs.tsv").write_text("sentence1\tsentence2\tscore\n" + "".join(pairs))
    write_corpus(folder / "corpus.jsonl")
    write_expansions(folder / "expansions.jsonl")
    write_tiny(folder / "model", "bert", VOCABULARY)
    config = folder / "model" / "config.json"
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    config.write_text(json.dumps(json.loads(config.read_text()) | rates))
    return folder


RATE = 2e-5
# relative differences of losses; the squared errors of cosines round more, and a model from
# nothing has dropout, which each process draws anew
LOSS_TOLERANCES = {"pairs": 1e-5, "nothing": 0.05}
# a softmax is blind to these: their gradient is rounding, which Adam makes large
BLIND = ("key.bias", "classifier.bias")


def assert_same_weights(file, expected_file, tolerance):
    tensors = load_file(file)
    expected_tensors = load_file(expected_file)
    assert tensors.keys() == expected_tensors.keys()
    for name, expected in expected_tensors.items():
        if not name.endswith(BLIND):
            torch.testing.assert_close(tensors[name], expected, rtol=0, atol=tolerance)


def assert_same_values(entry, expected_entry, name):
    """The losses and measures of an entry of the log; also its norm, unless dropout changes it."""
    assert entry.keys() == expected_entry.keys()
    assert entry["step"] == expected_entry["step"]
    # the parts of a loss are compared by its size, since some of them are almost zero
    loss_difference = LOSS_TOLERANCES.get(name, 1e-6) * expected_entry.get("loss", 0)
    for key, value in expected_entry.items():
        if key.startswith("loss"):
            assert entry[key] == pytest.approx(value, rel=0, abs=loss_difference), key
        elif key.startswith("eval") or (key == "grad_norm" and name != "nothing"):
            assert entry[key] == pytest.approx(value, rel=1e-4), key


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_two_processes_are_one(start, tmp_path, name):
    options = [
        *("--batch-size", "4", "--max-steps", "8", "--save-steps", "4", "--lr", str(RATE)),
        *("--set", "logging-steps=1", "--device", "cpu"),
    ]
    command = ["-m", "denserk", *RUNS[name].split(), *options, "--output"]
    one = tmp_path / "one"
    two = tmp_path / "two"
    subprocess.run([sys.executable, *command, str(one)], cwd=start, check=True)
    process = subprocess.run(
        [*TORCHRUN, *command, str(two)], cwd=start, stderr=subprocess.PIPE, text=True
    )
    assert process.returncode == 0, process.stderr
    assert process.stderr.count(f"{two}: 8 steps") == 1

    expected_files = sorted(tmp_path.glob("one*/**/*.safetensors"))  # and of checkpoints, beside it
    assert len(expected_files) > 1
    # a step is about RATE; the new head of a cross-encoder has small gradients
    tolerance = RATE / 2 if name == "cross-encoder" else RATE / 50
    if name != "nothing":  # which has dropout
        for expected_file in expected_files:
            file_name = str(expected_file.relative_to(tmp_path)).replace("one", "two", 1)
            assert_same_weights(tmp_path / file_name, expected_file, tolerance)
    for entry, expected_entry in zip(log_of(two), log_of(one), strict=True):
        assert_same_values(entry, expected_entry, name)


def losses_by_step(output):
    return {entry["step"]: entry["loss"] for entry in log_of(output) if "loss" in entry}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("name", ["agg", "cocondenser"])
def test_a_killed_rank_is_made_up_for(start, tmp_path, name):
    options = [
        *("--batch-size", "4", "--max-steps", "20", "--save-steps", "5", "--device", "cpu"),
        *("--set", "logging-steps=1"),
    ]
    command = ["-m", "denserk", *RUNS[name].split(), *options, "--output"]
    one = tmp_path / "one"
    two = tmp_path / "two"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # as torchrun sets it
    subprocess.run([sys.executable, *command, str(one)], cwd=start, check=True, env=environment)

    launch = [*TORCHRUN, *command, str(two)]
    process = subprocess.Popen(launch, cwd=start)
    while not any((tmp_path / "two.training" / "checkpoints").glob("checkpoint-1?")):
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(ranks(process.pid)[1], signal.SIGKILL)
    assert process.wait() == 1
    assert not (two / "config.json").exists()

    subprocess.run([*launch, "--resume"], cwd=start, check=True)
    losses = losses_by_step(two)
    assert list(losses) == list(range(1, 21))
    assert losses == pytest.approx(losses_by_step(one), rel=1e-6, abs=1e-6)
