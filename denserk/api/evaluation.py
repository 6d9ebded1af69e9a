"""Evaluation, fusion and reranking of runs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack, overload

from denserk.api.inputs import (
    RunLike,
    Scores,
    TextsLike,
    in_order,
    is_path,
    listed_runs,
    opened_runs,
    read_grades,
    read_qrels_of,
    read_run_of,
    stored_inputs,
)
from denserk.api.options import (
    BenchmarkOptions,
    EvaluateOptions,
    ExplainOptions,
    FuseOptions,
    JudgmentBoundsOptions,
    PathName,
    RerankOptions,
)
from denserk.api.runs import Run
from denserk.api.signatures import (
    BENCHMARK,
    EVALUATE,
    EXPLAIN,
    FUSE,
    JUDGMENT_BOUNDS,
    RERANK,
    Typed,
    documented,
    model_options,
)
from denserk.config.benchmarks import BenchmarkPaths, MakeSettings, find_benchmarks
from denserk.config.encoding import ComputeSettings, ServerSettings, TextSettings
from denserk.config.evaluation import (
    PREVIOUS,
    ComparisonSettings,
    EvalSettings,
    EvaluationSettings,
    OutputFormat,
    PredictedSettings,
    ReportSettings,
    ReportSources,
    RunOrder,
    Unjudged,
    UnjudgedSettings,
)
from denserk.config.formats import CorpusSettings
from denserk.config.options import build, reject_given, select
from denserk.config.retrieval import FusionSettings, RankingSettings, RerankPaths, RerankSettings
from denserk.config.yaml_files import typed_options
from denserk.errors import OutputError, UsageError
from denserk.index.fused_runs import FusedRuns
from denserk.io.qrels import grades_by_query
from denserk.python_inputs import is_frame, wrong_argument

if TYPE_CHECKING:
    from denserk.evaluation.explain import View
    from denserk.evaluation.results import (
        BenchmarksResult,
        Difference,
        EvaluationResult,
        PredictedLabels,
    )
    from denserk.evaluation.unjudged_results import UnjudgedBounds
    from denserk.tasks.evaluate import RelevanceJudgments

    PerQuery = Mapping[str, Mapping[str, float]]  # measure -> query id -> value

IN_MEMORY = "the qrels in memory"  # their name in messages


class HumanAndPredicted(NamedTuple):
    """Qrels of people for few queries, and of a model for many."""

    human: Any
    predicted: Any


@documented(FUSE)
def fuse(
    runs: "Sequence[RunLike]", *, tune: "RunLike | None" = None, **options: Unpack[FuseOptions]
) -> Run:
    """Fuse runs; options as in `denserk fuse`: method, weights, rrf_k, normalization, ...

    With `tune`, qrels, the weights that are best for them are the `weights` of the returned run.
    """
    sources = listed_runs(runs)
    if len(sources) < 2:
        raise UsageError("two runs or more are needed", "fuse([run, run])")
    tuning_name = None if tune is None else _qrels_name(tune)
    typed = FUSE.typed(options) | {"tune": tuning_name}
    fusion = build(FusionSettings, typed)
    fusion.weights_of(len(sources))  # rejects another number of weights before anything is read
    with FUSE.claimed(typed), opened_runs(sources) as runs_by_query:
        fused = FusedRuns(runs_by_query, fusion, build(RankingSettings, typed))
        if tune is not None:
            from denserk.index.fusion_weights import best_weights, tuning_measure

            measure = tuning_measure(fusion)
            fused.weights = best_weights(fused, measure, read_grades(tune, "tune"))
        run = Run((qid, dict(hits)) for qid, hits in fused.results())
    fused.ranking.report()  # of equal scores
    _reject_non_finite(run)
    run.weights = fused.weights
    return run


def _qrels_name(qrels: Any) -> str:
    """Return what messages call qrels."""
    return str(qrels) if is_path(qrels) else IN_MEMORY


def _reject_non_finite(run: Run) -> None:
    """Raise an OutputError for a fused score that is infinite or no number."""
    for qid, hits in run.items():
        for docid, score in hits.items():
            if not abs(score) < float("inf"):
                raise OutputError(f"query {qid}: the score of passage {docid} is {score}")


@documented(RERANK)
def rerank(
    run: "RunLike",
    model: PathName,
    *,
    topics: "TextsLike",
    corpus: "TextsLike",
    **options: Unpack[RerankOptions],
) -> Run:
    """Rerank the hits of a run with a cross-encoder; options as in `denserk rerank`.

    `topics` and `corpus` have the texts of the queries and passages.
    """
    with stored_inputs(options, run=run, topics=topics, corpus=corpus) as (files, folder):
        output = folder / "reranked"
        typed = RERANK.typed(options, model=model, output=output, **files)
        paths = build(RerankPaths, typed)
        settings = build(RerankSettings, typed)
        from denserk.tasks.rerank import rerank as task

        with RERANK.claimed(typed):
            task(
                paths,
                settings,
                select(typed, TextSettings),
                build(ComputeSettings, typed),
                build(CorpusSettings, typed),
            )
        return Run.load(output)


@dataclass(frozen=True)
class Evaluation:
    """Measures of one run or, by name, of several; see `evaluate`.

    Attributes:
        summary: what `evaluate` returns: {measure: mean}, or that of each run by name.
        per_query: {measure: {query id: value}}, or that of each run by name.
        comparison: {run: {measure: difference}} from the baseline, with `mean`, the confidence
            interval `low` to `high`, the `effect` size, `p` and the `corrected` p-value, `wins`,
            `ties` and `losses`; `detectable`, the smallest true difference that these queries show
            with a chance of 80 %, by a t test at `level`; `needed_queries`, how many show the mean
            with that chance where they do not yet. Empty without a baseline.
        result: all of it, as the tables show it.
        predicted: with predicted labels, `means` and `differences` by run and measure, each with
            the intervals `human` and `powered`; else None.
    """

    summary: dict[str, Any]
    per_query: dict[str, Any]
    comparison: "Mapping[str, Mapping[str, Difference]]"
    result: "EvaluationResult" = field(repr=False)
    predicted: "PredictedLabels | None" = None

    def table(
        self,
        format: Literal["table", "tsv", "json", "trec_eval", "markdown", "latex"] = "table",
        *,
        places: int = 4,
        per_query: bool = False,
    ) -> str:
        """Return the measures as text, as `denserk eval --format` prints them.

        `places` are decimal places; with `per_query`, the values of each query are there, too.
        """
        from denserk.evaluation.tables import render

        options = {"format": format, "places": places, "per_query": per_query}
        typed = typed_options("Evaluation.table", options, ReportSettings)
        settings = build(ReportSettings, typed)
        return render(self.result, settings, settings.format or OutputFormat.TABLE)


@overload
def evaluate(
    run: "RunLike | Mapping[str, RunLike]",
    qrels: "RunLike",
    measures: str | Sequence[str] = (),
    *,
    baseline: str | None = None,
    topics: "TextsLike | None" = None,
    corpus: "TextsLike | None" = None,
    predicted: "RunLike | None" = None,
    details: Literal[False] = False,
    **options: Unpack[EvaluateOptions],
) -> dict[str, Any]: ...
@overload
def evaluate(
    run: "RunLike | Mapping[str, RunLike]",
    qrels: "RunLike",
    measures: str | Sequence[str] = (),
    *,
    baseline: str | None = None,
    topics: "TextsLike | None" = None,
    corpus: "TextsLike | None" = None,
    predicted: "RunLike | None" = None,
    details: Literal[True],
    **options: Unpack[EvaluateOptions],
) -> Evaluation: ...
@documented(EVALUATE)
def evaluate(
    run: "RunLike | Mapping[str, RunLike]",
    qrels: "RunLike",
    measures: str | Sequence[str] = (),
    *,
    baseline: str | None = None,
    topics: "TextsLike | None" = None,
    corpus: "TextsLike | None" = None,
    predicted: "RunLike | None" = None,
    details: bool = False,
    **options: Unpack[EvaluateOptions],
) -> "dict[str, Any] | Evaluation":
    """Return {measure: mean over the judged queries}; for {name: run}, that of each by name.

    `measures` is "nDCG@10 R@100" or a list, by default nDCG@10, RR@10 and R@100; options as in
    `denserk eval`. With `baseline`, one of the names, the other runs also have "nDCG@10 p" and so
    on: the p-value of the difference by a paired t-test, corrected by Holm. With `details`, an
    `Evaluation` has also the values of each query, confidence intervals and effect sizes.
    `report` names a folder for an HTML page, to which `topics` and `corpus` add texts. `predicted`
    are qrels of a model for many queries, beside `qrels` of people for a few of them, drawn at
    random (`draw_queries`): `details` have prediction-powered intervals as `predicted`.
    """
    from denserk.evaluation.evaluator import check_minimums
    from denserk.tasks.evaluate import evaluate_runs, read_runs
    from denserk.tasks.evaluation_outputs import check_page, check_report_ids, write_plot

    predicted_name = None if predicted is None else _qrels_name(predicted)
    typed = EVALUATE.typed(options, measures=measures) | {"predicted": predicted_name}
    predicted_settings = build(PredictedSettings, typed)
    settings = build(EvalSettings, typed)
    runs = _named_runs(run)
    _check_baseline(baseline, runs)
    if settings.report is None and not (topics is None and corpus is None):
        raise UsageError("topics and corpus: only for a report", "add report='folder'")
    input_paths = [str(source) for source in (*runs.values(), qrels) if is_path(source)]
    check_page(settings, input_paths)
    with EVALUATE.claimed(typed):
        judgments = _judgments(qrels, settings)
        sources = _sources_of_runs(runs, settings.order)
        named_runs = read_runs(sources, judgments.grades, settings)
        result = evaluate_runs(named_runs, judgments, settings)
        check_report_ids(settings, result)
        evaluation = _evaluation(result, baseline, build(ComparisonSettings, typed))
        if predicted is not None:
            labels = HumanAndPredicted(qrels, predicted)
            evaluation = _with_predicted_labels(
                evaluation, runs, labels, predicted_settings, settings
            )
        write_plot(evaluation.result, settings)
        if settings.report is not None:
            inputs = {
                "runs": list(runs.values()),
                "qrels": qrels,
                "topics": topics,
                "corpus": corpus,
            }
            _write_report(evaluation.result, inputs, settings, build(CorpusSettings, typed))
    check_minimums(result, settings)  # last: a report is written even below a minimum
    if is_single_run(run):
        evaluation = _without_run_name(evaluation)
    return evaluation if details else evaluation.summary


def _check_baseline(baseline: str | None, runs: Mapping[str, Any]) -> None:
    """Raise a UsageError for a baseline that is none of the runs."""
    if baseline not in (None, PREVIOUS, *runs):
        raise UsageError(f"baseline {baseline!r}: the runs are called {', '.join(runs)}")


@documented(JUDGMENT_BOUNDS)
def judgment_bounds(
    run: "RunLike | Mapping[str, RunLike]",
    qrels: "RunLike",
    measures: str | Sequence[str] = (),
    *,
    baseline: str | None = None,
    to_judge: int | None = None,
    **options: Unpack[JudgmentBoundsOptions],
) -> "UnjudgedBounds":
    """Bound measures over all judgments of the hits that the qrels do not grade.

    The returned `runs` have a value with its `interval` from `low` to `high` by run and measure,
    `differences` those of the other runs less `baseline`, by default the first run, and each
    interval a `decision`: whether any judgments could turn the sign. With `to_judge`, `plan` names
    at most so many hits whose judgments decide the first open sign, and how many it takes. As in
    `denserk eval --unjudged bounds`.
    """
    from denserk.tasks.evaluate_unjudged import bound_runs

    typed = JUDGMENT_BOUNDS.typed(options, measures=measures)
    settings = build(EvaluationSettings, typed)
    if to_judge is not None:
        choice = {"unjudged": Unjudged.BOUNDS, "to_judge": to_judge}
        # rejects a wrong number
        build(UnjudgedSettings, typed_options("judgment_bounds", choice, UnjudgedSettings))
    runs = _named_runs(run)
    _check_baseline(baseline, runs)
    with JUDGMENT_BOUNDS.claimed(typed):
        judgments = _judgments(qrels, settings)
        sources = list(_sources_of_runs(runs, settings.order))
        bounds = bound_runs(sources, judgments, settings, baseline, to_judge).unjudged
    assert bounds is not None
    return bounds


def _with_predicted_labels(
    evaluation: Evaluation,
    runs: Mapping[str, Any],
    labels: HumanAndPredicted,
    predicted: PredictedSettings,
    settings: EvalSettings,
) -> Evaluation:
    """Return an evaluation by human labels with what predicted labels add to it."""
    from denserk.tasks.evaluate import evaluate_runs, read_runs
    from denserk.tasks.evaluate_predicted import check_settings, find_draw, with_estimates

    check_settings(settings)
    judgments = _judgments(labels.predicted, settings)
    sources = [
        (f"{name} by predicted labels", source)
        for name, source in _sources_of_runs(runs, settings.order)
    ]
    named_runs = read_runs(sources, judgments.grades, settings)
    predicted_result = evaluate_runs(named_runs, judgments, settings)
    human_path = str(labels.human) if is_path(labels.human) else None
    draw = find_draw(human_path, predicted.drawn)
    result = with_estimates(evaluation.result, predicted_result, settings, draw)
    return replace(evaluation, result=result, predicted=result.predicted)


def _without_run_name(evaluation: Evaluation) -> Evaluation:
    """Return the evaluation of the only run, whose measures are not by run."""
    run = evaluation.result.runs[0].name
    return replace(
        evaluation,
        summary=evaluation.summary[run],
        per_query=evaluation.per_query[run],
    )


def _write_report(
    result: "EvaluationResult",
    inputs: Mapping[str, Any],
    settings: EvalSettings,
    reading: CorpusSettings,
) -> None:
    """Write the report of runs; inputs in memory are written to temporary files first."""
    from denserk.tasks.evaluation_outputs import write_report_page

    qrels = inputs["qrels"]
    title = f"Runs on {Path(qrels).name}" if is_path(qrels) else "Runs"
    with stored_inputs(vars(reading), **inputs) as (files, _):
        sources = ReportSources(
            title,
            qrels=str(files["qrels"]),
            topics=_path_or_none(files.get("topics")),
            corpus=_path_or_none(files.get("corpus")),
            reading=reading,
        )
        write_report_page(result, list(map(str, files["runs"])), sources, settings)


def _path_or_none(path: Any) -> str | None:
    """Return a path as text; None stays."""
    return None if path is None else str(path)


def is_single_run(run: Any) -> bool:
    """Return whether a value is one run, not {name: run}."""
    return not isinstance(run, Mapping) or all(map(_is_hits, run.values()))


def _is_hits(value: Any) -> bool:
    """Return whether a value is {passage id: score}, and not runs or hits by name."""
    if not isinstance(value, Mapping):
        return False
    return not any(isinstance(score, Mapping | str | PathLike) for score in value.values())


def _named_runs(run: Any) -> dict[str, Any]:
    """Return runs, paths or objects, by their names."""
    if is_path(run):
        from denserk.evaluation.evaluator import short_names

        return {short_names([str(run)])[0]: run}
    if is_single_run(run):
        if _is_list_of_runs(run):
            raise UsageError("run: found a list of runs", "give them names: {'bm25': run, ...}")
        return {"run": run}
    return {str(name): source for name, source in run.items()}


def _is_list_of_runs(run: Any) -> bool:
    """Return whether runs were given without names; a list of hits is one run."""
    if not isinstance(run, list | tuple) or not run:
        return False
    first_item = run[0]
    if isinstance(first_item, Mapping):
        return all(isinstance(hits, Mapping) for hits in first_item.values())
    return is_path(first_item) or is_frame(first_item)


def _judgments(qrels: Any, settings: EvaluationSettings) -> "RelevanceJudgments":
    """Return the judgments of a file, a collection or an object."""
    from denserk.tasks.evaluate import RelevanceJudgments, read_relevance_judgments

    if is_path(qrels):
        return read_relevance_judgments(str(qrels), settings)
    judgments = read_qrels_of(qrels, "qrels")
    return RelevanceJudgments(grades_by_query(judgments), IN_MEMORY, judgments)


def _sources_of_runs(
    runs: Mapping[str, Any], order: RunOrder
) -> Iterator[tuple[str, str | Scores]]:
    """Yield each run's name and path, or its hits if it is in memory.

    A reader of files applies `order`; hits in memory that are to be ordered by rank get the
    negatives of their ranks as scores.
    """
    for name, run in runs.items():
        if is_path(run):
            yield name, str(run)
            continue
        hits_by_qid = read_run_of(run, name)
        if order is RunOrder.RANK:
            hits_by_qid = {qid: _negative_ranks(hits) for qid, hits in hits_by_qid.items()}
        yield name, hits_by_qid


def _negative_ranks(hits: Mapping[str, float]) -> dict[str, float]:
    """Return hits with their negative ranks in place of scores: the best hit has the highest."""
    ranked = in_order(hits)
    return {docid: -float(rank) for rank, (docid, _) in enumerate(ranked, start=1)}


def _evaluation(
    result: "EvaluationResult", baseline: str | None, settings: ComparisonSettings
) -> Evaluation:
    """Return the measures of all runs by name, and their differences from the baseline."""
    from denserk.tasks.evaluation_outputs import check_correction

    summary: dict[str, Any] = {run.name: dict(run.summary) for run in result.runs}
    per_query: dict[str, PerQuery] = {run.name: run.per_query for run in result.runs}
    if baseline is None:
        check_correction(settings)
        return Evaluation(summary, dict(per_query), {}, result)
    from denserk.evaluation.significance import compare

    comparison = compare(per_query, result.measures, baseline, settings)
    for name, differences in comparison.differences.items():
        for measure, difference in differences.items():
            summary[name][f"{measure} p"] = difference.corrected
    result = replace(result, comparison=comparison)
    return Evaluation(summary, dict(per_query), comparison.differences, result)


def draw_queries(queries: Iterable[str], count: int, *, seed: int = 42) -> list[str]:
    """Return `count` of the queries, ids, drawn at random for people to judge.

    The same seed gives the same order: a smaller draw is the beginning of a larger one. It is the
    draw of `denserk eval --draw`.
    """
    from denserk.tasks.draw_queries import draw_first

    if isinstance(queries, str):
        raise wrong_argument("queries", queries, "the ids of queries, e.g. a list or qrels")
    if not isinstance(count, int) or count < 1:
        raise wrong_argument("count", count, "a whole number from 1 on")
    return draw_first([str(qid) for qid in queries], count, seed, "draw_queries: queries")


@documented(EXPLAIN)
def explain(
    run: "RunLike",
    qrels: "RunLike",
    qid: str,
    measures: str | Sequence[str] = (),
    **options: Unpack[ExplainOptions],
) -> "tuple[View, ...]":
    """Return one query as trec_eval, ir_measures, BEIR, MTEB and MS MARCO's script evaluate it.

    Each view has the evaluator's `name`, the `order` of the first passages, its `values`, and
    `moved_by`, the rules by which they differ from trec_eval's.
    """
    typed = EXPLAIN.typed(options, measures=measures)
    if not isinstance(qid, str):
        raise wrong_argument("qid", qid, "the id of a query, a text")
    for argument, value in (("run", run), ("qrels", qrels)):
        if value is None:
            raise wrong_argument(argument, value, "a path, a dict or a DataFrame")
    from denserk.evaluation.explain import explain as task

    with stored_inputs(run=run, qrels=qrels) as (files, _), EXPLAIN.claimed(typed):
        settings = build(EvaluationSettings, typed)
        return task(str(files["run"]), str(files["qrels"]), qid, settings)


@documented(BENCHMARK)
def benchmark(
    names: str | Sequence[str],
    *,
    runs: "RunLike | Sequence[RunLike]" = (),
    model: PathName | None = None,
    output: PathName | None = None,
    measures: str | Sequence[str] = (),
    **options: Unpack[BenchmarkOptions],
) -> dict[str, dict[str, dict[str, float]]]:
    """Evaluate runs on named benchmarks; return {benchmark or group: {run: {measure: value}}}.

    A run is a file or an object of one benchmark, or a folder of runs that are named by benchmark.
    With `model`, each benchmark is encoded and searched first, and its runs are kept in `output`.
    """
    requested_names = _names_of_benchmarks(names)
    find_benchmarks(requested_names)  # rejects unknown names before any work
    sources = runs if isinstance(runs, list | tuple) else [runs]
    with stored_inputs(runs=sources) as (files, _):
        typed = BENCHMARK.typed(
            options, runs=files["runs"], model=model, output=output, measures=measures
        )
        with BENCHMARK.claimed(typed):
            return _benchmark(requested_names, typed)


def _names_of_benchmarks(names: Any) -> list[str]:
    """Return one or several names as a list."""
    if isinstance(names, str):
        return [names]
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise wrong_argument("names", names, "names of benchmarks")
    return list(names)


def _benchmark(names: Sequence[str], typed: Typed) -> dict[str, dict[str, dict[str, float]]]:
    """Make the runs of a model if there is one, and evaluate runs on benchmarks."""
    paths = build(BenchmarkPaths, typed)
    settings = build(EvalSettings, typed)
    if not paths.evaluated:
        raise UsageError("no runs given", "give runs=, or model= and output=")
    benchmarks = find_benchmarks(names)
    is_one_benchmark = len(benchmarks) == 1 and not paths.has_folders
    if not is_one_benchmark:
        reject_given(settings, among="min", why="only for run files of one benchmark")
    if paths.model is not None:
        from denserk.tasks.benchmark import make_runs

        make_runs(
            paths,
            build(MakeSettings, typed),
            model_options(typed),
            build(CorpusSettings, typed),
            benchmarks,
            build(ServerSettings, typed),
        )
    from denserk.evaluation.evaluator import check_minimums
    from denserk.tasks.benchmark import evaluate_benchmark, evaluate_benchmarks

    if not is_one_benchmark:
        results = evaluate_benchmarks(paths.evaluated, names, settings, paths.against)
        return _values_by_benchmark(results)
    result = evaluate_benchmark(paths.evaluated, benchmarks[0], settings, paths.against)
    check_minimums(result, settings)
    return {benchmarks[0].name: {run.name: dict(run.summary) for run in result.runs}}


def _values_by_benchmark(result: "BenchmarksResult") -> dict[str, dict[str, dict[str, float]]]:
    """Return the values of runs on the benchmarks of a result, and on the groups among them."""
    from denserk.config.benchmarks import groups_within

    names = [*result.results, *(group.name for group in groups_within(result.results))]
    values: dict[str, dict[str, dict[str, float]]] = {}
    for name in names:
        values[name] = {}
        for run in result.runs:
            values_of_run = result.values(name, run)
            if values_of_run is not None:
                values[name][run] = dict(values_of_run)
    return values
