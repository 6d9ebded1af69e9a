"""One update of pre-training: in chunks, with or without the contrast of spans; over processes.

Token losses are averaged over all labelled tokens of an update, which are counted before the first
pass, so that chunks and processes leave the loss as it is. The contrast of spans needs the whole
batch's [CLS] states, and goes through a gradient cache ("Unsupervised Corpus Aware Language Model
Pre-training", Gao and Callan, 2022, section 3.3). Its spans go by length into the chunks, whatever
their documents, and their states return to their partners' sides before they are compared.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from denserk.data.batches import MaskedTexts, PretrainingBatch, TokenBatch
from denserk.objectives.objective import PretrainingObjective, TokenLoss
from denserk.objectives.span_contrast import span_contrast_loss
from denserk.training.distributed import gather, world
from denserk.training.gradient_cache import CachedVectors
from denserk.training.length_groups import UNLIMITED, Limits, Work, ends_of_groups
from denserk.training.step import Autocast, Backward, Terms

Counts = Mapping[str, Tensor]
ENDLESS = 1 << 60
"""The price of a chunk where texts are cut for no padding's sake."""


def cut(
    batch: PretrainingBatch,
    limits: Limits = UNLIMITED,
    *,
    by_length: bool = True,
    work: Work | None = None,
) -> Iterator[PretrainingBatch]:
    """A batch in chunks, each no wider than its own longest text needs.

    Args:
        batch: its texts ordered by length, as far as that saves padding.
        limits: of a chunk.
        by_length: cut too where shorter texts follow, and that pays.
        work: what the chunks hold is counted here.
    """
    parts = {"texts": batch.texts}
    parts |= {f"pass {name}": texts for name, texts in batch.passes.items()}
    parts |= {f"decoder {name}": texts for name, texts in batch.decoders.items()}
    masks = torch.stack([texts.tokens.attention_mask.sum(1) for texts in parts.values()])
    lengths = dict(zip(parts, masks.tolist(), strict=True))  # the one wait for the device
    work = Work() if work is None else work
    price = work.price_on(batch.texts.labels.device) if by_length else ENDLESS
    for start, end in pairwise([0, *ends_of_groups(lengths["texts"], price, limits)]):

        def part(name: str, start: int = start, end: int = end) -> MaskedTexts:
            texts, own = parts[name], lengths[name][start:end]
            tokens = TokenBatch(*(field[start:end, : max(own)] for field in texts.tokens))
            work.count(own, again=name != "texts")
            return MaskedTexts(tokens, texts.labels[start:end, : max(own)])

        texts = part("texts")
        width = texts.labels.shape[1]
        yield PretrainingBatch(
            texts,
            {name: part(f"pass {name}") for name in batch.passes},
            {name: part(f"decoder {name}") for name in batch.decoders},
            None if batch.visible is None else batch.visible[start:end, :width, :width],
        )


def longest_first(texts: MaskedTexts) -> tuple[MaskedTexts, Tensor]:
    """Texts by length, and where each of them stands then: (B,) int64."""
    order = texts.tokens.attention_mask.sum(1).argsort(descending=True, stable=True)
    tokens = TokenBatch(*(field[order] for field in texts.tokens))
    return MaskedTexts(tokens, texts.labels[order]), order.argsort()


def _summed(values: Counts) -> Counts:
    """Everybody's counts together."""
    if world()[1] == 1:
        return values
    names, stacked = list(values), torch.stack(list(values.values()))
    dist.all_reduce(stacked)
    return dict(zip(names, stacked, strict=True))


class PretrainingStep:
    """Masked texts -> gradients.

    Args:
        objective: the model and its terms.
        limits: of what passes through the model at once; without, as much as is of like length.
        contrast: texts are pairs of spans, which must find each other (coCondenser).
        lm_scale: weight of the token losses.
        by_micro_batch: average each chunk's tokens apart, and the chunks alike (the released code),
            in place of all tokens of the update.

    Attributes:
        work: what passed through the encoder and the decoders so far.
    """

    def __init__(
        self,
        objective: PretrainingObjective,
        limits: Limits = UNLIMITED,
        *,
        contrast: bool = False,
        lm_scale: float = 1.0,
        by_micro_batch: bool = False,
    ) -> None:
        self.objective, self.limits, self.contrast = objective, limits, contrast
        self.lm_scale, self.by_micro_batch = lm_scale, by_micro_batch
        self.work = Work()

    def __call__(self, batch: PretrainingBatch, backward: Backward, autocast: Autocast) -> Terms:
        """See `denserk.training.step.Step`."""
        back = torch.arange(len(batch.texts.labels), device=batch.texts.labels.device)
        if self.contrast:
            texts, back = longest_first(batch.texts)
            batch = PretrainingBatch(texts, {}, {})
        by_length = not self.by_micro_batch
        chunks = list(cut(batch, self.limits, by_length=by_length, work=self.work))
        counts = None if self.by_micro_batch else _summed(self.objective.counts(batch))
        sums: dict[str, Tensor] = {}

        def weigh(losses: Mapping[str, TokenLoss]) -> Tensor:
            """A chunk's share of the update's token losses."""
            terms = {}
            for name, loss in losses.items():
                share = loss.count * len(chunks) * world()[1] if counts is None else counts[name]
                terms[name] = self.lm_scale * loss.total / share.clamp(min=1)
                sums[name] = sums.get(name, torch.zeros_like(terms[name])) + terms[name].detach()
            return torch.stack(list(terms.values())).sum()

        contrast = None
        if self.contrast:
            contrast = self._contrast(chunks, back, weigh, backward, autocast)
        else:
            for chunk in chunks:
                with autocast():
                    loss = weigh(self.objective(chunk))
                backward(loss)
        found = dict(_summed(sums))
        return found if contrast is None else found | {"spans": contrast}

    def _contrast(
        self,
        chunks: list[PretrainingBatch],
        back: Tensor,
        weigh: Callable[[Mapping[str, TokenLoss]], Tensor],
        backward: Backward,
        autocast: Autocast,
    ) -> Tensor:
        losses: list[Tensor] = []

        def encode(chunk: PretrainingBatch) -> Tensor:
            with autocast():
                if not torch.is_grad_enabled():
                    return self.objective.cls(chunk)
                cls, terms = self.objective.with_cls(chunk)
                losses.append(weigh(terms))
                return cls

        rows = CachedVectors(encode, chunks, chunks[0].texts.labels.device)
        loss = span_contrast_loss(gather(torch.cat(rows.parts)[back]))
        backward(loss)
        rows.backward(lambda _: losses.pop())
        return loss.detach()
