"""`denserk finetune` under torchrun: as one process, and only the first one writes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import VOCABULARY
from tests.tiny_models import write_tiny
from tests.training.finetuning import write_examples

WATCHED = """
import os, sys
from pathlib import Path

output, report, arguments = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
written = set()

def watch(event, given):
    if event == "open" and isinstance(given[0], str) and given[2] & (os.O_WRONLY | os.O_RDWR):
        written.add(given[0])
    if event in ("os.rename", "os.remove", "os.rmdir"):
        written.add(os.fspath(given[0]))

sys.addaudithook(watch)
from denserk.commands.app import run
status = run(arguments)
rank = os.environ.get("RANK", "0")
within = sorted(Path(name).name for name in written if str(output) in name)
(report / f"written-{rank}").write_text("\\n".join(within))
sys.exit(status)
"""


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A folder with a training file, and a model without dropout."""
    folder = tmp_path_factory.mktemp("start")
    write_examples(folder / "train.jsonl", range(24))
    write_examples(folder / "dev.jsonl", range(30, 36))
    write_tiny(folder / "model", "bert", VOCABULARY)
    config = folder / "model" / "config.json"
    told = json.loads(config.read_text())
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    config.write_text(json.dumps(told | rates))
    (folder / "watched.py").write_text(WATCHED)
    return folder


def finetune(start, output, processes, *options):
    """Runs the command; the names that each process wrote in the output folder."""
    launch = [sys.executable]
    if processes > 1:
        torchrun = str(Path(sys.executable).with_name("torchrun"))
        launch = [torchrun, "--standalone", "--nproc-per-node", str(processes)]
    arguments = {
        "--model": "model",
        "--train-data": "train.jsonl",
        "--output": output,
        "--batch-size": "4",
        "--group-size": "3",
        "--max-steps": "8",
        "--save-steps": "4",
        "--lr": "1e-3",
        "--device": "cpu",
    }
    command = [*launch, "watched.py", output, ".", "finetune"]
    words = [word for pair in arguments.items() for word in pair]
    done = subprocess.run(
        [*command, *words, *options], cwd=start, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    written = [(start / f"written-{rank}").read_text().split() for rank in range(processes)]
    return written, done.stderr


AGG = ("--representation", "agg", "--agg-dim", "20", "--cls-dim", "6")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        (*AGG, "--dev-data", "dev.jsonl", "--best-by", "avg-rank", "--eval-steps", "4"),
        (
            "--representation",
            "mlr",
            "--untie",
            "--grad-cache",
            "--set",
            "q-chunk=1",
            "--set",
            "p-chunk=2",
        ),
    ],
    ids=["agg", "mlr"],
)
def test_two_processes_are_one(start, tmp_path, options):
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    finetune(start, one, 1, *options)
    (_, second), told = finetune(start, two, 2, *options)
    models = sorted(p.relative_to(one) for p in Path(one).glob("**/model.safetensors"))
    assert len(models) > 1
    for name in models:
        expected, found = load_file(Path(one) / name), load_file(Path(two) / name)
        assert expected.keys() == found.keys()
        # the softmax is blind to key biases: their gradient is rounding, which Adam makes large
        for tensor in [name for name in expected if not name.endswith("key.bias")]:
            torch.testing.assert_close(found[tensor], expected[tensor], rtol=0, atol=2e-5)
    assert set(second) <= {"rng_state_1.pth"}  # its own random state, in each checkpoint
    assert told.count(f"{two}: 8 steps") == 1
    logs = [json.loads((Path(f) / "training.json").read_text())["log"] for f in (one, two)]
    for expected, found in zip(*logs, strict=True):
        for name in expected:
            if name.startswith(("loss", "eval", "step")):
                assert found[name] == pytest.approx(expected[name], rel=1e-3), name
