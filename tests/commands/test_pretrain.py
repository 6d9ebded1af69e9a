import subprocess
import sys

import pytest

from denserk.commands.app import run
from denserk.config.pretraining import Architecture, MasterPreset, MasterTask, NprKind
from denserk.training import pretrain as task
from denserk.training.run_folder import TrainingResult
from tests.commands.test_finetune import in_a_terminal
from tests.training.pretraining import write_corpus

BASIC = ("--objective", "master", "--model", "m", "--corpus", "c.jsonl", "--output", "o")


@pytest.fixture
def asked(monkeypatch):
    """What the task would have been asked to do."""
    runs = []

    def stand_in(run):
        runs.append(run)
        return TrainingResult(steps=1234, first_step=0, loss=0.5)

    monkeypatch.setattr(task, "pretrain", stand_in)
    return runs


def test_the_end_is_told(asked, capsys):
    assert run(["pretrain", *BASIC]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == ["o: 1,234 steps, loss 0.5000"]
    assert asked[0].optimizer.batch_size == 2048


@pytest.mark.parametrize(
    ("words", "section", "field", "value"),
    [
        (("--learning-rate", "0.1"), "optimizer", "lr", 0.1),
        (("--max-seq-length", "64"), "units", "max_length", 64),
        (("--encoder-mlm-probability", "0.2"), "masking", "mlm_probability", 0.2),
        (("--set", "n-head-layers=1"), "objective", "n_head_layers", 1),
        (("--micro-batch-size", "32"), "optimizer", "cache_chunk_size", 32),
        (("--num-train-epochs", "7"), "optimizer", "max_steps", None),
        (("--set", "keep-steps=10,20"), "optimizer", "keep_steps", (10, 20)),
        (("--preset", "released"), "masking", "npr", NprKind.HALF),
        (("--preset", "released"), "pretrain", "preset", MasterPreset.RELEASED),
        (("--set", "tasks=mkp,cmp"), "objective", "tasks", (MasterTask.MKP, MasterTask.CMP)),
        (("--corpus", "d.txt"), "pretrain", "corpus", ("c.jsonl", "d.txt")),
    ],
)
def test_options_under_the_names_that_users_know(asked, words, section, field, value):
    assert run(["pretrain", *BASIC, *words]) == 0
    assert getattr(getattr(asked[0], section), field) == value


def test_a_size_in_place_of_a_model(asked):
    words = ("--objective", "mlm", "--architecture", "tiny", "--corpus", "c", "--output", "o")
    assert run(["pretrain", *words]) == 0
    assert asked[0].pretrain.architecture is Architecture.TINY


def test_the_help_is_quick_and_tells_values_as_one_types_them(capsys):
    assert run(["pretrain", "--help-all"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "[default: mkp,cmp,npr,dor,gor]" in text
    assert "[default: title,text]" in text
    assert "[default: 512; cocondenser and master: 128]" in text
    heavy = "import sys; from denserk.commands.app import run; run(['pretrain', '--help-all']); "
    check = "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", heavy + check], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_terminal_sees_the_bar_and_the_parts(tiny, tmp_path):
    shown = in_a_terminal(
        [
            *("pretrain", "--objective", "condenser", "--model", str(tiny("bert"))),
            *("--corpus", write_corpus(tmp_path / "c.jsonl"), "--output", str(tmp_path / "out")),
            *("--batch-size", "4", "--max-length", "16", "--max-steps", "4"),
            *("--set", "logging-steps=1", "--device", "cpu"),
        ],
        80,
    )
    assert "4/4" in shown
    assert "(head " in shown
    assert ", late " in shown
