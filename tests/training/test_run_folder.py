"""The folder of a run: what may be resumed, and its curves."""

import json

import pytest

from denserk.errors import InputError, MismatchError
from denserk.training.run_folder import start
from tests.reporters import Heard

RECORD = {
    "versions": {"torch": "2"},
    "processes": 1,
    "preset": None,
    "finetune": {"output": "out", "resume": False, "train_data": ("a", "b"), "untie": False},
    "optimizer": {"lr": 0.1, "keep_checkpoints": 1},
    "data": {},
}


def record(**changes):
    return {**RECORD, **{name: RECORD[name] | values for name, values in changes.items()}}


@pytest.fixture
def output(tmp_path):
    """A run's folder with a checkpoint."""
    folder = tmp_path / "out"
    (folder / "checkpoints" / "checkpoint-4").mkdir(parents=True)
    (folder / "training.json").write_text(json.dumps(RECORD))
    return folder


def test_what_changes_nothing_may_differ(output):
    heard = Heard()
    free = {"resume": True, "output": "elsewhere"}
    start(output, record(finetune=free, optimizer={"keep_checkpoints": 0}))
    assert heard.warnings == []
    start(output, record(versions={"torch": "3"}))
    assert heard.warnings == ["resuming, the last bits may differ: torch was '2', now '3'"]


def test_without_a_checkpoint_a_run_starts_again(output):
    (output / "checkpoints" / "checkpoint-4").rmdir()
    (output / "best").mkdir()
    (output / "training.json").write_text(json.dumps({"versions": {"denserk": "1"}}))
    start(output, record(optimizer={"lr": 0.2}))
    assert json.loads((output / "training.json").read_text())["optimizer"]["lr"] == 0.2
    assert not (output / "best").exists()


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"versions": 3}'])
def test_broken_settings_are_no_crash(output, content):
    (output / "training.json").write_text(content)
    with pytest.raises(InputError, match="a broken file"):
        start(output, RECORD)


def test_runs_of_earlier_versions_can_be_resumed(output):
    """They do not know the settings that were added since, at their defaults."""
    added = {"gradient_accumulation_steps": 1, "gradient_checkpointing": True, "report_to": ["x"]}
    start(output, record(optimizer=added))
    with pytest.raises(MismatchError, match="gradient_accumulation_steps was 1, now 2"):
        start(output, record(optimizer={"gradient_accumulation_steps": 2}))
