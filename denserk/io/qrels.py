"""Relevance judgments (qrels): files of all formats, Parquet, datasets by name."""

import logging
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import BinaryIO, NamedTuple

from denserk.config.formats import QrelsFormat
from denserk.errors import InputError, UsageError
from denserk.io import (
    clicks,
    column_names,
    data_sets,
    detection,
    files,
    json_objects,
    json_records,
    pool,
    unread_files,
    written_files,
)
from denserk.io.column_names import Column, Table
from denserk.io.detection import GRADE
from denserk.io.file_head import FileHead
from denserk.io.json_records import Fields, list_keys
from denserk.io.short_texts import columns_phrase, unquote_cell
from denserk.io.tables import is_table
from denserk.io.text_files import file_name_hint
from denserk.records import GOLD_IDS, NO_SUBTOPIC, Qrel

logger = logging.getLogger(__name__)

WRITTEN_QRELS = tuple(
    qrels_format for qrels_format in QrelsFormat if qrels_format is not QrelsFormat.CLICKS
)
BEIR_HEADER = ("query-id", "corpus-id", "score")
# what a file of each format holds, for messages
QREL_COLUMNS = {
    QrelsFormat.TREC: "4 columns: query, iteration, passage, relevance",
    QrelsFormat.BEIR: "3 columns: query, passage, relevance",
    QrelsFormat.JSON: "one JSON object: {query: {passage: whole number}}",
    QrelsFormat.CLICKS: clicks.EXPECTED,
}
# what two other formats of JSON hold: lists without grades, and lines or an array of records
LISTED_QRELS = "one JSON object: {query: [relevant passages]}"
QREL_KEYS = (
    "query-id|query_id|qid with corpus-id|corpus_id|docid with score|relevance; or id with "
    f"{GOLD_IDS}"
)
# JSON records of these keys alone are relevant passages (NanoBEIR); the keys of other names may be
# those of a run without scores
UNGRADED_KEYS = {"query-id", "corpus-id"}
# what the columns hold if no header says so
QREL_ORDERS = {
    QrelsFormat.TREC: (Column.QUERY_ID, Column.ITERATION, Column.PASSAGE_ID, Column.GRADE),
    QrelsFormat.BEIR: (Column.QUERY_ID, Column.PASSAGE_ID, Column.GRADE),
}
# by the number of columns
FORMAT_BY_WIDTH = {len(order): qrels_format for qrels_format, order in QREL_ORDERS.items()}
RUN_HINT = "six columns are a run, and qrels are expected: exchange run and qrels if both are given"
QUERIES_HINT = (
    "an id and a text between tabs are queries, and qrels are expected: exchange topics and qrels "
    "if both are given"
)
SUBTOPIC_HINT = (
    "the second column names sub-topics; only measures of sub-topics, such as alpha_nDCG@10, take "
    "a passage that is judged for several"
)


def read_qrels(
    source: str | Path, qrels_format: QrelsFormat | None = None, *, by_subtopic: bool = False
) -> Iterator[Qrel]:
    """Yield the judgments of a source, in its order; lines of a query need not stand together.

    The source is a file; a BEIR folder with one split; "-"; `irds:NAME`; `beir:NAME/SPLIT`;
    Parquet; `hf:NAME/SPLIT`. A `qrels_format` of None is detected by the number of columns. A
    passage has one grade for a query, or with `by_subtopic` one for each sub-topic of it.
    """
    grades: dict[tuple[str, str, str], int] = {}  # by query, passage and sub-topic
    for path, line, qrel in _located_qrels(source, qrels_format):
        subtopic = qrel.subtopic if by_subtopic else NO_SUBTOPIC
        grade = grades.setdefault((qrel.qid, qrel.docid, subtopic), qrel.relevance)
        if grade != qrel.relevance:
            found = (
                f"relevance {qrel.relevance} for query {qrel.qid}, passage {qrel.docid}, "
                f"and {grade} above"
            )
            hint = None if qrel.subtopic == NO_SUBTOPIC else SUBTOPIC_HINT
            raise InputError(path, line, found, "one judgment of a passage", hint)
        yield qrel


LocatedQrel = tuple[str | Path, int | None, Qrel]  # file, line, judgment


def _located_qrels(source: str | Path, qrels_format: QrelsFormat | None) -> Iterator[LocatedQrel]:
    """Return the judgments of a table, a dataset's name, a file or a folder."""
    if is_table(source, "qrels"):
        return _read_qrels_file(source, qrels_format)
    dataset = data_sets.locate(str(source))
    if dataset.irds is not None:
        return _irds_qrels(source, dataset.irds)
    path = dataset.path
    if path.is_dir():
        path = split_file(path, dataset.split)
    return _read_qrels_file(path, qrels_format)


def _irds_qrels(source: str | Path, name: str) -> Iterator[LocatedQrel]:
    """Yield the judgments of a dataset of ir_datasets, which names sub-topics in two ways."""
    for record in data_sets.irds_records(name, "qrels"):
        iteration = getattr(record, "iteration", NO_SUBTOPIC)
        subtopic = getattr(record, "subtopic_id", iteration)
        qrel = _qrel(record.query_id, record.doc_id, int(record.relevance), str(subtopic))
        yield source, None, qrel


def _qrel(qid: str, docid: str, relevance: int, subtopic: str) -> Qrel:
    """Return a judgment; `Q0` in the second column of qrels is no sub-topic."""
    if subtopic == "Q0":
        subtopic = NO_SUBTOPIC
    return Qrel(qid, docid, relevance, subtopic)


def _read_qrels_file(path: str | Path, qrels_format: QrelsFormat | None) -> Iterator[LocatedQrel]:
    """Yield the judgments of one file, whose grades are integers."""
    is_empty = True
    for row in _qrels_rows(path, qrels_format):
        integer = GRADE.fullmatch(row.grade)
        if integer is None:
            raise InputError(path, row.line, f"relevance {row.grade[:40]!r}", "an integer")
        is_empty = False
        yield path, row.line, _qrel(row.qid, row.docid, int(integer[1]), row.subtopic)
    if is_empty:
        raise InputError(path, None, "no judgments", QREL_COLUMNS[qrels_format or QrelsFormat.TREC])


class QrelRow(NamedTuple):
    """A judgment as it stands in a file; the grade is not checked yet."""

    line: int | None
    qid: str
    docid: str
    grade: str
    subtopic: str = NO_SUBTOPIC


def _qrels_rows(path: str | Path, qrels_format: QrelsFormat | None) -> Iterator[QrelRow]:
    """Yield the judgments of one file, of columns or of JSON."""
    with files.open_ahead(path, part="qrels") as (data, handle):
        unread_files.reject_binary(data, path, Table.QRELS)
        head = FileHead(data, Path(path).name)
        if qrels_format is None and detection.has_generated_queries(head):
            raise unread_files.generated_queries_error(path, Table.QRELS)
        if qrels_format is QrelsFormat.CLICKS or detection.has_clicks_header(head):
            yield from _clicked_qrels(path, handle)
        elif pool.is_pool_header(head.cells):
            yield from _pool_rows(files.read_text_lines(path, handle), path)
        elif pool.is_pool_header(head.csv_cells):
            lines = files.read_text_lines(path, handle)
            yield from _pool_rows(lines, path, head.csv_delimiter)
        elif head.record is None:  # no JSON
            lines = files.read_text_lines(path, handle)
            yield from _qrels_columns(lines, path, qrels_format, head)
        elif detection.is_embedding_data(head):
            yield from _embedding_qrels(files.read_all(handle, path), path)
        elif detection.is_object_of_lists(head):
            yield from _listed_qrels(files.read_all(handle, path), path)
        elif qrels_format is QrelsFormat.JSON or detection.is_object_by_query(head):
            yield from _object_qrels(files.read_all(handle, path), path)
        else:  # JSON lines or an array, a judgment a record
            rows = json_records.read_json(handle, head.line.encode(), path)
            yield from _qrels_records(rows, path, qrels_format)


def _pool_rows(lines: files.Lines, path: str | Path, delimiter: str = "\t") -> Iterator[QrelRow]:
    """Yield the judgments of a pool; rows whose grade is not filled in are left out."""
    filled_count = 0
    unfilled_count = 0
    for row in pool.read_judgments(lines, path, delimiter):
        if row.grade:
            filled_count += 1
            yield QrelRow(row.line, row.qid, row.docid, row.grade)
        else:
            unfilled_count += 1
    if not filled_count:
        found = f"{unfilled_count:,} hits to judge, none with a grade"
        raise InputError(path, None, found, "whole numbers in the third column")
    if unfilled_count:
        name = files.display_name(path)
        logger.info(f"{name}: rows without a grade, which are left out: {unfilled_count:,}")


def _clicked_qrels(path: str | Path, handle: BinaryIO) -> Iterator[QrelRow]:
    """Yield the clicked passages of a click log, of which each has grade 1."""
    for qrel in clicks.clicked_qrels(path, handle=handle):
        yield QrelRow(None, qrel.qid, qrel.docid, str(qrel.relevance))


def _object_qrels(data: bytes, path: str | Path) -> Iterator[QrelRow]:
    """Yield the judgments of one object by query and passage."""
    expected = QREL_COLUMNS[QrelsFormat.JSON]
    logger.info(f"{files.display_name(path)}: {QrelsFormat.JSON} qrels ({expected})")
    for qid, grades in json_objects.read_scores(data, path, expected):
        for docid, grade in grades.items():
            if grade != int(grade):
                found = f"the grade {grade} for query {qid}, passage {docid}"
                hint = "numbers with a fraction are the scores of a run"
                raise InputError(path, None, found, expected, hint)
            yield QrelRow(None, qid, docid, str(int(grade)))


def _listed_qrels(data: bytes, path: str | Path) -> Iterator[QrelRow]:
    """Yield the relevant passages of one object by query, which have no grades."""
    logger.info(f"{files.display_name(path)}: {QrelsFormat.JSON} qrels ({LISTED_QRELS})")
    yield from _ungraded(json_objects.read_lists(data, path, LISTED_QRELS))


def _embedding_qrels(data: bytes, path: str | Path) -> Iterator[QrelRow]:
    """Yield the relevant passages of a data set of llama_index, which have no grades."""
    logger.info(f"{files.display_name(path)}: {QrelsFormat.JSON} qrels (relevant_docs)")
    embedding_data = json_objects.load_embedding_data(data, path)
    yield from _ungraded(json_objects.relevant_passages(embedding_data, path))


def _ungraded(queries: Iterable[json_objects.QueryPassages]) -> Iterator[QrelRow]:
    """Yield a judgment with grade 1 for each passage that is listed for a query."""
    for qid, docids in queries:
        for docid in docids:
            yield QrelRow(None, qid, docid, "1")


class _QrelsLayout(NamedTuple):
    """The format of qrels in columns, and what each of their columns holds."""

    format: QrelsFormat
    columns: tuple[Column, ...]
    has_header: bool = False
    is_quoted: bool = False


def _qrels_columns(
    lines: files.Lines, path: str | Path, qrels_format: QrelsFormat | None, head: FileHead
) -> Iterator[QrelRow]:
    """Yield judgments in columns, which a header may name and order."""
    width = len(head.terms)  # of judgments, as far as is known before a header is read
    layout: _QrelsLayout | None = None
    for line, text in lines:
        terms = text.split()
        if not terms or _is_qrels_comment(text, terms, width):
            continue
        if layout is None:
            layout = _qrels_layout(line, text, path, qrels_format, head.data)
            width = len(layout.columns)
            if layout.has_header:
                continue
        files.reject_zero_bytes(text.encode(), path, line)
        yield _qrels_row(line, text, layout, path)


def _is_qrels_comment(text: str, terms: Sequence[str], width: int) -> bool:
    """Return whether a line is a comment of trec_eval 10, no judgment of a query named `#...`.

    `width` is the number of columns of judgments. Three columns of a query named `#` are a judgment
    only between tabs: a comment may end with a number, too. Of four columns, the second is the
    iteration.
    """
    if not terms[0].startswith("#"):
        return False
    has_grade = GRADE.fullmatch(terms[-1]) is not None
    if len(terms) != width or not has_grade:
        return True
    if width == 3:
        are_between_tabs = text.count("\t") == 2
        return terms[0] == "#" and not are_between_tabs
    if width == 4:
        return terms[1] not in ("0", "Q0")
    return True


def _qrels_row(line: int, text: str, layout: _QrelsLayout, path: str | Path) -> QrelRow:
    """Return the judgment of a line with columns."""
    cells = text.split()
    if len(cells) != len(layout.columns):
        count = _count_columns(text)
        hint = file_name_hint(cells)
        if hint is None and count == 6:
            hint = RUN_HINT
        expected = QREL_COLUMNS[layout.format]
        raise InputError(path, line, columns_phrase(count), expected, hint)
    if layout.is_quoted:
        cells = [unquote_cell(cell) for cell in cells]
    values = dict(zip(layout.columns, cells, strict=True))
    return QrelRow(
        line,
        values[Column.QUERY_ID],
        values[Column.PASSAGE_ID],
        values[Column.GRADE],
        values.get(Column.ITERATION, NO_SUBTOPIC),
    )


def _count_columns(text: str) -> int:
    r"""Return the number of columns of a line that is no judgment: between tabs if it has some.

    >>> _count_columns("q1\twhat is a boat made of"), _count_columns("q1 Q0 d1 1 2.5 tag")
    (2, 6)
    """
    line = text.strip()
    return len(line.split("\t")) if "\t" in line else len(line.split())


def _is_query(text: str) -> bool:
    r"""Return whether a line has an id and, behind its only tab, several words without a grade.

    >>> _is_query("q1\ta red boat"), _is_query("q1\td1"), _is_query("q1\t0 d1 1")
    (True, False, False)
    """
    cells = text.strip().split("\t")
    if len(cells) != 2:
        return False
    qid, query = cells
    words = query.split()
    if len(qid.split()) > 1 or len(words) < 2:
        return False
    ends_in_grade = GRADE.fullmatch(words[-1]) is not None
    may_be_judgment = ends_in_grade and len(words) + 1 in FORMAT_BY_WIDTH
    return not may_be_judgment


def _qrels_layout(
    line: int, text: str, path: str | Path, qrels_format: QrelsFormat | None, data: bytes
) -> _QrelsLayout:
    """Return what the columns of qrels hold, by their first line.

    `data` is the beginning of the file, by which an error says what is there in place of qrels.
    """
    terms = text.split()  # a judgment's columns
    if _is_query(text):
        expected = " or ".join(QREL_COLUMNS.values())
        if qrels_format is not None:
            expected = QREL_COLUMNS[qrels_format]
        raise InputError(path, line, columns_phrase(2), expected, QUERIES_HINT)
    cells = column_names.split_columns(text)  # a header's, whose names may have blanks
    header = column_names.recognise_header(cells, Table.QRELS)
    width = len(terms) if header is None else len(header.columns)
    if width not in FORMAT_BY_WIDTH:
        expected = QREL_COLUMNS[QrelsFormat.TREC]
        error = unread_files.unread_file_error(data, path, Table.QRELS, expected)
        if error is not None:
            raise error
    qrels_format = _format_of_width(width, qrels_format, path, line, text)
    if header is not None:
        column_names.log_header(header, path, line)
        return _QrelsLayout(
            qrels_format, header.columns, has_header=True, is_quoted=header.is_quoted
        )
    hint = column_names.header_hint(cells, Table.QRELS)
    if hint and not GRADE.fullmatch(terms[-1]):
        found = f"the columns {column_names.show_cells(cells)}"
        raise InputError(path, line, found, QREL_COLUMNS[qrels_format], hint)
    return _QrelsLayout(qrels_format, QREL_ORDERS[qrels_format])


def _format_of_width(
    width: int, qrels_format: QrelsFormat | None, path: str | Path, line: int, text: str
) -> QrelsFormat:
    """Return the format of qrels by the number of columns of their first line; log a detected one.

    Raises an InputError for another number, or another format than the one that was named.
    """
    format_of_width = FORMAT_BY_WIDTH.get(width)
    if format_of_width is None or qrels_format not in (None, format_of_width):
        expected = " or ".join(QREL_COLUMNS.values())
        if qrels_format is not None:
            expected = QREL_COLUMNS[qrels_format]
        count = _count_columns(text)
        terms = text.split()
        hint = RUN_HINT if count == 6 else column_names.header_hint(terms, Table.QRELS)
        if hint is None and len(terms) == 2:
            hint = unread_files.pairs_hint(path)
        raise InputError(path, line, columns_phrase(count), expected, file_name_hint(terms) or hint)
    if qrels_format is None:
        name = files.display_name(path)
        logger.info(f"{name}: {format_of_width} qrels ({columns_phrase(width)})")
    return format_of_width


def _qrels_records(
    rows: Iterable[json_records.Numbered], path: str | Path, qrels_format: QrelsFormat | None
) -> Iterator[QrelRow]:
    """Yield judgments of JSON records; BEIR's have no sub-topics.

    A query that lists its relevant passages (BRIGHT), and a pair of query and passage without any
    other key (NanoBEIR), have no grades: they count as 1.
    """
    for line, record in rows:
        fields = Fields(record, path, line)
        if GOLD_IDS in fields:
            yield from _gold_passages(fields)
            continue
        filled_keys = (key for key in record if key in fields)  # whose values are not null
        keys = column_names.columns_by_meaning(filled_keys, Table.QRELS)
        is_ungraded = record.keys() == UNGRADED_KEYS
        if not is_ungraded and not column_names.has_required_columns(keys.keys(), Table.QRELS):
            raise fields.error(f"the columns {list_keys(record)}", QREL_KEYS)
        grade = 1 if is_ungraded else record[keys[Column.GRADE]]
        if isinstance(grade, float) and grade.is_integer():
            grade = int(grade)
        subtopic = NO_SUBTOPIC
        if Column.ITERATION in keys and qrels_format is not QrelsFormat.BEIR:
            subtopic = fields.identifier(keys[Column.ITERATION], NO_SUBTOPIC)
        yield QrelRow(
            line,
            json_records.identifier(record[keys[Column.QUERY_ID]], path, line, "query"),
            json_records.identifier(record[keys[Column.PASSAGE_ID]], path, line, "passage"),
            str(grade),
            subtopic,
        )


def _gold_passages(fields: Fields) -> Iterator[QrelRow]:
    """Yield the relevant passages that a query lists, with grade 1."""
    keys = column_names.columns_by_meaning(fields.record, Table.QUERIES)
    qid_key = keys.get(Column.QUERY_ID)
    if qid_key is None or qid_key not in fields:
        raise fields.error(f"{GOLD_IDS} and no id", f"the id of the query beside {GOLD_IDS}")
    qid = fields.identifier(qid_key)
    for docid in fields.identifiers(GOLD_IDS):
        yield QrelRow(fields.line, qid, docid, "1")


def read_qrels_map(source: str | Path) -> dict[str, dict[str, int]]:
    """Read all judgments of a source: query -> passage -> relevance, in its order."""
    return grades_by_query(read_qrels(source))


def grades_by_query(qrels: Iterable[Qrel]) -> dict[str, dict[str, int]]:
    """Return query -> passage -> relevance."""
    grades: dict[str, dict[str, int]] = {}
    for qrel in qrels:
        grades.setdefault(qrel.qid, {})[qrel.docid] = qrel.relevance
    return grades


def split_file(folder: Path, split: str | None) -> Path:
    """Return the qrels of one split of a BEIR folder; without a split, of its only one."""
    qrels_folder = folder / "qrels"
    path_by_split: dict[str, Path] = {}
    for ending in (".tsv", ".tsv.gz"):
        for path in qrels_folder.glob(f"*{ending}"):
            path_by_split.setdefault(path.name.removesuffix(ending), path)
    if split is None and len(path_by_split) == 1:
        (only_path,) = path_by_split.values()
        return only_path
    if split is not None and split in path_by_split:
        return path_by_split[split]
    if not path_by_split:
        raise UsageError(f"{qrels_folder}: no qrels (there: none)")
    usual_splits = [name for name in ("test", "dev", "train") if name in path_by_split]
    splits = [*usual_splits, *sorted(path_by_split.keys() - usual_splits)]
    message = f"{qrels_folder}: several splits (there: {', '.join(splits)})"
    if split:
        message = f"{qrels_folder}: no split {split} (there: {', '.join(splits)})"
    raise UsageError(message, f"name one: {qrels_folder / splits[0]}.tsv")


def write_qrels(path: str | Path, qrels: Iterable[Qrel], qrels_format: QrelsFormat) -> int:
    """Write judgments; return their number.

    Only TREC's format has a place for sub-topics. In the others a passage that is judged for
    several of them has the grade that measures without sub-topics use.
    """
    if qrels_format is QrelsFormat.TREC:
        lines = (f"{qrel.qid} {qrel.subtopic} {qrel.docid} {qrel.relevance}\n" for qrel in qrels)
        return written_files.write_lines(path, lines)
    subtopics: set[str] = set()
    judgments: dict[tuple[str, str], Qrel] = {}  # by query and passage: the last, as in evaluation
    for qrel in qrels:
        subtopics.add(qrel.subtopic)
        judgments[qrel.qid, qrel.docid] = qrel
    if qrels_format is QrelsFormat.JSON:
        with written_files.whole_binary(path) as out:
            out.write(json_records.dump_json(grades_by_query(judgments.values())))
    else:
        written_files.write_lines(
            path, map(_beir_line, judgments.values()), "\t".join(BEIR_HEADER) + "\n"
        )
    _log_subtopics(path, subtopics, qrels_format)
    return len(judgments)


def _beir_line(qrel: Qrel) -> str:
    """Return a judgment as a line of BEIR, without its sub-topic."""
    return f"{qrel.qid}\t{qrel.docid}\t{qrel.relevance}\n"


def _log_subtopics(path: str | Path, subtopics: Set[str], qrels_format: QrelsFormat) -> None:
    """Report sub-topics that a format has no place for."""
    if len(subtopics) > 1:
        logger.info(
            f"{path}: without the iterations or sub-topics, which {qrels_format} qrels do not hold"
        )
