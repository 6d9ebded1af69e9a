"""`denserk eval --answers`: measures of runs whose passages are relevant if they hold an answer."""

import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import islice
from statistics import fmean
from typing import NamedTuple

from denserk.config import evaluation
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.errors import MismatchError, UsageError
from denserk.evaluation.answers import judging
from denserk.evaluation.evaluator import Evaluator, short_names
from denserk.evaluation.measures import Measure, parse_measures
from denserk.evaluation.needed_hits import first_hits, prune_hits, read_hits
from denserk.evaluation.results import EvaluationResult, Run, Values
from denserk.io.contexts import Context, WriteContexts, contexts_writer
from denserk.io.corpus import PassageTexts, read_passages
from denserk.io.files import display_name
from denserk.io.outputs import scratch_folder
from denserk.io.short_texts import first_names
from denserk.io.topics import read_queries, read_questions
from denserk.records import Passage, Query
from denserk.reporting import track

logger = logging.getLogger(__name__)

BATCH = 256  # questions whose texts are in memory at once
# measures of the first hits, without grades
ALLOWED_MEASURES = ("Success", "RR", "P")


def evaluate_answers(
    runs: Sequence[str],
    answers: str,
    corpus: str,
    settings: evaluation.EvalSettings | None = None,
    corpus_settings: CorpusSettings = DETECTED,
) -> EvaluationResult:
    """Evaluate runs by the answers that their passages hold; titles are ignored.

    `answers` is a file of questions with the ids of the runs. `settings.topics` gives the texts of
    questions, which outputs hold, where `answers` lacks them. The default measures are top-k
    accuracy at 5, 20 and 100.
    """
    settings = settings or evaluation.EvalSettings()
    measures = requested_measures(settings)
    _check_usage(runs, settings)
    depth = max(int(measure["cutoff"]) for measure in measures)
    questions = _read_questions(answers, settings)
    keep_first_hits = partial(prune_hits, depth=depth)
    selected_hits = [read_hits(run, settings, keep_first_hits) for run in runs]
    hits_of_runs = [selected.run for selected in selected_hits]
    hits_of_questions = _hits_of_questions(runs, hits_of_runs, questions)
    judgments = _judge(questions, hits_of_questions, corpus, corpus_settings, settings, depth)
    run_evaluator = Evaluator(measures, judgments, complete=settings.complete)
    relation_by_qid = {
        question.qid: str(question.extra["relation"])
        for question in questions
        if "relation" in question.extra
    }
    results = []
    for name, selected in zip(short_names(runs), selected_hits, strict=True):
        result = run_evaluator.evaluate(name, selected.run, selected.ties)
        means = _means_over_relations(result.per_query, relation_by_qid)
        results.append(replace(result, over_relations=means))
    return run_evaluator.result(results)


def requested_measures(settings: evaluation.EvalSettings) -> Sequence[Measure]:
    """Return the measures that are named, or the default ones, and those with minimum values.

    Raise a UsageError for measures that need grades, or more than the first k hits.
    """
    names = [*settings.measures]
    names += [f"Success@{depth}" for depth in settings.topk]
    if not names:
        names += evaluation.DEFAULT_ANSWER_MEASURES
    for bound in settings.min:
        name, _ = evaluation.parse_bound(bound)
        names.append(name)
    measures = parse_measures(names).measures
    rejected = [
        str(measure)
        for measure in measures
        if measure.NAME not in ALLOWED_MEASURES or list(measure.params) != ["cutoff"]
    ]
    if rejected:
        raise UsageError(
            f"{', '.join(rejected)}: answers judge only the first hits, and not by grades",
            "answers allow Success@k, RR@k, P@k; QA papers call Success@k R@k or top-k accuracy",
        )
    return measures


def _check_usage(runs: Sequence[str], settings: evaluation.EvalSettings) -> None:
    """Raise a UsageError for settings that answers do not allow."""
    if not runs:
        raise UsageError("no run is named", "denserk eval run.trec --answers FILE --corpus FILE")
    if settings.relevance_level != 1:
        raise UsageError("--relevance-level: a passage holds an answer or not, without grades")
    if settings.outputs and len(runs) > 1:
        raise UsageError(f"{' and '.join(settings.outputs)}: takes one run, {len(runs)} are given")


def _read_questions(answers: str, settings: evaluation.EvalSettings) -> list[Query]:
    """Return the questions, with the texts of `--topics`.

    Raise a UsageError for a question without a text if outputs are written, which hold the texts.
    """
    questions = list(read_questions(answers))
    if settings.topics:
        texts = {query.qid: query.text for query in read_queries(settings.topics)}
        questions = [
            question._replace(text=texts.get(question.qid, question.text)) for question in questions
        ]
    without_text = [question.qid for question in questions if not question.text]
    if settings.outputs and without_text:
        raise UsageError(
            f"{settings.topics or answers} lacks the text of {len(without_text):,} of "
            f"{len(questions):,} questions ({first_names(without_text)}), which "
            f"{' and '.join(settings.outputs)} would hold",
            "add --topics FILE, the queries with these ids",
        )
    return questions


def _hits_of_questions(
    runs: Sequence[str], hits_of_runs: Sequence[Run], questions: Sequence[Query]
) -> list[Run]:
    """Return each run without other queries; raise a MismatchError for one without a question.

    `runs` are the files, for messages.
    """
    qids = [question.qid for question in questions]
    hits_of_questions: list[Run] = []
    for run, hits_of_run in zip(runs, hits_of_runs, strict=True):
        hits_by_qid = {qid: hits_of_run[qid] for qid in qids if qid in hits_of_run}
        if not hits_by_qid:
            name = display_name(run)
            raise MismatchError(f"{name} has no hits for the questions {first_names(qids)}")
        hits_of_questions.append(hits_by_qid)
    return hits_of_questions


def _means_over_relations(
    per_query: Mapping[str, Values], relation_by_qid: Mapping[str, str]
) -> dict[str, float]:
    """Return by measure the mean over relations of the means over each relation's questions.

    EntityQuestions has a relation for each question. A measure is left out if a question lacks one.
    `per_query` is measure -> query id -> value.
    """
    means = {}
    for measure, value_by_qid in per_query.items():
        if not value_by_qid.keys() <= relation_by_qid.keys():
            continue
        values_by_relation: dict[str, list[float]] = {}
        for qid, value in value_by_qid.items():
            values_by_relation.setdefault(relation_by_qid[qid], []).append(value)
        means[measure] = fmean(map(fmean, values_by_relation.values()))
    return means


class JudgedQuestion(NamedTuple):
    """A question, and which of its retrieved passages hold an answer."""

    question: Query
    passages: Mapping[str, Passage]  # by id, without those that the corpus lacks
    has_answer: Mapping[str, bool]  # by id, of the same passages
    unusable_answers: Sequence[str]  # answers that cannot be looked for


def _judge(
    questions: Sequence[Query],
    hits_of_questions: Sequence[Run],
    corpus: str,
    corpus_settings: CorpusSettings,
    settings: evaluation.AnswerSettings,
    depth: int,
) -> dict[str, dict[str, int]]:
    """Return question -> passage -> 1 if it holds an answer, else 0, for the hits of all runs.

    Write the outputs on the way, with the first `depth` hits; warn of questions without a usable
    answer.
    """
    judgments: dict[str, dict[str, int]] = {}
    unusable_answers: dict[str, None] = {}  # a set in order
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder("answers"))
        texts = stack.enter_context(closing(PassageTexts(folder / "texts")))
        skip_missing = settings.skip_missing
        _copy_passages(texts, hits_of_questions, corpus, corpus_settings, skip_missing=skip_missing)
        writers = _open_writers(settings, stack)
        judged_questions = _judged_questions(questions, hits_of_questions, texts, settings)
        # closed, so that an error in writing also ends the processes that look for answers
        for judged in stack.enter_context(closing(judged_questions)):
            qid = judged.question.qid
            grades = {docid: int(is_match) for docid, is_match in judged.has_answer.items()}
            # trec_eval counts a question only if a passage is judged: "" is the id of none
            judgments[qid] = grades or {"": 0}
            unusable_answers |= dict.fromkeys(judged.unusable_answers)
            if writers:
                (run,) = hits_of_questions  # outputs are of one run
                contexts = _contexts(first_hits(run.get(qid, {}), depth), judged)
                for write in writers:
                    write(judged.question, contexts)
    _warn_of_answers(questions, list(unusable_answers), regex=settings.regex)
    return judgments


def _open_writers(settings: evaluation.AnswerSettings, stack: ExitStack) -> list[WriteContexts]:
    """Return a function that writes a question for each output; `stack` closes the files."""
    writers = []
    if settings.write_dpr_json is not None:
        writers.append(stack.enter_context(contexts_writer(settings.write_dpr_json)))
    if settings.write_pyserini_json is not None:
        writer = contexts_writer(settings.write_pyserini_json, pyserini=True)
        writers.append(stack.enter_context(writer))
    return writers


def _judged_questions(
    questions: Sequence[Query],
    hits_of_questions: Sequence[Run],
    texts: PassageTexts,
    settings: evaluation.AnswerSettings,
) -> Generator[JudgedQuestion]:
    """Yield the questions, and which of their passages hold an answer, batch by batch."""
    with (
        judging(settings) as judge,
        track("looking for answers", len(questions), "questions") as progress,
    ):
        for batch in _batches(questions):
            passages_of_batch = [
                _passages_of(question, hits_of_questions, texts) for question in batch
            ]
            texts_of_batch = []
            for passages in passages_of_batch:
                texts_of_batch.append([passage.text for passage in passages.values()])
            verdicts = judge([question.answers for question in batch], texts_of_batch)
            for question, passages, verdict in zip(batch, passages_of_batch, verdicts, strict=True):
                matches, unusable_answers = verdict  # a match for each passage
                has_answer = dict(zip(passages, matches, strict=True))
                yield JudgedQuestion(question, passages, has_answer, unusable_answers)
            progress.advance(len(batch))


def _copy_passages(
    texts: PassageTexts,
    hits_of_questions: Sequence[Run],
    corpus: str,
    corpus_settings: CorpusSettings,
    *,
    skip_missing: bool,
) -> None:
    """Copy the retrieved passages from the corpus; reject missing ones, or warn of them."""
    for run in hits_of_questions:
        for hits in run.values():
            texts.refer(hits)
    texts.find(read_passages(corpus, corpus_settings), corpus)
    if not skip_missing:
        hint = "add --skip-missing to count such passages as holding no answer"
        texts.require_all(corpus, "the runs", hint)
        return
    missing_count = len(texts.missing)
    if missing_count:
        logger.warning(f"passages missing in {corpus}, which hold no answer: {missing_count:,}")


def _batches(questions: Sequence[Query]) -> Iterator[list[Query]]:
    """Yield the questions whose texts are in memory together."""
    remaining = iter(questions)
    while batch := list(islice(remaining, BATCH)):
        yield batch


def _passages_of(
    question: Query, hits_of_questions: Sequence[Run], texts: PassageTexts
) -> dict[str, Passage]:
    """Return the passages that any run retrieved for a question, by id, if the corpus has them."""
    docids: dict[str, None] = {}  # a set in order
    for run in hits_of_questions:
        docids |= dict.fromkeys(run.get(question.qid, ()))
    return {passage.docid: passage for passage in texts.get(list(docids)) if passage is not None}


def _contexts(hits: Mapping[str, float], judged: JudgedQuestion) -> list[Context]:
    """Return the hits whose passages the corpus has, with scores and whether they hold an answer.

    `hits` is passage id -> score, the best first.
    """
    contexts = []
    for docid, score in hits.items():
        if docid in judged.passages:
            has_answer = judged.has_answer[docid]
            contexts.append(Context(judged.passages[docid], score, has_answer))
    return contexts


def _warn_of_answers(
    questions: Sequence[Query], unusable_answers: Sequence[str], *, regex: bool
) -> None:
    """Warn of questions without an answer, and of answers that cannot be looked for."""
    unanswered = [question.qid for question in questions if not question.answers]
    if unanswered:
        logger.warning(
            "questions without an answer, which no passage holds: "
            f"{len(unanswered):,} ({first_names(unanswered)})"
        )
    if unusable_answers:
        listed = f"{len(unusable_answers):,} ({first_names(unusable_answers)})"
        if regex:
            logger.warning(f"answers that are not valid regular expressions: {listed}")
        else:
            logger.warning(f"answers of no letter or sign: {listed}")
