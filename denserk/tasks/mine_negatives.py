"""Runs over training queries -> training data with hard negatives.

What memory holds grows with the queries and with the passages that are named, by a few bytes each,
and not with the runs: hits wait on the disk (TMPDIR says where) until their query's turn comes, in
the order of the training data. So neither the order of a run nor the division into parts changes
what a query is given.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from denserk.data.negatives import Drops, Hit, choose, guard_scores
from denserk.errors import UsageError
from denserk.formats.detection import told
from denserk.formats.manifest import (
    Kind,
    Manifest,
    file_sha256,
    forget_manifest,
    has_manifest,
    write_manifest,
)
from denserk.formats.outputs import scratch_folder
from denserk.formats.passage_texts import PassageTexts
from denserk.formats.sources import read_passages
from denserk.formats.training import write_training
from denserk.records import Candidate, Passage, TrainingExample
from denserk.reporting import track
from denserk.settings.encoding import ComputeSettings
from denserk.settings.formats import DETECTED, CorpusSettings
from denserk.settings.mining import MiningPaths, MiningSettings
from denserk.settings.options import as_json
from denserk.tasks.mining_pools import MiningPools
from denserk.tasks.mining_queries import MiningQueries, gather_queries
from denserk.tasks.mining_texts import TextGuards, refuse_missing, with_texts

logger = logging.getLogger(__name__)

NOTHING: Mapping[str, Any] = {}
Examples = Iterator[TrainingExample]


@dataclass
class MiningResult:
    """What came out.

    Queries and negatives that were written; hits that became positives; queries with fewer
    negatives than asked for. Then counts by reason: hits that were dropped, inputs that were left
    out, and what else is worth knowing.
    """

    queries: int = 0
    negatives: int = 0
    promoted: int = 0
    short: int = 0
    dropped: Drops = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    noticed: Counter[str] = field(default_factory=Counter)


def mine_negatives(
    paths: MiningPaths,
    settings: MiningSettings = MiningSettings(),  # noqa: B008  (frozen)
    corpus: CorpusSettings = DETECTED,
    text: Mapping[str, Any] = NOTHING,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008
) -> MiningResult:
    """Mines negatives from runs and writes training data.

    Args:
        paths: the inputs and the output.
        settings: which hits become negatives.
        corpus: how the passages are read.
        text: fields of `TextSettings` that replace what the teacher's folder says.
        compute: where and how a teacher scores.

    Raises:
        UsageError: an input or a setting is not there to choose.
        InputError: an input is broken, or does not fit the others.
        OutputError: the output cannot be written.
    """
    with scratch_folder("mining") as scratch, ExitStack() as files:
        mining = _Mining(paths, settings, Path(scratch), files)
        teach = mining.lesson(text, compute)
        mining.gather(corpus)
        candidates = teach(mining.candidates())
        forget_manifest(paths.output)
        write_training(paths.output, mining.chosen(candidates), paths.output_format)
    result = mining.whole_result()
    _tell(result, settings)
    if has_manifest(paths.output):
        _write_manifest(paths, settings, corpus, result)
    return result


class _Mining:
    """The steps: inputs are gathered, then queries pass through one by one.

    A query's candidates are the negatives of an example, best first, until some are chosen.
    """

    def __init__(
        self,
        paths: MiningPaths,
        settings: MiningSettings,
        scratch: Path,
        files: ExitStack,
    ) -> None:
        (
            self._paths,
            self._settings,
        ) = (
            paths,
            settings,
        )
        self.result = MiningResult()
        drops = self.result.dropped
        self._names = [told(run) for run in paths.run]
        self._queries = files.enter_context(closing(MiningQueries(scratch / "queries")))
        gather_queries(self._queries, paths, settings.min_relevance, self.result.left_out)
        self._numbers = _part(len(self._queries), settings)
        self._guards = TextGuards(paths, settings, self._queries, drops)
        pools = MiningPools(
            scratch / "hits",
            self._queries,
            self._numbers,
            runs=len(paths.run),
            settled=len(paths.run) == 1 and not self._guards.needed,
            settings=settings,
            drops=drops,
        )
        self._pools = files.enter_context(closing(pools))
        self._texts = files.enter_context(closing(PassageTexts(scratch / "passages")))

    def whole_result(self) -> MiningResult:
        """The result, with what was noticed on the way."""
        self.result.noticed = self._pools.noticed + self._guards.noticed
        return self.result

    def gather(self, corpus: CorpusSettings) -> None:
        """Reads the runs, and the texts that are needed."""
        texts = self._texts if self._paths.corpus is not None else None
        for number, run in enumerate(self._paths.run):
            self._pools.read(number, run, self._paths.run_format, texts)
        if not self._settings.skip_missing:
            self._pools.refuse_absent(", ".join(self._paths.run))
        if self._paths.corpus is None:
            return
        for number in self._numbers:
            positives = self._queries.example(number).positives
            self._texts.refer([c.docid for c in positives if not c.text])
        with track("reading the corpus", None, "passages") as progress:
            passages = read_passages(self._paths.corpus, corpus)
            self._texts.find(passages, self._paths.corpus, progress)
        if self._texts.missing and not self._settings.skip_missing:
            needed = self._needed()
            refuse_missing(self._paths.corpus, self._texts.missing, needed, self._texts)

    def _needed(self) -> Iterator[str]:
        """The ids of all passages whose texts are needed."""
        for number in self._numbers:
            yield from (c.docid for c in self._queries.example(number).positives if not c.text)
            yield from (hit.docid for hit in self._pools.hits(number))

    def candidates(self) -> Examples:
        """The queries, their negatives all hits that may be some."""
        left_out = self.result.left_out
        absent = frozenset(self._pools.absent())
        left_out["queries without hits"] += len(absent)
        for number in self._numbers:
            if number in absent:
                continue
            hits = self._pools.hits(number)
            example = self._queries.example(number)
            if self._guards.reads_texts:
                example = self._with_texts(example, hits)
            else:
                negatives = tuple(Candidate(hit.docid) for hit in hits)
                example = example._replace(negatives=negatives)
            if example.positives:
                yield example
            else:
                left_out["queries without a positive left"] += 1

    def _with_texts(self, example: TrainingExample, hits: Sequence[Hit]) -> TrainingExample:
        """The example with the texts of its positives, and with the hits that may be negatives."""
        known = len(example.positives)
        example = with_texts(example, self._texts)
        self.result.left_out["positives that the corpus lacks"] += known - len(example.positives)
        passages = self._texts.get([hit.docid for hit in hits])
        pairs = [(h, p) for h, p in zip(hits, passages, strict=True) if p is not None]
        self.result.dropped["not in the corpus"] += len(hits) - len(pairs)
        pairs, promoted = self._guards.divide(example, pairs)
        self.result.promoted += len(promoted)
        gold = example.positives if self._settings.keep_gold else ()
        return example._replace(
            positives=(*gold, *(self._candidate(hit, passage) for hit, passage in promoted)),
            negatives=tuple(self._candidate(hit, passage) for hit, passage in pairs),
        )

    def _candidate(self, hit: Hit, passage: Passage) -> Candidate:
        source = {"rank": hit.rank, "run": self._names[hit.run]}
        return Candidate(hit.docid, passage.text, passage.title, hit.score, source)

    def lesson(
        self, text: Mapping[str, Any], compute: ComputeSettings
    ) -> Callable[[Examples], Examples]:
        """What exchanges the runs' scores for the teacher's, and guards by those.

        Without a teacher it leaves the examples as they are.
        """
        if self._settings.teacher is None:
            return lambda examples: examples
        from denserk.tasks.teacher_scores import load_teacher, scored  # torch is for teachers alone

        teacher = load_teacher(self._settings.teacher, text, compute)
        source = self._paths.train or self._paths.topics or ""

        def taught(examples: Examples) -> Examples:
            for example in scored(map(_keep_run_scores, examples), teacher, source):
                best = max(candidate.score or 0.0 for candidate in example.positives)
                scores = [candidate.score or 0.0 for candidate in example.negatives]
                places, _ = guard_scores(
                    scores, range(len(scores)), best, self._settings, self.result.dropped
                )
                yield example._replace(negatives=tuple(example.negatives[p] for p in places))

        return taught

    def chosen(self, examples: Examples) -> Examples:
        """The queries with the negatives that they keep."""
        result = self.result
        with track("mining", len(self._numbers), "queries") as progress:
            for example in examples:
                progress.advance()
                places = choose(len(example.negatives), example.qid, self._settings)
                if not places:
                    result.left_out["queries without a negative left"] += 1
                    continue
                result.queries += 1
                result.negatives += len(places)
                result.short += len(places) < self._settings.num_negatives
                yield example._replace(negatives=tuple(example.negatives[p] for p in places))


def _keep_run_scores(example: TrainingExample) -> TrainingExample:
    """The runs' scores under a name of their own."""

    def kept(candidate: Candidate) -> Candidate:
        if "run" not in candidate.extra:
            return candidate
        return candidate._replace(extra={**candidate.extra, "run_score": candidate.score})

    return example._replace(
        positives=tuple(map(kept, example.positives)), negatives=tuple(map(kept, example.negatives))
    )


def _part(queries: int, settings: MiningSettings) -> range:
    """The numbers of the queries of this part."""
    if settings.shard_num > queries:
        raise UsageError(
            f"--shard-num {settings.shard_num}: there are {queries:,} queries", "fewer parts"
        )
    first, last = ((settings.shard_id + step) * queries // settings.shard_num for step in (0, 1))
    return range(first, last)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{reason}: {count:,}" for reason, count in counts.items() if count)


def _tell(result: MiningResult, settings: MiningSettings) -> None:
    if dropped := _counted(result.dropped):
        logger.info(f"hits dropped: {dropped}")
    if result.promoted:
        logger.info(f"hits that became positives: {result.promoted:,}")
    if noticed := _counted(result.noticed):
        logger.info(noticed)
    if left_out := _counted(result.left_out):
        logger.warning(f"left out: {left_out}")
    if result.short:
        logger.info(f"queries with fewer than {settings.num_negatives} negatives: {result.short:,}")


def _write_manifest(
    paths: MiningPaths, settings: MiningSettings, corpus: CorpusSettings, result: MiningResult
) -> None:
    def source(name: str | None) -> dict[str, Any] | None:
        if name is None:
            return None
        return {"name": name} | ({"sha256": file_sha256(name)} if Path(name).is_file() else {})

    names = ("train", "topics", "qrels", "answers")
    made_from: dict[str, Any] = {name: source(getattr(paths, name)) for name in names}
    made_from["runs"] = [source(run) for run in paths.run]
    made_from["corpus"] = {"name": paths.corpus, **as_json(corpus)}
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
