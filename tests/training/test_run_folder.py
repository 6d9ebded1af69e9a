import json

import pytest

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
