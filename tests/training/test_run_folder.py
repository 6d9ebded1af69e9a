"""The folder of a run: what may be cleared, what may be resumed."""

import json

import pytest

from denserk.errors import InputError, MismatchError, UsageError
from denserk.training.run_folder import finish, make_ready, start
from tests.reporters import Heard

TOLD = {
    "versions": {"torch": "2"},
    "processes": 1,
    "preset": None,
    "finetune": {"output": "out", "resume": False, "train_data": ("a", "b"), "untie": False},
    "optimizer": {"lr": 0.1, "keep_checkpoints": 1},
    "data": {},
}


def told(**changes):
    return {**TOLD, **{name: TOLD[name] | values for name, values in changes.items()}}


@pytest.fixture
def output(tmp_path):
    """A run's folder with a checkpoint."""
    folder = tmp_path / "out"
    (folder / "checkpoints" / "checkpoint-4").mkdir(parents=True)
    (folder / "training.json").write_text(json.dumps(TOLD))
    return folder


def ready(folder, *, resume=False, overwrite=False):
    make_ready(folder, resume=resume, overwrite=overwrite)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(UsageError, match="a folder is expected"):
        ready(tmp_path / "out", resume=True)


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"optimizer": {"lr": 0.2}}, "optimizer.lr was 0.1, now 0.2"),
        ({"finetune": {"untie": True}}, "finetune.untie was False, now True"),
        ({"data": {"file 1": {"sha256": "x"}}}, "data.file 1 was None"),
    ],
)
def test_other_settings_are_refused_by_name(output, changes, phrase):
    with pytest.raises(MismatchError, match=phrase):
        start(output, told(**changes))
    assert json.loads((output / "training.json").read_text())["optimizer"]["lr"] == 0.1


def test_what_changes_nothing_may_differ(output):
    heard = Heard()
    free = {"resume": True, "output": "elsewhere"}
    start(output, told(finetune=free, optimizer={"keep_checkpoints": 0}))
    assert heard.warnings == []
    start(output, told(versions={"torch": "3"}))
    assert heard.warnings == ["resuming, the last bits may differ: torch was '2', now '3'"]


def test_without_a_checkpoint_a_run_begins_anew(output):
    (output / "checkpoints" / "checkpoint-4").rmdir()
    (output / "best").mkdir()
    (output / "training.json").write_text(json.dumps({"versions": {"denserk": "1"}}))
    start(output, told(optimizer={"lr": 0.2}))
    assert json.loads((output / "training.json").read_text())["optimizer"]["lr"] == 0.2
    assert not (output / "best").exists()


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"versions": 3}'])
def test_broken_settings_are_no_crash(output, content):
    (output / "training.json").write_text(content)
    with pytest.raises(InputError, match="a broken file"):
        start(output, TOLD)


@pytest.mark.parametrize("keep_best", [True, False])
def test_the_best_weights_come_out_where_they_were_kept(output, keep_best):
    (output / "best" / "query").mkdir(parents=True)
    for name in ("config.json", "query/model.safetensors"):
        (output / "best" / name).write_text("best")

    def save(folder):
        (folder / "config.json").write_text("last")

    finish(output, save, TOLD, [{"step": 1, "loss": 2.0}], keep_best=keep_best)
    assert (output / "config.json").read_text() == ("best" if keep_best else "last")
    assert (output / "query" / "model.safetensors").exists() is keep_best
    assert json.loads((output / "training.json").read_text())["log"] == [{"step": 1, "loss": 2.0}]
