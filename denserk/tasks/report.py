"""HTML report of runs and their measures: what `eval --report` and `benchmark --report` write."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from denserk.errors import UsageError
from denserk.evaluation.benchmarks import BenchmarksResult
from denserk.evaluation.evaluator import EvaluationResult
from denserk.evaluation.report import (
    Cost,
    Report,
    Texts,
    as_benchmarks_page,
    as_page,
    main_measure,
    profile,
    query_rows,
    reference_of,
)
from denserk.extras import require
from denserk.formats.data_sets import find_parts, is_here
from denserk.formats.files import STREAM, whole_text, write_errors
from denserk.formats.manifest import Kind, Manifest, beside, read_manifest
from denserk.formats.sources import read_passages, read_qrels_map, read_queries
from denserk.records import Passage
from denserk.reporting import track
from denserk.settings.benchmarks import Benchmark
from denserk.settings.evaluation import EvaluationSettings, PageSettings, ReportSources
from denserk.tasks.evaluate import read_hits

logger = logging.getLogger(__name__)

NAME = "index.html"


def page_in(settings: PageSettings, inputs: Iterable[str] = ()) -> Path:
    """Return the path of the page; called before the work, so that mistakes show early.

    Raises:
        UsageError: it cannot be there, or an input is a stream, which a report reads twice.
        MissingExtraError: a package for reports is not installed.
    """
    assert settings.report is not None
    for package in ("jinja2", "matplotlib"):
        require(package, "--report")
    if Path(settings.report).exists() and not Path(settings.report).is_dir():
        raise UsageError(f"--report {settings.report}: a file; a folder is expected")
    if STREAM in inputs:
        raise UsageError(
            "--report reads runs and qrels once more, and standard input can be read only once",
            "write it to a file first",
        )
    return Path(settings.report) / NAME


def sources_of(suite: Benchmark, given: ReportSources) -> ReportSources:
    """Return the parts of a benchmark; queries and passages only where they are on this disk."""
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
    """Write the page of runs and return its path.

    Args:
        result: of the runs.
        runs: the files it was made from, in its order.
        sources: the qrels, and where the texts are.
        settings: where the page goes, and how much it shows.
        evaluation: how missing queries and queries' own passages were treated.

    Raises:
        UsageError: there is no such file.
        InputError: a file is broken.
        OutputError: the page cannot be written.
    """
    path = page_in(settings, [*runs, *filter(None, [sources.qrels])])
    evaluation = evaluation or EvaluationSettings()
    rows = query_rows(result, main_measure(result), reference_of(result))
    moved = [row.qid for row in rows[: settings.report_queries]]
    manifests = [read_manifest(r, Kind.RUN) if beside(r).is_file() else None for r in runs]
    sources = _completed(sources, manifests)
    profiles = []
    if sources.qrels is not None:
        judgments = read_qrels_map(sources.qrels)
        for run, measured in zip(runs, result.runs, strict=True):
            missing = () if evaluation.complete else frozenset(measured.missing)
            queries = [qid for qid in result.queries if qid not in missing]
            shown = (_level(result), moved, settings.report_passages)
            hits = read_hits(run, evaluation)
            profiles.append(profile(measured.name, hits, judgments, queries, *shown))
    texts = Texts()
    if sources.topics is not None:
        asked = {row.qid for row in rows}
        queries_found = {q.qid: q.text for q in read_queries(sources.topics) if q.qid in asked}
        texts = replace(texts, queries=queries_found)
    wanted = {hit.docid for one in profiles for many in one.lists.values() for hit in many.top}
    if sources.corpus is not None and wanted:
        texts = replace(texts, passages=_passages(sources, wanted))
    report = Report(
        *(sources.title, result, rows, len(moved), profiles, list(map(_cost, manifests)), texts)
    )
    report = replace(report, lacking=list(_lacking(report)))
    for sentence in report.lacking:
        logger.info(sentence)
    return _write(path, as_page(report))


def write_benchmarks_report(result: BenchmarksResult, settings: PageSettings) -> Path:
    """Write the page of runs on several benchmarks and return its path.

    Raises:
        UsageError: it cannot be there.
        OutputError: it cannot be written.
    """
    return _write(page_in(settings), as_benchmarks_page(result))


def _write(path: Path, page: str) -> Path:
    with write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with whole_text(path) as out:
        out.write(page)
    return path


def _level(result: EvaluationResult) -> int:
    """Return the lowest grade that counts as relevant: that of recall, or of another measure."""
    levels = {m.NAME: int(m.params["rel"]) for m in reversed(result.measures) if "rel" in m.params}
    return levels.get("R", next(iter(reversed(levels.values())), result.relevance_level))


def _cost(manifest: Manifest | None) -> Cost:
    if manifest is None:
        return Cost()
    index = manifest.made_from.get("index") or {}
    seconds, queries = manifest.contents.get("seconds"), manifest.contents.get("queries")
    spent = 1000 * sum(seconds.values()) / queries if seconds and queries else None
    return Cost(index.get("bytes"), spent)


def _completed(sources: ReportSources, manifests: Sequence[Manifest | None]) -> ReportSources:
    """Add the queries and passages that the manifests of the runs name, where they still exist."""
    made = [manifest.made_from for manifest in manifests if manifest is not None]
    topics = [(one.get("topics") or {}).get("name") for one in made]
    indexes = [(one.get("index") or {}).get("name") for one in made]
    corpora = [corpus for index in indexes if index for corpus in _corpus_of(index)]

    def exists(name: str | None) -> bool:
        return name is not None and name != STREAM and Path(name).exists()

    return replace(
        sources,
        topics=sources.topics or next(filter(exists, topics), None),
        corpus=sources.corpus or next(filter(exists, corpora), None),
    )


def _corpus_of(index: str) -> Iterator[str]:
    """Yield the corpora that an index names, directly or through its vector folders."""
    if not beside(index).is_file():
        return
    made = read_manifest(index, Kind.INDEX).made_from
    if made.get("texts"):
        yield made["texts"]
    for vectors in made.get("vectors") or ():
        if Path(vectors).is_dir() and beside(vectors).is_file():
            texts = read_manifest(vectors, Kind.VECTORS).made_from.get("texts")
            if texts:
                yield texts


def _passages(sources: ReportSources, wanted: set[str]) -> dict[str, Passage]:
    """Read the wanted passages; the corpus is streamed until the last one is found."""
    assert sources.corpus is not None
    found: dict[str, Passage] = {}
    with (
        track("reading the corpus", None, "passages") as progress,
        closing(read_passages(sources.corpus, sources.shape)) as stream,  # type: ignore[type-var]
    ):
        for passage in stream:
            progress.advance()
            if passage.docid in wanted:
                found[passage.docid] = passage
                if len(found) == len(wanted):
                    break
    return found


def _lacking(report: Report) -> Iterator[str]:
    """Yield what is not on the page, and which option would add it."""
    if not report.profiles:
        yield "Recall by depth, scores and ranked lists need qrels, and answers were matched here."
    without = [] if report.texts.queries else ["queries (--topics)"]
    if report.profiles and not report.texts.passages:
        without.append("passages (--corpus)")
    if without:
        yield f"The texts of {' and '.join(without)} are not known."
    if not any(cost.index_bytes or cost.query_milliseconds for cost in report.costs):
        yield "No manifest beside the runs records index size or query latency."
