"""Queries with their positives, or with the best of a run -> pairs to look into a model with."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from denserk.data.sampling import choose_records
from denserk.errors import MismatchError
from denserk.formats.runs import read_run
from denserk.formats.sources import read_passages, read_qrels, read_queries
from denserk.records import Passage, Query, best_first
from denserk.reporting import track
from denserk.settings.analysis import WinningVectorSettings
from denserk.settings.formats import CorpusSettings

logger = logging.getLogger(__name__)

NAMED = 3
"""Ids of a fault that are named."""

Docids = dict[str, list[str]]
"""Query id -> the passages that are looked at."""


@dataclass(frozen=True)
class Pairs:
    """Pairs of a query and a passage, in one set or several.

    Attributes:
        queries: the queries drawn.
        passages: all that the pairs need, in the order of the corpus.
        sets: `positive` or `retrieved` -> (N, 2) row of the query and row of the passage,
            ordered by the passage.
    """

    queries: Sequence[Query]
    passages: Sequence[Passage]
    sets: Mapping[str, NDArray[np.int64]]


def choose_pairs(
    settings: WinningVectorSettings,
    fields: Sequence[str] | None,
    corpus: CorpusSettings,
) -> Pairs:
    """The pairs that every model is measured on.

    Raises:
        MismatchError: none of the queries has a passage to look at.
    """
    named = _read(settings)
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
    passages = _find(wanted, settings.corpus, fields, corpus)
    row_of = {passage.docid: row for row, passage in enumerate(passages)}
    sets = {name: _rows(queries, docids, row_of) for name, docids in named.items()}
    if empty := [name for name, rows in sets.items() if not len(rows)]:
        raise MismatchError(
            f"{settings.corpus} holds none of the {' and '.join(empty)} passages of {where}",
            f"it should hold {_some(sorted(wanted))}",
        )
    return Pairs(queries, passages, sets)


def _read(settings: WinningVectorSettings) -> dict[str, Docids]:
    """The passages that judgements and run name, each under the name of its set."""
    named: dict[str, Docids] = {}
    if settings.qrels is not None:
        named["positive"] = _positives(settings.qrels, settings.relevance_level)
    if settings.run is not None:
        named["retrieved"] = _retrieved(settings.run, settings.depth)
    return named


def _rows(queries: Sequence[Query], docids: Docids, row_of: Mapping[str, int]) -> NDArray[np.int64]:
    """(N, 2) the pairs whose passage was found, by its row."""
    rows = [
        (row_of[docid], row)
        for row, query in enumerate(queries)
        for docid in docids[query.qid]
        if docid in row_of
    ]
    return np.array(sorted(rows), dtype=np.int64).reshape(-1, 2)[:, ::-1]


def _positives(source: str, level: int) -> Docids:
    docids: Docids = {}
    for qrel in read_qrels(source):
        if qrel.relevance >= level:
            docids.setdefault(qrel.qid, []).append(qrel.docid)
    return docids


def _retrieved(path: str, depth: int) -> Docids:
    docids: Docids = {}
    for hits in read_run(path):
        ranked = best_first(zip(hits.docids, hits.scores, strict=True))
        docids[hits.qid] = [docid for docid, _ in ranked[:depth]]
    return docids


def _find(
    wanted: set[str],
    source: str,
    fields: Sequence[str] | None,
    corpus: CorpusSettings,
) -> list[Passage]:
    """The wanted passages, in the order of the corpus; those it lacks are told."""
    missing, found = set(wanted), []
    with track(f"reading {source}", None, "passages") as progress:
        for passage in read_passages(source, corpus, fields):
            progress.advance()
            if passage.docid in missing:
                missing.remove(passage.docid)
                found.append(passage)
                if not missing:
                    break
    if missing:
        logger.warning(
            f"passages that {source} does not hold are left out: {len(missing):,} of "
            f"{len(wanted):,} ({_some(sorted(missing))})"
        )
    return found


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
