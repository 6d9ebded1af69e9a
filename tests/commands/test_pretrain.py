import pytest

from denserk.commands.app import run
from denserk.config.pretraining import MasterTask, NprKind
from denserk.training import pretrain as task
from denserk.training.run_folder import TrainingResult

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
