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

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from denserk.config.pretraining import LossAverage, PretrainingObjective, PretrainRun
from denserk.config.training import CacheSettings, Distillation, ObjectiveSettings
from denserk.data import batches
from denserk.data.batches import PretrainingBatch, TokenBatch
from denserk.data.training_batches import PairTrainingBatch
from denserk.losses import retrieval
from denserk.losses.pretraining import MaskedLanguageModel
from denserk.models.cross_encoder import Reranker
from denserk.models.devices import gather, widen, widest, world
from denserk.models.representation import Encoder, PassageVectors, Retriever
from denserk.models.text_encoder import ENOUGH, PASSAGE, QUERY, TextEncoder

# A loss by its weighted terms; their sum is the loss.
Terms = dict[str, Tensor]


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


UNLIMITED = Limits()


@dataclass
class Update:
    """One update of the weights: how a step runs its passes, and what it passed through the model.

    `backward` scales a loss as the precision needs; `autocast` is the region of forward passes.
    `batches` are all whose gradients the update adds up; without them, the step's batch is alone.
    """

    backward: Callable[[Tensor], None] = torch.autograd.backward
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    batches: Sequence[Any] = ()
    tokens: int = 0
    positions: int = 0  # padding included
    # labelled tokens of all batches and processes by term, once they are counted
    label_counts: "Terms | None" = None

    def all_batches(self, batch: Any) -> Sequence[Any]:
        """Return all batches of the update on this process, of which `batch` is one."""
        return self.batches if len(self.batches) > 1 else [batch]


def groups_of(
    parts: Sequence[TokenBatch], update: Update, limits: Limits = UNLIMITED, *, split: bool = True
) -> Iterator[tuple[Tensor, list[TokenBatch]]]:
    """Yield groups of texts of similar length: their rows, and those rows of every part.

    Row i of every part belongs to text i, whose length is that of the first part. The longest texts
    come first; each part of a group is as wide as its longest text. Without `split`, groups end at
    the limits alone. All are counted in `update`.
    """
    # the one synchronisation with the device
    lengths = torch.stack([part.attention_mask.sum(1) for part in parts]).tolist()
    device = parts[0].input_ids.device
    enough = ENOUGH.get(device.type, 1 << 16) if split else sys.maxsize  # tokens
    most = limits.tokens or sys.maxsize
    for members in batches.by_length(lengths[0], most, limits.texts, enough):
        rows = torch.tensor(members, device=device)
        group_parts = []
        for part, part_lengths in zip(parts, lengths, strict=True):
            group_lengths = [part_lengths[row] for row in members]
            width = max(group_lengths)
            update.tokens += sum(group_lengths)
            update.positions += len(group_lengths) * width
            group_parts.append(TokenBatch(*(field[rows, :width] for field in part)))
        yield rows, group_parts


def group(
    batch: TokenBatch, update: Update, limits: Limits = UNLIMITED
) -> tuple[list[TokenBatch], Tensor]:
    """Split a batch into groups; return them, and each text's position among them: (B,) int64."""
    rows, groups = zip(*groups_of([batch], update, limits), strict=True)
    return [tokens for (tokens,) in groups], torch.cat(rows).argsort()


def cut(
    batch: PretrainingBatch, update: Update, limits: Limits = UNLIMITED, *, split: bool = True
) -> Iterator[tuple[Tensor, PretrainingBatch]]:
    """Yield a batch in groups, each with the rows of its texts; see `groups_of`."""
    all_texts = [batch.texts, *batch.passes.values(), *batch.decoders.values()]
    all_tokens = [texts.tokens for texts in all_texts]
    for rows, parts in groups_of(all_tokens, update, limits, split=split):
        group_texts = []
        for texts, tokens in zip(all_texts, parts, strict=True):
            labels = texts.labels[rows, : tokens.input_ids.shape[1]]
            group_texts.append(batches.MaskedTexts(tokens, labels))
        remaining = iter(group_texts)
        first = next(remaining)
        passes = {name: next(remaining) for name in batch.passes}
        decoders = {name: next(remaining) for name in batch.decoders}
        visible = None
        if batch.visible is not None:
            width = parts[0].input_ids.shape[1]
            visible = batch.visible[rows, :width, :width]
        yield rows, PretrainingBatch(first, passes, decoders, visible)


# Adds this process's share of a batch's gradient to the model; returns the batch's part of the
# update's loss by its terms. The loss is one mean over all batches of the update and all processes,
# so the parts of its batches add up to it.
Step = Callable[[Any, Update], Terms]


def total(terms: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of a loss's terms."""
    return torch.stack(list(terms.values())).sum()


def summed(values: Terms) -> Terms:
    """Sum values over the processes."""
    if world()[1] == 1:
        return values
    together = torch.stack(list(values.values()))
    dist.all_reduce(together)
    return dict(zip(values, together, strict=True))


def add_up(parts: Iterable[Terms], update: Update, sums: Terms) -> Terms:
    """Backpropagate the terms of chunks one by one; sum them over chunks and processes."""
    totals = dict(sums)
    for terms in parts:
        update.backward(total(terms))
        for name, term in terms.items():
            totals[name] = totals.get(name, 0) + term.detach()
    return summed(totals)


def over_processes(count: int, device: torch.device) -> int:
    """Sum a number over the processes."""
    return int(gather(torch.tensor([count], device=device)).sum())


def mean_divisor(
    count: Callable[[Any], int], batch: Any, update: Update, *, across_devices: bool
) -> float:
    """Return by what a batch's mean is divided to be its part of the update's mean.

    `count` returns the number of values of a batch that the mean is over; `across_devices`: the
    batch's mean is already over the values of all processes.
    """
    _, processes = world()
    if processes == 1 and len(update.batches) <= 1:
        return 1.0
    batch_count = count(batch)
    update_count = sum(map(count, update.all_batches(batch)))
    if processes > 1:
        device = batch.items.device
        update_count = over_processes(update_count, device)
        if across_devices:
            batch_count = over_processes(batch_count, device)
    if batch_count == 0:
        return math.inf  # a mean of nothing is no part of the update's
    return update_count / batch_count


def count_items(batch: Any) -> int:
    """Return the number of queries or examples of a batch."""
    return len(batch.items)


def count_margins(batch: batches.TrainingBatch) -> int:
    """Return the number of negatives with a teacher's score, whose margins are compared."""
    assert batch.teacher is not None
    return int((batch.teacher[:, 1:] > -torch.inf).sum())


class LossDivisors(NamedTuple):
    """`mean_divisor` of the terms of a retrieval loss."""

    contrastive: float
    distillation: float

    def of(self, term: str) -> float:
        """Return the divisor of a term, by its name."""
        return self.distillation if term.startswith("distillation") else self.contrastive


def loss_divisors(
    objective: retrieval.RetrievalObjective,
    batch: batches.TrainingBatch,
    update: Update,
    across_devices: bool,
) -> LossDivisors:
    """Return the divisors of a batch's loss: MarginMSE is a mean over margins, not over queries."""
    by_queries = mean_divisor(count_items, batch, update, across_devices=across_devices)
    if objective.settings.distillation is not Distillation.MARGIN_MSE:
        return LossDivisors(by_queries, by_queries)
    by_margins = mean_divisor(count_margins, batch, update, across_devices=across_devices)
    return LossDivisors(by_queries, by_margins)


def join(parts: Sequence[PassageVectors]) -> PassageVectors:
    """Concatenate the embeddings of chunks; missing vectors of a passage are masked."""
    size = max(part.values.shape[1] for part in parts)
    values = torch.cat([widen(part.values, size) for part in parts])
    masks = [widen(part.mask, size) for part in parts if part.mask is not None]
    return PassageVectors(values, torch.cat(masks) if masks else None)


class ComparedTexts(NamedTuple):
    """What the retrieval loss compares: the texts of this process, or of all processes."""

    queries: Tensor  # (B, D)
    passages: PassageVectors  # (P, S, D)
    groups: Tensor  # (B, N), rows of the passages
    keys: Tensor  # (P,), negative for padding
    teacher: Tensor | None  # (B, N)
    known: batches.Positives | None
    guide_vectors: retrieval.Vectors | None


def gather_texts(local: ComparedTexts) -> ComparedTexts:
    """Join the texts of all processes, of which each is padded to the most passages of any."""
    rank, _ = world()
    values, mask = local.passages
    device = local.keys.device
    passage_count = widest(values.shape[0], device)
    vector_count = widest(values.shape[1], device)
    groups = gather(
        torch.where(local.groups < 0, local.groups, local.groups + rank * passage_count)
    )
    keys = gather(widen(local.keys, passage_count, axis=0, value=-1))
    queries = gather(local.queries)
    values = gather(widen(widen(values, vector_count), passage_count, axis=0))
    if mask is not None:
        padded_mask = widen(widen(mask, vector_count), passage_count, axis=0)
        mask = gather(padded_mask.to(torch.uint8)).bool()
    teacher = None if local.teacher is None else gather(local.teacher)
    known = local.known
    if known is not None:
        positive_count = widest(known.positives.shape[1], device)
        known = batches.Positives(
            positives=gather(widen(known.positives, positive_count, value=-1)),
            passages=gather(widen(known.passages, passage_count, axis=0)),
            queries=gather(known.queries),
        )
    guide_vectors = local.guide_vectors
    if guide_vectors is not None:
        guide_queries, guide_passages = guide_vectors
        guide_values = gather(widen(guide_passages.values, passage_count, axis=0))
        guide_vectors = gather(guide_queries), PassageVectors(guide_values)
    passages = PassageVectors(values, mask)
    return ComparedTexts(queries, passages, groups, keys, teacher, known, guide_vectors)


def encode_retrieval_batch(
    model: Retriever, batch: batches.TrainingBatch, cache: CacheSettings, update: Update
) -> tuple[Tensor, PassageVectors]:
    """Encode queries (B, D) and passages (P, S, D), in chunks if there is a gradient cache."""
    query_chunks, query_rows = group(batch.queries, update, Limits.of(cache, cache.q_chunk))
    passage_chunks, passage_rows = group(batch.passages, update, Limits.of(cache, cache.p_chunk))

    def encode(encoder: Callable[[TokenBatch], Any], texts: TokenBatch) -> Any:
        with update.autocast():
            return encoder(texts)

    encode_chunk: Callable[..., Any]
    around_chunks: AbstractContextManager[Any]
    if cache.grad_cache:
        encode_chunk = partial(checkpoint, encode, use_reentrant=False)
        around_chunks = nullcontext()
    else:
        encode_chunk = encode
        around_chunks = update.autocast()  # one region around all chunks casts weights once
    with around_chunks:
        queries = torch.cat([encode_chunk(model.query, chunk) for chunk in query_chunks])
        vectors_of = model.passage.passage_vectors
        passages = join([encode_chunk(vectors_of, chunk) for chunk in passage_chunks])
        return queries[query_rows], passages.of(passage_rows)


def encode_by_guide(guide: TextEncoder, batch: batches.TrainingBatch) -> retrieval.Vectors:
    """Return the guide's embeddings of the batch's queries and passages."""
    assert batch.guide is not None
    device = batch.keys.device
    queries = torch.from_numpy(guide.encode_tokens(QUERY, batch.guide[QUERY])).to(device)
    values = torch.from_numpy(guide.encode_tokens(PASSAGE, batch.guide[PASSAGE])).to(device)
    return queries, PassageVectors(values.view(len(batch.keys), -1, guide.dimension))


def retrieval_step(
    model: Retriever,
    objective: retrieval.RetrievalObjective,
    cache: CacheSettings,
    across_devices: bool,
    batch: batches.TrainingBatch,
    update: Update,
    guide: TextEncoder | None = None,
) -> Terms:
    """Train a retriever, directly or with the gradient cache.

    `across_devices`: the passages of other processes are negatives too. Where false negatives are
    masked, "masked" is the share of scores that are. "chance_X" is the loss of a part X whose
    scores are all equal.
    """
    queries, passages = encode_retrieval_batch(model, batch, cache, update)
    guide_vectors = None
    if guide is not None and batch.guide is not None:
        guide_vectors = encode_by_guide(guide, batch)
    texts = ComparedTexts(
        queries, passages, batch.groups, batch.keys, batch.teacher, batch.known, guide_vectors
    )
    _, processes = world()
    if processes > 1 and across_devices:
        texts = gather_texts(texts)
    queries, passages, groups, keys, teacher, known, guide_vectors = texts
    masked = None
    if known is not None:
        masked = objective.false_negatives(known, groups, keys, guide_vectors)
    divisors = loss_divisors(objective, batch, update, across_devices)
    losses = objective(queries, passages, groups, keys, teacher, masked)
    terms = {name: loss / divisors.of(name) for name, loss in losses.items()}
    update.backward(total(terms))

    logged = {name: term.detach() for name, term in terms.items()}
    for name, loss in objective.chance(keys, masked).items():
        logged[f"chance_{name}"] = loss / divisors.contrastive
    if masked is not None:
        logged["masked"] = masked.float().mean() / divisors.contrastive
    return logged if across_devices else summed(logged)


def add_shares(
    batch: PairTrainingBatch | batches.SentenceBatch,
    cache: CacheSettings,
    shape: tuple[int, int],
    loss: Callable[[int, int], Terms],
    names: Sequence[str],
    update: Update,
) -> Terms:
    """Backpropagate a batch's part of a mean over the items of the update; return its terms.

    `loss` returns the mean over some items. Items have at most `shape` = (texts, tokens of a text).
    With `grad_cache`, a chunk holds as many whole items as `p_chunk` texts, or `chunk_tokens`,
    make, at least one; no pass is run twice.
    """
    texts, width = shape
    count = len(batch.items)
    device = batch.items.device
    chunk_size = count
    if cache.grad_cache:
        chunk_texts = cache.chunk_tokens // width if cache.chunk_tokens else cache.p_chunk
        chunk_size = chunk_texts // texts
    chunk_size = max(1, chunk_size)
    update_count = over_processes(sum(map(count_items, update.all_batches(batch))), device)

    def shares() -> Iterator[Terms]:
        for first in range(0, count, chunk_size):
            end = min(first + chunk_size, count)
            share = (end - first) / update_count
            yield {name: term * share for name, term in loss(first, end).items()}

    # one dtype on all processes, also where there is no item
    zero = torch.zeros((), dtype=torch.float64, device=device)
    return add_up(shares(), update, dict.fromkeys(names, zero))


def reranking_step(
    model: Reranker, r_drop: float, cache: CacheSettings, batch: PairTrainingBatch, update: Update
) -> Terms:
    """Train a cross-encoder: listwise over each query's own passages, a mean over queries."""
    ends = [0, *(batch.groups.amax(1) + 1).tolist()]

    def loss(first: int, end: int) -> Terms:
        start = ends[first]
        pairs = slice(start, ends[end])
        rows_of_queries = batch.groups[first:end] - start  # negative where a passage is missing
        tokens = TokenBatch(*(field[pairs] for field in batch.pairs.tokens))
        groups = list(groups_of([tokens], update))
        chunks = [batch.pairs.of(rows + start, tokens) for rows, (tokens,) in groups]
        order = torch.cat([rows for rows, _ in groups]).argsort()

        def scores() -> Tensor:
            with update.autocast():
                pair_scores = torch.cat([model(chunk) for chunk in chunks])[order]
            by_query = pair_scores[rows_of_queries.clamp_min(0)]
            return by_query.masked_fill(rows_of_queries < 0, -torch.inf)

        if not r_drop:
            return {"listwise": retrieval.listwise_loss(scores())}
        return retrieval.r_drop_loss(scores(), scores(), r_drop)

    names = ("listwise", "agreement") if r_drop else ("listwise",)
    shape = batch.groups.shape[1], batch.pairs.tokens.input_ids.shape[1]
    return add_shares(batch, cache, shape, loss, names, update)


def sentence_step(
    encoder: Encoder,
    objective: ObjectiveSettings,
    cache: CacheSettings,
    batch: batches.SentenceBatch,
    update: Update,
) -> Terms:
    """Train an encoder on pairs or triplets of sentences; the loss is a mean over examples."""
    name = objective.objective.value
    texts, width = batch.sentences.input_ids.shape
    size = max(1, texts // max(1, len(batch.items)))

    def loss(first: int, end: int) -> Terms:
        labels = None if batch.labels is None else batch.labels[first:end]
        sentences = TokenBatch(*(field[first * size : end * size] for field in batch.sentences))
        chunks, order = group(sentences, update)
        with update.autocast():
            vectors = torch.cat([encoder(chunk) for chunk in chunks])[order]
        grouped = vectors.view(-1, size, vectors.shape[1])
        return {name: retrieval.sentence_loss(grouped, labels, objective)}

    return add_shares(batch, cache, (size, width), loss, (name,), update)


def count_labels(objective: MaskedLanguageModel, batch: PretrainingBatch, update: Update) -> Terms:
    """Count the labelled tokens of the update's batches and all processes, by term."""
    if update.label_counts is None:
        device = batch.texts.labels.device
        counts = [objective.counts(part) for part in update.all_batches(batch)]
        sums = {}
        for name in counts[0]:
            sums[name] = torch.stack([of_batch[name] for of_batch in counts]).sum().to(device)
        update.label_counts = summed(sums)
    return update.label_counts


def pretraining_step(
    objective: MaskedLanguageModel, run: PretrainRun, batch: PretrainingBatch, update: Update
) -> Terms:
    """Train a pre-training objective in chunks, with or without the contrast of spans.

    Token losses are averaged over all labelled tokens of an update, which are counted before the
    first pass, so that chunks, accumulated batches and processes do not change the loss; --set
    loss-average=micro-batch averages the tokens of each chunk, then the chunks (the released code).

    For coCondenser texts are pairs of spans, which must find each other. That needs the [CLS]
    states of the whole batch, and uses the gradient cache (Gao and Callan, 2022, 3.3).
    """
    limits = Limits(run.optimizer.cache_chunk_size, run.optimizer.chunk_tokens)
    by_micro_batch = run.objective.loss_average is LossAverage.MICRO_BATCH
    rows, chunks = zip(*cut(batch, update, limits, split=not by_micro_batch), strict=True)
    counts: Terms = {}
    if not by_micro_batch:
        counts = count_labels(objective, batch, update)
    passes = len(chunks) * world()[1] * max(1, len(update.batches))
    scale = run.objective.lm_scale

    def forward(chunk: PretrainingBatch) -> tuple[Tensor, Terms]:
        """Return the [CLS] states of a chunk, and its share of the token losses."""
        with update.autocast():
            cls, losses = objective(chunk)
            divisors = counts
            if by_micro_batch:
                chunk_counts = objective.counts(chunk)
                divisors = {name: count * passes for name, count in chunk_counts.items()}
            shares = {}
            for name, loss in losses.items():
                shares[name] = scale * loss / divisors[name].clamp(min=1)
            return cls, shares

    if run.pretrain.objective is not PretrainingObjective.COCONDENSER:
        return add_up((forward(chunk)[1] for chunk in chunks), update, {})
    # each chunk's activations are computed again in the backward pass
    outputs = [checkpoint(forward, chunk, use_reentrant=False) for chunk in chunks]
    cls = torch.cat([states for states, _ in outputs])[torch.cat(rows).argsort()]
    spans = retrieval.span_contrast_loss(gather(cls))
    _, first_shares = outputs[0]
    sums = {}
    for name in first_shares:
        sums[name] = torch.stack([shares[name] for _, shares in outputs]).sum()
    update.backward(spans + total(sums))
    token_losses = {name: term.detach() for name, term in sums.items()}
    return {**summed(token_losses), "spans": spans.detach()}
