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

TORCHRUN = [
    *(str(Path(sys.executable).with_name("torchrun")), "--standalone"),
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_two_processes_are_one(start, tmp_path, kind):
    options = [
        *("--batch-size", "4", "--max-steps", "8", "--save-steps", "4", "--lr", str(RATE)),
        *("--set", "logging-steps=1", "--device", "cpu"),
    ]
    one, two = tmp_path / "one", tmp_path / "two"
    for launch, output in (([sys.executable], one), (TORCHRUN, two)):
        command = [*launch, "-m", "denserk", *RUNS[kind].split(), *options]
        done = subprocess.run(
            [*command, "--output", str(output)], cwd=start, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"{two}: 8 steps") == 1
    models = sorted(tmp_path.glob("one*/**/*.safetensors"))  # and of checkpoints, beside it
    assert len(models) > 1
    for model in models if kind != "nothing" else ():  # a model from nothing has dropout
        name = str(model.relative_to(tmp_path)).replace("one", "two", 1)
        expected, found = load_file(model), load_file(tmp_path / name)
        assert expected.keys() == found.keys()
        # a softmax is blind to these: their gradient is rounding, which Adam makes large
        blind = "key.bias", "classifier.bias"
        # a step is about RATE; the new head of a cross-encoder has small gradients
        tolerance = RATE / 2 if kind == "cross-encoder" else RATE / 50
        for tensor in [name for name in expected if not name.endswith(blind)]:
            torch.testing.assert_close(found[tensor], expected[tensor], rtol=0, atol=tolerance)
    loss_tolerance = LOSS_TOLERANCES.get(kind, 1e-6)
    for of_one, of_two in zip(log_of(one), log_of(two), strict=True):
        assert of_two.keys() == of_one.keys()
        assert of_two["step"] == of_one["step"]
        for name in of_one:
            value = pytest.approx(of_one[name], rel=1e-4)
            if name.startswith("loss"):  # its parts, too, some of which are almost zero
                value = pytest.approx(of_one[name], rel=0, abs=loss_tolerance * of_one["loss"])
            elif not name.startswith("eval") and (name != "grad_norm" or kind == "nothing"):
                continue
            assert of_two[name] == value, name


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("kind", ["agg", "cocondenser"])
def test_a_killed_rank_is_made_up_for(start, tmp_path, kind):
    one, two = tmp_path / "one", tmp_path / "two"
    options = ("--batch-size", "4", "--max-steps", "20", "--save-steps", "5", "--device", "cpu")
    work = ["-m", "denserk", *RUNS[kind].split(), *options, "--set", "logging-steps=1", "--output"]
    several = [*TORCHRUN, *work, str(two)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # as torchrun sets it
    subprocess.run([sys.executable, *work, str(one)], cwd=start, check=True, env=environment)
    process = subprocess.Popen(several, cwd=start)
    while not any((tmp_path / "two.training" / "checkpoints").glob("checkpoint-1?")):
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(ranks(process.pid)[1], signal.SIGKILL)
    assert process.wait() == 1
    assert not (two / "config.json").exists()
    subprocess.run([*several, "--resume"], cwd=start, check=True)
    losses = [
        {entry["step"]: entry["loss"] for entry in log_of(folder) if "loss" in entry}
        for folder in (one, two)
    ]
    assert list(losses[1]) == list(range(1, 21))
    assert losses[1] == pytest.approx(losses[0], rel=1e-6, abs=1e-6)
