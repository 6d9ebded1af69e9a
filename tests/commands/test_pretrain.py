import pytest

from denserk.commands.app import run
from denserk.config.pretraining import MasterTask, NprKind
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


@pytest.mark.parametrize(
    ("words", "section", "field", "value"),
    [
        (("--max-seq-length", "64"), "units", "max_length", 64),
        (("--num-train-epochs", "7"), "optimizer", "max_steps", None),
        (("--set", "keep-steps=10,20"), "optimizer", "keep_steps", (10, 20)),
        (("--preset", "released"), "masking", "npr", NprKind.HALF),
        (("--set", "tasks=mkp,cmp"), "objective", "tasks", (MasterTask.MKP, MasterTask.CMP)),
        (("--corpus", "d.txt"), "pretrain", "corpus", ("c.jsonl", "d.txt")),
    ],
)
def test_options_under_the_names_that_users_know(asked, words, section, field, value):
    assert run(["pretrain", *BASIC, *words]) == 0
    assert getattr(getattr(asked[0], section), field) == value


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
