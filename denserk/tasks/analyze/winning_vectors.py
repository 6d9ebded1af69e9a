"""`denserk analyze layers`: which vector of a passage scores best.

A passage's vector wins where it has the highest inner product with the query: equation 2 of
"Investigating Multi-layer Representations for Dense Passage Retrieval" (Xie and Lukasiewicz, 2025).
Its share is that of the query-passage pairs in which it wins; among equals the first wins, as in
training (in MLR: the last layer).
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denserk.config import analysis, encoding
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.data.sampling import choose_records
from denserk.errors import DenserkError, MismatchError, ModelError
from denserk.io.corpus import find_records, read_passages
from denserk.io.qrels import grades_by_query, read_qrels
from denserk.io.runs import read_run
from denserk.io.short_texts import first_names
from denserk.io.topics import read_queries
from denserk.models.representation import MultiVector, PassageVectors
from denserk.models.text_encoder import TextEncoder, load_models
from denserk.plots import draw_lines, new_axes
from denserk.records import Passage, Query, best_first
from denserk.reporting import track
from denserk.tasks.analyze.results import Row, save

logger = logging.getLogger(__name__)

# reductions that keep several vectors apart, at least in training
KEPT_APART = (encoding.Reduction.SELF_CONTRASTIVE, encoding.Reduction.MULTI_VECTOR)
DocidsByQuery = Mapping[str, Sequence[str]]


class Pairs(NamedTuple):
    """Queries with passages, by row; sets of pairs are called `positive` and `retrieved`."""

    queries: Sequence[Query]
    passages: Sequence[Passage]
    sets: Mapping[str, NDArray[np.int64]]  # (N, 2) rows of a query and a passage


def winning_vectors(
    settings: analysis.WinningVectorSettings,
    options: encoding.ModelOptions = encoding.DEFAULTS,
    corpus: CorpusSettings = DETECTED,
) -> list[Row]:
    """Count which vector wins, for models on the same pairs; write table and plot.

    A row is a layer or token: in how many pairs its vector won. Memory grows with the pairs, not
    with the corpus. A model must give a passage several vectors.
    """
    models = load_models(settings.labelled, options)
    pairs = choose_pairs(settings, options.text.get("fields"), corpus)
    rows: list[Row] = []
    for label, model, encoder in models:
        rows += _count_wins(label, model, encoder, pairs)
    save(rows, lambda: _draw(rows), settings)
    return rows


def _draw(rows: Sequence[Row]) -> Any:
    """Draw a line of shares for each model and set of pairs."""
    vectors = list(dict.fromkeys(row["vector"] for row in rows))
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        title = f"{row['label']}, {row['passages']}: {row['pairs']:,} pairs"
        lines.setdefault(title, []).append((vectors.index(row["vector"]), 100 * row["share"]))
    axes = new_axes(7, max(3.2, 0.2 * len(lines)))
    draw_lines(axes, lines)
    step = math.ceil(len(vectors) / 24)  # at most 24 names below the axis
    axes.set_xticks(range(0, len(vectors), step), vectors[::step])
    kinds = " or ".join(dict.fromkeys(row["kind"] for row in rows))
    axes.set(xlabel=f"{kinds} with the highest product", ylabel="% of the pairs")
    return axes


def choose_pairs(
    settings: analysis.WinningVectorSettings, fields: Sequence[str] | None, corpus: CorpusSettings
) -> Pairs:
    """Return a sample of the queries with their relevant and their retrieved passages."""
    docids_of_sets = _docids_of_sets(settings)
    queries = choose_records(
        _queries_in_all(settings.topics, docids_of_sets.values()), settings.sample, settings.seed
    )
    needed_docids: set[str] = set()
    for docids_by_query in docids_of_sets.values():
        for query in queries:
            needed_docids.update(docids_by_query[query.qid])
    source = read_passages(settings.corpus, corpus, fields)
    passages = find_records(source, needed_docids, settings.corpus)
    row_by_docid = {docid: row for row, docid in enumerate(passages)}
    sets = {}
    for name, docids_by_query in docids_of_sets.items():
        rows = _pair_rows(queries, docids_by_query, row_by_docid)
        if not rows:
            message = f"no query of {settings.topics} has a {name} passage in {settings.corpus}"
            raise MismatchError(message, "are they of the same collection and split?")
        sets[name] = np.array(rows, dtype=np.int64)
    absent_docids = needed_docids - passages.keys()
    if absent_docids:
        logger.warning(
            f"passages that {settings.corpus} does not hold are left out: {len(absent_docids):,} "
            f"of {len(needed_docids):,} ({first_names(sorted(absent_docids))})"
        )
    return Pairs(queries, list(passages.values()), sets)


def _docids_of_sets(settings: analysis.WinningVectorSettings) -> dict[str, DocidsByQuery]:
    """Return the relevant passages of the qrels and the best ones of the run, by query."""
    docids_of_sets: dict[str, DocidsByQuery] = {}
    if settings.qrels is not None:
        level = settings.relevance_level
        qrels = (qrel for qrel in read_qrels(settings.qrels) if qrel.relevance >= level)
        grades = grades_by_query(qrels)
        docids_of_sets["positive"] = {qid: list(of_query) for qid, of_query in grades.items()}
    if settings.run is not None:
        retrieved = {}
        for hits in read_run(settings.run):
            ranked = best_first(zip(hits.docids, hits.scores, strict=True))
            retrieved[hits.qid] = [docid for docid, _ in ranked[: settings.depth]]
        docids_of_sets["retrieved"] = retrieved
    return docids_of_sets


def _queries_in_all(topics: str, sets: Iterable[DocidsByQuery]) -> Iterator[Query]:
    """Yield the queries that have passages in each set."""
    sets = list(sets)
    for query in read_queries(topics):
        if all(query.qid in docids_by_query for docids_by_query in sets):
            yield query


def _pair_rows(
    queries: Sequence[Query], docids_by_query: DocidsByQuery, row_by_docid: Mapping[str, int]
) -> list[tuple[int, int]]:
    """Return the rows of queries and of those of their passages that are there."""
    pairs = []
    for query_row, query in enumerate(queries):
        for docid in docids_by_query[query.qid]:
            if docid in row_by_docid:
                pairs.append((query_row, row_by_docid[docid]))
    return pairs


def winners(queries: Tensor, passages: PassageVectors) -> Tensor:
    """Return the winning vector of N pairs, (N, D), (N, S, D) -> (N,); -1 where a product is NaN.

    >>> passage = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]])
    >>> winners(torch.tensor([[1.0, 2.0]]), PassageVectors(passage)).tolist()
    [1]
    """
    scores = torch.einsum("nd,nsd->ns", queries, passages.values)
    if passages.mask is not None:
        scores = scores.masked_fill(~passages.mask, -torch.inf)
    return scores.argmax(1).masked_fill(scores.isnan().any(1), -1)


@torch.inference_mode()
def _count_wins(label: str, model: str, encoder: TextEncoder, pairs: Pairs) -> list[Row]:
    """Return the rows of one model: for each set of pairs, the wins of each vector."""
    winners_of_sets, vector_count = _winners_of_sets(label, encoder, pairs)
    if any((winners_of_set < 0).any() for winners_of_set in winners_of_sets.values()):
        raise DenserkError(f"{model}: an embedding is not a number (NaN)", "use --dtype float32")
    pooling = encoder.sides["passage"].encoder.representation
    assert isinstance(pooling, MultiVector)
    is_mlr = pooling.settings.representation is encoding.Representation.MLR
    names = _vector_names(pooling, vector_count)
    rows: list[Row] = []
    for set_name, winners_of_set in winners_of_sets.items():
        wins_of_vectors = np.bincount(winners_of_set, minlength=vector_count)
        wins_by_name = dict(zip(names, wins_of_vectors, strict=True))
        ordered_names = names[::-1] if is_mlr else names  # layers ascending
        for name in ordered_names:
            wins = int(wins_by_name[name])
            rows.append(
                {
                    "label": label,
                    "model": model,
                    "passages": set_name,
                    "queries": len(np.unique(pairs.sets[set_name][:, 0])),
                    "pairs": len(winners_of_set),
                    "kind": "layer" if is_mlr else "token",
                    "vector": name,
                    "wins": wins,
                    "share": wins / len(winners_of_set),
                }
            )
    return rows


def _vector_names(pooling: MultiVector, count: int) -> list[str]:
    """Return what a passage's vectors are called: layers, or positions, ME-BERT's mean first."""
    if pooling.settings.representation is encoding.Representation.MLR:
        return [str(layer) for layer in pooling.layers]
    is_me_bert = pooling.settings.representation is encoding.Representation.ME_BERT
    if is_me_bert and not pooling.by_cls:
        return ["mean", *map(str, range(count - 1))]
    return [str(position) for position in range(count)]


def _winners_of_sets(
    label: str, encoder: TextEncoder, pairs: Pairs
) -> tuple[dict[str, NDArray[np.int64]], int]:
    """Return the winning vector of each pair, by set, and the most vectors of a passage.

    Passages are encoded in batches, and compared as soon as they are: a pair is of the batch that
    its passage is in.
    """
    side = encoder.sides["passage"].encoder
    is_multi_vector = isinstance(side.representation, MultiVector)
    if not is_multi_vector or encoder.representation.reduction not in KEPT_APART:
        raise _single_vector_error(label)
    queries = torch.from_numpy(encoder.encode_queries(pairs.queries)).to(encoder.device)
    winners_of_sets = {}
    for name, pair_rows in pairs.sets.items():
        winners_of_sets[name] = np.empty(len(pair_rows), dtype=np.int64)
    row_in_batch = np.full(len(pairs.passages), -1)  # of each passage; -1 in other batches
    vector_count = 0
    planned = encoder.plan("passage", pairs.passages)
    with track(f"reading with {label}", planned.count, "passages") as progress:
        for rows, batch_vectors in encoder.in_batches(planned, side.passage_vectors):
            passages_of_batch = rows.numpy()
            vectors_of_batch = batch_vectors.values.shape[1]
            if vectors_of_batch == 1:
                raise _single_vector_error(label)
            vector_count = max(vector_count, vectors_of_batch)
            row_in_batch[passages_of_batch] = np.arange(len(passages_of_batch))
            for name, pair_rows in pairs.sets.items():
                query_rows, passage_rows = pair_rows.T
                batch_rows = row_in_batch[passage_rows]
                in_batch = batch_rows >= 0
                rows_of_pairs = torch.from_numpy(batch_rows[in_batch]).to(encoder.device)
                query_vectors = queries[query_rows[in_batch]]
                winning = winners(query_vectors, batch_vectors.of(rows_of_pairs))
                winners_of_sets[name][in_batch] = winning.cpu().numpy()
            row_in_batch[passages_of_batch] = -1
            progress.advance(len(passages_of_batch))
    return winners_of_sets, vector_count


def _single_vector_error(label: str) -> ModelError:
    """Return the error of a model whose passages have one vector."""
    reductions = " or ".join(KEPT_APART)
    return ModelError(
        f"{label} gives a passage one vector: there is no maximum to win",
        "use a model trained with --representation mlr, me-bert or colbert, and --reduction "
        f"{reductions}",
    )
