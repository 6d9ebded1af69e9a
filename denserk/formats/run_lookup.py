"""A run's hits by query, whatever the order of its queries: lines are read when they are asked for.

Memory grows with the queries and not with their hits: of each is kept where its lines stand.
"""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from denserk.formats.files import (
    BOM,
    LONGEST_LINE,
    STREAM,
    endless_line,
    number_lines,
    open_binary,
    read_chunks,
    write_errors,
)
from denserk.formats.run_lines import again, is_comment, look
from denserk.formats.trec_run import parse_query
from denserk.records import ScoredPassage
from denserk.settings.formats import RunFormat


class _Place(NamedTuple):
    """Where a query's lines stand: bytes from and to, and the number of the first line."""

    start: int
    end: int
    line: int


class RunLookup:
    """A run that is asked query by query.

    Args:
        path: the file; "-" is standard input.
        scratch: a folder for a copy of what can be read only once: standard input, a pipe, gzip.

    Raises:
        UsageError: there is no such file.
        InputError: a query has no id, or its lines do not stand together.
    """

    def __init__(self, path: str | Path, scratch: Path) -> None:
        self.path = path
        self.file = _seekable(path, scratch)
        with self.file.open("rb") as raw:
            self.form, _ = look(number_lines(raw, path), path)
        self._places = dict(self._find(self.form)) if self.form else {}

    @property
    def queries(self) -> list[str]:
        """Query ids, in the order of the file."""
        return list(self._places)

    def hits(self, qid: str) -> list[ScoredPassage]:
        """A query's hits, in the order of the file; none where the run does not have it.

        Raises:
            InputError: a line is broken, or a passage comes twice.
        """
        place = self._places.get(qid)
        if place is None or self.form is None:
            return []
        with self.file.open("rb") as raw:
            raw.seek(place.start)
            lines = raw.read(place.end - place.start).split(b"\n")
        return parse_query(enumerate(lines, start=place.line), self.form, self.path)

    def _find(self, form: RunFormat) -> Iterator[tuple[str, _Place]]:
        """Each query's place."""
        current: str | None = None
        found: set[str] = set()
        offset = start = first = 0
        with self.file.open("rb") as raw:
            lines = iter(partial(raw.readline, LONGEST_LINE), b"")
            for number, line in enumerate(lines, start=1):
                if len(line) == LONGEST_LINE:
                    raise endless_line(self.path, number)
                if number == 1 and line.startswith(BOM):
                    offset = len(BOM)
                    line = line[offset:]
                skipped = not line.strip() or (form is RunFormat.TREC and is_comment(line))
                qid = current if skipped else self._query(number, line, form)
                if qid != current and qid is not None:
                    if qid in found:
                        raise again(qid, current, self.path, number)
                    if current is not None:
                        yield current, _Place(start, offset, first)
                    found.add(qid)
                    current, start, first = qid, offset, number
                offset += len(line)
        if current is not None:
            yield current, _Place(start, offset, first)

    def _query(self, number: int, line: bytes, form: RunFormat) -> str:
        """The query id of one line."""
        if form is not RunFormat.JSONL:
            with suppress(UnicodeDecodeError, IndexError):  # the parser says what is wrong
                return line.decode().split(None, 1)[0]  # columns end where the parser ends them
        return parse_query([(number, line)], form, self.path)[0].qid


def _seekable(path: str | Path, scratch: Path) -> Path:
    """The file, or a plain copy of it where it cannot be read twice or not from the middle."""
    with open_binary(path) as raw:
        source = Path(path)
        if str(path) != STREAM and source.suffix != ".gz" and source.is_file():
            return source
        with write_errors(scratch), tempfile.NamedTemporaryFile(dir=scratch, delete=False) as out:
            out.writelines(read_chunks(raw, path))
    return Path(out.name)
