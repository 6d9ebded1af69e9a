"""Section `train-speed`: steps of `finetune` beside a plain loop that pads, without a compiler."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModel, AutoTokenizer

from denserk.training.trainer import Trainer
from tests.gpu.measuring import Load, synchronize
from tests.gpu.models import NARROW, random_bert
from tests.gpu.setup import Setup
from tests.gpu.texts import training_file
from tests.gpu.training_runs import Messages, tune

GROUP = 8  # passages of a query
PROFILED = 3  # the step whose operations are counted


@dataclass(frozen=True)
class Case:
    """A way to train BERT-base: `queries` of a batch, each with `GROUP` passages.

    `is_profiled`: the operations of a step are counted, which takes seconds for each thousand.
    """

    name: str
    queries: int
    steps: int
    options: dict[str, Any] = field(default_factory=dict)
    is_profiled: bool = False


CLS = {"representation": "cls", "dtype": "bfloat16"}
AGG = {"representation": "agg", "dtype": "bfloat16"}
CACHE = {"grad_cache": True, "q_chunk": 64, "p_chunk": 64}
CASES = (
    Case("cls, bfloat16", 8, 24, CLS, is_profiled=True),
    Case("cls, bfloat16", 64, 10, CLS),
    Case("agg, bfloat16", 8, 24, AGG),
    Case("agg, bfloat16", 64, 10, AGG),
    Case("cls, bfloat16, gradient cache", 64, 8, {**CLS, **CACHE}),
    Case("cls, float32", 8, 8, {**CLS, "dtype": "float32"}),
)


class Steps:
    """Times steps to their end on the device, and may count the operations of one of them."""

    def __init__(self, device: str, *, is_profiled: bool) -> None:
        self._device = device
        self._is_profiled = is_profiled
        self._number = 0
        self.seconds: list[float] = []
        self.operations = 0  # of ATen, in one step
        self.launches = 0  # of kernels, in one step; 0 where they are not seen

    def run(self, step: Callable[[], Any]) -> None:
        """Run and time a step, or count its operations."""
        synchronize(self._device)
        self._number += 1
        if self._is_profiled and self._number == PROFILED:
            self._count(step)
            return
        start = time.perf_counter()
        step()
        synchronize(self._device)
        self.seconds.append(time.perf_counter() - start)

    def _count(self, step: Callable[[], Any]) -> None:
        activities = [ProfilerActivity.CPU]
        if self._device == "cuda":
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities) as found:
            step()
            synchronize(self._device)
        for event in found.key_averages():
            if event.key.startswith("aten::"):
                self.operations += event.count
            if event.key.startswith(("cudaLaunchKernel", "cuLaunchKernel")):
                self.launches += event.count

    @property
    def milliseconds(self) -> float:
        """The median of the steps after the first few."""
        return 1000 * float(np.median(self.seconds[PROFILED - 1 :]))

    @property
    def details(self) -> dict[str, Any]:
        """The counts, as details of a check."""
        if not self._is_profiled:
            return {}
        launches = {"kernel_launches": self.launches} if self.launches else {}
        return {"operations": self.operations, **launches}


def train_speed(setup: Setup) -> None:
    """Measure steps by batch, precision and representation."""
    model = random_bert(setup, "base", dropout=0.1, deviation=NARROW)
    data = training_file(setup, setup.choose(640, 20), setup.choose(GROUP, 2))
    for case in CASES[: setup.choose(len(CASES), 3)]:
        name = f"training step, base {case.name}, {case.queries} x {GROUP}"
        with setup.report.attempt(name):
            time_steps(setup, name, case, model, data)
    for queries in setup.choose((8, 64), (8,)):
        name = f"plain loop's step, base cls, bfloat16, {queries} x {GROUP}"
        with setup.report.attempt(name):
            steps = Steps(setup.device, is_profiled=queries == CASES[0].queries)
            plain_loop(setup, steps, model, data, queries)
            setup.report.measure(name, steps.milliseconds, "ms", **steps.details)


def time_steps(setup: Setup, name: str, case: Case, model: str, data: str) -> None:
    """Fine-tune, and measure the steps without what lies between them."""
    steps = Steps(setup.device, is_profiled=case.is_profiled)
    original = Trainer.training_step

    def timed_step(trainer: Trainer, batches: list[Any]) -> None:
        steps.run(lambda: original(trainer, batches))

    options = {
        "batch_size": setup.choose(case.queries, 2),
        "group_size": setup.choose(GROUP, 2),
        "max_steps": setup.choose(case.steps, 5),
        "passage_max_length": setup.choose(128, 24),
        "lr": 5e-6,
        "logging_steps": 1000,
        "num_workers": None,
        **case.options,
    }
    with (
        mock.patch.object(Trainer, "training_step", timed_step),
        mock.patch.object(Trainer, "_save_checkpoint"),  # seconds of the disk
        Messages() as messages,
        Load(setup.device) as load,
    ):
        tune(setup, "timed", model, data, setup.device, **options)
    setup.report.measure(
        name,
        steps.milliseconds,
        "ms",
        **steps.details,
        **load.details,
        log=messages.last_with("tokens/s"),
    )


def plain_loop(setup: Setup, steps: Steps, model: str, data: str, queries: int) -> None:
    """Train as one would without denserk: transformers, padding, autocast, a fused AdamW.

    Scaled dot-product attention is transformers' default; in-batch negatives, texts of 32 and 128
    tokens at most, padded to the longest of their batch.
    """
    device = setup.device
    tokenizer = AutoTokenizer.from_pretrained(model)
    bert = AutoModel.from_pretrained(model).to(device).train()
    optimizer = torch.optim.AdamW(bert.parameters(), lr=5e-6, fused=True)
    examples = [json.loads(line) for line in Path(data).read_text().splitlines()]
    batch_size = setup.choose(queries, 2)
    group = setup.choose(GROUP, 2)
    lengths = setup.choose((32, 128), (16, 24))
    numbers = count()

    def vectors(texts: list[str], length: int) -> torch.Tensor:
        batch = tokenizer(
            texts, padding=True, truncation=True, max_length=length, return_tensors="pt"
        )
        states: torch.Tensor = bert(**batch.to(device)).last_hidden_state
        return states[:, 0]

    def step() -> None:
        first = next(numbers) * batch_size
        chosen = [examples[(first + place) % len(examples)] for place in range(batch_size)]
        query_texts = [example["query"] for example in chosen]
        passage_texts = [text for example in chosen for text in texts_of(example, group)]
        with torch.autocast(device, torch.bfloat16):
            query_vectors = vectors(query_texts, lengths[0])
            passage_vectors = vectors(passage_texts, lengths[1])
        scores = query_vectors.float() @ passage_vectors.float().T
        relevant = torch.arange(batch_size, device=device) * group
        torch.nn.functional.cross_entropy(scores, relevant).backward()
        torch.nn.utils.clip_grad_norm_(bert.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(setup.choose(14, 5)):
        steps.run(step)


def texts_of(example: dict[str, Any], group: int) -> list[str]:
    """Return the texts of a relevant passage and of `group - 1` others."""
    negatives = (example["negative_passages"] * group)[: group - 1]
    passages = [*example["positive_passages"][:1], *negatives]
    return [f"{passage['title']} {passage['text']}" for passage in passages]
