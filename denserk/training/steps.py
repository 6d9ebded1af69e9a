"""Training steps: a batch -> gradients, for retrievers, cross-encoders, sentences, pre-training.

Each step adds this process's share of the gradient of the whole batch's loss to the model, and
returns the terms of that loss, detached, equal on every process. Texts pass through the model in
groups of similar length and return to the batch's own order before they are compared: the loss is
that of one padded batch.

The gradient cache ("Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", Gao
et al., 2021) is torch's activation checkpointing of whole chunks: a loss that compares every text
of a batch with every other needs all embeddings at once, but not all activations. The backward pass
runs each chunk again, under the random state of its first run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from denserk.config.training import CacheSettings, ObjectiveSettings, RerankingSettings
from denserk.data.batches import (
    MaskedTexts,
    PairBatch,
    PretrainingBatch,
    SentenceBatch,
    TokenBatch,
    TrainingBatch,
)
from denserk.data.training_batches import PairTrainingBatch
from denserk.losses.pretraining import PretrainingObjective, TokenLoss
from denserk.losses.retrieval import (
    RetrievalObjective,
    find_candidates,
    listwise_loss,
    r_drop_loss,
    sentence_loss,
    span_contrast_loss,
)
from denserk.models.cross_encoder import Reranker
from denserk.models.distributed import gather, widen, widest, world
from denserk.models.representation import Encoder, PassageVectors, Retriever

# The cost of a pass beside its positions, in positions, by device type: gradients of all weights
# that are computed and summed once more, or kernels that are launched.
PRICES = {"cpu": 128}
DEFAULT_PRICE = 8192
# Lengths within a step of this many tokens count as one.
GRAIN = 8
# The price of a chunk where texts are not cut to avoid padding.
ENDLESS = 1 << 60

# A loss by its weighted terms; their sum is the loss.
Terms = dict[str, Tensor]
# Runs the backward pass of a loss, scaled as the precision needs.
Backward = Callable[[Tensor], None]
# Opens the region in which forward passes compute in the run's precision.
Autocast = Callable[[], AbstractContextManager[Any]]


class Limits(NamedTuple):
    """The most that passes through the model at once: texts, and tokens with their padding."""

    texts: int | None = None
    tokens: int | None = None

    @classmethod
    def of(cls, cache: CacheSettings, texts: int) -> "Limits":
        """Return the limits of a gradient cache: its tokens if given, else that many texts."""
        if not cache.grad_cache:
            return cls()
        return cls(texts) if cache.chunk_tokens is None else cls(tokens=cache.chunk_tokens)

    def most(self, width: int) -> int | None:
        """Return how many texts of that width fit; None: any number."""
        by_tokens = None if self.tokens is None else max(1, self.tokens // width)
        return min(filter(None, (self.texts, by_tokens)), default=None)


UNLIMITED = Limits()


@dataclass
class Work:
    """Counts what passed through a model: `tokens` of texts, and `real` ones among `positions`.

    A text that is read again, by a decoder for example, counts in `real` and not in `tokens`.
    """

    tokens: int = 0
    real: int = 0
    positions: int = 0

    def count(self, lengths: Sequence[int], *, again: bool = False) -> None:
        """Count one pass over texts of these lengths, padded to the longest."""
        real = sum(lengths)
        self.tokens += 0 if again else real
        self.real += real
        self.positions += len(lengths) * max(lengths, default=0)


def ends_of_groups(lengths: Sequence[int], price: int, limits: Limits = UNLIMITED) -> list[int]:
    """Return where groups of neighbours end, for the fewest positions plus `price` per group.

    A pass over many texts at once costs less for each of them, and padding costs more. `lengths`
    are those of texts, the longest first; a group beyond the limits is cut evenly.

    >>> ends_of_groups([90, 88, 30, 29, 28], price=32)
    [2, 5]
    >>> ends_of_groups([90, 88, 30, 29, 28], price=4096)
    [5]
    >>> ends_of_groups([30] * 5, price=32, limits=Limits(texts=2))
    [2, 4, 5]
    """
    grains = [-(-length // GRAIN) for length in lengths]
    starts = [n for n in range(len(lengths)) if not n or grains[n] != grains[n - 1]]
    bounds = [*starts, len(lengths)]

    def cost(start: int, end: int) -> int:
        width, count = lengths[start], end - start
        most = limits.most(width) or count
        return count * width + price * -(-count // most)

    best: list[tuple[int, int]] = [(0, 0)]  # up to each bound: the least cost, and the last group
    for end in range(1, len(bounds)):
        best.append(min((best[s][0] + cost(bounds[s], bounds[end]), s) for s in range(end)))
    ends, end = [], len(bounds) - 1
    while end > 0:
        start, last = bounds[best[end][1]], bounds[end]
        most = limits.most(lengths[start]) or last - start
        ends += [last, *reversed(range(start + most, last, most))]
        end = best[end][1]
    return ends[::-1]


class Groups(NamedTuple):
    """A batch in groups of similar length.

    `batches`: no wider than their longest texts. `rows`: of the batch, group after group. `back`:
    (B,) int64, the position of each text of the batch among the groups.
    """

    batches: list[TokenBatch]
    rows: list[Tensor]
    back: Tensor


def group(batch: TokenBatch, work: Work, limits: Limits = UNLIMITED) -> Groups:
    """Split a batch into groups, the longest texts first; count them in `work`."""
    ids, mask = batch
    lengths = mask.sum(1)
    order = torch.arange(len(ids), device=ids.device)
    by_length = lengths.argsort(descending=True, stable=True)
    known = lengths[by_length].tolist()  # the one synchronisation with the device
    ends = ends_of_groups(known, PRICES.get(ids.device.type, DEFAULT_PRICE), limits)
    if len(ends) > 1:  # else nothing is gained by another order
        order = by_length
    batches, rows = [], []
    for start, end in pairwise([0, *ends]):
        rows.append(order[start:end])
        width = max(known[start:end])
        batches.append(TokenBatch(ids[rows[-1], :width], mask[rows[-1], :width]))
        work.count(known[start:end])
    return Groups(batches, rows, order.argsort())


def cut(
    batch: PretrainingBatch, work: Work, limits: Limits = UNLIMITED, *, by_length: bool = True
) -> Iterator[PretrainingBatch]:
    """Yield a batch in chunks, each no wider than its longest text; count them in `work`.

    The texts are ordered by length, as far as that saves padding. Under `by_length` a chunk also
    ends where shorter texts follow, and that saves more than a pass costs.
    """
    parts = [batch.texts, *batch.passes.values(), *batch.decoders.values()]
    # the one synchronisation with the device
    lengths = torch.stack([texts.tokens.attention_mask.sum(1) for texts in parts]).tolist()
    price = PRICES.get(batch.texts.labels.device.type, DEFAULT_PRICE) if by_length else ENDLESS
    for start, end in pairwise([0, *ends_of_groups(lengths[0], price, limits)]):
        found = []
        for number, (texts, own) in enumerate(zip(parts, lengths, strict=True)):
            width = max(own[start:end])
            tokens = TokenBatch(*(field[start:end, :width] for field in texts.tokens))
            found.append(MaskedTexts(tokens, texts.labels[start:end, :width]))
            work.count(own[start:end], again=number > 0)
        first, rest = found[0], iter(found[1:])
        width = first.labels.shape[1]
        yield PretrainingBatch(
            first,
            {name: next(rest) for name in batch.passes},
            {name: next(rest) for name in batch.decoders},
            None if batch.visible is None else batch.visible[start:end, :width, :width],
        )


class Step(Protocol):
    """How one batch becomes gradients; `work` counts what passed through the model."""

    work: Work

    def __call__(self, batch: Any, backward: Backward, autocast: Autocast) -> Terms:
        """Add this process's share of the gradient to the model; return the loss by its terms."""


def total(terms: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of a loss's terms."""
    return torch.stack(list(terms.values())).sum()


def join(parts: Sequence[PassageVectors]) -> PassageVectors:
    """Concatenate the embeddings of chunks; missing vectors of a passage are masked."""
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
    """A step of a retriever: direct, or with the gradient cache.

    `across_devices`: the passages of other processes are negatives too.
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
        """See `Step`."""
        cached = self.cache.grad_cache
        asked = group(batch.queries, self.work, Limits.of(self.cache, self.cache.q_chunk))
        read = group(batch.passages, self.work, Limits.of(self.cache, self.cache.p_chunk))

        def encode(encoder: Callable[[TokenBatch], Any], texts: TokenBatch) -> Any:
            with autocast():
                return encoder(texts)

        run = partial(checkpoint, encode, use_reentrant=False) if cached else encode
        with nullcontext() if cached else autocast():  # outside of chunks, weights are cast once
            queries = torch.cat([run(self.model.query, part) for part in asked.batches])
            passages = join(
                [run(self.model.passage.passage_vectors, part) for part in read.batches]
            )
        return self._loss(queries[asked.back], passages.of(read.back), batch, backward)

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
        backward(total(terms))
        found = {name: term.detach() for name, term in terms.items()}
        return found if self.across_devices else _summed(found)


def add_shares(
    count: int,
    chunk: int,
    loss: Callable[[int, int], Terms],
    names: Sequence[str],
    backward: Backward,
    device: torch.device,
) -> Terms:
    """Backpropagate a mean over the items of all processes, in chunks; return its terms."""
    every = int(gather(torch.tensor([count], device=device)).sum())
    # one dtype on all processes, also where there is no item
    sums = {name: torch.zeros((), dtype=torch.float64, device=device) for name in names}
    for first in range(0, count, chunk):
        end = min(first + chunk, count)
        terms = {name: term * ((end - first) / every) for name, term in loss(first, end).items()}
        backward(total(terms))
        sums = {name: value + terms[name].detach() for name, value in sums.items()}
    return _summed(sums)


def items_at_once(cache: CacheSettings, texts: int, batch: TokenBatch, count: int) -> int:
    """Return how many of `count` items of at most `texts` texts make a chunk."""
    most = Limits.of(cache, cache.p_chunk).most(batch.input_ids.shape[1])
    return max(1, count if most is None else most // texts)


class RerankingStep:
    """A step of a cross-encoder: listwise, whole or in chunks.

    A query is compared with its own passages only, so the loss is a mean over queries, and the
    gradients of chunks of queries and of processes add up to that of the whole batch. With
    `grad_cache`, a chunk holds as many whole groups as `p_chunk` passages, or `chunk_tokens`, make,
    at least one; no pass is run twice.
    """

    def __init__(self, model: Reranker, settings: RerankingSettings, cache: CacheSettings) -> None:
        self.model, self.settings, self.cache, self.work = model, settings, cache, Work()

    def __call__(self, batch: PairTrainingBatch, backward: Backward, autocast: Autocast) -> Terms:
        """See `Step`."""
        count, ends = len(batch.items), (batch.groups.amax(1) + 1).tolist()
        chunk = items_at_once(self.cache, batch.groups.shape[1], batch.pairs.tokens, count)

        def loss(first: int, end: int) -> Terms:
            start = ends[first - 1] if first else 0
            pairs = batch.pairs.part(start, ends[end - 1])
            return self._terms(pairs, batch.groups[first:end] - start, autocast)

        names = ("listwise", "agreement") if self.settings.r_drop else ("listwise",)
        return add_shares(count, chunk, loss, names, backward, batch.items.device)

    def _terms(self, pairs: PairBatch, places: Tensor, autocast: Autocast) -> Terms:
        """Return the loss's terms of a chunk; `places` (B, n): rows of its pairs, or negative."""
        parts = group(pairs.tokens, self.work)
        groups = zip(parts.batches, parts.rows, strict=True)
        batches = [PairBatch(tokens, pairs.types(rows, tokens)) for tokens, rows in groups]

        def scores() -> Tensor:
            with autocast():
                found = torch.cat([self.model(batch) for batch in batches])
            own = found[parts.back][places.clamp_min(0)]
            return own.masked_fill(places < 0, -torch.inf)

        if not self.settings.r_drop:
            return {"listwise": listwise_loss(scores())}
        return r_drop_loss(scores(), scores(), self.settings.r_drop)


class SentenceStep:
    """A step on pairs or triplets of sentences, each one vector; the loss is a mean over examples.

    The cache works as in `RerankingStep`, on whole examples.
    """

    def __init__(
        self, encoder: Encoder, objective: ObjectiveSettings, cache: CacheSettings
    ) -> None:
        self.encoder, self.objective, self.cache, self.work = encoder, objective, cache, Work()

    def __call__(self, batch: SentenceBatch, backward: Backward, autocast: Autocast) -> Terms:
        """See `Step`."""
        count, name = len(batch.items), self.objective.objective.value
        size = max(1, len(batch.sentences.input_ids) // max(1, count))

        def loss(first: int, end: int) -> Terms:
            labels = None if batch.labels is None else batch.labels[first:end]
            texts = TokenBatch(*(side[first * size : end * size] for side in batch.sentences))
            part = group(texts, self.work)
            with autocast():
                vectors = torch.cat([self.encoder(each) for each in part.batches])[part.back]
            examples = vectors.reshape(-1, size, vectors.shape[1])
            return {name: sentence_loss(examples, labels, self.objective)}

        chunk = items_at_once(self.cache, size, batch.sentences, count)
        return add_shares(count, chunk, loss, (name,), backward, batch.items.device)


def _summed(values: Terms) -> Terms:
    """Sum values over the processes."""
    if world()[1] == 1:
        return values
    together = torch.stack(list(values.values()))
    dist.all_reduce(together)
    return dict(zip(values, together, strict=True))


class PretrainingStep:
    """A step of pre-training: in chunks, with or without the contrast of spans.

    Token losses are averaged over all labelled tokens of an update, which are counted before the
    first pass, so that chunks and processes do not change the loss. The contrast of spans needs the
    [CLS] states of the whole batch, and uses the gradient cache ("Unsupervised Corpus Aware
    Language Model Pre-training", Gao and Callan, 2022, section 3.3). Spans are put into chunks by
    length, whatever their documents, and their states return to their places before the loss.

    Under `contrast` texts are pairs of spans, which must find each other (coCondenser). `lm_scale`
    is the weight of the token losses; `by_micro_batch` averages the tokens of each chunk apart, and
    the chunks alike (the released code), instead of all tokens of the update.
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
        """See `Step`."""
        (ids, mask), labels = batch.texts
        order = mask.sum(1).argsort(descending=True, stable=True)
        if self.contrast:
            texts = MaskedTexts(TokenBatch(ids[order], mask[order]), labels[order])
            batch = PretrainingBatch(texts, {}, {})
        chunks = list(cut(batch, self.work, self.limits, by_length=not self.by_micro_batch))
        counts = None if self.by_micro_batch else _summed(self.objective.counts(batch))

        def weigh(name: str, loss: TokenLoss) -> Tensor:
            share = loss.count * len(chunks) * world()[1] if counts is None else counts[name]
            return self.lm_scale * loss.total / share.clamp(min=1)

        def forward(chunk: PretrainingBatch) -> tuple[Tensor, Terms]:
            """Return the [CLS] states of a chunk, and its share of the token losses."""
            with autocast():
                cls, losses = self.objective(chunk)
                return cls, {name: weigh(name, loss) for name, loss in losses.items()}

        if not self.contrast:
            sums: Terms = {}
            for chunk in chunks:
                terms = forward(chunk)[1]
                backward(total(terms))
                sums = {name: sums.get(name, 0) + term.detach() for name, term in terms.items()}
            return _summed(sums)
        # each chunk's activations are computed again in the backward pass
        passed = [checkpoint(forward, chunk, use_reentrant=False) for chunk in chunks]
        cls = torch.cat([states for states, _ in passed])[order.argsort()]
        spans = span_contrast_loss(gather(cls))
        sums = {name: torch.stack([t[name] for _, t in passed]).sum() for name in passed[0][1]}
        backward(spans + total(sums))
        own = {name: term.detach() for name, term in sums.items()}
        return {**_summed(own), "spans": spans.detach()}
