"""What a training step costs beside the usual one, and whether it learns the same.

    python -m tests.benchmarks.training [--rounds 5] [--steps 50] [--threads 1]

The usual step is in float32, pads queries to 32 tokens and passages to 128, and projects every
position to the vocabulary, as transformers' masked-LM model does. denserk's is what `finetune
--bf16` and `pretrain --bf16` run: bfloat16 products, real tokens alone, queries and passages in one
pass, labelled positions projected alone. Both begin with the same weights of DistilBERT's shape and
end with the same clipping and AdamW. Ids are random and texts as long as MS MARCO's; a query is
words of its passage, so that there is something to learn.

Seconds are those of the CPU, the clock's stand beside them. The exit status is 1 where a step falls
below its claim, or where the losses of a run of --steps steps end more than 1 % apart: without
dropout, which draws otherwise on other paddings, and with a smaller model, four layers of 256.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DistilBertConfig, DistilBertForMaskedLM

from denserk.config.encoding import Representation, RepresentationSettings
from denserk.config.training import CacheSettings, ObjectiveSettings
from denserk.data.batches import MaskedTexts, PretrainingBatch, TokenBatch, TrainingBatch, pad
from denserk.data.masking import IGNORED
from denserk.losses.pretraining import MaskedLanguageModel
from denserk.losses.retrieval import RetrievalObjective
from denserk.models.backbone import Backbone
from denserk.models.encoder import Encoder, Retriever
from denserk.training.steps import PretrainingStep, RetrievalStep

VOCABULARY, FIRST = 30522, 1000
QUERY, PASSAGE = 32, 128
"""Tokens that the usual step pads to."""
CONTRASTIVE = ((2, 4), (8, 8))
"""Queries, and passages of each."""
MASKED = (8, 64)
"""Texts."""
RATE = 0.15
LR = 5e-5
LAST = 5
"""Steps at the end of a run whose mean loss is compared."""
APART = 0.01
CLAIMS = {"contrastive": 3.0, "masked LM": 4.5}
T = TypeVar("T")


class Took(NamedTuple):
    """Seconds of the CPU and of the clock."""

    cpu: float
    clock: float


class Learner(NamedTuple):
    """A model with its optimiser, and both ways to make a batch's gradients."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    usual: Callable[[], Tensor]
    denserk: Callable[[], Tensor]


def always(batch: T) -> Callable[[], T]:
    """Gives the same batch at every step."""
    return lambda: batch


def autocast() -> AbstractContextManager[object]:
    """What `--bf16` opens."""
    return torch.autocast("cpu", torch.bfloat16)


def text(draw: random.Random) -> list[int]:
    """A passage of MS MARCO's length; a few ids are most of it, as words are of a text."""
    length = min(PASSAGE, max(10, round(draw.lognormvariate(4.19, 0.42))))
    words = [FIRST + int((VOCABULARY - FIRST) * draw.random() ** 6) for _ in range(length - 2)]
    return [101, *words, 102]


def retrieval_batch(draw: random.Random, queries: int, passages: int) -> TrainingBatch:
    """Queries of 3 to 9 words of their first passages."""
    texts = [text(draw) for _ in range(queries * passages)]
    asked = [
        [101, *draw.sample(texts[n * passages][1:-1], draw.randint(3, 8)), 102]
        for n in range(queries)
    ]
    keys = torch.arange(len(texts))
    groups = keys.view(queries, passages)
    return TrainingBatch(pad(asked, 0), pad(texts, 0), groups, keys, None, torch.arange(queries))


def masked_batch(draw: random.Random, count: int) -> PretrainingBatch:
    """Texts by length, 15 % of their tokens hidden."""
    tokens = pad(sorted((text(draw) for _ in range(count)), key=len, reverse=True), 0)
    ids, real = tokens
    places = torch.tensor([draw.random() for _ in range(ids.numel())]).reshape(ids.shape)
    hidden = real & (places < RATE) & (ids >= FIRST)
    seen = ids.masked_fill(hidden, 103)
    labels = ids.masked_fill(~hidden, IGNORED)
    return PretrainingBatch(MaskedTexts(TokenBatch(seen, real), labels), {}, {})


def backbone(layers: int, hidden: int, dropout: float) -> Backbone:
    """A random DistilBERT with its MLM head."""
    config = DistilBertConfig(
        vocab_size=VOCABULARY,
        dim=hidden,
        hidden_dim=4 * hidden,
        n_layers=layers,
        n_heads=hidden // 64,
        dropout=dropout,
        attention_dropout=dropout,
    )
    torch.manual_seed(0)
    made = Backbone(DistilBertForMaskedLM(config), with_head=True)
    for name, parameter in made.named_parameters():
        if "layer_norm" in name.lower():
            torch.nn.init.constant_(parameter, float(name.endswith("weight")))
        else:
            torch.nn.init.normal_(parameter, std=0.02)
    return made.float().train()


def widened(batch: TokenBatch, width: int) -> dict[str, Tensor]:
    """A batch padded as the usual step has it, under transformers' names."""
    missing = width - batch.input_ids.shape[1]
    return {
        "input_ids": F.pad(batch.input_ids, [0, missing]),
        "attention_mask": F.pad(batch.attention_mask, [0, missing]).long(),
    }


def contrastive(made: Backbone, batches: Callable[[], TrainingBatch]) -> Learner:
    """A retriever by [CLS]."""
    encoder = Encoder(made, RepresentationSettings(Representation.CLS))
    model = Retriever(encoder, encoder)
    step = RetrievalStep(model, RetrievalObjective(ObjectiveSettings()), CacheSettings())

    def usual() -> Tensor:
        batch = batches()
        query = made.encoder(**widened(batch.queries, QUERY)).last_hidden_state[:, 0]
        passage = made.encoder(**widened(batch.passages, PASSAGE)).last_hidden_state[:, 0]
        loss = F.cross_entropy(query @ passage.T, batch.groups[:, 0])
        loss.backward()
        return loss.detach()

    def own() -> Tensor:
        return step(batches(), torch.autograd.backward, autocast)["contrastive"]

    return Learner(model, torch.optim.AdamW(made.parameters(), LR, fused=True), usual, own)


def masked(made: Backbone, batches: Callable[[], PretrainingBatch]) -> Learner:
    """A masked-language model."""
    objective = MaskedLanguageModel(made)
    step = PretrainingStep(objective)

    def usual() -> Tensor:
        texts = batches().texts
        labels = F.pad(texts.labels, [0, PASSAGE - texts.labels.shape[1]], value=IGNORED)
        loss: Tensor = made.model(**widened(texts.tokens, PASSAGE), labels=labels).loss
        loss.backward()
        return loss.detach()

    def own() -> Tensor:
        return step(batches(), torch.autograd.backward, autocast)["mlm"]

    return Learner(made, torch.optim.AdamW(made.parameters(), LR, fused=True), usual, own)


def update(learner: Learner, gradients: Callable[[], Tensor]) -> float:
    """One step; its loss."""
    learner.optimizer.zero_grad()
    loss = gradients()
    torch.nn.utils.clip_grad_norm_(learner.model.parameters(), 1.0)
    learner.optimizer.step()
    return loss.item()


def medians(learner: Learner, rounds: int) -> tuple[Took, Took]:
    """The usual step and denserk's, one of each a round after one that is not counted."""
    found: dict[str, list[Took]] = {"usual": [], "own": []}
    for number in range(rounds + 1):
        for name, gradients in (("usual", learner.usual), ("own", learner.denserk)):
            cpu, clock = time.process_time(), time.perf_counter()
            update(learner, gradients)
            if number:
                took = Took(time.process_time() - cpu, time.perf_counter() - clock)
                found[name].append(took)
    usual, own = (
        Took(*(statistics.median(column) for column in zip(*each, strict=True)))
        for each in found.values()
    )
    return usual, own


def speeds(rounds: int) -> list[str]:
    """Prints the table; returns what falls below its claim."""
    print(f"{'':26}{'CPU seconds':>20}{'clock':>16}{'tokens/CPU s':>18}")
    print(f"{'':26}{'usual':>10}{'denserk':>10}{'usual':>8}{'own':>8}{'usual':>9}{'own':>9}  ratio")
    draw, short = random.Random(1), []

    def row(kind: str, name: str, learner: Learner, tokens: int) -> None:
        usual, own = medians(learner, rounds)
        ratio = usual.cpu / own.cpu
        print(
            f"{name:26}{usual.cpu:>10.2f}{own.cpu:>10.2f}{usual.clock:>8.2f}{own.clock:>8.2f}"
            f"{tokens / usual.cpu:>9,.0f}{tokens / own.cpu:>9,.0f}{ratio:>6.1f}x",
            flush=True,
        )
        if ratio < CLAIMS[kind]:
            short.append(f"{name}: {ratio:.2f}, claimed {CLAIMS[kind]}")

    for queries, passages in CONTRASTIVE:
        batch = retrieval_batch(draw, queries, passages)
        tokens = int(batch.queries.attention_mask.sum() + batch.passages.attention_mask.sum())
        learner = contrastive(backbone(6, 768, 0.1), always(batch))
        row("contrastive", f"contrastive {queries} x {passages}", learner, tokens)
    for count in MASKED:
        texts = masked_batch(draw, count)
        tokens = int(texts.texts.tokens.attention_mask.sum())
        learner = masked(backbone(6, 768, 0.1), always(texts))
        row("masked LM", f"masked LM {count}", learner, tokens)
    return short


def losses(make: Callable[[], Learner], usual: bool, steps: int) -> list[float]:
    """Of a run."""
    learner = make()
    return [update(learner, learner.usual if usual else learner.denserk) for _ in range(steps)]


def curves(steps: int) -> list[str]:
    """Prints where runs of both kinds begin and end; returns those that end apart."""
    apart = []

    def learner_of_pairs() -> Learner:
        draw = random.Random(2)
        return contrastive(backbone(4, 256, 0.0), lambda: retrieval_batch(draw, 8, 4))

    def learner_of_texts() -> Learner:
        draw = random.Random(3)
        return masked(backbone(4, 256, 0.0), lambda: masked_batch(draw, 16))

    makers: Mapping[str, Callable[[], Learner]] = {
        "contrastive": learner_of_pairs,
        "masked LM": learner_of_texts,
    }
    print(f"\nlosses of {steps} steps  first   last {LAST}: usual    denserk   apart")
    for name, make in makers.items():
        usual, own = (losses(make, each, steps) for each in (True, False))
        ends = [statistics.fmean(found[-LAST:]) for found in (usual, own)]
        distance = abs(ends[1] / ends[0] - 1)
        print(f"{name:18}{usual[0]:>9.4f}{ends[0]:>19.4f}{ends[1]:>11.4f}{distance:>8.2%}")
        if distance > APART:
            apart.append(f"{name}: losses end {distance:.2%} apart")
    return apart


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    told = parser.parse_args()
    torch.set_num_threads(told.threads)
    wrong = [*curves(told.steps), *speeds(told.rounds)]
    if wrong:
        raise SystemExit("\n".join(wrong))
