"""Click logs: how often passages were clicked for queries, and the judgments made of them.

A log is a table between tabs, commas or semicolons under a header: query id or query, passage id
or URL, and number of clicks. Rows of one query and passage are added up, so a log is held in
memory.
"""

import hashlib
import logging
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from denserk.errors import InputError
from denserk.io import column_names, delimited, files
from denserk.io.column_names import Column, Header, Table
from denserk.io.json_records import identifier
from denserk.records import Candidate, Qrel, Query, TrainingExample

logger = logging.getLogger(__name__)

EXPECTED = "a header of query or query_id, docid or url, and clicks or count"
COUNT = re.compile(r"([0-9]{1,18})(\.0*)?")
ONE_CLICK = (1,)  # the thresholds of grades by default: a clicked passage has grade 1
TAB = "\t"
ID_DIGITS = 16  # of the hash that is the id of a query


class QueryClicks(NamedTuple):
    """A query, and how often its passages were clicked; without a text where the log has ids."""

    qid: str
    text: str
    counts: Mapping[str, int]


def clicks_header(line: str) -> Header | None:
    """Return the header of a click log, between tabs, commas or semicolons; None for another line.

    >>> clicks_header("query,url,clicks").columns[2]
    <Column.COUNT: 'count'>
    """
    return column_names.recognise_header(line.split(_delimiter(line)), Table.CLICKS)


def is_click_log(source: str, given_format: str | None) -> bool:
    """Return whether a source is a click log: by its format, if that is given, or its header."""
    if given_format is not None:
        return given_format == "clicks"
    path = Path(source)
    if not path.is_file() and not path.is_fifo():
        return False
    with files.open_ahead(source) as (data, _):
        first_line = files.first_line(data).decode("utf-8", "replace")
    return clicks_header(first_line) is not None


def _delimiter(header: str) -> str:
    """Return what stands between the columns of a header: a tab, a comma or a semicolon."""
    if TAB in header:
        return TAB
    return ";" if header.count(";") > header.count(",") else ","


def query_id(text: str) -> str:
    """Return the id of a query that has a text alone: the same in every log.

    >>> query_id("when does the moon rise")
    'qed48fca69c1885b9'
    """
    return f"q{hashlib.sha256(text.encode()).hexdigest()[:ID_DIGITS]}"


def read_clicks(source: str | Path, handle: BinaryIO | None = None) -> Iterator[QueryClicks]:
    """Yield the queries of a click log in the order of their first rows."""
    lines = files.read_text_lines(source, handle)
    first_line, lines = files.first_and_all((line, text) for line, text in lines if text.strip())
    line, text = first_line or (1, "")
    header = clicks_header(text)
    if header is None:
        raise InputError(source, line, f"the columns {text[:60]!r}", EXPECTED)
    column_names.log_header(header, source, line)
    log = _ClickLog(source)
    next(lines)
    for row in _rows(lines, header, _delimiter(text), source):
        log.add(row)
    return log.queries(has_ids=Column.QUERY_ID in header.columns)


class _Row(NamedTuple):
    """A row of a click log."""

    line: int
    qid: str  # empty without a column of ids
    text: str
    docid: str
    clicks: int


def _rows(lines: files.Lines, header: Header, delimiter: str, source: str | Path) -> Iterator[_Row]:
    """Yield the rows under the header of a click log."""
    rows: Iterable[tuple[int, list[str]]]
    is_quoted = header.is_quoted and delimiter == TAB  # CSV is without quotes already
    if delimiter == TAB:
        rows = ((line, text.split(TAB)) for line, text in lines)
    else:
        rows = delimited.read_rows(lines, source, delimiter, EXPECTED)
    for line, cells in rows:
        texts = column_names.cells_under_header(
            header.names, cells, source, line, is_quoted=is_quoted
        )
        values = dict(zip(header.columns, map(str.strip, texts), strict=True))
        whole_number = COUNT.fullmatch(values[Column.COUNT])
        if whole_number is None:
            found = f"the count {values[Column.COUNT][:40]!r}"
            raise InputError(source, line, found, "a whole number of clicks")
        docid = identifier(values[Column.PASSAGE_ID], source, line, "passage")
        yield _Row(
            line=line,
            qid=values.get(Column.QUERY_ID, ""),
            text=values.get(Column.QUERY, ""),
            docid=docid,
            clicks=int(whole_number[1]),
        )


class _ClickLog:
    """Clicks added up by query and passage."""

    def __init__(self, source: str | Path) -> None:
        self._source = source
        # by query id, or by the text of a query without one
        self._counts: dict[str, dict[str, int]] = {}  # clicks of each passage
        self._texts: dict[str, str] = {}
        self._lines: dict[str, int] = {}  # of the first row of each query

    def add(self, row: _Row) -> None:
        """Add a row; rows of a query id have one text."""
        key = row.qid or row.text
        if not key:
            raise InputError(self._source, row.line, "an empty query", "a query or its id")
        self._lines.setdefault(key, row.line)
        text_above = self._texts.setdefault(key, row.text)
        if row.text != text_above:
            found = (
                f"query {row.qid} with the text {row.text[:60]!r}, and {text_above[:60]!r} above"
            )
            raise InputError(self._source, row.line, found, "one text of a query")
        counts = self._counts.setdefault(key, {})
        counts[row.docid] = counts.get(row.docid, 0) + row.clicks

    def queries(self, *, has_ids: bool) -> Iterator[QueryClicks]:
        """Yield the queries; a column `query` without one of ids holds texts, or else ids."""
        keys_are_ids = has_ids or look_like_ids(self._counts.keys())
        for key, counts in self._counts.items():
            if keys_are_ids:
                qid = identifier(key, self._source, self._lines[key], "query")
                text = self._texts[key] if has_ids else ""
            else:
                qid = query_id(key)
                text = key
            yield QueryClicks(qid, text, counts)


def look_like_ids(queries: Collection[str]) -> bool:
    """Return whether a column `query` holds ids: none has a blank, and most have a digit.

    >>> look_like_ids(["q1", "q2"]), look_like_ids(["moon", "月亮什么时候升起"])
    (True, False)
    """
    if any(len(query.split()) > 1 for query in queries):
        return False
    with_digit = [query for query in queries if any(map(str.isdigit, query))]
    return len(with_digit) > len(queries) / 2


def clicked_queries(source: str | Path, handle: BinaryIO | None = None) -> Iterator[Query]:
    """Yield the queries of a click log, which must have their texts."""
    for query in read_clicks(source, handle):
        if not query.text:
            found = f"query {query.qid} without a text"
            expected = "texts in a column `query`; ids beside them, in a column `query_id`"
            raise InputError(source, None, found, expected)
        yield Query(query.qid, query.text)


def clicked_qrels(
    source: str | Path, thresholds: Sequence[int] = ONE_CLICK, handle: BinaryIO | None = None
) -> Iterator[Qrel]:
    """Yield the judgments of a click log: the grade is the number of thresholds that clicks reach.

    Fewer clicks than the first threshold are no judgment; how many there are is reported.
    """
    written = left_out = 0
    for query in read_clicks(source, handle):
        for docid, count in query.counts.items():
            grade = bisect_right(thresholds, count)
            if grade:
                written += 1
                yield Qrel(query.qid, docid, grade)
            else:
                left_out += 1
    _report_left_out(source, written, left_out, thresholds)


def clicked_examples(
    source: str | Path, thresholds: Sequence[int] = ONE_CLICK, handle: BinaryIO | None = None
) -> Iterator[TrainingExample]:
    """Yield the queries of a click log with the passages that reach the first threshold."""
    written = left_out = 0
    for query in read_clicks(source, handle):
        docids = [docid for docid, count in query.counts.items() if count >= thresholds[0]]
        written += len(docids)
        left_out += len(query.counts) - len(docids)
        if docids:
            yield TrainingExample(query.qid, query.text, tuple(map(Candidate, docids)), ())
    _report_left_out(source, written, left_out, thresholds)


def _report_left_out(
    source: str | Path, written: int, left_out: int, thresholds: Sequence[int]
) -> None:
    """Report passages that were clicked too rarely; raise an InputError if all of them were."""
    least = f"{thresholds[0]:,} clicks"
    if not written and not left_out:
        raise InputError(source, None, "no rows", "a query, a passage and its clicks in each")
    if not written:
        raise InputError(source, None, f"no passage with {least}", "one that reaches click-grades")
    if left_out:
        name = files.display_name(source)
        logger.info(f"{name}: left out, below {least}: {left_out:,} passages of queries")
