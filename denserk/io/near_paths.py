"""The error of a path that is not there, with the names in its folder that are like it."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from denserk.config.values import near_names
from denserk.errors import UsageError

LIKENESS = 0.7  # of two names, from 0 to 1


def near_paths(path: str | Path) -> list[str]:
    """Return the paths in the folder of an absent one whose names are like its name."""
    absent_path = Path(path)
    names: list[str] = []
    with suppress(OSError):  # no such folder, or one that cannot be read
        names = sorted(neighbour.name for neighbour in absent_path.parent.iterdir())
    names_like_it = near_names(absent_path.name, names, LIKENESS)
    return [os.fspath(absent_path.with_name(name)) for name in names_like_it]


def near_models(model: str, short_names: Iterable[str]) -> list[str]:
    """Return the paths and the short names that are like that of an absent model."""
    return near_paths(model) + near_names(model, short_names, LIKENESS)


def did_you_mean(names: Iterable[str], hint: str | None = None) -> str | None:
    """Return a hint that asks for one of some names, if there are any, before another hint."""
    question = " or ".join(names)
    if not question:
        return hint
    return f"did you mean {question}?" + (f" {hint}" if hint else "")


def no_such_path(path: str | Path, message: str, hint: str | None = None) -> UsageError:
    """Return the error of an absent path; its hint names paths that are like it, if there are."""
    return UsageError(message, did_you_mean(near_paths(path), hint))
