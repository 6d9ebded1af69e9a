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

from denserk.config.encoding import NO_SERVER, ComputeSettings, ServerSettings
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.config.mining import AnswerBearing, MiningPaths, MiningSettings, SamplingStrategy
from denserk.config.options import NOTHING, as_json
from denserk.data.judged_documents import best_passages, passages_of_documents
from denserk.errors import InputError, MismatchError, UsageError
from denserk.evaluation.answers import match_answers
from denserk.io import training
from denserk.io.corpus import PassageTexts, as_searched, read_passages, with_used_fields
from denserk.io.files import display_name
from denserk.io.known_positives import KnownPositives
from denserk.io.manifest import Kind, Manifest, describe_file
from denserk.io.outputs import scratch_folder
from denserk.io.qrels import grades_by_query, read_qrels
from denserk.io.run_lookup import RunByQuery
from denserk.io.runs import RunLookup
from denserk.io.scratch_records import ScratchRecords
from denserk.io.short_texts import first_names
from denserk.io.topics import read_queries, read_questions
from denserk.io.training import read_training
from denserk.io.unchanged import checksum, reject_change
from denserk.records import Candidate, Passage, Qrel, Query, TrainingExample, best_first
from denserk.reporting import track
from denserk.tasks.mining_guards import Drops, Hit, Ranking, guard_hits, score_guard, text_guard
from denserk.tasks.teacher_scores import (
    Score,
    check_teacher,
    load_teacher,
    with_teacher_scores,
    without_random_negatives,
)

logger = logging.getLogger(__name__)

NO_NEGATIVE = "queries without a negative left"  # as messages call them

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
        if self.left_out[NO_NEGATIVE]:
            logger.info(
                "a negative is a hit within --depth that is not known to be relevant: search with "
                "more --hits, mine at greater --depth, or with fewer guards"
            )
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
    server: ServerSettings = NO_SERVER,
) -> MiningResult:
    """Mine negatives from runs and write training data.

    `text` holds fields of `TextSettings` that replace those of the teacher; `server` is that of a
    teacher behind a URL.
    """
    check_teacher(settings.teacher, text, server)  # before long files are read
    corpus = as_searched(paths.corpus, corpus, paths.run)
    if paths.corpus is not None:
        corpus = with_used_fields(paths.corpus, corpus)
    files = [file for file in _file_of_option(paths).values() if file]
    files += paths.run
    checksums = {file: checksum(file) for file in files}
    with (
        scratch_folder("mining") as scratch,
        closing(ScratchRecords(scratch / "queries")) as stored_examples,
        closing(ScratchRecords(scratch / "runs")) as stored_hits,
        closing(PassageTexts(scratch / "passages")) as texts,
    ):
        inputs = read_inputs(paths, settings, corpus)
        mining = Mining(paths, settings, inputs, stored_examples, texts)
        score = load_teacher(settings.teacher, text, compute, server)
        runs = [RunLookup(path, stored_hits, paths.run_format) for path in paths.run]
        examples = mining.mined_examples(runs, score)  # most of the work is in their iteration
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
        origin[option] = _named_input(file, checksums) if file else file  # None: not given
    origin["runs"] = [_named_input(file, checksums) for file in paths.run]
    origin["corpus"] = {"name": paths.corpus, **as_json(corpus)}
    contents: dict[str, Any] = {}
    for name, value in vars(result).items():
        contents[name] = dict(+value) if isinstance(value, Counter) else value  # + drops zeros
    recorded_settings = as_json(settings) | {"output_format": paths.output_format.value}
    manifest = Manifest(Kind.TRAINING, True, recorded_settings, origin, contents)
    describe_file(paths.output, manifest)


def _named_input(file: str, checksums: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the manifest records of an input: its name, and its checksum if it is a file."""
    digest = checksums[file]
    if not isinstance(digest, str):  # a folder, a stream or a dataset
        return {"name": file}
    return {"name": file, "sha256": digest}


def _with_inputs_unchanged(examples: Examples, checksums: Mapping[str, Any]) -> Examples:
    """Yield examples; after the last one, reject an input that changed since its checksum."""
    yield from examples
    for file, digest in checksums.items():
        reject_change(file, digest)


@dataclass(frozen=True)
class MiningInputs:
    """What negatives are mined for and from, beside the runs.

    Attributes:
        examples: the queries with their positives; negatives, if there are any, are ignored.
        relevant: query -> passages (with --max-passage: documents) that the qrels judge relevant.
        answers: answers by query, in place of those of the examples.
        passages: the corpus, with the texts of the runs' hits; None if there is none.
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
        yield TrainingExample(query.qid, query.text, positives, negatives=(), answers=query.answers)


def with_query_texts(
    examples: Iterable[TrainingExample], topics: Iterable[Query]
) -> Iterator[TrainingExample]:
    """Yield training examples; a query without a text gets that of its topic, if there is one."""
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
        topics = read_queries(paths.topics, paths.topics_format, fields=paths.topics_field)
    passages = None if paths.corpus is None else read_passages(paths.corpus, corpus)
    return mining_inputs(paths, settings, topics, qrels, passages)


def mining_inputs(
    paths: MiningPaths,
    settings: MiningSettings,
    topics: Iterable[Query],
    qrels: Iterable[Qrel],
    passages: Iterable[Passage] | None,
) -> MiningInputs:
    """Return topics, qrels and passages with the answers and training data that `paths` name.

    The topics are the queries, or have the texts of those of the training data.
    """
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
    server: ServerSettings = NO_SERVER,
) -> list[TrainingExample]:
    """Mine negatives from runs and return the training examples; `paths` are names for messages.

    Queries and the texts of passages wait in temporary files here, too.
    """
    check_teacher(settings.teacher, text, server)
    with (
        scratch_folder("mining") as scratch,
        closing(ScratchRecords(scratch / "queries")) as stored_examples,
        closing(PassageTexts(scratch / "passages")) as texts,
    ):
        mining = Mining(paths, settings, inputs, stored_examples, texts)
        score = load_teacher(settings.teacher, text, compute, server)
        examples = list(mining.mined_examples(runs, score))
    mining.result.log(settings.num_negatives)
    return examples


def _ids_of_hits(rankings: Iterable[Ranking]) -> dict[str, None]:
    """Return the ids of the hits of some rankings, each once, in their order."""
    ids: dict[str, None] = {}  # a set in order
    for ranking in rankings:
        ids.update(dict.fromkeys(docid for docid, _ in ranking))
    return ids


class Mining:
    """Reads the queries when it is created; `mined_examples` then processes them one by one.

    The candidates of a query are the hits that no guard has dropped so far. They are the negatives
    of its example, best first, until the last step samples those that are kept.
    """

    def __init__(
        self,
        paths: MiningPaths,
        settings: MiningSettings,
        inputs: MiningInputs,
        stored_examples: ScratchRecords,
        texts: PassageTexts,
    ) -> None:
        self._paths = paths  # of the inputs, for messages and for what depends on their presence
        self._settings = settings
        self._inputs = inputs
        self._stored_examples = stored_examples
        self._texts = texts
        self.result = MiningResult()
        self._relevant = inputs.relevant
        self._runs: Sequence[RunByQuery] = ()  # until `mined_examples` gets them
        self._record_numbers: dict[str, int] = {}  # query id -> record in `_stored_examples`
        # `_read_queries` sets these two
        self._has_positives_without_ids = False
        self._has_answers = False
        self._read_queries()
        self._shard_qids = self._qids_of_shard()  # later without those that are left out
        default = AnswerBearing.DROP if paths.answers else AnswerBearing.KEEP
        self._answer_bearing = settings.answer_bearing or default
        # a positive without an id is known among the hits by its text
        self._compares_texts = self._has_positives_without_ids or settings.drop_literal
        self._reject_missing_texts()

    def _qids_of_shard(self) -> list[str]:
        """Return the ids of the queries that this shard mines for."""
        qids = list(self._record_numbers)
        shard = self._settings.shard_id
        shards = self._settings.shard_num
        return qids[shard * len(qids) // shards : (shard + 1) * len(qids) // shards]

    def _reject_missing_texts(self) -> None:
        """Raise a UsageError for guards that read texts or answers which are not there."""
        reads_answers = self._answer_bearing is not AnswerBearing.KEEP
        has_teacher = self._settings.teacher is not None
        needs_texts = self._compares_texts or reads_answers or has_teacher
        if needs_texts and self._inputs.passages is None:
            if self._has_positives_without_ids:
                message = "positives have no ids, and there is no corpus"
            else:
                message = "a guard reads texts of hits, and there is no corpus"
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
        if not self._record_numbers:
            lowest_grade = self._settings.min_relevance
            expected = f"at least one, or relevance judgments of grade {lowest_grade} or more"
            source_of_positives = self._paths.train or self._paths.qrels or ""
            raise InputError(source_of_positives, None, "no query with a positive", expected)
        # qrels beside training data may judge other queries, too
        if self._paths.train is None:
            unknown_qids = self._relevant.keys() - self._record_numbers.keys()
            self.result.left_out["judged queries without a text"] += len(unknown_qids)

    def _store(self, example: TrainingExample) -> None:
        """Store a query with its positives and answers, merged with an earlier one of its id."""
        answers = self._inputs.answers.get(example.qid) or example.answers
        # the negatives that training data has are replaced by those that are mined
        example = without_random_negatives(example)._replace(negatives=(), answers=answers)
        if not all(positive.docid for positive in example.positives):
            self._has_positives_without_ids = True
        if answers:
            self._has_answers = True
        if example.qid in self._record_numbers:
            example = _merged(self._stored_example(example.qid), example)
        packed = training.packed(example)
        self._record_numbers[example.qid] = self._stored_examples.append(packed)

    def _stored_example(self, qid: str) -> TrainingExample:
        """Return a query as `_store` has stored it."""
        return training.unpacked(self._stored_examples[self._record_numbers[qid]])

    def mined_examples(self, runs: Sequence[RunByQuery], score: Score | None) -> Examples:
        """Check the runs and read the texts of their hits; return the queries with their negatives.

        What is returned mines as it is iterated. `score` is the teacher's, if there is one.
        """
        self._runs = runs
        self._leave_out_queries_without_hits()
        if self._judges_documents:
            self._leave_out_documents_without_hits()
        elif self._paths.train is None:
            self._reject_passages_of_judged_documents()
        if self._inputs.passages is not None:
            self._read_texts(self._inputs.passages)
        examples = self._examples_with_candidates()
        if score is not None:
            examples = self._with_teacher_scores(examples, score)
        return self._with_sampled_negatives(examples)

    def _leave_out_queries_without_hits(self) -> None:
        """Leave out queries without a hit in any run, or reject them without --skip-missing."""
        qids_with_hits = self._qids_with_hits()
        missing = [qid for qid in self._shard_qids if qid not in qids_with_hits]
        if missing and not self._settings.skip_missing:
            found = (
                f"no hits for {len(missing):,} of {len(self._shard_qids):,} queries "
                f"({first_names(missing)})"
            )
            hint = "add --skip-missing to leave such queries out"
            raise InputError(", ".join(self._paths.run), None, found, "hits for every query", hint)
        self._shard_qids = [qid for qid in self._shard_qids if qid in qids_with_hits]
        self.result.left_out["queries without hits"] += len(missing)

    def _qids_with_hits(self) -> set[str]:
        """Return the queries, of all shards, that a run has hits for.

        Raise an InputError for a run that has hits for none; count its queries that are not mined
        for.
        """
        qids_with_hits: set[str] = set()
        for run in self._runs:
            qids = self._record_numbers.keys() & set(run.queries)
            if not qids:
                found = "no hits"
                if run.queries:
                    found = f"none of the {len(self._record_numbers):,} queries"
                expected = "hits for the queries that are mined for"
                raise InputError(run.path, None, found, expected)
            qids_with_hits |= qids
            unneeded_count = len(run.queries) - len(qids)
            self.result.noticed["queries of a run that are not asked for"] += unneeded_count
        return qids_with_hits

    @property
    def _judges_documents(self) -> bool:
        """Whether positives are documents, of which the runs hold the passages."""
        return self._settings.max_passage and self._paths.train is None

    def _leave_out_documents_without_hits(self) -> None:
        """Leave out relevant documents without a passage in a run, and queries that have no other.

        Raise a MismatchError if no query is left.
        """
        remaining_qids = []
        for qid in self._shard_qids:
            documents = self._stored_example(qid).positives
            passages = self._example_of_passages(qid).positives
            missing_count = len(documents) - len(passages)
            self.result.left_out["relevant documents without a hit"] += missing_count
            if passages:
                remaining_qids.append(qid)
            else:
                self.result.left_out["queries whose relevant documents have no hit"] += 1
        if self._shard_qids and not remaining_qids:
            delimiter = self._settings.max_passage_delimiter
            document = self._stored_example(self._shard_qids[0]).positives[0].docid
            raise MismatchError(
                f"--max-passage: no hit is a passage of a relevant document such as {document!r}",
                f"its passages are {document}{delimiter}0, {document}{delimiter}1, ...; "
                "--set max-passage-delimiter names another delimiter",
            )
        self._shard_qids = remaining_qids

    def _reject_passages_of_judged_documents(self) -> None:
        """Raise a MismatchError if no hit is judged relevant, but passages of such documents are.

        They would become negatives.
        """
        passages: list[str] = []
        for qid in self._shard_qids:
            hits = _ids_of_hits(self._rankings(qid))
            relevant = self._relevant.get(qid, ())
            if any(docid in hits for docid in relevant):
                return
            delimiter = self._settings.max_passage_delimiter
            passages_of_query = passages_of_documents(relevant, hits, delimiter)
            passages += passages_of_query[:1]  # the message names only one
        if passages:
            raise MismatchError(
                f"hits are passages such as {passages[0]!r}, judgments are of documents",
                "add --max-passage: the best passage of a relevant document is its positive",
            )

    def _example_of_passages(self, qid: str) -> TrainingExample:
        """Return a query whose positives are passages, of each relevant document its best one."""
        example = self._stored_example(qid)
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
        yield from map(self._example_of_passages, self._shard_qids)

    def _read_texts(self, passages: Iterable[Passage]) -> None:
        """Find the texts of positives and hits in the corpus."""
        for example in self._examples_of_shard():
            self._texts.refer(positive.docid for positive in example.positives if not positive.text)
            unused_drops: Drops = Counter()  # `_examples_with_candidates` counts
            self._texts.refer(hit.docid for hit in self._hits(example, unused_drops))
            self._texts.refer(self._further_relevant_hits(example))
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

    def _further_relevant_hits(self, example: TrainingExample) -> list[str]:
        """Return the hits that the qrels judge relevant and that are no positives of the example.

        Neither these nor passages with the same text are negatives.
        """
        if not self._relevant.get(example.qid):
            return []
        positives = {positive.docid for positive in example.positives}
        relevant_hits = self._relevant_hits(example.qid, self._rankings(example.qid))
        return [docid for docid in relevant_hits if docid not in positives]

    def _relevant_hits(self, qid: str, rankings: Sequence[Ranking]) -> list[str]:
        """Return the hits of a query that the qrels judge relevant, or whose document they do."""
        relevant = self._relevant.get(qid, ())
        hits = _ids_of_hits(rankings)
        if self._settings.max_passage:
            return passages_of_documents(relevant, hits, self._settings.max_passage_delimiter)
        return [docid for docid in relevant if docid in hits]

    def _examples_with_candidates(self) -> Examples:
        """Yield the queries with all their candidates, by id alone if there is no corpus."""
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
        """Return an example with texts, whose negatives are the hits that guards of texts let pass.

        Hits with an answer may become positives; the example's own ones are removed if the settings
        keep none.
        """
        positives = self._positives_with_texts(example)
        candidates = self._candidates_with_texts(hits)
        if self._compares_texts:
            candidates = self._without_repetitions(candidates, positives)
        known_positives = KnownPositives([*positives, *self._further_positives(example)])
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
        """Return the candidates that no guard gave a reason against; count the reasons.

        `reasons` has an entry for each candidate, which is None if it may be a negative.
        """
        kept_candidates = []
        for candidate, reason in zip(candidates, reasons, strict=True):
            if reason is None:
                kept_candidates.append(candidate)
            else:
                self.result.dropped[reason] += 1
        return kept_candidates

    def _without_repetitions(
        self, candidates: Sequence[Candidate], positives: Sequence[Candidate]
    ) -> list[Candidate]:
        """Return the candidates that do not repeat the words of a positive; count the others."""
        texts = [positive.text for positive in positives]
        guard = text_guard(texts, self._settings, known_by_text=self._has_positives_without_ids)
        reasons = [guard(candidate.text) for candidate in candidates]
        return self._without_dropped(candidates, reasons)

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
        """Return the positives with their texts; leave out and count those that have none."""
        docids = [positive.docid for positive in example.positives if not positive.text]
        passages = dict(zip(docids, self._texts.get(docids), strict=True))
        positives = []
        for positive in example.positives:
            if not positive.text:
                passage = passages[positive.docid]
                if passage is not None:
                    positive = positive._replace(text=passage.text, title=passage.title)
            if positive.text:
                positives.append(positive)
        missing = len(example.positives) - len(positives)
        self.result.left_out["positives that the corpus lacks"] += missing
        return positives

    def _candidates_with_texts(self, hits: Sequence[Hit]) -> list[Candidate]:
        """Return the hits with their texts and origins; count those that the corpus lacks."""
        passages = self._texts.get([hit.docid for hit in hits])
        candidates = []
        for hit, passage in zip(hits, passages, strict=True):
            if passage is None:
                continue
            origin = {"rank": hit.rank, "run": display_name(self._paths.run[hit.run])}
            if self._settings.teacher is not None:
                origin["run_score"] = hit.score  # the teacher's replaces it in `score`
            candidates.append(Candidate(hit.docid, passage.text, passage.title, hit.score, origin))
        self.result.dropped["not in the corpus"] += len(hits) - len(candidates)
        return candidates

    def _split_by_answers(
        self, example: TrainingExample, candidates: Sequence[Candidate]
    ) -> tuple[list[Candidate], list[Candidate]]:
        """Return the candidates without an answer to the query, and those with one."""
        texts = [candidate.text for candidate in candidates]
        matches, unusable_answers = match_answers(
            example.answers, texts, regex=self._settings.regex
        )
        # a count of 0 is entered, too: the entries' order is that of the message
        noticed = self.result.noticed
        noticed["queries without an answer"] += 0 if example.answers else 1
        noticed["answers without a word, or no regular expression"] += len(unusable_answers)
        without_answers = []
        with_answers = []
        for candidate, has_answer in zip(candidates, matches, strict=True):
            if has_answer:
                with_answers.append(candidate)
            else:
                without_answers.append(candidate)
        return without_answers, with_answers

    def _further_positives(self, example: TrainingExample) -> Iterator[Candidate]:
        """Yield the further relevant hits of a query, with their texts."""
        for passage in self._texts.get(self._further_relevant_hits(example)):
            if passage is not None:
                yield Candidate(passage.docid, passage.text, passage.title)

    def _with_teacher_scores(self, examples: Examples, score: Score) -> Examples:
        """Replace the runs' scores by the teacher's, and drop negatives by those."""
        source_of_queries = self._paths.train or self._paths.topics or ""
        for example in with_teacher_scores(examples, score, source_of_queries):
            best_positive = max(map(_score_of, example.positives))
            guard = score_guard(best_positive, self._settings)
            reasons = [guard(_score_of(candidate)) for candidate in example.negatives]
            negatives = self._without_dropped(example.negatives, reasons)
            yield example._replace(negatives=tuple(negatives))

    def _with_sampled_negatives(self, examples: Examples) -> Examples:
        """Yield the queries with the negatives that they keep; leave out those without any.

        Raise a MismatchError if none is left, before the output gets its name.
        """
        result = self.result
        num_negatives = self._settings.num_negatives
        with track("mining", len(self._shard_qids), "queries") as progress:
            for example in examples:
                progress.advance()
                if not example.negatives:
                    result.left_out[NO_NEGATIVE] += 1
                    continue
                negatives = self._sample(example)
                result.queries += 1
                result.negatives += len(negatives)
                if len(negatives) < num_negatives:
                    result.short += 1
                yield example._replace(negatives=negatives)
        if not result.queries and self._shard_qids:
            result.log(num_negatives)  # why each query lost its negatives
            hint = "mine at greater --depth, or with fewer guards"
            raise MismatchError("no query has a negative left: nothing is written", hint)

    def _sample(self, example: TrainingExample) -> tuple[Candidate, ...]:
        """Return the negatives that a query keeps, best first: the best, or a random sample."""
        settings = self._settings
        count = len(example.negatives)
        positions = list(range(count))
        if settings.sampling_strategy is SamplingStrategy.RANDOM and count > settings.num_negatives:
            # the sample depends on seed, id and number of candidates alone; `random()`, unlike
            # `sample()`, returns the same in every version of Python
            generator = Random(f"{settings.seed} {example.qid}")
            keys = [generator.random() for _ in positions]
            positions.sort(key=keys.__getitem__)
        sample = sorted(positions[: settings.num_negatives])
        return tuple(example.negatives[position] for position in sample)


def _score_of(candidate: Candidate) -> float:
    """Return the score of a candidate that a teacher has scored."""
    assert candidate.score is not None
    return candidate.score


def _merged(earlier: TrainingExample, later: TrainingExample) -> TrainingExample:
    """Return two examples of one query as one, with each positive and answer once."""
    positives: dict[str, Candidate] = {}
    for candidate in (*earlier.positives, *later.positives):
        positives.setdefault(candidate.docid or candidate.text, candidate)
    answers = tuple(dict.fromkeys((*earlier.answers, *later.answers)))
    return earlier._replace(positives=tuple(positives.values()), answers=answers)
