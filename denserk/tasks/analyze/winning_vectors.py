"""`denserk analyze layers`: which vector of a passage scores best.

A passage's vector wins where it has the highest inner product with the query: equation 2 of
"Investigating Multi-layer Representations for Dense Passage Retrieval" (Xie and Lukasiewicz, 2025).
Its share is that of the query-passage pairs in which it wins; among equals the first wins, as in
training (in MLR: the last layer).
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denserk.config import analysis, encoding
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.data.batches import to_device
from denserk.data.sampling import choose_records
from denserk.errors import DenserkError, MismatchError, ModelError
from denserk.io.corpus import find_records, read_passages
from denserk.io.files import some
from denserk.io.runs import read_run
from denserk.io.topics import grades_by_query, read_qrels, read_queries
from denserk.models.representation import MultiVector, PassageVectors
from denserk.models.text_encoder import TextEncoder, load_models
from denserk.plots import draw_lines, new_axes
from denserk.records import Passage, Query, best_first
from denserk.reporting import track
from denserk.tasks.analyze.results import Row, save

logger = logging.getLogger(__name__)

Pairs = tuple[Sequence[Query], Sequence[Passage], Mapping[str, NDArray[np.int64]]]

# reductions that keep several vectors apart, at least in training
KEPT_APART = (encoding.Reduction.SELF_CONTRASTIVE, encoding.Reduction.MULTI_VECTOR)


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
    found = [row for one in models for row in _count_wins(*one, pairs)]

    def draw() -> Any:
        order = list(dict.fromkeys(row["vector"] for row in found))
        lines: dict[str, list[tuple[float, float]]] = {}  # for each model and set of passages
        for row in found:
            title = f"{row['label']}, {row['passages']}: {row['pairs']:,} pairs"
            lines.setdefault(title, []).append((order.index(row["vector"]), 100 * row["share"]))
        axes = new_axes(7, max(3.2, 0.2 * len(lines)))
        draw_lines(axes, lines)
        step = -(-len(order) // 24)  # at most 24 names below the axis
        axes.set_xticks(range(0, len(order), step), order[::step])
        kinds = " or ".join(dict.fromkeys(row["kind"] for row in found))
        axes.set(xlabel=f"{kinds} with the highest product", ylabel="% of the pairs")
        return axes

    save(found, draw, settings)
    return found


def choose_pairs(
    settings: analysis.WinningVectorSettings, fields: Sequence[str] | None, corpus: CorpusSettings
) -> Pairs:
    """Return queries, passages, and the rows of `positive` and `retrieved` pairs: (N, 2)."""
    named: dict[str, dict[str, list[str]]] = {}
    if settings.qrels is not None:
        level = settings.relevance_level
        relevant = grades_by_query(q for q in read_qrels(settings.qrels) if q.relevance >= level)
        named["positive"] = {qid: list(grades) for qid, grades in relevant.items()}
    if settings.run is not None:
        retrieved = named.setdefault("retrieved", {})
        for hits in read_run(settings.run):
            ranked = best_first(zip(hits.docids, hits.scores, strict=True))
            retrieved[hits.qid] = [docid for docid, _ in ranked[: settings.depth]]
    asked = (q for q in read_queries(settings.topics) if all(q.qid in of for of in named.values()))
    queries = choose_records(asked, settings.sample, settings.seed)
    wanted = {d for docids in named.values() for query in queries for d in docids[query.qid]}
    source = read_passages(settings.corpus, corpus, fields)
    passages = find_records(source, wanted, settings.corpus)
    row_of = {docid: row for row, docid in enumerate(passages)}
    sets = {}
    for name, docids in named.items():
        pairs = [(row, d) for row, query in enumerate(queries) for d in docids[query.qid]]
        rows = [(row, row_of[docid]) for row, docid in pairs if docid in row_of]
        if not rows:
            said = f"no query of {settings.topics} has a {name} passage in {settings.corpus}"
            raise MismatchError(said, "are they of the same collection and split?")
        sets[name] = np.array(rows, dtype=np.int64)
    if lacking := wanted - passages.keys():
        which = f"{len(lacking):,} of {len(wanted):,} ({some(sorted(lacking))})"
        logger.warning(f"passages that {settings.corpus} does not hold are left out: {which}")
    return queries, list(passages.values()), sets


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
    """Count for one model, for each set of pairs."""
    apart = f"--representation mlr, me-bert or colbert, and --reduction {' or '.join(KEPT_APART)}"
    said = f"{label} gives a passage one vector: there is no maximum to win"
    single = ModelError(said, f"use a model trained with {apart}")
    side = encoder.sides["passage"].encoder
    pooling = side.representation
    if not isinstance(pooling, MultiVector) or encoder.representation.reduction not in KEPT_APART:
        raise single
    asking, passages, sets = pairs
    queries = torch.from_numpy(encoder.encode_queries(asking)).to(encoder.device)
    won = {name: np.empty(len(chosen), dtype=np.int64) for name, chosen in sets.items()}
    row_of = np.full(len(passages), -1)  # in the batch
    planned, longest = encoder.plan("passage", passages), 0
    with track(f"reading with {label}", planned.count, "passages") as progress:
        for members, batch in zip(planned.members, planned.batches, strict=True):
            places = members.numpy()
            vectors = side.passage_vectors(to_device(batch, encoder.device))
            if vectors.values.shape[1] == 1:
                raise single
            longest = max(longest, vectors.values.shape[1])
            row_of[places] = np.arange(len(places))
            for name, chosen in sets.items():
                inside = row_of[chosen[:, 1]] >= 0
                rows = torch.from_numpy(row_of[chosen[inside, 1]]).to(encoder.device)
                asked = queries[chosen[inside, 0]]
                won[name][inside] = winners(asked, vectors.of(rows)).cpu().numpy()
            row_of[places] = -1
            progress.advance(len(places))
    if any((each < 0).any() for each in won.values()):
        raise DenserkError(f"{model}: an embedding is not a number (NaN)", "use --dtype float32")
    shape, kind = pooling.settings.representation, "token"
    first = ["mean"] if shape is encoding.Representation.ME_BERT and not pooling.by_cls else []
    names = [*first, *map(str, range(longest - len(first)))]
    if shape is encoding.Representation.MLR:
        kind, names = "layer", list(map(str, pooling.layers))
    found = []
    for name, each in won.items():
        counted = len(np.unique(sets[name][:, 0]))
        row = {"label": label, "model": model, "passages": name, "queries": counted}
        row |= {"pairs": len(each), "kind": kind}
        counts = zip(names, np.bincount(each, minlength=longest).tolist(), strict=True)
        ordered = reversed(list(counts)) if kind == "layer" else counts  # layers ascending
        found += [row | {"vector": v, "wins": n, "share": n / len(each)} for v, n in ordered]
    return found
