"""How fast a run trains: tokens a second, the share of padding, waits for data, peak memory."""

import resource
import sys
import time
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel, TrainerCallback

from denserk.data.batches import TokenBatch
from denserk.data.pair_batches import PairBatch
from denserk.settings.training import CacheSettings
from denserk.training.distributed import gather
from denserk.training.length_groups import Work

MIB = 1 << 20
PROCESS_BYTES = 1 << 29
"""Bytes of a process before anything is trained: libraries, or a GPU's context."""
WEIGHT_BYTES = 16
"""Bytes of a weight in training: itself, its gradient, and AdamW's two moments, in float32."""
ACTIVATION_BYTES = 120
"""Bytes that a layer keeps of a token for the backward pass, for each hidden dimension, as measured
on a CPU (104 to 126 in BERTs of 2 to 12 layers, passages of 128 tokens)."""


class Speed(NamedTuple):
    """What a run came to, over all its processes; validations and checkpoints are left out.

    Attributes:
        tokens_per_second: of texts, padding not counted.
        padding: the share of all positions that held no token.
        waiting: the share of the time in which a step's data was not there yet.
        peak_mib: the most memory of a process: of its GPU, or its resident set on a CPU.
    """

    tokens_per_second: float
    padding: float
    waiting: float
    peak_mib: float

    def __str__(self) -> str:
        return (
            f"{self.tokens_per_second:,.0f} tokens/s ({self.padding:.0%} padding, "
            f"{self.waiting:.0%} of the time waiting for data), "
            f"at most {self.peak_mib:,.0f} MiB"
        )


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


class Clock(TrainerCallback):
    """Times steps: from the end of one to the end of the next, and until its data was there.

    Args:
        work: what the step counts.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._mark = 0.0
        self._seconds = self._waited = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Starts the clock."""
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        self._mark = time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The step's data is there."""
        self._waited += time.perf_counter() - self._mark

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The step is done."""
        now = time.perf_counter()
        self._seconds += now - self._mark
        self._mark = now

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Leaves a validation out."""
        self._mark = time.perf_counter()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Leaves a checkpoint out."""
        self._mark = time.perf_counter()

    @property
    def tokens_per_second(self) -> float:
        """Of this process so far."""
        return self._work.tokens / self._seconds if self._seconds else 0.0

    def speed(self, device: torch.device) -> Speed | None:
        """What all processes came to; None where none did a step. All of them must ask.

        Args:
            device: what the processes talk from.
        """
        own = (self._work.tokens, self._work.real, self._work.positions, peak_mib(device))
        counted = torch.tensor([[*own, self._seconds, self._waited]], dtype=torch.float64)
        tokens, real, positions, peaks, seconds, waited = gather(counted.to(device)).T.tolist()
        if not any(seconds):
            return None
        return Speed(
            tokens_per_second=sum(tokens) / max(seconds),
            padding=1 - sum(real) / max(1, sum(positions)),
            waiting=sum(waited) / sum(seconds),
            peak_mib=max(peaks),
        )


def peak_mib(device: torch.device) -> float:
    """The most memory that this process has used so far: of its GPU, or its resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MIB
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB
