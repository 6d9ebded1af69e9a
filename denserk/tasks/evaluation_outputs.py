"""What `denserk eval` adds to the measures of runs: statistics, a plot and a report."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from denserk.config.evaluation import (
    PREVIOUS,
    ComparisonSettings,
    Correction,
    EvalSettings,
    PageSettings,
    ReportSources,
)
from denserk.errors import UsageError
from denserk.evaluation.results import EvaluationResult, RunResult


def check_page(settings: PageSettings, inputs: Sequence[str]) -> None:
    """Raise an error for a report that cannot be written, before the work begins."""
    if settings.report is not None:
        from denserk.evaluation.report import page_in

        page_in(settings, inputs)


def check_report_ids(settings: PageSettings, result: EvaluationResult) -> None:
    """Raise a UsageError for a query that the report is to show but that is not judged."""
    if settings.report_ids:
        from denserk.evaluation.query_details import check_query_ids

        check_query_ids(settings.report_ids, result)


def check_correction(settings: ComparisonSettings) -> None:
    """Raise a UsageError for a test of all runs without a baseline, which would print nothing."""
    if settings.correction is Correction.TUKEY:
        raise UsageError(
            "--correction tukey: no baseline",
            "add --baseline RUN or --baseline previous: the pairs that are printed",
        )


def with_statistics(
    result: EvaluationResult, runs: Sequence[str], settings: EvalSettings
) -> EvaluationResult:
    """Return the result with means over seeds, and with tests against the baseline.

    `runs` are the files of the result's runs.
    """
    from denserk.evaluation.evaluator import over_seeds

    if settings.seeds:
        result = over_seeds(result)
    if settings.baseline is None:
        check_correction(settings)
        return result
    from denserk.evaluation.significance import compare

    names = [run.name for run in result.runs]
    baseline = settings.baseline
    systems: Mapping[str, RunResult] | None = None
    if settings.seeds:
        if baseline != PREVIOUS and baseline not in names:
            raise UsageError(f"--baseline {baseline}: the systems are {', '.join(names)}")
        systems = {run.name: run for run in result.runs}
    else:
        name_by_file = dict(zip(runs, names, strict=True))
        baseline = name_by_file.get(baseline, baseline)
    values = {run.name: run.per_query for run in result.runs}
    comparison = compare(values, result.measures, baseline, settings, systems)
    return replace(result, comparison=comparison)


def write_plot(result: EvaluationResult, settings: EvalSettings) -> None:
    """Draw the measures to `settings.plot`, if given and if the package that draws is installed."""
    if settings.plot is not None:
        from denserk.evaluation.plot import draw
        from denserk.plots import save_if_installed

        drawing = partial(draw, result, settings.alpha)
        save_if_installed(drawing, "the measures", Path(settings.plot))


def write_report_page(
    result: EvaluationResult, runs: Sequence[str], sources: ReportSources, settings: EvalSettings
) -> Path:
    """Write the report of runs as an HTML page; return its path."""
    from denserk.evaluation.report import write_report

    return write_report(result, runs, sources, settings)
