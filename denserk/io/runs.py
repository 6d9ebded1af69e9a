"""Read and write runs: TREC's six columns, the three of MS MARCO and Tevatron, and JSON.

JSON is lines of hits, one object of scores by query and passage, or the predictions of mteb. Of a
format without scores, and of runs that are read by rank, the score of a hit is its negative rank:
higher is better in every format.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite, nan
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import orjson

from denserk.config.formats import RunFormat
from denserk.errors import InputError, OutputError
from denserk.io import (
    column_names,
    detection,
    file_errors,
    files,
    json_objects,
    run_text,
    scratch_records,
    unread_files,
    written_files,
)
from denserk.io.column_names import Column, Table
from denserk.io.file_head import FileHead, is_comment
from denserk.io.json_records import identifier, list_keys, parse_objects
from denserk.io.run_columns import (
    NO_HITS,
    HitColumns,
    RankedList,
    RankedWords,
    join_hits,
    read_block,
)
from denserk.io.short_texts import columns_phrase, is_number, unquote_cell
from denserk.reporting import track

logger = logging.getLogger(__name__)

BLOCK = 1 << 20  # bytes that are parsed at once
SMALL_BLOCK = 1 << 19  # bytes up to which a line loop is quicker than importing pyarrow
# What a line or a file of each format looks like, in messages.
COLUMNS = {
    RunFormat.TREC: "6 columns: qid Q0 docid rank score tag",
    RunFormat.MSMARCO: "3 columns: qid, docid, rank",
    RunFormat.TEVATRON: "3 columns: qid, docid, score",
    RunFormat.JSONL: "JSON lines with qid, docid, score",
    RunFormat.JSON: "one JSON object: {query: {passage: finite score}}",
    RunFormat.MTEB: "one line of mteb's predictions: subset, split, qid, docid, score",
}
# What the columns hold, by format; a header may order them otherwise.
ORDERS = {
    RunFormat.TREC: (
        Column.QUERY_ID,
        Column.ITERATION,
        Column.PASSAGE_ID,
        Column.RANK,
        Column.SCORE,
        Column.TAG,
    ),
    RunFormat.MSMARCO: (Column.QUERY_ID, Column.PASSAGE_ID, Column.RANK),
    RunFormat.TEVATRON: (Column.QUERY_ID, Column.PASSAGE_ID, Column.SCORE),
}
QRELS_NAMES_HINT = (
    "these are the names of qrels: exchange run and qrels; a run may also have a rank"
)
QRELS_COLUMNS_HINT = (
    "four columns are qrels, and a run is expected: exchange run and qrels if both are given"
)
SCORE_HINT = "--set order=score reads the scores"
TEVATRON_HINT = "if the third column is a score, name the format: tevatron"
RankedHits = Sequence[tuple[str, float]]  # (docid, score), best first
ListsOfQueries = Iterable[tuple[str, RankedHits]]  # (qid, hits)
Results = Iterable[tuple[str, RankedHits | RankedWords]]  # (qid, hits), which may be columns
Hit = tuple[int, str, str, float]  # line number, query, passage, score
RawLines = Iterable[tuple[int, bytes]]  # numbered from 1


class JsonKeys(NamedTuple):
    """The keys of a hit in JSON lines, by default those that denserk writes."""

    qid: str = "qid"
    docid: str = "docid"
    rank: str = "rank"
    score: str = "score"


JSON_FORMATS = (RunFormat.JSONL, RunFormat.JSON, RunFormat.MTEB)
OBJECTS = (RunFormat.JSON, RunFormat.MTEB)  # formats of one JSON object, read whole
WRITTEN_KEYS = JsonKeys()
NEEDED_KEYS = {WRITTEN_KEYS.qid, WRITTEN_KEYS.docid, WRITTEN_KEYS.score}


def read_run(path: str | Path, format: RunFormat | None = None) -> Iterator[RankedList]:
    """Yield the hits of a run query by query, in constant memory."""
    for hits in read_run_hits(path, format):
        yield hits.as_lists()


def read_run_hits(
    path: str | Path, format: RunFormat | None = None
) -> Iterator[RankedList | HitColumns]:
    """Yield the hits of a run like `read_run`, but those of large clean blocks as columns."""
    return _RunFile(path, format).hits_of_queries()


def read_run_scores(
    path: str | Path, format: RunFormat | None = None, *, by_rank: bool = False
) -> dict[str, dict[str, float]]:
    """Read a whole run as query -> passage -> score; lines of a query may be anywhere.

    With `by_rank` a score is the negative rank.
    """
    run: dict[str, dict[str, float]] = {}
    for hits_of_lines in _RunFile(path, format, by_rank).hits_of_consecutive_lines():
        hits = hits_of_lines.as_lists()
        scores = run.setdefault(hits.qid, {})
        for docid, score, line in zip(hits.docids, hits.scores, hits.lines, strict=True):
            if docid in scores:
                raise _repeated_passage(hits.qid, docid, path, line)
            scores[docid] = score
    return run


class RawHit(NamedTuple):
    """A line of a run, as it stands in the file."""

    docid: str
    score: float
    rank: int | None


def read_raw_hits(path: str | Path, qid: str) -> Iterator[RawHit]:
    """Yield the lines of a query in the order of the file, repeated passages included.

    The file is read twice: by score, and by rank where its format has ranks.
    """
    docids: list[str] = []
    scores: list[float] = []
    for hits in _RunFile(path).hits_of_blocks():
        if hits.qid == qid:
            lists = hits.as_lists()
            docids += lists.docids
            scores += lists.scores
    ranks: Sequence[int | None]
    try:
        ranks = _ranks_of_query(path, qid)
    except InputError:  # a format without ranks
        ranks = [None] * len(docids)
    for docid, score, rank in zip(docids, scores, ranks, strict=True):
        yield RawHit(docid, score, rank)


def _ranks_of_query(path: str | Path, qid: str) -> list[int]:
    """Return the ranks of a query's lines, in the order of the file."""
    ranks: list[int] = []
    for hits in _RunFile(path, by_rank=True).hits_of_blocks():
        if hits.qid == qid:
            ranks += [int(-score) for score in hits.as_lists().scores]
    return ranks


def read_run_tag(path: str | Path) -> str | None:
    """Return the tag of a run's last line; None without one, and for a stream or pipe."""
    if not Path(path).is_file():
        return None
    first_cells, lines = files.first_and_all(_cells_of_lines(path))
    if first_cells is None:
        return None
    is_json = first_cells[0].startswith("{")
    if is_json:
        return None
    header = column_names.recognise_header(first_cells, Table.RUN)
    if header is None:
        return _last_cell(lines, ORDERS[RunFormat.TREC].index(Column.TAG))
    tag_column = header.position(Column.TAG)
    if tag_column is None:
        return None
    next(lines)  # the header, which would be the last line of an empty run
    tag = _last_cell(lines, tag_column)
    if tag is not None and header.is_quoted:
        return unquote_cell(tag)
    return tag


def _cells_of_lines(path: str | Path) -> Iterator[list[str]]:
    """Yield the columns of a run's lines that are neither blank nor comments."""
    for _, line in files.read_text_lines(path):
        cells = line.split()
        if cells and not is_comment(cells):
            yield cells


def _last_cell(lines: Iterable[Sequence[str]], column: int) -> str | None:
    """Return what a column holds in the last line that has it; None if no line has."""
    last_cell = None
    for cells in lines:
        if column < len(cells):
            last_cell = cells[column]
    return last_cell


class RunLookup:
    """A run whose queries are read in any order; memory grows with its queries, not its hits.

    The hits are written to `copy`, a record for each query, which several runs may share. `queries`
    are in the order of the file; `format` is None where the run is empty.
    """

    def __init__(
        self,
        path: str | Path,
        copy: scratch_records.ScratchRecords,
        format: RunFormat | None = None,
    ) -> None:
        self.path = path
        self._copy = copy
        self._record_numbers: dict[str, int] = {}  # by query
        self._column_qids: set[str] = set()  # queries whose records are columns; others are JSON
        run = _RunFile(path, format)
        with (
            file_errors.write_errors(copy.path),
            track(f"reading {files.display_name(path)}", None, "queries") as progress,
        ):
            for hits in run.hits_of_queries():
                if isinstance(hits, HitColumns):
                    record = RankedWords(hits.words, hits.scores).packed()
                    self._column_qids.add(hits.qid)
                else:
                    record = orjson.dumps((hits.docids, hits.scores))
                self._record_numbers[hits.qid] = copy.append(record)
                progress.advance()
        self.queries = list(self._record_numbers)
        self.format = run.format if self.queries else None

    def hits(self, qid: str) -> tuple[list[str], list[float]]:
        """Return passages and scores of a query, in the order of the file."""
        number = self._record_numbers.get(qid)
        if number is None:
            return [], []
        columns = self.columns(qid)
        if columns is not None:
            return columns.docids_at(slice(None)), columns.scores.tolist()
        docids, scores = orjson.loads(self._copy[number])
        return docids, scores

    def columns(self, qid: str) -> RankedWords | None:
        """Return the hits of a query, in the order of the file, as columns; None: read `hits`.

        Those of a query that the run lacks are empty.
        """
        number = self._record_numbers.get(qid)
        if number is None:
            return NO_HITS
        if qid not in self._column_qids:
            return None
        return RankedWords.unpacked(self._copy[number])


@dataclass
class _RunFile:
    """A run that is parsed from front to back.

    Three methods build on each other: `hits_of_blocks` parses, `hits_of_consecutive_lines` joins
    the hits of a query over blocks, and `hits_of_queries` also rejects a query that comes again.
    """

    path: str | Path
    format: RunFormat | None = None  # None until it is detected by the first lines
    by_rank: bool = False  # a score is the negative rank
    order: tuple[Column, ...] = ()  # of the columns, from the first lines; empty in JSON
    is_quoted: bool = False  # as the header is: write.table of R quotes every string

    def hits_of_queries(self) -> Iterator[RankedList | HitColumns]:
        """Yield the hits of each query, whose lines must be consecutive."""
        finished_qids: set[str] = set()
        previous_qid = ""
        for hits in self.hits_of_consecutive_lines():
            if hits.qid in finished_qids:
                found = f"query {hits.qid} again after query {previous_qid}"
                expected = "the lines of a query together"
                hint = "sort -s -k1,1 puts them together"
                raise InputError(self.path, hits.lines[0], found, expected, hint)
            finished_qids.add(hits.qid)
            previous_qid = hits.qid
            yield hits

    def hits_of_consecutive_lines(self) -> Iterator[RankedList | HitColumns]:
        """Yield the hits of consecutive lines of one query, each passage once."""
        for _, hits_of_blocks in groupby(self.hits_of_blocks(), attrgetter("qid")):
            hits = join_hits(list(hits_of_blocks))
            self._check_repetitions(hits)
            yield hits

    def _check_repetitions(self, hits: RankedList | HitColumns) -> None:
        """Raise an error for a passage that a query has twice, or a rank where ranks count."""
        row = hits.repeated_row()
        if row is not None:
            (docid,) = hits.docids_at([row])
            raise _repeated_passage(hits.qid, docid, self.path, hits.lines[row])
        # by rank, scores are negative ranks
        if self.by_rank and len(set(hits.scores)) < len(hits.scores):
            found = f"a rank of query {hits.qid} twice"
            expected = "each rank once a query"
            raise InputError(self.path, hits.lines[0], found, expected, SCORE_HINT)

    def hits_of_blocks(self) -> Iterator[RankedList | HitColumns]:
        """Yield the hits of consecutive lines of one query, once for each block that has some."""
        header_lines: int | None = None  # None until a block has more than blank lines
        with files.open_binary(self.path) as handle, file_errors.read_errors(self.path):
            for first_line, block in _numbered_blocks(handle):
                if header_lines is None:
                    header_lines = self._begin(block, first_line)
                    if header_lines is None:
                        continue
                    if self.format in OBJECTS:  # the first block is the whole file
                        block += handle.read()
                    block = _without_lines(block, header_lines)
                    first_line += header_lines
                files.reject_zero_bytes(block, self.path, first_line)
                if self.is_quoted:
                    block = block.replace(b'"', b"")
                hits = self._by_column(block, first_line)
                if hits is None:
                    hits = self._parse(block, first_line)
                yield from hits

    def _begin(self, block: bytes, first_line: int) -> int | None:
        """Decide format and order of the columns by the first block that is not blank.

        Returns the number of lines to the end of the header, 0 without one; None where all lines
        are blank. `first_line` is the number of the block's first line in the file.
        """
        unread_files.reject_binary(block, self.path, Table.RUN)
        files.reject_carriage_returns(block, self.path)
        head = FileHead(block)
        line_in_block, text = head.record_line
        if not text:
            return None
        line = first_line + line_in_block - 1
        is_json = self.format in JSON_FORMATS or files.is_json(text.encode())
        header = None if is_json else self._read_header(text, line)
        if header is not None:
            self._use_header(header, line)
            return line_in_block
        if self.format is None:
            self.format = self._detect(head, line)
        self.order = ORDERS.get(self.format, ())
        if self.by_rank and self.format in OBJECTS:
            raise InputError(self.path, None, "scores without ranks", "ranks", SCORE_HINT)
        return 0

    def _read_header(self, text: str, line: int) -> column_names.Header | None:
        """Return the header that a line is; None if it is a hit.

        A line without numbers that looks like a header, but is none as a whole, is an error.
        """
        cells = column_names.split_columns(text)
        header = column_names.recognise_header(cells, Table.RUN)
        if header is not None:
            column_names.log_header(header, self.path, line)
            return header
        hint = column_names.header_hint(cells, Table.RUN)
        if hint and not any(map(is_number, cells[1:])):
            found = f"the columns {column_names.show_cells(cells)}"
            raise InputError(self.path, line, found, COLUMNS[RunFormat.TREC], hint)
        return None

    def _use_header(self, header: column_names.Header, line: int) -> None:
        """Take the order of the columns from a header, and from its names the format."""
        names = f"the columns {', '.join(header.names)}"
        if column_names.run_or_qrels(header.names) is Table.QRELS:
            raise InputError(self.path, line, names, COLUMNS[RunFormat.TREC], QRELS_NAMES_HINT)
        if self.format is None:
            self.format = _format_of_columns(header.columns)
            logger.info(f"{files.display_name(self.path)}: {self.format} run")
        needs_rank = self.by_rank or self.format is RunFormat.MSMARCO
        needed_column = Column.RANK if needs_rank else Column.SCORE
        if needed_column not in header.columns:
            raise InputError(self.path, line, names, COLUMNS[self.format])
        self.order = header.columns
        self.is_quoted = header.is_quoted

    def _detect(self, head: FileHead, line: int) -> RunFormat:
        """Return the format by the first lines, of which number `line` is the first hit.

        The error of an unknown format names a format that is not read, such as PDF, if it is one.
        """
        run_format = detection.format_of(head, RunFormat)
        if run_format is not None:
            name = files.display_name(self.path)
            logger.info(f"{name}: {run_format} run ({COLUMNS[run_format]})")
            return run_format
        unread_error = unread_files.unread_file_error(
            head.data[: 1 << 16], self.path, Table.RUN, COLUMNS[RunFormat.TREC]
        )
        raise unread_error or self._wrong_columns(line, head.terms)

    def _by_column(self, block: bytes, first_line: int) -> Iterator[RankedList | HitColumns] | None:
        """Read a large block column by column if its lines are clean; else return None.

        With `by_rank` every block is read line by line.
        """
        has_columns = self.format in ORDERS
        if len(block) <= SMALL_BLOCK or self.by_rank or not has_columns:
            return None
        hits = read_block(block, self.order, has_ranks=self.format is RunFormat.MSMARCO)
        return None if hits is None else hits.by_query(first_line)

    def _parse(self, block: bytes, first_line: int) -> Iterator[RankedList]:
        """Parse a block line by line, or the object that it is."""
        if self.format is RunFormat.JSON:
            yield from self._object(block)
            return
        lines = enumerate(block.split(b"\n"), first_line)
        if self.format is RunFormat.JSONL:
            hits = self._records(lines)
        elif self.format is RunFormat.MTEB:
            hits = self._predictions(lines)
        else:
            hits = self._columns(lines)
        for qid, hits_of_query in groupby(hits, itemgetter(1)):
            line_numbers, _, docids, scores = zip(*hits_of_query, strict=True)
            yield RankedList(qid, list(docids), list(scores), line_numbers)

    def _columns(self, lines: RawLines) -> Iterator[Hit]:
        """Yield the hits of lines that are neither blank nor comments."""
        columns = {column: position for position, column in enumerate(self.order)}
        query_column = columns[Column.QUERY_ID]
        passage_column = columns[Column.PASSAGE_ID]
        # where the file has only one of the two, both are its column: `_score` looks at that alone
        rank_column = columns.get(Column.RANK, columns.get(Column.SCORE, -1))
        score_column = columns.get(Column.SCORE, rank_column)
        width = len(self.order)
        ends_with_tag = self.order == ORDERS[RunFormat.TREC]
        for line, text in files.decode_lines(lines, self.path):
            cells = text.split()
            if not cells:
                continue
            if is_comment(cells) and not self._is_hit(text, cells, score_column):
                continue
            if len(cells) != width and not (ends_with_tag and _has_text_after_tag(cells)):
                raise self._wrong_columns(line, cells)
            score = self._score(line, cells[rank_column], cells[score_column])
            yield line, cells[query_column], cells[passage_column], score

    def _is_hit(self, text: str, cells: Sequence[str], score_column: int) -> bool:
        """Return whether a line that begins like a comment is a hit of a query named `#...`.

        Of a query named `#` it is one only between tabs: a comment may end with a number, too.
        """
        if self.format is RunFormat.TREC:
            return False
        if cells[0] == "#" and text.count("\t") != len(self.order) - 1:
            return False
        return len(cells) == len(self.order) and is_number(cells[score_column])

    def _records(self, lines: RawLines) -> Iterator[Hit]:
        """Yield the hits of JSON lines."""
        for line, record in parse_objects(lines, self.path):
            keys = WRITTEN_KEYS if record.keys() >= NEEDED_KEYS else self._keys_of(record, line)
            qid = identifier(record[keys.qid], self.path, line, "query")
            docid = identifier(record[keys.docid], self.path, line, "passage")
            score = self._score(line, str(record.get(keys.rank)), str(record[keys.score]))
            yield line, qid, docid, score

    def _keys_of(self, record: Mapping[str, object], line: int) -> JsonKeys:
        """Return the keys of a record that has other names than denserk writes."""
        keys = column_names.columns_by_meaning(record, Table.RUN)
        is_qrels = column_names.run_or_qrels(record) is Table.QRELS
        needed = {Column.QUERY_ID, Column.PASSAGE_ID, Column.SCORE}
        if is_qrels or not needed <= keys.keys():
            found = f"the keys {list_keys(record)}"
            hint = QRELS_NAMES_HINT if is_qrels else None
            raise InputError(self.path, line, found, COLUMNS[RunFormat.JSONL], hint)
        return JsonKeys(
            qid=keys[Column.QUERY_ID],
            docid=keys[Column.PASSAGE_ID],
            rank=keys.get(Column.RANK, WRITTEN_KEYS.rank),
            score=keys[Column.SCORE],
        )

    def _object(self, data: bytes) -> Iterator[RankedList]:
        """Yield the hits of an object by query; one without hits is left out, as in other formats.

        All of them are of line 1.
        """
        queries = json_objects.read_scores(data, self.path, COLUMNS[RunFormat.JSON])
        for qid, hits in queries:
            if hits:
                scores = [float(score) for score in hits.values()]
                yield RankedList(qid, list(hits), scores, [1] * len(hits))

    def _predictions(self, lines: RawLines) -> Iterator[Hit]:
        """Yield the hits of all subsets and splits, which may share no query."""
        data = b"\n".join(text for _, text in lines)
        try:
            queries = _queries_of_predictions(orjson.loads(data))
        except (ValueError, AttributeError, TypeError) as error:
            found = f"no predictions of retrieval ({error})"
            raise InputError(self.path, None, found, COLUMNS[RunFormat.MTEB]) from None
        keys = [key for key, _ in queries]
        if len(set(keys)) < len(keys):
            raise InputError(self.path, None, "a query in two splits", "each query in one")
        for key, hits in queries:
            qid = identifier(key, self.path, 1, "query")
            for passage, score in hits:
                docid = identifier(passage, self.path, 1, "passage")
                hit = f" of query {qid}, passage {docid}"
                yield 1, qid, docid, self._score(1, "", str(score), hit)

    def _score(self, line: int, rank: str, score: str, hit: str = "") -> float:
        """Return the score of a hit, or its negative rank where ranks count.

        `rank` and `score` are texts, of which one is parsed; `hit` names the hit in a message where
        the line does not.
        """
        if self.by_rank or self.format is RunFormat.MSMARCO:
            if re.fullmatch("[0-9]{1,18}", rank):
                return -float(rank)
            hint = SCORE_HINT if self.by_rank else TEVATRON_HINT
            raise InputError(self.path, line, f"rank {rank[:40]!r}", "a whole number", hint)
        try:
            value = float(score)
        except ValueError:
            value = nan
        if not isfinite(value):
            raise InputError(self.path, line, f"score {score[:40]!r}{hit}", "a finite number")
        return value

    def _wrong_columns(self, line: int, cells: Sequence[str]) -> InputError:
        """Return the error of a line with another number of columns than its file."""
        if self.format is None:
            expected = " or ".join(COLUMNS.values())
        elif self.order == ORDERS[self.format]:
            expected = COLUMNS[self.format]
        else:
            expected = f"{columns_phrase(len(self.order))}: {', '.join(self.order)}"
        hint = column_names.header_hint(cells, Table.RUN)
        if hint is None and len(cells) == 4:
            hint = QRELS_COLUMNS_HINT
        if hint is None and len(cells) == 5:
            hint = detection.FIVE_COLUMNS_HINT
        if hint is None and len(cells) > 6:
            hint = "does an id have a blank? only text after the tag may"
        return InputError(self.path, line, columns_phrase(len(cells)), expected, hint)


def _numbered_blocks(handle: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines, each with the number of its first line, from 1.

    They have no byte-order mark, and no carriage return before a line end.
    """
    first_line = 1
    is_first_block = True
    while block := handle.read(BLOCK) + handle.readline():
        if is_first_block:
            block = block.removeprefix(files.BOM)
            is_first_block = False
        block = block.replace(b"\r\n", b"\n")
        yield first_line, block
        first_line += block.count(b"\n")


def _has_text_after_tag(cells: Sequence[str]) -> bool:
    """Return whether a TREC line of too many columns has more text than its tag.

    A blank within an id would move the score to where the tag stands, or another text to the rank.
    """
    if len(cells) <= len(ORDERS[RunFormat.TREC]):
        return False
    return cells[3].removeprefix("-").isdecimal() and not is_number(cells[5])


def _format_of_columns(columns: Sequence[Column]) -> RunFormat:
    """Return the format whose numbers a header names: score and rank, or one of them."""
    if Column.SCORE not in columns:
        return RunFormat.MSMARCO
    return RunFormat.TREC if Column.RANK in columns else RunFormat.TEVATRON


def _queries_of_predictions(predictions: Any) -> list[tuple[str, Iterable[tuple[str, Any]]]]:
    """Return (qid, hits) of all subsets and splits.

    Raises an AttributeError or a TypeError if an object of JSON is no such predictions.
    """
    predictions.pop("mteb_model_meta", None)
    queries = []
    for subset in predictions.values():
        for split in subset.values():
            for qid, hits in split.items():
                queries.append((qid, hits.items()))
    return queries


def _without_lines(block: bytes, count: int) -> bytes:
    """Return a block without its first lines."""
    lines = block.split(b"\n", count)
    return lines[count] if count < len(lines) else b""


def _repeated_passage(qid: str, docid: str, path: str | Path, line: int) -> InputError:
    """Return the error of a passage that a query has twice, the second time in a line."""
    found = f"passage {docid} twice for query {qid}"
    return InputError(path, line, found, "each passage once a query")


def write_run(
    path: str | Path,
    results: Results,
    format: RunFormat = RunFormat.TREC,
    tag: str = "denserk",
    score_format: str = ".9g",
) -> int:
    """Write a run from the hits of each query, best first; return the number of hits.

    MS MARCO's format takes at most 1000 hits per query. `tag` is the last column of TREC's format,
    and mteb's name of the model. Raises an OutputError if a score is not finite.
    """
    queries = _CheckedHits(results, DEPTHS.get(format))  # counts while they are written
    if format is RunFormat.TREC:  # the only format that takes columns
        blocks = _write_trec(queries, tag, score_format)
    else:
        blocks = WRITERS[format](queries.as_lists(), tag, score_format)
    with written_files.whole_binary(path) as out:
        for text in blocks:
            out.write(text if isinstance(text, bytes) else text.encode())
    if queries.left_out:
        message = f"left out: {queries.left_out:,} hits below rank 1000, the last one of {format}"
        logger.warning(message)
    return queries.count


class _CheckedHits:
    """Results that are written, query by query: cut to a depth, and checked.

    Attributes:
        count: number of hits so far.
        left_out: number of hits below the depth so far.
    """

    def __init__(self, results: Results, depth: int | None) -> None:
        self._results = results
        self._depth = depth
        self.count = 0
        self.left_out = 0

    def __iter__(self) -> Iterator[tuple[str, RankedHits | RankedWords]]:
        for qid, all_hits in self._results:
            hits = all_hits
            if self._depth is not None and len(all_hits) > self._depth:
                hits = _as_list(all_hits)[: self._depth]
            _check_scores(qid, hits)
            self.count += len(hits)
            self.left_out += len(all_hits) - len(hits)
            yield qid, hits

    def as_lists(self) -> Iterator[tuple[str, RankedHits]]:
        """Yield the hits of each query as pairs of passage and score."""
        for qid, hits in self:
            yield qid, _as_list(hits)


def _as_list(hits: RankedHits | RankedWords) -> RankedHits:
    """Return hits as pairs of passage and score."""
    return hits.as_list() if isinstance(hits, RankedWords) else hits


def _check_scores(qid: str, hits: RankedHits | RankedWords) -> None:
    """Raise an OutputError for a score that is not finite."""
    if isinstance(hits, RankedWords) and np.isfinite(hits.scores).all():
        return
    for docid, score in _as_list(hits):
        if not isfinite(score):
            raise OutputError(f"query {qid}: the score of passage {docid} is {score}")


def _write_trec(results: Results, tag: str, score_format: str) -> Iterator[str | bytes]:
    """Yield the lines of each query, of many hits column by column."""
    for qid, hits in results:
        # `trec_lines` fills columns up with zero bytes and drops them all: no text may have one
        has_zero_byte = "\0" in f"{qid}{tag}"
        may_be_columns = score_format == run_text.SCORE_FORMAT and not has_zero_byte
        columns = run_text.as_words(hits) if may_be_columns else None
        if columns is not None:
            yield run_text.trec_lines(qid, columns, tag)
            continue
        lines = [
            f"{qid} Q0 {docid} {rank} {score:{score_format}} {tag}\n"
            for rank, (docid, score) in enumerate(_as_list(hits), start=1)
        ]
        yield "".join(lines)


def _write_msmarco(results: ListsOfQueries, tag: str, score_format: str) -> Iterator[str]:
    for qid, hits in results:
        lines = [f"{qid}\t{docid}\t{rank}\n" for rank, (docid, _) in enumerate(hits, start=1)]
        yield "".join(lines)


def _write_tevatron(results: ListsOfQueries, tag: str, score_format: str) -> Iterator[str]:
    for qid, hits in results:
        lines = [f"{qid}\t{docid}\t{score:{score_format}}\n" for docid, score in hits]
        yield "".join(lines)


def _write_json_lines(results: ListsOfQueries, tag: str, score_format: str) -> Iterator[str]:
    for qid, hits in results:
        query = f'"qid":{_json(qid)}'
        lines = [
            f'{{{query},"docid":{_json(docid)},"rank":{rank},"score":{score:{score_format}}}}\n'
            for rank, (docid, score) in enumerate(hits, start=1)
        ]
        yield "".join(lines)


def _write_object(results: ListsOfQueries, tag: str, score_format: str) -> Iterator[str]:
    yield "{"
    yield from _members(results)
    yield "}\n"


def _write_predictions(results: ListsOfQueries, tag: str, score_format: str) -> Iterator[str]:
    """Yield one JSON object of mteb."""
    model = _json({"model_name": tag, "revision": None})
    yield f'{{"mteb_model_meta":{model},"default":{{"test":{{'
    yield from _members(results)
    yield "}}}\n"


def _members(results: ListsOfQueries) -> Iterator[str]:
    """Yield queries as members of an object, whose scores have a point: pytrec_eval needs floats.

    Readers would also take whole numbers for grades.
    """
    separator = ""
    for qid, hits in results:
        scores = [f"{_json(docid)}:{score:.9}" for docid, score in hits]
        yield f"{separator}{_json(qid)}:{{{','.join(scores)}}}"
        separator = ","


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


# For each format but TREC's a function of results, the tag and the format of scores, which yields
# the text. Not every format has a tag, or scores whose format can be chosen.
WRITERS: Mapping[RunFormat, Callable[[ListsOfQueries, str, str], Iterator[str]]] = {
    RunFormat.MSMARCO: _write_msmarco,
    RunFormat.TEVATRON: _write_tevatron,
    RunFormat.JSONL: _write_json_lines,
    RunFormat.JSON: _write_object,
    RunFormat.MTEB: _write_predictions,
}
# Hits per query that a format takes, where they are limited.
DEPTHS = {RunFormat.MSMARCO: 1000}
