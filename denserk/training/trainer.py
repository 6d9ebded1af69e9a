"""The training loop: optimiser, schedule, precision, log, validation, checkpoints.

The loop knows no loss and no paper: a `Step` turns a batch into gradients, and a dataset gives the
whole batch of each step, so that a run resumes at a step, whatever the number of workers. A
checkpoint is written to a temporary folder and renamed once it is complete and on the disk.
"""

import errno
import json
import logging
import os
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import ceil, isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, get_scheduler, set_seed

from denserk.config.encoding import Dtype
from denserk.config.training import DevMetric, OptimizerSettings, ValidationSettings
from denserk.data.batches import to_device
from denserk.errors import DenserkError, UsageError
from denserk.io.outputs import remove_folder, whole_folder
from denserk.models import devices
from denserk.reporting import Progress, track
from denserk.training.steps import Step, Terms, Update

logger = logging.getLogger(__name__)

LARGEST_GROWTH = 1e4  # of the norm of all weights: above it, training has diverged
LOG_LINES = 20  # lines that a log has at least, and steps between two of them at most
LESS_MEMORY = (
    "finetune needs less memory with --grad-cache, pretrain with --micro-batch-size, and both with "
    "--gradient-checkpointing or a smaller --batch-size"
)
GPU_WORKERS = 2  # processes that prepare batches for a GPU
# In the folder of a run; files of a checkpoint.
CHECKPOINTS, BEST, STEPS = "checkpoints", "best", "steps"
STATE, LOG = "trainer.pt", "trainer_state.json"
STATEFUL = ("optimizer", "scheduler", "scaler")  # parts of a trainer with a state
LOWER_IS_BETTER = (DevMetric.LOSS, DevMetric.AVERAGE_RANK)
Measure = Callable[[], Mapping[str, float]]
# This process's batches, and what measures the model (in evaluation mode) on held-out data.
Prepared = tuple[Any, Measure | None]


@dataclass(frozen=True)
class Training:
    """What a run trains, and from which data.

    `save` writes a model folder, `load` reads its weights back. `prepare` tokenises the data below
    the output folder. `resolved`: sections of training.json that replace the run's.
    """

    model: nn.Module
    step: Step
    save: Callable[[Path], None]
    load: Callable[[Path], None]
    prepare: Callable[[Path], Prepared]
    resolved: Mapping[str, Any] = field(default_factory=dict)


def warmup_steps_of(optimizer: OptimizerSettings, total: int, *, must_fit: bool = True) -> int:
    """Return the number of warm-up steps of a training of `total` steps.

    A number of steps that leaves none at the full learning rate is a UsageError under `must_fit`,
    and otherwise a warning.
    """
    steps = optimizer.warmup_steps
    if steps is None:
        # the first step of a warm-up has a learning rate of 0: a single step would change nothing
        return ceil(total * optimizer.warmup_ratio) if total > 1 else 0
    if steps < total:
        return steps
    problem = (
        f"--set warmup-steps={steps}: the training has {total:,} steps, so the learning rate never "
        f"reaches --lr {optimizer.lr:g}"
    )
    hint = "give --warmup-ratio 0.1, a tenth of the steps, or train for longer"
    if must_fit:
        raise UsageError(problem, hint)
    logger.warning(f"{problem}; {hint}")
    return steps


class Trainer:
    """Runs a step over batches.

    Item i of `batches`, which has `steps_per_epoch`, is this process's share of batch i; `report`
    gets a step and its entry of the log, `history`, as `logs`. `step_number` counts the updates
    done, `first_step` those when this run started or resumed. `warmup_must_fit`: see
    `warmup_steps_of`.
    """

    def __init__(
        self,
        training: Training,
        prepared: Prepared,
        optimizer: OptimizerSettings,
        output: Path,
        device: torch.device,
        seed: int,
        *,
        validation: ValidationSettings,
        report: Callable[..., None],
        warmup_must_fit: bool = True,
    ) -> None:
        (self.batches, self.measure), self.training, self.settings = prepared, training, optimizer
        self.model, self.step = training.model.to(device), training.step
        for module in self.model.modules() if optimizer.gradient_checkpointing else ():
            if isinstance(module, PreTrainedModel):
                enable = getattr(module, "activation_checkpointing_enable", None)
                enable = enable or module.gradient_checkpointing_enable  # transformers 5.0
                enable({"use_reentrant": False})
        self.output, self.device, self.seed = output, device, seed
        self.folder = output / CHECKPOINTS
        self.validation, self.report = validation, report
        self.per_update = optimizer.gradient_accumulation_steps
        self.updates_per_epoch = self.batches.steps_per_epoch / self.per_update
        self.eval_steps = validation.eval_steps or max(1, int(self.updates_per_epoch))
        self.total = ceil(len(self.batches) / self.per_update)
        self.log_steps = optimizer.logging_steps or max(1, min(LOG_LINES, self.total // LOG_LINES))
        self.step_number = self.first_step = 0
        self.history: list[dict[str, Any]] = []
        self._stopped = False
        self._notes: dict[str, float] = {}
        self._sums: Terms = {}
        self._summed = 0
        self._tokens = self._positions = 0
        self._seconds = self._waited = 0.0
        weights = [p for p in self.model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in weights if p.dim() > 1], "weight_decay": optimizer.weight_decay},
            {"params": [p for p in weights if p.dim() <= 1], "weight_decay": 0.0},  # biases, norms
        ]
        self._optimizer = torch.optim.AdamW(
            groups, lr=optimizer.lr, eps=optimizer.adam_epsilon, fused=True
        )
        warmup = warmup_steps_of(optimizer, self.total, must_fit=warmup_must_fit)
        self._scheduler = get_scheduler("linear", self._optimizer, warmup, self.total)
        slow = device.type == "cpu" and not devices.has_bfloat16()
        self._widened = optimizer.dtype is Dtype.BFLOAT16 and slow
        mixed = optimizer.dtype is not Dtype.FLOAT32 and not self._widened
        dtype = devices.DTYPES[optimizer.dtype] if mixed else None
        self._autocast = partial(torch.autocast, device.type, dtype, mixed)
        self._scaler = torch.amp.GradScaler(device.type, enabled=optimizer.dtype is Dtype.FLOAT16)
        self._first_norm = self._norm()

    def logged(self, name: str) -> list[float]:
        """Return the values of a quantity in the log."""
        return [entry[name] for entry in self.history if name in entry]

    @property
    def best(self) -> float | None:
        """The best value of --best-by so far; None without it."""
        choose = min if self.validation.best_by in LOWER_IS_BETTER else max
        return choose(self.logged(f"eval_{self.validation.best_by}"), default=None)

    def run(self, *, resume: bool) -> None:
        """Train to the end, under `resume` from the last checkpoint.

        A finished run, or one that was stopped early at its last checkpoint, is only loaded.
        """
        set_seed(self.seed)
        checkpoints = self._checkpoints()
        if resume and checkpoints:
            self._load_checkpoint(checkpoints[-1])
        with track("training", self.total, "steps") as progress:
            progress.advance(self.step_number)
            if not (self._stopped or self.step_number == self.total):
                self._train(progress)

    def _train(self, progress: Progress) -> None:
        if self._widened:
            logger.warning("training computes in float32: this CPU has no bfloat16 instructions")
        if cuda := self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        workers = self.settings.num_workers
        if workers is None:  # on a CPU they would take the cores that a step computes on
            workers = GPU_WORKERS if cuda else 0
        left = range(self.step_number * self.per_update, len(self.batches))
        own = torch.Generator()  # the run's own random state stays untouched
        loader = DataLoader(
            self.batches, None, sampler=left, num_workers=workers, pin_memory=cuda, generator=own
        )
        remaining = iter(loader)
        while self.step_number < self.total and not self._stopped:
            start = time.perf_counter()
            batches = list(islice(remaining, self.per_update))
            self._waited += time.perf_counter() - start
            work = f"training step {self.step_number + 1:,} on {self.device}"
            with devices.memory_errors(work, LESS_MEMORY):
                self.training_step(batches)
            self._seconds += time.perf_counter() - start
            progress.advance()
            self._after_step()
            values = [f"{name} {value:.4f}" for name, value in self._notes.items()]
            speed = self._tokens / self._seconds
            progress.note(", ".join([*values, f"{speed:,.0f} tokens/s"]))

    def training_step(self, batches: list[Any]) -> None:
        """Update the weights once, by the gradient of the loss over some batches."""
        self.model.train()

        def backward(loss: Tensor) -> None:
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

        terms: Terms = {}
        update = Update(backward, self._autocast, batches)
        for batch in batches:
            batch_terms = self.step(to_device(batch, self.device), update)
            for name, term in batch_terms.items():
                terms[name] = terms.get(name, 0.0) + term
        self._tokens += update.tokens
        self._positions += update.positions
        devices.sum_gradients(self.model.parameters())
        if not torch.isfinite(torch.stack(list(terms.values())).sum()):
            parts = ", ".join(f"{name} {term.item():.4g}" for name, term in terms.items())
            step = self.step_number + 1
            raise self._diverged(f"the loss of step {step} is not a number ({parts})")
        self._scaler.unscale_(self._optimizer)
        limit = self.settings.max_grad_norm or torch.inf
        self._grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self._rate = self._scheduler.get_last_lr()[0]
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._scheduler.step()
        self._optimizer.zero_grad()
        self._sums = {name: self._sums.get(name, 0.0) + term for name, term in terms.items()}
        self._summed += 1
        self.step_number += 1

    def _after_step(self) -> None:
        """Keep, log, validate and save, where it is time to."""
        done, last = self.step_number, self.step_number == self.total
        if done in getattr(self.settings, "keep_steps", ()):
            self._save_model(self.output / STEPS / f"step-{done}")
        if last or done % self.log_steps == 0:
            means = {name: float(total) / self._summed for name, total in self._sums.items()}
            masked = {name: means.pop(name) for name in ("masked",) if name in means}  # a share
            chance = {name: means.pop(name) for name in list(means) if name.startswith("chance_")}
            loss, norm = sum(means.values()), float(self._grad_norm)
            values = {"loss": loss, "grad_norm": norm, "learning_rate": self._rate}
            self._log(values | masked | chance | {f"loss_{n}": mean for n, mean in means.items()})
            self._sums, self._summed = {}, 0
            self._notes |= {"loss": loss} | masked | (means if len(means) > 1 else {})
        if self.measure is not None and done % self.eval_steps == 0:
            self.model.eval()
            measured = self.measure()
            if not all(map(isfinite, measured.values())):
                shown = ", ".join(f"{name} {value:.4g}" for name, value in measured.items())
                raise self._diverged(f"the validation after step {done} is not a number ({shown})")
            self._log({f"eval_{name}": value for name, value in measured.items()})
            self._notes |= measured
            if (best := self.best) is not None:
                values_so_far = self.logged(f"eval_{self.validation.best_by}")
                since_best = len(values_so_far) - 1 - values_so_far.index(best)  # the first best
                if since_best == 0:
                    self._save_model(self.output / BEST)
                patience = self.validation.early_stopping
                self._stopped = patience is not None and since_best >= patience
        if last or done % self.settings.save_steps == 0:
            self._save_checkpoint()

    @property
    def kept(self) -> Mapping[str, Any]:
        """The last validation, or that of the best weights; empty without one."""
        measured = [e for e in self.history if any(name.startswith("eval_") for name in e)]
        best = f"eval_{self.validation.best_by}"
        of_best = (e for e in measured if self.best is not None and e.get(best) == self.best)
        return next(of_best, measured[-1] if measured else {})

    def _save_model(self, folder: Path) -> None:
        self.check_weights()
        if devices.world()[0] == 0:
            with whole_folder(folder, is_part=True) as part:
                self.training.save(part)

    def _log(self, values: dict[str, float]) -> None:
        epoch = self.step_number / self.updates_per_epoch
        self.history.append({**values, "epoch": epoch, "step": self.step_number})
        self.report(self.step_number, logs=values)

    def _norm(self) -> float:
        return float(nn.utils.get_total_norm(p.detach() for p in self.model.parameters()))

    def check_weights(self) -> None:
        """Raise DenserkError if the weights are not finite or `LARGEST_GROWTH` times as large."""
        norm = self._norm()
        if not norm <= LARGEST_GROWTH * self._first_norm:  # False for NaN
            raise self._diverged(
                f"after step {self.step_number} the norm of the weights is {norm:.3g}, at the "
                f"start {self._first_norm:.3g}"
            )

    def _diverged(self, reason: str) -> DenserkError:
        hint = "lower --lr, or use --dtype float32 in place of float16, and start again"
        checkpoints = self._checkpoints()
        if checkpoints:
            hint += f"; {checkpoints[-1]} is the last good checkpoint, and can be --model"
        return DenserkError(f"training diverged: {reason}", hint)

    def _checkpoints(self) -> list[Path]:
        """Return the checkpoints, oldest first."""
        found = self.folder.glob("checkpoint-*")
        return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))

    def _save_checkpoint(self) -> None:
        self.check_weights()
        cuda = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
        random = devices.gather_objects([torch.get_rng_state(), *cuda])
        if devices.world()[0]:
            return
        state = {name: getattr(self, f"_{name}").state_dict() for name in STATEFUL}
        state |= {"random": random, "sums": self._sums, "summed": self._summed}
        log = {"step": self.step_number, "stopped": self._stopped, "log_history": self.history}
        with whole_folder(self.folder / f"checkpoint-{self.step_number}", is_part=True) as part:
            self.training.save(part)
            try:
                torch.save(state, part / STATE)
            except RuntimeError as error:  # torch's writer raises no OSError on a full disk
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            (part / LOG).write_text(json.dumps(log))
        if self.settings.keep_checkpoints:
            for path in self._checkpoints()[: -self.settings.keep_checkpoints]:
                remove_folder(path)

    def _load_checkpoint(self, path: Path) -> None:
        log = json.loads((path / LOG).read_text())
        self.step_number = self.first_step = log["step"]
        self._stopped, self.history = log["stopped"], log["log_history"]
        self.training.load(path)
        state = torch.load(path / STATE, map_location="cpu", weights_only=True)
        for name in STATEFUL:
            getattr(self, f"_{name}").load_state_dict(state[name])
        self._sums = {name: value.to(self.device) for name, value in state["sums"].items()}
        self._summed = state["summed"]
        cpu, *cuda = state["random"][devices.world()[0]]
        torch.set_rng_state(cpu)
        if cuda and self.device.type == "cuda":
            torch.cuda.set_rng_state(cuda[0], self.device)

    def speed(self) -> str:
        """Describe the throughput of all processes, which all must call it, without validations.

        Tokens are without padding; memory is that of a GPU, or the resident set.
        Empty if no step was done.
        """
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device) / 2**20
        own = [[self._tokens, self._positions, peak, self._seconds, self._waited]]
        every = devices.gather(torch.tensor(own, dtype=torch.float64, device=self.device))
        tokens, positions, peaks, seconds, waited = every.T.tolist()
        if not any(seconds):
            return ""
        return (
            f"{sum(tokens) / max(seconds):,.0f} tokens/s "
            f"({1 - sum(tokens) / max(1, sum(positions)):.0%} padding, "
            f"{sum(waited) / sum(seconds):.0%} of the time waiting for data), "
            f"at most {max(peaks):,.0f} MiB"
        )
