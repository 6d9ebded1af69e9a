"""What of a training is in the folder of the model, and what is beside it."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from denserk.commands.app import run
from denserk.config.training import DevMetric
from denserk.errors import Interrupted, UsageError
from denserk.io.outputs import foreign_items, training_folder
from denserk.io.versions import Version
from denserk.training import run_folder
from denserk.training.trainer import Trainer
from tests.support.faults import Stopped, contents, stopped_at
from tests.support.finetuning import tune, weights, write_examples

MEAN = {"representation": "mean", "max_steps": 4, "save_steps": 2}
WORK = {"checkpoints", "training-data", "training.json", "config.yaml"}
OF_MODEL = {"model.safetensors", "config.json", "denserk.json", "README.md", "training.json"}


@pytest.fixture
def out(tmp_path):
    return tmp_path / "runs" / "m"


@pytest.fixture
def train_file(tmp_path):
    return write_examples(tmp_path / "train.jsonl", range(12))


def names_in(folder):
    return {path.name for path in folder.iterdir()}


def as_older(out):
    """Put the work of a run into the folder of its model, as older versions had it."""
    work = training_folder(out)
    out.mkdir(exist_ok=True)
    for path in work.iterdir():
        target = out / path.name
        if not target.exists():
            shutil.move(path, target)
    shutil.rmtree(work)


def test_the_model_is_alone_in_its_folder(tiny, train_file, out):
    options = {"dev_data": train_file, "best_by": DevMetric.LOSS, "eval_steps": 2}
    tune(out, tiny("bert"), train_file, **MEAN, **options)
    assert names_in(training_folder(out)) >= {*WORK, "dev-data", "best"}
    assert names_in(out) >= OF_MODEL
    folders = {path.name for path in out.iterdir() if path.is_dir()}
    assert folders == {"1_Pooling"}  # of sentence-transformers
    assert not list(foreign_items(out))
    assert not list(foreign_items(training_folder(out)))
    assert names_in(out.parent) == {"m", "m.training"}


def test_the_model_appears_whole_at_the_end(tiny, train_file, out):
    with stopped_at(3, [(Trainer, "training_step")]), pytest.raises(Stopped):
        tune(out, tiny("bert"), train_file, **MEAN)
    assert not out.exists()
    assert (training_folder(out) / "checkpoints" / "checkpoint-2").is_dir()
    with pytest.raises(UsageError, match=r"m\.training holds the checkpoints of") as caught:
        tune(out, tiny("bert"), train_file, **MEAN)
    assert "--resume" in str(caught.value.hint)
    assert tune(out, tiny("bert"), train_file, **MEAN, resume=True).first_step == 2
    assert (out / "config.json").exists()


def test_an_old_model_stays_until_the_new_one_is_complete(tiny, train_file, out):
    tune(out, tiny("bert"), train_file, **MEAN)
    old = contents(out)
    changed = {**MEAN, "lr": 0.02}
    with stopped_at(3, [(Trainer, "training_step")]), pytest.raises(Stopped):
        tune(out, tiny("bert"), train_file, **changed, overwrite=True)
    assert contents(out) == old
    assert tune(out, tiny("bert"), train_file, **changed, resume=True).first_step == 2
    assert contents(out) != old


def test_what_others_wrote_is_not_removed(tiny, train_file, out):
    tune(out, tiny("bert"), train_file, **MEAN)
    before = contents(out.parent)
    for folder in (out, training_folder(out)):
        notes = folder / "notes.txt"
        notes.write_text("mine")
        for option in ("overwrite", "resume"):
            if option == "resume" and folder != out:
                continue  # it would only add to this folder
            with pytest.raises(UsageError, match=r"notes\.txt, which denserk did not write"):
                tune(out, tiny("bert"), train_file, **MEAN, **{option: True})
        assert notes.read_text() == "mine"
        notes.unlink()
    assert contents(out.parent) == before


def test_a_model_in_the_way_of_the_work_is_rejected(tiny, train_file, out):
    tune(out.with_name("m.training"), tiny("bert"), train_file, **MEAN)
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(UsageError, match=r"m\.training is a model"):
            tune(out, tiny("bert"), train_file, **MEAN, **options)


def test_a_finished_model_without_its_work_is_not_trained_again(tiny, train_file, out):
    tune(out, tiny("bert"), train_file, **MEAN)
    shutil.rmtree(training_folder(out))
    before = contents(out)
    with pytest.raises(UsageError, match="from which its training resumes") as caught:
        tune(out, tiny("bert"), train_file, **MEAN, resume=True)
    assert "--overwrite" in str(caught.value.hint)
    assert contents(out) == before
    assert not training_folder(out).exists()


@pytest.mark.parametrize("finished", [False, True])
def test_a_run_of_an_older_version_is_resumed(tiny, train_file, out, finished, caplog):
    tune(out.with_name("whole"), tiny("bert"), train_file, **MEAN)
    if finished:
        tune(out, tiny("bert"), train_file, **MEAN)
    else:
        with stopped_at(3, [(Trainer, "training_step")]), pytest.raises(Stopped):
            tune(out, tiny("bert"), train_file, **MEAN)
    as_older(out)
    assert (out / "checkpoints").is_dir()
    with pytest.raises(UsageError, match="is not empty"):
        tune(out, tiny("bert"), train_file, **MEAN)
    result = tune(out, tiny("bert"), train_file, **MEAN, resume=True)
    assert result.first_step == (4 if finished else 2)
    assert weights(out) == weights(out.with_name("whole"))
    assert names_in(training_folder(out)) >= WORK
    assert not (out / "checkpoints").exists()
    assert any("is of an older version" in message for message in caplog.messages)


@pytest.mark.parametrize("moved", range(4))
def test_a_move_that_is_killed_is_finished_by_the_next_run(
    tiny, train_file, out, moved, monkeypatch
):
    tune(out.with_name("whole"), tiny("bert"), train_file, **MEAN)
    with stopped_at(3, [(Trainer, "training_step")]), pytest.raises(Stopped):
        tune(out, tiny("bert"), train_file, **MEAN)
    as_older(out)
    with monkeypatch.context() as patch:
        replace = Path.replace
        calls: list[Path] = []

        def replace_or_stop(path, target):
            calls.append(path)
            if len(calls) > moved:
                raise Stopped
            return replace(path, target)

        patch.setattr(Path, "replace", replace_or_stop)
        with pytest.raises(Stopped):
            tune(out, tiny("bert"), train_file, **MEAN, resume=True)
    assert tune(out, tiny("bert"), train_file, **MEAN, resume=True).first_step == 2
    assert weights(out) == weights(out.with_name("whole"))


def test_an_older_model_is_replaced_with_what_it_held(tiny, train_file, out):
    tune(out, tiny("bert"), train_file, **MEAN)
    as_older(out)
    tune(out, tiny("bert"), train_file, **MEAN, overwrite=True)
    assert not (out / "checkpoints").exists()
    assert (training_folder(out) / "checkpoints").is_dir()


def test_where_the_model_cannot_be_renamed_its_work_is_inside(
    tiny, train_file, tmp_path, monkeypatch
):
    """A mount point, as that of a container's volume."""
    out = tmp_path / "volume"
    out.mkdir()
    inode = out.stat().st_ino
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == out)
    with stopped_at(3, [(Trainer, "training_step")]), pytest.raises(Stopped):
        tune(out, tiny("bert"), train_file, **MEAN)
    assert names_in(out) == {"volume.training"}
    assert tune(out, tiny("bert"), train_file, **MEAN, resume=True).first_step == 2
    assert names_in(out) >= {*OF_MODEL, "volume.training"}
    assert out.stat().st_ino == inode
    tune(out, tiny("bert"), train_file, **MEAN, overwrite=True)
    assert names_in(out) >= {*OF_MODEL, "volume.training"}
    assert names_in(tmp_path) == {"volume", "train.jsonl"}


def test_the_work_lies_where_a_link_leads(tiny, train_file, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "link").symlink_to(disk / "m")
    tune(tmp_path / "link", tiny("bert"), train_file, **MEAN)
    assert names_in(disk) == {"m", "m.training"}


def test_the_model_may_be_the_working_folder(tiny, train_file, out, monkeypatch):
    out.mkdir(parents=True)
    monkeypatch.chdir(out)
    tune(Path(), tiny("bert"), train_file, **MEAN)
    tune(Path(), tiny("bert"), train_file, **MEAN, overwrite=True)
    assert Path.cwd() == out
    assert (out / "config.json").exists()
    assert names_in(out.parent) == {"m", "m.training"}
    assert tune(Path(), tiny("bert"), train_file, **MEAN, resume=True).first_step == 4


def test_the_record_names_the_data_from_both_folders(tiny, train_file, out):
    tune(out, tiny("bert"), train_file, **MEAN)
    for folder in (out, training_folder(out)):
        record = json.loads((folder / "training.json").read_text())
        (source,) = record["data"]["training-data"].values()
        assert (folder / source["name"]).samefile(train_file)
    assert "log" in json.loads((out / "training.json").read_text())


def test_an_interrupted_command_names_the_folder_of_its_work(
    tiny, train_file, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)

    def interrupt(self, batches):
        if self.step_number == 2:
            raise Interrupted(signal.SIGTERM)
        return training_step(self, batches)

    training_step = Trainer.training_step
    monkeypatch.setattr(Trainer, "training_step", interrupt)
    line = ["finetune", "--model", str(tiny("bert")), "--train-data", train_file, "--output", "m"]
    line += ["--batch-size", "4", "--group-size", "3", "--max-steps", "4", "--device", "cpu"]
    assert run([*line, "--set", "save-steps=2"]) != 0
    assert "finished work is kept in m.training\n" in capsys.readouterr().err
    assert not Path("m").exists()


def test_a_model_stays_the_same_while_the_work_inside_its_folder_goes_on(tmp_path):
    """As older versions kept it."""
    (tmp_path / "config.json").write_text("{}")
    for name in run_folder.WORK_FOLDERS:
        (tmp_path / name).mkdir()
    version = Version.of(tmp_path)
    for name in run_folder.WORK_FOLDERS:
        (tmp_path / name / "file").write_text("new")
    version.require_unchanged()


def test_all_work_folders_are_known(tmp_path):
    """No folder that a run writes is taken for one of another origin."""
    work = tmp_path / "m.training"
    for name in run_folder.WORK_FOLDERS:
        (work / name).mkdir(parents=True)
    (work / "training.json").write_text('{"versions": {}}')
    assert not list(foreign_items(work))


@pytest.mark.parametrize(("steps", "text"), [(1, "out: 1 step, "), (2000, "out: 2,000 steps, ")])
def test_one_step_is_no_plural(caplog, steps, text):
    caplog.set_level("INFO")
    run_folder.log_result(run_folder.TrainingResult(steps, 0, 0.5), "out")
    assert text in caplog.text


@pytest.mark.parametrize(
    ("step", "best", "text"),
    [
        (20, None, "out: 20 steps, loss 0.5000, RR@10 0.2500, dev-loss 2.0000"),
        (15, None, "out: 20 steps, loss 0.5000, at step 15 RR@10 0.2500, dev-loss 2.0000"),
        (15, 0.3, "out: 20 steps, loss 0.5000, best RR@10 0.3000"),
    ],
)
def test_the_validation_ends_the_report(caplog, step, best, text):
    caplog.set_level("INFO")
    validation = {"RR@10": 0.25, "dev-loss": 2.0}
    result = run_folder.TrainingResult(20, 0, 0.5, best, validation, step)
    run_folder.log_result(result, "out", "RR@10")
    assert caplog.messages == [text]
