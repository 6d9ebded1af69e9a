"""`denserk pretrain` under torchrun: as one process, and only the first one writes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import VOCABULARY
from tests.tiny_models import write_tiny
from tests.training.pretraining import write_corpus, write_expansions
from tests.training.test_finetune_processes import WATCHED


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A folder with a corpus, and a model without dropout."""
    folder = tmp_path_factory.mktemp("start")
    write_corpus(folder / "corpus.jsonl")
    write_expansions(folder / "expansions.jsonl")
    write_tiny(folder / "model", "bert", VOCABULARY)
    config = folder / "model" / "config.json"
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    config.write_text(json.dumps(json.loads(config.read_text()) | rates))
    (folder / "watched.py").write_text(WATCHED)
    return folder


def pretrain(start, output, processes, *options):
    """Runs the command; the names that each process wrote in the output folder."""
    launch = [sys.executable]
    if processes > 1:
        torchrun = str(Path(sys.executable).with_name("torchrun"))
        launch = [torchrun, "--standalone", "--nproc-per-node", str(processes)]
    arguments = {
        "--corpus": "corpus.jsonl",
        "--output": output,
        "--batch-size": "4",
        "--max-length": "16",
        "--max-steps": "8",
        "--save-steps": "4",
        "--set": "keep-steps=3",
        "--lr": "1e-3",
        "--device": "cpu",
    }
    words = [word for pair in arguments.items() for word in pair]
    command = [*launch, "watched.py", output, ".", "pretrain", *words, *options]
    done = subprocess.run(command, cwd=start, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    written = [(start / f"written-{rank}").read_text().split() for rank in range(processes)]
    return written, done.stderr


MODEL = ("--model", "model")
KINDS = {
    "cocondenser": ("--objective", "cocondenser", *MODEL, "--cache-chunk-size", "2"),
    "master": ("--objective", "master", *MODEL, "--expansions", "expansions.jsonl"),
    "nothing": (
        *("--objective", "retromae", "--architecture", "tiny"),
        *("--set", "vocabulary-size=200", "--set", "tokenize-to=tokens"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_are_one(start, tmp_path, kind):
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    pretrain(start, one, 1, *KINDS[kind])
    (_, second), told = pretrain(start, two, 2, *KINDS[kind])
    models = sorted(path.relative_to(one) for path in Path(one).glob("**/*.safetensors"))
    assert len(models) > 2
    for name in models if kind != "nothing" else ():  # a model from nothing has dropout
        expected, found = load_file(Path(one) / name), load_file(Path(two) / name)
        assert expected.keys() == found.keys()
        # the softmax is blind to key biases: their gradient is rounding, which Adam makes large
        for tensor in [name for name in expected if not name.endswith(("key.bias", "k_lin.bias"))]:
            torch.testing.assert_close(found[tensor], expected[tensor], rtol=0, atol=2e-5)
    assert set(second) <= {"rng_state_1.pth"}  # its own random state, in each checkpoint
    assert told.count(f"{two}: 8 steps") == 1
    logs = [json.loads((Path(f) / "training.json").read_text())["log"] for f in (one, two)]
    tolerance = 0.05 if kind == "nothing" else 1e-3
    for expected, found in zip(*logs, strict=True):
        for name in expected:
            if name.startswith(("loss", "step")):
                assert found[name] == pytest.approx(expected[name], rel=tolerance), name
