"""The causes for which a passage is missed: their names, their order, and what is tried for each.

`CAUSES`, at the end, is the list of them all, the cheapest first. Each has a function that returns
its changes for a run; a `NotTriedError` says why there are none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from denserk.config.analysis import MissesSettings
from denserk.config.encoding import ComputeSettings
from denserk.config.formats import CorpusSettings
from denserk.config.options import from_json
from denserk.config.retrieval import (
    Bm25Settings,
    Engine,
    FusionMethod,
    FusionSettings,
    IndexPaths,
    IndexSettings,
    IndexType,
    SearchSettings,
)
from denserk.errors import UsageError
from denserk.evaluation.near_copies import NearCopies
from denserk.index.opening import open_index
from denserk.index.ranking import Hits
from denserk.io.corpus import read_passages
from denserk.io.manifest import Kind, read_manifest
from denserk.io.outputs import scratch_folder
from denserk.models.cross_encoder import PairScorer
from denserk.records import Passage, Query
from denserk.reporting import track
from denserk.tasks.analyze.miss_hits import (
    CopiesJudged,
    ExactSearch,
    IndexedAgain,
    RebuiltBm25,
    RerankerPositives,
    WithoutCopies,
    WithoutHubs,
)
from denserk.tasks.analyze.miss_inputs import (
    COMPARED_QUERIES,
    NO_QUERIES,
    DoesNotApplyError,
    NotTriedError,
    OpenIndexes,
    RunOrigin,
    bm25_hits,
    is_bm25,
    open_dense_search,
    open_indexes,
    read_hits,
    reading_of,
    recorded_indexes,
    reject_other_hits,
    search_bm25,
    with_all_dimensions,
)
from denserk.tasks.analyze.miss_passages import (
    EncodedAgain,
    FullDimensions,
    LongerLimit,
    LongPassages,
    SentenceInFront,
    Windows,
)
from denserk.tasks.analyze.miss_queries import FieldSearched, RespelledQuery, WeightOfWords
from denserk.tasks.analyze.miss_search import DenseSearch, HitsByQuery, indexed_docids
from denserk.tasks.analyze.miss_trials import Change, Evidence, Miss
from denserk.tasks.build_index import build_index

PASSAGES_AT_ONCE = 1024  # that are tokenised together
NO_TEXTS = "no texts of passages (--corpus)"
BM25_RUN = "the run is one of BM25"


@dataclass
class MissedRun:
    """A run, the passages that it missed, and what their changes are made with."""

    settings: MissesSettings
    origin: RunOrigin
    evidence: Evidence
    misses: Sequence[Miss]
    corpus: CorpusSettings
    compute: ComputeSettings
    indexes: OpenIndexes
    search: DenseSearch | None  # None: it cannot be repeated
    no_search: NotTriedError | None  # why not

    @property
    def dense(self) -> DenseSearch:
        """The search by vectors; a NotTriedError says why it cannot be repeated."""
        if self.search is None:
            assert self.no_search is not None
            raise self.no_search
        return self.search

    @property
    def depth(self) -> int:
        """The number of hits of the longest list."""
        return max(map(len, self.evidence.hits.values()))

    @cached_property
    def copies(self) -> NearCopies:
        """Tells which passages are copies of each other."""
        return NearCopies(self.evidence.texts, self.settings.copy_overlap)


def open_missed_run(
    settings: MissesSettings,
    origin: RunOrigin,
    evidence: Evidence,
    misses: Sequence[Miss],
    corpus: CorpusSettings,
    compute: ComputeSettings,
) -> MissedRun:
    """Open the indexes of a run, and its search by vectors if that can be repeated."""
    depth = max(map(len, evidence.hits.values()))
    indexes = open_indexes(origin, compute, depth)
    search = None
    no_search: NotTriedError | None = None
    if indexes.bm25 is not None:
        no_search = DoesNotApplyError(BM25_RUN)
    else:
        try:
            search = open_dense_search(
                origin, indexes.vectors, settings, compute, evidence.hits, evidence.queries
            )
        except NotTriedError as error:
            no_search = error
    return MissedRun(
        settings, origin, evidence, misses, corpus, compute, indexes, search, no_search
    )


class Cause(NamedTuple):
    """A cause, and what is tried for it."""

    name: str  # a key of `denserk.io.misses.TITLES`
    changes: Callable[[MissedRun], list[Change]]
    needs_vectors: bool = False  # a search by vectors that can be repeated
    needs_texts: bool = False  # texts of passages


class NotTried(NamedTuple):
    """Why the changes of a cause are not tried."""

    reason: str
    applies: bool  # whether passages may be missed for this cause all the same


class TriedChanges(NamedTuple):
    """The changes that can be tried, in the order of their causes."""

    changes: list[Change]
    not_tried: dict[str, NotTried]  # by cause


def find_changes(run: MissedRun) -> TriedChanges:
    """Return the changes of all causes, and why some causes have none."""
    changes: list[Change] = []
    not_tried = {}
    for cause in CAUSES:
        try:
            changes += _changes_of(cause, run)
        except NotTriedError as error:
            applies = not isinstance(error, DoesNotApplyError)
            not_tried[cause.name] = NotTried(str(error), applies)
    return TriedChanges(changes, not_tried)


def _changes_of(cause: Cause, run: MissedRun) -> list[Change]:
    """Return the changes of a cause; a NotTriedError says why there are none."""
    if cause.needs_vectors and run.no_search is not None:
        raise run.no_search
    if cause.needs_texts and not run.evidence.texts:
        raise NotTriedError(NO_TEXTS)
    if run.settings.causes and cause.name not in run.settings.causes:
        raise NotTriedError("not among --set causes")
    return cause.changes(run)


# absent


def index_again(run: MissedRun) -> list[Change]:
    """Index what the index lacks."""
    if not run.indexes.all:
        raise NotTriedError("no index (--index)")
    if any(opened.bm25 is Engine.LUCENE for opened in run.indexes.all):
        raise NotTriedError("the ids of an index of Lucene are not listed")
    docids = {miss.docid for miss in run.misses if miss.rank is None}
    present_docids: set[str] = set()
    for opened in run.indexes.all:
        present_docids |= indexed_docids(opened, docids)
    if run.indexes.bm25 is not None and run.evidence.texts and run.evidence.queries:
        return [RebuiltBm25(run.evidence, present_docids, lambda: _search_rebuilt(run))]
    return [IndexedAgain(run.evidence, run.search, present_docids)]


def _search_rebuilt(run: MissedRun) -> HitsByQuery:
    """Build a BM25 index of the whole corpus, as the run's was built, and search it."""
    manifest = read_manifest(run.origin.indexes[0], Kind.INDEX)
    bm25 = from_json(Bm25Settings, manifest.settings.get("bm25", {}))
    reading = reading_of(run.origin, run.settings.run, run.corpus)
    with scratch_folder("rebuilt") as folder:
        output = str(folder / "bm25")
        paths = IndexPaths(corpus=run.origin.corpus, output=output)
        build_index(paths, IndexSettings(type=IndexType.BM25), bm25, reading)
        opened = open_index([output], SearchSettings(), run.compute)
        return search_bm25(opened, run.evidence.queries, run.depth)


# approximate


def search_exactly(run: MissedRun) -> list[Change]:
    """Undo what an approximate index and cut vectors lose."""
    changes: list[Change] = []
    if run.dense.exact_hits is not None:
        changes.append(ExactSearch(run.evidence, run.dense.exact_hits))
    is_cut = run.dense.passage_encoder.representation.truncate_dim is not None
    if is_cut and run.evidence.texts:
        whole = with_all_dimensions(run.dense, run.compute)
        changes.append(FullDimensions(run.evidence, whole))
    if changes:
        return changes
    if not run.dense.opened.index.is_exhaustive:
        raise NotTriedError("the vectors of the index are not there")
    if is_cut:
        raise NotTriedError("vectors are cut, and " + NO_TEXTS)
    raise DoesNotApplyError("the search is exact, in all dimensions")


# outdated, hub, copies, unjudged


def encode_again(run: MissedRun) -> list[Change]:
    """Encode the passages as the corpus has them now."""
    return [EncodedAgain(run.evidence, run.dense)]


def leave_hubs_out(run: MissedRun) -> list[Change]:
    """Leave out passages that very many queries have among their first hits."""
    return [WithoutHubs(run.evidence)]


def collapse_copies(run: MissedRun) -> list[Change]:
    """Collapse hits that are copies of each other."""
    return [WithoutCopies(run.evidence, run.copies)]


def judge_hits(run: MissedRun) -> list[Change]:
    """Take hits for relevant that probably are: copies, and those that a reranker prefers."""
    changes: list[Change] = [CopiesJudged(run.evidence, run.copies)]
    if run.settings.reranker is not None:
        if not run.evidence.queries:
            raise UsageError("--reranker needs the texts of queries", "give --topics")
        scorer = PairScorer(run.settings.reranker, compute=run.compute)
        changes.append(RerankerPositives(run.evidence, scorer))
    return changes


# length


def read_whole_passages(run: MissedRun) -> list[Change]:
    """Encode what lies beyond the length limit."""
    passages = LongPassages(run.dense)
    texts = run.evidence.texts
    lengths = [passages.length(texts[miss.docid]) for miss in run.misses if miss.docid in texts]
    longest = max(lengths, default=0)
    if longest <= passages.limit:
        raise DoesNotApplyError(f"no missed passage is longer than {passages.limit} tokens")
    all_long = _all_long_passages(run, passages)
    most_positions = run.dense.passage_encoder.max_length
    new_limit = longest if most_positions is None else min(longest, most_positions)
    changes: list[Change] = []
    if new_limit > passages.limit:
        changes.append(LongerLimit(run.evidence, passages, new_limit, all_long))
    changes.append(Windows(run.evidence, passages, all_long))
    return changes


def _all_long_passages(run: MissedRun, passages: LongPassages) -> list[Passage] | None:
    """Return the passages of the corpus that are cut; None if they are too many."""
    assert run.origin.corpus is not None
    reading = reading_of(run.origin, run.settings.run, run.corpus)
    corpus = iter(read_passages(run.origin.corpus, reading))
    long_passages: list[Passage] = []
    with track("looking for long passages", None, "passages") as progress:
        while block := list(islice(corpus, PASSAGES_AT_ONCE)):
            long_passages += passages.long_ones(block)
            progress.advance(len(block))
            if len(long_passages) > run.settings.most_encoded:
                return None
    return long_passages


# fields


def search_more_fields(run: MissedRun) -> list[Change]:
    """Search with each field of the topics that was not searched, one at a time."""
    if not run.evidence.queries:
        raise NotTriedError(NO_QUERIES)
    if not run.evidence.queries_with_field:
        raise DoesNotApplyError("the topics have no field that was not searched")
    search = _bm25_search(run) if run.indexes.bm25 is not None else run.dense.search
    changes: list[Change] = []
    for fields, queries in run.evidence.queries_with_field.items():
        hits = search(list(queries.values()))
        changes.append(FieldSearched(run.evidence, fields, hits))
    return changes


def _bm25_search(run: MissedRun) -> Callable[[Sequence[Query]], HitsByQuery]:
    """Return the search of a BM25 run; a NotTriedError says why it cannot be repeated."""
    opened = run.indexes.bm25
    assert opened is not None

    def search(queries: Sequence[Query]) -> HitsByQuery:
        """Return the hits of queries in the run's index."""
        return search_bm25(opened, {query.qid: query for query in queries}, run.depth)

    queries = list(run.evidence.queries.values())[:COMPARED_QUERIES]
    reject_other_hits(opened.name, search(queries), run.evidence.hits, run.settings.k)
    return search


# words


class FusedParts(NamedTuple):
    """Two runs that are fused, that of BM25 second, and the weight that it has now."""

    runs_by_query: Mapping[str, tuple[Hits, Hits]]
    fusion: FusionSettings
    current_weight: float


def weigh_bm25(run: MissedRun) -> list[Change]:
    """Change the weight that BM25 has in the score."""
    made_from: Mapping[str, Any] = {}
    if run.origin.manifest is not None:
        made_from = run.origin.manifest.made_from
    if "runs" in made_from:
        names = [source.get("name") or "" for source in made_from["runs"]]
        parts = _recorded_parts(run, names)
    else:
        parts = _parts_with_bm25(run)
    change = WeightOfWords(run.evidence, parts.runs_by_query, parts.fusion, parts.current_weight)
    return [change]


def _parts_with_bm25(run: MissedRun) -> FusedParts:
    """Return the run, and that of --bm25, which is fused with it."""
    bm25 = run.settings.bm25
    is_bm25_run = any(is_bm25(name) for name in run.origin.indexes)
    if is_bm25_run and run.origin.is_searched:
        raise DoesNotApplyError(BM25_RUN)
    if bm25 is None and is_bm25_run:
        raise NotTriedError(BM25_RUN)
    if bm25 is None:
        raise NotTriedError("no BM25 (--bm25)")
    if Path(bm25).is_dir() and not run.evidence.queries:
        raise NotTriedError(NO_QUERIES)
    hits = bm25_hits(bm25, run.evidence.queries, run.compute, run.depth)
    runs_by_query = {}
    for qid, run_hits in run.evidence.hits.items():
        runs_by_query[qid] = (list(run_hits), hits.get(qid, []))
    return FusedParts(runs_by_query, FusionSettings(method=FusionMethod.LINEAR), 0.0)


def _recorded_parts(run: MissedRun, sources: Sequence[str]) -> FusedParts:
    """Return the two runs that the run was fused from, that of BM25 second."""
    assert run.origin.manifest is not None
    fusion = from_json(FusionSettings, run.origin.manifest.settings["fusion"])
    weights = fusion.weights_of(len(sources))
    are_of_bm25 = []
    for source in sources:
        are_of_bm25.append(any(is_bm25(index) for index in recorded_indexes(source)))
    if len(sources) != 2 or sum(are_of_bm25) != 1:
        raise NotTriedError("the run is not fused from BM25 and one other run")
    if not all(Path(source).is_file() for source in sources):
        raise NotTriedError("the runs that it was fused from are not there")
    bm25_number = are_of_bm25.index(True)
    bm25_run = read_hits(sources[bm25_number])
    other_run = read_hits(sources[1 - bm25_number])
    runs_by_query = {}
    for qid in run.evidence.hits:
        runs_by_query[qid] = (other_run.get(qid, []), bm25_run.get(qid, []))
    return FusedParts(runs_by_query, fusion, weights[bm25_number] / sum(weights))


# position, subwords


def move_sentences(run: MissedRun) -> list[Change]:
    """Move a sentence of a passage to its front."""
    return [SentenceInFront(run.evidence, run.dense)]


def spell_otherwise(run: MissedRun) -> list[Change]:
    """Spell broken words of a query otherwise."""
    return [RespelledQuery(run.evidence, run.dense)]


CAUSES = (
    Cause("absent", index_again),
    Cause("approximate", search_exactly, needs_vectors=True),
    Cause("outdated", encode_again, needs_vectors=True, needs_texts=True),
    Cause("hub", leave_hubs_out),
    Cause("copies", collapse_copies, needs_texts=True),
    Cause("unjudged", judge_hits, needs_texts=True),
    Cause("length", read_whole_passages, needs_vectors=True, needs_texts=True),
    Cause("fields", search_more_fields),
    Cause("words", weigh_bm25),
    Cause("position", move_sentences, needs_vectors=True, needs_texts=True),
    Cause("subwords", spell_otherwise, needs_vectors=True),
)
