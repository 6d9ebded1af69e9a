"""What a step of pre-training costs: tokens a second, floating-point operations, hours of a paper.

    python -m tests.benchmarks.pretraining_speed

Random weights and token ids, every sequence as long as the paper's; float32 and bfloat16 on one
core of the CPU, in its own seconds, which others on the machine change little; bfloat16 on a GPU
where there is one, its memory at its peak beside it. Operations are counted by torch on a step of
two sequences, forward and backward, matrix products alone, and grow with the number of sequences.
The hours are computed from them and from no run.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig

from denserk.data.batches import MaskedTexts, PretrainingBatch, TokenBatch
from denserk.data.masking import IGNORED
from denserk.modeling.architectures import ARCHITECTURES
from denserk.modeling.backbone import Backbone
from denserk.modeling.gpu_paths import take_gpu_paths
from denserk.objectives import objective as losses
from denserk.objectives.condenser import Condenser
from denserk.objectives.masked_language_model import MaskedLanguageModel
from denserk.objectives.master import TASKS, Master
from denserk.objectives.objective import PretrainingObjective, TokenLoss
from denserk.objectives.retromae import DECODER, RetroMae
from denserk.settings.pretraining import SIZES, Architecture
from denserk.training.pretraining_step import PretrainingStep

VOCABULARY = 30522
H200, SHARE = 788e12, 0.4
"""Measured rate of bfloat16 matrix products of an H200, and the share of it that is assumed."""
RATES = {"mkp": 0.5, "cmp": 0.7, "npr": 0.5, "dor": 0.5, "gor": 0.5}
"""Shares of tokens that MASTER's decoders are asked."""


@dataclass(frozen=True)
class Recipe:
    """An objective as its paper runs it.

    `length`: tokens of a sequence; `batch`: sequences of a step; `sequences`: of the whole
    schedule, in units of `length` tokens; `told` says where that number is from.
    """

    name: str
    make: Callable[[Backbone], PretrainingObjective]
    length: int
    batch: int
    encoder_rate: float
    sequences: float
    told: str

    def texts(self, count: int, rate: float) -> MaskedTexts:
        """Full sequences of random tokens, of which a share is asked."""
        shape = (count, self.length)
        ids = torch.randint(1000, VOCABULARY, shape)
        asked = torch.rand(shape).argsort(1) < round(rate * self.length)
        labels = torch.where(asked, ids, IGNORED)
        return MaskedTexts(TokenBatch(ids, torch.ones(shape, dtype=torch.bool)), labels)

    def sample(self, count: int) -> PretrainingBatch:
        """A batch of so many sequences."""
        first = self.texts(count, self.encoder_rate)
        if self.name == "master":
            decoders = {task: self.texts(count, RATES[task]) for task in TASKS}
            return PretrainingBatch(first, {}, decoders)
        if self.name == "retromae":
            shape = (count, self.length, self.length)
            visible = (torch.rand(shape) < 0.5) & ~torch.eye(self.length, dtype=torch.bool)
            visible[:, :, 0] = True
            return PretrainingBatch(first, {}, {DECODER: self.texts(count, 1.0)}, visible)
        return PretrainingBatch(first, {}, {})


BOOKS_AND_WIKIPEDIA = 3.3e9 * 1.3 * 8
"""Tokens: BERT's count of words, 1.3 pieces a word, eight epochs."""
RECIPES = (
    Recipe("mlm", MaskedLanguageModel, 512, 256, 0.15, BOOKS_AND_WIKIPEDIA / 512, "as Condenser"),
    Recipe("condenser", Condenser, 512, 256, 0.15, BOOKS_AND_WIKIPEDIA / 512, "8 epochs"),
    Recipe(
        "cocondenser", Condenser, 128, 4096, 0.15, 8 * 2 * 3_213_835, "MS MARCO documents, 8 epochs"
    ),
    Recipe("retromae", RetroMae, 512, 256, 0.3, BOOKS_AND_WIKIPEDIA / 512, "8 epochs"),
    Recipe("master", Master, 128, 2048, 0.3, 120_000 * 2048, "120,000 steps"),
)


class Rates(NamedTuple):
    """What a step did: tokens of the text a second, operations a second, and memory of a GPU."""

    tokens: float
    operations: float
    peak_mib: float


def backbone(architecture: Architecture) -> Backbone:
    """A random BERT with its MLM head."""
    layers, hidden = SIZES[architecture]
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
    )
    made = Backbone(ARCHITECTURES["bert"], config, with_head=True)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return made.float()


def run(step: PretrainingStep, batch: PretrainingBatch, dtype: torch.dtype, device: str) -> None:
    """A forward and a backward pass."""

    def autocast() -> AbstractContextManager[object]:
        return nullcontext() if dtype is torch.float32 else torch.autocast(device, dtype)

    step(batch, lambda loss: loss.backward(), autocast)


def seconds(work: Callable[[], object], device: str) -> float:
    """Of one run, after one that is not counted."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    begun = clock()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - begun


def matrix_rate(dtype: torch.dtype, device: str) -> float:
    """Operations a second of a product of the shapes of a BERT-base's inner layer."""
    left = torch.randn(2048, 768, dtype=dtype, device=device)
    right = torch.randn(768, 3072, dtype=dtype, device=device)
    took = sorted(seconds(lambda: left @ right, device) for _ in range(9))[4]
    return 2 * 2048 * 768 * 3072 / took


def operations(recipe: Recipe, architecture: Architecture) -> float:
    """Of one sequence, forward and backward, by torch's count on two; the cached pass added."""
    torch.manual_seed(0)
    model = recipe.make(backbone(architecture)).train()
    with FlopCounterMode(display=False) as counter:
        run(PretrainingStep(model), recipe.sample(2), torch.float32, "cpu")
    total = counter.get_total_flops() / 2
    if recipe.name == "cocondenser":  # gradient caching: the encoder runs once more, forward
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model.cls(recipe.sample(2))
        total += counter.get_total_flops() / 2
    return total


def at_every_position(model: Backbone, hidden: Tensor, labels: Tensor) -> TokenLoss:
    """`token_loss` as the usual masked-LM model has it: every position is projected."""
    logits = model.vocabulary_logits(hidden).float()
    total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return TokenLoss(total, (labels != IGNORED).sum())


def measure(
    recipe: Recipe, architecture: Architecture, count: int, dtype: torch.dtype, device: str
) -> tuple[Rates, float]:
    """A step's rates, and how many times longer it takes with every position projected."""
    torch.manual_seed(0)
    model = recipe.make(backbone(architecture)).train().to(device)
    batch, step = recipe.sample(count).to(device), PretrainingStep(model)
    if device == "cuda":
        take_gpu_paths(model)
        torch.cuda.reset_peak_memory_stats()
    took = seconds(lambda: run(step, batch, dtype, device), device)
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0.0
    with patch.object(losses, "token_loss", at_every_position):
        everywhere = seconds(lambda: run(step, batch, dtype, device), device)
    done = FlopCounterMode(display=False)
    with done:
        run(step, batch, dtype, device)
    rates = Rates(count * recipe.length / took, done.get_total_flops() / took, peak)
    return rates, everywhere / took


def measured_steps(device: str) -> float:
    """Prints what steps do; returns the largest share of the matrix rate that one has."""
    best = 0.0
    many = 64 if device == "cuda" else 1
    sizes: Mapping[Architecture, int] = {Architecture.SMALL: 2 * many, Architecture.BASE: many}
    dtypes = [torch.bfloat16] if device == "cuda" else [torch.float32, torch.bfloat16]
    for dtype in dtypes:
        peak = matrix_rate(dtype, device)
        kind = str(dtype).removeprefix("torch.")
        print(f"\n{kind}: matrix products {peak / 1e9:,.0f} GFLOP/s")
        print(f"{'':26}tokens/s  GFLOP/s  of the rate  every position projected  peak MiB")
        for architecture, count in sizes.items():
            for recipe in (r for r in RECIPES if r.name in ("condenser", "master")):
                texts = count * 512 // recipe.length
                rates, ratio = measure(recipe, architecture, texts, dtype, device)
                shape = f"{recipe.name} {architecture} {texts}x{recipe.length}"
                told = f"{rates.tokens:>8,.0f} {rates.operations / 1e9:>8,.0f}"
                best = max(best, rates.operations / peak)
                print(
                    f"{shape:26}{told} {rates.operations / peak:>12.0%} {ratio:>11.2f}x"
                    f"{rates.peak_mib:>24,.0f}",
                    flush=True,
                )
    return best


def computed_hours(share: float = SHARE, rate: float = H200) -> None:
    """Prints what the papers' schedules would take at a share of a matrix rate; none has run."""
    print(f"\nBERT-base, computed: hours on one GPU at {share:.0%} of {rate / 1e12:.0f} TFLOP/s")
    print(f"{'':12}{'GFLOP/sequence':>15}{'TFLOP/step':>12}{'EFLOP in all':>14}{'hours':>7}")
    for recipe in RECIPES:
        each = operations(recipe, Architecture.BASE)
        step, whole = each * recipe.batch / 1e12, each * recipe.sequences
        hours = whole / (share * rate) / 3600
        told = f"{each / 1e9:>15,.0f}{step:>12,.0f}{whole / 1e18:>14,.0f}{hours:>7,.0f}"
        print(
            f"{recipe.name:12}{told}  {recipe.batch:,} x {recipe.length}; {recipe.told}", flush=True
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    computed_hours()
    measured_steps("cuda" if torch.cuda.is_available() else "cpu")
