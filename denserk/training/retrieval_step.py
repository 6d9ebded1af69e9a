"""One step of a retriever: direct, or with gradient caching; over one process or several."""

from collections.abc import Sequence

import torch
from torch import Tensor

from denserk.data.batches import TokenBatch, TrainingBatch
from denserk.modeling.retriever import Retriever
from denserk.modeling.similarity import PassageVectors
from denserk.objectives.retrieval import RetrievalObjective
from denserk.settings.training import CacheSettings
from denserk.training.distributed import gather, widen, widest, world
from denserk.training.gradient_cache import CachedVectors
from denserk.training.step import Autocast, Backward, Terms


def cut(batch: TokenBatch, size: int) -> list[TokenBatch]:
    """A batch in chunks of at most `size` texts, each as wide as its own longest text."""
    chunks = []
    for start in range(0, len(batch.input_ids), size):
        ids, mask = (part[start : start + size] for part in batch)
        width = int(mask.sum(1).max())
        chunks.append(TokenBatch(ids[:, :width], mask[:, :width]))
    return chunks


def join(parts: Sequence[PassageVectors]) -> PassageVectors:
    """The vectors of chunks as those of one batch; where a passage has fewer, masked ones fill."""
    size = max(part.values.shape[1] for part in parts)
    values = torch.cat([widen(part.values, size) for part in parts])
    if all(part.mask is None for part in parts):
        return PassageVectors(values)
    masks = [
        part.values.new_ones(part.values.shape[:2], dtype=torch.bool)
        if part.mask is None
        else part.mask
        for part in parts
    ]
    return PassageVectors(values, torch.cat([widen(mask, size) for mask in masks]))


class RetrievalStep:
    """Queries and passages -> gradients.

    Args:
        model: both encoders.
        objective: vectors -> loss.
        cache: chunk sizes of gradient caching, and whether it is used.
        across_devices: whether the passages of other processes are negatives too.
    """

    def __init__(
        self,
        model: Retriever,
        objective: RetrievalObjective,
        cache: CacheSettings,
        *,
        across_devices: bool = True,
    ) -> None:
        self.model, self.objective, self.cache = model, objective, cache
        self.across_devices = across_devices

    def __call__(self, batch: TrainingBatch, backward: Backward, autocast: Autocast) -> Terms:
        """See `denserk.training.step.Step`."""
        step = self._cached if self.cache.grad_cache else self._direct
        return step(batch, backward, autocast)

    def _direct(self, batch: TrainingBatch, backward: Backward, autocast: Autocast) -> Terms:
        with autocast():
            queries = self.model.encode_queries(batch.queries)
            passages = self.model.encode_passages(batch.passages)
        return self._loss(queries, passages, batch, backward)

    def _cached(self, batch: TrainingBatch, backward: Backward, autocast: Autocast) -> Terms:
        masks: list[Tensor | None] = []

        def encode_queries(chunk: TokenBatch) -> Tensor:
            with autocast():
                return self.model.encode_queries(chunk)

        def encode_passages(chunk: TokenBatch) -> Tensor:
            with autocast():
                vectors = self.model.encode_passages(chunk)
            masks.append(vectors.mask)
            return vectors.values

        device = batch.targets.device
        queries = CachedVectors(encode_queries, cut(batch.queries, self.cache.q_chunk), device)
        passages = CachedVectors(encode_passages, cut(batch.passages, self.cache.p_chunk), device)
        vectors = [PassageVectors(*pair) for pair in zip(passages.parts, masks, strict=True)]
        terms = self._loss(torch.cat(queries.parts), join(vectors), batch, backward)
        queries.backward()
        passages.backward()
        return terms

    def _loss(
        self, queries: Tensor, passages: PassageVectors, batch: TrainingBatch, backward: Backward
    ) -> Terms:
        targets, teacher = batch.targets, batch.teacher
        processes = world()[1]
        if processes > 1 and self.across_devices:
            size = widest(passages.values.shape[1], targets.device)
            mask = passages.mask
            targets = torch.cat([targets + r * len(passages.values) for r in range(processes)])
            queries = gather(queries)
            passages = PassageVectors(
                gather(widen(passages.values, size)),
                None if mask is None else gather(widen(mask, size).to(torch.uint8)).bool(),
            )
            teacher = None if teacher is None else gather(teacher)
        terms = self.objective(queries, passages, targets, teacher)
        if not self.across_devices:
            terms = {name: term / processes for name, term in terms.items()}
        backward(torch.stack(list(terms.values())).sum())
        found = {name: term.detach() for name, term in terms.items()}
        if not self.across_devices:
            found = {name: gather(term.reshape(1)).sum() for name, term in found.items()}
        return found
