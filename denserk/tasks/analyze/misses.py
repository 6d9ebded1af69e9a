"""`denserk analyze misses`: why a run misses relevant passages.

For each relevant passage that is not among the first K hits, changes are tried in the order of what
they cost: the index, the hits, the passage, the search, the query. Each is really made: texts are
encoded again, queries searched again, hits fused again. The first change that brings the passage in
is its cause.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import nan
from pathlib import Path
from typing import NamedTuple

import numpy as np

from denserk.config.analysis import MissesSettings
from denserk.config.encoding import ComputeSettings
from denserk.config.evaluation import ComparisonSettings
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.config.options import from_json
from denserk.config.retrieval import Engine, FusionMethod, FusionSettings, IndexPaths
from denserk.data.sampling import choose_records
from denserk.errors import InputError, MismatchError, UsageError
from denserk.evaluation.evaluator import Evaluator
from denserk.evaluation.measures import Measure, parse_measures
from denserk.evaluation.near_copies import NearCopies
from denserk.evaluation.results import Grades
from denserk.evaluation.significance import describe, p_value
from denserk.index.opening import open_index
from denserk.index.ranking import Hits
from denserk.io.corpus import read_passages
from denserk.io.exclusions import read_exclusions
from denserk.io.misses import FOUND, MODEL, TITLES, MissedPassage, write_misses
from denserk.io.outputs import scratch_folder
from denserk.io.qrels import read_qrels_map
from denserk.io.short_texts import first_names
from denserk.models.cross_encoder import PairScorer
from denserk.records import Passage
from denserk.reporting import track
from denserk.tasks.analyze import miss_causes as causes
from denserk.tasks.analyze.miss_causes import Change, Evidence, Fix, LongPassages, Miss, Trial
from denserk.tasks.analyze.miss_inputs import (
    NotTriedError,
    OpenIndexes,
    RunOrigin,
    bm25_hits,
    is_bm25,
    open_dense_search,
    open_indexes,
    origin_of,
    read_hits,
    read_texts,
    read_topics,
    reading_of,
    recorded_indexes,
    search_bm25,
    with_all_dimensions,
)
from denserk.tasks.analyze.miss_search import DenseSearch, HitsByQuery, indexed_docids, rank_of
from denserk.tasks.build_index import build_index

logger = logging.getLogger(__name__)

FOLDS = 5  # in which the weight of BM25 is chosen
ALL_QUERIES = "all queries"
ORACLE = "oracle"  # only where the change helps: what nobody knows before the search
PASSAGES_AT_ONCE = 1024  # that are tokenised together


class CauseCount(NamedTuple):
    """How many missed passages have a cause."""

    cause: str
    title: str
    misses: int  # passages of which this is the cheapest change that brings them in
    brings_in: int  # passages that it brings in, alone; also those with a cheaper cause
    not_tried: str = ""  # why it was not tried; empty if it was


class Gain(NamedTuple):
    """What a change adds to the measure, mean over queries, with its paired t interval of 95 %."""

    cause: str
    change: str
    scope: str  # `ALL_QUERIES` or `ORACLE`
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class MissesResult:
    """Why a run misses relevant passages."""

    run: str
    measure: str
    k: int
    value: float  # of the measure, mean over the queries
    queries: int
    relevant: int  # passages, of all these queries
    passages: tuple[MissedPassage, ...]
    causes: tuple[CauseCount, ...]
    gains: tuple[Gain, ...]


def analyze_misses(
    settings: MissesSettings,
    corpus: CorpusSettings = DETECTED,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
) -> MissesResult:
    """Find the causes of a run's misses, write their table, and measure each change."""
    _refuse_unknown_causes(settings.causes)
    (measure,) = parse_measures(
        [settings.measure or f"nDCG@{settings.k}"], settings.relevance_level
    ).measures
    origin = origin_of(settings)
    run_hits = read_hits(settings.run)
    grades = _read_grades(settings, run_hits)
    hits = {qid: run_hits[qid] for qid in grades}
    passages_to_analyse = _chosen_passages(settings, grades, hits)
    evidence = Evidence(
        settings=settings,
        hits=hits,
        grades=grades,
        queries=read_topics(origin, grades.keys()),
        texts=_texts_of(settings, origin, corpus, grades, hits),
        hubs=_hubs(settings, run_hits),
    )
    found, misses = _without_found(passages_to_analyse, settings.k)
    tried = _Changes(settings, origin, evidence, corpus, compute)
    tried.add_all(misses)
    trials = {change: change.try_change(misses) for change in tried.changes}
    passages = (*found, *_name_causes(misses, trials, settings.k))
    write_misses(settings.output, settings.run, passages)
    evaluation = _Evaluation(measure, evidence)
    gains = list(evaluation.gains(tried, misses, trials))
    return MissesResult(
        run=settings.run,
        measure=str(measure),
        k=settings.k,
        value=float(np.mean(list(evaluation.base.values()))),
        queries=len(grades),
        relevant=sum(len(evidence.relevant(qid)) for qid in grades),
        passages=passages,
        causes=tuple(_count_causes(passages, tried)),
        gains=tuple(gains),
    )


def _refuse_unknown_causes(names: Sequence[str]) -> None:
    """Raise a UsageError for a cause that is not tried by any change."""
    known = [cause for cause in TITLES if cause not in (MODEL, FOUND)]
    for name in names:
        if name not in known:
            raise UsageError(f"--set causes: found {name!r}", f"choose among {','.join(known)}")


def _read_grades(settings: MissesSettings, run_hits: HitsByQuery) -> dict[str, dict[str, int]]:
    """Return the grades of the queries that are analysed: a sample of those with relevant ones."""
    judged = read_qrels_map(settings.qrels)
    level = settings.relevance_level
    answerable = [
        qid for qid, grades in judged.items() if any(grade >= level for grade in grades.values())
    ]
    answered = [qid for qid in answerable if qid in run_hits]
    if not answered:
        raise MismatchError(
            f"{settings.run} answers queries {first_names(list(run_hits))}; {settings.qrels} has "
            f"relevant passages for queries {first_names(answerable)}: none in common"
        )
    if len(answered) < len(answerable):
        logger.warning(
            f"{settings.run} lacks {len(answerable) - len(answered):,} of {len(answerable):,} "
            "judged queries, which are left out"
        )
    sample = choose_records(answered, settings.sample, settings.seed)
    if len(sample) < len(answered):
        logger.info(f"{len(sample):,} of {len(answered):,} queries are analysed (--sample)")
    return {qid: judged[qid] for qid in sample}


def _chosen_passages(settings: MissesSettings, grades: Grades, hits: HitsByQuery) -> list[Miss]:
    """Return the passages that are analysed: the relevant ones that are missed, or the pairs."""
    if settings.pairs is not None:
        return _passages_of_pairs(settings, grades, hits)
    misses = []
    for qid, grades_of_query in grades.items():
        for docid, grade in grades_of_query.items():
            rank = rank_of(hits[qid], docid)
            is_missed = rank is None or rank > settings.k
            if grade >= settings.relevance_level and is_missed:
                misses.append(Miss(qid, docid, grade, rank))
    return misses


def _passages_of_pairs(settings: MissesSettings, grades: Grades, hits: HitsByQuery) -> list[Miss]:
    """Return the passages that --set pairs names, of the queries that are analysed."""
    assert settings.pairs is not None
    misses = []
    for qid, docids in read_exclusions(settings.pairs).items():
        if qid not in grades:
            message = f"the query {qid}, which is not analysed"
            expected = "queries with relevant passages and hits, within --sample"
            raise InputError(settings.pairs, None, message, expected)
        for docid in sorted(docids):
            grade = grades[qid].get(docid, 0)
            misses.append(Miss(qid, docid, grade, rank_of(hits[qid], docid)))
    return misses


def _texts_of(
    settings: MissesSettings,
    origin: RunOrigin,
    corpus: CorpusSettings,
    grades: Grades,
    hits: HitsByQuery,
) -> dict[str, Passage]:
    """Return the texts of relevant passages and of the first hits, by id."""
    depth = causes.DEPTH_FACTOR * settings.k
    docids: set[str] = set()
    for qid, hits_of_query in hits.items():
        docids.update(grades[qid])
        docids.update(docid for docid, _ in hits_of_query[:depth])
    return read_texts(origin, settings.run, corpus, docids)


def _hubs(settings: MissesSettings, run_hits: HitsByQuery) -> set[str]:
    """Return the hubs among the first hits of all queries of the run."""
    first_hits = [[docid for docid, _ in hits[: settings.k]] for hits in run_hits.values()]
    return causes.find_hubs(first_hits, settings.hub_share)


class _Changes:
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
        self._hit_count = max(map(len, evidence.hits.values()))
        self.changes: list[Change] = []
        self.not_tried: dict[str, str] = {}  # why, by cause
        self.words: causes.WeightOfWords | None = None

    def add_all(self, misses: Sequence[Miss]) -> None:
        """Open what is needed, and add the changes, the cheapest first."""
        indexes = open_indexes(self._origin, self._compute, self._hit_count)
        dense = self._open_dense(indexes)
        has_texts = bool(self._evidence.texts)
        if self._is_asked("absent"):
            self._add_absent(misses, indexes, dense)
        if dense is not None and self._is_asked("approximate"):
            self._add_exact_search(dense)
        if dense is not None and has_texts and self._is_asked("outdated"):
            self.changes.append(causes.EncodedAgain(self._evidence, dense))
        if self._is_asked("hub"):
            self.changes.append(causes.WithoutHubs(self._evidence))
        if has_texts:
            self._add_copies()
        if dense is not None and has_texts and self._is_asked("length"):
            self._add_lengths(misses, dense)
        if self._is_asked("words"):
            self._add_words()
        if dense is not None and has_texts and self._is_asked("position"):
            self.changes.append(causes.SentenceInFront(self._evidence, dense))
        if dense is not None and self._is_asked("subwords"):
            self.changes.append(causes.RespelledQuery(self._evidence, dense))

    def _is_asked(self, cause: str) -> bool:
        """Return whether a cause is to be tried; note it if not."""
        if not self._settings.causes or cause in self._settings.causes:
            return True
        self.not_tried[cause] = "not among --set causes"
        return False

    def _open_dense(self, indexes: OpenIndexes) -> DenseSearch | None:
        """Return the search by vectors; None, with the reasons noted, if it cannot be repeated."""
        needs_vectors = ("approximate", "outdated", "length", "position", "subwords")
        needs_texts = ("outdated", "copies", "unjudged", "length", "position")
        if not self._evidence.texts:
            self.not_tried |= dict.fromkeys(needs_texts, "no texts of passages (--corpus)")
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
            self.changes.append(causes.RebuiltBm25(present_docids, self._search_rebuilt))
        else:
            self.changes.append(causes.IndexedAgain(self._evidence, dense, present_docids))

    def _search_rebuilt(self) -> HitsByQuery:
        """Build a BM25 index of the whole corpus, as the run's was built, and search it."""
        from denserk.config.retrieval import Bm25Settings, IndexSettings, IndexType
        from denserk.io.manifest import Kind, read_manifest

        manifest = read_manifest(self._origin.indexes[0], Kind.INDEX)
        bm25 = from_json(Bm25Settings, manifest.settings.get("bm25", {}))
        reading = reading_of(self._origin, self._settings.run, self._corpus)
        with scratch_folder("rebuilt") as folder:
            output = str(folder / "bm25")
            paths = IndexPaths(corpus=self._origin.corpus, output=output)
            build_index(paths, IndexSettings(type=IndexType.BM25), bm25, reading)
            from denserk.config.retrieval import SearchSettings

            opened = open_index([output], SearchSettings(), self._compute)
            return search_bm25(opened, self._evidence.queries, self._hit_count)

    def _add_exact_search(self, dense: DenseSearch) -> None:
        """Add the changes of an approximate index, and of one of cut vectors."""
        if dense.exact_hits is not None:
            self.changes.append(causes.ExactSearch(dense.exact_hits))
        elif not dense.opened.index.is_exhaustive:
            self.not_tried["approximate"] = "the vectors of the index are not there"
        whole = with_all_dimensions(dense, self._compute)
        if whole is not None and self._evidence.texts:
            self.changes.append(causes.FullDimensions(self._evidence, whole))
        elif dense.opened.index.is_exhaustive:
            self.not_tried["approximate"] = "the search is exact, in all dimensions"

    def _add_copies(self) -> None:
        """Add the changes of hits that are copies, or probably relevant."""
        copies = NearCopies(self._evidence.texts, self._settings.copy_overlap)
        if self._is_asked("copies"):
            self.changes.append(causes.WithoutCopies(self._evidence, copies))
        if not self._is_asked("unjudged"):
            return
        self.changes.append(causes.CopiesJudged(self._evidence, copies))
        if self._settings.reranker is not None:
            if not self._evidence.queries:
                raise UsageError("--reranker needs the texts of queries", "give --topics")
            scorer = PairScorer(self._settings.reranker, compute=self._compute)
            self.changes.append(causes.RerankerPositives(self._evidence, scorer))

    def _add_lengths(self, misses: Sequence[Miss], dense: DenseSearch) -> None:
        """Add the changes of passages that are longer than the model's limit."""
        passages = LongPassages(self._evidence, dense)
        texts = self._evidence.texts
        long_lengths = []
        for docid in dict.fromkeys(miss.docid for miss in misses):
            if docid in texts and passages.is_long(texts[docid]):
                long_lengths.append(passages.length(texts[docid]))
        if not long_lengths:
            self.not_tried["length"] = f"no missed passage is longer than {passages.limit} tokens"
            return
        all_long = self._all_long_passages(passages)
        new_limit = min(max(long_lengths), dense.passage_encoder.max_length or max(long_lengths))
        if new_limit > passages.limit:
            self.changes.append(causes.LongerLimit(passages, new_limit, all_long))
        self.changes.append(causes.Windows(passages, all_long))

    def _all_long_passages(self, passages: LongPassages) -> list[Passage] | None:
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
        """Add the weight of BM25."""
        parts = self._fused_parts()
        if parts is None:
            return
        self.words = causes.WeightOfWords(
            self._evidence, parts.runs_by_query, parts.fusion, parts.current_weight
        )
        self.changes.append(self.words)

    def _fused_parts(self) -> "_FusedParts | None":
        """Return the runs that are fused; None, with the reason noted, if BM25 is not known."""
        made_from = {} if self._origin.manifest is None else self._origin.manifest.made_from
        if "runs" in made_from:
            return self._recorded_parts([run["name"] for run in made_from["runs"]])
        is_bm25_run = any(is_bm25(name) for name in self._origin.indexes)
        if self._settings.bm25 is None:
            reason = "the run is one of BM25" if is_bm25_run else "no BM25 (--bm25)"
            self.not_tried["words"] = reason
            return None
        if is_bm25_run and self._origin.is_searched:
            self.not_tried["words"] = "the run is one of BM25"
            return None
        if Path(self._settings.bm25).is_dir() and not self._evidence.queries:
            self.not_tried["words"] = "no texts of queries (--topics)"
            return None
        hits = bm25_hits(
            self._settings.bm25, self._evidence.queries, self._compute, self._hit_count
        )
        runs_by_query = {
            qid: (list(dense_hits), hits.get(qid, []))
            for qid, dense_hits in self._evidence.hits.items()
        }
        return _FusedParts(runs_by_query, FusionSettings(method=FusionMethod.LINEAR), 0.0)

    def _recorded_parts(self, runs: Sequence[str]) -> "_FusedParts | None":
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
        return _FusedParts(runs_by_query, fusion, weights[bm25_number] / sum(weights))


class _FusedParts(NamedTuple):
    """Two runs that are fused, that of BM25 second, and the weight that it has now."""

    runs_by_query: Mapping[str, tuple[Hits, Hits]]
    fusion: FusionSettings
    current_weight: float


def _without_found(passages: Sequence[Miss], k: int) -> tuple[list[MissedPassage], list[Miss]]:
    """Return the rows of passages among the first K hits, and the passages that are missed."""
    found = []
    misses = []
    for passage in passages:
        if passage.rank is not None and passage.rank <= k:
            found.append(MissedPassage(*passage, FOUND))
        else:
            misses.append(passage)
    return found, misses


Trials = Mapping[Change, Sequence[Trial | None]]  # of each missed passage


def _name_causes(misses: Sequence[Miss], trials: Trials, k: int) -> Iterator[MissedPassage]:
    """Yield the missed passages with their causes: the first change that brings each in."""
    for position, miss in enumerate(misses):
        helpful: dict[str, Trial] = {}  # by cause, in the order of the changes
        for change, trials_of_change in trials.items():
            trial = trials_of_change[position]
            if trial is None:
                continue
            is_absent = change.cause == "absent"  # whatever its rank: nothing else can help
            if is_absent or (trial.rank is not None and trial.rank <= k):
                helpful.setdefault(change.cause, trial)
        if not helpful:
            yield MissedPassage(*miss, MODEL)
            continue
        cause, *others = helpful
        trial = helpful[cause]
        yield MissedPassage(*miss, cause, trial.change, trial.rank, tuple(others))


def _count_causes(passages: Sequence[MissedPassage], tried: _Changes) -> Iterator[CauseCount]:
    """Yield the counts of all causes, in their order."""
    counts = Counter(passage.cause for passage in passages)
    also: Counter[str] = Counter()
    for passage in passages:
        also.update(passage.also)
    for cause, title in TITLES.items():
        if cause == FOUND and not counts[FOUND]:
            continue
        is_tried = any(change.cause == cause for change in tried.changes)
        reason = "" if is_tried else tried.not_tried.get(cause, "")
        brings_in = counts[cause] + also[cause]
        if cause in (MODEL, FOUND):
            brings_in = 0
        yield CauseCount(cause, title, counts[cause], brings_in, reason)


class _Evaluation:
    """Measures the queries of the evidence, with their hits as they are and after changes."""

    def __init__(self, measure: Measure, evidence: Evidence) -> None:
        self._measure = measure
        self._evidence = evidence
        self.base = self._values(evidence.hits)

    def _values(self, hits: HitsByQuery, grades: Grades | None = None) -> Mapping[str, float]:
        """Return the measure of each query; 0 where there are no hits."""
        grades = grades or self._evidence.grades
        run = {}
        for qid, hits_of_query in hits.items():
            ranked = {docid: -float(rank) for rank, (docid, _) in enumerate(hits_of_query, start=1)}
            if ranked:
                run[qid] = ranked
        if not run:
            return dict.fromkeys(grades, 0.0)
        evaluator = Evaluator([self._measure], grades)
        return evaluator.evaluate("run", run, ties={}).per_query[str(self._measure)]

    def gains(self, tried: _Changes, misses: Sequence[Miss], trials: Trials) -> Iterator[Gain]:
        """Yield the gain of each change that brings a passage in."""
        k = self._evidence.k
        for change, trials_of_change in trials.items():
            ranks: dict[Miss, int] = {}
            for miss, trial in zip(misses, trials_of_change, strict=True):
                if trial is not None and trial.rank is not None and trial.rank <= k:
                    ranks[miss] = trial.rank
            if not ranks:
                continue
            if change is tried.words:
                yield self._gain_of_words(tried.words)
                continue
            fix = change.everywhere()
            if fix is None:
                values = self._values(self._moved(ranks))
                yield self._gain(change.cause, change.name, ORACLE, values)
            else:
                yield self._gain_of_fix(change, fix)

    def _gain_of_fix(self, change: Change, fix: Fix) -> Gain:
        """Return the gain of a change of all queries."""
        return self._gain(
            change.cause, change.name, ALL_QUERIES, self._values(fix.hits, fix.grades)
        )

    def _gain(self, cause: str, name: str, scope: str, values: Mapping[str, float]) -> Gain:
        """Return a gain from the values of queries after a change."""
        differences = np.array([values[qid] - self.base[qid] for qid in self.base])
        settings = ComparisonSettings()
        if len(differences) < 2:
            return Gain(cause, name, scope, float(differences.mean()), nan, nan)
        difference = describe(differences, p_value(differences, settings), 1.0, settings.alpha)
        return Gain(cause, name, scope, difference.mean, difference.low, difference.high)

    def _moved(self, ranks: Mapping[Miss, int]) -> dict[str, Hits]:
        """Return the hits with passages moved to the ranks that a change gives each of them."""
        hits_by_query = dict(self._evidence.hits)
        for miss, rank in sorted(ranks.items(), key=lambda item: item[1]):
            others = [hit for hit in hits_by_query[miss.qid] if hit[0] != miss.docid]
            others.insert(rank - 1, (miss.docid, 0.0))
            hits_by_query[miss.qid] = others
        return hits_by_query

    def _gain_of_words(self, words: causes.WeightOfWords) -> Gain:
        """Return the gain of the best weight of BM25, chosen on other queries than it counts on."""
        weights = sorted(words.weights)
        values_by_weight = [self._values(words.hits_with(weight)) for weight in weights]
        qids = sorted(self.base)
        table = np.array([[values[qid] for qid in qids] for values in values_by_weight])  # (W, Q)
        values, chosen = cross_validated(table, FOLDS)
        chosen_weights = sorted({weights[row] for row in chosen})
        names = ", ".join(f"{weight:g}" for weight in chosen_weights)
        name = f"{words.name} (weight {names} by {FOLDS}-fold cross-validation)"
        return self._gain(words.cause, name, ALL_QUERIES, dict(zip(qids, values, strict=True)))


def cross_validated(table: np.ndarray, folds: int) -> tuple[list[float], list[int]]:
    """Choose a row of a table for each fold of its columns, by the mean over the other folds.

    (W, Q) values -> the values (Q,) of the chosen rows, and the row of each fold. Column q is of
    fold q modulo `folds`.

    >>> table = np.array([[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    >>> cross_validated(table, 2)
    ([1.0, 0.0, 1.0, 1.0], [0, 0])
    """
    column_count = table.shape[1]
    fold_of_column = np.arange(column_count) % folds
    values = np.zeros(column_count)
    chosen = []
    for fold in range(min(folds, column_count)):
        others = table[:, fold_of_column != fold]
        means = others.mean(axis=1) if others.size else table.mean(axis=1)
        row = int(means.argmax())
        chosen.append(row)
        in_fold = fold_of_column == fold
        values[in_fold] = table[row, in_fold]
    return values.tolist(), chosen
