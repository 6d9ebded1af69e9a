"""One step of a retriever: direct, or with gradient caching; over one process or several.

Texts pass through the encoders in groups of like length, and their vectors return to the batch's
own order before they are compared: the loss is that of one padded batch.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from denserk.data.batches import TokenBatch, TrainingBatch
from denserk.modeling.encoder import Retriever
from denserk.modeling.multi_vector import MultiVector
from denserk.modeling.pooling import PassageVectors
from denserk.objectives.candidates import find_candidates
from denserk.objectives.retrieval import RetrievalObjective
from denserk.settings.training import CacheSettings
from denserk.training.distributed import gather, widen, widest, world
from denserk.training.gradient_cache import CachedVectors
from denserk.training.length_groups import UNLIMITED, Groups, Limits, Work, group
from denserk.training.step import Autocast, Backward, Terms


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


def stacked(*batches: TokenBatch) -> TokenBatch:
    """Batches as one, as wide as the widest."""
    width = max(batch.input_ids.shape[1] for batch in batches)
    ids, masks = (
        torch.cat([F.pad(batch[side], [0, width - batch[side].shape[1]]) for batch in batches])
        for side in (0, 1)
    )
    return TokenBatch(ids, masks)


class RetrievalStep:
    """Queries and passages -> gradients.

    Args:
        model: both encoders.
        objective: vectors -> loss.
        cache: chunk sizes of gradient caching, and whether it is used.
        across_devices: whether the passages of other processes are negatives too.

    Attributes:
        work: what passed through the encoders so far.
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
        self.work = Work()

    def __call__(self, batch: TrainingBatch, backward: Backward, autocast: Autocast) -> Terms:
        """See `denserk.training.step.Step`."""
        step = self._cached if self.cache.grad_cache else self._direct
        return step(batch, backward, autocast)

    def _group(self, texts: TokenBatch, limits: Limits = UNLIMITED) -> Groups:
        return group(texts, limits, self.work)

    def _direct(self, batch: TrainingBatch, backward: Backward, autocast: Autocast) -> Terms:
        if self._alike:
            return self._in_one(batch, backward, autocast)
        asked, read = self._group(batch.queries), self._group(batch.passages)
        with autocast():  # once, so that weights are cast once
            queries = torch.cat([self.model.encode_queries(part) for part in asked.batches])
            passages = join([self.model.encode_passages(part) for part in read.batches])
        return self._loss(queries[asked.back], passages.of(read.back), batch, backward)

    def _in_one(self, batch: TrainingBatch, backward: Backward, autocast: Autocast) -> Terms:
        """Both sides as texts of one batch: what each pass costs is paid once."""
        texts = self._group(stacked(batch.queries, batch.passages))
        with autocast():
            parts = [self.model.encode_queries(part) for part in texts.batches]
        vectors, count = torch.cat(parts)[texts.back], len(batch.queries.input_ids)
        passages = PassageVectors(vectors[count:].unsqueeze(1))
        return self._loss(vectors[:count], passages, batch, backward)

    @property
    def _alike(self) -> bool:
        """Whether queries and passages are encoded alike."""
        several = isinstance(self.model.passage.representation, MultiVector)
        return self.model.shared and not several

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

        device = batch.groups.device
        asked = self._group(batch.queries, Limits.of(self.cache, self.cache.q_chunk))
        read = self._group(batch.passages, Limits.of(self.cache, self.cache.p_chunk))
        queries = CachedVectors(encode_queries, asked.batches, device)
        passages = CachedVectors(encode_passages, read.batches, device)
        vectors = [PassageVectors(*pair) for pair in zip(passages.parts, masks, strict=True)]
        terms = self._loss(
            torch.cat(queries.parts)[asked.back], join(vectors).of(read.back), batch, backward
        )
        queries.backward()
        passages.backward()
        return terms

    def _loss(
        self, queries: Tensor, passages: PassageVectors, batch: TrainingBatch, backward: Backward
    ) -> Terms:
        groups, keys, teacher = batch.groups, batch.keys, batch.teacher
        rank, processes = world()
        if processes > 1 and self.across_devices:
            values, mask = passages
            count, size = (widest(values.shape[axis], keys.device) for axis in (0, 1))
            groups = gather(torch.where(groups < 0, groups, groups + rank * count))
            keys = gather(widen(keys, count, axis=0, value=-1))
            queries = gather(queries)
            values = gather(widen(widen(values, size), count, axis=0))
            if mask is not None:
                mask = gather(widen(widen(mask, size), count, axis=0).to(torch.uint8)).bool()
            passages = PassageVectors(values, mask)
            teacher = None if teacher is None else gather(teacher)
        terms = self.objective(queries, passages, find_candidates(groups, keys), teacher)
        if not self.across_devices:
            terms = {name: term / processes for name, term in terms.items()}
        backward(torch.stack(list(terms.values())).sum())
        found = {name: term.detach() for name, term in terms.items()}
        if not self.across_devices:
            found = {name: gather(term.reshape(1)).sum() for name, term in found.items()}
        return found
