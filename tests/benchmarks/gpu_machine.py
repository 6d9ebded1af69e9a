"""What the benchmarks of a GPU share: the device and its clock, models and texts of usual shapes.

They are for a GPU and say so in one line where none is seen; `--device cpu --tiny` runs their code
on small models, and its figures say nothing.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import BertConfig, BertForMaskedLM

from denserk.records import Passage
from tests.conftest import VOCABULARY
from tests.tiny_models import tiny_config, tiny_tokenizer, words_of

ENTRIES = 30522
"""BERT's vocabulary."""
MEAN, SPREAD, LONGEST = 70.0, 0.4, 126
"""Words of a passage, drawn log-normally: MS MARCO's lengths in pieces."""


@dataclass(frozen=True)
class Machine:
    """Where a benchmark runs, and whether it only tries its code."""

    device: torch.device
    tiny: bool

    @classmethod
    def asked_for(cls, what: str, arguments: list[str] | None = None) -> "Machine":
        """The machine of a command line.

        Raises:
            SystemExit: no GPU is seen, in one line.
        """
        parser = argparse.ArgumentParser(description=what)
        parser.add_argument("--device", default="cuda")
        parser.add_argument("--tiny", action="store_true")
        given = parser.parse_args(arguments)
        if given.device != "cpu" and not torch.cuda.is_available():
            raise SystemExit(
                "no GPU is seen, and this measures one; --device cpu --tiny tries its code"
            )
        made = cls(torch.device(given.device), given.tiny)
        print(f"{made.name}, torch {torch.__version__}{', tiny' if given.tiny else ''}")
        return made

    @property
    def is_gpu(self) -> bool:
        """Whether figures mean something."""
        return self.device.type == "cuda"

    @property
    def name(self) -> str:
        """What the card is called."""
        return torch.cuda.get_device_name(self.device) if self.is_gpu else "CPU"

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], rounds: int = 9) -> float:
        """The median of a few runs, after two that are not counted; each is waited for."""
        found = []
        for number in range((rounds if self.is_gpu else 1) + 2):
            self.wait()
            begun = time.perf_counter()
            work()
            self.wait()
            if number > 1:
                found.append(time.perf_counter() - begun)
        return statistics.median(found)

    def peak_mib(self, work: Callable[[], object]) -> float:
        """Memory of the device that a piece of work needs beside what it is given, at its peak."""
        if not self.is_gpu:
            work()
            return 0.0
        self.wait()
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        work()
        self.wait()
        return (torch.cuda.max_memory_allocated(self.device) - before) / 2**20

    def idle_share(self, work: Callable[[], object]) -> float:
        """Which share of the time from its first kernel to its last the device stood still."""
        if not self.is_gpu:
            work()
            return 0.0
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            work()
            self.wait()
        spans = [
            (event.time_range.start, event.time_range.end)
            for event in seen.events() or ()
            if event.device_type is DeviceType.CUDA
        ]
        return idle(spans)


def idle(spans: Iterable[tuple[float, float]]) -> float:
    """The share of the time between the first beginning and the last end that no span covers.

    >>> round(idle([(0, 4), (2, 5), (8, 10)]), 3)
    0.3
    """
    ordered = sorted(spans)
    if not ordered:
        return 1.0
    busy, until = 0.0, ordered[0][0]
    for start, end in ordered:
        busy += max(end - max(start, until), 0)
        until = max(until, end)
    return 1 - busy / (until - ordered[0][0])


def write_model(folder: Path, machine: Machine) -> Path:
    """A random BERT-base with its head, or a tiny one, and a tokenizer of as many entries."""
    entries = len(VOCABULARY) if machine.tiny else ENTRIES
    filler = [f"word{i}" for i in range(entries - len(set(VOCABULARY)))]
    tokenizer = tiny_tokenizer("bert", [*VOCABULARY, *filler])
    tokenizer.model_max_length = 512
    torch.manual_seed(1)
    config = tiny_config("bert", len(tokenizer)) if machine.tiny else BertConfig()
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def lengths(count: int) -> list[int]:
    """Words of so many passages."""
    drawn = np.random.default_rng(2).lognormal(np.log(MEAN) - SPREAD**2 / 2, SPREAD, count)
    return [int(n) for n in drawn.clip(8, LONGEST)]


def passages(count: int, machine: Machine) -> list[Passage]:
    """Passages of random words, each of which is one piece."""
    words = np.array([w for w in words_of(VOCABULARY) if w.isalpha() and len(w) > 1])
    if not machine.tiny:
        words = np.array([f"word{i}" for i in range(20_000)])
    generator = np.random.default_rng(3)
    texts = (" ".join(generator.choice(words, n)) for n in lengths(count))
    return [Passage(f"d{i}", text) for i, text in enumerate(texts)]
