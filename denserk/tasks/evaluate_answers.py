"""Runs, answers and passages to measures: a hit is relevant where its text holds an answer.

What memory holds grows with the questions, and by a few bytes with the passages that are named; not
with the collection, which streams by once, nor with its texts, which wait on the disk (TMPDIR says
where).
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from denserk.data.passage_texts import PassageTexts
from denserk.errors import UsageError
from denserk.evaluation.answer_evaluator import AnswerEvaluator, JudgedQuestion
from denserk.evaluation.answer_judging import Case, Judge, Verdict, judging
from denserk.evaluation.answer_measures import choose_answer_measures, depth_of
from denserk.evaluation.evaluator import EvaluationResult, RunResult, some
from denserk.evaluation.inputs import short_names
from denserk.evaluation.measures import Measure
from denserk.formats.files import STREAM
from denserk.formats.outputs import scratch_folder
from denserk.formats.retrieved_contexts import Context, Write, dpr_json, pyserini_json
from denserk.formats.sources import read_passages, read_queries, read_questions
from denserk.records import Passage, Query
from denserk.reporting import track
from denserk.settings.answers import DEFAULT_ANSWER_MEASURES, MATCHING, AnswerSettings
from denserk.settings.evaluation import EvaluationSettings, parse_bound
from denserk.settings.formats import DETECTED, CorpusSettings
from denserk.tasks.answer_hits import AnswerHits, refuse_lacking
from denserk.tasks.evaluate import tell_ties

logger = logging.getLogger(__name__)

BATCH = 256
"""Questions whose texts are in memory together."""


class _Found(NamedTuple):
    """A question with the texts of its hits, and what was found in them."""

    question: JudgedQuestion
    passages: dict[str, Passage]
    verdict: Verdict


def evaluate_answers(
    runs: Sequence[str],
    answers: str,
    corpus: str,
    settings: EvaluationSettings | None = None,
    matching: AnswerSettings = MATCHING,
    shape: CorpusSettings = DETECTED,
    topics: str | None = None,
) -> EvaluationResult:
    """Measures runs by the answers that their passages hold.

    Args:
        runs: run files; "-" is standard input.
        answers: questions with their answers, ids as in the runs.
        corpus: the passages that were searched; titles are not looked at.
        settings: what is measured; top-k accuracy at 5, 20 and 100 where nothing is named.
        matching: how answers are matched, and what is written of it.
        shape: how the corpus is read.
        topics: queries that hold the questions' texts, where `answers` does not and they are
            written.

    Returns:
        The measures asked for, and those of the gates, over all questions.

    Raises:
        UsageError: a measure is unknown or answers cannot tell it, or there is no such file.
        InputError: a file is not what it should be, or the corpus lacks passages.
        MismatchError: a run has no query in common with the questions.
        OutputError: an output cannot be written.
    """
    settings = settings or EvaluationSettings()
    measures = _measures(settings, matching)
    _refuse(runs, [answers, corpus], settings, matching)
    questions = list(read_questions(answers))
    if topics is not None:
        questions = _with_texts(questions, topics)
    _refuse_textless(questions, topics or answers, matching)
    evaluator = AnswerEvaluator(short_names(runs), measures, complete=settings.complete)
    doubts = _Doubts()
    with scratch_folder("answers") as scratch, ExitStack() as files:
        depth = depth_of(measures)
        gathered = _Gathered(questions, runs, depth, settings, scratch, files)
        gathered.find_texts(corpus, shape, matching.skip_missing)
        judge = files.enter_context(judging(matching))
        writers = [files.enter_context(opened) for opened in _outputs(matching)]
        with track("looking for answers", len(questions), "questions") as progress:
            for batch in gathered.judged(judge):
                evaluator.add([found.question for found in batch])
                doubts.take(batch)
                for write in writers:
                    _write(batch, write, depth)
                progress.advance(len(batch))
        results = evaluator.results([hits.unanswered for hits in gathered.hits])
    doubts.tell(matching)
    for result in results:
        _tell(result, len(questions), settings)
        tell_ties(result, evaluator.providers)
    return EvaluationResult(measures, 1, tuple(evaluator.queries), results, evaluator.providers)


def _measures(settings: EvaluationSettings, matching: AnswerSettings) -> tuple[Measure, ...]:
    """What is measured, the measures of gates among it."""
    asked = [*settings.measures, *(f"Success@{depth}" for depth in matching.topk)]
    gates = [parse_bound(text).measure for text in settings.min]
    return choose_answer_measures([*(asked or DEFAULT_ANSWER_MEASURES), *gates])


def _refuse(
    runs: Sequence[str],
    others: Sequence[str],
    settings: EvaluationSettings,
    matching: AnswerSettings,
) -> None:
    if not runs:
        raise UsageError(
            "no run is named", f"denserk eval run.trec --answers {others[0]} --corpus {others[1]}"
        )
    if twice := [name for name in dict.fromkeys(runs) if list(runs).count(name) > 1]:
        raise UsageError(f"{', '.join(twice)}: named twice", "name each run once")
    if [*runs, *others].count(STREAM) > 1:
        raise UsageError("standard input (-) can be only one of the inputs")
    if settings.relevance_level != 1:
        raise UsageError(
            f"--relevance-level {settings.relevance_level}: a passage holds an answer or not, and "
            "there are no grades",
            "leave it out",
        )
    if settings.remove_query:
        raise UsageError(
            "--remove-query drops passages by the ids of queries, and questions are no passages",
            "leave it out",
        )
    if matching.outputs and len(runs) > 1:
        raise UsageError(
            f"{' and '.join(matching.outputs)}: the passages of one run are written, and "
            f"{len(runs)} runs are named",
            "name one run",
        )


def _with_texts(questions: Sequence[Query], topics: str) -> list[Query]:
    """The questions, with the texts that the queries of the same id have."""
    texts = {query.qid: query.text for query in read_queries(topics)}
    return [query._replace(text=texts.get(query.qid, query.text)) for query in questions]


def _refuse_textless(questions: Sequence[Query], source: str, matching: AnswerSettings) -> None:
    lacking = [query.qid for query in questions if not query.text]
    if matching.outputs and lacking:
        raise UsageError(
            f"{source} lacks the text of {len(lacking):,} of {len(questions):,} questions "
            f"({some(lacking)}), which {' and '.join(matching.outputs)} would hold",
            "add --topics FILE, the queries with these ids",
        )


def _outputs(matching: AnswerSettings) -> Iterator[AbstractContextManager[Write]]:
    if matching.write_dpr_json is not None:
        yield dpr_json(matching.write_dpr_json)
    if matching.write_pyserini_json is not None:
        yield pyserini_json(matching.write_pyserini_json)


class _Gathered:
    """Questions, their best hits in each run, and the texts of these."""

    def __init__(
        self,
        questions: Sequence[Query],
        runs: Sequence[str],
        depth: int,
        settings: EvaluationSettings,
        scratch: Path,
        files: ExitStack,
    ) -> None:
        self._questions = questions
        self._texts = files.enter_context(closing(PassageTexts(scratch / "passages")))
        self.hits: list[AnswerHits] = []
        number_of = {query.qid: number for number, query in enumerate(questions)}
        for run, name in zip(runs, short_names(runs), strict=True):
            hits = AnswerHits(scratch / f"hits-{len(self.hits)}", number_of, depth)
            self.hits.append(files.enter_context(closing(hits)))
            hits.read(run, name, self._texts, settings)

    def find_texts(self, corpus: str, shape: CorpusSettings, skip_missing: bool) -> None:
        """Takes the texts of all hits from the corpus."""
        with track("reading the corpus", None, "passages") as progress:
            self._texts.find(read_passages(corpus, shape), corpus, progress)
        if not skip_missing:
            docids = (docid for hits in self.hits for docid in hits.docids())
            refuse_lacking(corpus, self._texts, docids)
        elif missing := self._texts.missing:
            logger.warning(f"passages that {corpus} lacks, which hold no answer: {missing:,}")

    def judged(self, judge: Judge) -> Iterator[list[_Found]]:
        """All questions, in their order, a batch at a time."""
        numbered = iter(enumerate(self._questions))
        while batch := list(islice(numbered, BATCH)):
            of_runs = [tuple(hits[number] for hits in self.hits) for number, _ in batch]
            passages = [_passages(hits, self._texts) for hits in of_runs]
            verdicts = judge(
                [
                    Case(query.answers, tuple(passage.text for passage in found.values()))
                    for (_, query), found in zip(batch, passages, strict=True)
                ]
            )
            yield [
                _Found(JudgedQuestion(query, hits, _matching(found, verdict)), found, verdict)
                for (_, query), hits, found, verdict in zip(
                    batch, of_runs, passages, verdicts, strict=True
                )
            ]


def _passages(hits: Sequence[dict[str, float]], texts: PassageTexts) -> dict[str, Passage]:
    """The passages of a question's hits in all runs, by id; without those the corpus lacks."""
    docids = list(dict.fromkeys(docid for one in hits for docid in one))
    found = zip(docids, texts.get(docids), strict=True)
    return {docid: passage for docid, passage in found if passage is not None}


def _matching(passages: dict[str, Passage], verdict: Verdict) -> frozenset[str]:
    pairs = zip(passages, verdict.matches, strict=True)
    return frozenset(docid for docid, holds in pairs if holds)


def _write(batch: Sequence[_Found], write: Write, depth: int) -> None:
    """Writes the questions of a batch with the first `depth` hits of the one run."""
    for (query, (hits,), matches), passages, _ in batch:
        best = islice(hits.items(), depth)
        contexts = [
            Context(passages[docid], score, docid in matches)
            for docid, score in best
            if docid in passages
        ]
        write(query, contexts)


class _Doubts:
    """What about the answers is worth a warning."""

    def __init__(self) -> None:
        self._none: list[str] = []
        self._tokenless: list[str] = []
        self._broken: dict[str, None] = {}

    def take(self, batch: Sequence[_Found]) -> None:
        """Looks at further questions."""
        for (query, _, _), _, verdict in batch:
            if not query.answers:
                self._none.append(query.qid)
            if verdict.tokenless:
                self._tokenless.append(query.qid)
            self._broken.update(dict.fromkeys(verdict.broken))

    def tell(self, matching: AnswerSettings) -> None:
        """Warns of what was found."""
        if self._none:
            logger.warning(
                f"questions without an answer, which no passage holds: {len(self._none):,} "
                f"({some(self._none)})"
            )
        if self._tokenless:
            what = "every passage holds" if matching.strict_dpr else "no passage holds"
            also = "" if matching.strict_dpr else "; DPR counts every one (--set strict-dpr=yes)"
            logger.warning(
                f"questions with an answer of no letter, number or sign, which {what}: "
                f"{len(self._tokenless):,} ({some(self._tokenless)}){also}"
            )
        if self._broken:
            logger.warning(
                f"answers that are no regular expression, which no passage holds: "
                f"{len(self._broken):,} ({some(self._broken)})"
            )


def _tell(run: RunResult, count: int, settings: EvaluationSettings) -> None:
    if run.missing:
        what = "they count as 0" if settings.complete else "they are left out of the means"
        logger.warning(
            f"{run.name}: {len(run.missing):,} of {count:,} questions are not in the run: "
            f"{some(run.missing)}; {what}"
        )
    if run.unjudged:
        logger.info(
            f"{run.name}: queries without answers, which do not count: "
            f"{len(run.unjudged):,} ({some(run.unjudged)})"
        )
