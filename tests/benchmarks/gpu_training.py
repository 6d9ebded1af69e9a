"""Training on a GPU: a step of fine-tuning, steps of pre-training, and the papers' schedules.

    python -m tests.benchmarks.gpu_training [--device cpu --tiny]

Fine-tuning: a random BERT-base, 8 queries with 8 passages each at MS MARCO's lengths (32 and 128
tokens at most), bfloat16, AdamW; [CLS] and Aggretriever; the plain path, padded, beside the one
that a GPU takes. Pre-training: `tests.benchmarks.pretraining_speed`, Condenser and MASTER. Shares
are of the rate of matrix products that the same run measures, for the operations of real tokens.
The hours are computed from the steps that were measured: the schedules themselves have not run.

Claimed of an H200, and the exit status is 1 where it does not hold: a step of fine-tuning with
[CLS] in 10 ms or less, and three times as fast as the plain one or more.
"""

from typing import NamedTuple

import numpy as np
import torch
from transformers import BertConfig

from denserk.data.batches import TokenBatch, TrainingBatch, pad
from denserk.modeling.architectures import ARCHITECTURES
from denserk.modeling.backbone import Backbone
from denserk.modeling.encoder import Encoder
from denserk.modeling.gpu_paths import take_gpu_paths
from denserk.modeling.operations import Operations, matrix_rate
from denserk.modeling.retriever import Retriever
from denserk.objectives.retrieval import RetrievalObjective
from denserk.settings.encoding import Representation, RepresentationSettings
from denserk.settings.training import CacheSettings, ObjectiveSettings
from denserk.training.retrieval_step import RetrievalStep
from tests.benchmarks.gpu_machine import Machine, lengths
from tests.benchmarks.pretraining_speed import computed_hours, measured_steps
from tests.tiny_models import tiny_config

QUERIES, GROUP = 8, 8
STEPS = 3 * 502_939 // QUERIES
"""Of the schedule: three epochs over MS MARCO's queries with judgements."""
MILLISECONDS, RATIO = 10.0, 3.0


class Found(NamedTuple):
    """A step: seconds, real tokens a second, the share of the rate, memory at its peak."""

    seconds: float
    tokens: float
    share: float
    peak_mib: float


def retriever(representation: Representation, machine: Machine) -> Retriever:
    """Random weights, one encoder for both sides."""
    torch.manual_seed(0)
    config = tiny_config("bert", 75) if machine.tiny else BertConfig()
    sizes = (20, 6) if machine.tiny else (640, 128)
    settings = RepresentationSettings(representation, agg_dim=sizes[0], cls_dim=sizes[1])
    head = representation is Representation.AGG
    backbone = Backbone(ARCHITECTURES["bert"], config, with_head=head).float()
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    encoder = Encoder(backbone, settings).to(machine.device).train()
    return Retriever(encoder, encoder)


def batch(machine: Machine) -> TrainingBatch:
    """Queries of 4 to 16 tokens and their passages, of random ids."""
    draw = np.random.default_rng(4)
    entries, cut = (75, 30) if machine.tiny else (30_000, 128)

    def texts(sizes: list[int]) -> TokenBatch:
        return pad([draw.integers(1, entries, min(n, cut)) for n in sizes], 0)

    queries = texts([int(n) for n in draw.integers(4, 17, QUERIES)])
    passages = texts([n + 2 for n in lengths(QUERIES * GROUP)])
    keys = torch.arange(QUERIES * GROUP)
    groups = keys.view(QUERIES, GROUP)
    made = TrainingBatch(queries, passages, groups, keys, None, torch.arange(QUERIES))
    return made.to(machine.device)


def measure(representation: Representation, machine: Machine, *, plain: bool) -> Found:
    """A whole step: forward, backward, the optimiser's."""
    model, given = retriever(representation, machine), batch(machine)
    if not plain:
        take_gpu_paths(model)
    objective = RetrievalObjective(ObjectiveSettings())
    step = RetrievalStep(model, objective, CacheSettings(), plain=plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=machine.is_gpu)

    def work() -> None:
        optimizer.zero_grad()
        step(
            given,
            lambda loss: loss.backward(),
            lambda: torch.autocast(machine.device.type, torch.bfloat16),
        )
        optimizer.step()

    seconds = machine.seconds(work)
    sizes = [int(n) for part in (given.queries, given.passages) for n in part.attention_mask.sum(1)]
    counted = Operations.of(model.passage)
    done = 3 * counted.forward(len(sizes), sum(sizes), sum(n**2 for n in sizes))
    time = 0.01 if machine.tiny else 1.0
    rate = matrix_rate(counted.hidden, torch.bfloat16, machine.device, time)
    return Found(seconds, sum(sizes) / seconds, done / seconds / rate, machine.peak_mib(work))


def main(arguments: list[str] | None = None) -> None:
    """Measures, and fails where a claim does not hold."""
    machine = Machine.asked_for("Measures training on a GPU.", arguments)
    found = {}
    print(
        f"fine-tuning, {QUERIES} x {GROUP}\n{'':14}ms/step  tokens/s  of the rate  peak MiB  hours"
    )
    for representation in (Representation.CLS, Representation.AGG):
        for plain in (True, False):
            row = measure(representation, machine, plain=plain)
            found[representation, plain] = row
            name = f"{representation}{', plain' if plain else ''}"
            print(
                f"{name:14}{1e3 * row.seconds:7.1f}{row.tokens:10,.0f}{row.share:13.0%}"
                f"{row.peak_mib:10,.0f}{STEPS * row.seconds / 3600:7.1f}",
                flush=True,
            )
    print(f"hours: {STEPS:,} steps, three epochs over MS MARCO, computed")
    if not machine.tiny:
        share = measured_steps(machine.device.type)
        rate = 788e12 if not machine.is_gpu else matrix_rate(768, torch.bfloat16, machine.device)
        computed_hours(share, rate)
    quick, slow = (found[Representation.CLS, plain].seconds for plain in (False, True))
    wrong = []
    if 1e3 * quick > MILLISECONDS:
        wrong.append(f"a step takes {1e3 * quick:.1f} ms, claimed {MILLISECONDS:.0f}")
    if slow < RATIO * quick:
        wrong.append(f"{slow / quick:.1f} times as fast as plain, claimed {RATIO}")
    if machine.is_gpu and wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
