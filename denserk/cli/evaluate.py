"""`denserk eval`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from denserk.cli.app import app
from denserk.cli.console import console
from denserk.cli.drawing import shape_of, show, show_suites
from denserk.cli.options import command
from denserk.errors import UsageError
from denserk.settings.answers import AnswerInput, AnswerSettings, refuse_idle
from denserk.settings.comparison import ComparisonSettings
from denserk.settings.evaluation import (
    TREC_EVAL_MEASURES,
    EvaluationSettings,
    OutputFormat,
    ReportSettings,
)
from denserk.settings.formats import CorpusSettings
from denserk.settings.report import PageSettings
from denserk.settings.suite import Suite
from denserk.settings.suites import SuiteRow, SuiteSettings, find_suite, list_suites

if TYPE_CHECKING:
    from denserk.evaluation.evaluator import EvaluationResult


@command(
    app,
    "eval",
    common=(
        "measures relevance_level complete order per_query format places baseline test "
        "correction min report topics corpus suite against answers topk"
    ),
    examples=(
        "denserk eval run.trec qrels.txt --measures 'nDCG@10 RR@10 R@100'",
        "denserk eval bm25.trec dense.trec qrels.txt --baseline bm25.trec",
    ),
    settings="Measures",
    suites="Suites",
    answers="Answers",
    matching="Answers",
    corpus="Answers",
    comparison="Differences",
    report="Output",
    page="Report",
)
def evaluate(
    settings: EvaluationSettings,
    suites: SuiteSettings,
    answers: AnswerInput,
    matching: AnswerSettings,
    corpus: CorpusSettings,
    comparison: ComparisonSettings,
    report: ReportSettings,
    page: PageSettings,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|QRELS",
            help="Runs and one file of judgements, in any order: told apart by their content.",
        ),
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(
            "--run", metavar="RUN", help="A run, said to be one.", rich_help_panel="Input"
        ),
    ] = None,
    qrels: Annotated[
        str | None,
        typer.Option(
            "--qrels",
            metavar="QRELS",
            help="The judgements: a file, a BEIR folder, or a collection by name (beir:scifact).",
            rich_help_panel="Input",
        ),
    ] = None,
) -> None:
    """Measure runs against judgements."""
    from denserk.evaluation.gates import require
    from denserk.evaluation.inputs import find_baseline, sort_inputs
    from denserk.evaluation.table import FORMATS, as_grids
    from denserk.tasks.evaluate import compare_runs, gates_of
    from denserk.tasks.evaluate import evaluate as task

    if suites.list_suites:
        console().table(SuiteRow._fields, list_suites())
        return
    runs: Sequence[str] = [*(files or []), *(run or [])]
    _refuse_idle(suites, answers, matching, corpus, page)
    if not suites.suite and answers.answers is None:
        inputs = sort_inputs(files or [], run or [], qrels)
        runs, qrels = inputs.runs, inputs.qrels
        if not settings.measures and shape_of(report) is OutputFormat.TREC_EVAL:
            settings = replace(settings, measures=TREC_EVAL_MEASURES)
    if comparison.baseline is not None:
        baseline = find_baseline(comparison.baseline, runs)
        comparison = replace(comparison, baseline=baseline)
        runs = [*([baseline] if baseline not in runs else []), *runs]
    _refuse_page(page, [*runs, *filter(None, [qrels])])
    suite = None
    if suites.suite:
        suite = _one_suite(suites, runs, qrels)
        if suite is None:
            _on_several(suites, runs, settings, matching, comparison, report, page, answers.corpus)
            return
        from denserk.tasks.evaluate_suite import evaluate_suite

        result = evaluate_suite(runs, suite, settings, suites.against, console(), matching)
    elif answers.answers is not None and answers.corpus is not None:
        from denserk.tasks.evaluate_answers import evaluate_answers

        _refuse_qrels(f"--answers {answers.answers} stands", qrels)
        result = evaluate_answers(
            *(runs, answers.answers, answers.corpus, settings, console(), matching, corpus),
            topics=page.topics,
        )
    else:
        assert qrels is not None  # found by sort_inputs
        result = task(runs, qrels, settings, console())
    if comparison.baseline is not None:
        result = compare_runs(result, runs, comparison)
    shape = shape_of(report)
    show(FORMATS[shape](result, report), as_grids(result, report), shape)
    if page.report is not None:
        _write_page(result, runs, page, settings, suite, qrels, answers, corpus)
    require(result, gates_of(settings))


def _refuse_qrels(what: str, qrels: str | None) -> None:
    if qrels is not None:
        raise UsageError(
            f"{what} in place of judgements; --qrels {qrels} is one too many", "give one of them"
        )


def _refuse_idle(
    suites: SuiteSettings,
    answers: AnswerInput,
    matching: AnswerSettings,
    corpus: CorpusSettings,
    page: PageSettings,
) -> None:
    """Refuses options about answers and texts where there are none."""
    texts = [] if page.report is not None else [corpus]
    written = not suites.suite and matching.outputs
    if page.topics is not None and page.report is None and not written:
        raise UsageError(
            f"--topics {page.topics}: for --report, or --answers with --write-dpr-json",
            "add --report DIR",
        )
    named = " and ".join(suites.suite)
    if not suites.suite and answers.answers is None:
        why = "for evaluation by answers, and there are none"
        refuse_idle([matching, *texts], why, "add --answers FILE --corpus FILE")
        if answers.corpus is not None and page.report is None:
            raise UsageError(
                f"--corpus {answers.corpus}: texts are read for answers and for a page alone",
                "add --answers FILE or --report DIR, or leave --corpus out",
            )
    if suites.suite:
        why = f"--suite {named} has its own judgements or answers, and its own corpus"
        own = replace(answers, corpus=None) if page.report is not None else answers
        refuse_idle([own, *texts], why, "leave out one or the other")
        entries = [find_suite(name) for name in suites.suite]
        if not any(isinstance(entry, Suite) and entry.answers for entry in entries):
            why = f"for evaluation by answers, and {named} has judgements"
            refuse_idle([matching], why, "leave it out")


def _refuse_page(page: PageSettings, inputs: Sequence[str]) -> None:
    if page.report is not None:
        from denserk.tasks.report import page_in

        page_in(page, inputs)


def _write_page(
    result: "EvaluationResult",
    runs: Sequence[str],
    page: PageSettings,
    settings: EvaluationSettings,
    suite: Suite | None,
    qrels: str | None,
    answers: AnswerInput,
    shape: CorpusSettings,
) -> None:
    from denserk.tasks.report import ReportSources, sources_of, write_report

    measured_by = qrels or answers.answers or ""
    name = Path(measured_by).name if Path(measured_by).exists() else measured_by
    sources = ReportSources(f"Runs on {name}", qrels, page.topics, answers.corpus, shape)
    if suite is not None:
        sources = sources_of(suite, sources)
        settings = replace(settings, remove_query=settings.remove_query or suite.remove_query)
    path = write_report(result, runs, sources, page, settings, console())
    console().note(f"{path}: the page, {path.stat().st_size / 1000:,.0f} kB")


def _one_suite(suites: SuiteSettings, runs: Sequence[str], qrels: str | None) -> Suite | None:
    """The suite that is asked for; None where they are several, or folders of runs are named."""
    _refuse_qrels(f"--suite {suites.suite[0]} stands", qrels)
    if not runs:
        raise UsageError("no run is named", f"denserk eval run.trec --suite {suites.suite[0]}")
    if len(set(suites.suite)) > 1 or any(Path(path).is_dir() for path in runs):
        return None
    entry = find_suite(suites.suite[0])
    return entry if isinstance(entry, Suite) else None


def _on_several(
    suites: SuiteSettings,
    folders: Sequence[str],
    settings: EvaluationSettings,
    matching: AnswerSettings,
    comparison: ComparisonSettings,
    report: ReportSettings,
    page: PageSettings,
    corpus: str | None,
) -> None:
    from denserk.tasks.evaluate_suite import evaluate_suites

    asked = (
        ("--baseline", comparison.baseline),
        ("--min", settings.min),
        ("--per-query", report.per_query),
        *((option, True) for option in page.asked),
        (f"--corpus {corpus}", corpus),
        ("--write-dpr-json", matching.write_dpr_json),
        ("--write-pyserini-json", matching.write_pyserini_json),
    )
    if given := [option for option, value in asked if value]:
        raise UsageError(
            f"{' and '.join(given)}: for one suite, and {' and '.join(suites.suite)} in a folder "
            "may be several",
            "name one run and its own suite",
        )
    result = evaluate_suites(folders, suites.suite, settings, suites.against, console(), matching)
    show_suites(result, report)
    if page.report is not None:
        from denserk.tasks.report import write_suites_report

        console().note(f"{write_suites_report(result, page)}: the page")
