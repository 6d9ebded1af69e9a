"""The parts of a suite, on the disk or by name: where each is, or what is missing and its place."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from denserk.errors import DenserkError, InputError, UsageError
from denserk.extras import installed
from denserk.formats.data_sets import BEIR, IRDS, cache_folder
from denserk.settings.suite import Source, Suite

PARTS = ("corpus", "topics", "qrels", "answers")
"""The parts of a suite, by their names in `Suite`."""


class _Missing(Exception):
    """A part that is nowhere, in words."""

    def __init__(self, where: Path, needs_package: bool = False) -> None:
        self.where, self.needs_package = where, needs_package


def _source(suite: Suite, part: str) -> Source:
    source = suite.corpus.source if part == "corpus" else getattr(suite, part)
    assert isinstance(source, Source), f"{suite.name} has no {part}"
    return source


def _find(source: Source) -> str:
    """What a reader is given for a source."""
    places = [cache_folder() / path for path in source.paths]
    if source.name is not None and source.name.startswith(BEIR):
        folder = Path("datasets") / source.paths[0].removeprefix("beir/")
        if any(place.is_dir() for place in (*places, folder)):
            return source.name
        if not source.fetched:
            raise _Missing(places[0])
        if not installed("beir"):
            raise _Missing(places[0], needs_package=True)
        return source.name
    for place in places:
        for found in (place, place.with_name(f"{place.name}.gz")):
            if found.exists():
                return str(found)
    if source.name is None or not source.fetched:
        raise _Missing(places[0])
    if not installed("ir_datasets"):
        raise _Missing(places[0], needs_package=True)
    return source.name


def is_here(suite: Suite, part: str) -> bool:
    """Whether a part of a suite is on this disk, so that reading it fetches nothing."""
    if part != "corpus" and getattr(suite, part) is None:
        return False
    places = [cache_folder() / path for path in _source(suite, part).paths]
    return any(p.exists() or p.with_name(f"{p.name}.gz").exists() for p in places)


def find_parts(suites: Iterable[Suite], parts: Iterable[str] = PARTS) -> dict[str, dict[str, str]]:
    """Where the parts of suites are: a path, or the name under which a package fetches it.

    Args:
        suites: whose parts.
        parts: which of `PARTS`; those that a suite does not have are passed over.

    Returns:
        Suite -> part -> what the readers of `sources` take.

    Raises:
        UsageError: some are not on the disk, and nothing fetches them; all of them are named, each
            with its place.
    """
    found: dict[str, dict[str, str]] = {}
    missing: dict[Path, dict[str, list[str]]] = {}
    packaged = False
    wanted = list(parts)
    for suite in suites:
        for part in wanted:
            if part != "corpus" and getattr(suite, part) is None:
                continue
            try:
                found.setdefault(suite.name, {})[part] = _find(_source(suite, part))
            except _Missing as lack:
                packaged = packaged or lack.needs_package
                missing.setdefault(lack.where, {}).setdefault(suite.name, []).append(part)
    if missing:
        told = ", ".join(f"{place} ({_whose(of)})" for place, of in missing.items())
        hint = "put it there" if len(missing) == 1 else "put them there"
        fetch = ", or pip install 'denserk[benchmarks]', which fetches what is public"
        raise UsageError(f"not on this disk: {told}", hint + fetch * packaged)
    return found


def _whose(parts_of: dict[str, list[str]]) -> str:
    told = []
    for suite, parts in parts_of.items():
        first = ", ".join(parts[:-1])
        told.append(f"{first} and {parts[-1]} of {suite}" if first else f"{parts[-1]} of {suite}")
    return "; ".join(told)


@contextmanager
def where_it_goes(suite: Suite, part: str, source: str) -> Iterator[None]:
    """Says where a copy may be put when a part cannot be fetched (BEIR's readers do it themselves).

    Raises:
        DenserkError: the part could not be read under its name.
    """
    try:
        yield
    except InputError as error:
        if str(error.path) != source.removeprefix(IRDS) or error.__cause__ is None:
            raise  # it was there, and is broken
        place = cache_folder() / _source(suite, part).paths[0]
        raise DenserkError(
            f"{part} of {suite.name}: not at {place}, and ir_datasets could not fetch {source}",
            "put it there; --traceback shows what went wrong",
        ) from error
