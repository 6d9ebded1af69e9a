"""`denserk eval`, and the output of measures for `denserk benchmark`."""

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from denserk.commands.app import app
from denserk.commands.console import printable
from denserk.commands.options import command
from denserk.config import evaluation as config
from denserk.config.formats import CorpusSettings
from denserk.config.options import OverwriteSettings
from denserk.errors import InputError, UsageError
from denserk.io.data_sets import BEIR, IRDS, knows_irds
from denserk.io.files import STREAM, read_text_lines

if TYPE_CHECKING:
    from denserk.evaluation.benchmarks import BenchmarksResult
    from denserk.evaluation.evaluator import EvaluationResult

logger = logging.getLogger(__name__)

HOW = (
    "for example: denserk eval run.trec qrels.txt, or denserk eval --run run.trec --qrels qrels.txt"
)


@command(
    app,
    "eval",
    common=(
        "measures relevance_level complete per_query format baseline test "
        "correction min report topics corpus answers max_hits"
    ),
    examples=(
        "denserk eval run.trec qrels.txt --measures 'nDCG@10 RR@10 R@100'",
        "denserk eval bm25.trec dense.trec qrels.txt --baseline bm25.trec",
    ),
)
def evaluate(
    settings: config.EvaluationSettings,
    inputs: config.EvaluationInput,
    matching: config.AnswerSettings,
    corpus: CorpusSettings,
    comparison: config.ComparisonSettings,
    report: config.ReportSettings,
    page: config.PageSettings,
    output: OverwriteSettings,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|QRELS", help="Runs and one qrels file, in any order; detected by content."
        ),
    ] = None,
) -> None:
    """Evaluate runs against relevance judgments (qrels) or answers."""
    runs, qrels = [*(files or []), *inputs.run], inputs.qrels
    _reject_unused(inputs, matching, corpus, page)
    if inputs.answers is None:
        runs, qrels = sort_inputs(files or [], inputs.run, qrels)
        if not settings.measures and format_of(report) is config.OutputFormat.TREC_EVAL:
            settings = replace(settings, measures=config.TREC_EVAL_MEASURES)
    comparison, runs = with_baseline(comparison, runs)
    if page.report is not None:
        from denserk.evaluation.report import page_in

        page_in(page, [*runs, *filter(None, [qrels])])
    if inputs.answers is not None and inputs.corpus is not None:
        from denserk.evaluation.answers import evaluate_answers

        texts = (inputs.answers, inputs.corpus)
        result = evaluate_answers(runs, *texts, settings, matching, corpus, topics=page.topics)
    else:
        from denserk.evaluation.evaluator import evaluate as task

        assert qrels is not None  # found by sort_inputs
        result = task(runs, qrels, settings)
    sources = None
    if page.report is not None:
        measured_by = qrels or inputs.answers or ""
        name = Path(measured_by).name if Path(measured_by).exists() else measured_by
        sources = config.ReportSources(f"Runs on {name}", qrels, page.topics, inputs.corpus, corpus)
    finish(result, runs, settings, comparison, report, page, sources)


def _reject_unused(
    inputs: config.EvaluationInput,
    matching: config.AnswerSettings,
    corpus: CorpusSettings,
    page: config.PageSettings,
) -> None:
    """Raise a UsageError for options of answers and reports that would have no effect."""
    if page.topics is not None and page.report is None and not matching.outputs:
        raise UsageError("--topics is for --report or --write-dpr-json", "add --report DIR")
    if inputs.answers is None:
        texts = [] if page.report else [config.EvaluationInput(corpus=inputs.corpus), corpus]
        hint = "add --answers FILE --corpus FILE, or --report DIR"
        config.reject_unused([matching, *texts], "only for --answers or --report", hint)


def content_of(name: str) -> Literal["run", "qrels"] | None:
    """Return what a file holds, by its first line; None for a pipe, which can be read only once."""
    path = Path(name)
    if name == STREAM or (path.exists() and not path.is_file() and not path.is_dir()):
        return None
    collection = name.startswith((IRDS, BEIR)) or ("/" in name and knows_irds(name))
    if path.is_dir() or (not path.exists() and collection):
        return "qrels"
    lines = ((number, text.split()) for number, text in read_text_lines(name))
    number: int | None = None
    columns: list[str] = []
    for line, found in lines:  # the first one that is not blank, a comment only if alone
        if found and (not columns or found[0][0] != "#"):
            number, columns = line, found
        if columns and columns[0][0] != "#":
            break
    if len(columns) >= 6 or (columns and columns[0][0] == "{"):
        return "run"
    if len(columns) == 4:
        return "qrels"
    if len(columns) == 3:
        return "qrels" if columns[0].lower() == "query-id" else "run"
    raise InputError(
        name,
        number,
        f"{len(columns)} columns" if columns else "nothing",
        "a run (6 columns, or 3) or qrels (4 columns, or BEIR's header query-id ...)",
    )


def sort_inputs(
    files: Sequence[str], runs: Sequence[str], qrels: str | None
) -> tuple[list[str], str]:
    """Return the runs and the qrels among `files`, given in any order, `--run` and `--qrels`."""
    named = [*files, *runs, *([qrels] if qrels else [])]
    if twice := sorted({name for name in named if named.count(name) > 1}):
        raise UsageError(f"{', '.join(twice)}: given twice", HOW)
    contents = {name: content_of(name) for name in files}
    found = [name for name in files if contents[name] == "qrels"] + ([qrels] if qrels else [])
    if not found and len(named) > 1:
        found = [name for name in files if contents[name] is None]
    if len(found) != 1:
        said = f"several qrels files given: {', '.join(found)}" if found else "no qrels file given"
        raise UsageError(said, HOW)
    found_runs = [name for name in (*files, *runs) if name != found[0]]
    if not found_runs:
        raise UsageError(f"no run given beside the qrels {found[0]}", HOW)
    return found_runs, found[0]


def with_baseline(
    comparison: config.ComparisonSettings, runs: list[str]
) -> tuple[config.ComparisonSettings, list[str]]:
    """Put the run that --baseline names, a file or a run's name in tables, among the runs."""
    name = comparison.baseline
    if name is None or name in runs:
        return comparison, runs
    if name != STREAM and not Path(name).is_file():
        from denserk.evaluation.evaluator import short_names

        shown = short_names(runs) if runs else []
        names = zip(runs, shown, strict=True)
        called = [run for run, short in names if name in (short, Path(run).name)]
        if len(called) == 1:
            return replace(comparison, baseline=called[0]), runs
        if not Path(name).exists():  # a pipe, or a folder, is read or rejected like other runs
            raise UsageError(
                f"--baseline {name}: no such file, and {len(called) or 'no'} runs are called so",
                f"the runs are called {', '.join(shown) or 'nothing: name one'}",
            )
    return comparison, [name, *runs]


def finish(
    result: "EvaluationResult",
    runs: Sequence[str],
    settings: config.EvaluationSettings,
    comparison: config.ComparisonSettings,
    report: config.ReportSettings,
    page: config.PageSettings,
    sources: config.ReportSources | None,
) -> None:
    """Test runs against a baseline, print measures, write the report, check minimum values."""
    from denserk.evaluation.evaluator import check_minimums

    if comparison.baseline is not None:
        from denserk.evaluation.significance import compare

        baseline = result.runs[list(runs).index(comparison.baseline)].name
        values = {run.name: run.per_query for run in result.runs}
        found = compare(values, result.measures, baseline, comparison)
        result = replace(result, comparison=found)
    show(result, report)
    if sources is not None:
        from denserk.evaluation.report import write_report

        path = write_report(result, runs, sources, page, settings)
        logger.info(f"{path}: report, {path.stat().st_size / 1000:,.0f} kB")
    check_minimums(result, settings)


def format_of(report: config.ReportSettings) -> config.OutputFormat:
    """Return the output format; by default a table on a terminal and TSV elsewhere."""
    default = config.OutputFormat.TABLE if sys.stdout.isatty() else config.OutputFormat.TSV
    return report.format or default


def show(result: "EvaluationResult | BenchmarksResult", report: config.ReportSettings) -> None:
    """Print a result; control characters are escaped on a terminal."""
    from denserk.evaluation.tables import as_rich, render, tables

    chosen, on_terminal = format_of(report), sys.stdout.isatty()
    if chosen is config.OutputFormat.TABLE and on_terminal and "NO_COLOR" not in os.environ:
        from rich.console import Console

        out = Console(markup=False, highlight=False)
        for table in tables(result, report):
            out.print(as_rich(table, lambda text: printable(text, None)))
            for note in table.legend("green"):
                out.print(note)
    else:
        text = render(result, report, chosen)
        if on_terminal:
            text = "".join(c if c in "\n\t" else printable(c) for c in text)
        sys.stdout.write(text)
    sys.stdout.flush()
