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
from pathlib import Path
from typing import NamedTuple

import numpy as np

from denserk.config.analysis import MissesSettings
from denserk.config.encoding import ComputeSettings
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.data.sampling import choose_records
from denserk.errors import InputError, MismatchError, UsageError
from denserk.evaluation.measures import Measure, parse_measures
from denserk.evaluation.results import Grades
from denserk.io.exclusions import read_exclusions
from denserk.io.misses import ALL_TRIED, FOUND, MODEL, TITLES, MissedPassage, write_misses
from denserk.io.model_files import look_for_model
from denserk.io.near_paths import no_such_path
from denserk.io.qrels import read_qrels_map
from denserk.io.short_texts import first_names
from denserk.records import Passage
from denserk.tasks.analyze.miss_causes import CAUSES, NotTried, find_changes, open_missed_run
from denserk.tasks.analyze.miss_gains import Evaluation, Gain, Trials
from denserk.tasks.analyze.miss_hits import DEPTH_FACTOR, find_hubs
from denserk.tasks.analyze.miss_inputs import (
    RunOrigin,
    origin_of,
    read_hits,
    read_texts,
    read_topics,
)
from denserk.tasks.analyze.miss_search import HitsByQuery, rank_of
from denserk.tasks.analyze.miss_trials import Evidence, Miss, Trial

logger = logging.getLogger(__name__)


class CauseCount(NamedTuple):
    """How many missed passages have a cause."""

    cause: str
    title: str
    misses: int  # passages of which this is the cheapest change that brings them in
    brings_in: int  # passages that it brings in, alone; also those with a cheaper cause
    not_tried: str = ""  # why it was not tried; empty if it was
    applies: bool = True  # whether passages of this run can be missed for it


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
    # what --set topics-field takes to search with a further field of the topics: "title,text"
    unsearched_fields: tuple[str, ...] = ()

    @property
    def missed(self) -> int:
        """The number of passages that are not among the first K hits."""
        return sum(passage.cause != FOUND for passage in self.passages)


def analyze_misses(
    settings: MissesSettings,
    corpus: CorpusSettings = DETECTED,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
) -> MissesResult:
    """Find the causes of a run's misses, write their table, and measure each change."""
    _reject_unknown_causes(settings.causes)
    _reject_missing_sources(settings)
    measure = _measure(settings)
    origin = origin_of(settings)
    run_hits = read_hits(settings.run)
    grades = _read_grades(settings, run_hits)
    hits = {qid: run_hits[qid] for qid in grades}
    _warn_of_shallow_run(settings, hits)
    passages_to_analyse = _chosen_passages(settings, grades, hits)
    topics = read_topics(origin, grades.keys())
    evidence = Evidence(
        settings=settings,
        hits=hits,
        grades=grades,
        queries=topics.queries,
        queries_with_field=topics.queries_with_field,
        texts=_texts_of(settings, origin, corpus, passages_to_analyse, grades, hits),
        hubs=_hubs(settings, run_hits),
    )
    found_passages, misses = _split_found(passages_to_analyse, settings.k)
    run = open_missed_run(settings, origin, evidence, misses, corpus, compute)
    tried = find_changes(run)
    trials = {change: change.try_change(misses) for change in tried.changes}
    passages = (*found_passages, *_name_causes(misses, trials, settings.k))
    write_misses(settings.output, settings.run, passages)
    evaluation = Evaluation(measure, evidence)
    gains = list(evaluation.gains(misses, trials))
    return MissesResult(
        run=settings.run,
        measure=str(measure),
        k=settings.k,
        value=float(np.mean(list(evaluation.base.values()))),
        queries=len(grades),
        relevant=sum(len(evidence.relevant(qid)) for qid in grades),
        passages=passages,
        causes=tuple(_count_causes(passages, tried.not_tried)),
        gains=tuple(gains),
        unsearched_fields=tuple(topics.queries_with_field),
    )


def _measure(settings: MissesSettings) -> Measure:
    """Return the measure of the gains."""
    text = settings.measure or f"nDCG@{settings.k}"
    measures = parse_measures([text], settings.relevance_level).measures
    if len(measures) != 1:
        raise UsageError(f"--measure {text}: {len(measures)} measures", "give one, such as nDCG@10")
    return measures[0]


def _reject_unknown_causes(names: Sequence[str]) -> None:
    """Raise a UsageError for a cause that is not tried by any change."""
    known = [cause.name for cause in CAUSES]
    for name in names:
        if name not in known:
            raise UsageError(f"--set causes: found {name!r}", f"choose among {','.join(known)}")


def _reject_missing_sources(settings: MissesSettings) -> None:
    """Raise an error for a BM25 or a reranker that is not there, before anything is read."""
    if settings.bm25 is not None and not Path(settings.bm25).exists():
        raise no_such_path(settings.bm25, f"--bm25 {settings.bm25}: no such file or folder")
    if settings.reranker is not None:
        look_for_model(settings.reranker)


def _read_grades(settings: MissesSettings, run_hits: HitsByQuery) -> dict[str, dict[str, int]]:
    """Return the judgments of the queries that are analysed.

    They are a sample of those that have a relevant passage, and hits in the run.
    """
    judged = read_qrels_map(settings.qrels)
    level = settings.relevance_level
    answerable = [
        qid for qid, grades in judged.items() if any(grade >= level for grade in grades.values())
    ]
    if not answerable:
        message = f"no passage of a grade of {level} or more"
        raise InputError(settings.qrels, None, message, "relevant passages", "give another -l")
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


def _warn_of_shallow_run(settings: MissesSettings, hits: HitsByQuery) -> None:
    """Warn of a run that has fewer hits than the ranks within which passages count as found."""
    depth = max(map(len, hits.values()))
    if depth < settings.k:
        logger.warning(
            f"{settings.run} has at most {depth:,} hits a query, and -k is {settings.k:,}: "
            "passages below its last hit count as missed, and most changes look no deeper; search "
            f"with --hits {10 * settings.k}, or give a smaller -k"
        )


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
    analysed: Sequence[Miss],
    grades: Grades,
    hits: HitsByQuery,
) -> dict[str, Passage]:
    """Return the texts of analysed and of judged passages and of the first hits, by id."""
    depth = DEPTH_FACTOR * settings.k
    docids = {passage.docid for passage in analysed}
    for qid, hits_of_query in hits.items():
        docids.update(grades[qid])
        docids.update(docid for docid, _ in hits_of_query[:depth])
    return read_texts(origin, settings.run, corpus, docids)


def _hubs(settings: MissesSettings, run_hits: HitsByQuery) -> set[str]:
    """Return the hubs among the first hits of all queries of the run."""
    first_hits = [[docid for docid, _ in hits[: settings.k]] for hits in run_hits.values()]
    return find_hubs(first_hits, settings.hub_share)


def _split_found(passages: Sequence[Miss], k: int) -> tuple[list[MissedPassage], list[Miss]]:
    """Return the rows of passages among the first K hits, and the passages that are missed."""
    found_passages = []
    misses = []
    for passage in passages:
        if passage.rank is not None and passage.rank <= k:
            found_passages.append(MissedPassage(*passage, FOUND))
        else:
            misses.append(passage)
    return found_passages, misses


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


def _count_causes(
    passages: Sequence[MissedPassage], not_tried: Mapping[str, NotTried]
) -> Iterator[CauseCount]:
    """Yield the counts of all causes, in their order; `not_tried` says why, by cause."""
    titles = dict(TITLES)
    if not any(cause.applies for cause in not_tried.values()):
        titles[MODEL] = ALL_TRIED
    counts = Counter(passage.cause for passage in passages)
    also: Counter[str] = Counter()
    for passage in passages:
        also.update(passage.also)
    for cause, title in titles.items():
        if cause == FOUND and not counts[FOUND]:
            continue
        brings_in = counts[cause] + also[cause]
        if cause in (MODEL, FOUND):
            brings_in = 0
        reason, applies = not_tried.get(cause, NotTried("", True))
        yield CauseCount(cause, title, counts[cause], brings_in, reason, applies)
