"""Runs on the field's suites: judgements, measures and rules by a name; means over several sets."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from denserk.errors import MismatchError, UsageError
from denserk.evaluation.benchmarks import BenchmarksResult
from denserk.evaluation.evaluator import EvaluationResult
from denserk.evaluation.inputs import short_names
from denserk.evaluation.published import PublishedRow, published_measures, published_rows
from denserk.formats.data_sets import download_errors, find_parts
from denserk.formats.files import STREAM
from denserk.formats.manifest import Kind, beside, read_manifest
from denserk.settings.benchmarks import Benchmark, Paper, benchmarks, find_benchmarks, groups_within
from denserk.settings.evaluation import MATCHING, AnswerSettings, EvaluationSettings
from denserk.tasks.evaluate import evaluate
from denserk.tasks.evaluate_answers import evaluate_answers

logger = logging.getLogger(__name__)

ENDINGS = ("", ".trec", ".txt", ".tsv", ".run", ".jsonl")
"""How the files of runs in a folder may end, `.gz` behind them or not."""


def evaluate_suite(
    runs: Sequence[str],
    suite: Benchmark,
    settings: EvaluationSettings | None = None,
    against: Sequence[Paper] = (),
    matching: AnswerSettings = MATCHING,
) -> EvaluationResult:
    """Measures runs on one suite.

    Args:
        runs: run files; "-" is standard input.
        suite: its judgements or answers, its measures unless `settings` name some, its rules.
        settings: what else is asked for.
        against: papers whose rows for the suite are added; what they measure is measured too.
        matching: how answers are matched, where the suite has answers.

    Raises:
        UsageError: a measure is not understood, or a part of the suite is missing.
        MismatchError: a run was made for another suite or corpus.
        InputError: a file is not what it should be.
    """
    settings = settings or EvaluationSettings()
    for path in runs:
        refuse_other_suite(path, suite)
    rows = _rows(against, [suite.name])
    asked = settings.measures or tuple(dict.fromkeys((*suite.measures, *published_measures(rows))))
    settings = replace(
        settings, measures=asked, remove_query=settings.remove_query or suite.remove_query
    )
    if suite.answers is None:
        result = _by_judgements(runs, suite, settings)
    else:
        result = _by_answers(runs, suite, settings, matching)
    return replace(result, published=_measured(rows, result))


def _measured(rows: Sequence[PublishedRow], result: EvaluationResult) -> tuple[PublishedRow, ...]:
    """The rows, cut to the measures of a result, where they have any of them."""
    names = set(map(str, result.measures))
    cut = [
        replace(row, values={name: value for name, value in row.values.items() if name in names})
        for row in rows
    ]
    if rows and not any(row.values for row in cut):
        logger.info(f"the papers report other measures: {', '.join(published_measures(rows))}")
    return tuple(row for row in cut if row.values)


def _by_judgements(
    runs: Sequence[str], suite: Benchmark, settings: EvaluationSettings
) -> EvaluationResult:
    qrels = find_parts([suite], ["qrels"])[suite.name]["qrels"]
    with download_errors(suite, "qrels", qrels):
        return evaluate(runs, qrels, settings)


def _by_answers(
    runs: Sequence[str],
    suite: Benchmark,
    settings: EvaluationSettings,
    matching: AnswerSettings,
) -> EvaluationResult:
    parts = find_parts([suite], ["answers", "corpus"])[suite.name]
    matching = replace(matching, regex=matching.regex or suite.regex)
    with download_errors(suite, "corpus", parts["corpus"]):
        return evaluate_answers(runs, parts["answers"], parts["corpus"], settings, matching)


def refuse_other_suite(path: str, suite: Benchmark) -> None:
    """Refuses a run whose manifest says that it was made for another suite or corpus.

    Raises:
        MismatchError: it does.
    """
    made: Mapping[str, str] | None = None
    if path != STREAM and beside(path).is_file():
        made = read_manifest(path, Kind.RUN).made_from.get("suite")
    if made is not None:
        if (made["name"], made["corpus"]) != (suite.name, suite.corpus.name):
            raise MismatchError(
                f"{path} was made for {made['name']} (corpus {made['corpus']}), not for "
                f"{suite.name} (corpus {suite.corpus.name})",
                f"denserk benchmark {made['name']} --runs {path}",
            )
    elif suite.corpus.name == "msmarco-passage-titled":
        logger.info(f"nothing says that {path} was made on the titled corpus: taken on your word")


def evaluate_suites(
    folders: Sequence[str],
    names: Sequence[str],
    settings: EvaluationSettings | None = None,
    against: Sequence[Paper] = (),
    matching: AnswerSettings = MATCHING,
) -> BenchmarksResult:
    """Measures folders of runs, each run named by its set, on several suites.

    Args:
        folders: each holds a run a suite: scifact.trec, cqadupstack-android.trec, and so on.
        names: suites and groups.
        settings: what else is asked for.
        against: papers whose rows for the suites and their means are added.
        matching: how answers are matched, where a suite has answers.

    Raises:
        UsageError: no folder has a run for any of the suites, or a part of a suite is missing.
        MismatchError: a run was made for another suite or corpus.
        InputError: a file is not what it should be.
    """
    suites = find_benchmarks(names)
    called = short_names(folders)
    paths: dict[str, dict[str, str]] = {}
    for folder, name in zip(folders, called, strict=True):
        for suite in suites:
            if (path := run_in_folder(folder, suite)) is not None:
                paths.setdefault(suite.name, {})[name] = str(path)
        missing = [suite.name for suite in suites if name not in paths.get(suite.name, {})]
        if len(missing) == len(suites):
            raise UsageError(
                f"{folder} holds no run of {', '.join(names)}",
                f"runs are named by benchmark, for example {suites[0].short}.trec",
            )
        if missing:
            logger.warning(f"{folder} has no run of {', '.join(missing)}: no mean that needs them")
    asked = [suite for suite in suites if suite.name in paths]
    find_parts(asked, ["qrels", "answers"])  # all that is missing, told at once
    results = {}
    for suite in asked:
        result = evaluate_suite(list(paths[suite.name].values()), suite, settings, (), matching)
        named = zip(paths[suite.name], result.runs, strict=True)
        results[suite.name] = replace(
            result, runs=tuple(replace(run, name=name) for name, run in named)
        )
    shown = [*results, *(group.name for group in groups_within(results))] if results else []
    return BenchmarksResult(tuple(called), results, _rows(against, shown))


def run_in_folder(folder: str | Path, suite: Benchmark) -> Path | None:
    """The run of a suite in a folder of runs; None where there is none.

    Raises:
        UsageError: there are several.
    """
    if not Path(folder).is_dir():
        raise UsageError(
            f"{folder}: several benchmarks are asked for, and a run is of one",
            "name folders of runs named by benchmark, or one benchmark",
        )
    stems = dict.fromkeys((suite.short, suite.name.removeprefix("beir/"), suite.name))
    names = (f"{stem}{ending}{gz}" for stem in stems for ending in ENDINGS for gz in ("", ".gz"))
    found = [path for name in names if (path := Path(folder) / name).is_file()]
    if len(found) > 1:
        raise UsageError(
            f"{folder} holds several runs of {suite.name}: {', '.join(p.name for p in found)}",
            "keep one",
        )
    return found[0] if found else None


def _rows(against: Sequence[Paper], names: Sequence[str]) -> tuple[PublishedRow, ...]:
    found: list[PublishedRow] = []
    for paper in dict.fromkeys(against):
        rows = [row for name in names for row in published_rows(paper, name)]
        if not rows:
            logger.info(f"{paper} reports nothing on {', '.join(names)}{_instead(paper, names)}")
        found += rows
    return tuple(found)


def _instead(paper: Paper, names: Sequence[str]) -> str:
    """The suites with the same judgements on another corpus that a paper does report."""
    asked = [
        suite for suite in benchmarks().values() if suite.name in names and suite.qrels is not None
    ]
    others = [
        other.name
        for suite in asked
        for other in benchmarks().values()
        if other.qrels == suite.qrels and paper in other.labels
    ]
    return f"; it does on {', '.join(others)}" if others else ""
