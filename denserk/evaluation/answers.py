r"""Evaluation by answer strings instead of relevance judgments, as in open-domain QA (DPR).

V. Karpukhin et al., "Dense Passage Retrieval for Open-Domain Question Answering" (EMNLP 2020), and
its released evaluation. Text and answer are normalised to Unicode NFD and cut into tokens: runs of
letters, numbers and marks, or single other characters that are neither separator nor control. A
passage matches if the lower-cased tokens of an answer occur in it one after another. With regular
expressions (CuratedTREC) it matches if one is found, ignoring case.

A matching hit counts as relevant; top-k accuracy, also called R@k in QA papers, is Success@k.

Memory grows with the questions and their best hits. The corpus is streamed once, and the texts of
the hits are kept on disk (in TMPDIR).
"""

import logging
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from multiprocessing import get_context
from statistics import fmean
from unicodedata import normalize

import regex

from denserk.config import evaluation
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.errors import DenserkError, MismatchError, UsageError
from denserk.evaluation.evaluator import (
    EvaluationResult,
    Evaluator,
    Run,
    first_hits,
    prune_hits,
    read_hits,
    short_names,
)
from denserk.evaluation.measures import Measure, parse_measures
from denserk.io.corpus import PassageTexts, read_passages
from denserk.io.files import display_name, some
from denserk.io.outputs import scratch_folder
from denserk.io.topics import contexts_writer, read_queries, read_questions
from denserk.records import Query
from denserk.reporting import track

logger = logging.getLogger(__name__)

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
_SPLIT = "\0"  # between tokens; a control character, and so in none of them
CHUNK = 8  # questions that a worker process takes at a time
BATCH = 256  # questions whose texts are in memory at once


def tokens_of(text: str) -> list[str]:
    """Return the lower-cased tokens of a text.

    >>> tokens_of("The U.S., in 1990")
    ['the', 'u', '.', 's', '.', ',', 'in', '1990']
    """
    found: list[str] = _TOKEN.findall(normalize("NFD", text))
    return [token.lower() for token in found]


def match_answers(
    answers: Sequence[str], texts: Sequence[str], *, regex: bool = False, strict: bool = False
) -> tuple[list[bool], list[str]]:
    r"""Return which texts hold an answer of a question, and the answers that cannot be looked for.

    Those have no token (only blanks, say). With `regex`, answers are regular expressions, and an
    invalid one matches nothing. With `strict`, an answer without a token matches every text, as in
    DPR's own code.

    >>> match_answers(["New York", "NYC"], ["in new\nyork, 1990", "a newer york"])
    ([True, False], [])
    >>> match_answers([r"19\d\d", "("], ["in 1990"], regex=True)
    ([True], ['('])
    """
    normal = [normalize("NFD", text) for text in texts]
    if regex:
        patterns = {answer: _pattern(answer) for answer in answers}
        known = [pattern for pattern in patterns.values() if pattern]
        unusable = [answer for answer, pattern in patterns.items() if pattern is None]
        return [any(p.search(text) for p in known) for text in normal], unusable
    sequences = {answer: tokens_of(answer) for answer in answers}
    unusable = [answer for answer, tokens in sequences.items() if not tokens]
    if strict and unusable:
        return [True] * len(texts), unusable
    # a passage without an answer's longest token need not be tokenized
    sought = [(_joined(t), max(t, key=len).casefold()) for t in sequences.values() if t]
    return [_holds(text, sought) for text in normal], unusable


def _pattern(answer: str) -> re.Pattern[str] | None:
    try:
        return re.compile(normalize("NFD", answer), re.IGNORECASE | re.MULTILINE)
    except (re.error, OverflowError, RecursionError):
        return None


def _holds(text: str, sought: Iterable[tuple[str, str]]) -> bool:
    folded = text.casefold()
    possible = [sequence for sequence, longest in sought if longest in folded]
    joined = _joined(tokens_of(text)) if possible else ""
    return any(sequence in joined for sequence in possible)


def _joined(tokens: Iterable[str]) -> str:
    return f"{_SPLIT}{_SPLIT.join(tokens)}{_SPLIT}"


Texts = Sequence[Sequence[str]]  # of each question
Judge = Callable[[Texts, Texts], Iterable[tuple[list[bool], list[str]]]]


@contextmanager
def judging(settings: evaluation.AnswerSettings) -> Iterator[Judge]:
    """Yield `match_answers` for many questions (answers, texts), in `num_workers` processes."""
    one = partial(match_answers, regex=settings.regex, strict=settings.strict_dpr)
    if settings.num_workers == 1:
        yield partial(map, one)
        return
    # a fork would not survive other threads; Ctrl-C is for this process, which ends the others
    pool = ProcessPoolExecutor(
        settings.num_workers, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN)
    )
    try:
        with pool:
            for _ in range(settings.num_workers):  # a pool that breaks while it starts one hangs
                pool.submit(int)
            yield partial(pool.map, one, chunksize=CHUNK)
    except BrokenProcessPool:
        raise DenserkError(
            "a process that looks for answers was killed",
            "was there enough memory? --num-workers 1 uses no other process",
        ) from None


def choose_answer_measures(texts: Iterable[str]) -> tuple[Measure, ...]:
    """Parse measures, and reject those that answers cannot give."""
    measures, known = parse_measures(texts).measures, ("Success", "RR", "P")
    if wrong := [m for m in measures if m.NAME not in known or list(m.params) != ["cutoff"]]:
        raise UsageError(
            f"{', '.join(map(str, wrong))}: answers judge only the first hits, and not by grades",
            "answers allow Success@k, RR@k, P@k; QA papers call Success@k R@k or top-k accuracy",
        )
    return measures


def mean_of_means(values: Mapping[str, float], groups: Mapping[str, str]) -> float:
    """Return the mean of the means of groups, each counting once whatever its size."""
    parts: dict[str, list[float]] = {}
    for qid, value in values.items():
        parts.setdefault(groups[qid], []).append(value)
    return fmean(map(fmean, parts.values()))


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
    measures = choose_answer_measures([*(named or evaluation.DEFAULT_ANSWER_MEASURES), *bounded])
    depth = max(int(measure["cutoff"]) for measure in measures)
    if not runs:
        raise UsageError("no run is named", "denserk eval run.trec --answers FILE --corpus FILE")
    if settings.relevance_level != 1:
        raise UsageError("--relevance-level: a passage holds an answer or not, without grades")
    if settings.outputs and len(runs) > 1:
        raise UsageError(f"{' and '.join(settings.outputs)}: takes one run, {len(runs)} are given")
    questions = _read_questions(answers, settings.topics, settings.outputs)
    read = [read_hits(run, settings, partial(prune_hits, depth=depth)) for run in runs]
    found = [{q.qid: run[q.qid] for q in questions if q.qid in run} for run in read]
    if not all(found):
        unanswered = display_name(runs[[bool(hits) for hits in found].index(False)])
        asked = some(query.qid for query in questions)
        raise MismatchError(f"{unanswered} has no hits for the questions {asked}")
    with scratch_folder("answers") as scratch, closing(PassageTexts(scratch / "texts")) as texts:
        for hits in found:
            texts.refer(chain(*hits.values()))
        texts.find(read_passages(corpus, format), corpus)
        if not settings.skip_missing:
            hint = "add --skip-missing to count such passages as holding no answer"
            texts.require_all(corpus, "the runs", hint)
        elif missing := len(texts.missing):
            logger.warning(f"passages missing in {corpus}, which hold no answer: {missing:,}")
        judged = _judge(questions, found, texts, settings, depth)
    evaluator = Evaluator(measures, judged, complete=settings.complete)
    relations = {q.qid: str(q.extra["relation"]) for q in questions if "relation" in q.extra}
    results = []
    for name, whole in zip(short_names(runs), read, strict=True):
        result = evaluator.evaluate(name, whole)
        if relations:
            means = {m: mean_of_means(of, relations) for m, of in result.per_query.items()}
            result = replace(result, over_relations=means)
        results.append(result)
    return evaluator.result(results)


def _read_questions(answers: str, topics: str | None, outputs: Sequence[str]) -> list[Query]:
    """Return the questions, with the texts of `topics`; outputs need all texts."""
    questions = list(read_questions(answers))
    if topics is not None:
        known = {query.qid: query.text for query in read_queries(topics)}
        questions = [query._replace(text=known.get(query.qid, query.text)) for query in questions]
    if outputs and (lacking := [query.qid for query in questions if not query.text]):
        raise UsageError(
            f"{topics or answers} lacks the text of {len(lacking):,} of {len(questions):,} "
            f"questions ({some(lacking)}), which {' and '.join(outputs)} would hold",
            "add --topics FILE, the queries with these ids",
        )
    return questions


def _judge(
    questions: Sequence[Query],
    found: Sequence[Run],
    texts: PassageTexts,
    settings: evaluation.AnswerSettings,
    depth: int,
) -> dict[str, dict[str, int]]:
    """Look for answers: question -> passage -> 1 if it holds one; write and warn."""
    judged: dict[str, dict[str, int]] = {}
    unusable: list[str] = []
    stream = iter(questions)
    with ExitStack() as stack:
        outputs = {settings.write_dpr_json: False, settings.write_pyserini_json: True}
        writers = [
            stack.enter_context(contexts_writer(path, pyserini=pyserini))
            for path, pyserini in outputs.items()
            if path is not None
        ]
        judge = stack.enter_context(judging(settings))
        progress = stack.enter_context(track("looking for answers", len(questions), "questions"))
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
                unusable += bad
                best = first_hits(found[0].get(query.qid, {}), depth).items()  # of the one run
                hits = [(of[d], score, bool(matches[d])) for d, score in best if d in of]
                for write in writers:
                    write(query, hits)
            progress.advance(len(batch))
    without = [query.qid for query in questions if not query.answers]
    kind = "that are not valid regular expressions" if settings.regex else "of no letter or sign"
    for sentence, names in (
        ("questions without an answer, which no passage holds", without),
        (f"answers {kind}", list(dict.fromkeys(unusable))),
    ):
        if names:
            logger.warning(f"{sentence}: {len(names):,} ({some(names)})")
    return judged
