"""What may differ when a run is resumed."""

import json

import pytest

from denserk.errors import DenserkError, MismatchError
from denserk.training.run_folder import refuse_changes
from tests.reporters import Heard

RECORD = {
    "versions": {"torch": "2"},
    "processes": 1,
    "preset": None,
    "finetune": {"output": "out", "resume": False, "train_data": ("a", "b"), "untie": False},
    "optimizer": {"lr": 0.1, "keep_checkpoints": 1},
}


def record(**changes):
    return {**RECORD, **{name: RECORD[name] | values for name, values in changes.items()}}


@pytest.fixture
def output(tmp_path):
    (tmp_path / "training.json").write_text(json.dumps({**RECORD, "data": {}, "log": []}))
    return tmp_path


def test_what_changes_nothing_may_differ(output):
    heard = Heard()
    free = {"resume": True, "output": "elsewhere"}
    refuse_changes(output, record(finetune=free, optimizer={"keep_checkpoints": 0}))
    assert heard.warnings == []
    refuse_changes(output, record(versions={"torch": "3"}))
    assert heard.warnings == ["resuming, the last bits may differ: versions.torch was '2', now '3'"]


def test_runs_of_earlier_versions_can_be_resumed(output):
    """They do not record settings that were added since, at their defaults."""
    added = {"gradient_accumulation_steps": 1, "gradient_checkpointing": True, "report_to": ["x"]}
    refuse_changes(output, record(optimizer=added))
    with pytest.raises(MismatchError, match="gradient_accumulation_steps was 1, now 2"):
        refuse_changes(output, record(optimizer={"gradient_accumulation_steps": 2}))
    refuse_changes(output, {**RECORD, "objective": {"temperature": 1.0, "distillation": None}})
    with pytest.raises(MismatchError, match=r"temperature was 1\.0, now 0\.5"):
        refuse_changes(output, {**RECORD, "objective": {"temperature": 0.5}})


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"versions": 3}'])
def test_broken_settings_are_one_error(output, content):
    (output / "training.json").write_text(content)
    with pytest.raises(DenserkError):
        refuse_changes(output, RECORD)
