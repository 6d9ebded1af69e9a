"""Runs over training queries -> training data with hard negatives.

What memory holds grows with the queries and with the passages that are named, by a few bytes each,
and not with the runs: hits wait on the disk (TMPDIR says where) until their query's turn comes, in
the order of the training data. So neither the order of a run nor the division into parts changes
what a query is given.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import orjson

from denserk.data.negatives import (
    Drops,
    Hit,
    Pool,
    choose,
    count_ties,
    guard_hits,
    guard_scores,
    merge_pools,
    rank_hits,
)
from denserk.data.passage_texts import PassageTexts
from denserk.data.scratch_records import ScratchRecords
from denserk.errors import InputError, UsageError
from denserk.formats.detection import told
from denserk.formats.manifest import Kind, Manifest, file_sha256, write_manifest
from denserk.formats.run_groups import read_groups
from denserk.formats.sources import read_passages
from denserk.formats.training import write_training
from denserk.records import Candidate, Passage, TrainingExample
from denserk.reporting import SILENT, Reporter
from denserk.settings.encoding import ComputeSettings
from denserk.settings.formats import DETECTED, CorpusSettings
from denserk.settings.mining import WITHOUT_TEXTS, AnswerBearing, MiningPaths, MiningSettings
from denserk.settings.options import as_json
from denserk.tasks.mining_queries import MiningQueries, gather_queries, named
from denserk.tasks.mining_texts import TextGuards
from denserk.tasks.run_manifest import forget_manifest, has_manifest

NOTHING: Mapping[str, Any] = {}


@dataclass
class MiningResult:
    """What came out: queries and negatives written; hits dropped and inputs left out, by reason."""

    queries: int = 0
    negatives: int = 0
    promoted: int = 0
    short: int = 0
    dropped: Drops = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    noticed: Counter[str] = field(default_factory=Counter)


class _Found(NamedTuple):
    """A query's example, whose negatives are the candidates, and their hits."""

    example: TrainingExample
    hits: list[Hit]


class _Pools:
    """What the runs leave for each query, on the disk: 8 bytes a query and run in memory."""

    def __init__(self, path: Path, runs: int, queries: int) -> None:
        self._records = ScratchRecords(path)
        self._rows = np.full((queries, runs), -1, dtype=np.int64)

    def add(self, number: int, run: int, pool: Pool) -> None:
        record = ([tuple(hit) for hit in pool.hits], pool.suspected)
        self._rows[number, run] = self._records.append(orjson.dumps(record))

    def of(self, number: int) -> list[Pool]:
        """The pools of a query, in the order of the runs; none where no run knows it."""
        pools = []
        for row in self._rows[number]:
            if row >= 0:
                hits, suspected = orjson.loads(self._records[int(row)])
                pools.append(Pool([Hit(*values) for values in hits], suspected))
        return pools

    def without(self, numbers: range) -> list[int]:
        """The queries that no run knows."""
        absent = (self._rows[numbers.start : numbers.stop] < 0).all(axis=1)
        return [numbers[place] for place in np.flatnonzero(absent).tolist()]

    def close(self) -> None:
        self._records.close()


def mine_negatives(
    paths: MiningPaths,
    settings: MiningSettings = MiningSettings(),  # noqa: B008  (frozen)
    corpus: CorpusSettings = DETECTED,
    text: Mapping[str, Any] = NOTHING,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008
    reporter: Reporter = SILENT,
) -> MiningResult:
    """Mines negatives from runs and writes training data.

    Args:
        paths: the inputs and the output.
        settings: which hits become negatives.
        corpus: how the passages are read.
        text: fields of `TextSettings` that replace what the teacher's folder says.
        compute: where and how a teacher scores.
        reporter: told what was detected, what was dropped, and of progress.

    Raises:
        UsageError: an input or a setting is not there to choose.
        InputError: an input is broken, or does not fit the others.
        OutputError: the output cannot be written.
    """
    with TemporaryDirectory(prefix="denserk-mining-") as scratch:
        mining = _Mining(paths, settings, corpus, Path(scratch), reporter)
        try:
            mining.gather()
            forget_manifest(paths.output)
            examples = mining.examples(text, compute)
            write_training(paths.output, examples, paths.output_format, reporter)
        finally:
            mining.close()
    _tell(mining.result, settings, reporter)
    if has_manifest(paths.output):
        _write_manifest(paths, settings, corpus, mining.result)
    return mining.result


class _Mining:
    """One run of the command, step by step."""

    def __init__(
        self,
        paths: MiningPaths,
        settings: MiningSettings,
        corpus: CorpusSettings,
        scratch: Path,
        reporter: Reporter,
    ) -> None:
        self._paths, self._settings, self._corpus = paths, settings, corpus
        self._reporter = reporter
        self.result = MiningResult()
        self._names = [told(run) for run in paths.run]
        self._queries: MiningQueries = gather_queries(
            paths, settings.min_relevance, scratch / "queries", self.result.left_out, reporter
        )
        self._numbers = _part(len(self._queries), settings)
        self._pools = _Pools(scratch / "hits", len(paths.run), len(self._queries))
        self._texts = PassageTexts(scratch / "passages")
        self._guards = TextGuards(paths, settings, self._queries, self.result.dropped)
        self._with_texts = self._guards.needed or paths.output_format not in WITHOUT_TEXTS

    def close(self) -> None:
        """Lets the files go."""
        for kept in (self._queries, self._pools, self._texts):
            kept.close()

    def gather(self) -> None:
        """Reads the runs, and the texts that are needed."""
        for number, run in enumerate(self._paths.run):
            self._read_run(number, run)
        absent = self._pools.without(self._numbers)
        if absent:
            self._refuse_absent(absent)
        if self._paths.corpus is not None:
            self._find_texts(self._paths.corpus)

    def _read_run(self, run: int, path: str) -> None:
        queries, settings, result = self._queries, self._settings, self.result
        settled = len(self._paths.run) == 1 and not self._guards.needed
        known = hits = 0
        with self._reporter.track(f"reading {self._names[run]}", None, "queries") as progress:
            for group in read_groups(path, self._reporter, self._paths.run_format):
                progress.advance()
                hits += len(group.docids)
                number = queries.number_of.get(group.qid)
                if number is None:
                    result.noticed["queries of a run that are not asked for"] += 1
                    continue
                known += 1
                if number not in self._numbers:
                    continue
                ranked = rank_hits(group.docids, group.scores, run)
                result.noticed["ties, which fall by passage id"] += count_ties(group.scores)
                pool = guard_hits(ranked, queries.positives[number], settings, result.dropped)
                if settled:
                    pool = Pool(choose(pool.hits, group.qid, settings), [])
                self._texts.refer([hit.docid for hit in pool.hits])
                self._pools.add(number, run, pool)
        if not known:
            found = "no hits" if not hits else f"none of the {len(queries):,} queries"
            raise InputError(path, None, found, "hits for the queries that are mined for")

    def _refuse_absent(self, absent: list[int]) -> None:
        self.result.left_out["queries without hits"] += len(absent)
        if not self._settings.skip_missing:
            qids = [self._queries.example(number).qid for number in absent[:6]]
            raise InputError(
                ", ".join(self._paths.run),
                None,
                f"no hits for {len(absent):,} of {len(self._numbers):,} queries ({named(qids)})",
                "hits for every query",
                "add --skip-missing to leave such queries out",
            )

    def _find_texts(self, corpus: str) -> None:
        for number in self._numbers:
            positives = self._queries.example(number).positives
            self._texts.refer([c.docid for c in positives if not c.text and c.docid])
        with self._reporter.track("reading the corpus", None, "passages") as progress:
            passages = read_passages(corpus, self._corpus, self._reporter)
            self._texts.find(passages, corpus, progress)
        if self._texts.missing and not self._settings.skip_missing:
            self._refuse_missing(corpus)

    def _refuse_missing(self, corpus: str) -> None:
        some: dict[str, None] = {}
        for number in self._numbers:
            docids = [hit.docid for pool in self._pools.of(number) for hit in pool.hits]
            docids += [c.docid for c in self._queries.example(number).positives if not c.text]
            passages = self._texts.get(docids)
            some |= dict.fromkeys(d for d, p in zip(docids, passages, strict=True) if p is None)
            if len(some) > 5:
                break
        raise InputError(
            corpus,
            None,
            f"no passages with {self._texts.missing:,} of the ids that runs and training data "
            f"name ({named(some)})",
            "the corpus that was searched",
            "add --skip-missing to leave such passages out",
        )

    def examples(
        self, text: Mapping[str, Any], compute: ComputeSettings
    ) -> Iterator[TrainingExample]:
        """The queries with their negatives, in their order."""
        found = self._candidates()
        if self._settings.teacher is not None:
            found = self._taught(found, text, compute)
        with self._reporter.track("mining", len(self._numbers), "queries") as progress:
            for example, hits in found:
                progress.advance()
                kept = choose(hits, example.qid, self._settings)
                if not kept:
                    self.result.left_out["queries without a negative left"] += 1
                    continue
                by_id = {candidate.docid: candidate for candidate in example.negatives}
                self.result.queries += 1
                self.result.negatives += len(kept)
                self.result.short += len(kept) < self._settings.num_negatives
                yield example._replace(negatives=tuple(by_id[hit.docid] for hit in kept))

    def _candidates(self) -> Iterator[_Found]:
        """The queries with all hits that may become negatives."""
        for number in self._numbers:
            pools = self._pools.of(number)
            if not pools:
                continue
            hits = merge_pools(pools, self.result.dropped)
            example = self._queries.example(number)
            if not self._with_texts:
                negatives = tuple(self._candidate(hit, Passage(hit.docid, "")) for hit in hits)
                yield _Found(example._replace(negatives=negatives), hits)
                continue
            example = self._with_positives(example)
            if not example.positives:
                self.result.left_out["queries whose positives the corpus lacks"] += 1
                continue
            passages = self._texts.get([hit.docid for hit in hits])
            pairs = [(h, p) for h, p in zip(hits, passages, strict=True) if p is not None]
            self.result.dropped["not in the corpus"] += len(hits) - len(pairs)
            pairs, promoted = self._guards.divide(example, pairs)
            positives = tuple(self._candidate(hit, passage) for hit, passage in promoted)
            self.result.promoted += len(positives)
            if self._settings.keep_gold:
                positives = (*example.positives, *positives)
            if not positives:
                self.result.left_out["queries without a hit to promote"] += 1
                continue
            negatives = tuple(self._candidate(hit, passage) for hit, passage in pairs)
            found = example._replace(positives=positives, negatives=negatives)
            yield _Found(found, [hit for hit, _ in pairs])

    def _candidate(self, hit: Hit, passage: Passage) -> Candidate:
        source = {"rank": hit.rank, "run": self._names[hit.run]}
        return Candidate(hit.docid, passage.text, passage.title, hit.score, source)

    def _with_positives(self, example: TrainingExample) -> TrainingExample:
        """Fills in the texts of positives; without those that the corpus lacks."""
        bare = [c.docid for c in example.positives if not c.text]
        if not bare:
            return example
        passages = dict(zip(bare, self._texts.get(bare), strict=True))
        filled = []
        for candidate in example.positives:
            passage = passages.get(candidate.docid)
            if candidate.text:
                filled.append(candidate)
            elif passage is not None:
                filled.append(candidate._replace(text=passage.text, title=passage.title))
            else:
                self.result.left_out["positives that the corpus lacks"] += 1
        return example._replace(positives=tuple(filled))

    def _taught(
        self, found: Iterator[_Found], text: Mapping[str, Any], compute: ComputeSettings
    ) -> Iterator[_Found]:
        """Exchanges the run's scores for the teacher's, and looks at them."""
        from denserk.tasks.teacher_scores import load_teacher, scored  # torch is for teachers alone

        assert self._settings.teacher is not None
        teacher = load_teacher(self._settings.teacher, text, compute, self._reporter)
        held: deque[list[Hit]] = deque()

        def examples() -> Iterator[TrainingExample]:
            for example, hits in found:
                held.append(hits)
                yield example._replace(negatives=tuple(map(_with_run_score, example.negatives)))

        for example in scored(examples(), teacher, self._paths.train or self._paths.topics or ""):
            best = max((c.score for c in example.positives if c.score is not None), default=None)
            hits = [
                hit._replace(score=candidate.score or 0.0)
                for hit, candidate in zip(held.popleft(), example.negatives, strict=True)
            ]
            yield _Found(example, guard_scores(hits, best, self._settings, self.result.dropped))


def _with_run_score(candidate: Candidate) -> Candidate:
    return candidate._replace(extra={**candidate.extra, "run_score": candidate.score})


def _part(queries: int, settings: MiningSettings) -> range:
    """The numbers of the queries of this part."""
    if settings.shard_num > queries:
        raise UsageError(f"--shard-num {settings.shard_num}: there are {queries:,} queries")
    first, last = ((settings.shard_id + step) * queries // settings.shard_num for step in (0, 1))
    return range(first, last)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{reason}: {count:,}" for reason, count in counts.items() if count)


def _tell(result: MiningResult, settings: MiningSettings, reporter: Reporter) -> None:
    if dropped := _counted(result.dropped):
        reporter.note(f"hits dropped: {dropped}")
    if noticed := _counted(result.noticed):
        reporter.note(noticed)
    if left_out := _counted(result.left_out):
        reporter.warn(f"left out: {left_out}")
    if result.short:
        reporter.note(
            f"queries with fewer than {settings.num_negatives} negatives: {result.short:,}"
        )
    if settings.answer_bearing is AnswerBearing.PROMOTE:
        reporter.note(f"promoted to positives: {result.promoted:,}")


def _write_manifest(
    paths: MiningPaths, settings: MiningSettings, corpus: CorpusSettings, result: MiningResult
) -> None:
    def named_file(name: str | None) -> dict[str, Any] | None:
        if name is None:
            return None
        return {"name": name} | ({"sha256": file_sha256(name)} if Path(name).is_file() else {})

    made_from = {
        "train": named_file(paths.train),
        "topics": named_file(paths.topics),
        "qrels": named_file(paths.qrels),
        "answers": named_file(paths.answers),
        "runs": [named_file(run) for run in paths.run],
        "corpus": {"name": paths.corpus, **as_json(corpus)},
    }
    contents = {
        "queries": result.queries,
        "negatives": result.negatives,
        "promoted": result.promoted,
        "short": result.short,
        "dropped": dict(+result.dropped),
        "left_out": dict(+result.left_out),
        "noticed": dict(+result.noticed),
        "sha256": file_sha256(paths.output),
    }
    asked = as_json(settings) | {"output_format": paths.output_format.value}
    write_manifest(paths.output, Manifest(Kind.TRAINING, True, asked, made_from, contents))
