"""Mine hard negatives from runs over training queries, and write training data.

Queries and hits wait in temporary files; memory holds ids and some bytes per query and run. Queries
are processed in the order of the training data, so neither the order of a run nor the division into
shards changes what a query gets.

Which hits are dropped, and why, is in `mining_guards.py`; a teacher's scores are in
`teacher_scores.py`.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from random import Random
from typing import Any

from denserk.config.encoding import ComputeSettings
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.config.mining import AnswerBearing, MiningPaths, MiningSettings, SamplingStrategy
from denserk.config.options import NOTHING, as_json
from denserk.data.judged_documents import best_passages, passages_of_documents
from denserk.errors import InputError, MismatchError, UsageError
from denserk.evaluation.answers import match_answers
from denserk.io import training
from denserk.io.corpus import PassageTexts, as_searched, read_passages, with_used_fields
from denserk.io.files import ScratchRecords, display_name
from denserk.io.known_positives import KnownPositives
from denserk.io.manifest import Kind, Manifest, describe_file, forget_file
from denserk.io.outputs import scratch_folder
from denserk.io.qrels import grades_by_query, read_qrels
from denserk.io.run_lookup import RunByQuery
from denserk.io.runs import RunLookup
from denserk.io.short_texts import first_names
from denserk.io.topics import read_queries, read_questions
from denserk.io.training import read_training
from denserk.io.unchanged import checksum, refuse_change
from denserk.records import Candidate, Passage, Qrel, Query, TrainingExample, best_first
from denserk.reporting import track
from denserk.tasks.mining_guards import Drops, Hit, Ranking, guard_hits, score_guard, text_guard
from denserk.tasks.teacher_scores import (
    Score,
    load_teacher,
    with_teacher_scores,
    without_random_negatives,
)

logger = logging.getLogger(__name__)

Examples = Iterator[TrainingExample]


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

    def log(self, num_negatives: int) -> None:
        """Log the counts that are not zero; `num_negatives` were asked for per query."""
        if self.dropped.total():
            logger.info(f"hits dropped: {_listed(self.dropped)}")
        if self.promoted:
            logger.info(f"hits that became positives: {self.promoted:,}")
        if self.noticed.total():
            logger.info(_listed(self.noticed))
        if self.left_out.total():
            logger.warning(f"left out: {_listed(self.left_out)}")
        if self.short:
            logger.info(f"queries with fewer than {num_negatives} negatives: {self.short:,}")


def _listed(counts: Counter[str]) -> str:
    """Return counts for a message, without zeros."""
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items() if count)


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
    corpus = as_searched(paths.corpus, corpus, paths.run)
    if paths.corpus is not None:
        corpus = with_used_fields(paths.corpus, corpus)
    files = [*filter(None, _file_of_option(paths).values()), *paths.run]
    checksums = {file: checksum(file) for file in files}
    with (
        scratch_folder("mining") as scratch,
        closing(ScratchRecords(scratch / "queries")) as queries,
        closing(ScratchRecords(scratch / "runs")) as hits,
        closing(PassageTexts(scratch / "passages")) as texts,
    ):
        mining = Mining(paths, settings, read_inputs(paths, settings, corpus), queries, texts)
        score = load_teacher(settings.teacher, text, compute)
        runs = [RunLookup(path, hits, paths.run_format) for path in paths.run]
        examples = mining.examples(runs, score)
        forget_file(paths.output)
        training.write_training(
            paths.output, _with_inputs_unchanged(examples, checksums), paths.output_format
        )
    mining.result.log(settings.num_negatives)
    _describe(paths, settings, corpus, checksums, mining.result)
    return mining.result


def _file_of_option(paths: MiningPaths) -> dict[str, str | None]:
    """Return the inputs beside the runs and the corpus, by their options."""
    return {
        "train": paths.train,
        "topics": paths.topics,
        "qrels": paths.qrels,
        "answers": paths.answers,
    }


def _describe(
    paths: MiningPaths,
    settings: MiningSettings,
    corpus: CorpusSettings,
    checksums: Mapping[str, Any],
    result: MiningResult,
) -> None:
    """Write the manifest of the training data."""
    origin: dict[str, Any] = {}
    for option, file in _file_of_option(paths).items():
        origin[option] = _source(file, checksums) if file else file
    origin["runs"] = [_source(file, checksums) for file in paths.run]
    origin["corpus"] = {"name": paths.corpus, **as_json(corpus)}
    contents: dict[str, Any] = {}
    for name, value in vars(result).items():
        contents[name] = dict(+value) if isinstance(value, Counter) else value  # + drops zeros
    recorded_settings = as_json(settings) | {"output_format": paths.output_format.value}
    manifest = Manifest(Kind.TRAINING, True, recorded_settings, origin, contents)
    describe_file(paths.output, manifest)


def _source(file: str, checksums: Mapping[str, Any]) -> dict[str, Any]:
    """Return an input for the manifest, with its checksum if it is a file."""
    digest = checksums[file]
    if not isinstance(digest, str):  # a folder, a stream or a dataset
        return {"name": file}
    return {"name": file, "sha256": digest}


def _with_inputs_unchanged(examples: Examples, checksums: Mapping[str, Any]) -> Examples:
    """Yield examples; after the last one, reject an input that changed since its checksum."""
    yield from examples
    for name, digest in checksums.items():
        refuse_change(name, digest)


@dataclass(frozen=True)
class MiningInputs:
    """What negatives are mined for and from, beside the runs; `MiningPaths` names it in messages.

    Attributes:
        examples: the queries with their positives.
        relevant: query -> passages that the qrels judge relevant.
        answers: answers by query, in place of those of the examples.
        passages: the passages of the runs; None if there is no corpus.
    """

    examples: Iterable[TrainingExample]
    relevant: Mapping[str, Collection[str]] = field(default_factory=dict)
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    passages: Iterable[Passage] | None = None


def relevant_passages(qrels: Iterable[Qrel], settings: MiningSettings) -> dict[str, dict[str, int]]:
    """Return query -> passage -> grade of the judgments that make a passage a positive."""
    return grades_by_query(qrel for qrel in qrels if qrel.relevance >= settings.min_relevance)


def topic_examples(
    topics: Iterable[Query], relevant: Mapping[str, Collection[str]]
) -> Iterator[TrainingExample]:
    """Yield topics with their relevant passages as positives."""
    for query in topics:
        positives = tuple(map(Candidate, relevant.get(query.qid, ())))
        yield TrainingExample(query.qid, query.text, positives, (), query.answers)


def with_query_texts(
    examples: Iterable[TrainingExample], topics: Iterable[Query]
) -> Iterator[TrainingExample]:
    """Yield training examples; the topics have the texts of queries that lack theirs."""
    texts = {query.qid: query.text for query in topics}
    for example in examples:
        yield example._replace(query=example.query or texts.get(example.qid, ""))


def read_inputs(
    paths: MiningPaths, settings: MiningSettings, corpus: CorpusSettings
) -> MiningInputs:
    """Read what the options name: qrels and answers now, the rest when it is needed."""
    qrels: Iterable[Qrel] = ()
    if paths.qrels is not None:
        qrels = read_qrels(paths.qrels, paths.qrels_format)
    topics: Iterable[Query] = ()
    if paths.topics is not None:
        topics = read_queries(paths.topics, paths.topics_format, None, paths.topics_field)
    passages = None if paths.corpus is None else read_passages(paths.corpus, corpus)
    return mining_inputs(paths, settings, topics, qrels, passages)


def mining_inputs(
    paths: MiningPaths,
    settings: MiningSettings,
    topics: Iterable[Query],
    qrels: Iterable[Qrel],
    passages: Iterable[Passage] | None,
) -> MiningInputs:
    """Put together topics, qrels and passages with the answers and training data of `paths`."""
    relevant = relevant_passages(qrels, settings)
    answers: dict[str, tuple[str, ...]] = {}
    if paths.answers:
        answers = {question.qid: question.answers for question in read_questions(paths.answers)}
    if paths.train is None:
        examples = topic_examples(topics, relevant)
    else:
        examples = with_query_texts(read_training(paths.train, paths.train_format), topics)
    return MiningInputs(examples, relevant, answers, passages)


def mine_in_memory(
    paths: MiningPaths,
    settings: MiningSettings,
    inputs: MiningInputs,
    runs: Sequence[RunByQuery],
    text: Mapping[str, Any] = NOTHING,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008
) -> list[TrainingExample]:
    """Mine negatives from runs and return the training examples; `paths` are names for messages.

    The texts of passages wait in a temporary file.
    """
    with (
        scratch_folder("mining") as scratch,
        closing(ScratchRecords(scratch / "queries")) as queries,
        closing(PassageTexts(scratch / "passages")) as texts,
    ):
        mining = Mining(paths, settings, inputs, queries, texts)
        score = load_teacher(settings.teacher, text, compute)
        examples = list(mining.examples(runs, score))
    mining.result.log(settings.num_negatives)
    return examples


def _ids_of_hits(rankings: Iterable[Ranking]) -> dict[str, None]:
    """Return the ids of the hits of some rankings, each once, in their order."""
    ids: dict[str, None] = {}
    for ranking in rankings:
        ids.update(dict.fromkeys(docid for docid, _ in ranking))
    return ids


class Mining:
    """The steps: read all inputs, then process the queries one by one.

    Until some are sampled, all candidates of a query are its example's negatives, best first.
    """

    def __init__(
        self,
        paths: MiningPaths,
        settings: MiningSettings,
        inputs: MiningInputs,
        examples: ScratchRecords,
        texts: PassageTexts,
    ) -> None:
        self._paths = paths
        self._settings = settings
        self._inputs = inputs
        self._examples = examples
        self._texts = texts
        self.result = MiningResult()
        self._relevant = inputs.relevant
        self._runs: Sequence[RunByQuery] = ()  # until they are read
        self._queries: dict[str, int] = {}  # query -> record of its example
        self._has_positives_without_ids = False
        self._has_answers = False
        self._read_queries()
        self._shard = self._queries_of_shard()
        default = AnswerBearing.DROP if paths.answers else AnswerBearing.KEEP
        self._answer_bearing = settings.answer_bearing or default
        self._compares_texts = self._has_positives_without_ids or settings.drop_literal
        self._refuse_missing_texts()

    def _queries_of_shard(self) -> list[str]:
        """Return the queries that are mined for."""
        queries = list(self._queries)
        shard = self._settings.shard_id
        shards = self._settings.shard_num
        return queries[shard * len(queries) // shards : (shard + 1) * len(queries) // shards]

    def _refuse_missing_texts(self) -> None:
        """Raise a UsageError for guards that read texts or answers which are not there."""
        reads_answers = self._answer_bearing is not AnswerBearing.KEEP
        has_teacher = self._settings.teacher is not None
        needs_texts = self._compares_texts or reads_answers or has_teacher
        if needs_texts and self._inputs.passages is None:
            message = "a guard reads texts of hits, and there is no corpus"
            if self._has_positives_without_ids:
                message = "positives have no ids, and there is no corpus"
            raise UsageError(message, "add --corpus")
        if reads_answers and not self._has_answers:
            message = f"--set answer-bearing={self._answer_bearing}: no query has answers"
            raise UsageError(message, "add --answers, a file of questions with their answers")

    def _read_queries(self) -> None:
        """Store the queries with their positives, each query once; count what is left out."""
        for example in self._inputs.examples:
            if example.positives:
                self._store(example)
            else:
                self.result.left_out["queries without a positive"] += 1
        if not self._queries:
            least = self._settings.min_relevance
            expected = f"at least one, or relevance judgments of grade {least} or more"
            source = self._paths.train or self._paths.qrels or ""
            raise InputError(source, None, "no query with a positive", expected)
        if self._paths.train is None:
            unknown_queries = self._relevant.keys() - self._queries.keys()
            self.result.left_out["judged queries without a text"] += len(unknown_queries)

    def _store(self, example: TrainingExample) -> None:
        """Store a query with its positives and answers; join it with an earlier one of its id."""
        answers = self._inputs.answers.get(example.qid) or example.answers
        example = without_random_negatives(example)._replace(negatives=(), answers=answers)
        if not all(positive.docid for positive in example.positives):
            self._has_positives_without_ids = True
        if answers:
            self._has_answers = True
        if example.qid in self._queries:
            example = _merged(self._stored(example.qid), example)
        self._queries[example.qid] = self._examples.append(training.packed(example))

    def _stored(self, qid: str) -> TrainingExample:
        """Return a query as `_store` has stored it."""
        return training.unpacked(self._examples[self._queries[qid]])

    def examples(self, runs: Sequence[RunByQuery], score: Score | None) -> Examples:
        """Read the hits of the runs, and return the queries with the negatives that they keep.

        `score` is the teacher's, if there is one.
        """
        self._runs = runs
        self._leave_out_queries_without_hits()
        if self._judges_documents:
            self._leave_out_documents_without_hits()
        elif self._paths.train is None:
            self._refuse_passages_of_judged_documents()
        if self._inputs.passages is not None:
            self._read_texts(self._inputs.passages)
        candidates = self._candidates()
        if score is not None:
            candidates = self._with_teacher_scores(candidates, score)
        return self._with_sampled_negatives(candidates)

    def _leave_out_queries_without_hits(self) -> None:
        """Leave out queries without a hit in any run, if that is allowed; reject a useless run."""
        queries_with_hits: set[str] = set()
        for run in self._runs:
            queries = self._queries.keys() & set(run.queries)
            if not queries:
                found = f"none of the {len(self._queries):,} queries" if run.queries else "no hits"
                expected = "hits for the queries that are mined for"
                raise InputError(run.path, None, found, expected)
            queries_with_hits |= queries
            unneeded_queries = len(run.queries) - len(queries)
            self.result.noticed["queries of a run that are not asked for"] += unneeded_queries
        missing = [qid for qid in self._shard if qid not in queries_with_hits]
        if missing and not self._settings.skip_missing:
            found = (
                f"no hits for {len(missing):,} of {len(self._shard):,} queries "
                f"({first_names(missing)})"
            )
            hint = "add --skip-missing to leave such queries out"
            raise InputError(", ".join(self._paths.run), None, found, "hits for every query", hint)
        self._shard = [qid for qid in self._shard if qid in queries_with_hits]
        self.result.left_out["queries without hits"] += len(missing)

    @property
    def _judges_documents(self) -> bool:
        """Whether positives are documents, of which the runs hold the passages."""
        return self._settings.max_passage and self._paths.train is None

    def _leave_out_documents_without_hits(self) -> None:
        """Leave out relevant documents without a passage in a run, and queries that have no other.

        Raise a MismatchError if no query is left.
        """
        shard = []
        for qid in self._shard:
            documents = self._stored(qid).positives
            passages = self._example(qid).positives
            missing = len(documents) - len(passages)
            self.result.left_out["relevant documents without a hit"] += missing
            if passages:
                shard.append(qid)
            else:
                self.result.left_out["queries whose relevant documents have no hit"] += 1
        if self._shard and not shard:
            delimiter = self._settings.max_passage_delimiter
            document = self._stored(self._shard[0]).positives[0].docid
            raise MismatchError(
                f"--max-passage: no hit is a passage of a relevant document such as {document!r}",
                f"its passages are {document}{delimiter}0, {document}{delimiter}1, ...; "
                "--set max-passage-delimiter names another delimiter",
            )
        self._shard = shard

    def _refuse_passages_of_judged_documents(self) -> None:
        """Raise a MismatchError if no hit is judged relevant, but passages of such documents are.

        They would become negatives.
        """
        passages: list[str] = []
        for qid in self._shard:
            hits = _ids_of_hits(self._rankings(qid))
            relevant = self._relevant.get(qid, ())
            if any(docid in hits for docid in relevant):
                return
            delimiter = self._settings.max_passage_delimiter
            passages += passages_of_documents(relevant, hits, delimiter)[:1]
        if passages:
            raise MismatchError(
                f"hits are passages such as {passages[0]!r}, judgments are of documents",
                "add --max-passage: the best passage of a relevant document is its positive",
            )

    def _example(self, qid: str) -> TrainingExample:
        """Return a query with its positives, which are passages: of documents, the best ones."""
        example = self._stored(qid)
        if not self._judges_documents:
            return example
        documents = [positive.docid for positive in example.positives]
        rankings = []
        for ranking in self._rankings(qid):
            rankings.append([docid for docid, _ in ranking])
        passages = best_passages(documents, rankings, self._settings.max_passage_delimiter)
        return example._replace(positives=tuple(map(Candidate, passages)))

    def _examples_of_shard(self) -> Examples:
        """Yield the queries that are mined for, with their positives."""
        yield from map(self._example, self._shard)

    def _read_texts(self, passages: Iterable[Passage]) -> None:
        """Find the texts of positives and hits in the corpus."""
        for example in self._examples_of_shard():
            self._texts.refer(positive.docid for positive in example.positives if not positive.text)
            unused_drops: Drops = Counter()  # `_candidates` counts
            self._texts.refer(hit.docid for hit in self._hits(example, unused_drops))
            self._texts.refer(self._judged_hits(example))
        corpus_name = str(self._paths.corpus)
        self._texts.find(passages, corpus_name)
        if not self._settings.skip_missing:
            hint = "add --skip-missing to leave such passages out"
            self._texts.require_all(corpus_name, "runs and training data", hint)

    def _hits(self, example: TrainingExample, drops: Drops) -> list[Hit]:
        """Return a query's hits that the guards of rank and score let pass; count the dropped."""
        rankings = self._rankings(example.qid)
        positives = {candidate.docid for candidate in example.positives}
        positives.update(self._relevant_hits(example.qid, rankings))
        return guard_hits(rankings, positives, self._settings, drops)

    def _rankings(self, qid: str) -> list[Ranking]:
        """Return a query's hits in each run, the best first."""
        rankings: list[Ranking] = []
        for run in self._runs:
            docids, scores = run.hits(qid)
            rankings.append(best_first(zip(docids, scores, strict=True)))
        return rankings

    def _judged_hits(self, example: TrainingExample) -> list[str]:
        """Return the hits that the qrels judge relevant, beside the positives of the example."""
        if not self._relevant.get(example.qid):
            return []
        positives = {positive.docid for positive in example.positives}
        relevant_hits = self._relevant_hits(example.qid, self._rankings(example.qid))
        return [docid for docid in relevant_hits if docid not in positives]

    def _relevant_hits(self, qid: str, rankings: Sequence[Ranking]) -> list[str]:
        """Return the hits of a query that the qrels judge relevant, themselves or by document."""
        relevant = self._relevant.get(qid, ())
        hits = _ids_of_hits(rankings)
        if self._settings.max_passage:
            return passages_of_documents(relevant, hits, self._settings.max_passage_delimiter)
        return [docid for docid in relevant if docid in hits]

    def _candidates(self) -> Examples:
        """Yield the queries with all their candidates."""
        for example in self._examples_of_shard():
            hits = self._hits(example, self.result.dropped)
            if self._inputs.passages is None:
                yield example._replace(negatives=tuple(Candidate(hit.docid) for hit in hits))
                continue
            example = self._with_texts(example, hits)
            if example.positives:
                yield example
            else:
                self.result.left_out["queries without a positive left"] += 1

    def _with_texts(self, example: TrainingExample, hits: Sequence[Hit]) -> TrainingExample:
        """Add the texts of the positives, and the hits that the guards of texts let pass."""
        positives = self._positives_with_texts(example)
        candidates = self._candidates_with_texts(hits)
        if self._compares_texts:
            texts = [positive.text for positive in positives]
            guard = text_guard(texts, self._settings, known_by_text=self._has_positives_without_ids)
            reasons = [guard(candidate.text) for candidate in candidates]
            candidates = self._without_dropped(candidates, reasons)
        known_positives = KnownPositives([*positives, *self._judged_positives(example)])
        candidates = self._without_copies(candidates, known_positives)
        promoted: list[Candidate] = []
        if self._answer_bearing is not AnswerBearing.KEEP:
            candidates, with_answers = self._split_by_answers(example, candidates)
            if self._answer_bearing is AnswerBearing.PROMOTE:
                promoted = with_answers
                self.result.promoted += len(with_answers)
            else:
                self.result.dropped["answer"] += len(with_answers)
        if not self._settings.keep_gold:
            positives = []
        return example._replace(positives=(*positives, *promoted), negatives=tuple(candidates))

    def _without_dropped(
        self, candidates: Sequence[Candidate], reasons: Sequence[str | None]
    ) -> list[Candidate]:
        """Return the candidates without a reason against them; count the reasons."""
        kept_candidates = []
        for candidate, reason in zip(candidates, reasons, strict=True):
            if reason is None:
                kept_candidates.append(candidate)
            else:
                self.result.dropped[reason] += 1
        return kept_candidates

    def _without_copies(
        self, candidates: Sequence[Candidate], known_positives: KnownPositives
    ) -> list[Candidate]:
        """Return the candidates whose text is that of no known positive; count the others."""
        kept_candidates = []
        for candidate in candidates:
            if not known_positives.has_text_of(candidate):
                kept_candidates.append(candidate)
        self.result.dropped["text of a positive"] += len(candidates) - len(kept_candidates)
        return kept_candidates

    def _positives_with_texts(self, example: TrainingExample) -> list[Candidate]:
        """Return the positives with their texts; count those that have none."""
        docids = [positive.docid for positive in example.positives if not positive.text]
        passages = dict(zip(docids, self._texts.get(docids), strict=True))
        positives = []
        for positive in example.positives:
            if not positive.text:
                passage = passages[positive.docid]
                if passage:
                    positive = positive._replace(text=passage.text, title=passage.title)
            if positive.text:
                positives.append(positive)
        missing = len(example.positives) - len(positives)
        self.result.left_out["positives that the corpus lacks"] += missing
        return positives

    def _candidates_with_texts(self, hits: Sequence[Hit]) -> list[Candidate]:
        """Return the hits with their texts; count those that have none."""
        candidates = []
        for hit, passage in zip(hits, self._texts.get([hit.docid for hit in hits]), strict=True):
            source = {"rank": hit.rank, "run": display_name(self._paths.run[hit.run])}
            if self._settings.teacher is not None:  # whose score replaces that of the run
                source["run_score"] = hit.score
            if passage:
                candidates.append(
                    Candidate(hit.docid, passage.text, passage.title, hit.score, source)
                )
        self.result.dropped["not in the corpus"] += len(hits) - len(candidates)
        return candidates

    def _split_by_answers(
        self, example: TrainingExample, candidates: Sequence[Candidate]
    ) -> tuple[list[Candidate], list[Candidate]]:
        """Return the candidates without an answer to the query, and those with one."""
        texts = [candidate.text for candidate in candidates]
        matches, unusable = match_answers(example.answers, texts, regex=self._settings.regex)
        self.result.noticed["queries without an answer"] += not example.answers
        unusable_answers = "answers without a word, or no regular expression"
        self.result.noticed[unusable_answers] += len(unusable)
        without_answers = []
        with_answers = []
        for candidate, has_answer in zip(candidates, matches, strict=True):
            if has_answer:
                with_answers.append(candidate)
            else:
                without_answers.append(candidate)
        return without_answers, with_answers

    def _judged_positives(self, example: TrainingExample) -> Iterator[Candidate]:
        """Yield the hits that the qrels judge relevant, with their texts."""
        for passage in self._texts.get(self._judged_hits(example)):
            if passage is not None:
                yield Candidate(passage.docid, passage.text, passage.title)

    def _with_teacher_scores(self, examples: Examples, score: Score) -> Examples:
        """Replace the runs' scores by the teacher's, and guard by those."""
        source = self._paths.train or self._paths.topics or ""
        for example in with_teacher_scores(examples, score, source):
            best = max(candidate.score or 0.0 for candidate in example.positives)
            guard = score_guard(best, self._settings)
            reasons = [guard(candidate.score or 0.0) for candidate in example.negatives]
            negatives = self._without_dropped(example.negatives, reasons)
            yield example._replace(negatives=tuple(negatives))

    def _with_sampled_negatives(self, examples: Examples) -> Examples:
        """Yield the queries with the negatives that they keep."""
        result = self.result
        num_negatives = self._settings.num_negatives
        with track("mining", len(self._shard), "queries") as progress:
            for example in examples:
                progress.advance()
                if not example.negatives:
                    result.left_out["queries without a negative left"] += 1
                    continue
                negatives = self._sample(example)
                result.queries += 1
                result.negatives += len(negatives)
                if len(negatives) < num_negatives:
                    result.short += 1
                yield example._replace(negatives=negatives)
        if not result.queries and self._shard:
            result.log(num_negatives)
            hint = "mine at greater --depth, or with fewer guards"
            raise MismatchError("no query has a negative left: nothing is written", hint)

    def _sample(self, example: TrainingExample) -> tuple[Candidate, ...]:
        """Return the negatives that a query keeps, in their order."""
        settings = self._settings
        count = len(example.negatives)
        positions = list(range(count))
        if settings.sampling_strategy is SamplingStrategy.RANDOM and count > settings.num_negatives:
            # depends on seed, id and number of hits alone, in every version of Python
            generator = Random(f"{settings.seed} {example.qid}")
            keys = [generator.random() for _ in positions]
            positions.sort(key=keys.__getitem__)
        sample = sorted(positions[: settings.num_negatives])
        return tuple(example.negatives[position] for position in sample)


def _merged(earlier: TrainingExample, later: TrainingExample) -> TrainingExample:
    """Return two examples of one query as one, with each positive and answer once."""
    positives: dict[str, Candidate] = {}
    for candidate in (*earlier.positives, *later.positives):
        positives.setdefault(candidate.docid or candidate.text, candidate)
    answers = tuple(dict.fromkeys((*earlier.answers, *later.answers)))
    return earlier._replace(positives=tuple(positives.values()), answers=answers)
