import shutil

import pytest
import torch
import torch.distributed as dist
import transformers
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.utils.data import Dataset

from denserk.config.training import DevMetric, OptimizerSettings, ValidationSettings
from denserk.data.batches import pad
from denserk.errors import DenserkError
from denserk.models.model_folder import StoredEncoder
from denserk.training.trainer import Trainer, Training, _enable_checkpointing, warmup_steps_of
from tests.support.tiny_models import BACKBONES


class Batches(Dataset):
    steps_per_epoch = 5

    def __init__(self, steps):
        self.steps = steps

    def __len__(self):
        return self.steps

    def __getitem__(self, step):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        return x, x.sum(1, keepdim=True)


def new_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.2), nn.Linear(5, 1))


class Fit:
    """Mean squared error in two terms; breaks on demand."""

    def __init__(self, model, nan_at=None):
        self.model = model
        self.nan_at = nan_at
        self.calls = 0

    def __call__(self, batch, update):
        inputs, targets = batch
        with update.autocast():
            error = (self.model(inputs) - targets).pow(2).mean() / 2 / len(update.batches)
        if self.calls == self.nan_at:
            error = error * torch.nan
        self.calls += 1
        update.tokens += 40
        update.backward(error + error)
        return {"a": error.detach(), "b": error.detach()}


def trainer_of(folder, *, steps=10, nan_at=None, measure=None, validation=None, **settings):
    """A trainer of `Fit`; `settings` are those of the optimiser."""
    model = new_model()

    def save_weights(model_folder):
        torch.save(model.state_dict(), model_folder / "weights.pt")

    def load_weights(model_folder):
        model.load_state_dict(torch.load(model_folder / "weights.pt", weights_only=True))

    usual = {"lr": 0.05, "save_steps": 4, "logging_steps": 1, "keep_checkpoints": 0}
    return Trainer(
        Training(model, Fit(model, nan_at), save_weights, load_weights, lambda _: (None, None)),
        (Batches(steps), measure),
        OptimizerSettings(**{**usual, **settings}),
        folder,
        torch.device("cpu"),
        seed=1,
        validation=validation or ValidationSettings(),
        report=lambda *_, **__: None,
    )


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("accumulated", [1, 3])
def test_an_update_is_adamw_s(tmp_path, accumulated):
    """Warm-up, decay of matrices alone, clipping: against torch's optimiser used by hand."""
    batch_count = 4 * accumulated
    if accumulated > 1:
        batch_count -= 1  # the last update has fewer
    trainer = trainer_of(
        tmp_path,
        steps=batch_count,
        gradient_accumulation_steps=accumulated,
        weight_decay=0.1,
        warmup_steps=2,
        max_grad_norm=0.5,
    )
    trainer.run(resume=False)

    model = new_model()
    torch.manual_seed(1)
    matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    biases = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.05)
    rates = [0.0, 0.025, 0.05, 0.025]
    for step, rate in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        numbers = range(batch_count)[step * accumulated : (step + 1) * accumulated]
        for number in numbers:
            inputs, targets = Batches(batch_count)[number]
            loss = (model(inputs) - targets).pow(2).mean()
            (loss / len(numbers)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    torch.testing.assert_close(weights(trainer.model), weights(model))
    assert trainer.logged("learning_rate") == pytest.approx(rates)
    epochs = [accumulated * number / 5 for number in (1, 2, 3, 4)]
    assert trainer.logged("epoch") == pytest.approx(epochs)


def test_warm_up_of_a_share_is_rounded_up():
    optimizer = OptimizerSettings(warmup_ratio=0.1)
    assert [warmup_steps_of(optimizer, steps) for steps in (1, 2, 20, 25)] == [0, 1, 2, 3]


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path):
    trainer = trainer_of(tmp_path, nan_at=5)
    with pytest.raises(DenserkError, match="the loss of step 6 is not a number") as caught:
        trainer.run(resume=False)
    checkpoint = tmp_path / "checkpoints" / "checkpoint-4"
    assert f"{checkpoint} is the last good checkpoint" in str(caught.value.hint)


def draws_of(trainer, *, resume):
    """Run a training; return a random number of each of its steps."""
    fit = trainer.step
    draws = []

    def draw_and_fit(batch, update):
        draws.append(torch.rand(1).item())
        return fit(batch, update)

    trainer.step = draw_and_fit
    trainer.run(resume=resume)
    return draws


def draw_in_a_process(rank, folder, meeting):
    """Write what the steps of a new run and of a resumed one draw, as one of two processes."""
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    new_draws = draws_of(trainer_of(folder / "new"), resume=False)
    resumed_draws = draws_of(trainer_of(folder / "cut"), resume=True)
    torch.save((new_draws, resumed_draws), folder / f"draws-{rank}")
    dist.destroy_process_group()


@pytest.mark.slow
def test_each_process_has_its_own_dropout_also_where_a_run_is_resumed_by_more(tmp_path):
    trainer_of(tmp_path / "cut").run(resume=False)
    for step in (8, 10):
        shutil.rmtree(tmp_path / "cut" / "checkpoints" / f"checkpoint-{step}")
    spawn(draw_in_a_process, (tmp_path, tmp_path / "meeting"), 2)
    draws_by_rank = [torch.load(tmp_path / f"draws-{rank}") for rank in range(2)]
    for steps, draws, other_draws in zip((10, 6), *draws_by_rank, strict=True):
        assert len(draws) == len(other_draws) == steps
        assert not set(draws) & set(other_draws)


@pytest.mark.parametrize(
    ("metric", "values", "patience", "best_step", "last_step"),
    [
        (DevMetric.RR_10, [0.1, 0.3, 0.2, 0.3, 0.2], None, 2, 5),
        (DevMetric.LOSS, [3.0, 2.0, 2.5, 2.1, 1.0], 2, 2, 4),
    ],
)
def test_the_best_weights_are_kept_and_patience_ends(
    tmp_path, metric, values, patience, best_step, last_step
):
    remaining_values = iter(values)
    trainer = trainer_of(
        tmp_path,
        steps=5,
        save_steps=1,
        measure=lambda: {metric.value: next(remaining_values)},
        validation=ValidationSettings(
            dev_data="dev", best_by=metric, eval_steps=1, early_stopping=patience
        ),
    )
    trainer.run(resume=False)
    assert trainer.step_number == last_step
    assert trainer.best == values[best_step - 1]
    best = torch.load(tmp_path / "best" / "weights.pt")
    checkpoint = torch.load(tmp_path / "checkpoints" / f"checkpoint-{best_step}" / "weights.pt")
    for name, tensor in checkpoint.items():
        assert best[name].equal(tensor)


@pytest.mark.parametrize("kind", [*BACKBONES, "qwen3"])
def test_gradient_checkpointing_brings_no_line_about_a_cache(tiny, kind, caplog):
    caplog.set_level("WARNING", "transformers")
    transformers.logging.enable_propagation()
    transformers.utils.logging.warning_once.cache_clear()
    try:
        backbone = StoredEncoder.read(tiny(kind)).backbone().train()
        _enable_checkpointing(backbone)
        backbone(pad([[2, 9, 14, 30, 8, 3], [2, 17, 3]], pad_id=0)).sum().backward()
    finally:
        transformers.logging.disable_propagation()
    assert not [message for message in caplog.messages if "cache" in message]
