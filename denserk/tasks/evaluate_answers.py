"""Evaluation of runs by answers: a hit is relevant if its text holds an answer.

Memory grows with the questions and their best hits, not with the collection, which is streamed
once, nor with its texts, which are kept on disk (in TMPDIR).
"""

import logging
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace
from itertools import islice

from denserk.data.passage_texts import PassageTexts
from denserk.errors import InputError, MismatchError, UsageError
from denserk.evaluation.answers import (
    Case,
    Verdict,
    choose_answer_measures,
    depth_of,
    judging,
    mean_of_means,
)
from denserk.evaluation.evaluator import EvaluationResult, Evaluator, RunResult, first_hits, some
from denserk.evaluation.inputs import short_names
from denserk.evaluation.measures import Measure
from denserk.formats.detection import told
from denserk.formats.files import STREAM
from denserk.formats.outputs import scratch_folder
from denserk.formats.question_answers import Context, Write, dpr_json, pyserini_json
from denserk.formats.runs import read_run
from denserk.formats.sources import read_passages, read_queries, read_questions
from denserk.records import Passage, Query, best_first
from denserk.reporting import track
from denserk.settings.evaluation import (
    DEFAULT_ANSWER_MEASURES,
    MATCHING,
    AnswerSettings,
    EvaluationSettings,
    RunOrder,
    parse_bound,
)
from denserk.settings.formats import DETECTED, CorpusSettings
from denserk.tasks.evaluate import tell_ties

logger = logging.getLogger(__name__)

BATCH = 256  # questions whose texts are in memory at once

Hits = dict[str, dict[str, float]]  # question -> passage -> score, best first


def evaluate_answers(
    runs: Sequence[str],
    answers: str,
    corpus: str,
    settings: EvaluationSettings | None = None,
    matching: AnswerSettings = MATCHING,
    shape: CorpusSettings = DETECTED,
    topics: str | None = None,
) -> EvaluationResult:
    """Evaluate runs by the answers that their passages hold.

    Args:
        runs: run files; "-" is standard input.
        answers: questions with their answers, ids as in the runs.
        corpus: the passages that were searched; titles are ignored.
        settings: the measures; top-k accuracy at 5, 20 and 100 by default.
        matching: how answers are matched, and what is written of it.
        shape: how the corpus is read.
        topics: queries with the texts of the questions, if `answers` lacks them and they are
            written.

    Returns:
        The measures asked for and those of the minimum values, over all questions.

    Raises:
        UsageError: a measure is unknown or impossible with answers, or there is no such file.
        InputError: a file is broken, or the corpus lacks passages.
        MismatchError: a run has no query in common with the questions.
        OutputError: an output cannot be written.
    """
    settings = settings or EvaluationSettings()
    measures = _measures(settings, matching)
    _refuse(runs, [answers, corpus], settings, matching)
    questions = list(read_questions(answers))
    if topics is not None:
        known = {query.qid: query.text for query in read_queries(topics)}
        questions = [query._replace(text=known.get(query.qid, query.text)) for query in questions]
    _refuse_textless(questions, topics or answers, matching)
    names, depth = short_names(runs), depth_of(measures)
    asked = dict.fromkeys(query.qid for query in questions)
    with scratch_folder("answers") as scratch, ExitStack() as files:
        texts = files.enter_context(closing(PassageTexts(scratch / "passages")))
        found: list[Hits] = []
        others: list[list[str]] = []
        for run, name in zip(runs, names, strict=True):
            hits, unanswered = _read_hits(run, name, asked, depth, settings)
            for docids in hits.values():
                texts.refer(list(docids))
            found.append(hits)
            others.append(unanswered)
        _find_texts(texts, found, corpus, shape, matching.skip_missing)
        writers = [files.enter_context(opened) for opened in _outputs(matching)]
        judged, verdicts = _judge(questions, found, texts, matching, writers, depth)
    _warn(questions, verdicts, matching)
    evaluator = Evaluator(measures, judged, complete=settings.complete)
    relations = {q.qid: str(q.extra["relation"]) for q in questions if "relation" in q.extra}
    results = []
    for name, hits, unanswered in zip(names, found, others, strict=True):
        result = replace(evaluator.evaluate(name, hits), unjudged=tuple(unanswered))
        if relations:
            means = {m: mean_of_means(of, relations) for m, of in result.per_query.items()}
            result = replace(result, over_relations=means)
        _tell(result, len(questions), settings)
        tell_ties(result, evaluator.providers)
        results.append(result)
    return EvaluationResult(measures, 1, evaluator.queries, tuple(results), evaluator.providers)


def best_hits(docids: Sequence[str], scores: Sequence[float], depth: int) -> dict[str, float]:
    """Return the hits that can be among the first `depth`, best first; ties by id descending.

    Scores are compared as float32, and all hits that tie with the last one are kept: providers of
    ir-measures order ties differently.

    >>> best_hits(["a", "b", "c", "d"], [1.0, 3.0, 2.0, 2.0], 2)
    {'b': 3.0, 'd': 2.0, 'c': 2.0}
    """
    rounded = array("f", scores)
    least = sorted(rounded, reverse=True)[:depth][-1]
    kept = zip(docids, scores, rounded, strict=True)
    return dict(best_first((docid, score) for docid, score, at in kept if at >= least))


def _read_hits(
    run: str, name: str, asked: Mapping[str, None], depth: int, settings: EvaluationSettings
) -> tuple[Hits, list[str]]:
    """Read the best hits of each question, and the other queries of a run.

    Raises:
        InputError: a line is broken, or the lines of a query do not stand together.
        MismatchError: none of its queries is among the questions.
    """
    found: Hits = {}
    others: list[str] = []
    with track(f"reading {told(run)}", None, "queries") as progress:
        for group in read_run(run, by_rank=settings.order is RunOrder.RANK):
            progress.advance()
            if group.qid not in asked:
                others.append(group.qid)
                continue
            hits = dict(zip(group.docids, group.scores, strict=True))
            if settings.max_hits is not None:
                hits = first_hits(hits, settings.max_hits)
            found[group.qid] = best_hits(list(hits), list(hits.values()), depth)
    if not found:
        has = f"answers queries {some(others)}" if others else "holds no hit at all"
        raise MismatchError(f"{name} {has}; the answers are for {some(asked)}: none in common")
    return found, others


def _find_texts(
    texts: PassageTexts, found: Sequence[Hits], corpus: str, shape: CorpusSettings, skip: bool
) -> None:
    """Take the texts of all hits from the corpus.

    Raises:
        InputError: the corpus lacks some, and they are not skipped.
    """
    with track("reading the corpus", None, "passages") as progress:
        texts.find(read_passages(corpus, shape), corpus, progress)
    if skip and texts.missing:
        logger.warning(f"passages missing in {corpus}, which hold no answer: {texts.missing:,}")
    elif texts.missing:
        docids = dict.fromkeys(d for hits in found for each in hits.values() for d in each)
        lacking = [docid for docid in docids if texts.get([docid]) == [None]]
        raise InputError(
            corpus,
            None,
            f"no passages with {texts.missing:,} of the ids that the runs name ({some(lacking)})",
            "the corpus that was searched",
            "add --skip-missing to count such passages as holding no answer",
        )


def _judge(
    questions: Sequence[Query],
    found: Sequence[Hits],
    texts: PassageTexts,
    matching: AnswerSettings,
    writers: Sequence[Write],
    depth: int,
) -> tuple[dict[str, dict[str, int]], list[Verdict]]:
    """Look for answers: question -> passage -> 1 if it holds one; and the verdicts."""
    judged: dict[str, dict[str, int]] = {}
    verdicts: list[Verdict] = []
    stream = iter(questions)
    with (
        judging(matching) as judge,
        track("looking for answers", len(questions), "questions") as progress,
    ):
        while batch := list(islice(stream, BATCH)):
            passages = [_passages((h.get(q.qid, {}) for h in found), texts) for q in batch]
            cases = [
                Case(query.answers, tuple(passage.text for passage in of.values()))
                for query, of in zip(batch, passages, strict=True)
            ]
            for query, of, verdict in zip(batch, passages, judge(cases), strict=True):
                matches = dict(zip(of, map(int, verdict.matches), strict=True))
                # "" is no id: trec_eval needs a judged passage for each question
                judged[query.qid] = matches or {"": 0}
                verdicts.append(verdict._replace(matches=()))
                for write in writers:  # of the one run
                    best = islice(found[0].get(query.qid, {}).items(), depth)
                    hits = (hit for hit in best if hit[0] in of)
                    write(query, [Context(of[d], score, bool(matches[d])) for d, score in hits])
            progress.advance(len(batch))
    return judged, verdicts


def _passages(hits: Iterable[Mapping[str, float]], texts: PassageTexts) -> dict[str, Passage]:
    """Return the passages of a question's hits in all runs that the corpus has, by id."""
    docids = list(dict.fromkeys(docid for one in hits for docid in one))
    found = zip(docids, texts.get(docids), strict=True)
    return {docid: passage for docid, passage in found if passage is not None}


def _measures(settings: EvaluationSettings, matching: AnswerSettings) -> tuple[Measure, ...]:
    """Return the measures, those of minimum values among them."""
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


def _warn(
    questions: Sequence[Query], verdicts: Sequence[Verdict], matching: AnswerSettings
) -> None:
    """Warn about questions whose answers cannot match, or match everything."""
    none = [query.qid for query in questions if not query.answers]
    pairs = zip(questions, verdicts, strict=True)
    tokenless = [query.qid for query, verdict in pairs if verdict.tokenless]
    broken = list(dict.fromkeys(pattern for verdict in verdicts for pattern in verdict.broken))
    if none:
        logger.warning(
            f"questions without an answer, which no passage holds: {len(none):,} ({some(none)})"
        )
    if tokenless:
        what = "every passage holds" if matching.strict_dpr else "no passage holds"
        dpr = "; DPR counts every passage (--set strict-dpr=yes)"
        also = "" if matching.strict_dpr else dpr
        logger.warning(
            f"questions with an answer of no letter, number or sign, which {what}: "
            f"{len(tokenless):,} ({some(tokenless)}){also}"
        )
    if broken:
        logger.warning(
            f"answers that are not valid regular expressions, which no passage holds: "
            f"{len(broken):,} ({some(broken)})"
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
