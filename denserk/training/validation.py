"""Validation while training: held-out data, its measures, and the best of them.

Axes: Q queries of a block, P passages, N passages of a query's group. Scores are those that
retrieval would give: a passage by its stored embeddings, the best one deciding.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from denserk.config import training
from denserk.data.batches import PairJoiner, TokenBatch, by_length, pad, to_device
from denserk.data.tokenization import TextTokenizer
from denserk.data.training_batches import TrainingBatches, assemble
from denserk.data.training_data import SentenceStore, TrainingStore
from denserk.errors import InputError
from denserk.evaluation.sentences import figure_of, score_examples
from denserk.io.corpus import read_passages
from denserk.io.topics import read_qrels_map, read_queries
from denserk.losses.retrieval import sentence_loss
from denserk.models.cross_encoder import Reranker
from denserk.models.representation import Encoder, Retriever

BATCH_TOKENS = 8192
BLOCK = 64  # examples of sentences that are measured at once
Tokens = Sequence[Any]  # token ids of many texts: lists, or memory-mapped arrays


class DevSet(NamedTuple):
    """Queries, the passages they are searched in, and what is relevant."""

    queries: Tokens
    passages: Tokens
    pad_ids: tuple[int, int]  # of queries and of passages
    relevant: Sequence[Sequence[int]]  # rows of each query's relevant passages
    # (queries, N) rows of each query's group, its positive first, negative where it has no passage;
    # None where there are relevance judgments but no groups
    groups: Tensor | None = None


def dev_sets(
    run: training.FinetuneRun, store: TrainingStore | None, tokenizers: Sequence[TextTokenizer]
) -> list[DevSet]:
    """Return what a run validates on: tokenised held-out training data, then --dev-corpus.

    Groups of held-out data have each query's first positive and its top negatives. Of a collection,
    the tokens of judged queries and of all passages are held in memory.
    """
    sets, given = [], run.validation
    if store is not None:
        size, seed = run.sampling.group_size, run.sampling.seed
        choices = training.PositiveChoice.FIRST, training.NegativeChoice.TOP
        sampling = training.SamplingSettings(size, *choices, seed=seed)
        batches = TrainingBatches(store, sampling, 1)
        groups = torch.from_numpy(batches.groups(batches.items, 0)[0])
        relevant = [rows.tolist() for rows in store.positives[:]]
        pad_ids = store.query_pad_id, store.passage_pad_id
        sets = [DevSet(store.queries[:], store.passages[:], pad_ids, relevant, groups)]
    if given.dev_corpus is None:
        return sets
    # the settings checked that all three are given
    corpus, topics, qrels = map(str, (given.dev_corpus, given.dev_topics, given.dev_qrels))
    judged, found = read_qrels_map(qrels), read_passages(corpus, run.corpus)
    # by descending id, as equal scores are ranked
    passages = sorted(found, key=lambda each: each.docid, reverse=True)
    row_of = {passage.docid: row for row, passage in enumerate(passages)}
    queries, relevant = [], []
    for query in read_queries(topics):
        grades = judged.get(query.qid, {})
        if rows := [row_of[docid] for docid in grades if grades[docid] > 0 and docid in row_of]:
            queries.append(query)
            relevant.append(rows)
    if not queries:
        lacking = f"no relevance judgment that joins a query of {topics} to a passage of {corpus}"
        raise InputError(qrels, None, lacking, "relevant passages for at least one query")
    of_queries, of_passages = tokenizers
    tokens = of_queries.queries(queries), of_passages.passages(passages)
    return [*sets, DevSet(*tokens, (of_queries.pad_id, of_passages.pad_id), relevant)]


def encode_tokens(
    encode: Callable[[TokenBatch], Tensor], texts: Tokens, pad_id: int, device: torch.device
) -> Tensor:
    """Return the embeddings of tokenised texts in their order: (N, ...)."""
    members: list[int] = []
    vectors = []
    for rows in by_length([len(texts[row]) for row in range(len(texts))], BATCH_TOKENS):
        batch = pad([texts[row] for row in rows], pad_id)
        vectors.append(encode(to_device(batch, device)).float())
        members += rows
    return torch.cat(vectors)[torch.tensor(members).argsort()]


def reciprocal_ranks(scores: Tensor, relevant: Sequence[Sequence[int]]) -> list[float]:
    """Return 1 / rank of the first relevant passage among the first ten, else 0, of each query.

    Equal scores are ordered by row.
    """
    best = scores.argsort(dim=1, descending=True, stable=True)[:, :10].tolist()
    return [
        next((1 / rank for rank, row in enumerate(rows, start=1) if row in wanted), 0.0)
        for rows, wanted in zip(best, relevant, strict=True)
    ]


def sums_of_measures(
    scores: Tensor, relevant: Sequence[Sequence[int]], groups: Tensor | None, temperature: float = 1
) -> dict[str, float]:
    """Sum `RR@10` over queries, and with groups `dev-loss` and `avg-rank`; see `DevSet`.

    scores: (Q, P), groups: (Q, N).
    """
    found = {"RR@10": sum(reciprocal_ranks(scores, relevant))}
    if groups is not None:
        # each passage of the batch counts once
        rows, places = groups.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        among = scores[:, rows].masked_fill(rows < 0, -torch.inf) / temperature
        found["dev-loss"] = float(F.cross_entropy(among, places[:, 0], reduction="sum"))
        found["avg-rank"] = int((scores > scores.gather(1, groups[:, :1])).sum())  # DPR's rank
    return found


@torch.no_grad()
def measure(
    model: Retriever, sets: Sequence[DevSet], batch: int, temperature: float
) -> dict[str, float]:
    """Measure a retriever in evaluation mode; the last set decides about `RR@10`.

    `batch` is the number of queries of a batch of `dev-loss`, `temperature` the objective's.
    """
    device = next(model.parameters()).device
    measured: dict[str, float] = {}
    for dev in sets:
        queries = encode_tokens(model.query, dev.queries, dev.pad_ids[0], device)
        passages = encode_tokens(model.passage.stored_vectors, dev.passages, dev.pad_ids[1], device)
        parts = []
        for start in range(0, len(queries), batch):
            rows = slice(start, start + batch)
            scores = torch.stack([queries[rows] @ each.T for each in passages.unbind(1)]).amax(0)
            groups = None if dev.groups is None else dev.groups[rows].to(device)
            parts.append(sums_of_measures(scores, dev.relevant[rows], groups, temperature))
        measured |= {n: sum(part[n] for part in parts) / len(queries) for n in parts[0]}
    return measured


@torch.no_grad()
def measure_groups(model: Reranker, joiner: PairJoiner, sets: Sequence[DevSet]) -> dict[str, float]:
    """Measure a cross-encoder in evaluation mode within each query's group of held-out data."""
    device = next(model.parameters()).device
    (dev,) = sets
    assert dev.groups is not None
    parts = []
    for query, rows in zip(dev.queries, dev.groups.tolist(), strict=True):
        pairs = [joiner.join(query, dev.passages[row]) for row in rows if row >= 0]
        scores = model(to_device(joiner.batch(pairs), device))[None]
        group = torch.arange(len(pairs), device=device)[None]
        parts.append(sums_of_measures(scores, [[0]], group))
    return {name: sum(part[name] for part in parts) / len(parts) for name in parts[0]}


@torch.no_grad()
def measure_sentences(
    encoder: Encoder, objective: training.ObjectiveSettings, store: SentenceStore
) -> dict[str, float]:
    """Return the loss and the measure of held-out examples; the model is in evaluation mode."""
    device = next(encoder.parameters()).device
    scores, losses = [], []
    for items in np.split(np.arange(len(store)), range(BLOCK, len(store), BLOCK)):
        batch = to_device(assemble(store, items), device)
        vectors = encoder(batch.sentences).view(len(items), store.size, -1)
        losses.append(float(sentence_loss(vectors, batch.labels, objective)) * len(items))
        if batch.labels is not None and store.size == 1:  # compared with the teacher's
            vectors = torch.stack([vectors[:, 0], batch.labels], 1)
        scores.append(score_examples(vectors.cpu().numpy()))
    labels = store.labels if store.size == 2 else None
    name, value = figure_of(np.concatenate(scores), labels)
    name = training.DevMetric.COSINE.value if store.size == 1 else name
    return {training.DevMetric.LOSS.value: sum(losses) / len(store), name: value}
