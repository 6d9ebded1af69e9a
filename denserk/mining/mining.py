"""Mine hard negatives from runs over training queries, and write training data.

Queries and hits wait in temporary files until their turn comes, in the order of the training data;
memory holds ids and some bytes per query and run. So neither the order of a run nor the division
into shards changes what a query gets.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import compress, islice
from operator import not_
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from denserk.config.encoding import ComputeSettings
from denserk.config.formats import DETECTED, WITHOUT_TEXTS, CorpusSettings
from denserk.config.mining import AnswerBearing, MiningPaths, MiningSettings
from denserk.config.options import as_json
from denserk.errors import InputError, UsageError
from denserk.evaluation.answers import match_answers
from denserk.io.corpus import PassageTexts, read_passages
from denserk.io.files import ScratchRecords, display_name, some
from denserk.io.manifest import Kind, describe_file, file_sha256, forget_manifest
from denserk.io.outputs import scratch_folder
from denserk.io.qrels import read_qrels
from denserk.io.runs import RankedList, read_run
from denserk.io.topics import read_queries, read_questions
from denserk.io.training import (
    RANDOM_NEGATIVES,
    all_candidates,
    random_negatives,
    read_training,
    write_training,
)
from denserk.mining.guards import (
    Drops,
    Hit,
    TextOverlap,
    choose,
    guard_hits,
    guard_scores,
    merge_hits,
    words,
)
from denserk.records import Candidate, Passage, Query, TrainingExample, best_first
from denserk.reporting import track

logger = logging.getLogger(__name__)

NOTHING: Mapping[str, Any] = {}
SCORED_TOGETHER = 4096  # pairs that are sorted by length into batches
Examples = Iterator[TrainingExample]
# of query i with passage i: (P,)
Score = Callable[[Sequence[Query], Sequence[Passage]], NDArray[np.float32]]


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
        for level, title, counts in (
            (logging.INFO, "hits dropped: ", self.dropped),
            (logging.INFO, "", {"hits that became positives": self.promoted}),
            (logging.INFO, "", self.noticed),
            (logging.WARNING, "left out: ", self.left_out),
            (logging.INFO, "", {f"queries with fewer than {wanted} negatives": self.short}),
        ):
            if listed := ", ".join(f"{what}: {n:,}" for what, n in counts.items() if n):
                logger.log(level, f"{title}{listed}")


def mine_negatives(
    paths: MiningPaths,
    settings: MiningSettings = MiningSettings(),  # noqa: B008  (frozen)
    corpus: CorpusSettings = DETECTED,
    text: Mapping[str, Any] = NOTHING,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008
) -> MiningResult:
    """Mine negatives from runs and write training data.

    `text` holds fields of `TextSettings` that replace those of the teacher.
    """
    with scratch_folder("mining") as scratch, ExitStack() as files:
        mining = _Mining(paths, settings, scratch, files)
        teacher = None
        if settings.teacher is not None:
            from denserk.models.cross_encoder import PairScorer  # needs torch

            teacher = PairScorer(settings.teacher, text, None, compute)
        mining.read_runs()
        if paths.corpus is not None:
            mining.read_corpus(paths.corpus, corpus)
        candidates = mining.candidates()
        if teacher is not None:
            candidates = mining.rescored(candidates, teacher.score)
        forget_manifest(paths.output)
        write_training(paths.output, mining.chosen(candidates), paths.output_format)
    mining.result.log(settings.num_negatives)
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
        self._examples = ScratchRecords(scratch / "queries")
        self._hits = ScratchRecords(scratch / "hits")
        self._texts = PassageTexts(scratch / "passages")
        for opened in (self._examples, self._hits, self._texts):
            files.callback(opened.close)
        self._relevant: dict[str, list[str]] = {}  # by the qrels
        self._queries: dict[str, int] = {}  # query -> record of its example
        # of each run: query -> record of the hits that pass, and of those that are suspected
        self._pools: list[dict[str, int]] = [{} for _ in paths.run]
        self._without_ids = self._answered = False  # whether any positive, any query is
        self._read_queries()
        count, parts, part = len(self._queries), settings.shard_num, settings.shard_id
        if parts > count:
            raise UsageError(f"--shard-num {parts}: there are {count:,} queries", "fewer parts")
        first, last = part * count // parts, (part + 1) * count // parts
        self._shard = dict(islice(self._queries.items(), first, last))
        default = AnswerBearing.DROP if paths.answers else AnswerBearing.KEEP
        self._bearing = settings.answer_bearing or default
        reads_answers = self._bearing is not AnswerBearing.KEEP
        near_texts = settings.drop_literal or settings.near_duplicate is not None
        self._compares = self._without_ids or near_texts
        self._guarded = self._compares or reads_answers or settings.teacher is not None
        if self._guarded and paths.corpus is None:
            positives = "positives have no ids"
            why = positives if self._without_ids else "a guard reads the texts of hits"
            raise UsageError(f"{why}, and there is no corpus", "add --corpus")
        if reads_answers and not self._answered:
            raise UsageError(
                f"--answer-bearing {self._bearing}: no query has answers",
                "add --answers, a file of questions with their answers",
            )

    def _read_queries(self) -> None:
        """Keep the queries with their positives, each query once; count what is left out."""
        paths, left_out = self._paths, self.result.left_out
        least = self._settings.min_relevance
        if paths.qrels is not None:
            for qid, docid, grade in read_qrels(paths.qrels, paths.qrels_format):
                if grade >= least:
                    self._relevant.setdefault(qid, []).append(docid)
        answers = {q.qid: q.answers for q in read_questions(paths.answers)} if paths.answers else {}
        for example in self._read_examples():
            if not example.positives:
                left_out["queries without a positive"] += 1
                continue
            known = answers.get(example.qid) or example.answers
            example = _without_random(example)._replace(negatives=(), answers=known)
            self._without_ids |= any(not candidate.docid for candidate in example.positives)
            self._answered |= bool(known)
            if example.qid in self._queries:
                example = _merged(self._example(example.qid), example)
            record = orjson.dumps(example, default=_as_json)
            self._queries[example.qid] = self._examples.append(record)
        if not self._queries:
            judged = f"judgments of grade {least} or more for queries of {paths.topics}"
            source = paths.train or paths.qrels or ""
            expected = "at least one" if paths.train else judged
            raise InputError(source, None, "no query with a positive", expected)
        if paths.train is None:
            unknown = self._relevant.keys() - self._queries.keys()
            left_out["judged queries without a text"] += len(unknown)

    def _read_examples(self) -> Examples:
        """Yield the training data, or the topics with their relevant passages as positives."""
        paths = self._paths
        topics = paths.topics
        queries = read_queries(topics, paths.topics_format) if topics is not None else ()
        if paths.train is None:
            for query in queries:
                positives = tuple(map(Candidate, self._relevant.get(query.qid, ())))
                yield TrainingExample(query.qid, query.text, positives, (), query.answers)
            return
        texts = {query.qid: query.text for query in queries}
        for example in read_training(paths.train, paths.train_format):
            yield example._replace(query=example.query or texts.get(example.qid, ""))

    def _example(self, qid: str) -> TrainingExample:
        qid, query, positives, _, answers, extra = orjson.loads(self._examples[self._queries[qid]])
        candidates = tuple(Candidate(*each) for each in positives)
        return TrainingExample(qid, query, candidates, (), tuple(answers), extra)

    def read_runs(self) -> None:
        """Keep the hits that the guards of rank and score let pass."""
        paths, noticed = self._paths, self.result.noticed
        for number, path in enumerate(paths.run):
            known = others = 0
            with track(f"reading {display_name(path)}", None, "queries") as progress:
                for ranked in read_run(path, paths.run_format):
                    progress.advance()
                    known += ranked.qid in self._queries
                    others += ranked.qid not in self._queries
                    if ranked.qid in self._shard:
                        self._pools[number][ranked.qid] = self._guard(number, ranked)
            if not known:
                found = f"none of the {len(self._queries):,} queries" if others else "no hits"
                raise InputError(path, None, found, "hits for the queries that are mined for")
            noticed["queries of a run that are not asked for"] += others
        absent = [qid for qid in self._shard if not any(qid in pool for pool in self._pools)]
        if absent and not self._settings.skip_missing:
            raise InputError(
                ", ".join(paths.run),
                None,
                f"no hits for {len(absent):,} of {len(self._shard):,} queries ({some(absent)})",
                "hits for every query",
                "add --skip-missing to leave such queries out",
            )
        for qid in absent:
            del self._shard[qid]
        self.result.left_out["queries without hits"] += len(absent)

    def _guard(self, run: int, group: RankedList) -> int:
        """Return the number of the record of a query's hits in one run."""
        ties = len(group.scores) - len(set(group.scores))
        self.result.noticed["ties, ordered by descending passage id"] += ties
        ranked = best_first(zip(group.docids, group.scores, strict=True))
        positives = {candidate.docid for candidate in self._example(group.qid).positives}
        positives.update(self._relevant.get(group.qid, ()))
        drops = self.result.dropped
        places, suspected = guard_hits(ranked, positives, self._settings, drops)
        if len(self._pools) == 1 and not self._guarded:  # no other guard: only these are read
            drawn = choose(len(places), group.qid, self._settings)
            places = [places[place] for place in drawn]
        hits = [(ranked[place][0], place + 1, ranked[place][1], run) for place in places]
        if self._paths.corpus is not None:
            self._texts.refer(docid for docid, *_ in hits)
        return self._hits.append(orjson.dumps((hits, suspected)))

    def _merged_hits(self, qid: str, drops: Drops) -> list[Hit]:
        rows = [pool[qid] for pool in self._pools if qid in pool]
        pools = [orjson.loads(self._hits[row]) for row in rows]
        suspected = {docid for _, docids in pools for docid in docids}
        return merge_hits([[Hit(*hit) for hit in hits] for hits, _ in pools], suspected, drops)

    def read_corpus(self, source: str, settings: CorpusSettings) -> None:
        """Read the texts of hits and positives."""
        for qid in self._shard:
            self._texts.refer(_without_text(self._example(qid)))
        self._texts.find(read_passages(source, settings), source)
        if not self._settings.skip_missing:
            hint = "add --skip-missing to leave such passages out"
            self._texts.require_all(source, "runs and training data", hint)

    def candidates(self) -> Examples:
        """Yield the queries with all their candidates."""
        reads_texts = self._guarded or self._paths.output_format not in WITHOUT_TEXTS
        for qid in self._shard:
            example, hits = self._example(qid), self._merged_hits(qid, self.result.dropped)
            if reads_texts:
                example = self._with_texts(example, hits)
            else:
                example = example._replace(negatives=tuple(Candidate(hit.docid) for hit in hits))
            if example.positives:
                yield example
            else:
                self.result.left_out["queries without a positive left"] += 1

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
        candidates = []
        for hit, passage in zip(hits, self._texts.get([hit.docid for hit in hits]), strict=True):
            if passage is not None:
                run = display_name(self._paths.run[hit.run])
                source: dict[str, Any] = {"rank": hit.rank, "run": run}
                if self._settings.teacher is not None:  # whose score replaces that of the run
                    source["run_score"] = hit.score
                candidates.append(
                    Candidate(hit.docid, passage.text, passage.title, hit.score, source)
                )
        self.result.dropped["not in the corpus"] += len(hits) - len(candidates)
        example = example._replace(positives=tuple(positives))
        negatives, promoted = self._divide(example, candidates)
        self.result.promoted += len(promoted)
        gold = positives if self._settings.keep_gold else ()
        return example._replace(positives=(*gold, *promoted), negatives=tuple(negatives))

    def _divide(
        self, example: TrainingExample, candidates: list[Candidate]
    ) -> tuple[list[Candidate], list[Candidate]]:
        """Divide a query's candidates into possible negatives and new positives."""
        if self._compares:
            overlap = TextOverlap([positive.text for positive in example.positives])
            candidates = [each for each in candidates if not self._repeats(overlap, each.text)]
        if self._bearing is AnswerBearing.KEEP:
            return candidates, []
        texts = [candidate.text for candidate in candidates]
        matches, unusable = match_answers(example.answers, texts, regex=self._settings.regex)
        noticed = self.result.noticed
        noticed["queries without an answer"] += not example.answers
        noticed["answers without a word, or no regular expression"] += len(unusable)
        found = list(compress(candidates, matches))
        others = list(compress(candidates, map(not_, matches)))
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

    def rescored(self, examples: Examples, score: Score) -> Examples:
        """Replace the runs' scores by the teacher's, and guard by those."""
        source = self._paths.train or self._paths.topics or ""
        for example in scored(examples, score, source):
            best = max(candidate.score or 0.0 for candidate in example.positives)
            scores = [candidate.score or 0.0 for candidate in example.negatives]
            drops = self.result.dropped
            places, _ = guard_scores(scores, range(len(scores)), best, self._settings, drops)
            yield example._replace(negatives=tuple(example.negatives[p] for p in places))

    def chosen(self, examples: Examples) -> Examples:
        """Yield the queries with the negatives that they keep."""
        result = self.result
        with track("mining", len(self._shard), "queries") as progress:
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


def _as_json(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else list(value)


def _merged(one: TrainingExample, other: TrainingExample) -> TrainingExample:
    """Return one example of two of the same query, with each positive and answer once."""
    positives: dict[str, Candidate] = {}
    for candidate in (*one.positives, *other.positives):
        positives.setdefault(candidate.docid or candidate.text, candidate)
    answers = tuple(dict.fromkeys((*one.answers, *other.answers)))
    return one._replace(positives=tuple(positives.values()), answers=answers)


def _without_random(example: TrainingExample) -> TrainingExample:
    """Return an example without the random negatives of DPR, which wait in `extra`."""
    extra = {key: value for key, value in example.extra.items() if key != RANDOM_NEGATIVES}
    return example._replace(extra=extra)


def _without_text(example: TrainingExample) -> list[str]:
    return [candidate.docid for candidate in example.positives if not candidate.text]


def _write_manifest(
    paths: MiningPaths, settings: MiningSettings, corpus: CorpusSettings, result: MiningResult
) -> None:
    def source(name: str | None) -> dict[str, Any] | None:
        digest = {"sha256": file_sha256(name)} if name and Path(name).is_file() else {}
        return {"name": name, **digest} if name is not None else None

    names = ("train", "topics", "qrels", "answers")
    made_from: dict[str, Any] = {name: source(getattr(paths, name)) for name in names}
    made_from["runs"] = [source(run) for run in paths.run]
    made_from["corpus"] = {"name": paths.corpus, **as_json(corpus)}
    contents = {
        name: dict(+value) if isinstance(value, Counter) else value
        for name, value in vars(result).items()
    }
    asked = as_json(settings) | {"output_format": paths.output_format.value}
    describe_file(paths.output, Kind.TRAINING, asked, made_from, contents)


def scored(
    examples: Iterable[TrainingExample], score: Score, source: str
) -> Iterator[TrainingExample]:
    """Yield the examples, in order, with a score for every positive and negative.

    Existing scores are replaced. The random negatives of a DPR question without hard negatives are
    scored as its negatives. Memory holds the examples that are scored together.

    Raises:
        InputError: a query or a passage has no text, or a score is not finite.
    """
    held: list[TrainingExample] = []
    pairs = 0
    for example in examples:
        if not example.negatives and RANDOM_NEGATIVES in example.extra:
            negatives = random_negatives(example, source)
            example = _without_random(example)._replace(negatives=negatives)
        held.append(example)
        pairs += len(example.positives) + len(example.negatives)
        if pairs >= SCORED_TOGETHER:
            yield from _scored(held, score, source)
            held, pairs = [], 0
    if held:
        yield from _scored(held, score, source)


def _scored(
    examples: Sequence[TrainingExample], score: Score, source: str
) -> Iterator[TrainingExample]:
    pairs = [(each, candidate) for each in examples for candidate in all_candidates(each)]
    for example, candidate in pairs:
        if not example.query:
            lacking, option = f"query {example.qid}", "--queries"
        elif not (candidate.text or candidate.title):
            lacking, option = f"passage {candidate.docid} of query {example.qid}", "--corpus"
        else:
            continue
        expected, hint = "texts, which the teacher reads", f"add {option}, the file with the texts"
        raise InputError(source, None, f"{lacking} without its text", expected, hint)
    queries = [Query(example.qid, example.query) for example, _ in pairs]
    scores = score(queries, [Passage(c.docid, c.text, c.title, c.extra) for _, c in pairs])
    for place in np.flatnonzero(~np.isfinite(scores))[:1]:
        example, candidate = pairs[place]
        raise InputError(
            source,
            None,
            f"the score {scores[place]} for passage {candidate.docid} of query {example.qid}",
            "a finite number",
            "the teacher is broken, or its --dtype too narrow",
        )
    values = iter(scores.tolist())
    for example in examples:
        positives, negatives = (
            tuple(candidate._replace(score=next(values)) for candidate in candidates)
            for candidates in (example.positives, example.negatives)
        )
        yield example._replace(positives=positives, negatives=negatives)
