"""Mine hard negatives from runs over training queries, and write training data."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denserk.config.encoding import ComputeSettings
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.config.mining import WITHOUT_TEXTS, AnswerBearing, MiningPaths, MiningSettings
from denserk.config.options import as_json
from denserk.errors import InputError, UsageError
from denserk.evaluation.answers import match_answers
from denserk.io.corpus import PassageTexts, read_passages
from denserk.io.files import ScratchRecords, display_name, some
from denserk.io.manifest import (
    Kind,
    Manifest,
    file_sha256,
    forget_manifest,
    has_manifest,
    write_manifest,
)
from denserk.io.outputs import scratch_folder
from denserk.io.training import write_training
from denserk.mining.candidates import MiningPools, MiningQueries
from denserk.mining.guards import Drops, Hit, TextOverlap, choose, guard_scores, words
from denserk.mining.teacher import scored
from denserk.records import Candidate, Passage, TrainingExample
from denserk.reporting import track

if TYPE_CHECKING:
    from denserk.models.cross_encoder import PairScorer

logger = logging.getLogger(__name__)

NOTHING: Mapping[str, Any] = {}
Examples = Iterator[TrainingExample]
Pairs = list[tuple[Hit, Passage]]


@dataclass
class MiningResult:
    """Counts of a mining run: what was written, and by reason what was not."""

    queries: int = 0
    negatives: int = 0
    promoted: int = 0  # hits that became positives
    short: int = 0  # queries with fewer negatives than asked for
    dropped: Drops = field(default_factory=Counter)  # hits
    left_out: Counter[str] = field(default_factory=Counter)  # inputs
    noticed: Counter[str] = field(default_factory=Counter)  # what else is worth a message

    def log(self, wanted: int) -> None:
        """Log the counts that are not zero; `wanted` is the number of negatives per query."""
        if dropped := _listed(self.dropped):
            logger.info(f"hits dropped: {dropped}")
        if self.promoted:
            logger.info(f"hits that became positives: {self.promoted:,}")
        if noticed := _listed(self.noticed):
            logger.info(noticed)
        if left_out := _listed(self.left_out):
            logger.warning(f"left out: {left_out}")
        if self.short:
            logger.info(f"queries with fewer than {wanted} negatives: {self.short:,}")


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{reason}: {count:,}" for reason, count in counts.items() if count)


def mine_negatives(
    paths: MiningPaths,
    settings: MiningSettings = MiningSettings(),  # noqa: B008  (frozen)
    corpus: CorpusSettings = DETECTED,
    text: Mapping[str, Any] = NOTHING,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008
) -> MiningResult:
    """Mine negatives from runs and write training data.

    Args:
        paths: the inputs and the output.
        settings: which hits become negatives.
        corpus: how the passages are read.
        text: fields of `TextSettings` that replace those of the teacher.
        compute: where and how a teacher scores.
    """
    with scratch_folder("mining") as scratch, ExitStack() as files:
        mining = _Mining(paths, settings, Path(scratch), files)
        teacher = None
        if settings.teacher is not None:
            from denserk.models.cross_encoder import PairScorer  # needs torch

            teacher = PairScorer.load(settings.teacher, text, None, compute)
        mining.read(corpus)
        candidates = mining.candidates()
        if teacher is not None:
            candidates = mining.rescored(candidates, teacher)
        forget_manifest(paths.output)
        write_training(paths.output, mining.chosen(candidates), paths.output_format)
    mining.result.noticed += mining.pools.noticed
    mining.result.log(settings.num_negatives)
    if has_manifest(paths.output):
        _write_manifest(paths, settings, corpus, mining.result)
    return mining.result


class _Mining:
    """The steps: read all inputs, then process the queries one by one.

    Until some are chosen, all candidates of a query are its example's negatives, best first.
    """

    def __init__(
        self, paths: MiningPaths, settings: MiningSettings, scratch: Path, files: ExitStack
    ) -> None:
        self._paths, self._settings = paths, settings
        self.result = MiningResult()
        drops, left_out = self.result.dropped, self.result.left_out
        records = [
            files.enter_context(closing(ScratchRecords(scratch / name)))
            for name in ("queries", "hits")
        ]
        queries = self._queries = MiningQueries(records[0])
        queries.read(paths, settings.min_relevance, left_out)
        self._numbers = _shard(len(queries), settings)
        default = AnswerBearing.DROP if paths.answers else AnswerBearing.KEEP
        self._bearing = settings.answer_bearing or default
        reads_answers = self._bearing is not AnswerBearing.KEEP
        self._without_ids = queries.without_ids > 0
        self._compares = self._without_ids or settings.compares_texts
        guarded = self._compares or reads_answers or settings.teacher is not None
        if guarded and paths.corpus is None:
            positives = "positives have no ids"
            why = positives if self._without_ids else "a guard reads the texts of hits"
            raise UsageError(f"{why}, and there is no corpus", "add --corpus")
        if reads_answers and not queries.answered:
            raise UsageError(
                f"--answer-bearing {self._bearing}: no query has answers",
                "add --answers, a file of questions with their answers",
            )
        self._reads_texts = guarded or paths.output_format not in WITHOUT_TEXTS
        self.pools = MiningPools(
            records[1],
            queries,
            self._numbers,
            runs=len(paths.run),
            final=len(paths.run) == 1 and not guarded,
            settings=settings,
            drops=drops,
        )
        self._texts = files.enter_context(closing(PassageTexts(scratch / "passages")))

    def read(self, corpus: CorpusSettings) -> None:
        """Read the runs, and the texts that are needed."""
        source, strict = self._paths.corpus, not self._settings.skip_missing
        for run in range(len(self._paths.run)):
            self.pools.read(run, self._paths, self._texts if source is not None else None)
        absent = self.pools.absent()
        if absent and strict:
            names = some(self._queries.example(number).qid for number in absent)
            raise InputError(
                ", ".join(self._paths.run),
                None,
                f"no hits for {len(absent):,} of {len(self._numbers):,} queries ({names})",
                "hits for every query",
                "add --skip-missing to leave such queries out",
            )
        if source is None:
            return
        for number in self._numbers:
            self._texts.refer(_without_text(self._queries.example(number)))
        with track("reading the corpus", None, "passages") as progress:
            self._texts.find(read_passages(source, corpus), source, progress)
        if self._texts.missing and strict:
            needed = (docid for docid in self._needed() if self._texts.get([docid]) == [None])
            raise InputError(
                source,
                None,
                f"no passages with {self._texts.missing:,} of the ids that runs and training data "
                f"name ({some(needed)})",
                "the corpus that was searched",
                "add --skip-missing to leave such passages out",
            )

    def _needed(self) -> Iterator[str]:
        """Yield the ids of all passages whose texts are needed."""
        for number in self._numbers:
            yield from _without_text(self._queries.example(number))
            yield from (hit.docid for hit in self.pools.hits(number))

    def candidates(self) -> Examples:
        """Yield the queries with all their candidates."""
        left_out = self.result.left_out
        absent = frozenset(self.pools.absent())
        left_out["queries without hits"] += len(absent)
        for number in self._numbers:
            if number in absent:
                continue
            hits = self.pools.hits(number)
            example = self._queries.example(number)
            if self._reads_texts:
                example = self._with_texts(example, hits)
            else:
                example = example._replace(negatives=tuple(Candidate(h.docid) for h in hits))
            if example.positives:
                yield example
            else:
                left_out["queries without a positive left"] += 1

    def _with_texts(self, example: TrainingExample, hits: Sequence[Hit]) -> TrainingExample:
        """Add the texts of the positives, and the hits that may be negatives."""
        bare = _without_text(example)
        found = dict(zip(bare, self._texts.get(bare), strict=True))
        positives = []
        for each in example.positives:
            if each.text:
                positives.append(each)
            elif passage := found.get(each.docid):
                positives.append(each._replace(text=passage.text, title=passage.title))
        lost = len(example.positives) - len(positives)
        self.result.left_out["positives that the corpus lacks"] += lost
        passages = self._texts.get([hit.docid for hit in hits])
        pairs = [(h, p) for h, p in zip(hits, passages, strict=True) if p is not None]
        self.result.dropped["not in the corpus"] += len(hits) - len(pairs)
        pairs, promoted = self._divide(example._replace(positives=tuple(positives)), pairs)
        self.result.promoted += len(promoted)
        gold = positives if self._settings.keep_gold else ()
        return example._replace(
            positives=(*gold, *(self._candidate(*pair) for pair in promoted)),
            negatives=tuple(self._candidate(*pair) for pair in pairs),
        )

    def _candidate(self, hit: Hit, passage: Passage) -> Candidate:
        source = {"rank": hit.rank, "run": display_name(self._paths.run[hit.run])}
        return Candidate(hit.docid, passage.text, passage.title, hit.score, source)

    def _divide(self, example: TrainingExample, pairs: Pairs) -> tuple[Pairs, Pairs]:
        """Divide a query's hits, with their passages, into possible negatives and new positives."""
        if self._compares:
            overlap = TextOverlap([candidate.text for candidate in example.positives])
            pairs = [pair for pair in pairs if not self._repeats(overlap, pair[1].text)]
        if self._bearing is AnswerBearing.KEEP:
            return pairs, []
        texts = [passage.text for _, passage in pairs]
        matches, unusable = match_answers(example.answers, texts, regex=self._settings.regex)
        noticed = self.result.noticed
        noticed["queries without an answer"] += not example.answers
        noticed["answers without a word, or no regular expression"] += len(unusable)
        found = [pair for pair, bears in zip(pairs, matches, strict=True) if bears]
        others = [pair for pair, bears in zip(pairs, matches, strict=True) if not bears]
        if self._bearing is AnswerBearing.PROMOTE:
            return others, found
        self.result.dropped["answer"] += len(found)
        return others, []

    def _repeats(self, overlap: TextOverlap, text: str) -> bool:
        """Return whether a text repeats a positive; count it by reason."""
        limit, found = self._settings.near_duplicate, words(text)
        reason = None
        if self._without_ids and overlap.equals(found):
            reason = "positives"
        elif self._settings.drop_literal and overlap.contains(found):
            reason = "literal"
        elif limit is not None and overlap.most_shared(found) >= limit:
            reason = "near-duplicate"
        if reason is not None:
            self.result.dropped[reason] += 1
        return reason is not None

    def rescored(self, examples: Examples, teacher: "PairScorer") -> Examples:
        """Replace the runs' scores by the teacher's, and guard by those."""
        source = self._paths.train or self._paths.topics or ""
        for example in scored(map(_keep_run_scores, examples), teacher.score, source):
            best = max(candidate.score or 0.0 for candidate in example.positives)
            scores = [candidate.score or 0.0 for candidate in example.negatives]
            drops = self.result.dropped
            places, _ = guard_scores(scores, range(len(scores)), best, self._settings, drops)
            yield example._replace(negatives=tuple(example.negatives[p] for p in places))

    def chosen(self, examples: Examples) -> Examples:
        """Yield the queries with the negatives that they keep."""
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


def _without_text(example: TrainingExample) -> list[str]:
    """Return the ids of the positives without a text."""
    return [candidate.docid for candidate in example.positives if not candidate.text]


def _keep_run_scores(example: TrainingExample) -> TrainingExample:
    """Copy the runs' scores to `run_score`, before the teacher's replace them."""

    def kept(candidate: Candidate) -> Candidate:
        if "run" not in candidate.extra:
            return candidate
        return candidate._replace(extra={**candidate.extra, "run_score": candidate.score})

    return example._replace(
        positives=tuple(map(kept, example.positives)), negatives=tuple(map(kept, example.negatives))
    )


def _shard(queries: int, settings: MiningSettings) -> range:
    """Return the numbers of the queries of this shard."""
    if settings.shard_num > queries:
        raise UsageError(
            f"--shard-num {settings.shard_num}: there are {queries:,} queries", "fewer parts"
        )
    first, last = ((settings.shard_id + step) * queries // settings.shard_num for step in (0, 1))
    return range(first, last)


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
        name: dict(+value) if isinstance(value, Counter) else value
        for name, value in vars(result).items()
    } | {"sha256": file_sha256(paths.output)}
    asked = as_json(settings) | {"output_format": paths.output_format.value}
    write_manifest(paths.output, Manifest(Kind.TRAINING, True, asked, made_from, contents))
