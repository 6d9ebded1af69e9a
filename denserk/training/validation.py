"""Validation while training: held-out data, and its measures by a model.

Axes: Q queries, P passages of the whole set, N passages of a query's group, D dimensions. Scores
are those that retrieval would give: a passage by its stored embeddings, the best one deciding.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from denserk.config import training
from denserk.config.encoding import BATCH_TOKENS
from denserk.config.finetuning import FinetuneRun
from denserk.config.formats import CorpusSettings
from denserk.data.batches import Pair, PairJoiner, TokenBatch, pad, to_device, without_padding
from denserk.data.tokenization import TextTokenizer
from denserk.data.training_batches import TrainingBatches, sentence_batch
from denserk.data.training_data import SentenceStore, TrainingStore
from denserk.errors import InputError
from denserk.evaluation.sentences import score_examples, summarize_examples
from denserk.io.corpus import read_passages
from denserk.io.qrels import read_qrels_map
from denserk.io.topics import read_queries
from denserk.losses.retrieval import sentence_loss
from denserk.models.cross_encoder import Reranker
from denserk.models.representation import Encoder, Retriever
from denserk.models.token_budget import TokenBudget
from denserk.records import Passage, Query

# The hint where there is no memory for a single text.
SHORTEN = "cut texts with --passage-max-length, or validate with denserk search and eval afterwards"
EXAMPLES_AT_ONCE = 64  # of sentences, whose vectors are in memory together
Tokens = Sequence[Any]  # token ids of many texts: lists, or memory-mapped arrays


class DevSet(NamedTuple):
    """Queries, the passages they are searched in, and which of them are relevant."""

    queries: Tokens
    passages: Tokens
    pad_ids: tuple[int, int]  # of queries and of passages
    relevant: Sequence[Sequence[int]]  # rows of each query's relevant passages
    # int64 rows of each query's group, (number of queries, N), its positive first, -1 where it has
    # no passage; None where there are relevance judgments but no groups
    groups: Tensor | None = None


def dev_sets(
    run: FinetuneRun, store: TrainingStore | None, tokenizers: Sequence[TextTokenizer]
) -> list[DevSet]:
    """Return what a run validates on: tokenised held-out training data, then --dev-corpus.

    Groups of held-out data have each query's first positive and its top negatives. Of a collection,
    the tokens of judged queries and of all passages are held in memory.
    """
    sets = []
    if store is not None:
        sets.append(_held_out_set(store, run.sampling))
    validation = run.validation
    if validation.dev_corpus is not None:
        # the settings checked that all three are given
        corpus = str(validation.dev_corpus)
        topics = str(validation.dev_topics)
        qrels = str(validation.dev_qrels)
        query_tokenizer, passage_tokenizer = tokenizers
        judged = _read_judged_queries(topics, qrels, corpus, run.corpus)
        sets.append(
            DevSet(
                queries=query_tokenizer.queries(judged.queries),
                passages=passage_tokenizer.passages(judged.passages),
                pad_ids=(query_tokenizer.pad_id, passage_tokenizer.pad_id),
                relevant=judged.relevant,
            )
        )
    return sets


def _held_out_set(store: TrainingStore, settings: training.SamplingSettings) -> DevSet:
    """Return held-out training data, each query with its first positive and its top negatives."""
    sampling = training.SamplingSettings(
        group_size=settings.group_size,
        positive=training.PositiveChoice.FIRST,
        negative=training.NegativeChoice.TOP,
        seed=settings.seed,
    )
    # the groups of one epoch, so that queries without negatives always get the same random ones
    batches = TrainingBatches(store, sampling, batch_size=1)
    groups, _ = batches.groups(batches.items, epoch=0)
    return DevSet(
        queries=store.queries[:],
        passages=store.passages[:],
        pad_ids=(store.query_pad_id, store.passage_pad_id),
        relevant=[rows.tolist() for rows in store.positives[:]],
        groups=torch.from_numpy(groups),
    )


class _JudgedQueries(NamedTuple):
    """The queries of a collection that have a relevant passage, and all its passages."""

    queries: list[Query]
    passages: list[Passage]  # of the whole collection
    relevant: list[list[int]]  # rows of each query's relevant passages


def _read_judged_queries(
    topics: str, qrels: str, corpus: str, settings: CorpusSettings
) -> _JudgedQueries:
    """Read a collection: its passages, and the queries with relevant ones among them."""
    judgments = read_qrels_map(qrels)
    passages = read_passages(corpus, settings)
    # by descending id, as equal scores are ranked in a run: here they are ranked by row
    ordered_passages = sorted(passages, key=lambda passage: passage.docid, reverse=True)
    row_of = {passage.docid: row for row, passage in enumerate(ordered_passages)}
    queries = []
    relevant = []
    for query in read_queries(topics):
        rows = []
        for docid, grade in judgments.get(query.qid, {}).items():
            if grade > 0 and docid in row_of:
                rows.append(row_of[docid])
        if rows:
            queries.append(query)
            relevant.append(rows)
    if not queries:
        message = f"no relevance judgment that joins a query of {topics} to a passage of {corpus}"
        raise InputError(qrels, None, message, "relevant passages for at least one query")
    return _JudgedQueries(queries, ordered_passages, relevant)


def token_budget() -> TokenBudget:
    """Return the tokens of a batch of a run's validations; they halve where memory lacks."""
    work = "validating with {texts} texts of {tokens} tokens"
    return TokenBudget(BATCH_TOKENS, work, shorten=SHORTEN, option=None)


def encode_tokens(
    encode: Callable[[TokenBatch], Tensor],
    texts: Tokens,
    pad_id: int,
    device: torch.device,
    budget: TokenBudget,
) -> Tensor:
    """Return the float32 embeddings of tokenised texts in their order, as `encode` shapes them.

    For n texts (n, D) of queries and sentences, (n, S, D) of passages with S stored vectors.
    """

    def encode_rows(rows: Sequence[int]) -> Tensor:
        batch = pad([texts[row] for row in rows], pad_id)
        return encode(to_device(batch, device)).float()

    lengths = [len(texts[row]) for row in range(len(texts))]
    encoded_rows: list[int] = []
    vectors = []
    for rows, row_vectors in budget.in_batches(lengths, encode_rows):
        encoded_rows += rows
        vectors.append(row_vectors)
    order = torch.tensor(encoded_rows).argsort()
    return torch.cat(vectors)[order]


def reciprocal_ranks(scores: Tensor, relevant: Sequence[Sequence[int]]) -> list[float]:
    """Return 1 / rank of the first relevant passage among the first ten, else 0, of each query.

    `scores`: (Q, P); `relevant`: rows of passages. Equal scores are ordered by row.
    """
    best_rows = scores.argsort(dim=1, descending=True, stable=True)[:, :10].tolist()
    return [
        _reciprocal_rank(rows, relevant_rows)
        for rows, relevant_rows in zip(best_rows, relevant, strict=True)
    ]


def _reciprocal_rank(rows: Sequence[int], relevant_rows: Sequence[int]) -> float:
    """Return 1 / rank of the first relevant row, or 0.

    >>> _reciprocal_rank([7, 3, 5], [5, 3])
    0.5
    """
    for rank, row in enumerate(rows, start=1):
        if row in relevant_rows:
            return 1 / rank
    return 0.0


def sums_of_measures(
    scores: Tensor, relevant: Sequence[Sequence[int]], groups: Tensor | None, temperature: float = 1
) -> dict[str, float]:
    """Sum `RR@10` over queries, and with groups `dev-loss` and `avg-rank`; see `DevSet`.

    scores: (Q, P), groups: (Q, N). `dev-loss` is that of in-batch negatives: over the passages of
    all groups; `avg-rank`, as DPR counts it, is from 0 and over all P passages.
    """
    sums = {"RR@10": sum(reciprocal_ranks(scores, relevant))}
    if groups is not None:
        # each passage of the batch counts once; -1 may be among the rows
        rows, columns = groups.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        logits = scores[:, rows].masked_fill(rows < 0, -torch.inf) / temperature
        positive_columns = columns[:, 0]
        sums["dev-loss"] = float(F.cross_entropy(logits, positive_columns, reduction="sum"))
        positive_scores = scores.gather(1, groups[:, :1])
        sums["avg-rank"] = int((scores > positive_scores).sum())
    return sums


def _means(sums_of_batches: Sequence[Mapping[str, float]], count: int) -> dict[str, float]:
    """Return the sums of all batches, divided by a number of queries."""
    means = {}
    for name in sums_of_batches[0]:
        means[name] = sum(sums[name] for sums in sums_of_batches) / count
    return means


@torch.no_grad()
def measure(
    model: Retriever, budget: TokenBudget, sets: Sequence[DevSet], batch: int, temperature: float
) -> dict[str, float]:
    """Measure a retriever in evaluation mode on each set; the `RR@10` of the last one stays.

    `batch` is the number of queries of a batch of `dev-loss`, `temperature` the objective's.
    """
    stored_vectors = model.passage.stored_vectors
    device = next(model.parameters()).device
    measured: dict[str, float] = {}
    for dev in sets:
        query_pad_id, passage_pad_id = dev.pad_ids
        queries = encode_tokens(model.query, dev.queries, query_pad_id, device, budget)
        passages = encode_tokens(stored_vectors, dev.passages, passage_pad_id, device, budget)
        sums = []
        for start in range(0, len(queries), batch):
            rows = slice(start, start + batch)
            # (Q, D) by (P, D) for each of a passage's S vectors; the best one decides
            scores_by_vector = [queries[rows] @ vectors.T for vectors in passages.unbind(1)]
            scores = torch.stack(scores_by_vector).amax(0)
            groups = None if dev.groups is None else dev.groups[rows].to(device)
            sums.append(sums_of_measures(scores, dev.relevant[rows], groups, temperature))
        measured |= _means(sums, len(queries))
    return measured


@torch.no_grad()
def measure_groups(
    model: Reranker, joiner: PairJoiner, budget: TokenBudget, sets: Sequence[DevSet]
) -> dict[str, float]:
    """Measure a cross-encoder in evaluation mode within each query's group of held-out data.

    It has no other set: only a group's passages are scored, of which the first is relevant.
    """
    device = next(model.parameters()).device
    [dev] = sets
    assert dev.groups is not None
    sums = []
    for query, rows in zip(dev.queries, dev.groups.tolist(), strict=True):
        pairs = [joiner.join(query, dev.passages[row]) for row in rows if row >= 0]
        scores = _score_pairs(model, joiner, budget, pairs)[None]
        group = torch.arange(len(pairs), device=device)[None]
        sums.append(sums_of_measures(scores, [[0]], group))
    return _means(sums, len(sums))


def _score_pairs(
    model: Reranker, joiner: PairJoiner, budget: TokenBudget, pairs: Sequence[Pair]
) -> Tensor:
    """Return the float32 scores of pairs in their order: (number of pairs,)."""
    device = next(model.parameters()).device

    def score_rows(rows: Sequence[int]) -> Tensor:
        batch = joiner.batch([pairs[row] for row in rows])
        row_scores: Tensor = model(to_device(batch, device)).float()
        return row_scores

    scores = torch.empty(len(pairs), device=device)
    for rows, row_scores in budget.in_batches([len(pair.ids) for pair in pairs], score_rows):
        scores.index_copy_(0, to_device(torch.tensor(rows), device), row_scores)
    return scores


@torch.no_grad()
def measure_sentences(
    encoder: Encoder,
    objective: training.ObjectiveSettings,
    budget: TokenBudget,
    store: SentenceStore,
) -> dict[str, float]:
    """Return the loss and the measure of held-out examples; the encoder is in evaluation mode.

    The measure is Spearman's correlation of pairs, the accuracy of triplets, and, of queries to
    align, the mean cosine to the teacher's vectors.
    """
    device = next(encoder.parameters()).device
    scores = []
    losses = []
    block_starts = range(EXAMPLES_AT_ONCE, len(store), EXAMPLES_AT_ONCE)
    for items in np.split(np.arange(len(store)), block_starts):
        batch = sentence_batch(store, items)
        labels = to_device(batch.labels, device)
        sentences = without_padding(batch.sentences)
        vectors = encode_tokens(encoder, sentences, store.pad_id, device, budget)
        vectors = vectors.view(len(items), store.size, -1)
        losses.append(float(sentence_loss(vectors, labels, objective)) * len(items))
        if labels is not None and store.size == 1:  # scored as a pair with the teacher's vector
            vectors = torch.stack([vectors[:, 0], labels], 1)
        scores.append(score_examples(vectors.cpu().numpy()))
    gold = store.labels if store.size == 2 else None
    name, value = summarize_examples(np.concatenate(scores), gold)
    if store.size == 1:  # the value without labels is a mean
        name = training.DevMetric.COSINE.value
    return {training.DevMetric.LOSS.value: sum(losses) / len(store), name: value}
