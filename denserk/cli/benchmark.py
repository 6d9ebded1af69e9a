"""`denserk benchmark`."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from denserk.cli.app import app
from denserk.cli.console import print_table
from denserk.cli.drawing import finish, show
from denserk.cli.options import Given, Overrides, command
from denserk.errors import UsageError
from denserk.settings.benchmarks import (
    Benchmark,
    BenchmarkPaths,
    BenchmarkRow,
    MakeSettings,
    find_benchmark,
    find_benchmarks,
    list_benchmarks,
)
from denserk.settings.encoding import ComputeSettings, RepresentationSettings, TextSettings
from denserk.settings.evaluation import (
    AnswerSettings,
    ComparisonSettings,
    EvaluationSettings,
    MeasureSettings,
    PageSettings,
    ReportSettings,
    ReportSources,
    reject_unused,
)
from denserk.settings.formats import CorpusSettings

logger = logging.getLogger(__name__)


@command(
    app,
    "benchmark",
    common=(
        "list runs model output against measures baseline min per_query format report "
        "hits resume overwrite device dtype batch_tokens"
    ),
    examples=(
        "denserk benchmark dl19 --runs run.trec --against aggretriever",
        "denserk benchmark beir-small --model M --output runs/",
    ),
    paths="Input and output",
    measures="Measures",
    matching="Answers",
    comparison="Differences",
    report="Output",
    page="Report",
    make="Search, with --model",
    representation="Representation, where it differs from the model's own",
    text="Text, where it differs from the benchmark's and the model's own",
    corpus="Corpus, with --model",
    computing="Computation, with --model",
)
def benchmark(
    paths: BenchmarkPaths,
    measures: MeasureSettings,
    matching: AnswerSettings,
    comparison: ComparisonSettings,
    report: ReportSettings,
    page: PageSettings,
    make: Given[MakeSettings],
    representation: Overrides[RepresentationSettings],
    text: Overrides[TextSettings],
    corpus: Given[CorpusSettings],
    computing: Given[ComputeSettings],
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Benchmarks or groups of them; --list has all."),
    ] = None,
) -> None:
    """Measure runs, or a model, on benchmarks by name."""
    if paths.list:
        print_table(BenchmarkRow._fields, list_benchmarks())
        return
    if not names:
        raise UsageError("no benchmark is named", "denserk benchmark --list prints all of them")
    making = {**make, **representation, **text, **corpus, **computing}
    runs = _runs_of(paths, names, [name for name in making if name != "overwrite"])
    if not any(suite.answers for suite in find_benchmarks(names)):
        why = f"for benchmarks with answers, and {' and '.join(names)} has judgements"
        reject_unused([matching], why, "leave it out")
    if page.report is not None:
        from denserk.tasks.report import page_in

        page_in(page, runs)
    suite = find_benchmark(names[0])
    folders = paths.output is not None or any(Path(path).is_dir() for path in runs)
    several = folders or len(set(names)) > 1 or not isinstance(suite, Benchmark)
    if several:
        _check_several(
            *(names, page),
            baseline=comparison.baseline,
            min=measures.min,
            per_query=report.per_query,
            write_dpr_json=matching.write_dpr_json,
            write_pyserini_json=matching.write_pyserini_json,
        )
    settings = EvaluationSettings(**vars(measures))
    if paths.model is not None and paths.output is not None:
        from denserk.tasks.benchmark_runs import make_runs

        make_runs(
            *(names, paths.model, paths.output, MakeSettings(**make), representation, text),
            *(
                CorpusSettings(**corpus),
                ComputeSettings(**computing),
            ),
        )
    if several or not isinstance(suite, Benchmark):
        _measure_several(runs, names, settings, paths, matching, report, page)
    else:
        _measure_one(runs, suite, settings, paths, matching, comparison, report, page)


def _runs_of(paths: BenchmarkPaths, names: Sequence[str], making: Sequence[str]) -> list[str]:
    """The runs to measure; `making` names the options that were given for making some."""
    if paths.model is None and making:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in making)
        raise UsageError(f"{flags}: for making runs", "add --model MODEL --output DIR")
    runs = [*paths.runs, *filter(None, [paths.output])]
    if not runs:
        raise UsageError(
            "no run is named",
            f"denserk benchmark {names[0]} --runs run.trec, or --model MODEL --output DIR",
        )
    return runs


def _measure_one(
    runs: Sequence[str],
    suite: Benchmark,
    settings: EvaluationSettings,
    paths: BenchmarkPaths,
    matching: AnswerSettings,
    comparison: ComparisonSettings,
    report: ReportSettings,
    page: PageSettings,
) -> None:
    from denserk.evaluation.inputs import find_baseline
    from denserk.tasks.evaluate_suite import evaluate_suite

    if comparison.baseline is not None:
        baseline = find_baseline(comparison.baseline, runs)
        comparison = replace(comparison, baseline=baseline)
        runs = [*([baseline] if baseline not in runs else []), *runs]
    result = evaluate_suite(runs, suite, settings, paths.against, matching)
    sources = None
    if page.report is not None:
        from denserk.tasks.report import sources_of

        sources = sources_of(suite, ReportSources(suite.title, topics=page.topics))
        settings = replace(settings, remove_query=suite.remove_query)
    finish(result, runs, settings, comparison, report, page, sources)


def _measure_several(
    folders: Sequence[str],
    names: Sequence[str],
    settings: EvaluationSettings,
    paths: BenchmarkPaths,
    matching: AnswerSettings,
    report: ReportSettings,
    page: PageSettings,
) -> None:
    from denserk.tasks.evaluate_suite import evaluate_suites

    result = evaluate_suites(folders, names, settings, paths.against, matching)
    show(result, report)
    if page.report is not None:
        from denserk.tasks.report import write_benchmarks_report

        logger.info(f"{write_benchmarks_report(result, page)}: the page")


def _check_several(names: Sequence[str], page: PageSettings, **asked: object) -> None:
    """Reject options that need the runs of one benchmark."""
    given = [f"--{name.replace('_', '-')}" for name, value in asked.items() if value]
    if given := [*given, *page.asked]:
        raise UsageError(
            f"{' and '.join(given)}: for run files of one benchmark, and {' and '.join(names)} in "
            "a folder may be several",
            "name one benchmark, and its run file with --runs",
        )
