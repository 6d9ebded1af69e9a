import json
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from denserk.config.training import DevMetric, OptimizerSettings
from denserk.errors import DenserkError, MismatchError, OutputError
from denserk.training import trainer as module
from denserk.training.batching import Work
from denserk.training.trainer import Best, Speed, Trained, Trainer
from denserk.training.validation import LOWER_IS_BETTER, best_of, values_of
from tests.faults import Stopped

LOSS, RR = DevMetric.LOSS, DevMetric.RR_10


class Pair(NamedTuple):
    x: Tensor
    y: Tensor

    def to(self, device):
        return Pair(self.x.to(device), self.y.to(device))


class Batches(Dataset):
    steps_per_epoch = 5

    def __init__(self, steps):
        self.steps = steps

    def __len__(self):
        return self.steps

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
        self.work.count([30, 10])
        backward(error + error)
        return {"a": error.detach(), "b": error.detach()}


def trainer(
    folder,
    *,
    steps=10,
    stop_at=None,
    nan_at=None,
    save=None,
    measures=None,
    keep_steps=(),
    **options,
):
    model = Model()

    def save_weights(where):
        where.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), where / "weights.pt")

    def load_weights(where):
        model.load_state_dict(torch.load(where / "weights.pt", weights_only=True))

    values = iter(measures or [])
    given = {"lr": 0.05, "save_steps": 4, "logging_steps": 1, "keep_checkpoints": 0}
    return Trainer(
        Trained(model, Fit(model, stop_at, nan_at), save or save_weights, load_weights),
        Batches(steps),
        OptimizerSettings(**{**given, **options}),
        folder,
        device=torch.device("cpu"),
        seed=1,
        measure=None if measures is None else lambda: {RR.value: next(values)},
        keep_steps=keep_steps,
    )


def run(made, *, resume=False):
    made.run(resume=resume)
    return made.first_step


def weights(made):
    return torch.cat([p.detach().flatten() for p in made.model.parameters()])


def test_learns_and_logs_the_terms(tmp_path):
    made = trainer(tmp_path, steps=40)
    assert run(made) == 0
    logs = [entry for entry in made.history if "loss_a" in entry]
    assert logs[0]["loss"] == pytest.approx(logs[0]["loss_a"] + logs[0]["loss_b"])
    assert logs[-1]["loss"] < logs[0]["loss"] / 2
    assert [entry["epoch"] for entry in logs] == [pytest.approx(n / 5) for n in range(1, 41)]


def test_one_update_is_adamw_s(tmp_path):
    """Warm-up, decay of matrices alone, clipping: against torch's optimiser used by hand."""
    made = trainer(tmp_path, steps=4, weight_decay=0.1, warmup_steps=2, max_grad_norm=0.5)
    run(made)
    torch.manual_seed(1)
    model = Model()
    torch.manual_seed(1)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.05)
    rates = []
    for step, factor in enumerate((0.0, 0.5, 1.0, 0.5)):
        rates.append(0.05 * factor)
        for part in optimizer.param_groups:
            part["lr"] = rates[-1]
        batch = Batches(4)[step]
        optimizer.zero_grad()
        (model.layers(batch.x) - batch.y).pow(2).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(weights(made), expected)
    assert [entry["learning_rate"] for entry in made.history] == pytest.approx(rates)


@pytest.mark.parametrize("logging_steps", [1, 3])
@pytest.mark.parametrize("stop_at", [3, 4, 6, 9])
def test_a_stopped_run_resumes_to_the_same_bits(tmp_path, stop_at, logging_steps):
    whole = trainer(tmp_path / "whole", logging_steps=logging_steps)
    run(whole)
    stopped = trainer(tmp_path / "stopped", stop_at=stop_at, logging_steps=logging_steps)
    with pytest.raises(Stopped):
        run(stopped, resume=True)
    resumed = trainer(tmp_path / "stopped", logging_steps=logging_steps)
    assert run(resumed, resume=True) == stop_at // 4 * 4
    assert torch.equal(weights(resumed), weights(whole))
    assert resumed.history == whole.history


def test_data_workers_change_nothing(tmp_path):
    alone, helped = trainer(tmp_path / "a"), trainer(tmp_path / "b", num_workers=1)
    run(alone)
    run(helped)
    assert torch.equal(weights(alone), weights(helped))


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path):
    made = trainer(tmp_path, nan_at=5)
    with pytest.raises(DenserkError, match="the loss of step 6 is not a number"):
        run(made)
    assert (tmp_path / "checkpoints" / "checkpoint-4").is_dir()


FULL = (
    OSError(28, "No space left on device"),
    RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"),  # torch's
)


@pytest.mark.parametrize("error", FULL, ids=["system", "torch"])
def test_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path, error):
    calls = []

    def save(where):
        calls.append(where)
        if len(calls) == 2:
            raise error
        (where / "weights.pt").write_bytes(b"")

    with pytest.raises(OutputError, match="no room left"):
        run(trainer(tmp_path, save=save))
    folder = tmp_path / "checkpoints"
    assert [p.name for p in folder.iterdir()] == ["checkpoint-4"]
    assert json.loads((folder / "checkpoint-4" / "trainer_state.json").read_text())["step"] == 4


def test_another_error_is_not_taken_for_a_full_disk(tmp_path):
    def save(where):
        raise RuntimeError("CUDA error")

    with pytest.raises(RuntimeError, match="CUDA error"):
        run(trainer(tmp_path, save=save))


def test_a_finished_run_is_only_loaded(tmp_path):
    whole = trainer(tmp_path)
    run(whole)
    again = trainer(tmp_path, stop_at=0)
    assert run(again, resume=True) == 10
    assert torch.equal(weights(again), weights(whole))
    assert again.history == whole.history


def test_a_checkpoint_of_another_version_is_rejected(tmp_path):
    (tmp_path / "checkpoints" / "checkpoint-4").mkdir(parents=True)
    (tmp_path / "checkpoints" / "checkpoint-4" / "optimizer.pt").touch()
    with pytest.raises(MismatchError, match="earlier version of denserk"):
        run(trainer(tmp_path), resume=True)


def test_old_checkpoints_go_after_the_new_one_stands(tmp_path):
    folder = tmp_path / "checkpoints"
    (folder / ".checkpoint-4.0123abcd.part").mkdir(parents=True)  # left by a killed run
    run(trainer(tmp_path, keep_checkpoints=1))
    assert [p.name for p in folder.iterdir()] == ["checkpoint-10"]


def test_validation_is_logged(tmp_path):
    made = trainer(tmp_path, measures=[0.25, 0.5])
    run(made)
    found = [(e["step"], e["eval_RR@10"]) for e in made.history if "eval_RR@10" in e]
    assert found == [(5, 0.25), (10, 0.5)]


def test_weights_of_chosen_steps_are_kept(tmp_path):
    run(trainer(tmp_path, keep_steps=(2, 5, 100)))
    assert sorted(path.name for path in tmp_path.glob("steps/*")) == ["step-2", "step-5"]


@pytest.mark.parametrize("metric", DevMetric)
def test_best_is_the_first_of_the_best(metric):
    sign = 1 if metric in LOWER_IS_BETTER else -1
    assert best_of([sign * v for v in (3.0, 1.0, 2.0, 1.0)], metric) == 1


def test_values_are_read_from_the_log():
    history = [{"loss": 1.0}, {"eval_RR@10": 0.2, "eval_dev-loss": 3.0}, {"eval_RR@10": 0.3}]
    assert values_of(history, RR) == [0.2, 0.3]
    assert values_of(history, LOSS) == [3.0]


def walk(folder, metric, values, patience=None):
    """Validates with these values in turn; which of them were kept, and where the run stopped."""
    kept: list[int] = []
    history: list[dict[str, float]] = []

    def save(where):
        (where / "number").write_text(str(len(history)))
        kept.append(len(history) - 1)

    best = Best(folder, save, metric, patience)
    for number, value in enumerate(values):
        history.append({f"eval_{metric.value}": value})
        if best.update(history):
            return kept, number
    return kept, None


@pytest.mark.parametrize(
    ("metric", "values", "kept"),
    [
        (LOSS, [3.0, 2.0, 2.5, 2.0, 1.0], [0, 1, 4]),
        (RR, [0.1, 0.3, 0.2, 0.3, 0.4], [0, 1, 4]),
        (DevMetric.AVERAGE_RANK, [5.0, 6.0, 4.0], [0, 2]),
    ],
)
def test_only_better_ones_are_kept(tmp_path, metric, values, kept):
    assert walk(tmp_path / "best", metric, values) == (kept, None)
    assert (tmp_path / "best" / "number").read_text() == str(kept[-1] + 1)
    assert [item.name for item in tmp_path.iterdir()] == ["best"]


@pytest.mark.parametrize(("patience", "stopped"), [(1, 2), (2, 5), (3, 6), (None, None), (9, None)])
def test_patience_counts_since_the_best(tmp_path, patience, stopped):
    values = [3.0, 2.0, 2.5, 1.9, 2.0, 1.9, 2.1]
    assert walk(tmp_path / "best", LOSS, values, patience)[1] == stopped


def test_other_processes_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "world", lambda: (1, 2))
    assert walk(tmp_path / "best", LOSS, [3.0, 2.0, 2.5], 1) == ([], 2)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_weights_before(tmp_path):
    folder = tmp_path / "best"
    folder.mkdir()
    (folder / "weights").write_text("old")

    def broken(part):
        raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match="no room left"):
        Best(folder, broken, RR).update([{"eval_RR@10": 0.5}])
    assert (folder / "weights").read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["best"]


def test_speed_counts_steps_and_not_checkpoints(tmp_path):
    made = trainer(tmp_path)
    assert made.speed() is None
    run(made)
    speed = made.speed()
    assert speed is not None
    assert speed.tokens_per_second == pytest.approx(400 / made._seconds)
    assert speed.padding == pytest.approx(1 / 3)
    assert str(Speed(12345.6, 0.071, 0.004, 2048.4)) == (
        "12,346 tokens/s (7% padding, 0% of the time waiting for data), at most 2,048 MiB"
    )
