"""Passages and queries between tabs (MS MARCO's collections, DPR's Wikipedia), and rows of CSV.

One record a line. What would break a line (tabs, line ends) is written as a space. Only DPR's
passages are quoted as in a CSV file.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from denserk.errors import InputError
from denserk.formats.detection import columns
from denserk.formats.files import whole_text, write_lines
from denserk.formats.json_records import identifier
from denserk.records import Passage, Query
from denserk.settings.formats import CorpusFormat

Lines = Iterable[tuple[int, str]]

DPR_HEADER = ("id", "text", "title")


def is_dpr_header(line: str) -> bool:
    """Whether a line names the three columns of DPR's passages, in any order."""
    return sorted(line.split("\t")) == sorted(DPR_HEADER)


def read_passages(lines: Lines, form: CorpusFormat, path: str | Path) -> Iterator[Passage]:
    """Passages of a tab-separated file of a known shape.

    Raises:
        InputError: a line has another number of columns, or a broken id.
    """
    if form is CorpusFormat.DPR:
        yield from _read_dpr(lines, path)
        return
    names = ("id", "title", "text") if form is CorpusFormat.MARCO_TITLES else ("id", "text")
    for line, row in lines:
        if not row.strip():
            continue
        parts = row.split("\t")
        if len(parts) != len(names):
            raise _wrong_columns(parts, names, path, line)
        docid = identifier(parts[0], path, line, "passage")
        yield Passage(docid, parts[-1], parts[1] if len(parts) == 3 else "")


def _wrong_columns(
    parts: list[str], names: tuple[str, ...], path: str | Path, line: int
) -> InputError:
    found = f"{columns(len(parts))} between tabs"
    return InputError(path, line, found, f"{len(names)}: {', '.join(names)}")


def _read_dpr(lines: Lines, path: str | Path) -> Iterator[Passage]:
    order: tuple[str, ...] = DPR_HEADER
    first = True
    for line, parts in read_rows(lines, path, "\t", "id, text, title"):
        if first and sorted(parts) == sorted(DPR_HEADER):
            order = tuple(parts)
            first = False
            continue
        first = False
        if len(parts) != len(order):
            raise _wrong_columns(parts, order, path, line)
        named = dict(zip(order, parts, strict=True))
        yield Passage(identifier(named["id"], path, line, "passage"), named["text"], named["title"])


def read_queries(lines: Lines, path: str | Path) -> Iterator[Query]:
    """Queries of an `id <tab> text` file; further tabs belong to the text.

    Raises:
        InputError: a line has no tab, or a broken id.
    """
    for line, row in lines:
        if not row.strip():
            continue
        qid, tab, text = row.partition("\t")
        if not tab:
            raise InputError(path, line, "a line without a tab", "a query id, a tab, the query")
        yield Query(identifier(qid, path, line, "query"), text)


def one_line(text: str) -> str:
    r"""A text with nothing in it that would end a column or a line.

    >>> one_line("a\tb\r\nc")
    'a b c'
    """
    if not any(mark in text for mark in "\t\n\r"):
        return text
    return text.replace("\r\n", " ").replace("\t", " ").replace("\n", " ").replace("\r", " ")


def write_passages(path: str | Path, passages: Iterable[Passage], form: CorpusFormat) -> int:
    """Writes passages with tabs between the columns; returns how many.

    MARCO has no room for a title: it is put before the text, a space between them.
    """
    if form is CorpusFormat.DPR:
        return write_lines(path, map(_dpr_row, passages), _csv_row(DPR_HEADER))
    row = _titled_row if form is CorpusFormat.MARCO_TITLES else _plain_row
    return write_lines(path, map(row, passages))


def _csv_row(columns: Iterable[str]) -> str:
    out = io.StringIO()
    csv.writer(out, delimiter="\t", lineterminator="\n").writerow(columns)
    return out.getvalue()


def _dpr_row(passage: Passage) -> str:
    return _csv_row((passage.docid, one_line(passage.text), one_line(passage.title)))


def _titled_row(passage: Passage) -> str:
    return f"{passage.docid}\t{one_line(passage.title)}\t{one_line(passage.text)}\n"


def _plain_row(passage: Passage) -> str:
    text = f"{passage.title} {passage.text}" if passage.title else passage.text
    return f"{passage.docid}\t{one_line(text)}\n"


def write_queries(path: str | Path, queries: Iterable[Query]) -> int:
    """Writes queries as `id <tab> text`; returns how many."""
    return write_lines(path, (f"{query.qid}\t{one_line(query.text)}\n" for query in queries))


def unquote(field: str) -> str:
    """A column that a CSV writer may have quoted, as it was before.

    >>> unquote('"[""a""]"'), unquote('"half" quoted')
    ('["a"]', '"half" quoted')
    """
    if len(field) < 2 or field[0] != '"' or field[-1] != '"':
        return field
    inner = field[1:-1]
    return field if '"' in inner.replace('""', "") else inner.replace('""', '"')


def quote(field: str) -> str:
    """A column as a CSV reader, and `unquote`, give it back."""
    if not field.startswith('"'):
        return field
    return _csv_row((field,)).rstrip("\n")


def read_rows(
    lines: Iterable[tuple[int, str]], path: str | Path, delimiter: str, expected: str
) -> Iterator[tuple[int, list[str]]]:
    r"""Yields (line number, columns); a quoted one may hold line ends; empty rows are passed over.

    Args:
        lines: numbered lines without their ends.
        path: names the file in errors.
        delimiter: what stands between two columns.
        expected: the columns, for errors.

    Raises:
        InputError: a row is not quoted as CSV.

    >>> list(read_rows([(1, 'a,"b'), (2, '""c"'), (3, ""), (4, "d,e")], "x", ",", "two columns"))
    [(1, ['a', 'b\n"c']), (4, ['d', 'e'])]
    """
    position = [0]

    def rows() -> Iterator[str]:
        for position[0], row in lines:
            yield row + "\n"

    reader = csv.reader(rows(), delimiter=delimiter)
    while True:
        line = position[0] + 1
        try:
            columns = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(
                path, line, f"a row that is not quoted as CSV ({error})", expected
            ) from None
        if any(columns):
            yield line, columns


def write_rows(path: str | Path, rows: Iterable[Sequence[str]]) -> None:
    """Writes rows with commas between their columns; "-" is standard output.

    Raises:
        OutputError: it cannot be written.
    """
    with whole_text(path) as out:
        csv.writer(out, lineterminator="\n").writerows(rows)
