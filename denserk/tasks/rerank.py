"""Rerank a run with a cross-encoder.

Memory does not grow with run or corpus: the passages that the run names are tokenised once, as the
corpus streams by, into a temporary folder (TMPDIR says where), and memory-mapped from there.
"""

import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.data.referenced_texts import Texts
from denserk.data.token_store import ArrayWriter, Ragged, open_array
from denserk.errors import InputError
from denserk.formats.files import STREAM
from denserk.formats.manifest import Kind, Manifest, file_sha256, write_manifest
from denserk.formats.outputs import scratch_folder
from denserk.formats.runs import read_run, write_run
from denserk.formats.sources import read_passages, read_queries
from denserk.index.searcher import Hits, TieCount, ordered
from denserk.modeling.cross_encoder import PairScorer
from denserk.records import Passage, Query, best_first
from denserk.reporting import Progress, track
from denserk.settings.encoding import ComputeSettings
from denserk.settings.formats import DETECTED, CorpusSettings
from denserk.settings.options import as_json
from denserk.settings.retrieval import RerankPaths, RerankSettings
from denserk.tasks.run_manifest import forget_manifest, has_manifest, queries_sha256

NOTHING: Mapping[str, Any] = {}
SCORED_TOGETHER = 8192
"""Pairs, of one query or several, that are sorted by length into batches."""
ROWS = 1 << 16
"""Hits whose passages are looked up at once."""
NAMED = 5
"""Ids of a fault that are named."""


@dataclass
class RerankResult:
    """What came out: queries, pairs that were scored, the seconds that took; lines of the run."""

    queries: int = 0
    pairs: int = 0
    hits: int = 0
    scoring_seconds: float = 0.0

    @property
    def per_second(self) -> float:
        """Pairs scored a second."""
        return self.pairs / self.scoring_seconds if self.scoring_seconds else 0.0


class _Group(NamedTuple):
    """A query's hits: their ids, best first, and the rows of their tokens."""

    qid: str
    docids: list[str]
    rows: NDArray[np.int64]


def rerank(
    paths: RerankPaths,
    settings: RerankSettings = RerankSettings(),  # noqa: B008  (frozen)
    text: Mapping[str, Any] = NOTHING,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008
    corpus: CorpusSettings = DETECTED,
) -> RerankResult:
    """Score the hits of a run with a cross-encoder, and write the new run.

    Args:
        paths: the cross-encoder, the run, queries and passages, and where the new run goes.
        settings: how deep, and the shape of the run.
        text: fields of TextSettings that replace the cross-encoder's own.
        compute: where and how.
        corpus: how the passages are read.

    Raises:
        UsageError: something named is not there.
        InputError: an input is broken; a passage or a query of the run has no text.
        ModelError: the cross-encoder cannot be loaded.
        OutputError: the run cannot be written.
    """
    scorer = PairScorer.load(paths.model, text, settings.pair_max_length, compute)
    with scratch_folder("rerank") as name:
        scratch = Path(name)
        topics, run = (_spooled(source, scratch) for source in (paths.topics, paths.run))
        queries = {q.qid: q for q in read_queries(topics, paths.topics_format)}
        source = _Hits(run, paths, settings, scorer, scratch)
        source.find(queries, corpus, text.get("fields"))
        forget_manifest(paths.output)
        result = RerankResult()
        with track("reranking", source.count, "pairs") as progress:
            ties = TieCount()
            answers = _answers(source, queries, scorer, settings, result, ties, progress)
            result.hits = write_run(paths.output, answers, settings.output_format, settings.tag)
        ties.report(settings)
        _write_manifest(paths, settings, corpus, scorer, (run, queries), result)
    return result


def _spooled(source: str, scratch: Path) -> str:
    """A path that can be read twice: standard input is written to a file first."""
    if source != STREAM:
        return source
    target = scratch / "standard-input"
    with target.open("wb") as out:
        shutil.copyfileobj(sys.stdin.buffer, out)
    return str(target)


class _Hits:
    """The hits that are scored, and the tokens of their passages.

    Args:
        run: the run's file.
        paths: the names of run and corpus for errors.
        settings: how many hits of a query are scored.
        scorer: tokenises.
        scratch: where the tokens are kept.
    """

    def __init__(
        self,
        run: str,
        paths: RerankPaths,
        settings: RerankSettings,
        scorer: PairScorer,
        scratch: Path,
    ) -> None:
        self._run, self._paths, self._settings, self._scratch = run, paths, settings, scratch
        self._tokenizer = scorer.tokenizer
        self.count = 0

    def _groups(self) -> Iterator[tuple[str, list[str]]]:
        """Each query with its hits, best first."""
        for hits in read_run(self._run):
            ranked = best_first(zip(hits.docids, hits.scores, strict=True))
            docids = [docid for docid, _ in ranked]
            if self._settings.remove_query:
                docids = [docid for docid in docids if docid != hits.qid]
            yield hits.qid, docids[: self._settings.depth]

    def find(
        self,
        queries: Mapping[str, Query],
        corpus: CorpusSettings,
        fields: Sequence[str] | None,
    ) -> None:
        """Tokenises the passages that are hit.

        Raises:
            InputError: the run is empty, or names a query or a passage that is nowhere.
        """
        texts: Texts[Passage] = Texts(
            self._scratch,
            self._scratch,
            "passages",
            self._tokenizer.passages,
            self._tokenizer.vocabulary_size,
        )
        with closing(texts):
            self._refer(texts, queries)
            with track("reading the corpus", None, "passages") as progress:
                passages = read_passages(self._paths.corpus, corpus, fields)
                texts.find(passages, self._paths.corpus, progress)
            self._settle(texts)
        self._tokens = Ragged(self._scratch, "passages")
        self._rows: NDArray[np.int64] = open_array(self._scratch / "rows.npy")

    def _refer(self, texts: Texts[Passage], queries: Mapping[str, Query]) -> None:
        missing: list[str] = []
        for qid, docids in self._groups():
            if qid not in queries:
                missing.append(qid)
            for docid in docids:
                texts.refer(docid)
        self.count = texts.references
        if missing:
            raise _nowhere(self._paths.run, "queries", missing, len(missing), self._paths.topics)
        if not self.count:
            raise InputError(self._paths.run, None, "no hits", "at least one")

    def _settle(self, texts: Texts[Passage]) -> None:
        """Notes the row of each hit."""
        missing: list[str] = []
        lost = 0
        with closing(ArrayWriter(self._scratch / "rows.npy", np.int64)) as writer:
            for first in range(0, self.count, ROWS):
                slots = -1 - np.arange(first, min(first + ROWS, self.count))
                rows = texts.rows_of(slots)
                writer.append(rows)
                absent = slots[rows < 0]
                lost += len(absent)
                missing += map(texts.id_of, absent[: NAMED + 1 - len(missing)].tolist())
        if lost:
            raise _nowhere(self._paths.run, "passages", missing, lost, self._paths.corpus)

    def __iter__(self) -> Iterator[_Group]:
        place = 0
        for qid, docids in self._groups():
            yield _Group(qid, docids, self._rows[place : place + len(docids)])
            place += len(docids)

    def tokens(self, row: int) -> NDArray[Any]:
        """The ids of a passage."""
        return self._tokens[row]


def _nowhere(run: str, what: str, missing: Sequence[str], count: int, where: str) -> InputError:
    names = list(dict.fromkeys(missing))
    named = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    return InputError(
        run,
        None,
        f"{what} that {where} does not hold: {count:,} ({named})",
        f"{what} that are there",
        f"name the {'--topics' if what == 'queries' else '--corpus'} that the run was made from",
    )


def _answers(
    source: _Hits,
    queries: Mapping[str, Query],
    scorer: PairScorer,
    settings: RerankSettings,
    result: RerankResult,
    ties: TieCount,
    progress: Progress,
) -> Iterator[tuple[str, Hits]]:
    """Scores a few queries at a time, in the order of the run; counts on the way."""
    for groups in _batched(source):
        start = time.perf_counter()
        tokens = scorer.tokenizer.queries([queries[group.qid] for group in groups])
        scores = scorer.score_pairs(
            [
                scorer.joiner.join(query, source.tokens(row))
                for query, group in zip(tokens, groups, strict=True)
                for row in group.rows
            ]
        )
        result.scoring_seconds += time.perf_counter() - start
        result.queries += len(groups)
        result.pairs += len(scores)
        ends = np.cumsum([len(group.docids) for group in groups])
        for group, own in zip(groups, np.split(scores, ends[:-1]), strict=True):
            yield group.qid, ordered(group.docids, own.tolist(), settings, ties)
        progress.advance(len(scores))


def _batched(source: _Hits) -> Iterator[list[_Group]]:
    groups: list[_Group] = []
    pairs = 0
    for group in source:
        groups.append(group)
        pairs += len(group.docids)
        if pairs >= SCORED_TOGETHER:
            yield groups
            groups, pairs = [], 0
    if groups:
        yield groups


def _write_manifest(
    paths: RerankPaths,
    settings: RerankSettings,
    corpus: CorpusSettings,
    scorer: PairScorer,
    inputs: tuple[str, Mapping[str, Query]],
    result: RerankResult,
) -> None:
    if not has_manifest(paths.output):
        return
    run, queries = inputs
    made_from = {
        "model": scorer.description(),
        "run": {"name": paths.run, "sha256": file_sha256(run)},
        "topics": {"name": paths.topics, "sha256": queries_sha256(queries.values())},
        "corpus": {"name": paths.corpus, **as_json(corpus)},
    }
    contents = {
        "queries": result.queries,
        "pairs": result.pairs,
        "hits": result.hits,
        "sha256": file_sha256(paths.output),
    }
    write_manifest(paths.output, Manifest(Kind.RUN, True, as_json(settings), made_from, contents))
