"""What `denserk eval` evaluates: which files are runs, which one has qrels, and the baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from denserk.config import evaluation as config
from denserk.config.evaluation import EvalSettings
from denserk.config.formats import Kind
from denserk.errors import InputError, UsageError
from denserk.io.detection import detect_run_or_qrels, may_be_run_or_qrels, possible_kinds
from denserk.io.files import STREAM
from denserk.io.runs import read_run

EXAMPLES = "e.g. denserk eval run.trec qrels.txt, or denserk eval --run run.trec --qrels qrels.txt"
WITHOUT_QRELS = (
    "without judgments, --draw 50 --topics TOPICS --corpus CORPUS --output to-judge.tsv writes "
    "hits to judge"
)


def sort_inputs(files: list[str], runs: Sequence[str], qrels: str | None) -> tuple[list[str], str]:
    """Return the runs and the qrels among `files`, given in any order, `--run` and `--qrels`."""
    inputs = [*files, *runs]
    if qrels:
        inputs.append(qrels)
    repeated_names = sorted({name for name in inputs if inputs.count(name) > 1})
    if repeated_names:
        raise UsageError(f"{', '.join(repeated_names)}: given twice", EXAMPLES)
    contents = {name: detect_run_or_qrels(name) for name in files}
    qrels_files = [name for name in files if contents[name] is Kind.QRELS]
    if qrels:
        qrels_files.append(qrels)
    if not qrels_files and len(inputs) > 1:
        # what is read only once is not looked into: it is the qrels if nothing else is
        qrels_files = [name for name in files if contents[name] is None]
    if len(qrels_files) != 1 and len(inputs) > 1:
        qrels_files = _certain_or_last(files, qrels_files)
    if len(qrels_files) != 1:
        hint = EXAMPLES if qrels_files else f"{EXAMPLES}; {WITHOUT_QRELS}"
        raise UsageError(_wrong_number_of_qrels(qrels_files, contents), hint)
    qrels_file = qrels_files[0]
    run_files = [name for name in (*files, *runs) if name != qrels_file]
    if not run_files:
        raise UsageError(f"no run given beside the qrels {qrels_file}", EXAMPLES)
    return run_files, qrels_file


def _certain_or_last(files: Sequence[str], qrels: Sequence[str]) -> list[str]:
    """Return which of the `files` has qrels, where JSON objects of numbers were taken for some.

    Such an object may be a run, too. It is one beside certain qrels; without any, the last object
    has the qrels.
    """
    objects = [name for name in files if may_be_run_or_qrels(name)]
    certain_qrels = [name for name in qrels if name not in objects]
    return certain_qrels or objects[-1:]


def _wrong_number_of_qrels(qrels: Sequence[str], contents: Mapping[str, Kind | None]) -> str:
    """Return the message: which qrels are given, or what each file was taken for if none is."""
    if qrels:
        return f"several qrels files given: {', '.join(qrels)}"
    if not contents:
        return "no qrels file given"
    taken_for = [_taken_for(name, content) for name, content in contents.items()]
    return f"no qrels file given: {', '.join(taken_for)}"


def _taken_for(name: str, content: Kind | None) -> str:
    """Return what a file was taken for."""
    if content is None:
        return f"{name} is read only once"
    kinds = possible_kinds(name)
    if kinds and kinds.isdisjoint({Kind.RUN, Kind.QRELS}):
        return f"{name} is neither a run nor qrels (it looks like {' or '.join(sorted(kinds))})"
    try:
        next(read_run(name), None)
    except InputError as error:
        return f"{name} is neither a run nor qrels ({error.found})"
    return f"{name} is a run"


def with_baseline(settings: EvalSettings, runs: list[str]) -> tuple[EvalSettings, list[str]]:
    """Return settings whose baseline is one of the returned runs, or `previous`.

    A file that --baseline names is put before the runs; a name in tables becomes that run's file.
    """
    name = settings.baseline
    if name is None or name in runs:
        return settings, runs
    if name == config.PREVIOUS and not Path(name).is_file():
        return settings, runs
    is_file = Path(name).exists() and not Path(name).is_dir()
    if name == STREAM or is_file:
        return settings, [name, *runs]
    return replace(settings, baseline=_run_called(name, runs)), runs


def _run_called(name: str, runs: Sequence[str]) -> str:
    """Return the only run that has a name, in tables or as a file without its folder."""
    from denserk.evaluation.evaluator import short_names

    shown_names = short_names(runs)
    matches = [
        run
        for run, shown_name in zip(runs, shown_names, strict=True)
        if name in (shown_name, Path(run).name)
    ]
    if len(matches) != 1:
        count = len(matches) or "no"
        names = ", ".join(shown_names) or "nothing: name one"
        raise UsageError(
            f"--baseline {name}: no such file, and {count} runs are called so",
            f"the runs are called {names}",
        )
    return matches[0]
