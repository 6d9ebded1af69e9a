"""Query-passage pairs for an analysis: queries with their relevant passages, or with their hits."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from denserk.config.analysis import WinningVectorSettings
from denserk.config.formats import CorpusSettings
from denserk.data.sampling import choose_records
from denserk.errors import MismatchError
from denserk.io.corpus import read_passages
from denserk.io.qrels import read_qrels
from denserk.io.runs import read_run
from denserk.io.topics import read_queries
from denserk.records import Passage, Query, best_first
from denserk.reporting import track

logger = logging.getLogger(__name__)


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
    passages = _find(wanted, settings.corpus, fields, corpus)
    row_of = {passage.docid: row for row, passage in enumerate(passages)}
    sets = {}
    for name, docids in named.items():
        rows = sorted(
            (row_of[docid], row)
            for row, query in enumerate(queries)
            for docid in docids[query.qid]
            if docid in row_of
        )
        if not rows:
            raise MismatchError(
                f"{settings.corpus} holds none of the {name} passages of {where}",
                f"it should hold {_some(wanted)}",
            )
        sets[name] = np.array(rows, dtype=np.int64)[:, ::-1]
    return Pairs(queries, passages, sets)


def _find(
    wanted: set[str], source: str, fields: Sequence[str] | None, corpus: CorpusSettings
) -> list[Passage]:
    """Return the wanted passages in the order of the corpus; warn about those that it lacks."""
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
            f"{len(wanted):,} ({_some(missing)})"
        )
    return found


def _some(names: set[str]) -> str:
    return ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
