"""`denserk eval --answers`: measures of runs whose passages are relevant if they hold an answer."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from statistics import fmean

from denserk.config import evaluation
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.errors import MismatchError, UsageError
from denserk.evaluation import evaluator
from denserk.evaluation.answers import judging
from denserk.evaluation.measures import parse_measures
from denserk.evaluation.results import EvaluationResult, Run
from denserk.io.corpus import PassageTexts, read_passages
from denserk.io.files import display_name, some
from denserk.io.outputs import scratch_folder
from denserk.io.topics import contexts_writer, read_queries, read_questions
from denserk.records import Query
from denserk.reporting import track

logger = logging.getLogger(__name__)
BATCH = 256  # questions whose texts are in memory at once


def evaluate_answers(
    runs: Sequence[str],
    answers: str,
    corpus: str,
    settings: evaluation.EvalSettings | None = None,
    format: CorpusSettings = DETECTED,
) -> EvaluationResult:
    """Evaluate runs by the answers that their passages hold; titles are ignored.

    `answers` are questions with the ids of the runs; `settings.topics` gives their texts where
    `answers` lacks them and they are written. The default is top-k accuracy at 5, 20 and 100.
    """
    settings = settings or evaluation.EvalSettings()
    named = [*settings.measures, *(f"Success@{depth}" for depth in settings.topk)]
    bounded = [evaluation.parse_bound(text)[0] for text in settings.min]
    asked = [*(named or evaluation.DEFAULT_ANSWER_MEASURES), *bounded]
    measures, known = parse_measures(asked).measures, ("Success", "RR", "P")
    if wrong := [m for m in measures if m.NAME not in known or list(m.params) != ["cutoff"]]:
        names = ", ".join(map(str, wrong))
        hint = "answers allow Success@k, RR@k, P@k; QA papers call Success@k R@k or top-k accuracy"
        raise UsageError(f"{names}: answers judge only the first hits, and not by grades", hint)
    depth = max(int(measure["cutoff"]) for measure in measures)
    if not runs:
        raise UsageError("no run is named", "denserk eval run.trec --answers FILE --corpus FILE")
    if settings.relevance_level != 1:
        raise UsageError("--relevance-level: a passage holds an answer or not, without grades")
    if settings.outputs and len(runs) > 1:
        raise UsageError(f"{' and '.join(settings.outputs)}: takes one run, {len(runs)} are given")
    questions = _read_questions(answers, settings)
    keep = partial(evaluator.prune_hits, depth=depth)
    read = [evaluator.read_hits(run, settings, keep) for run in runs]
    found = [{q.qid: run[q.qid] for q in questions if q.qid in run} for run in read]
    if not all(found):
        unanswered = display_name(runs[[bool(hits) for hits in found].index(False)])
        missing = some(query.qid for query in questions)
        raise MismatchError(f"{unanswered} has no hits for the questions {missing}")
    judged = _judge(questions, found, corpus, format, settings, depth)
    measured = evaluator.Evaluator(measures, judged, complete=settings.complete)
    relations = {q.qid: str(q.extra["relation"]) for q in questions if "relation" in q.extra}
    results = []
    for name, run in zip(evaluator.short_names(runs), read, strict=True):
        result, means = measured.evaluate(name, run), {}
        for measure, values in result.per_query.items():
            if not values.keys() <= relations.keys():
                continue
            groups: dict[str, list[float]] = {}
            for qid, value in values.items():
                groups.setdefault(relations[qid], []).append(value)
            means[measure] = fmean(map(fmean, groups.values()))
        results.append(replace(result, over_relations=means))
    return measured.result(results)


def _read_questions(answers: str, settings: evaluation.EvalSettings) -> list[Query]:
    """Return the questions, with the texts of `--topics`; outputs need all texts."""
    topics, outputs = settings.topics, " and ".join(settings.outputs)
    questions = list(read_questions(answers))
    known = {query.qid: query.text for query in (read_queries(topics) if topics else ())}
    questions = [q._replace(text=known.get(q.qid, q.text)) for q in questions]
    if outputs and (lacking := [query.qid for query in questions if not query.text]):
        which = f"{len(lacking):,} of {len(questions):,} questions ({some(lacking)})"
        why = f"{topics or answers} lacks the text of {which}, which {outputs} would hold"
        raise UsageError(why, "add --topics FILE, the queries with these ids")
    return questions


def _judge(
    questions: Sequence[Query],
    found: Sequence[Run],
    corpus: str,
    format: CorpusSettings,
    settings: evaluation.AnswerSettings,
    depth: int,
) -> dict[str, dict[str, int]]:
    """Look for answers: question -> passage -> 1 if it holds one; write and warn."""
    judged: dict[str, dict[str, int]] = {}
    unusable: dict[str, None] = {}
    stream = iter(questions)
    with ExitStack() as stack:
        enter = stack.enter_context
        texts = enter(closing(PassageTexts(enter(scratch_folder("answers")) / "texts")))
        for hits in found:
            texts.refer(chain(*hits.values()))
        texts.find(read_passages(corpus, format), corpus)
        if not settings.skip_missing:
            hint = "add --skip-missing to count such passages as holding no answer"
            texts.require_all(corpus, "the runs", hint)
        elif missing := len(texts.missing):
            logger.warning(f"passages missing in {corpus}, which hold no answer: {missing:,}")
        files = {settings.write_dpr_json: False, settings.write_pyserini_json: True}
        writers = [enter(contexts_writer(f, pyserini=p)) for f, p in files.items() if f is not None]
        judge = enter(judging(settings))
        progress = enter(track("looking for answers", len(questions), "questions"))
        while batch := list(islice(stream, BATCH)):
            passages = []
            for query in batch:
                docids = list(dict.fromkeys(d for hits in found for d in hits.get(query.qid, ())))
                passages.append({p.docid: p for p in texts.get(docids) if p is not None})
            read = [[passage.text for passage in of.values()] for of in passages]
            verdicts = judge([query.answers for query in batch], read)
            for query, of, (holding, bad) in zip(batch, passages, verdicts, strict=True):
                matches = dict(zip(of, map(int, holding), strict=True))
                # "" is no id: trec_eval needs a judged passage for each question
                judged[query.qid] = matches or {"": 0}
                unusable |= dict.fromkeys(bad)
                for write in writers:  # of the one run
                    best = evaluator.first_hits(found[0].get(query.qid, {}), depth).items()
                    write(query, [(of[d], at, bool(matches[d])) for d, at in best if d in of])
            progress.advance(len(batch))
    without = "questions without an answer, which no passage holds"
    kind = "that are not valid regular expressions" if settings.regex else "of no letter or sign"
    unanswered = [query.qid for query in questions if not query.answers]
    for sentence, names in ((without, unanswered), (f"answers {kind}", [*unusable])):
        if names:
            logger.warning(f"{sentence}: {len(names):,} ({some(names)})")
    return judged
