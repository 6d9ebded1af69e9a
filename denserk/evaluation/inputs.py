"""Find out which files on a command line are runs and which is the qrels, by their content."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from denserk.errors import InputError, UsageError
from denserk.io.data_sets import BEIR, IRDS, knows_irds
from denserk.io.files import STREAM, read_text_lines

HOW = (
    "for example: denserk eval run.trec qrels.txt, or denserk eval --run run.trec --qrels qrels.txt"
)


class Content(StrEnum):
    """What a file holds."""

    RUN = "a run"
    QRELS = "qrels"


@dataclass(frozen=True)
class Inputs:
    """The files of an evaluation; "-" is standard input."""

    runs: tuple[str, ...]
    qrels: str


def content_of(name: str) -> Content | None:
    """Return what a file holds, by its first line; None for a pipe, which can be read only once.

    Raises:
        InputError: it holds neither a run nor qrels.
    """
    path = Path(name)
    if name == STREAM or (path.exists() and not path.is_file() and not path.is_dir()):
        return None
    if path.is_dir() or (not path.exists() and _is_collection(name)):
        return Content.QRELS
    number, columns = _first_columns(name)
    if len(columns) >= 6 or (columns and columns[0][0] == "{"):
        return Content.RUN
    if len(columns) == 4:
        return Content.QRELS
    if len(columns) == 3:
        return Content.QRELS if columns[0].lower() == "query-id" else Content.RUN
    raise InputError(
        name,
        number,
        f"{len(columns)} columns" if columns else "nothing",
        "a run (6 columns, or 3) or qrels (4 columns, or BEIR's header query-id ...)",
    )


def _first_columns(name: str) -> tuple[int | None, list[str]]:
    """Return number and columns of the first line that is not blank, a comment only if alone."""
    first: tuple[int | None, list[str]] = (None, [])
    for number, text in read_text_lines(name):
        columns = text.split()
        if columns and columns[0][0] != "#":
            return number, columns
        if columns and not first[1]:
            first = number, columns
    return first


def _is_collection(name: str) -> bool:
    return name.startswith((IRDS, BEIR)) or ("/" in name and knows_irds(name))


def sort_inputs(files: Sequence[str], runs: Sequence[str], qrels: str | None) -> Inputs:
    """Find out which files are runs and which one is the qrels.

    Args:
        files: given without saying what they are, in any order.
        runs: given as runs.
        qrels: given as qrels.

    Raises:
        UsageError: one is missing or given twice, or a file is not what it was given as.
    """
    named = [*files, *runs, *([qrels] if qrels else [])]
    if twice := sorted({name for name in named if named.count(name) > 1}):
        raise UsageError(f"{', '.join(twice)}: given twice", HOW)
    contents = {name: content_of(name) for name in (*files, *runs)}
    swapped = "are --run and --qrels swapped?"
    if wrong := [f"--run {name}" for name in runs if contents[name] is Content.QRELS]:
        raise UsageError(f"{', '.join(wrong)} holds qrels, not a run", swapped)
    is_run = qrels and Path(qrels).is_file() and content_of(qrels) is Content.RUN
    # three columns without a header may be qrels
    if qrels and is_run and len(_first_columns(qrels)[1]) != 3:
        raise UsageError(f"--qrels {qrels} holds a run, not qrels", swapped)
    found = [name for name in files if contents[name] is Content.QRELS]
    pipes = [name for name in files if contents[name] is None]
    if not qrels and not found and len(pipes) == 1 and len(named) > 1:
        found = pipes
    found += [qrels] if qrels else []
    if not found:
        known = [name for name in named if contents[name] is Content.RUN]
        said = f" ({', '.join(known)} {'is a run' if len(known) == 1 else 'are runs'})"
        raise UsageError(f"no qrels file given{said if known else ''}", HOW)
    if len(found) > 1:
        raise UsageError(f"several qrels files given: {', '.join(found)}", HOW)
    found_runs = [name for name in (*files, *runs) if name != found[0]]
    if not found_runs:
        raise UsageError(f"no run given beside the qrels {found[0]}", HOW)
    return Inputs(tuple(found_runs), found[0])


def find_baseline(name: str, runs: Sequence[str]) -> str:
    """Return the run that --baseline names: a file, or one of the runs by its name in tables.

    Raises:
        UsageError: there is no such file, and not exactly one run is called so.
    """
    if name in runs or name == STREAM or Path(name).is_file():
        return name
    shown = short_names(runs) if runs else []
    names = zip(runs, shown, strict=True)
    called = [run for run, short in names if name in (short, Path(run).name)]
    if len(called) == 1:
        return called[0]
    if Path(name).exists():  # a pipe, or a folder, which is refused where it is read
        return name
    raise UsageError(
        f"--baseline {name}: no such file, and {len(called) or 'no'} runs are called so",
        f"the runs are called {', '.join(shown) or 'nothing: name one'}",
    )


def short_names(paths: Sequence[str]) -> list[str]:
    """Return names for runs: the file name without endings, more of the path where two are equal.

    >>> short_names(["out/bm25.trec.gz", "run.tasb.txt", "-"])
    ['bm25', 'run.tasb', 'stdin']
    >>> short_names(["a/run.txt", "b/run.txt"])
    ['a/run', 'b/run']
    """
    endings = (".gz", ".txt", ".tsv", ".trec", ".run", ".jsonl")
    names = []
    for path in paths:
        stem = Path(path)
        while stem.suffix in endings and stem.stem:
            stem = stem.with_suffix("")
        names.append("stdin" if path == STREAM else str(stem))
    for parts in range(1, 1 + max(len(Path(name).parts) for name in names)):
        short = ["/".join(Path(name).parts[-parts:]) for name in names]
        if len(set(short)) == len(short):
            return short
    return list(paths)
