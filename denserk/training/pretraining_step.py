"""One update of pre-training: in chunks, with or without the contrast of spans; over processes.

Token losses are averaged over all labelled tokens of an update, which are counted before the first
pass, so that chunks and processes leave the loss as it is. The contrast of spans needs the whole
batch's [CLS] states, and goes through a gradient cache ("Unsupervised Corpus Aware Language Model
Pre-training", Gao and Callan, 2022, section 3.3).
"""

from collections.abc import Callable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from denserk.data.batches import MaskedTexts, PretrainingBatch, TokenBatch
from denserk.objectives.objective import PretrainingObjective, TokenLoss
from denserk.objectives.span_contrast import span_contrast_loss
from denserk.training.distributed import gather, world
from denserk.training.gradient_cache import CachedVectors
from denserk.training.step import Autocast, Backward, Terms

Counts = Mapping[str, Tensor]


def cut(batch: PretrainingBatch, size: int) -> Iterator[PretrainingBatch]:
    """A batch in chunks of at most `size` texts."""

    def part(texts: MaskedTexts, rows: slice) -> MaskedTexts:
        tokens = TokenBatch(*(field[rows] for field in texts.tokens))
        return MaskedTexts(tokens, texts.labels[rows])

    for start in range(0, len(batch.texts.labels), size):
        rows = slice(start, start + size)
        yield PretrainingBatch(
            part(batch.texts, rows),
            {name: part(texts, rows) for name, texts in batch.passes.items()},
            {name: part(texts, rows) for name, texts in batch.decoders.items()},
            None if batch.visible is None else batch.visible[rows],
        )


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
        chunk: texts that pass through the model at once; None for all of them.
        contrast: texts are pairs of spans, which must find each other (coCondenser).
        lm_scale: weight of the token losses.
        by_micro_batch: average each chunk's tokens apart, and the chunks alike (the released code),
            in place of all tokens of the update.
    """

    def __init__(
        self,
        objective: PretrainingObjective,
        chunk: int | None = None,
        *,
        contrast: bool = False,
        lm_scale: float = 1.0,
        by_micro_batch: bool = False,
    ) -> None:
        self.objective, self.chunk, self.contrast = objective, chunk, contrast
        self.lm_scale, self.by_micro_batch = lm_scale, by_micro_batch

    def __call__(self, batch: PretrainingBatch, backward: Backward, autocast: Autocast) -> Terms:
        """See `denserk.training.step.Step`."""
        chunks = list(cut(batch, self.chunk or len(batch.texts.labels)))
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
            contrast = self._contrast(chunks, weigh, backward, autocast)
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
        loss = span_contrast_loss(gather(torch.cat(rows.parts)))
        backward(loss)
        rows.backward(lambda _: losses.pop())
        return loss.detach()
