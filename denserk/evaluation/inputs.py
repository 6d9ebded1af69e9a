"""Find out which files on a command line are runs and which is the qrels, by their content."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from denserk.errors import InputError, UsageError
from denserk.io.data_sets import BEIR, IRDS, knows_irds
from denserk.io.files import STREAM, read_text_lines

HOW = (
    "for example: denserk eval run.trec qrels.txt, or denserk eval --run run.trec --qrels qrels.txt"
)


def content_of(name: str) -> Literal["run", "qrels"] | None:
    """Return what a file holds, by its first line; None for a pipe, which can be read only once.

    Raises:
        InputError: it holds neither a run nor qrels.
    """
    path = Path(name)
    if name == STREAM or (path.exists() and not path.is_file() and not path.is_dir()):
        return None
    collection = name.startswith((IRDS, BEIR)) or ("/" in name and knows_irds(name))
    if path.is_dir() or (not path.exists() and collection):
        return "qrels"
    number, columns = _first_columns(name)
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


def sort_inputs(
    files: Sequence[str], runs: Sequence[str], qrels: str | None
) -> tuple[list[str], str]:
    """Return the runs and the qrels.

    Args:
        files: given without saying what they are, in any order.
        runs: given as runs.
        qrels: given as qrels.

    Raises:
        UsageError: one is missing or given twice.
    """
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
