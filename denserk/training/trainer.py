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
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
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
from denserk.io.outputs import BEST, CHECKPOINTS, STEPS, remove_folder, whole_folder
from denserk.models import devices, distributed, processor
from denserk.reporting import Progress, track
from denserk.training.cpu_dropout import cpu_bfloat16_autocast
from denserk.training.steps import CHANCE, MASKED, Step, Terms, Update, total

logger = logging.getLogger(__name__)

LARGEST_GROWTH = 1e4  # of the norm of all weights: above it, training has diverged
# how often the losses are logged without --set logging-steps: a short training gets as many lines
# as this (or one a step), a long one a line every so many steps
MIN_LOG_LINES = 20
MAX_LOG_STEPS = 20
LESS_MEMORY = (
    "finetune needs less memory with --grad-cache, pretrain with --micro-batch-size, and both with "
    "--gradient-checkpointing or a smaller --batch-size"
)
GPU_WORKERS = 2  # processes that prepare batches for a GPU
# files of a checkpoint
STATE = "trainer.pt"
LOG = "trainer_state.json"
EVAL = "eval_"  # begins the names of measures in the log
LOWER_IS_BETTER = (DevMetric.LOSS, DevMetric.AVERAGE_RANK)
# Measures the model, which is in evaluation mode, on held-out data; returns values by name.
Measure = Callable[[], Mapping[str, float]]
# The dataset of this process's batches (see `Trainer`), and the measure, None without held-out data
Prepared = tuple[Any, Measure | None]


def measures_of(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return the measures of a validation in the log, by their names.

    >>> measures_of({"step": 10, "epoch": 0.5, "eval_RR@10": 0.25})
    {'RR@10': 0.25}
    """
    measures = {}
    for name, value in entry.items():
        if name.startswith(EVAL):
            measures[name.removeprefix(EVAL)] = value
    return measures


@dataclass(frozen=True)
class Training:
    """What a run trains, and from which data.

    `save` writes a model folder, `load` reads its weights back. `prepare` tokenises the data below
    the folder in which the run works. `resolved`: sections of training.json that replace the run's,
    by their names, with settings that are only known once the model is loaded.
    """

    model: nn.Module
    step: Step
    save: Callable[[Path], None]
    load: Callable[[Path], None]
    prepare: Callable[[Path], Prepared]
    resolved: Mapping[str, Any] = field(default_factory=dict)


def warmup_steps_of(
    optimizer: OptimizerSettings, total_steps: int, *, must_fit: bool = True
) -> int:
    """Return the number of warm-up steps of a training of `total_steps` steps.

    Warm-up steps that leave no step at the full learning rate are a UsageError under `must_fit`,
    and otherwise a warning.
    """
    warmup_steps = optimizer.warmup_steps
    if warmup_steps is None:
        # the first step of a warm-up has a learning rate of 0: a single step would change nothing
        if total_steps <= 1:
            return 0
        return ceil(total_steps * optimizer.warmup_ratio)
    if warmup_steps < total_steps:
        return warmup_steps
    problem = (
        f"--set warmup-steps={warmup_steps}: the training has {total_steps:,} steps, so the "
        f"learning rate never reaches --lr {optimizer.lr:g}"
    )
    hint = "give --warmup-ratio 0.1, a tenth of the steps, or train for longer"
    if must_fit:
        raise UsageError(problem, hint)
    logger.warning(f"{problem}; {hint}")
    return warmup_steps


class Trainer:
    """Runs a training: batches through `training.step`, updates, log, validation, checkpoints.

    It works in `folder`. `batches` is a dataset of the batches of all epochs: item i is this
    process's share of batch i, and `steps_per_epoch` is the number of batches of an epoch.

    A step is an update of the weights, by the gradients of `batches_per_update` batches:
    `step_number` counts those done, `first_step` those done when this run started or resumed.

    `history` is the log. For each of its entries `report` is called with the step and, as `logs`,
    the values. `warmup_must_fit`: see `warmup_steps_of`.
    """

    def __init__(
        self,
        training: Training,
        prepared: Prepared,
        optimizer: OptimizerSettings,
        folder: Path,
        device: torch.device,
        seed: int,
        *,
        validation: ValidationSettings,
        report: Callable[..., None],
        warmup_must_fit: bool = True,
    ) -> None:
        self.batches, self.measure = prepared
        self.training = training
        self.step = training.step
        self.model = training.model.to(device)
        self.settings = optimizer
        self.folder = folder
        self.checkpoints_folder = folder / CHECKPOINTS
        self.device = device
        self.seed = seed
        self.validation = validation
        self.report = report

        self.batches_per_update = optimizer.gradient_accumulation_steps
        self.updates_per_epoch = self.batches.steps_per_epoch / self.batches_per_update
        self.eval_steps = validation.eval_steps or max(1, int(self.updates_per_epoch))
        self.total_steps = ceil(len(self.batches) / self.batches_per_update)
        default_log_steps = max(1, min(MAX_LOG_STEPS, self.total_steps // MIN_LOG_LINES))
        self.log_steps = optimizer.logging_steps or default_log_steps

        self.step_number = 0
        self.first_step = 0
        self.history: list[dict[str, Any]] = []
        self._stopped = False  # early, by --early-stopping
        self._notes: dict[str, float] = {}  # latest values, shown beside the progress
        # of the steps since the last line of the log: sums of what they return, and their number
        self._sums: Terms = {}
        self._summed_steps = 0
        # how many of them have a gradient that is not finite: counted on the device, and read only
        # for a line of the log, as reading waits for the device
        self._steps_without_norm = torch.zeros((), dtype=torch.int64, device=device)
        # of the last step
        self._grad_norm: Tensor | float = 0.0
        self._learning_rate = 0.0
        self._throughput = _Throughput()

        if optimizer.gradient_checkpointing:
            _enable_checkpointing(self.model)
        self._optimizer = _new_optimizer(self.model, optimizer)
        warmup = warmup_steps_of(optimizer, self.total_steps, must_fit=warmup_must_fit)
        self._scheduler = get_scheduler("linear", self._optimizer, warmup, self.total_steps)
        is_float16 = optimizer.dtype is Dtype.FLOAT16
        self._scaler = torch.amp.GradScaler(device.type, enabled=is_float16)
        self._autocast = _autocast_of(optimizer, device)
        self._first_norm = self._norm()
        # whose states are in a checkpoint, by their names there
        self._stateful: dict[str, Any] = {
            "optimizer": self._optimizer,
            "scheduler": self._scheduler,
            "scaler": self._scaler,
        }

    def logged(self, name: str) -> list[float]:
        """Return the values of a quantity in the log, oldest first."""
        return [entry[name] for entry in self.history if name in entry]

    @property
    def best(self) -> float | None:
        """The best value of --best-by so far; None without it."""
        values = self.logged(f"{EVAL}{self.validation.best_by}")
        if not values:
            return None
        if self.validation.best_by in LOWER_IS_BETTER:
            return min(values)
        return max(values)

    @property
    def final_validation(self) -> Mapping[str, Any]:
        """The validation in the log of the weights that become the model: the best, or the last.

        Empty without a validation.
        """
        validations = []
        for entry in self.history:
            if any(name.startswith(EVAL) for name in entry):
                validations.append(entry)
        if not validations:
            return {}
        best = self.best
        if best is not None:
            for entry in validations:
                if entry.get(f"{EVAL}{self.validation.best_by}") == best:
                    return entry
        return validations[-1]

    def run(self, *, resume: bool) -> None:
        """Train to the end, under `resume` from the last checkpoint.

        A finished run, or one that was stopped early at its last checkpoint, is only loaded.
        """
        rank, _ = distributed.world()
        set_seed(self.seed + rank)  # each process draws a dropout of its own
        checkpoints = self._checkpoints()
        if resume and checkpoints:
            self._load_checkpoint(checkpoints[-1])
        with track("training", self.total_steps, "steps") as progress:
            progress.advance(self.step_number)
            if not (self._stopped or self.step_number == self.total_steps):
                self._train(progress)

    def _train(self, progress: Progress) -> None:
        if _lacks_bfloat16(self.settings.dtype, self.device):
            logger.warning("training computes in float32: this CPU has no bfloat16 instructions")
        is_cuda = self.device.type == "cuda"
        if is_cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
        remaining_batches = iter(self._loader(pin_memory=is_cuda))
        while self.step_number < self.total_steps and not self._stopped:
            start = time.perf_counter()
            batches = list(islice(remaining_batches, self.batches_per_update))
            self._throughput.waited += time.perf_counter() - start
            work = f"training step {self.step_number + 1:,} on {self.device}"
            with devices.memory_errors(work, LESS_MEMORY):
                self.training_step(batches)
            self._throughput.seconds += time.perf_counter() - start
            progress.advance()
            self._after_step()
            notes = [f"{name} {value:.4f}" for name, value in self._notes.items()]
            notes.append(f"{self._throughput.tokens_per_second:,.0f} tokens/s")
            progress.note(", ".join(notes))

    def _loader(self, *, pin_memory: bool) -> DataLoader[Any]:
        """Return a loader of the batches that are left."""
        workers = self.settings.num_workers
        if workers is None:  # on a CPU they would take the cores that a step computes on
            workers = GPU_WORKERS if self.device.type == "cuda" else 0
        return DataLoader(
            self.batches,
            batch_size=None,  # items are batches already
            sampler=range(self.step_number * self.batches_per_update, len(self.batches)),
            num_workers=workers,
            pin_memory=pin_memory,
            generator=torch.Generator(),  # the run's own random state stays untouched
        )

    def training_step(self, batches: list[Any]) -> None:
        """Update the weights once, by the gradient of the loss over the batches of an update."""
        terms = self._compute_gradients(batches)
        if not torch.isfinite(total(terms)):
            step = self.step_number + 1
            values_text = _as_text({name: term.item() for name, term in terms.items()})
            raise self._diverged(f"the loss of step {step} is not a number ({values_text})")
        self._update_weights()
        self._sums = {name: self._sums.get(name, 0.0) + term for name, term in terms.items()}
        self._summed_steps += 1
        self.step_number += 1

    def _compute_gradients(self, batches: list[Any]) -> Terms:
        """Add the gradients of batches up, over all processes; return the terms of the loss.

        The terms, too, are sums over the batches: those of a batch are its part of the update's.
        """
        self.model.train()
        terms: Terms = {}
        update = Update(self._backward, self._autocast, batches)
        for batch in batches:
            batch_terms = self.step(to_device(batch, self.device), update)
            for name, term in batch_terms.items():
                terms[name] = terms.get(name, 0.0) + term
        self._throughput.tokens += update.tokens
        self._throughput.positions += update.positions
        distributed.sum_gradients(self.model.parameters())
        return terms

    def _backward(self, loss: Tensor) -> None:
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def _update_weights(self) -> None:
        """Clip the gradients, and go one step of optimizer and schedule.

        In float16 the scaler skips the optimizer's step where a gradient is not finite.
        """
        self._scaler.unscale_(self._optimizer)
        limit = self.settings.max_grad_norm or torch.inf
        self._grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self._steps_without_norm += ~torch.isfinite(self._grad_norm)
        self._learning_rate = self._scheduler.get_last_lr()[0]
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._scheduler.step()
        self._optimizer.zero_grad()

    def _after_step(self) -> None:
        """Keep the weights, log, validate and save a checkpoint, where the step number says so."""
        step = self.step_number
        is_last = step == self.total_steps
        if step in getattr(self.settings, "keep_steps", ()):  # a setting of pre-training alone
            self._save_model(self.folder / STEPS / f"step-{step}")
        if is_last or step % self.log_steps == 0:
            self._log_losses()
        if self.measure is not None and step % self.eval_steps == 0:
            self._validate(self.measure)
        if is_last or step % self.settings.save_steps == 0:
            self._save_checkpoint()

    def _log_losses(self) -> None:
        """Log the means of the steps since the last line of the log."""
        losses: dict[str, float] = {}  # by name, the parts of the loss
        chances: dict[str, float] = {}
        shares: dict[str, float] = {}
        for name, total_of_steps in self._sums.items():
            mean = float(total_of_steps) / self._summed_steps
            if name == MASKED:
                shares[name] = mean
            elif name.startswith(CHANCE):
                chances[name] = mean
            else:
                losses[name] = mean
        loss = sum(losses.values())
        values = {"loss": loss, "learning_rate": self._learning_rate, **shares, **chances}
        norm = float(self._grad_norm)
        if isfinite(norm):  # not so in a step that float16 skipped
            values["grad_norm"] = norm
        if self._scaler.is_enabled():
            self._log_skipped_steps()
        for name, mean in losses.items():
            values[f"loss_{name}"] = mean
        self._log(values)
        self._sums = {}
        self._summed_steps = 0
        self._steps_without_norm.zero_()
        self._notes |= {"loss": loss, **shares}
        if len(losses) > 1:
            self._notes |= losses

    def _log_skipped_steps(self) -> None:
        """Say how many steps since the last line of the log were skipped in float16, if any."""
        skipped = int(self._steps_without_norm)
        if skipped:
            logger.info(
                f"step {self.step_number:,}: skipped {skipped:,} of the last "
                f"{self._summed_steps:,} steps, as a gradient was too large for float16; the next "
                "ones are scaled by less"
            )

    def _validate(self, measure: Measure) -> None:
        """Measure the model, and log it; under --best-by, keep it if it is the best so far.

        If the best one is --early-stopping validations old, the training stops.
        """
        self.model.eval()
        measured = measure()
        if not all(map(isfinite, measured.values())):
            step = self.step_number
            values_text = _as_text(measured)
            raise self._diverged(
                f"the validation after step {step} is not a number ({values_text})"
            )
        self._log({f"{EVAL}{name}": value for name, value in measured.items()})
        self._notes |= measured
        best = self.best
        if best is None:
            return
        values = self.logged(f"{EVAL}{self.validation.best_by}")
        # of equal values the first is the best, so a later one is not kept
        validations_since_best = len(values) - 1 - values.index(best)
        if validations_since_best == 0:
            self._save_model(self.folder / BEST)
        patience = self.validation.early_stopping
        self._stopped = patience is not None and validations_since_best >= patience

    def _save_model(self, folder: Path) -> None:
        """Write the model as it is now to a folder below the run's, from the main process."""
        self.check_weights()
        rank, _ = distributed.world()
        if rank == 0:
            with whole_folder(folder, is_part=True) as unfinished_folder:
                self.training.save(unfinished_folder)

    def _log(self, values: dict[str, float]) -> None:
        """Add an entry to the log, and report it."""
        epoch = self.step_number / self.updates_per_epoch
        self.history.append({**values, "epoch": epoch, "step": self.step_number})
        self.report(self.step_number, logs=values)

    def _norm(self) -> float:
        """Return the L2 norm of all weights."""
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
        """Return the error of a training that diverged, to raise."""
        hint = "lower --lr, or use --dtype float32 in place of float16, and start again"
        checkpoints = self._checkpoints()
        if checkpoints:
            hint += f"; {checkpoints[-1]} is the last good checkpoint, and can be --model"
        return DenserkError(f"training diverged: {reason}", hint)

    def _checkpoints(self) -> list[Path]:
        """Return the checkpoints, oldest first."""
        return sorted(self.checkpoints_folder.glob("checkpoint-*"), key=_step_of)

    def _save_checkpoint(self) -> None:
        """Write model, states and log from the main process; remove the oldest checkpoints.

        All processes call it: each has its own random states.
        """
        self.check_weights()
        random_states = [torch.get_rng_state()]
        if self.device.type == "cuda":
            random_states.append(torch.cuda.get_rng_state(self.device))
        random_states_by_rank = distributed.gather_objects(random_states)
        rank, _ = distributed.world()
        if rank != 0:
            return
        state = {name: stateful.state_dict() for name, stateful in self._stateful.items()}
        state["random"] = random_states_by_rank
        state["sums"] = self._sums
        state["summed"] = self._summed_steps
        state["steps_without_norm"] = self._steps_without_norm
        log = {"step": self.step_number, "stopped": self._stopped, "log_history": self.history}
        folder = self.checkpoints_folder / f"checkpoint-{self.step_number}"
        with whole_folder(folder, is_part=True) as unfinished_folder:
            self.training.save(unfinished_folder)
            try:
                torch.save(state, unfinished_folder / STATE)
            except RuntimeError as error:  # torch's writer raises no OSError on a full disk
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            (unfinished_folder / LOG).write_text(json.dumps(log))
        if self.settings.keep_checkpoints:
            for path in self._checkpoints()[: -self.settings.keep_checkpoints]:
                remove_folder(path)

    def _load_checkpoint(self, path: Path) -> None:
        """Take weights, states and log from a checkpoint."""
        log = json.loads((path / LOG).read_text())
        self.step_number = log["step"]
        self.first_step = log["step"]
        self._stopped = log["stopped"]
        self.history = log["log_history"]
        self.training.load(path)
        state = torch.load(path / STATE, map_location="cpu", weights_only=True)
        for name, stateful in self._stateful.items():
            stateful.load_state_dict(state[name])
        self._sums = {name: value.to(self.device) for name, value in state["sums"].items()}
        self._summed_steps = state["summed"]
        steps_without_norm = state.get("steps_without_norm", 0)  # earlier versions did not count
        self._steps_without_norm.fill_(int(steps_without_norm))
        self._set_random_state(state["random"])

    def _set_random_state(self, states_by_rank: Sequence[Sequence[Tensor]]) -> None:
        """Set the random state of this process to the one in a checkpoint.

        A process that the run did not have before keeps the state that its seed gave it.
        """
        rank, _ = distributed.world()
        if rank >= len(states_by_rank):
            return
        cpu_state, *gpu_states = states_by_rank[rank]
        torch.set_rng_state(cpu_state)
        if gpu_states and self.device.type == "cuda":
            torch.cuda.set_rng_state(gpu_states[0], self.device)

    def speed(self) -> str:
        """Describe the throughput of all processes together; every one of them must call it.

        Validations do not count. Tokens are without padding; memory is that of a GPU, or the
        resident set. Empty if no step was done.
        """
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10  # from KiB
        if self.device.type == "cuda":
            peak_mib = torch.cuda.max_memory_allocated(self.device) / 2**20
        local = self._throughput
        local_values = [local.tokens, local.positions, peak_mib, local.seconds, local.waited]
        local_tensor = torch.tensor([local_values], dtype=torch.float64, device=self.device)
        # each a list with a value per process
        tokens, positions, peaks_mib, seconds, waited = distributed.gather(local_tensor).T.tolist()
        if not any(seconds):
            return ""
        return (
            f"{sum(tokens) / max(seconds):,.0f} tokens/s "
            f"({1 - sum(tokens) / max(1, sum(positions)):.0%} padding, "
            f"{sum(waited) / sum(seconds):.0%} of the time waiting for data), "
            f"at most {max(peaks_mib):,.0f} MiB"
        )


@dataclass
class _Throughput:
    """What the steps of this process passed through the model, and how long they took."""

    tokens: int = 0
    positions: int = 0  # padding included
    seconds: float = 0.0
    waited: float = 0.0  # for data, in seconds, which are part of `seconds`

    @property
    def tokens_per_second(self) -> float:
        """Tokens of this process, without padding, by the time of its steps."""
        return self.tokens / self.seconds


def _lacks_bfloat16(dtype: Dtype, device: torch.device) -> bool:
    """Return whether the CPU lacks what a run in bfloat16 needs, so that it runs in float32."""
    return dtype is Dtype.BFLOAT16 and device.type == "cpu" and not processor.has_bfloat16()


def _autocast_of(
    settings: OptimizerSettings, device: torch.device
) -> Callable[[], AbstractContextManager[Any]]:
    """Return what opens the autocast region of a forward pass, in the dtype of a run."""
    dtype = settings.dtype
    if dtype is Dtype.FLOAT32 or _lacks_bfloat16(dtype, device):
        return partial(torch.autocast, device.type, None, enabled=False)
    is_cpu_bfloat16 = dtype is Dtype.BFLOAT16 and device.type == "cpu"
    # gradient checkpointing runs passes again outside of the region, with torch's autocast alone
    if is_cpu_bfloat16 and not settings.gradient_checkpointing:
        return cpu_bfloat16_autocast
    return partial(torch.autocast, device.type, devices.DTYPES[dtype])


def _enable_checkpointing(model: nn.Module) -> None:
    """Enable gradient checkpointing of the transformers models inside of a model."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            enable = getattr(module, "activation_checkpointing_enable", None)
            if enable is None:  # transformers 5.0
                enable = module.gradient_checkpointing_enable
            enable({"use_reentrant": False})


def _new_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.AdamW:
    """Return AdamW over the trainable weights: it decays matrices, not biases and norms' scales."""
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for weight in model.parameters():
        if weight.requires_grad:
            group = matrices if weight.dim() > 1 else vectors
            group.append(weight)
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.lr, eps=settings.adam_epsilon, fused=True)


def _step_of(checkpoint: Path) -> int:
    """Return 200 of checkpoint-200."""
    return int(checkpoint.name.rpartition("-")[2])


def _as_text(values: Mapping[str, float]) -> str:
    """Return values with their names for a message."""
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())
