import json
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import TrainingArguments

from denserk.errors import DenserkError, OutputError
from denserk.training.length_groups import Work
from denserk.training.trainer import StepTrainer
from tests.faults import Stopped


class Pair(NamedTuple):
    x: Tensor
    y: Tensor

    def to(self, device):
        return Pair(self.x.to(device), self.y.to(device))


class Batches(Dataset):
    def __getitem__(self, step):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(4, 3, generator=generator)
        return Pair(x, x.sum(1, keepdim=True))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.2), nn.Linear(5, 1))


class Fit:
    """Mean squared error in two terms; stops or breaks when told to."""

    def __init__(self, model, stop_at=None, nan_at=None):
        self.model, self.left, self.nan_at, self.done = model, stop_at, nan_at, 0
        self.work = Work()

    def __call__(self, batch, backward, autocast):
        if self.left is not None and self.done == self.left:
            raise Stopped
        with autocast():
            error = (self.model.layers(batch.x) - batch.y).pow(2).mean() / 2
        if self.done == self.nan_at:
            error = error * torch.nan
        self.done += 1
        backward(error + error)
        return {"a": error.detach(), "b": error.detach()}


def trainer(folder, *, steps=10, stop_at=None, nan_at=None, workers=0, save=None, **options):
    model = Model()

    def save_weights(where):
        where.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), where / "weights.pt")

    def load_weights(where):
        model.load_state_dict(torch.load(where / "weights.pt", weights_only=True))

    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        save_steps=4,
        logging_steps=1,
        learning_rate=0.05,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        dataloader_num_workers=workers,
        seed=1,
        **options,
    )
    return StepTrainer(
        model,
        Fit(model, stop_at, nan_at),
        Batches(),
        arguments,
        steps_per_epoch=5,
        save=save or save_weights,
        load=load_weights,
        validate=lambda: {"loss": 0.5},
    )


def weights(made):
    return torch.cat([p.detach().flatten() for p in made.model.parameters()])


def test_learns_and_logs_the_terms(tmp_path):
    made = trainer(tmp_path, steps=40)
    assert made.run(resume=False) == 0
    logs = [entry for entry in made.state.log_history if "loss_a" in entry]
    assert logs[0]["loss"] == pytest.approx(logs[0]["loss_a"] + logs[0]["loss_b"], rel=1e-4)
    assert logs[-1]["loss"] < logs[0]["loss"] / 2
    assert [entry["epoch"] for entry in logs] == [pytest.approx(n / 5) for n in range(1, 41)]


@pytest.mark.parametrize("stop_at", [3, 4, 6, 9])
def test_a_stopped_run_resumes_to_the_same_bits(tmp_path, stop_at):
    whole = trainer(tmp_path / "whole")
    whole.run(resume=False)
    stopped = trainer(tmp_path / "stopped", stop_at=stop_at)
    with pytest.raises(Stopped):
        stopped.run(resume=True)
    resumed = trainer(tmp_path / "stopped")
    assert resumed.run(resume=True) == stop_at // 4 * 4
    assert torch.equal(weights(resumed), weights(whole))


def test_data_workers_change_nothing(tmp_path):
    alone, helped = trainer(tmp_path / "a"), trainer(tmp_path / "b", workers=1)
    alone.run(resume=False)
    helped.run(resume=False)
    assert torch.equal(weights(alone), weights(helped))


def test_a_loss_that_is_no_number_stops_the_run(tmp_path):
    made = trainer(tmp_path, nan_at=5)
    with pytest.raises(DenserkError, match="the loss of step 6 is not a number"):
        made.run(resume=False)
    assert (tmp_path / "checkpoint-4").is_dir()


FULL = (
    OSError(28, "No space left on device"),
    RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"),  # torch's
)


@pytest.mark.parametrize("error", FULL, ids=["system", "torch"])
def test_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path, error):
    calls = []

    def save(where):
        calls.append(where)
        where.mkdir(parents=True)
        if len(calls) == 2:
            raise error
        (where / "weights.pt").write_bytes(b"")

    made = trainer(tmp_path, save=save)
    with pytest.raises(OutputError, match="no room left"):
        made.run(resume=False)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-4"]
    state = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    assert state["global_step"] == 4


def test_another_error_is_not_taken_for_a_full_disk(tmp_path):
    def save(where):
        raise RuntimeError("CUDA error")

    with pytest.raises(RuntimeError, match="CUDA error"):
        trainer(tmp_path, save=save).run(resume=False)


def test_a_run_at_its_end_is_not_taken_up_again(tmp_path):
    whole = trainer(tmp_path)
    whole.run(resume=False)
    again = trainer(tmp_path, stop_at=0)
    assert again.run(resume=True) == 10
    assert torch.equal(weights(again), weights(whole))
    assert again.state.log_history[0] == whole.state.log_history[0]


def test_old_checkpoints_go_after_the_new_one_stands(tmp_path):
    trainer(tmp_path, save_total_limit=1).run(resume=False)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-10"]


def test_validation_is_logged(tmp_path):
    made = trainer(tmp_path, eval_strategy="steps", eval_steps=5)
    made.run(resume=False)
    found = [e["step"] for e in made.state.log_history if e.get("eval_loss") == 0.5]
    assert found == [5, 10]
