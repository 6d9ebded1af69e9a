"""The training loop: optimiser, schedule, precision, log, validation, checkpoints.

The loop knows no loss and no paper: a `Step` turns a batch into gradients, and a dataset gives the
whole batch of each step, so that a run resumes at a step, whatever the number of workers. A
checkpoint is written to a temporary folder and renamed once it is complete.
"""

import json
import os
import re
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, get_scheduler, set_seed

from denserk.config.encoding import Dtype
from denserk.config.training import CacheSettings, DevMetric, OptimizerSettings, ValidationSettings
from denserk.data.batches import TokenBatch, to_device
from denserk.data.pairs import PairBatch
from denserk.errors import DenserkError, MismatchError, OutputError, UsageError
from denserk.extras import installed
from denserk.io.files import is_temporary, write_errors
from denserk.io.outputs import whole_folder
from denserk.models.devices import DTYPES, choose_device
from denserk.reporting import Progress, track
from denserk.training.distributed import (
    device_of_rank,
    gather,
    gather_objects,
    sum_gradients,
    world,
)
from denserk.training.steps import Step
from denserk.training.validation import best_of, values_of

# Growth of the norm of all weights above which training has diverged.
LARGEST_GROWTH = 1e4
# What the RuntimeError of a failed write names where torch's own writer wrote.
TORCH_WRITER = re.compile("inline_container|PytorchStreamWriter|iostream error")
# Lines that the log of a run has at least, and steps between two of them at most.
LOG_LINES = 20
# Processes that prepare batches for a GPU.
GPU_WORKERS = 2
# In the folder of a run; files of a checkpoint.
CHECKPOINTS, BEST, STEPS, LOGS = "checkpoints", "best", "steps", "logs"
STATE, LOG = "trainer.pt", "trainer_state.json"
MIB = 1 << 20
# For the estimate of memory: bytes of a process before training; of a weight (itself, its gradient
# and AdamW's two moments, in float32); that a layer keeps of a token for the backward pass, per
# hidden dimension (measured: 104 to 126 in BERTs of 2 to 12 layers, passages of 128 tokens).
PROCESS_BYTES, WEIGHT_BYTES, ACTIVATION_BYTES = 1 << 29, 16, 120
Save = Callable[[Path], None]


def training_device(name: str, dtype: Dtype) -> torch.device:
    """Return the device to train on; under torchrun, the GPU of this process.

    Raises:
        UsageError: there is no such device, or it cannot compute in this precision.
    """
    device = choose_device(device_of_rank(name))
    if device.type == "cpu" and dtype is Dtype.FLOAT16:
        raise UsageError("--dtype float16 needs a GPU", "use --dtype bfloat16 or float32")
    return device


def save_whole(folder: Path, save: Save) -> None:
    """Save a model into a folder that is replaced only once the new one is complete."""
    with whole_folder(folder, own=True) as part:
        save(part)


@contextmanager
def torch_write_errors(folder: Path) -> Iterator[None]:
    """`write_errors` for torch's own writer too, which raises no OSError on a full disk."""
    with write_errors(folder):
        try:
            yield
        except RuntimeError as error:
            if not TORCH_WRITER.search(str(error)):
                raise
            raise OutputError(
                f"{folder} cannot be written: no room left on the disk, or a file size limit",
                "make room, and add --resume to continue from the last complete checkpoint",
            ) from error


class Speed(NamedTuple):
    """Throughput of a run over all its processes, without validations and checkpoints.

    Attributes:
        tokens_per_second: of texts, padding not counted.
        padding: the share of positions that are padding.
        waiting: the share of the time spent waiting for data.
        peak_mib: the most memory of a process: of its GPU, or its resident set on a CPU.
    """

    tokens_per_second: float
    padding: float
    waiting: float
    peak_mib: float

    def __str__(self) -> str:
        return (
            f"{self.tokens_per_second:,.0f} tokens/s ({self.padding:.0%} padding, "
            f"{self.waiting:.0%} of the time waiting for data), at most {self.peak_mib:,.0f} MiB"
        )


@dataclass(frozen=True)
class Best:
    """Keeps the weights of the best validation; ends a run that stopped improving.

    Attributes:
        folder: holds the best weights.
        save: writes the model into a folder.
        metric: what validations are judged by.
        patience: validations in a row without improvement before the run ends; None for never.
    """

    folder: Path
    save: Save
    metric: DevMetric
    patience: int | None = None

    def update(self, history: list[dict[str, Any]]) -> bool:
        """Save the model if the last validation was the best; return whether to stop."""
        values = values_of(history, self.metric)
        best = best_of(values, self.metric)
        if best == len(values) - 1 and world()[0] == 0:
            save_whole(self.folder, self.save)
        return self.patience is not None and len(values) - 1 - best >= self.patience

    def value(self, history: list[dict[str, Any]]) -> float | None:
        """Return the best value so far."""
        values = values_of(history, self.metric)
        return values[best_of(values, self.metric)] if values else None


@dataclass(frozen=True)
class Trained:
    """What a run trains: a model and its step; `save` and `load` take a model folder."""

    model: nn.Module
    step: Step
    save: Save
    load: Save


class Trainer:
    """Runs a step over batches.

    Args:
        trained: model and step.
        batches: item i is this process's share of the batch of step i; with `steps_per_epoch`.
        optimizer: learning rate, precision, how often to log and save.
        output: the run's folder; takes checkpoints, best weights, TensorBoard's files.
        device: where to train.
        seed: of dropout.
        validation: how often, and what is best.
        measure: measures by name; None for no validation.
        keep_steps: steps whose weights are kept.

    Attributes:
        step_number: steps done.
        history: the log, a dictionary for each entry.
        first_step: the step that this run started or resumed at.
    """

    def __init__(
        self,
        trained: Trained,
        batches: Any,
        optimizer: OptimizerSettings,
        output: Path,
        *,
        device: torch.device,
        seed: int,
        validation: ValidationSettings = ValidationSettings(),  # noqa: B008  (frozen)
        measure: Callable[[], Mapping[str, float]] | None = None,
        keep_steps: tuple[int, ...] = (),
    ) -> None:
        self.trained, self.batches, self.settings = trained, batches, optimizer
        self.model, self.step = trained.model.to(device), trained.step
        self.output, self.device, self.seed = output, device, seed
        self.folder = output / CHECKPOINTS
        self.measure, self.keep_steps = measure, keep_steps
        self.eval_steps = validation.eval_steps or batches.steps_per_epoch
        self.best: Best | None = None
        if validation.best_by is not None:
            patience = validation.early_stopping
            self.best = Best(output / BEST, trained.save, validation.best_by, patience)
        self.total = len(batches)
        self.log_steps = optimizer.logging_steps or max(1, min(LOG_LINES, self.total // LOG_LINES))
        self.step_number = self.first_step = 0
        self.history: list[dict[str, Any]] = []
        self._stopped = False
        self._sums: dict[str, Tensor] = {}
        self._summed = 0
        self._seconds = self._waited = 0.0
        self._board: Any = None
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        groups = [
            {"params": [p for p in weights if p.dim() > 1], "weight_decay": optimizer.weight_decay},
            {"params": [p for p in weights if p.dim() <= 1], "weight_decay": 0.0},  # biases, norms
        ]
        self._optimizer = torch.optim.AdamW(
            groups, lr=optimizer.lr, eps=optimizer.adam_epsilon, fused=True
        )
        warmup = optimizer.warmup_steps
        if warmup is None:
            warmup = ceil(self.total * optimizer.warmup_ratio)
        self._scheduler = get_scheduler("linear", self._optimizer, warmup, self.total)
        self._scaler = torch.amp.GradScaler(device.type, enabled=optimizer.dtype is Dtype.FLOAT16)
        self._first_norm = self._norm()

    @property
    def last_loss(self) -> float | None:
        """The newest loss of the log; None before the first."""
        return next((float(e["loss"]) for e in reversed(self.history) if "loss" in e), None)

    def run(self, *, resume: bool) -> None:
        """Train to the end, under `resume` from the last checkpoint.

        A finished run, or one that was stopped early at its last checkpoint, is only loaded.

        Raises:
            DenserkError: the loss or the weights are not finite.
            MismatchError: the checkpoint is of an earlier version.
            OutputError: a checkpoint cannot be written.
        """
        set_seed(self.seed)
        if world()[0] == 0 and self.folder.is_dir():
            self._clean()
        checkpoints = self._checkpoints()
        if resume and checkpoints:
            self._load_checkpoint(checkpoints[-1])
        with track("training", self.total, "steps") as progress:
            progress.advance(self.step_number)
            if not (self._stopped or self.step_number == self.total):
                self._train(progress)
                self._check_weights()

    def _train(self, progress: Progress) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        if world()[0] == 0 and installed("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self.output / LOGS))
        notes: dict[str, str] = {}
        mark = time.perf_counter()
        for batch in self._loader():
            ready = time.perf_counter()
            self.training_step(batch)
            now = time.perf_counter()
            self._waited += ready - mark
            self._seconds += now - mark
            progress.advance()
            self._after_step(notes)
            progress.note(", ".join(notes.values()))
            mark = time.perf_counter()
            if self._stopped:
                break
        if self._board is not None:
            self._board.close()

    def _loader(self) -> "DataLoader[Any]":
        """Whole batches, from the step that the run is at."""
        workers = self.settings.num_workers
        if workers is None:  # on a CPU they would take the cores that a step computes on
            workers = GPU_WORKERS if self.device.type == "cuda" else 0
        return DataLoader(
            self.batches,
            batch_size=None,
            sampler=range(self.step_number, self.total),
            num_workers=workers,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # the run's own random state stays untouched
        )

    def _autocast(self) -> torch.autocast:
        precision = self.settings.dtype
        enabled = precision is not Dtype.FLOAT32
        return torch.autocast(self.device.type, DTYPES[precision] if enabled else None, enabled)

    def training_step(self, batch: Any) -> None:
        """Update the weights once.

        Raises:
            DenserkError: the loss is NaN or infinite.
        """
        self.model.train()

        def backward(loss: Tensor) -> None:
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

        terms = self.step(to_device(batch, self.device), backward, self._autocast)
        sum_gradients(self.model.parameters())
        if not torch.isfinite(torch.stack(list(terms.values())).sum()):
            parts = ", ".join(f"{name} {term.item():.4g}" for name, term in terms.items())
            raise DenserkError(
                f"the loss of step {self.step_number + 1} is not a number ({parts})",
                "lower --lr, or use --dtype float32 in place of float16, and begin again; the last "
                f"checkpoint in {self.folder} is a model to start from, as --model",
            )
        self._scaler.unscale_(self._optimizer)
        limit = self.settings.max_grad_norm or torch.inf
        self._grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self._rate = self._scheduler.get_last_lr()[0]
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._scheduler.step()
        self._optimizer.zero_grad()
        for name, term in terms.items():
            self._sums[name] = self._sums.get(name, 0.0) + term
        self._summed += 1
        self.step_number += 1

    def _after_step(self, notes: dict[str, str]) -> None:
        """Keep, log, validate and save, where it is time to."""
        done, last = self.step_number, self.step_number == self.total
        if done in self.keep_steps and world()[0] == 0:
            save_whole(self.output / STEPS / f"step-{done}", self.trained.save)
        if last or done % self.log_steps == 0:
            means = {name: float(total) / self._summed for name, total in self._sums.items()}
            loss = sum(means.values())
            self._log(
                {"loss": loss, "grad_norm": float(self._grad_norm), "learning_rate": self._rate}
                | {f"loss_{name}": mean for name, mean in means.items()}
            )
            self._sums, self._summed = {}, 0
            parts = ", ".join(f"{name} {mean:.4f}" for name, mean in means.items())
            notes["loss"] = f"loss {loss:.4f}" + (f" ({parts})" if len(means) > 1 else "")
            notes["speed"] = f"{self.step.work.tokens / self._seconds:,.0f} tokens/s"
        if self.measure is not None and done % self.eval_steps == 0:
            self.model.eval()
            measured = self.measure()
            self._log({f"eval_{name}": value for name, value in measured.items()})
            notes["validation"] = ", ".join(f"{name} {v:.4f}" for name, v in measured.items())
            self._stopped = self.best is not None and self.best.update(self.history)
        if last or done % self.settings.save_steps == 0:
            self._save_checkpoint()

    def _log(self, values: dict[str, float]) -> None:
        epoch = self.step_number / self.batches.steps_per_epoch
        self.history.append({**values, "epoch": epoch, "step": self.step_number})
        if self._board is not None:
            for name, value in values.items():
                prefix, _, rest = name.partition("_")
                shown = f"eval/{rest}" if prefix == "eval" else f"train/{name}"
                self._board.add_scalar(shown, value, self.step_number)
            self._board.flush()

    def _norm(self) -> float:
        """Return the norm of all weights."""
        return float(nn.utils.get_total_norm(p.detach() for p in self.model.parameters()))

    def _check_weights(self) -> None:
        """Raise DenserkError if the weights are not finite, or have grown beyond all measure."""
        norm = self._norm()
        if norm <= LARGEST_GROWTH * self._first_norm:  # False for NaN
            return
        good = self._checkpoints()
        raise DenserkError(
            f"training diverged: after step {self.step_number} the weights have the norm "
            f"{norm:.3g}, {self._first_norm:.3g} at the start; no model is saved",
            "lower --lr, or use --dtype float32 in place of float16, and start again"
            + (f"; {good[-1]} is the last good checkpoint" if good else ""),
        )

    def _checkpoints(self) -> list[Path]:
        """Return the checkpoints, oldest first."""
        found = self.folder.glob("checkpoint-*")
        return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))

    def _clean(self) -> None:
        """Remove what a killed run left, and checkpoints beyond the limit."""
        for item in self.folder.iterdir():
            if is_temporary(item):
                shutil.rmtree(item, ignore_errors=True)
        if self.settings.keep_checkpoints:
            for path in self._checkpoints()[: -self.settings.keep_checkpoints]:
                shutil.rmtree(path)

    def _random_states(self) -> list[Tensor]:
        cuda = self.device.type == "cuda"
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(self.device)] if cuda else [])]

    def _save_checkpoint(self) -> None:
        self._check_weights()
        random = gather_objects(self._random_states())
        if world()[0]:
            return
        state = {
            "optimizer": self._optimizer.state_dict(),
            "scheduler": self._scheduler.state_dict(),
            "scaler": self._scaler.state_dict(),
            "random": random,
            "sums": self._sums,
            "summed": self._summed,
        }
        told = {"step": self.step_number, "stopped": self._stopped, "log_history": self.history}
        with torch_write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with whole_folder(self.folder / f"checkpoint-{self.step_number}", own=True) as part:
                self.trained.save(part)
                torch.save(state, part / STATE)
                (part / LOG).write_text(json.dumps(told))
                for item in part.rglob("*"):  # on the disk before older checkpoints are removed
                    if item.is_file():
                        with item.open("rb") as handle:
                            os.fsync(handle.fileno())
            self._clean()

    def _load_checkpoint(self, path: Path) -> None:
        if not (path / STATE).is_file():
            raise MismatchError(
                f"{path} was written by an earlier version of denserk and cannot be resumed",
                "start again with --overwrite; the checkpoint is a model to start from, as --model",
            )
        told = json.loads((path / LOG).read_text())
        self.step_number = self.first_step = told["step"]
        self._stopped, self.history = told["stopped"], told["log_history"]
        self.trained.load(path)
        state = torch.load(path / STATE, map_location="cpu", weights_only=True)
        for name in ("optimizer", "scheduler", "scaler"):
            getattr(self, f"_{name}").load_state_dict(state[name])
        self._sums = {name: value.to(self.device) for name, value in state["sums"].items()}
        self._summed = state["summed"]
        cpu, *cuda = state["random"][world()[0]]
        torch.set_rng_state(cpu)
        if cuda and self.device.type == "cuda":
            torch.cuda.set_rng_state(cuda[0], self.device)

    def speed(self) -> Speed | None:
        """Return the throughput of all processes, which all must ask; None if no step was done."""
        work = self.step.work
        own = (work.tokens, work.real, work.positions, peak_mib(self.device))
        counted = torch.tensor([[*own, self._seconds, self._waited]], dtype=torch.float64)
        tokens, real, positions, peaks, seconds, waited = gather(counted.to(self.device)).T.tolist()
        if not any(seconds):
            return None
        return Speed(
            tokens_per_second=sum(tokens) / max(seconds),
            padding=1 - sum(real) / max(1, sum(positions)),
            waiting=sum(waited) / sum(seconds),
            peak_mib=max(peaks),
        )


def peak_mib(device: torch.device) -> float:
    """Return the most memory that this process has used: of its GPU, or its resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MIB
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB


def estimate(batch: Any, model: nn.Module, cache: CacheSettings, *, halved: bool) -> str:
    """Describe what a step encodes, and about how much memory training takes.

    Args:
        batch: this process's part of a step.
        model: what is trained.
        cache: how much of it passes through the encoder at once.
        halved: activations are in 16 bits.
    """
    texts = {
        name: part if isinstance(part, TokenBatch) else part.tokens
        for name, part in batch._asdict().items()
        if isinstance(part, TokenBatch | PairBatch)
    }
    at_once = 0
    for name, (ids, _) in texts.items():
        count, width = ids.shape
        if cache.grad_cache:
            most = cache.q_chunk if name == "queries" else cache.p_chunk
            by_tokens = cache.chunk_tokens and max(1, cache.chunk_tokens // max(1, width))
            at_once = max(at_once, width * min(count, by_tokens or most))
        else:
            at_once += ids.numel()
    weights = sum(parameter.numel() for parameter in model.parameters())
    config = next(m.config for m in model.modules() if isinstance(m, PreTrainedModel))
    values = at_once * config.num_hidden_layers * config.hidden_size
    needed = (
        PROCESS_BYTES + weights * WEIGHT_BYTES + values * ACTIVATION_BYTES // (2 if halved else 1)
    )
    parts = (f"{len(ids):,} {name} of {ids.shape[1]:,}" for name, (ids, _) in texts.items())
    return (
        f"the first step encodes {' and '.join(parts)} tokens; training takes about "
        f"{needed / 2**30:.1f} GiB (smaller: --batch-size, --group-size, --grad-cache)"
    )
