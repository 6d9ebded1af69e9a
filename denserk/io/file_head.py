"""Facts about the beginning of a file, by which the rules of `detection` recognise it."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Any

from denserk.errors import InputError
from denserk.io import delimited, files
from denserk.io.column_names import (
    Column,
    Header,
    Table,
    column_of,
    recognise_header,
    split_columns,
)
from denserk.io.json_records import first_record

FIRST_KEY = re.compile(rb'\s*\{\s*("(?:[^"\\]|\\.)*")\s*:\s*')  # of a JSON object
FIRST_LINES = 100  # by which columns between tabs are recognised
# bytes from which on a head may be the beginning of a longer file: without its byte-order mark
LONGEST_WHOLE = files.HEAD_SIZE - len(files.BOM)


def is_comment(cells: Sequence[str]) -> bool:
    """Return whether a line is a comment of trec_eval 10, not a hit of a query named `#...`.

    >>> is_comment(["#", "a", "comment"]), is_comment(["#1", "Q0", "d1", "1", "2.5", "tag"])
    (True, False)
    """
    return cells[0].startswith("#") and list(cells[1:2]) != ["Q0"]


@dataclass(frozen=True)
class FileHead:
    r"""The first bytes of a file, its name, and facts about them.

    A fact is worked out when a rule asks for it. Columns between tabs are those of the first line
    that is not blank. Terms are those of the first line that is no comment either; of comments
    alone, that is the first one.

    >>> FileHead(b"# a comment\nq1 0 d1 1\n").terms
    ['q1', '0', 'd1', '1']
    """

    data: bytes
    name: str = ""

    @cached_property
    def record(self) -> Mapping[str, Any] | None:
        """The first JSON record; {} if it is not whole in the head, None if this is no JSON."""
        return first_record(self.data)

    @cached_property
    def first_member(self) -> tuple[str, Any] | None:
        """Key and value of the first member of a JSON object; None if the head lacks a part."""
        start = FIRST_KEY.match(self.data)
        if start is None:
            return None
        text = self.data[start.end() :].decode("utf-8", "replace")
        with suppress(ValueError, RecursionError):
            value, _ = json.JSONDecoder().raw_decode(text)
            return str(json.loads(start[1])), value
        return None

    @cached_property
    def fields(self) -> Mapping[str, Any]:
        """The fields of the first JSON record; none if it is not whole in the head, or no JSON."""
        return self.record or {}

    @cached_property
    def keys(self) -> AbstractSet[str]:
        """The keys of the first JSON record."""
        return self.fields.keys()

    def has_values_of(self, *types: type) -> bool:
        """Return whether the first JSON record has values of some types alone, as far as known."""
        return all(isinstance(value, types) for value in self.fields.values())

    @cached_property
    def key_meanings(self) -> AbstractSet[Column | None]:
        """What the keys of the first JSON record are as columns of training data."""
        return {column_of(key, Table.TRAINING) for key in self.keys}

    @cached_property
    def line(self) -> str:
        """The first line that is not blank."""
        return files.first_line(self.data).decode("utf-8", "replace")

    @cached_property
    def cells(self) -> Sequence[str]:
        """The columns of the first line between tabs."""
        return self.line.split("\t")

    @cached_property
    def record_line(self) -> tuple[int, str]:
        """Number and text of the first line that is neither blank nor a comment; (0, "") of none.

        In a head of comments alone it is the first comment: ids may begin like one.
        """
        first_comment = (0, "")
        for number, line in enumerate(BytesIO(self.data), start=1):
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            if not text.strip():
                continue
            if not is_comment(text.split()):
                return number, text
            if first_comment == (0, ""):
                first_comment = number, text
        return first_comment

    @cached_property
    def terms(self) -> Sequence[str]:
        """The columns of the record line between white space."""
        _, text = self.record_line
        return text.split()

    def records(self) -> Iterator[Sequence[str]]:
        """Yield the columns between white space of all lines that are no comments."""
        are_comments_alone = bool(self.terms) and is_comment(self.terms)
        for line in BytesIO(self.data):
            terms = line.decode("utf-8", "replace").split()
            if terms and (are_comments_alone or not is_comment(terms)):
                yield terms

    @cached_property
    def lines(self) -> Sequence[str]:
        """The first whole lines that are not blank; of a line alone, what there is of it."""
        *lines, rest = self.data.split(b"\n", FIRST_LINES)
        may_be_cut = len(lines) == FIRST_LINES or len(self.data) >= LONGEST_WHOLE
        if not may_be_cut or not any(line.strip() for line in lines):
            lines.append(rest)
        return [line.decode("utf-8", "replace") for line in lines if line.strip()]

    @cached_property
    def rows(self) -> Sequence[Sequence[str]]:
        """The columns of the first lines between tabs, without blanks around them."""
        return [[cell.strip() for cell in line.split("\t")] for line in self.lines]

    @cached_property
    def width(self) -> int:
        """The number of columns between tabs, if all rows have the same; otherwise 0."""
        widths = {len(row) for row in self.rows}
        return widths.pop() if len(widths) == 1 else 0

    @cached_property
    def comma_cells(self) -> Sequence[str]:
        """The columns between commas of a first line without tabs; none if it has one alone."""
        return self._cells_between(",")

    @cached_property
    def semicolon_cells(self) -> Sequence[str]:
        """The columns between semicolons, as spreadsheets of some countries write CSV."""
        return self._cells_between(";")

    def _cells_between(self, delimiter: str) -> Sequence[str]:
        """Return the columns of the first row of CSV; none if it has tabs, or one column alone."""
        if "\t" in self.line:
            return []
        rows = delimited.read_rows(enumerate(self.lines, start=1), "", delimiter, "")
        try:
            _, cells = next(rows, (0, []))
        except InputError:
            return []
        return cells if len(cells) > 1 else []

    @cached_property
    def csv_delimiter(self) -> str:
        """The comma or semicolon that divides the first row into more columns."""
        return ";" if len(self.semicolon_cells) > len(self.comma_cells) else ","

    @cached_property
    def csv_cells(self) -> Sequence[str]:
        """The columns between commas or semicolons of a first line without tabs and JSON."""
        if self.record is not None:
            return []
        return [cell.strip() for cell in self._cells_between(self.csv_delimiter)]

    @cached_property
    def is_named_csv(self) -> bool:
        """Whether the file is named .csv, or .csv.gz."""
        return self.name.lower().removesuffix(".gz").endswith(".csv")

    def header(self, table: Table) -> Header | None:
        """Return the header of a table that the file begins with; None without one."""
        if table in (Table.RUN, Table.QRELS):
            _, text = self.record_line
            return recognise_header(split_columns(text), table)
        return recognise_header(self.cells, table)
