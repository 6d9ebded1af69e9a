"""Which of a passage's vectors has the highest inner product with the query: in MLR, which layer.

MLR's equation 2 ("Investigating Multi-layer Representations for Dense Passage Retrieval", Xie and
Lukasiewicz, 2025). The share of a vector is the share of query-passage pairs in which it has the
highest product; among equals the first wins, as in training (in MLR: the last layer).
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denserk.analysis.side_by_side import load_models, passage_batches
from denserk.config.analysis import WinningVectorSettings
from denserk.config.encoding import ComputeSettings, Reduction, Representation
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.data.sampling import choose_records
from denserk.errors import DenserkError, MismatchError, ModelError
from denserk.io.corpus import find_passages
from denserk.io.files import some, write_rows
from denserk.io.plots import new_axes, save_if_installed
from denserk.io.qrels import read_qrels
from denserk.io.runs import read_run
from denserk.io.topics import read_queries
from denserk.models.pooling import PassageVectors
from denserk.models.representation import MultiVector
from denserk.models.text_encoder import NOTHING, TextEncoder
from denserk.records import Passage, Query, best_first

logger = logging.getLogger(__name__)

HEADER = ("label", "model", "passages", "queries", "pairs", "kind", "vector", "wins", "share")
# reductions that keep several vectors apart, at least in training
KEPT_APART = (Reduction.SELF_CONTRASTIVE, Reduction.MULTI_VECTOR)


@dataclass(frozen=True)
class WinningVectors:
    """How often each vector of one model won in query-passage pairs.

    Attributes:
        passages: which ones: `positive` or `retrieved`.
        kind: what a vector stands for: `layer` or `token`.
        wins: vector -> number of pairs that it won; layers ascending.
    """

    label: str
    model: str
    passages: str
    queries: int
    pairs: int
    kind: str
    wins: Mapping[str, int]


def winning_vectors(
    settings: WinningVectorSettings,
    representation: Mapping[str, Any] = NOTHING,
    text: Mapping[str, Any] = NOTHING,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
    corpus: CorpusSettings = DETECTED,
) -> list[WinningVectors]:
    """Count which vector wins, for models on the same pairs; write table and plot.

    Memory grows with the pairs, not with the corpus.

    Raises:
        ModelError: a model gives a passage one vector.
        MismatchError: queries, passages and relevance judgments have nothing in common.
        DenserkError: an embedding is not a number.
    """
    models = load_models(settings, representation, text, compute)
    pairs = choose_pairs(settings, text.get("fields"), corpus)
    found = [each for one in models for each in _measure(*one, pairs)]
    rows = [
        [*map(str, (*list(vars(each).values())[:-1], name, wins)), f"{wins / each.pairs:.6f}"]
        for each in found
        for name, wins in each.wins.items()
    ]
    write_rows(settings.output, [HEADER, *rows])
    save_if_installed(lambda: plot(found), "the shares", settings.picture)
    return found


@dataclass(frozen=True)
class Pairs:
    """Pairs of a query and a passage, in one set or several.

    Attributes:
        queries: the queries drawn.
        passages: all that the pairs need, in the order of the corpus.
        sets: `positive` or `retrieved` -> (N, 2) row of the query and row of the passage.
    """

    queries: Sequence[Query]
    passages: Sequence[Passage]
    sets: Mapping[str, NDArray[np.int64]]


def choose_pairs(
    settings: WinningVectorSettings, fields: Sequence[str] | None, corpus: CorpusSettings
) -> Pairs:
    """Return the pairs that every model is measured on.

    Raises:
        MismatchError: none of the queries has a passage, or the corpus has none of them.
    """
    named: dict[str, dict[str, list[str]]] = {}
    if settings.qrels is not None:
        positive = named.setdefault("positive", {})
        for qrel in read_qrels(settings.qrels):
            if qrel.relevance >= settings.relevance_level:
                positive.setdefault(qrel.qid, []).append(qrel.docid)
    if settings.run is not None:
        retrieved = named.setdefault("retrieved", {})
        for hits in read_run(settings.run):
            ranked = best_first(zip(hits.docids, hits.scores, strict=True))
            retrieved[hits.qid] = [docid for docid, _ in ranked[: settings.depth]]
    where = " and ".join(name for name in (settings.qrels, settings.run) if name)
    asked = (
        query
        for query in read_queries(settings.topics)
        if all(query.qid in docids for docids in named.values())
    )
    queries = choose_records(asked, settings.sample, settings.seed)
    if not queries:
        raise MismatchError(
            f"no query of {settings.topics} has a passage in {where}",
            "are the queries those of another split?",
        )
    wanted = {d for docids in named.values() for query in queries for d in docids[query.qid]}
    passages = find_passages(settings.corpus, wanted, corpus, fields)
    if lacking := wanted - passages.keys():
        logger.warning(
            f"passages that {settings.corpus} does not hold are left out: {len(lacking):,} of "
            f"{len(wanted):,} ({some(sorted(lacking))})"
        )
    row_of = {docid: row for row, docid in enumerate(passages)}
    sets = {}
    for name, docids in named.items():
        rows = [
            (row, row_of[docid])
            for row, query in enumerate(queries)
            for docid in docids[query.qid]
            if docid in row_of
        ]
        if not rows:
            raise MismatchError(
                f"{settings.corpus} holds none of the {name} passages of {where}",
                f"it should hold {some(sorted(wanted))}",
            )
        sets[name] = np.array(rows, dtype=np.int64)
    return Pairs(queries, list(passages.values()), sets)


def share_table(found: Sequence[WinningVectors]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table of shares, one row per vector."""
    header = ["model", "passages", "pairs", "vector", "wins", "share"]
    rows = [
        [
            *(each.label, each.passages, str(each.pairs), f"{each.kind} {name}", str(wins)),
            f"{wins / each.pairs:.4f}",
        ]
        for each in found
        for name, wins in each.wins.items()
    ]
    return header, rows


def plot(found: Sequence[WinningVectors]) -> Any:
    """Draw the shares as bars, one row of bars per model and set of passages."""
    names = {name for each in found for name in each.wins}
    order = sorted(names, key=lambda name: (name.isdecimal(), name.zfill(9)))
    axes = new_axes(min(max(4, 0.42 * len(order) + 0.8), 9), 1.15 * len(found) + 0.5, len(found))
    for row, each in zip(np.atleast_1d(axes), found, strict=True):
        heights = [100 * each.wins.get(name, 0) / each.pairs for name in order]
        bars = row.bar(range(len(order)), heights, width=0.7, color="0.35")
        if len(order) <= 16:
            row.bar_label(bars, [f"{h:.1f}" if h else "" for h in heights], fontsize=7)
        row.set_title(f"{each.label}, {each.passages}: {each.pairs:,} pairs", loc="left")
        row.margins(y=0.18)
        row.yaxis.set_major_formatter("{x:g} %")
    last = np.atleast_1d(axes)[-1]
    step = -(-len(order) // 24)  # at most 24 names below the bars
    last.set_xticks(range(0, len(order), step), order[::step])
    kinds = " or ".join(dict.fromkeys(each.kind for each in found))
    last.set_xlabel(f"{kinds} with the highest product")
    return last


def winners(queries: Tensor, passages: PassageVectors) -> Tensor:
    """Return the number of the winning vector in each of N pairs.

    Args:
        queries: (N, D), the query of each pair.
        passages: (N, S, D), the passage of each pair.

    Returns:
        (N,) int64, from 0 to S - 1; -1 where a product is NaN.

    >>> passage = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]])
    >>> winners(torch.tensor([[1.0, 2.0]]), PassageVectors(passage)).tolist()
    [1]
    """
    scores = torch.einsum("nd,nsd->ns", queries, passages.values)
    if passages.mask is not None:
        scores = scores.masked_fill(~passages.mask, -torch.inf)
    return scores.argmax(1).masked_fill(scores.isnan().any(1), -1)


def vector_names(representation: MultiVector, count: int) -> list[str]:
    """Return names for the S vectors of a passage: layer numbers or token positions."""
    kind = representation.settings.representation
    if kind is Representation.MLR:
        return [str(layer) for layer in representation.layers]
    if kind is Representation.ME_BERT and not representation.by_cls:
        return ["mean", *map(str, range(count - 1))]
    return [str(position) for position in range(count)]


@torch.inference_mode()
def _measure(label: str, model: str, encoder: TextEncoder, pairs: Pairs) -> list[WinningVectors]:
    """Count for one model, for each set of pairs."""
    single = ModelError(
        f"{label} gives a passage one vector: there is no maximum to win",
        "use a model trained with --representation mlr, me-bert or colbert, and --reduction "
        f"{' or '.join(KEPT_APART)}",
    )
    side = encoder.passage_side.encoder
    pooling = side.representation
    if not isinstance(pooling, MultiVector) or encoder.representation.reduction not in KEPT_APART:
        raise single
    queries = torch.from_numpy(encoder.encode_queries(pairs.queries)).to(encoder.device)
    counts = {name: np.zeros(0, dtype=np.int64) for name in pairs.sets}
    row_of = np.full(len(pairs.passages), -1)  # in the batch
    for places, batch in passage_batches(encoder, pairs.passages, label, encoder.batch_tokens):
        vectors = side.passage_vectors(batch)
        size = vectors.values.shape[1]
        if size == 1:
            raise single
        row_of[places] = np.arange(len(places))
        for name, chosen in pairs.sets.items():
            inside = chosen[row_of[chosen[:, 1]] >= 0]
            if not len(inside):
                continue
            rows = torch.from_numpy(row_of[inside[:, 1]]).to(encoder.device)
            won = winners(queries[inside[:, 0]], vectors.of(rows)).cpu().numpy()
            if (won < 0).any():
                raise DenserkError(
                    f"{model}: an embedding is not a number (NaN)", "use --dtype float32"
                )
            more = np.bincount(won, minlength=max(size, len(counts[name])))
            more[: len(counts[name])] += counts[name]
            counts[name] = more
        row_of[places] = -1
    is_layers = pooling.settings.representation is Representation.MLR
    found = []
    for name, wins in counts.items():
        named = list(zip(vector_names(pooling, len(wins)), wins.tolist(), strict=True))
        chosen = pairs.sets[name]
        queries_here, kind = len(np.unique(chosen[:, 0])), "layer" if is_layers else "token"
        ordered = dict(reversed(named) if is_layers else named)
        found.append(WinningVectors(label, model, name, queries_here, len(chosen), kind, ordered))
    return found
