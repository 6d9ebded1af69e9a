"""Which of the files on a command line are runs, and which judgements: told by their content."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from denserk.errors import InputError, UsageError
from denserk.formats.data_sets import BEIR, IRDS, knows_irds
from denserk.formats.files import STREAM, read_text_lines

HOW = (
    "for example: denserk eval run.trec qrels.txt, or denserk eval --run run.trec --qrels qrels.txt"
)


class Content(StrEnum):
    """What a file holds, as a plural."""

    RUN = "a run"
    JUDGEMENTS = "judgements"


@dataclass(frozen=True)
class Inputs:
    """The files of an evaluation, each in its part; "-" is standard input."""

    runs: tuple[str, ...]
    qrels: str


def content_of(name: str) -> Content | None:
    """What a named input holds, by its first line; None where looking would use it up (a pipe).

    Raises:
        UsageError: there is no such file.
        InputError: it holds neither a run nor judgements.
    """
    path = Path(name)
    if name == STREAM or (path.exists() and not path.is_file() and not path.is_dir()):
        return None
    if path.is_dir() or (not path.exists() and _is_collection(name)):
        return Content.JUDGEMENTS
    number, columns = _first_columns(name)
    if len(columns) >= 6 or (columns and columns[0][0] == "{"):
        return Content.RUN
    if len(columns) == 4:
        return Content.JUDGEMENTS
    if len(columns) == 3:
        return Content.JUDGEMENTS if columns[0].lower() == "query-id" else Content.RUN
    raise InputError(
        name,
        number,
        f"{len(columns)} columns" if columns else "nothing",
        "a run (6 columns, or 3) or judgements (4 columns, or BEIR's header query-id ...)",
    )


def _first_columns(name: str) -> tuple[int | None, list[str]]:
    """The columns of the first line that is not blank, and its number; not of a comment, if any."""
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
    """Finds the part of every file.

    Args:
        files: named without saying what they are; any order.
        runs: named as runs.
        qrels: named as judgements.

    Raises:
        UsageError: a part is missing or taken twice, or a file was named as what it is not.
    """
    named = [*files, *runs, *([qrels] if qrels else [])]
    if twice := sorted({name for name in named if named.count(name) > 1}):
        raise UsageError(f"{', '.join(twice)}: named twice", HOW)
    contents = {name: content_of(name) for name in (*files, *runs)}
    _refuse_swapped(runs, qrels, contents)
    judgements = [name for name in files if contents[name] is Content.JUDGEMENTS]
    pipes = [name for name in files if contents[name] is None]
    if not qrels and not judgements and len(pipes) == 1 and len(named) > 1:
        judgements = pipes
    if qrels:
        judgements.append(qrels)
    if len(judgements) != 1:
        among = f"none among {', '.join(named)}" if named else "no file is named"
        raise UsageError(f"one file of judgements is needed: {', '.join(judgements) or among}", HOW)
    found_runs = [name for name in (*files, *runs) if name != judgements[0]]
    if not found_runs:
        raise UsageError(f"a run is needed beside the judgements {judgements[0]}", HOW)
    return Inputs(tuple(found_runs), judgements[0])


def _refuse_swapped(
    runs: Sequence[str], qrels: str | None, contents: dict[str, Content | None]
) -> None:
    wrong = [f"--run {name}" for name in runs if contents[name] is Content.JUDGEMENTS]
    if wrong:
        raise UsageError(
            f"{', '.join(wrong)} holds judgements, not a run", "are --run and --qrels swapped?"
        )
    # three columns without a header may be judgements after all
    is_run = qrels and Path(qrels).is_file() and content_of(qrels) is Content.RUN
    if qrels and is_run and len(_first_columns(qrels)[1]) != 3:
        raise UsageError(
            f"--qrels {qrels} holds a run, not judgements", "are --run and --qrels swapped?"
        )


def find_baseline(name: str, runs: Sequence[str]) -> str:
    """The run that --baseline names: a file, or one of the runs by its name in tables.

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
    """What tables call runs: the file's name without endings; more of the path where two are alike.

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
