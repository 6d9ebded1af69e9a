"""Runs and their measures to a page: what `denserk eval --report` does, to call from Python."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from denserk.errors import UsageError
from denserk.evaluation.evaluator import EvaluationResult
from denserk.evaluation.query_differences import QueryRow, main_measure, query_rows, reference_of
from denserk.evaluation.report import Report, as_page, as_suites_page
from denserk.evaluation.report_figures import Cost
from denserk.evaluation.report_queries import Texts
from denserk.evaluation.run_profile import RunProfile, profile
from denserk.evaluation.suites_result import SuitesResult
from denserk.formats.files import STREAM, whole_text, write_errors
from denserk.formats.manifest import Kind, Manifest, beside, read_manifest
from denserk.formats.sources import read_passages, read_qrels_map, read_queries
from denserk.formats.suite_sources import find_parts, is_here
from denserk.records import Passage
from denserk.reporting import track
from denserk.settings.evaluation import EvaluationSettings
from denserk.settings.formats import CorpusSettings
from denserk.settings.report import PageSettings, ReportSources
from denserk.settings.suite import Suite
from denserk.tasks.evaluate import read_hits

logger = logging.getLogger(__name__)

NAME = "index.html"


def page_in(settings: PageSettings, inputs: Iterable[str] = ()) -> Path:
    """Where the page goes; to be asked before the work.

    Raises:
        UsageError: it cannot be there, or an input is a stream, which a page reads once more.
    """
    assert settings.report is not None
    if Path(settings.report).exists() and not Path(settings.report).is_dir():
        raise UsageError(f"--report {settings.report}: a file; a folder is expected")
    if STREAM in inputs:
        raise UsageError(
            "--report reads runs and judgements once more, and standard input is read once",
            "write it to a file first",
        )
    return Path(settings.report) / NAME


def sources_of(suite: Suite, given: ReportSources) -> ReportSources:
    """The parts of a suite behind what was given; queries and passages only from this disk."""
    shown = [part for part in ("topics", "corpus") if is_here(suite, part)]
    parts = find_parts([suite], ["qrels", *shown]).get(suite.name, {})
    return replace(
        given,
        title=suite.title,
        qrels=parts.get("qrels"),
        topics=given.topics or parts.get("topics"),
        corpus=given.corpus or parts.get("corpus"),
    )


def write_report(
    result: EvaluationResult,
    runs: Sequence[str],
    sources: ReportSources,
    settings: PageSettings,
    evaluation: EvaluationSettings | None = None,
) -> Path:
    """Writes the page of runs.

    Args:
        result: of the runs.
        runs: the files it was made from, in its order.
        sources: what they were measured by, and the texts.
        settings: where the page goes, and how much it shows.
        evaluation: how missing queries and queries' own passages were treated.

    Returns:
        The page.

    Raises:
        UsageError: there is no such file.
        InputError: a file is not what it should be.
        OutputError: the page cannot be written.
    """
    path = page_in(settings, [*runs, *filter(None, [sources.qrels])])
    evaluation = evaluation or EvaluationSettings()
    rows = query_rows(result, main_measure(result), reference_of(result))
    shown = rows[: settings.report_queries]
    manifests = [_manifest(run) for run in runs]
    sources = _completed(sources, manifests)
    profiles: list[RunProfile] = []
    if sources.qrels is not None:
        judgements = read_qrels_map(sources.qrels)
        for run, measured in zip(runs, result.runs, strict=True):
            hits = read_hits(run, evaluation)
            missing = () if evaluation.complete else frozenset(measured.missing)
            counted = [qid for qid in result.queries if qid not in missing]
            level, moved = _level(result), [row.qid for row in shown]
            profiles.append(
                profile(
                    measured.name, hits, judgements, counted, level, moved, settings.report_passages
                )
            )
    costs = [_cost(manifest) for manifest in manifests]
    texts = _texts(sources, rows, profiles)
    lacking = list(_lacking(sources, profiles, costs, texts))
    for sentence in lacking:
        logger.info(sentence)
    page = Report(sources.title, result, rows, len(shown), profiles, costs, texts, lacking)
    return _write(path, as_page(page))


def write_suites_report(result: SuitesResult, settings: PageSettings) -> Path:
    """Writes the page of runs on several suites.

    Raises:
        UsageError: it cannot be there.
        OutputError: it cannot be written.
    """
    return _write(page_in(settings), as_suites_page(result))


def _write(path: Path, page: str) -> Path:
    with write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with whole_text(path) as out:
        out.write(page)
    return path


def _level(result: EvaluationResult) -> int:
    """The lowest grade that counts as relevant: that of recall, or of another measure."""
    levels = {m.NAME: int(m.params["rel"]) for m in reversed(result.measures) if "rel" in m.params}
    return levels.get("R", next(iter(reversed(levels.values())), result.relevance_level))


def _manifest(run: str) -> Manifest | None:
    return read_manifest(run, Kind.RUN) if beside(run).is_file() else None


def _cost(manifest: Manifest | None) -> Cost:
    if manifest is None:
        return Cost()
    index = manifest.made_from.get("index") or {}
    seconds, queries = manifest.contents.get("seconds"), manifest.contents.get("queries")
    spent = 1000 * sum(seconds.values()) / queries if seconds and queries else None
    return Cost(index.get("bytes"), spent)


def _completed(sources: ReportSources, manifests: Sequence[Manifest | None]) -> ReportSources:
    """The queries and passages that manifests name, where nobody else did and they are there."""
    made = [manifest.made_from for manifest in manifests if manifest is not None]
    topics = [(one.get("topics") or {}).get("name") for one in made]
    indexes = [(one.get("index") or {}).get("name") for one in made]
    corpora = [corpus for index in indexes if index for corpus in _corpus_of(index)]
    return replace(
        sources,
        topics=sources.topics or next(filter(_is_there, topics), None),
        corpus=sources.corpus or next(filter(_is_there, corpora), None),
    )


def _is_there(name: str | None) -> bool:
    return name is not None and name != STREAM and Path(name).exists()


def _corpus_of(index: str) -> Iterator[str]:
    """What an index says its passages are; by way of its vectors, where it is of vectors."""
    if not beside(index).is_file():
        return
    made: Mapping[str, Any] = read_manifest(index, Kind.INDEX).made_from
    if made.get("texts"):
        yield made["texts"]
    for vectors in made.get("vectors") or ():
        if Path(vectors).is_dir() and beside(vectors).is_file():
            texts = read_manifest(vectors, Kind.VECTORS).made_from.get("texts")
            if texts:
                yield texts


def _texts(
    sources: ReportSources,
    rows: Sequence[QueryRow],
    profiles: Sequence[RunProfile],
) -> Texts:
    """The texts that are shown: the corpus streams by until the last one is found."""
    queries, passages = {}, {}
    if sources.topics is not None:
        asked = {row.qid for row in rows}
        found = read_queries(sources.topics)
        queries = {query.qid: query.text for query in found if query.qid in asked}
    wanted = {hit.docid for one in profiles for many in one.lists.values() for hit in many.top}
    if sources.corpus is not None and wanted:
        passages = _passages(sources.corpus, sources.shape, wanted)
    return Texts(queries, passages)


def _passages(corpus: str, shape: CorpusSettings, wanted: set[str]) -> dict[str, Passage]:
    found: dict[str, Passage] = {}
    with (
        track("reading the corpus", None, "passages") as progress,
        closing(read_passages(corpus, shape)) as stream,  # type: ignore[type-var]
    ):
        for passage in stream:
            progress.advance()
            if passage.docid in wanted:
                found[passage.docid] = passage
                if len(found) == len(wanted):
                    break
    return found


def _lacking(
    sources: ReportSources, profiles: Sequence[RunProfile], costs: Sequence[Cost], texts: Texts
) -> Iterator[str]:
    """What is not on the page, and what would bring it."""
    if not profiles:
        yield "Recall by depth, scores and lists need judgements, and answers were matched here."
    without = [
        f"{what} (--{option})"
        for what, option, known in (
            ("queries", "topics", texts.queries),
            ("passages", "corpus", texts.passages),
        )
        if not known and (profiles or what == "queries")
    ]
    if without:
        yield f"The texts of {' and '.join(without)} are not known."
    if not any(cost.index_bytes or cost.query_milliseconds for cost in costs):
        yield "No manifest beside the runs tells the size of an index or the time of a query."
