"""One update of pre-training: in chunks, with or without the contrast of spans; over processes.

Token losses are averaged over all labelled tokens of an update, which are counted before the first
pass, so that chunks and processes leave the loss as it is. The contrast of spans needs the whole
batch's [CLS] states, and goes through a gradient cache ("Unsupervised Corpus Aware Language Model
Pre-training", Gao and Callan, 2022, section 3.3).
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate, pairwise

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


LEAST, ALIKE = 4096, 0.8
"""Tokens, padding included, that a chunk may not be cut below for its padding's sake; and how long
its shortest text should be, beside the longest."""


def cut(
    batch: PretrainingBatch, size: int | None = None, *, by_length: bool = True
) -> Iterator[PretrainingBatch]:
    """A batch in chunks, each no wider than its own longest text needs.

    Args:
        batch: its texts ordered by length, as far as that saves padding.
        size: most texts of a chunk.
        by_length: cut too where much shorter texts follow.
    """
    parts = {"texts": batch.texts}
    parts |= {f"pass {name}": texts for name, texts in batch.passes.items()}
    parts |= {f"decoder {name}": texts for name, texts in batch.decoders.items()}
    masks = torch.stack([texts.tokens.attention_mask.sum(1) for texts in parts.values()])
    lengths = dict(zip(parts, masks.tolist(), strict=True))  # the one wait for the device
    ends = _ends(lengths["texts"], size or len(batch.texts.labels), by_length)
    for start, end in pairwise([0, *ends]):

        def part(name: str, start: int = start, end: int = end) -> MaskedTexts:
            texts, width = parts[name], max(lengths[name][start:end])
            tokens = TokenBatch(*(field[start:end, :width] for field in texts.tokens))
            return MaskedTexts(tokens, texts.labels[start:end, :width])

        texts = part("texts")
        width = texts.labels.shape[1]
        yield PretrainingBatch(
            texts,
            {name: part(f"pass {name}") for name in batch.passes},
            {name: part(f"decoder {name}") for name in batch.decoders},
            None if batch.visible is None else batch.visible[start:end, :width, :width],
        )


def _ends(lengths: list[int], size: int, by_length: bool) -> Iterator[int]:
    """Where chunks end.

    >>> list(_ends([512] * 10 + [100] * 90, 80, True)), list(_ends([512] * 3, 2, False))
    ([10, 90, 100], [2, 3])
    """
    longest_left = list(accumulate(reversed(lengths), max))[::-1]
    start = longest = 0
    for place, length in enumerate(lengths):
        much_shorter = by_length and longest_left[place] < ALIKE * longest
        enough = (place - start) * longest >= LEAST
        if place - start == size or (much_shorter and enough):
            yield place
            start, longest = place, 0
        longest = max(longest, length)
    yield len(lengths)


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
        chunk: most texts that pass through the model at once; None for as many as are of like
            length (see `cut`).
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
        chunks = list(cut(batch, self.chunk, by_length=not self.by_micro_batch))
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
