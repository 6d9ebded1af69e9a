"""The folder of a run: what may be resumed, and its curves."""

import json

import pytest

from denserk.errors import InputError, MismatchError
from denserk.io.plots import style
from denserk.training.run_folder import draw_curves, start
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
        start(output, record(**changes))
    assert json.loads((output / "training.json").read_text())["optimizer"]["lr"] == 0.1


def test_what_changes_nothing_may_differ(output):
    heard = Heard()
    free = {"resume": True, "output": "elsewhere"}
    start(output, record(finetune=free, optimizer={"keep_checkpoints": 0}))
    assert heard.warnings == []
    start(output, record(versions={"torch": "3"}))
    assert heard.warnings == ["resuming, the last bits may differ: torch was '2', now '3'"]


def test_without_a_checkpoint_a_run_begins_anew(output):
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


HISTORY = [
    {"step": 2, "loss": 3.0, "loss_a": 2.0, "loss_b": 1.0, "learning_rate": 0.1},
    {"step": 3, "eval_RR@10": 0.2, "eval_dev-loss": 2.0},
    {"step": 4, "loss": 2.0, "loss_a": 1.5, "loss_b": 0.5, "learning_rate": 0.05},
    {"step": 6, "eval_RR@10": 0.4, "eval_dev-loss": 1.0},
]


def drawn(history):
    """Name and values of every curve, axis by axis, and the labels of the axes."""
    pytest.importorskip("matplotlib")
    with style():
        figure = draw_curves(history).figure
        figure.canvas.draw()
    lines = [
        [(line.get_label(), list(line.get_ydata())) for line in axis.lines] for axis in figure.axes
    ]
    return lines, [axis.get_ylabel() for axis in figure.axes]


def test_every_quantity_has_its_curve():
    (loss, rate, *dev), labels = drawn(HISTORY)
    assert loss == [("loss", [3.0, 2.0]), ("a", [2.0, 1.5]), ("b", [1.0, 0.5])]
    assert [values for _, values in rate] == [[0.1, 0.05]]
    assert [values for axis in dev for _, values in axis] == [[0.2, 0.4], [2.0, 1.0]]
    assert labels[2:] == ["RR@10", "dev-loss"]
    one = [{key: v for key, v in entry.items() if key != "loss_b"} for entry in HISTORY]
    assert len(drawn(one)[0][0]) == 1  # one part is the loss itself
