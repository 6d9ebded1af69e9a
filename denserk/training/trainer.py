"""The training loop: transformers' Trainer around a step; it knows no paper.

Left to the Trainer: optimiser, schedule, precision, clipping, logging, state. Done here, because a
contrastive batch is one thing: batches come whole from a dataset of steps (so a run resumes at a
step, whatever the number of workers), processes add their gradients up themselves, and a checkpoint
takes its name only once it is whole.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

from denserk.errors import DenserkError, OutputError
from denserk.formats.files import write_errors
from denserk.training.distributed import sum_gradients
from denserk.training.step import Step

LARGEST_GROWTH = 1e4
"""Growth of the norm of all weights above which training has diverged."""
STAGING = ".saving"
"""Where a checkpoint is written before it takes its name."""
TORCH_WRITER = re.compile("inline_container|PytorchStreamWriter|iostream error")
"""What the RuntimeError of a failed write names where torch's own writer wrote."""


class _FromStep(Sampler[int]):
    """Steps from the one the run stands at, to the end."""

    def __init__(self, first: Callable[[], int], total: int) -> None:
        self._first, self._total = first, total

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._first(), self._total))

    def __len__(self) -> int:
        return self._total


class _Bare(nn.Module):
    """A wrapper that does nothing: gradients are added up here, not by a library's wrapper."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


@contextmanager
def torch_write_errors(folder: Path) -> Iterator[None]:
    """`write_errors`, for torch's own writer too, which raises no OSError on a full disk."""
    with write_errors(folder):
        try:
            yield
        except RuntimeError as error:
            if not TORCH_WRITER.search(str(error)):
                raise
            raise OutputError(
                f"{folder} cannot be written: no room left on the disk, or a file size limit",
                "make room, and add --resume to continue from the last whole checkpoint",
            ) from error


def flush_to_disk(folder: Path) -> None:
    """Waits until the files of a folder are on the disk, so that older ones may go."""
    for item in folder.rglob("*"):
        if item.is_file():
            with item.open("rb") as handle:
                os.fsync(handle.fileno())


class StepTrainer(Trainer):
    """Runs a step over batches.

    Args:
        model: what is trained.
        step: how a batch becomes gradients.
        batches: item i is the batch of step i, this process's share of it.
        arguments: transformers' settings; `max_steps` is the number of batches.
        steps_per_epoch: how many steps make an epoch, for the log.
        save: writes the model into a folder.
        load: fills the model from a folder that `save` wrote.
        validate: measures by name, at every evaluation; None for none.
        callbacks: told what goes on.
    """

    def __init__(
        self,
        model: nn.Module,
        step: Step,
        batches: "Dataset[Any]",
        arguments: TrainingArguments,
        *,
        steps_per_epoch: int,
        save: Callable[[Path], None],
        load: Callable[[Path], None],
        validate: Callable[[], Mapping[str, float]] | None = None,
        callbacks: list[TrainerCallback] | None = None,
    ) -> None:
        arguments.ignore_data_skip = True  # the batches themselves begin at the right step
        super().__init__(
            model, arguments, train_dataset=batches, eval_dataset=batches, callbacks=callbacks
        )
        self.remove_callback(PrinterCallback)  # only a reporter speaks
        self._step, self._batches, self._steps_per_epoch = step, batches, steps_per_epoch
        self._save_model, self._load_model, self._validate = save, load, validate
        self._sums: dict[str, Tensor] = {}
        self._summed = 0
        self._handled = -1
        self._first_norm = 0.0
        self._folder = Path(str(arguments.output_dir))

    @property
    def last_loss(self) -> float | None:
        """The newest loss of the log; None before the first."""
        log = self.state.log_history
        return next((float(entry["loss"]) for entry in reversed(log) if "loss" in entry), None)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Whole batches, from the step the run stands at."""
        return DataLoader(
            self._batches,
            batch_size=None,
            sampler=_FromStep(lambda: self.state.global_step, self.args.max_steps),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and torch.cuda.is_available(),
            generator=torch.Generator(),  # the run's own random state stays untouched
        )

    def _wrap_model(self, model: nn.Module, *_: Any, **__: Any) -> nn.Module:
        return model if isinstance(model, _Bare) else _Bare(model)

    def _get_num_items_in_batch(self, *_: Any) -> None:
        return None

    def training_step(self, model: nn.Module, inputs: Any, *_: Any, **__: Any) -> Tensor:
        """One step; a loss that is not a number stops the run.

        Raises:
            DenserkError: the loss is NaN or infinite.
        """
        model.train()
        terms = self._step(
            inputs.to(self.args.device),
            self.accelerator.backward,
            self.compute_loss_context_manager,
        )
        sum_gradients(model.parameters())
        loss = torch.stack(list(terms.values())).sum()
        if not torch.isfinite(loss):
            parts = ", ".join(f"{name} {term.item():.4g}" for name, term in terms.items())
            raise DenserkError(
                f"the loss of step {self.state.global_step + 1} is not a number ({parts})",
                "lower --lr, or use --dtype float32 in place of float16, and begin again; the last "
                f"checkpoint in {self._folder} is a model to start from, as --model",
            )
        for name, term in terms.items():
            self._sums[name] = self._sums.get(name, torch.zeros_like(term)) + term
        self._summed += 1
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the means of the loss's terms since the last time, and the data's own epoch."""
        if "loss" in logs and self._summed:
            logs |= {f"loss_{name}": (v / self._summed).item() for name, v in self._sums.items()}
            self._sums, self._summed = {}, 0
        self.state.epoch = self.state.global_step / self._steps_per_epoch
        super().log(logs, start_time)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Validates, and logs what came out as `eval_*`."""
        assert self._validate is not None
        assert self.model is not None
        self.model.eval()
        measured = {f"eval_{name}": value for name, value in self._validate().items()}
        self.log(dict(measured))
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, measured
        )
        return measured

    def _maybe_log_save_evaluate(self, *arguments: Any, **named: Any) -> None:
        if self._handled != self.state.global_step:  # the Trainer comes by twice at the last step
            self._handled = self.state.global_step
            super()._maybe_log_save_evaluate(*arguments, **named)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._folder / STAGING)

    def _norm(self) -> float:
        """The norm of all weights."""
        assert self.model is not None
        norms = [
            torch.linalg.vector_norm(parameter.detach(), dtype=torch.float64)
            for parameter in self.model.parameters()
        ]
        return float(torch.stack(norms).norm())

    def _check_weights(self) -> None:
        """Raise DenserkError if the weights are not finite, or have grown beyond all measure."""
        norm = self._norm()
        if norm <= LARGEST_GROWTH * self._first_norm:  # False for NaN
            return
        whole = get_last_checkpoint(str(self._folder))  # type: ignore[no-untyped-call]
        raise DenserkError(
            f"training diverged: after step {self.state.global_step} the weights have the norm "
            f"{norm:.3g}, {self._first_norm:.3g} at the start; no model is saved",
            "lower --lr, or use --dtype float32 in place of float16, and start again"
            + (f"; {whole} is the last good checkpoint" if whole else ""),
        )

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Writes the checkpoint aside, then lets it take its name; older ones go after that."""
        self._check_weights()
        staging = self._folder / STAGING
        if self.args.should_save:
            shutil.rmtree(staging, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        try:
            with torch_write_errors(self._folder):
                super()._save_checkpoint(model, trial)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            whole = staging / f"checkpoint-{self.state.global_step}"
            with write_errors(self._folder):
                flush_to_disk(whole)
                whole.replace(self._folder / whole.name)
                staging.rmdir()
            self._forget_old()

    def _forget_old(self) -> None:
        keep = self.args.save_total_limit
        steps = sorted(int(p.name.rpartition("-")[2]) for p in self._folder.glob("checkpoint-*"))
        for step in steps[: -keep if keep else 0]:
            shutil.rmtree(self._folder / f"checkpoint-{step}")

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if self.args.should_save:
            assert output_dir is not None
            self._save_model(Path(output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self._load_model(Path(resume_from_checkpoint))

    def run(self, *, resume: bool) -> int:
        """Trains to the end, from the last checkpoint under `resume`; returns its first step.

        A run that had come to its end, or had been stopped early at its last checkpoint, is not
        taken up again: its weights and its log are loaded.
        """
        last = None
        self._first_norm = self._norm()
        if resume and self._folder.is_dir():
            last = get_last_checkpoint(str(self._folder))  # type: ignore[no-untyped-call]
        set_seed(self.args.seed)
        if self.args.should_save:  # what a killed run left
            shutil.rmtree(self._folder / STAGING, ignore_errors=True)
            self._forget_old()
        if last is None:
            self.train()
            self._check_weights()
            return 0
        state = TrainerState.load_from_json(str(Path(last) / "trainer_state.json"))
        control = state.stateful_callbacks["TrainerControl"]
        if control["args"]["should_training_stop"]:
            self.state = state
            self._load_model(Path(last))
        else:
            self.train(resume_from_checkpoint=last)
            self._check_weights()
        return int(Path(last).name.rpartition("-")[2])
