import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import Dataset

from denserk.config.training import DevMetric, OptimizerSettings, ValidationSettings
from denserk.data.batches import pad
from denserk.errors import DenserkError
from denserk.models.model_folder import StoredEncoder
from denserk.training.trainer import Trainer, Training, _enable_checkpointing
from tests.support.tiny_models import BACKBONES

LOSS, RR = DevMetric.LOSS, DevMetric.RR_10


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
        self.model, self.nan_at, self.done = model, nan_at, 0

    def __call__(self, batch, update):
        with update.autocast():
            error = (self.model(batch[0]) - batch[1]).pow(2).mean() / 2 / len(update.batches)
        if self.done == self.nan_at:
            error = error * torch.nan
        self.done += 1
        update.tokens += 40
        update.backward(error + error)
        return {"a": error.detach(), "b": error.detach()}


def trainer(folder, *, steps=10, values=None, **options):
    """A trainer of `Fit`; `values` are what it measures, `options` its settings and Fit's."""
    model = new_model()

    def taken(*names):
        return {name: options.pop(name) for name in names if name in options}

    def save_weights(where):
        torch.save(model.state_dict(), where / "weights.pt")

    def load_weights(where):
        model.load_state_dict(torch.load(where / "weights.pt", weights_only=True))

    step = Fit(model, **taken("nan_at"))
    validation = taken("best_by", "eval_steps", "early_stopping")
    name, measured = validation.get("best_by", RR).value, iter(values or [])
    given = {"lr": 0.05, "save_steps": 4, "logging_steps": 1, "keep_checkpoints": 0, **options}
    return Trainer(
        Training(model, step, save_weights, load_weights, lambda _: (None, None)),
        (Batches(steps), None if values is None else lambda: {name: next(measured)}),
        OptimizerSettings(**given),
        folder,
        torch.device("cpu"),
        seed=1,
        validation=ValidationSettings(dev_data="dev", **validation),
        report=lambda *_, **__: None,
    )


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("accumulated", [1, 3])
def test_an_update_is_adamw_s(tmp_path, accumulated):
    """Warm-up, decay of matrices alone, clipping: against torch's optimiser used by hand."""
    options = {"weight_decay": 0.1, "warmup_steps": 2, "max_grad_norm": 0.5}
    batches = 4 * accumulated - (accumulated > 1)  # the last update has fewer
    made = trainer(tmp_path, steps=batches, gradient_accumulation_steps=accumulated, **options)
    made.run(resume=False)
    model, rates = new_model(), []
    torch.manual_seed(1)
    matrices, others = ([p for p in model.parameters() if p.dim() == n] for n in (2, 1))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.05)
    for step, factor in enumerate((0.0, 0.5, 1.0, 0.5)):
        rates.append(0.05 * factor)
        for part in optimizer.param_groups:
            part["lr"] = rates[-1]
        optimizer.zero_grad()
        own = range(batches)[step * accumulated : (step + 1) * accumulated]
        for number in own:
            x, y = Batches(batches)[number]
            ((model(x) - y).pow(2).mean() / len(own)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    torch.testing.assert_close(weights(made.model), weights(model))
    assert [entry["learning_rate"] for entry in made.history] == pytest.approx(rates)
    epochs = [accumulated * number / 5 for number in (1, 2, 3, 4)]
    assert [entry["epoch"] for entry in made.history] == pytest.approx(epochs)


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path):
    made = trainer(tmp_path, nan_at=5)
    with pytest.raises(DenserkError, match="the loss of step 6 is not a number") as error:
        made.run(resume=False)
    checkpoint = tmp_path / "checkpoints" / "checkpoint-4"
    assert f"{checkpoint} is the last good checkpoint" in str(error.value.hint)


@pytest.mark.parametrize(
    ("metric", "values", "patience", "kept", "stopped"),
    [(RR, [0.1, 0.3, 0.2, 0.3, 0.2], None, 2, 5), (LOSS, [3.0, 2.0, 2.5, 2.1, 1.0], 2, 2, 4)],
)
def test_the_best_weights_are_kept_and_patience_ends(
    tmp_path, metric, values, patience, kept, stopped
):
    often = {"eval_steps": 1, "save_steps": 1, "early_stopping": patience}
    made = trainer(tmp_path, best_by=metric, values=values, steps=5, **often)
    made.run(resume=False)
    assert made.step_number == stopped
    assert made.best == values[kept - 1]
    best = torch.load(tmp_path / "best" / "weights.pt")
    checkpoint = torch.load(tmp_path / "checkpoints" / f"checkpoint-{kept}" / "weights.pt")
    assert all(best[name].equal(tensor) for name, tensor in checkpoint.items())


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
