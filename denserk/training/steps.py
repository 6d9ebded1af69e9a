"""Training steps: a batch -> gradients, for retrievers, cross-encoders, sentences, pre-training.

Each step adds this process's share of the gradient of the whole batch's loss to the model, and
returns the terms of that loss, detached, equal on every process. Texts pass through the model in
chunks of similar length and return to the batch's own order before they are compared: the loss is
that of one padded batch.

The gradient cache ("Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", Gao
et al., 2021) is torch's activation checkpointing of such chunks: a loss that compares every text
of a batch with every other needs all embeddings at once, but not all activations. The backward pass
runs each chunk again, under the random state of its first run.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from denserk.config.pretraining import LossAverage, PretrainingObjective, PretrainRun
from denserk.config.training import CacheSettings, Distillation, ObjectiveSettings
from denserk.data import batches
from denserk.data.batches import PretrainingBatch, TokenBatch
from denserk.data.planning import ENOUGH, by_length
from denserk.data.training_batches import PairTrainingBatch
from denserk.losses import retrieval
from denserk.losses.pretraining import MaskedLanguageModel
from denserk.models.cross_encoder import Reranker
from denserk.models.distributed import gather, widen, widest, world
from denserk.models.representation import Encoder, PassageVectors, Retriever
from denserk.models.text_encoder import PASSAGE, QUERY, TextEncoder

# A loss by its weighted terms; their sum is the loss.
Terms = dict[str, Tensor]
# What a retrieval step returns beside them, for the log: the share of scores that are masked as
# false negatives; and, before a term's name, what that term is when all scores are equal.
MASKED = "masked"
CHANCE = "chance_"


class Limits(NamedTuple):
    """The most that passes through the model at once: texts, and tokens with their padding."""

    texts: int | None = None
    tokens: int | None = None

    @classmethod
    def of(cls, cache: CacheSettings, texts: int) -> "Limits":
        """Return the limits of a gradient cache: its tokens if given, else that many texts."""
        if not cache.grad_cache:
            return cls()
        if cache.chunk_tokens is not None:
            return cls(tokens=cache.chunk_tokens)
        return cls(texts)


UNLIMITED = Limits()
# Tokens of a chunk that keep a GPU at its full rate: see `ENOUGH`, which is of other devices.
ENOUGH_FOR_A_GPU = 1 << 16


@dataclass
class Update:
    """One update of the weights: how a step runs its passes, and what it passed through the model.

    `backward` backpropagates a loss, scaled as the precision needs; `autocast` opens the region of
    forward passes. `batches` are all whose gradients the update adds up on this process; without
    them, the step's batch is alone.
    """

    backward: Callable[[Tensor], None] = torch.autograd.backward
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    batches: Sequence[Any] = ()
    # what passed through the model so far
    tokens: int = 0
    positions: int = 0  # padding included
    # labelled tokens of all batches and processes by term, once they are counted
    label_counts: "Terms | None" = None

    def all_batches(self, batch: Any) -> Sequence[Any]:
        """Return all batches of the update on this process, of which `batch` is one."""
        if len(self.batches) > 1:
            return self.batches
        return [batch]


# Adds this process's share of a batch's gradient to the model; returns the batch's part of the
# update's loss by its terms. The loss is one mean over all batches of the update and all processes,
# so the parts of its batches add up to it.
Step = Callable[[Any, Update], Terms]


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

    `across_devices`: the passages of other processes are negatives too. The terms come with their
    values at chance and, where false negatives are masked, the share of masked scores.
    """
    queries, passages = encode_retrieval_batch(model, batch, cache, update)
    guide_vectors = None
    if guide is not None and batch.guide_tokens is not None:
        guide_vectors = encode_by_guide(guide, batch)
    texts = ComparedTexts(
        queries=queries,
        passages=passages,
        groups=batch.groups,
        keys=batch.keys,
        teacher=batch.teacher,
        known_positives=batch.known_positives,
        guide_vectors=guide_vectors,
    )
    _, processes = world()
    if processes > 1 and across_devices:
        texts = gather_texts(texts)
    masked = None
    if texts.known_positives is not None:
        masked = objective.false_negatives(
            texts.known_positives, texts.groups, texts.keys, texts.guide_vectors
        )
    # each loss is a mean over queries: of all processes, or of this one without `across_devices`
    divisors = loss_divisors(objective, batch, update, across_devices)
    losses = objective(
        texts.queries, texts.passages, texts.groups, texts.keys, texts.teacher, masked
    )
    terms = {name: loss / divisors.of(name) for name, loss in losses.items()}
    update.backward(total(terms))

    logged = {name: term.detach() for name, term in terms.items()}
    for name, loss in objective.chance(texts.keys, masked).items():
        logged[f"{CHANCE}{name}"] = loss / divisors.contrastive
    if masked is not None:
        logged[MASKED] = masked.float().mean() / divisors.contrastive
    if not across_devices:  # otherwise each process has the values of all
        logged = summed(logged)
    return logged


def encode_retrieval_batch(
    model: Retriever, batch: batches.TrainingBatch, cache: CacheSettings, update: Update
) -> tuple[Tensor, PassageVectors]:
    """Encode queries (B, D) and passages (P, S, D), under the gradient cache if there is one."""
    if cache.grad_cache:
        return encode_chunks(model, batch, cache, update)
    with update.autocast():  # one region around all passes casts weights once
        if model.shared and model.passage.sides_alike:
            return encode_together(model.passage, batch, update)
        query_chunks, query_rows = split_by_length(batch.queries, update)
        passage_chunks, passage_rows = split_by_length(batch.passages, update)
        queries = torch.cat([model.query(texts) for texts in query_chunks])
        passages = join([model.passage.passage_vectors(texts) for texts in passage_chunks])
    return queries[query_rows], passages.of(passage_rows)


def encode_together(
    encoder: Encoder, batch: batches.TrainingBatch, update: Update
) -> tuple[Tensor, PassageVectors]:
    """Encode queries (B, D) and passages (P, 1, D) as texts of one batch.

    For an encoder that treats both sides alike. It runs once instead of twice: a small batch keeps
    a GPU waiting for the kernels of every layer to be launched, however few texts they compute.
    """
    texts = batches.concatenate([batch.queries, batch.passages])
    chunks, rows = split_by_length(texts, update)
    vectors = join([encoder.passage_vectors(chunk) for chunk in chunks]).of(rows)
    query_count = len(batch.queries.input_ids)
    queries = vectors.values[:query_count, 0]
    return queries, PassageVectors(vectors.values[query_count:])


def encode_chunks(
    model: Retriever, batch: batches.TrainingBatch, cache: CacheSettings, update: Update
) -> tuple[Tensor, PassageVectors]:
    """Encode queries (B, D) and passages (P, S, D) by the chunks of the gradient cache.

    Each chunk has its own region of autocast, which the backward pass opens again.
    """

    def encode(encoder: Callable[[TokenBatch], Any], texts: TokenBatch) -> Any:
        with update.autocast():
            return encoder(texts)

    def encode_and_forget(encoder: Callable[[TokenBatch], Any], texts: TokenBatch) -> Any:
        return checkpoint(encode, encoder, texts, use_reentrant=False)

    query_chunks, query_rows = split_by_length(
        batch.queries, update, Limits.of(cache, cache.q_chunk)
    )
    passage_chunks, passage_rows = split_by_length(
        batch.passages, update, Limits.of(cache, cache.p_chunk)
    )
    queries = torch.cat([encode_and_forget(model.query, chunk) for chunk in query_chunks])
    vectors_of = model.passage.passage_vectors
    passages = join([encode_and_forget(vectors_of, chunk) for chunk in passage_chunks])
    return queries[query_rows], passages.of(passage_rows)


def join(chunks: Sequence[PassageVectors]) -> PassageVectors:
    """Concatenate the embeddings of chunks; missing vectors of a passage are masked."""
    vector_count = max(chunk.values.shape[1] for chunk in chunks)
    values = torch.cat([widen(chunk.values, vector_count) for chunk in chunks])
    masks = [widen(chunk.mask, vector_count) for chunk in chunks if chunk.mask is not None]
    if not masks:
        return PassageVectors(values, None)
    return PassageVectors(values, torch.cat(masks))


def encode_by_guide(guide: TextEncoder, batch: batches.TrainingBatch) -> retrieval.Vectors:
    """Return the guide's embeddings of queries (B, G) and passages (P, S, G), without gradients."""
    assert batch.guide_tokens is not None
    device = batch.keys.device
    query_vectors = guide.encode_tokens(QUERY, batch.guide_tokens[QUERY])
    passage_vectors = guide.encode_tokens(PASSAGE, batch.guide_tokens[PASSAGE])
    queries = torch.from_numpy(query_vectors).to(device)
    values = torch.from_numpy(passage_vectors).to(device)
    return queries, PassageVectors(values.view(len(batch.keys), -1, guide.dimension))


class ComparedTexts(NamedTuple):
    """What the retrieval loss compares: the texts of this process, or of all processes.

    As in `batches.TrainingBatch`, with embeddings in place of tokens.
    """

    queries: Tensor  # (B, D)
    passages: PassageVectors  # (P, S, D)
    groups: Tensor  # (B, N), rows of each query's own passages, -1 for a missing one
    keys: Tensor  # (P,), equal for equal passages, -1 for padding
    teacher: Tensor | None  # (B, N)
    known_positives: batches.Positives | None
    guide_vectors: retrieval.Vectors | None


def gather_texts(local: ComparedTexts) -> ComparedTexts:
    """Join the texts of all processes, of which each is padded to the most passages of any.

    The embeddings of other processes are constants: every process computes the whole loss, and the
    gradient that reaches its own texts.
    """
    rank, _ = world()
    passage_count = widest(len(local.keys), local.keys.device)
    first_row = rank * passage_count
    groups = torch.where(local.groups < 0, local.groups, local.groups + first_row)
    teacher = local.teacher
    if teacher is not None:
        teacher = gather(teacher)
    known_positives = local.known_positives
    if known_positives is not None:
        known_positives = gather_positives(known_positives, passage_count)
    guide_vectors = local.guide_vectors
    if guide_vectors is not None:
        guide_queries, guide_passages = guide_vectors
        guide_vectors = gather(guide_queries), gather_passages(guide_passages, passage_count)
    return ComparedTexts(
        queries=gather(local.queries),
        passages=gather_passages(local.passages, passage_count),
        groups=gather(groups),
        keys=gather(widen(local.keys, passage_count, axis=0, value=-1)),
        teacher=teacher,
        known_positives=known_positives,
        guide_vectors=guide_vectors,
    )


def gather_passages(local: PassageVectors, passage_count: int) -> PassageVectors:
    """Join the passages of all processes, each padded to `passage_count` and the most vectors."""
    vector_count = widest(local.values.shape[1], local.values.device)
    values = gather(widen(widen(local.values, vector_count), passage_count, axis=0))
    if local.mask is None:
        return PassageVectors(values, None)
    mask = widen(widen(local.mask, vector_count), passage_count, axis=0)
    return PassageVectors(values, gather(mask.to(torch.uint8)).bool())


def gather_positives(local: batches.Positives, passage_count: int) -> batches.Positives:
    """Join the known positives of all processes, each padded to `passage_count` passages."""
    positive_count = widest(local.positives.shape[1], local.positives.device)
    return batches.Positives(
        positives=gather(widen(local.positives, positive_count, value=-1)),
        passages=gather(widen(local.passages, passage_count, axis=0)),
        queries=gather(local.queries),
    )


class LossDivisors(NamedTuple):
    """By what the terms of a retrieval loss are divided: see `mean_divisor`."""

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
    """Return the divisors of a batch's loss.

    All its terms are means over queries, except MarginMSE, which is one over margins.
    """
    by_queries = mean_divisor(count_items, batch, update, across_devices=across_devices)
    if objective.settings.distillation is not Distillation.MARGIN_MSE:
        return LossDivisors(by_queries, by_queries)
    by_margins = mean_divisor(count_margins, batch, update, across_devices=across_devices)
    return LossDivisors(by_queries, by_margins)


def mean_divisor(
    count: Callable[[Any], int], batch: Any, update: Update, *, across_devices: bool
) -> float:
    """Return by what a batch's mean is divided to be its part of the update's mean.

    It is the number of values of the whole update, by that of the batch. `count` returns the number
    of values of a batch that the mean is over; `across_devices`: the batch's mean is already over
    the values of all processes.
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
    """Return the number of negatives with a teacher's score, whose margins are compared.

    A margin is that of the positive, in column 0, to a negative.
    """
    assert batch.teacher is not None
    return int((batch.teacher[:, 1:] > -torch.inf).sum())


def reranking_step(
    model: Reranker, r_drop: float, cache: CacheSettings, batch: PairTrainingBatch, update: Update
) -> Terms:
    """Train a cross-encoder: listwise over each query's own passages, a mean over queries.

    With a weight `r_drop` (0 for none), "agreement" is that of two passes with other dropout.
    """
    loss = RerankingLoss(model, r_drop, batch, update)
    names = ["listwise", "agreement"] if r_drop else ["listwise"]
    passages_per_query = batch.groups.shape[1]
    width = batch.pairs.tokens.input_ids.shape[1]
    queries_at_once = items_at_once(cache, passages_per_query, width)
    return add_shares(batch, loss, names, update, queries_at_once)


class RerankingLoss:
    """The loss of a cross-encoder on some queries of a batch, a mean over them."""

    def __init__(
        self, model: Reranker, r_drop: float, batch: PairTrainingBatch, update: Update
    ) -> None:
        self.model = model
        self.r_drop = r_drop
        self.batch = batch
        self.update = update
        # query i has the pairs pair_ends[i] .. pair_ends[i + 1] - 1
        self.pair_ends = [0, *(batch.groups.amax(1) + 1).tolist()]

    def __call__(self, start: int, end: int) -> Terms:
        """Return the terms of the queries start .. end - 1."""
        pairs = self.batch.pairs
        first_pair = self.pair_ends[start]
        end_pair = self.pair_ends[end]
        tokens = pairs.tokens.of(slice(first_pair, end_pair))
        chunks = []
        rows_of_chunks = []  # counted from the first pair
        for rows, (chunk_tokens,) in chunks_by_length([tokens], self.update):
            chunks.append(pairs.of(rows + first_pair, chunk_tokens))
            rows_of_chunks.append(rows)
        order = torch.cat(rows_of_chunks).argsort()
        rows_of_queries = self.batch.groups[start:end] - first_pair  # a missing one stays negative
        scores = self._scores(chunks, order, rows_of_queries)
        if not self.r_drop:
            return {"listwise": retrieval.listwise_loss(scores)}
        scores_of_second_dropout = self._scores(chunks, order, rows_of_queries)
        return retrieval.r_drop_loss(scores, scores_of_second_dropout, self.r_drop)

    def _scores(self, chunks: Sequence[batches.PairBatch], order: Tensor, rows: Tensor) -> Tensor:
        """Return the scores (B, N) of each query's passages, minus infinity for a missing one.

        `order` (P,) is the position of each pair among those of the chunks; `rows` (B, N) are the
        pairs of each query, negative for a missing one.
        """
        with self.update.autocast():
            pair_scores = torch.cat([self.model(chunk) for chunk in chunks])[order]
        scores = pair_scores[rows.clamp_min(0)]
        return scores.masked_fill(rows < 0, -torch.inf)


def sentence_step(
    encoder: Encoder,
    objective: ObjectiveSettings,
    cache: CacheSettings,
    batch: batches.SentenceBatch,
    update: Update,
) -> Terms:
    """Train an encoder on pairs or triplets of sentences; the loss is a mean over examples."""
    sentence_count, width = batch.sentences.input_ids.shape
    # a process can have no example of a batch
    sentences_per_example = max(1, sentence_count // max(1, len(batch.items)))
    loss = SentenceLoss(encoder, objective, batch, update, sentences_per_example)
    examples_at_once = items_at_once(cache, sentences_per_example, width)
    return add_shares(batch, loss, [objective.objective.value], update, examples_at_once)


@dataclass
class SentenceLoss:
    """The loss of some examples of a batch, a mean over them."""

    encoder: Encoder
    objective: ObjectiveSettings
    batch: batches.SentenceBatch
    update: Update
    sentences_per_example: int

    def __call__(self, start: int, end: int) -> Terms:
        """Return the loss of the examples start .. end - 1, by its name."""
        labels = self.batch.labels
        if labels is not None:
            labels = labels[start:end]
        rows = slice(start * self.sentences_per_example, end * self.sentences_per_example)
        sentences = self.batch.sentences.of(rows)
        chunks, order = split_by_length(sentences, self.update)
        with self.update.autocast():
            vectors = torch.cat([self.encoder(chunk) for chunk in chunks])[order]
        vectors_by_example = vectors.view(-1, self.sentences_per_example, vectors.shape[1])
        loss = retrieval.sentence_loss(vectors_by_example, labels, self.objective)
        return {self.objective.objective.value: loss}


def items_at_once(cache: CacheSettings, texts_per_item: int, width: int) -> int:
    """Return how many items, each of at most `texts_per_item` texts, a gradient cache lets through.

    As many whole items as `p_chunk` texts make, or `chunk_tokens` in texts of `width` tokens, at
    least one. Without a cache all items.
    """
    if not cache.grad_cache:
        return sys.maxsize
    most_texts = cache.p_chunk
    if cache.chunk_tokens:
        most_texts = cache.chunk_tokens // width
    return max(1, most_texts // texts_per_item)


def add_shares(
    batch: PairTrainingBatch | batches.SentenceBatch,
    loss: Callable[[int, int], Terms],
    names: Sequence[str],
    update: Update,
    item_count_at_once: int,
) -> Terms:
    """Backpropagate a batch's part of a mean over the items of the update; return its terms.

    `loss` returns the mean over the items from one number up to another, as terms with `names`. It
    is called for `item_count_at_once` items at a time, and backpropagated before the next ones: as
    no item is compared with another, no pass is run twice.
    """
    device = batch.items.device
    update_count = over_processes(sum(map(count_items, update.all_batches(batch))), device)
    terms_of_parts = shares(loss, len(batch.items), item_count_at_once, update_count)
    # one dtype on all processes, also where there is no item
    zero = torch.zeros((), dtype=torch.float64, device=device)
    return add_up(terms_of_parts, update, dict.fromkeys(names, zero))


def shares(
    loss: Callable[[int, int], Terms], item_count: int, item_count_at_once: int, update_count: int
) -> Iterator[Terms]:
    """Yield the terms of some items at a time, as parts of the mean over `update_count` items."""
    for start in range(0, item_count, item_count_at_once):
        end = min(start + item_count_at_once, item_count)
        share = (end - start) / update_count
        yield {name: term * share for name, term in loss(start, end).items()}


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
    by_micro_batch = run.objective.loss_average is LossAverage.MICRO_BATCH
    limits = Limits(run.optimizer.cache_chunk_size, run.optimizer.chunk_tokens)
    chunks = []
    rows_of_chunks = []
    for rows, chunk in split_pretraining_batch(batch, update, limits, split=not by_micro_batch):
        chunks.append(chunk)
        rows_of_chunks.append(rows)
    label_counts = None
    if not by_micro_batch:
        label_counts = count_labels(objective, batch, update)
    _, processes = world()
    # of the update, whose batches have as many chunks on every process
    passes = len(chunks) * processes * max(1, len(update.batches))
    forward = ChunkForward(objective, update, run.objective.lm_scale, label_counts, passes)
    if run.pretrain.objective is PretrainingObjective.COCONDENSER:
        order = torch.cat(rows_of_chunks).argsort()
        return contrast_spans(forward, chunks, order, update)
    return add_up((forward(chunk).terms for chunk in chunks), update, {})


def contrast_spans(
    forward: "ChunkForward", chunks: Sequence[PretrainingBatch], order: Tensor, update: Update
) -> Terms:
    """Backpropagate token losses and the contrast of all spans of a batch; return the terms.

    `order` (B,) is the position of each text among those of the chunks.
    """
    # each chunk's activations are computed again in the backward pass
    outputs = [checkpoint(forward, chunk, use_reentrant=False) for chunk in chunks]
    cls = torch.cat([output.cls for output in outputs])[order]
    spans = retrieval.span_contrast_loss(gather(cls))
    sums = {}
    for name in outputs[0].terms:
        sums[name] = torch.stack([output.terms[name] for output in outputs]).sum()
    update.backward(spans + total(sums))
    token_losses = {name: term.detach() for name, term in sums.items()}
    # every process has contrasted the spans of all
    return {**summed(token_losses), "spans": spans.detach()}


class ChunkOutput(NamedTuple):
    """The [CLS] states of a chunk, and its part of the update's token losses."""

    cls: Tensor  # (B, H)
    terms: Terms


@dataclass
class ChunkForward:
    """The forward pass of a pre-training objective on a chunk of a batch.

    Token losses are divided by the update's `label_counts`; without them by the chunk's own count,
    and by the number of `passes` of the update. `scale` is their weight.
    """

    objective: MaskedLanguageModel
    update: Update
    scale: float
    label_counts: Terms | None
    passes: int

    def __call__(self, chunk: PretrainingBatch) -> ChunkOutput:
        """Return the output of a chunk."""
        with self.update.autocast():
            cls, losses = self.objective(chunk)
            divisors = self.label_counts
            if divisors is None:
                chunk_counts = self.objective.counts(chunk)
                divisors = {name: count * self.passes for name, count in chunk_counts.items()}
            terms = {}
            for name, loss in losses.items():
                terms[name] = self.scale * loss / divisors[name].clamp(min=1)
            return ChunkOutput(cls, terms)


def count_labels(objective: MaskedLanguageModel, batch: PretrainingBatch, update: Update) -> Terms:
    """Return the number of labelled tokens of the update's batches and all processes, by term.

    They are counted at the update's first batch.
    """
    if update.label_counts is None:
        sums: Terms = {}
        for batch_of_update in update.all_batches(batch):
            for name, count in objective.counts(batch_of_update).items():
                sums[name] = sums.get(name, 0) + count
        device = batch.texts.labels.device
        counts = {name: count.to(device) for name, count in sums.items()}
        update.label_counts = summed(counts)
    return update.label_counts


def split_pretraining_batch(
    batch: PretrainingBatch, update: Update, limits: Limits = UNLIMITED, *, split: bool = True
) -> Iterator[tuple[Tensor, PretrainingBatch]]:
    """Yield a batch in chunks, each after the rows of its texts; see `chunks_by_length`."""
    inputs = [batch.texts, *batch.passes.values(), *batch.decoders.values()]
    tokens_of_inputs = [texts.tokens for texts in inputs]
    for rows, chunk_tokens in chunks_by_length(tokens_of_inputs, update, limits, split=split):
        chunk_inputs = []
        for texts, tokens in zip(inputs, chunk_tokens, strict=True):
            labels = texts.labels[rows, : tokens.input_ids.shape[1]]
            chunk_inputs.append(batches.MaskedTexts(tokens, labels))
        encoder_texts, *inputs_of_passes_and_decoders = chunk_inputs
        pass_count = len(batch.passes)
        inputs_of_passes = inputs_of_passes_and_decoders[:pass_count]
        inputs_of_decoders = inputs_of_passes_and_decoders[pass_count:]
        passes = dict(zip(batch.passes, inputs_of_passes, strict=True))
        decoders = dict(zip(batch.decoders, inputs_of_decoders, strict=True))
        visible = None
        if batch.visible is not None:
            width = encoder_texts.tokens.input_ids.shape[1]
            visible = batch.visible[rows, :width, :width]
        yield rows, PretrainingBatch(encoder_texts, passes, decoders, visible)


def split_by_length(
    batch: TokenBatch, update: Update, limits: Limits = UNLIMITED
) -> tuple[list[TokenBatch], Tensor]:
    """Split a batch into chunks; return them, and each text's position among them: (B,) int64."""
    rows_of_chunks = []
    chunks = []
    for rows, (tokens,) in chunks_by_length([batch], update, limits):
        rows_of_chunks.append(rows)
        chunks.append(tokens)
    return chunks, torch.cat(rows_of_chunks).argsort()


def chunks_by_length(
    inputs: Sequence[TokenBatch], update: Update, limits: Limits = UNLIMITED, *, split: bool = True
) -> Iterator[tuple[Tensor, list[TokenBatch]]]:
    """Yield chunks of texts of similar length: their rows, and those rows of every input.

    Row i of every input belongs to text i, whose length is that of the first input. The longest
    texts come first; each input of a chunk is as wide as its longest text. Without `split`, chunks
    end at the limits alone, and not also before shorter texts. All are counted in `update`.
    """
    # the one synchronisation with the device
    lengths = torch.stack([tokens.attention_mask.sum(1) for tokens in inputs]).tolist()
    device = inputs[0].input_ids.device
    enough_tokens = sys.maxsize
    if split:
        enough_tokens = ENOUGH.get(device.type, ENOUGH_FOR_A_GPU)
    most_tokens = limits.tokens or sys.maxsize
    for rows in by_length(lengths[0], most_tokens, limits.texts, enough_tokens):
        rows_on_device = batches.to_device(torch.tensor(rows), device)
        chunk_inputs = []
        for tokens, lengths_of_input in zip(inputs, lengths, strict=True):
            chunk_lengths = [lengths_of_input[row] for row in rows]
            width = max(chunk_lengths)
            update.tokens += sum(chunk_lengths)
            update.positions += len(chunk_lengths) * width
            has_padding = min(chunk_lengths) < width
            chunk_inputs.append(tokens.of(rows_on_device, width, has_padding=has_padding))
        yield rows_on_device, chunk_inputs


def add_up(terms_of_parts: Iterable[Terms], update: Update, start: Terms) -> Terms:
    """Backpropagate the terms of parts of a batch one by one; sum them over parts and processes.

    `start` has the terms to which those of the parts are added: zeros, or none.
    """
    totals = dict(start)
    for terms in terms_of_parts:
        update.backward(total(terms))
        for name, term in terms.items():
            totals[name] = totals.get(name, 0) + term.detach()
    return summed(totals)


def total(terms: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of a loss's terms."""
    return torch.stack(list(terms.values())).sum()


def summed(values: Terms) -> Terms:
    """Sum values over the processes."""
    _, processes = world()
    if processes == 1:
        return values
    sums = torch.stack(list(values.values()))
    dist.all_reduce(sums)
    return dict(zip(values, sums, strict=True))


def over_processes(count: int, device: torch.device) -> int:
    """Sum a number over the processes; with one process, nothing is sent to the device."""
    _, processes = world()
    if processes == 1:
        return count
    return int(gather(torch.tensor([count], device=device)).sum())
