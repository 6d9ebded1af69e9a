"""`denserk eval`, `denserk benchmark` and `denserk choose`."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from denserk.commands.completion import completer
from denserk.commands.options import command
from denserk.config import benchmarks
from denserk.config import evaluation as config
from denserk.config.choosing import ChooseSettings
from denserk.config.encoding import (
    ComputeSettings,
    ModelOptions,
    ServerSettings,
    reject_overrides,
    reject_server,
)
from denserk.config.evaluation import EvalSettings, ReportSources
from denserk.config.formats import CorpusSettings
from denserk.config.options import fields_of, reject_given
from denserk.config.retrieval import Bm25Settings
from denserk.config.shared import OverwriteSettings
from denserk.errors import UsageError
from denserk.reporting import print_below_table, print_table, printable

if TYPE_CHECKING:
    from denserk.evaluation.choice import Choice, TestOpening
    from denserk.evaluation.explain import View
    from denserk.evaluation.results import BenchmarksResult, EvaluationResult

logger = logging.getLogger(__name__)


@command(
    "eval",
    common="measures relevance_level per_query format baseline test correction min report "
    "plot topics corpus answers explain unjudged predicted draw output",
)
def evaluate(
    inputs: config.EvalInputSettings,
    corpus: CorpusSettings,
    output: OverwriteSettings,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|QRELS", help="Runs and one qrels file, in any order; detected by content."
        ),
    ] = None,
) -> None:
    """Evaluate runs against relevance judgments (qrels) or answers.

    denserk eval run.trec qrels.txt --measures 'nDCG@10 RR@10 R@100'
    denserk eval bm25.trec dense.trec qrels.txt --baseline bm25.trec
    """
    from denserk.tasks.evaluation_inputs import with_baseline
    from denserk.tasks.evaluation_outputs import check_page

    settings: EvalSettings = inputs  # measures and baseline may be replaced below
    _check_format(inputs)
    if inputs.corpus is None and inputs.report is None:
        reject_given(corpus, why="only for --corpus or --report")
    if inputs.draw is not None:
        _draw(files or [], inputs, corpus)
        return
    runs, qrels = _runs_and_qrels(files or [], inputs)
    if inputs.answers is None:
        settings = _with_measures_of_format(settings)
    if inputs.explain is not None:
        _print_explanations(runs, qrels or "", inputs.explain, settings)
        return
    if not settings.seeds:  # else --baseline names a system, not one of its runs
        settings, runs = with_baseline(settings, runs)
    check_page(settings, [*runs, qrels] if qrels else runs)
    if inputs.predicted is not None:
        from denserk.tasks.evaluate_predicted import check_inputs

        check_inputs(runs, inputs, settings)
    if inputs.corpus is not None:
        from denserk.io.corpus import as_searched

        # by default texts are read as they were for the indexes that the runs come from
        corpus = as_searched(inputs.corpus, corpus, runs)
    result = _evaluated(runs, qrels, inputs, settings, corpus)
    sources = ReportSources(
        title=f"Runs on {_shown_name(qrels or inputs.answers or '')}",
        qrels=qrels,
        topics=settings.topics,
        corpus=inputs.corpus,
        reading=corpus,
    )
    if inputs.to_judge is not None and inputs.output is not None:
        _write_pool(result, inputs.output, sources, runs)
    _finish(result, runs, settings, sources, inputs)


def _evaluated(
    runs: Sequence[str],
    qrels: str | None,
    inputs: config.EvalInputSettings,
    settings: EvalSettings,
    corpus: CorpusSettings,
) -> "EvaluationResult":
    """Return the measures of runs by answers or qrels, with bounds if asked for."""
    if inputs.answers is not None and inputs.corpus is not None:
        from denserk.tasks.evaluate_answers import evaluate_answers

        return evaluate_answers(runs, inputs.answers, inputs.corpus, settings, corpus)
    assert qrels is not None  # without answers
    if inputs.unjudged is not None:
        from denserk.tasks.evaluate_unjudged import evaluate_unjudged

        return evaluate_unjudged(runs, qrels, settings, settings.baseline, inputs.to_judge)
    from denserk.tasks.evaluate import evaluate as task

    return task(runs, qrels, settings)


def _draw(files: list[str], inputs: config.EvalInputSettings, corpus: CorpusSettings) -> None:
    """Draw queries for people to judge, and write the hits of the runs for them."""
    from denserk.tasks.draw_queries import draw_queries

    assert inputs.output is not None  # which --draw needs
    runs = [*files, *inputs.run]
    if inputs.corpus is not None:
        from denserk.io.corpus import as_searched

        corpus = as_searched(inputs.corpus, corpus, runs)
    sources = ReportSources("", topics=inputs.topics, corpus=inputs.corpus, reading=corpus)
    result = draw_queries(runs, inputs.output, inputs, sources, inputs.predicted)
    logger.info(
        f"{inputs.output}: {result.drawn:,} of {result.queries:,} queries drawn with seed "
        f"{inputs.seed}, {result.pairs:,} passages to judge: fill in the empty column"
    )


def _check_format(inputs: config.EvalInputSettings) -> None:
    """Raise a UsageError for what trec_eval's format has no lines for."""
    if inputs.format is not config.OutputFormat.TREC_EVAL:
        return
    options = []
    if inputs.unjudged is not None:
        options.append("--unjudged")
    if inputs.predicted is not None and inputs.draw is None:
        options.append("--predicted")
    if options:
        names = " and ".join(options)
        raise UsageError(f"--format trec_eval has no lines for {names}", "choose another format")


def _write_pool(
    result: "EvaluationResult", path: str, sources: ReportSources, runs: Sequence[str]
) -> None:
    """Write the unjudged hits that --to-judge chose."""
    from denserk.tasks.evaluate_unjudged import write_pairs

    assert result.unjudged is not None
    plan = result.unjudged.plan
    assert plan is not None  # --output needs --to-judge
    count = write_pairs(path, plan, sources, runs)
    if count == 0:
        logger.info(f"{path}: no hits to judge, as the sign is decided")
        return
    logger.info(f"{path}: {count:,} hits to judge; grades go into the third column")


def _runs_and_qrels(
    files: list[str], inputs: config.EvalInputSettings
) -> tuple[list[str], str | None]:
    """Return the runs and the qrels; with answers there are no qrels, and all files are runs."""
    if inputs.answers is not None:
        return [*files, *inputs.run], inputs.qrels
    from denserk.tasks.evaluation_inputs import sort_inputs

    return sort_inputs(files, inputs.run, inputs.qrels)


def _with_measures_of_format(settings: EvalSettings) -> EvalSettings:
    """Return settings with trec_eval's measures where its format is printed and none are named."""
    if settings.measures or format_of(settings) is not config.OutputFormat.TREC_EVAL:
        return settings
    return replace(settings, measures=config.TREC_EVAL_MEASURES)


def _shown_name(judgments: str) -> str:
    """Return the name of a file without its folders; others, as beir:scifact, as they are."""
    if Path(judgments).exists():
        return Path(judgments).name
    return judgments


def _print_explanations(runs: Sequence[str], qrels: str, qid: str, settings: EvalSettings) -> None:
    """Print what each run retrieved for a query, in the order of each measure."""
    from denserk.evaluation.explain import explain

    for run in runs:
        views = explain(run, qrels, qid, settings)
        measures = list(dict.fromkeys(chain.from_iterable(view.values for view in views)))
        rows = [_explanation_row(view, measures, settings.places) for view in views]
        query_header = f"{Path(run).name}: query {qid}"
        print_table((query_header, *measures, "first passages (grade)", "moved by"), rows)


def _explanation_row(view: "View", measures: Sequence[str], places: int) -> list[str]:
    """Return the cells of a row: name, values of measures, first passages, what moved them."""
    cells = [view.name]
    for measure in measures:
        value = view.values.get(measure, "-")
        cells.append(value if isinstance(value, str) else f"{value:.{places}f}")
    cells.append(" ".join(view.order) or "-")
    cells.append(", ".join(view.moved_by))
    return cells


@command(
    "benchmark",
    common="list runs model base_url output against measures baseline min per_query format report "
    "hits resume overwrite device dtype batch_tokens",
)
def benchmark(
    paths: benchmarks.BenchmarkPaths,
    settings: EvalSettings,
    make: benchmarks.MakeSettings,
    options: ModelOptions,
    corpus: CorpusSettings,
    server: ServerSettings,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Benchmarks or groups (see --list).",
            autocompletion=completer("benchmarks"),
        ),
    ] = None,
) -> None:
    """Evaluate runs or a model on named benchmarks.

    denserk benchmark dl19 --runs run.trec --against aggretriever
    denserk benchmark beir-small --model M --output runs/
    """
    if paths.list:
        print_table(benchmarks.COLUMNS, benchmarks.list_benchmarks())
        return
    if not names:
        raise UsageError("no benchmark given", "denserk benchmark --list shows all")
    requested_benchmarks = benchmarks.find_benchmarks(names)
    runs = paths.evaluated
    if not runs:
        raise UsageError("no runs given", "add --runs run.trec, or --model MODEL --output DIR")
    is_one_benchmark = len(requested_benchmarks) == 1 and not paths.has_folders
    _reject_options_of_other_judgments(requested_benchmarks, names, settings)
    if not is_one_benchmark:
        reject_given(
            settings,
            among="baseline seeds test correction alpha permutations test_seed plot min per_query "
            "topics report_ids write_dpr_json write_pyserini_json",
            why="only for run files of one benchmark",
        )
    from denserk.tasks.evaluation_outputs import check_page

    check_page(settings, runs)
    if paths.model is not None:
        from denserk.tasks.benchmark import check_measures, make_runs

        check_measures(requested_benchmarks, settings)
        make_runs(paths, make, options, corpus, requested_benchmarks, server)
    else:
        reject_server(server, None)
        _reject_model_options(make, options, corpus)
    if is_one_benchmark:
        _evaluate_on_one(paths, requested_benchmarks[0], settings)
    else:
        _evaluate_on_several(runs, names, settings, paths.against)


def _reject_options_of_other_judgments(
    requested_benchmarks: Sequence[benchmarks.Benchmark],
    names: Sequence[str],
    settings: EvalSettings,
) -> None:
    """Raise a UsageError for an option of qrels if a benchmark has answers, and vice versa."""
    requested_names = " and ".join(names)
    if any(benchmark.answers for benchmark in requested_benchmarks):
        reject_given(
            settings,
            among="report_ids",
            why=f"for benchmarks with qrels; {requested_names} has answers",
        )
    else:
        reject_given(
            settings,
            among=" ".join(fields_of(config.AnswerSettings)),
            why=f"for benchmarks with answers; {requested_names} has qrels",
        )


def _reject_model_options(
    make: benchmarks.MakeSettings, options: ModelOptions, corpus: CorpusSettings
) -> None:
    """Raise a UsageError for an option that has an effect only with --model."""
    hint = "add --model and --output"
    make_without_overwrite = replace(make, overwrite=False)  # which reports and plots take, too
    reject_given(
        make_without_overwrite, corpus, options.compute, why="only with --model", hint=hint
    )
    reject_overrides(options.representation, options.text, why="only with --model", hint=hint)


def _evaluate_on_one(
    paths: benchmarks.BenchmarkPaths, benchmark: benchmarks.Benchmark, settings: EvalSettings
) -> None:
    """Evaluate run files on one benchmark, with a report of its queries."""
    from denserk.tasks.benchmark import evaluate_benchmark
    from denserk.tasks.evaluation_inputs import with_baseline

    settings, runs = with_baseline(settings, [*paths.runs])
    result = evaluate_benchmark(runs, benchmark, settings, paths.against)
    sources = ReportSources(title=benchmark.title, topics=settings.topics)
    if settings.report is not None:
        from denserk.evaluation.report import sources_of

        sources = sources_of(benchmark, sources)
        settings = replace(settings, remove_query=benchmark.remove_query)
    _finish(result, runs, settings, sources)


def _evaluate_on_several(
    runs: Sequence[str],
    names: Sequence[str],
    settings: EvalSettings,
    against: Sequence[benchmarks.Paper],
) -> None:
    """Evaluate folders of runs on benchmarks and groups, with a report of their tables."""
    from denserk.tasks.benchmark import evaluate_benchmarks

    result = evaluate_benchmarks(runs, names, settings, against)
    show(result, settings)
    if settings.report is not None:
        from denserk.evaluation.report import write_benchmarks_report

        page = write_benchmarks_report(result, settings)
        logger.info(f"{page}: report")


def _finish(
    result: "EvaluationResult",
    runs: Sequence[str],
    settings: EvalSettings,
    sources: ReportSources,
    predicted: config.PredictedSettings | None = None,
) -> None:
    """Test runs against a baseline, print measures, write plot and report, check minimum values.

    `predicted` may name labels that add to those of `sources.qrels`.
    """
    from denserk.evaluation.evaluator import check_minimums
    from denserk.tasks.evaluation_outputs import (
        check_report_ids,
        with_statistics,
        write_plot,
        write_report_page,
    )

    check_report_ids(settings, result)
    result = with_statistics(result, runs, settings)
    if predicted is not None and predicted.predicted is not None:
        from denserk.tasks.evaluate_predicted import with_predicted_labels

        result = with_predicted_labels(result, runs, sources.qrels, predicted, settings)
    show(result, settings)
    write_plot(result, settings)
    if settings.report is not None:
        page = write_report_page(result, runs, sources, settings)
        logger.info(f"{page}: report, {page.stat().st_size / 1000:,.0f} kB")
    check_minimums(result, settings)


def format_of(settings: config.ReportSettings) -> config.OutputFormat:
    """Return the output format; by default a table on a terminal and TSV elsewhere."""
    if settings.format is not None:
        return settings.format
    if sys.stdout.isatty():
        return config.OutputFormat.TABLE
    return config.OutputFormat.TSV


def show(result: "EvaluationResult | BenchmarksResult", settings: config.ReportSettings) -> None:
    """Print a result; control characters are escaped on a terminal."""
    from denserk.evaluation.tables import has_notes, render, write_aligned

    output_format = format_of(settings)
    if output_format is config.OutputFormat.TABLE:
        write_aligned(result, settings, sys.stdout)
    else:
        text = render(result, settings, output_format)
        if sys.stdout.isatty():
            text = _printable_page(text)
        sys.stdout.write(text)
    sys.stdout.flush()
    is_by_default = settings.format is None
    if is_by_default and output_format is config.OutputFormat.TSV and has_notes(result):
        logger.info("printed as lines, for programs; --format table prints tables and their notes")


def _printable_page(text: str) -> str:
    """Return a text whose control characters are escaped, but for line ends and tabs."""
    characters = []
    for character in text:
        is_layout = character in "\n\t"
        characters.append(character if is_layout else printable(character))
    return "".join(characters)


@command(
    "choose",
    common="corpus topics qrels output candidates measure budget train_qrels train_topics "
    "test_qrels test_topics open_again alpha language resume overwrite device base_url",
)
def choose(
    settings: ChooseSettings,
    corpus: CorpusSettings,
    compute: ComputeSettings,
    server: ServerSettings,
    bm25: Bm25Settings,
) -> None:
    """Choose the best retriever for documents and judged queries.

    denserk choose --corpus docs/ --topics q.tsv --qrels qrels.txt --output choice
    denserk choose --corpus docs/ --topics q.tsv --qrels qrels.txt --output choice --budget 20min
    """
    from denserk.evaluation.choice import sentence
    from denserk.evaluation.choice_page import HEADER, table_row
    from denserk.tasks.choose import choose as task

    choice = task(settings, corpus, compute, server, bm25)
    print_table(HEADER, [table_row(system, choice) for system in choice.systems])
    print_below_table(sentence(choice))
    _log_undecided_differences(choice)
    if choice.test is not None:
        _log_test(choice.test)
    if choice.commands:
        logger.info(f"commands that build {choice.leader.name} again:")
    for line in choice.commands:
        logger.info(f"  {line}")
    page = Path(settings.output) / "index.html"
    logger.info(f"{page}: report, {page.stat().st_size / 1000:,.0f} kB")


def _log_undecided_differences(choice: "Choice") -> None:
    """Log what would decide, and how to go on."""
    from denserk.evaluation.choice import Outcome, undecided_sentence

    for difference in choice.undecided:
        logger.info(undecided_sentence(difference, choice))
    if choice.cheapest is not None and len(choice.best) > 1:
        logger.info(f"the fastest of these: {choice.cheapest.name}")
    if choice.outcome is Outcome.BUDGET:
        logger.info("the same command with --resume continues")


def _log_test(test: "TestOpening") -> None:
    """Log the values of the sealed test queries."""
    values = ", ".join(f"{name} {mean:.4f}" for name, mean in test.means.items())
    logger.info(
        f"{test.measure} of {test.queries:,} sealed test queries (opening {test.opening}): {values}"
    )
