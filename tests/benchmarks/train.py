"""Goal P9: a training step on a CPU beside the usual one.

    python -m tests.benchmarks.train [--rounds 5] [--threads 1]

The usual step is in float32, pads queries to 32 tokens and passages to 128, and projects every
position to the vocabulary, as transformers' masked-LM model does. denserk's is what `finetune
--bf16` and `pretrain --bf16` run. Both start from the same random weights of DistilBERT's size and
end with the same clipping and AdamW; texts are as long as MS MARCO's. Ratios are of CPU time.
"""

import argparse
import random
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DistilBertConfig, DistilBertForMaskedLM

from denserk.config.encoding import Representation, RepresentationSettings
from denserk.config.pretraining import PretrainingObjective, PretrainRun, PretrainSettings
from denserk.config.training import CacheSettings, ObjectiveSettings
from denserk.data.batches import MaskedTexts, PretrainingBatch, TokenBatch, TrainingBatch, pad
from denserk.data.masking import IGNORED
from denserk.losses.pretraining import MaskedLanguageModel
from denserk.losses.retrieval import RetrievalObjective
from denserk.models.backbone import Backbone
from denserk.models.representation import Encoder, Retriever
from denserk.training.steps import Update, pretraining_step, retrieval_step
from tests.benchmarks.timing import Goals, medians

VOCABULARY, FIRST = 30522, 1000
QUERY, PASSAGE = 32, 128  # tokens that the usual step pads to
CONTRASTIVE = ((2, 4), (8, 8))  # queries, and passages of each
MASKED = (8, 64)  # texts
RATE = 0.15
LR = 5e-5


Gradients = Callable[[], Tensor]  # of a batch; returns the loss
Steps = tuple[Gradients, Gradients]  # the usual one and denserk's
autocast = partial(torch.autocast, "cpu", torch.bfloat16)


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
    ids, real = tokens.input_ids, tokens.attention_mask
    places = torch.tensor([draw.random() for _ in range(ids.numel())]).reshape(ids.shape)
    hidden = real & (places < RATE) & (ids >= FIRST)
    seen = ids.masked_fill(hidden, 103)
    labels = ids.masked_fill(~hidden, IGNORED)
    return PretrainingBatch(MaskedTexts(TokenBatch(seen, real), labels), {}, {})


def backbone() -> Backbone:
    """A random DistilBERT with its MLM head."""
    config = DistilBertConfig(vocab_size=VOCABULARY)
    torch.manual_seed(0)
    made = Backbone(DistilBertForMaskedLM(config))
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


def contrastive(made: Backbone, batch: TrainingBatch) -> Steps:
    """Return the usual and denserk's gradients of a retriever by [CLS]."""
    encoder = Encoder(made, RepresentationSettings(Representation.CLS))
    model, objective = Retriever(encoder, encoder), RetrievalObjective(ObjectiveSettings())
    step = partial(retrieval_step, model, objective, CacheSettings(), True)

    def usual() -> Tensor:
        query = made.encoder(**widened(batch.queries, QUERY)).last_hidden_state[:, 0]
        passage = made.encoder(**widened(batch.passages, PASSAGE)).last_hidden_state[:, 0]
        loss = F.cross_entropy(query @ passage.T, batch.groups[:, 0])
        loss.backward()
        return loss.detach()

    return usual, lambda: step(batch, Update(autocast=autocast))["contrastive"]


def masked(made: Backbone, batch: PretrainingBatch) -> Steps:
    """Return the usual and denserk's gradients of a masked-language model."""
    objective, texts = MaskedLanguageModel(made), batch.texts

    def usual() -> Tensor:
        labels = F.pad(texts.labels, [0, PASSAGE - texts.labels.shape[1]], value=IGNORED)
        loss: Tensor = made.model(**widened(texts.tokens, PASSAGE), labels=labels).loss
        loss.backward()
        return loss.detach()

    run = PretrainRun(
        PretrainSettings(
            objective=PretrainingObjective.MLM, model="model", corpus=("-",), output="out"
        )
    )
    update = Update(autocast=autocast)
    return usual, lambda: pretraining_step(objective, run, batch, update)["mlm"]


def speeds(goals: Goals, rounds: int) -> None:
    """Time both steps on batches of two sizes."""
    draw = random.Random(1)

    def compare(name: str, made: Backbone, steps: Steps, least: float) -> None:
        optimizer = torch.optim.AdamW(made.parameters(), LR, fused=True)

        def update(gradients: Gradients) -> float:
            optimizer.zero_grad()
            loss = gradients()
            torch.nn.utils.clip_grad_norm_(made.parameters(), 1.0)
            optimizer.step()
            return loss.item()

        usual, ours = (partial(update, step) for step in steps)
        found = medians({"usual": usual, "denserk": ours}, rounds)
        what = f"{name}, x the padded float32 step"
        goals.at_least("P9", what, found["usual"] / found["denserk"], least)

    for queries, passages in CONTRASTIVE:
        made, batch = backbone(), retrieval_batch(draw, queries, passages)
        steps = contrastive(made, batch)
        compare(f"contrastive, {queries} queries of {passages} passages", made, steps, 3)
    for count in MASKED:
        made, texts = backbone(), masked_batch(draw, count)
        compare(f"masked LM, {count} texts", made, masked(made, texts), 3.5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    goals = Goals()
    speeds(goals, given.rounds)
    goals.finish()
