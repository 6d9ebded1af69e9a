"""Which changes can be tried for the misses of a run, and why others cannot."""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

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
from denserk.records import Passage
from denserk.reporting import track
from denserk.tasks.analyze import miss_causes as causes
from denserk.tasks.analyze import miss_passages, miss_queries
from denserk.tasks.analyze.miss_causes import Change, Evidence, Miss
from denserk.tasks.analyze.miss_inputs import (
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
    search_bm25,
    with_all_dimensions,
)
from denserk.tasks.analyze.miss_search import DenseSearch, HitsByQuery, indexed_docids
from denserk.tasks.build_index import build_index

PASSAGES_AT_ONCE = 1024  # that are tokenised together
NO_TEXTS = "no texts of passages (--corpus)"


class Changes:
    """The changes that can be tried, in their order, and why others cannot."""

    def __init__(
        self,
        settings: MissesSettings,
        origin: RunOrigin,
        evidence: Evidence,
        corpus: CorpusSettings,
        compute: ComputeSettings,
    ) -> None:
        self._settings = settings
        self._origin = origin
        self._evidence = evidence
        self._corpus = corpus
        self._compute = compute
        self._depth = max(map(len, evidence.hits.values()))  # of the run
        self.changes: list[Change] = []
        self.not_tried: dict[str, str] = {}  # why, by cause
        self.words: miss_queries.WeightOfWords | None = None

    def add_all(self, misses: Sequence[Miss]) -> None:
        """Open what is needed, and add the changes, the cheapest first."""
        indexes = open_indexes(self._origin, self._compute, self._depth)
        dense = self._open_dense(indexes)
        has_texts = bool(self._evidence.texts)
        if self._is_selected("absent"):
            self._add_absent(misses, indexes, dense)
        if dense is not None and self._is_selected("approximate"):
            self._add_exact_search(dense)
        if dense is not None and has_texts and self._is_selected("outdated"):
            self.changes.append(miss_passages.EncodedAgain(self._evidence, dense))
        if self._is_selected("hub"):
            self.changes.append(causes.WithoutHubs(self._evidence))
        if has_texts:
            self._add_copies()
        if dense is not None and has_texts and self._is_selected("length"):
            self._add_lengths(misses, dense)
        if self._is_selected("words"):
            self._add_words()
        if dense is not None and has_texts and self._is_selected("position"):
            self.changes.append(miss_passages.SentenceInFront(self._evidence, dense))
        if dense is not None and self._is_selected("subwords"):
            self.changes.append(miss_queries.RespelledQuery(self._evidence, dense))

    def _is_selected(self, cause: str) -> bool:
        """Return whether --set causes lets a cause be tried; note the reason if not."""
        if not self._settings.causes or cause in self._settings.causes:
            return True
        self.not_tried[cause] = "not among --set causes"
        return False

    def _open_dense(self, indexes: OpenIndexes) -> DenseSearch | None:
        """Return the search by vectors; None, with the reasons noted, if it cannot be repeated."""
        needs_vectors = ("approximate", "outdated", "length", "position", "subwords")
        needs_texts = ("outdated", "copies", "unjudged", "length", "position")
        if not self._evidence.texts:
            self.not_tried |= dict.fromkeys(needs_texts, NO_TEXTS)
        if indexes.bm25 is not None:
            self.not_tried |= dict.fromkeys(needs_vectors, "the run is one of BM25")
            return None
        try:
            return open_dense_search(
                self._origin,
                indexes.vectors,
                self._settings,
                self._compute,
                self._evidence.hits,
                self._evidence.queries,
            )
        except NotTriedError as error:
            self.not_tried |= dict.fromkeys(needs_vectors, str(error))
            return None

    def _add_absent(
        self, misses: Sequence[Miss], indexes: OpenIndexes, dense: DenseSearch | None
    ) -> None:
        """Add the change of an index that lacks passages."""
        if not indexes.all:
            self.not_tried["absent"] = "no index (--index)"
            return
        if any(opened.bm25 is Engine.LUCENE for opened in indexes.all):
            self.not_tried["absent"] = "the ids of an index of Lucene are not listed"
            return
        docids = {miss.docid for miss in misses if miss.rank is None}
        present_docids: set[str] = set()
        for opened in indexes.all:
            present_docids |= indexed_docids(opened, docids)
        if indexes.bm25 is not None and self._evidence.texts and self._evidence.queries:
            rebuilt = causes.RebuiltBm25(self._evidence, present_docids, self._search_rebuilt)
            self.changes.append(rebuilt)
        else:
            self.changes.append(causes.IndexedAgain(self._evidence, dense, present_docids))

    def _search_rebuilt(self) -> HitsByQuery:
        """Build a BM25 index of the whole corpus, as the run's was built, and search it."""
        manifest = read_manifest(self._origin.indexes[0], Kind.INDEX)
        bm25 = from_json(Bm25Settings, manifest.settings.get("bm25", {}))
        reading = reading_of(self._origin, self._settings.run, self._corpus)
        with scratch_folder("rebuilt") as folder:
            output = str(folder / "bm25")
            paths = IndexPaths(corpus=self._origin.corpus, output=output)
            build_index(paths, IndexSettings(type=IndexType.BM25), bm25, reading)
            opened = open_index([output], SearchSettings(), self._compute)
            return search_bm25(opened, self._evidence.queries, self._depth)

    def _add_exact_search(self, dense: DenseSearch) -> None:
        """Add the changes of an approximate index, and of one of cut vectors."""
        if dense.exact_hits is not None:
            self.changes.append(causes.ExactSearch(dense.exact_hits))
        elif not dense.opened.index.is_exhaustive:
            self.not_tried["approximate"] = "the vectors of the index are not there"
        else:
            self.not_tried["approximate"] = "the search is exact, in all dimensions"
        if dense.passage_encoder.representation.truncate_dim is None:
            return
        if self._evidence.texts:
            whole = with_all_dimensions(dense, self._compute)
            self.changes.append(miss_passages.FullDimensions(self._evidence, whole))
        elif dense.opened.index.is_exhaustive:
            self.not_tried["approximate"] = "vectors are cut, and " + NO_TEXTS

    def _add_copies(self) -> None:
        """Add the changes of hits that are copies, or probably relevant."""
        copies = NearCopies(self._evidence.texts, self._settings.copy_overlap)
        if self._is_selected("copies"):
            self.changes.append(causes.WithoutCopies(self._evidence, copies))
        if not self._is_selected("unjudged"):
            return
        self.changes.append(causes.CopiesJudged(self._evidence, copies))
        if self._settings.reranker is not None:
            if not self._evidence.queries:
                raise UsageError("--reranker needs the texts of queries", "give --topics")
            scorer = PairScorer(self._settings.reranker, compute=self._compute)
            self.changes.append(causes.RerankerPositives(self._evidence, scorer))

    def _add_lengths(self, misses: Sequence[Miss], dense: DenseSearch) -> None:
        """Add the changes of passages that are longer than the model's limit."""
        passages = miss_passages.LongPassages(self._evidence, dense)
        texts = self._evidence.texts
        lengths = [passages.length(texts[miss.docid]) for miss in misses if miss.docid in texts]
        longest = max(lengths, default=0)
        if longest <= passages.limit:
            self.not_tried["length"] = f"no missed passage is longer than {passages.limit} tokens"
            return
        all_long = self._all_long_passages(passages)
        most_positions = dense.passage_encoder.max_length
        new_limit = longest if most_positions is None else min(longest, most_positions)
        if new_limit > passages.limit:
            self.changes.append(miss_passages.LongerLimit(passages, new_limit, all_long))
        self.changes.append(miss_passages.Windows(passages, all_long))

    def _all_long_passages(self, passages: miss_passages.LongPassages) -> list[Passage] | None:
        """Return the passages of the corpus that are cut; None if they are too many."""
        assert self._origin.corpus is not None
        reading = reading_of(self._origin, self._settings.run, self._corpus)
        corpus = iter(read_passages(self._origin.corpus, reading))
        long_passages: list[Passage] = []
        with track("looking for long passages", None, "passages") as progress:
            while block := list(islice(corpus, PASSAGES_AT_ONCE)):
                long_passages += passages.long_ones(block)
                progress.advance(len(block))
                if len(long_passages) > self._settings.most_encoded:
                    return None
        return long_passages

    def _add_words(self) -> None:
        """Add the change of the weight that BM25 has in the score."""
        parts = self._fused_parts()
        if parts is None:
            return
        self.words = miss_queries.WeightOfWords(
            self._evidence, parts.runs_by_query, parts.fusion, parts.current_weight
        )
        self.changes.append(self.words)

    def _fused_parts(self) -> "FusedParts | None":
        """Return the runs that are fused; None, with the reason noted, if BM25 is not known."""
        made_from = {} if self._origin.manifest is None else self._origin.manifest.made_from
        if "runs" in made_from:
            return self._recorded_parts([run.get("name") or "" for run in made_from["runs"]])
        reason = self._why_bm25_is_not_fused()
        if reason is not None:
            self.not_tried["words"] = reason
            return None
        assert self._settings.bm25 is not None
        hits = bm25_hits(self._settings.bm25, self._evidence.queries, self._compute, self._depth)
        runs_by_query = {
            qid: (list(dense_hits), hits.get(qid, []))
            for qid, dense_hits in self._evidence.hits.items()
        }
        return FusedParts(runs_by_query, FusionSettings(method=FusionMethod.LINEAR), 0.0)

    def _why_bm25_is_not_fused(self) -> str | None:
        """Return why BM25 cannot be fused with the run; None if it can."""
        is_bm25_run = any(is_bm25(name) for name in self._origin.indexes)
        bm25 = self._settings.bm25
        if bm25 is None:
            return "the run is one of BM25" if is_bm25_run else "no BM25 (--bm25)"
        if is_bm25_run and self._origin.is_searched:
            return "the run is one of BM25"
        if Path(bm25).is_dir() and not self._evidence.queries:
            return "no texts of queries (--topics)"
        return None

    def _recorded_parts(self, runs: Sequence[str]) -> "FusedParts | None":
        """Return the two runs that the run was fused from, that of BM25 second."""
        assert self._origin.manifest is not None
        fusion = from_json(FusionSettings, self._origin.manifest.settings["fusion"])
        weights = fusion.weights_of(len(runs))
        are_of_bm25 = [any(is_bm25(index) for index in recorded_indexes(run)) for run in runs]
        if len(runs) != 2 or sum(are_of_bm25) != 1:
            self.not_tried["words"] = "the run is not fused from BM25 and one other run"
            return None
        if not all(Path(run).is_file() for run in runs):
            self.not_tried["words"] = "the runs that it was fused from are not there"
            return None
        bm25_number = are_of_bm25.index(True)
        bm25_run = read_hits(runs[bm25_number])
        other_run = read_hits(runs[1 - bm25_number])
        runs_by_query = {}
        for qid in self._evidence.hits:
            runs_by_query[qid] = (other_run.get(qid, []), bm25_run.get(qid, []))
        return FusedParts(runs_by_query, fusion, weights[bm25_number] / sum(weights))


class FusedParts(NamedTuple):
    """Two runs that are fused, that of BM25 second, and the weight that it has now."""

    runs_by_query: Mapping[str, tuple[Hits, Hits]]
    fusion: FusionSettings
    current_weight: float
