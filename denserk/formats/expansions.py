"""What other models made of passages: JSON lines of `docid`, `queries` and `next`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from denserk.formats.json_fields import Fields
from denserk.formats.json_lines import read_objects, write_objects


class Expansion(NamedTuple):
    """A passage's generated queries, and its generated continuations."""

    docid: str
    queries: tuple[str, ...]
    next: tuple[str, ...]


def read_expansions(path: str | Path) -> Iterator[Expansion]:
    """The expansions of a file, in its order.

    Raises:
        InputError: a line is broken, or has no id.
    """
    for line, record in read_objects(path):
        fields = Fields(record, path, line)
        docid = fields.identifier("docid")
        if not docid:
            raise fields.error("an expansion without `docid`", "the id of its passage")
        yield Expansion(docid, fields.texts("queries"), fields.texts("next"))


def write_expansions(path: str | Path, expansions: Iterable[Expansion]) -> int:
    """Writes expansions, one a line; returns how many. "-" is standard output."""
    return write_objects(path, (expansion._asdict() for expansion in expansions))
