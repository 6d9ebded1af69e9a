"""What other models made of passages: JSON lines of `docid`, `queries` and `next`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from denserk.errors import InputError
from denserk.formats.json_records import Fields, read_objects, write_objects
from denserk.records import Passage


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


def append_queries(passages: Iterable[Passage], path: str | Path) -> Iterator[Passage]:
    """Passages with their generated queries behind their text, all with spaces between.

    Nogueira and Lin, "From doc2query to docTTTTTquery" (2019): what BM25 then indexes.

    Args:
        passages: in the order of their corpus.
        path: expansions in the same order; those of some passages may be missing.

    Raises:
        InputError: an expansion does not belong to a passage that is still to come.
    """
    expansions = read_expansions(path)
    coming = next(expansions, None)
    for passage in passages:
        if coming is None or coming.docid != passage.docid:
            yield passage
            continue
        text = " ".join(part for part in (passage.text, *coming.queries) if part)
        yield passage._replace(text=text)
        coming = next(expansions, None)
    if coming is not None:
        raise InputError(
            path,
            None,
            f"an expansion of {coming.docid}, which the corpus does not have there",
            "expansions in the order of the corpus",
            "expand this very corpus",
        )
