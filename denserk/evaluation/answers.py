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
import math
import re
import signal
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from multiprocessing import get_context
from threading import current_thread, main_thread
from typing import NamedTuple
from unicodedata import normalize

import regex

from denserk.config.evaluation import (
    DEFAULT_ANSWER_MEASURES,
    MATCHING,
    AnswerSettings,
    EvaluationSettings,
    RunOrder,
    parse_bound,
)
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.errors import DenserkError, InputError, MismatchError, UsageError
from denserk.evaluation.evaluator import Evaluator, first_hits, some, warn
from denserk.evaluation.inputs import short_names
from denserk.evaluation.measures import Measure, is_count, parse_measures, split_measures
from denserk.evaluation.results import EvaluationResult
from denserk.io.corpus import read_passages
from denserk.io.files import STREAM
from denserk.io.outputs import scratch_folder
from denserk.io.passage_texts import PassageTexts
from denserk.io.runs import read_run
from denserk.io.text_files import display_name
from denserk.io.topics import Context, Write, dpr_json, pyserini_json, read_queries, read_questions
from denserk.records import Passage, Query, best_first
from denserk.reporting import track

logger = logging.getLogger(__name__)

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
_SPLIT = "\0"  # between tokens; a control character, and so in none of them
_CHUNK = 8  # questions that a worker process takes at a time
BATCH = 256  # questions whose texts are in memory at once

Hits = dict[str, dict[str, float]]  # question -> passage -> score, best first

# measures that need nothing but to know which of the hits hold an answer
POSSIBLE = ("Success", "RR", "P")
# measures that need all relevant passages of the collection, or their number
NEEDS_ALL = (
    *("AP", "nDCG", "R", "Rprec", "Bpref", "IPrec", "infAP", "SetAP", "SetF", "SetR"),
    *("NumRel", "AP_IA", "StRecall", "alpha_nDCG", "nERR_IA", "nNRBP"),
)


def tokens_of(text: str) -> list[str]:
    """Return the lower-cased tokens of a text.

    >>> tokens_of("The U.S., in 1990")
    ['the', 'u', '.', 's', '.', ',', 'in', '1990']
    """
    found: list[str] = _TOKEN.findall(normalize("NFD", text))
    return [token.lower() for token in found]


def _joined(tokens: Iterable[str]) -> str:
    return f"{_SPLIT}{_SPLIT.join(tokens)}{_SPLIT}"


def _folded(normal: str) -> str:
    """Lower-case a normalised text so that its lower-cased tokens are substrings of it.

    Lower-casing a capital sigma depends on its neighbours, so both small ones count as one.
    """
    return normal.lower().replace("ς", "σ")


class AnswerMatcher:
    r"""The answers of one question, prepared for many passages.

    Args:
        answers: any of them is a match.
        strict: an answer without a token (only blanks, say) matches every passage, as in DPR's own
            code; otherwise it matches none.

    >>> matcher = AnswerMatcher(["New York", "NYC"])
    >>> matcher.matches("in new\nyork, 1990"), matcher.matches("a newer york")
    (True, False)
    """

    def __init__(self, answers: Sequence[str], *, strict: bool = False) -> None:
        sequences = [tokens_of(answer) for answer in answers]
        self.tokenless = sum(not tokens for tokens in sequences)
        self._always = strict and self.tokenless > 0
        # a passage without an answer's longest token need not be tokenized
        self._sought = {
            _joined(tokens): _folded(max(tokens, key=len)) for tokens in sequences if tokens
        }

    def matches(self, text: str) -> bool:
        """Return whether the text contains an answer."""
        if self._always:
            return True
        folded = _folded(normalize("NFD", text))
        sought = [sequence for sequence, longest in self._sought.items() if longest in folded]
        joined = _joined(tokens_of(text)) if sought else ""
        return any(sequence in joined for sequence in sought)


class PatternMatcher:
    r"""The answers of one question as regular expressions; an invalid one matches nothing.

    >>> PatternMatcher([r"19\d\d", "("]).matches("in 1990")
    True
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns: list[re.Pattern[str]] = []
        self.broken: list[str] = []
        for pattern in patterns:
            try:
                compiled = re.compile(normalize("NFD", pattern), re.IGNORECASE | re.MULTILINE)
            except (re.error, OverflowError, RecursionError):
                self.broken.append(pattern)
            else:
                self._patterns.append(compiled)

    def matches(self, text: str) -> bool:
        """Return whether a pattern is found in the text."""
        normal = normalize("NFD", text)
        return any(pattern.search(normal) for pattern in self._patterns)


class Case(NamedTuple):
    """The answers of a question, and the texts in which they are looked for."""

    answers: tuple[str, ...]
    texts: tuple[str, ...]


class Verdict(NamedTuple):
    """Which texts hold an answer.

    `tokenless` counts answers without a token; `broken` are invalid regular expressions.
    """

    matches: tuple[bool, ...]
    tokenless: int = 0
    broken: tuple[str, ...] = ()


Judge = Callable[[Sequence[Case]], list[Verdict]]


def judge(case: Case, *, regex: bool = False, strict: bool = False) -> Verdict:
    """Look for the answers of one question.

    >>> judge(Case(("New York",), ("in new york", "in York"))).matches
    (True, False)
    """
    if regex:
        patterns = PatternMatcher(case.answers)
        found = tuple(map(patterns.matches, case.texts))
        return Verdict(found, broken=tuple(patterns.broken))
    matcher = AnswerMatcher(case.answers, strict=strict)
    return Verdict(tuple(map(matcher.matches, case.texts)), matcher.tokenless)


@contextmanager
def judging(settings: AnswerSettings) -> Iterator[Judge]:
    """Yield a function that judges many questions, in `settings.num_workers` processes.

    Raises:
        DenserkError: a process was killed.
    """
    one = partial(judge, regex=settings.regex, strict=settings.strict_dpr)
    if settings.num_workers == 1:
        yield lambda cases: list(map(one, cases))
        return
    context = get_context("spawn")  # a fork would not survive other threads
    with ProcessPoolExecutor(settings.num_workers, context) as pool:
        with _interrupts_ignored():
            for _ in range(settings.num_workers):
                pool.submit(int)  # starts a process
        try:
            yield lambda cases: list(pool.map(one, cases, chunksize=_CHUNK))
        except BrokenProcessPool:
            raise DenserkError(
                "a process that looks for answers was killed",
                "was there enough memory? --num-workers 1 uses no other process",
            ) from None
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Let processes that start meanwhile ignore Ctrl-C: this process ends them."""
    if current_thread() is not main_thread():  # where signals cannot be set
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def choose_answer_measures(texts: Iterable[str]) -> tuple[Measure, ...]:
    """Parse measures, and reject those that answers cannot give.

    Raises:
        UsageError: some are unknown or impossible; all of them are named.

    >>> [str(measure) for measure in choose_answer_measures(["success.5,20 MRR@10"])]
    ['Success@5', 'Success@20', 'RR@10']
    """
    found: dict[str, Measure] = {}
    mistakes: dict[str, None] = {}
    for token in (token for text in texts for token in split_measures(text)):
        try:
            measures = parse_measures([token]).measures
        except UsageError as error:
            mistakes[error.message] = None
            continue
        for measure in measures:
            if mistake := _mistake(measure):
                mistakes[mistake] = None
            else:
                found.setdefault(str(measure), measure)
    if mistakes or not found:
        raise UsageError(
            "; ".join(mistakes) or "no measure is named",
            f"answers allow {', '.join(f'{name}@k' for name in POSSIBLE)}; "
            "for example -m 'Success@5 Success@20 Success@100'",
        )
    return tuple(found.values())


def _mistake(measure: Measure) -> str | None:
    """Return why a measure is impossible with answers."""
    if measure.NAME in NEEDS_ALL:
        also = "; QA papers call Success@k R@k or top-k accuracy" if measure.NAME == "R" else ""
        return f"{measure} needs every relevant passage, and answers only judge the hits{also}"
    if measure.NAME not in POSSIBLE or is_count(measure):
        return f"{measure} is not measured by answers"
    others = [name for name in measure.params if name != "cutoff"]
    if others:
        return f"{measure}: a passage holds an answer or not, so no {', '.join(others)}"
    if "cutoff" not in measure.params:
        return f"{measure} needs a cutoff, as in {measure}@10: no text behind it is read"
    return None


def mean_of_means(values: Mapping[str, float], groups: Mapping[str, str]) -> float:
    """Return the mean of the means of groups, each counting once whatever its size.

    >>> mean_of_means({"a": 1.0, "b": 0.0, "c": 1.0}, {"a": "P17", "b": "P17", "c": "P20"})
    0.75
    """
    parts: dict[str, list[float]] = {}
    for qid, value in values.items():
        parts.setdefault(groups[qid], []).append(value)
    return _mean([_mean(part) for part in parts.values()])


def _mean(values: Collection[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


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
    asked = [*settings.measures, *(f"Success@{depth}" for depth in matching.topk)]
    bounded = [parse_bound(text)[0] for text in settings.min]
    measures = choose_answer_measures([*(asked or DEFAULT_ANSWER_MEASURES), *bounded])
    depth = max(int(measure["cutoff"]) for measure in measures)
    _check_usage(runs, [answers, corpus], settings, matching)
    questions = list(read_questions(answers))
    if topics is not None:
        known = {query.qid: query.text for query in read_queries(topics)}
        questions = [query._replace(text=known.get(query.qid, query.text)) for query in questions]
    _check_texts(questions, topics or answers, matching)
    qids = dict.fromkeys(query.qid for query in questions)
    names = short_names(runs)
    with scratch_folder("answers") as scratch, ExitStack() as files:
        texts = files.enter_context(closing(PassageTexts(scratch / "passages")))
        found: list[Hits] = []
        others: list[list[str]] = []
        for run, name in zip(runs, names, strict=True):
            hits, unanswered = _read_hits(run, name, qids, depth, settings)
            for docids in hits.values():
                texts.refer(list(docids))
            found.append(hits)
            others.append(unanswered)
        _find_texts(texts, found, corpus, shape, matching.skip_missing)
        writers: list[Write] = []
        if matching.write_dpr_json is not None:
            writers.append(files.enter_context(dpr_json(matching.write_dpr_json)))
        if matching.write_pyserini_json is not None:
            writers.append(files.enter_context(pyserini_json(matching.write_pyserini_json)))
        judged, verdicts = _judge(questions, found, texts, matching, writers, depth)
    _warn_of_answers(questions, verdicts, matching)
    evaluator = Evaluator(measures, judged, complete=settings.complete)
    relations = {q.qid: str(q.extra["relation"]) for q in questions if "relation" in q.extra}
    results = []
    for name, hits, unanswered in zip(names, found, others, strict=True):
        result = replace(evaluator.evaluate(name, hits), unjudged=tuple(unanswered))
        if relations:
            means = {m: mean_of_means(of, relations) for m, of in result.per_query.items()}
            result = replace(result, over_relations=means)
        warn(result, evaluator, "questions", "answers")
        results.append(result)
    return evaluator.result(results)


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
    """Read the best hits of each question, and the other queries of a run."""
    found: Hits = {}
    others: list[str] = []
    with track(f"reading {display_name(run)}", None, "queries") as progress:
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
    """Take the texts of all hits from the corpus."""
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


def _check_usage(
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


def _check_texts(questions: Sequence[Query], source: str, matching: AnswerSettings) -> None:
    lacking = [query.qid for query in questions if not query.text]
    if matching.outputs and lacking:
        raise UsageError(
            f"{source} lacks the text of {len(lacking):,} of {len(questions):,} questions "
            f"({some(lacking)}), which {' and '.join(matching.outputs)} would hold",
            "add --topics FILE, the queries with these ids",
        )


def _warn_of_answers(
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
