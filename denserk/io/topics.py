"""Queries (topics): files of all formats, Parquet, datasets by name.

Lists of answers that are written as Python literals are parsed as literals, never run.
"""

import ast
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from denserk.config.formats import READ_ONLY_TOPICS, TopicsFormat
from denserk.errors import InputError, MismatchError, UsageError
from denserk.io import (
    clicks,
    column_names,
    data_sets,
    delimited,
    detection,
    files,
    json_objects,
    json_records,
    trec_topics,
    unread_files,
    written_files,
)
from denserk.io.blocks import texts_sha256
from denserk.io.column_names import QUERY_IDS, Column, Header, Table, plain_name
from denserk.io.detection import RUN_AND_QRELS, TOPICS_KEYS, is_answer_list, is_relation_file
from denserk.io.file_head import FileHead
from denserk.io.json_records import RecordKeys
from denserk.io.qrels import read_qrels_map, split_file
from denserk.io.short_texts import columns_phrase, one_line, quote_cell, unquote_cell
from denserk.io.tables import is_table
from denserk.records import NO_FIELDS, Query

logger = logging.getLogger(__name__)

# the keys of id and text in the JSON formats that are written
WRITTEN_KEYS = {
    TopicsFormat.ANSERINI: ("qid", "title"),
    TopicsFormat.BEIR: ("_id", "text"),
    TopicsFormat.TEVATRON: ("query_id", "query"),
    TopicsFormat.QA: ("id", "question"),
}
ID_NAMES = {"id", *QUERY_IDS.split()}  # of ids alone: a `topic` or a `number` may be a text
# the formats of `write_queries`
WRITTEN = tuple(
    topics_format for topics_format in TopicsFormat if topics_format not in READ_ONLY_TOPICS
)


def read_queries(
    source: str,
    topics_format: TopicsFormat | None = None,
    qrels: str | None = None,
    fields: Sequence[str] | None = None,
) -> Iterator[Query]:
    """Yield the queries of a source, in its order, each id once; reject one without any.

    The source is a file; a folder (of BEIR: its queries.jsonl; else EntityQuestions); "-";
    `irds:NAME`; `beir:NAME`; `beir:NAME/SPLIT` (the judged queries of the split); Parquet;
    `hf:NAME`. Only queries that `qrels` judge are kept: BEIR's queries.jsonl holds all splits.
    `fields` name what the texts are made of, such as title and description of TREC topics.
    """
    queries = _at_least_one(_distinct_queries(source, topics_format, fields=fields), source)
    if qrels is None:
        yield from queries
    else:
        yield from _judged_queries(queries, source, qrels)


def _at_least_one(queries: Iterable[Query], source: str) -> Iterator[Query]:
    """Yield queries; raise an InputError if there are none."""
    is_empty = True
    for query in queries:
        is_empty = False
        yield query
    if is_empty:
        raise InputError(source, None, "no queries", "at least one")


def _judged_queries(queries: Iterable[Query], source: str, qrels: str) -> Iterator[Query]:
    """Yield the queries that `qrels` judge, log their number, and reject qrels of other queries."""
    judgments = read_qrels_map(qrels)
    first_qid = ""
    query_count = judged_count = 0
    for query in queries:
        first_qid = first_qid or query.qid
        query_count += 1
        if query.qid in judgments:
            judged_count += 1
            yield query
    if not judged_count:
        message = (
            f"{qrels} judges queries such as {next(iter(judgments))}, and none of the "
            f"{query_count:,} queries of {source}, such as {first_qid}"
        )
        raise MismatchError(message, "name the qrels of these queries")
    name = files.display_name(source)
    message = f"{name}: {judged_count:,} of {query_count:,} queries are judged in {qrels}"
    if len(judgments) > judged_count:
        message += f", which judges {len(judgments) - judged_count:,} more"
    logger.info(message)


def read_questions(source: str) -> Iterator[Query]:
    """Yield questions with their answers; reject a source without any answer.

    The text of a question is empty if a file has ids and answers alone.
    """
    has_answers = False
    for query in _distinct_queries(source, None, answers_only=True):
        has_answers = has_answers or bool(query.answers)
        yield query
    if not has_answers:
        raise InputError(source, None, "no answers", "questions with `answers`")


def _distinct_queries(
    source: str,
    topics_format: TopicsFormat | None,
    *,
    answers_only: bool = False,
    fields: Sequence[str] | None = None,
) -> Iterator[Query]:
    """Yield the queries of a source, of the text of `fields`; reject an id that occurs twice."""
    read_file = partial(
        read_topics_file,
        topics_format=topics_format,
        answers_only=answers_only,
        needs_query=not fields,
    )
    qids: set[str] = set()
    for query in _queries_of_source(source, read_file):
        if fields:
            query = trec_topics.query_of_fields(query, fields, source)
        if query.qid in qids:
            raise InputError(source, None, f"the query id {query.qid} twice", "each id once")
        qids.add(query.qid)
        yield query


def _queries_of_source(source: str, read_file: Callable[..., Iterator[Query]]) -> Iterator[Query]:
    """Return the queries of a table, a dataset's name, a file or a folder.

    `read_file` reads a file of any format, or a table, which is opened as lines of JSON.
    """
    if is_table(source, "queries"):
        return read_file(source)
    dataset = data_sets.locate(source)
    if dataset.irds is not None:
        return iter(data_sets.irds_queries(dataset.irds))
    if not dataset.path.is_dir():
        return read_file(dataset.path)
    beir_file = data_sets.plain_or_packed(dataset.path, "queries.jsonl")
    if beir_file is None:
        return _queries_of_relations(dataset.path)
    queries = read_file(beir_file)
    if not dataset.split:
        return queries
    judged = read_qrels_map(split_file(dataset.path, dataset.split))
    return (query for query in queries if query.qid in judged)


def _queries_of_relations(folder: Path) -> Iterator[Query]:
    """Return the queries of a folder of EntityQuestions, which has a file for each relation."""
    paths = sorted(path for path in folder.iterdir() if is_relation_file(path))
    if not paths:
        hint = "queries.jsonl, or P17.test.json and its like"
        raise UsageError(f"{folder} holds no queries", hint)
    logger.info(f"{folder.name}: entity-questions queries ({len(paths)} relations)")
    topics_format = TopicsFormat.ENTITY_QUESTIONS
    return chain.from_iterable(read_topics_file(path, topics_format) for path in paths)


def read_topics_file(
    path: str | Path,
    topics_format: TopicsFormat | None = None,
    *,
    answers_only: bool = False,
    needs_query: bool = True,
) -> Iterator[Query]:
    """Yield the queries of one file, in its order; none of an empty one.

    With `answers_only`, answers are all that is needed: JSON records may lack the question, and two
    columns are question and answers. Unless it `needs_query`, a TREC topic may have other fields
    alone.
    """
    with files.open_ahead(path, part="queries") as (data, handle):
        head = FileHead(data, Path(path).name)
        if not head.line:
            return
        file = _TopicsFile(path, head, handle, topics_format, answers_only, needs_query)
        detected_format, rows = file.rows()
        # the keys of the first record decide
        keys_by_format: Mapping[TopicsFormat, RecordKeys] = TOPICS_KEYS
        if detected_format is not None:
            keys_by_format = {detected_format: TOPICS_KEYS[detected_format]}
        if answers_only and detected_format is not TopicsFormat.TSV:
            # a record may lack the question; columns of TSV have a `text`, which may be empty
            rows = ((line, {"question": "", **record}) for line, record in rows)
        first_row, rows = files.first_and_all(iter(rows))
        if detected_format in (None, TopicsFormat.QA) and first_row is not None:
            _, first_record = first_row
            keys_by_format = _with_spelling_of_ids(keys_by_format, first_record)
        topics_format, records = json_records.read_records(
            rows, keys_by_format, topics_format, path, Table.QUERIES
        )
        relation = Path(path).name.partition(".")[0]  # P17 of P17.test.json
        for line, qid, text, _, extra in records:  # queries have no title
            answers = _take_answers(extra, path, line)
            if topics_format is TopicsFormat.ENTITY_QUESTIONS:  # its ids count within a file
                qid = f"{relation}-{qid}"
                extra = {**extra, "relation": relation}
            yield Query(qid, text, answers, extra or NO_FIELDS)


def _with_spelling_of_ids(
    keys_by_format: Mapping[TopicsFormat, RecordKeys], record: Mapping[str, Any]
) -> Mapping[TopicsFormat, RecordKeys]:
    """Return keys with the one under which a record has its id, such as `question_id`.

    They stay as they are if a format knows an id of the record.
    """
    used_keys = json_records.first_used_keys(keys_by_format, record)
    if used_keys is not None and used_keys.id is not None:
        return keys_by_format
    id_key = column_names.columns_by_meaning(record, Table.QUERIES).get(Column.QUERY_ID)
    if id_key is None or plain_name(id_key) not in ID_NAMES:
        return keys_by_format
    return {
        topics_format: keys._replace(ids=(*keys.ids, id_key))
        for topics_format, keys in keys_by_format.items()
    }


class _Rows(NamedTuple):
    """Records of queries, and their format; None if the keys of the first record decide it."""

    format: TopicsFormat | None
    records: Iterable[json_records.Row]


class _TopicsFile(NamedTuple):
    """A file of queries that is open, its beginning, and its format if that is given."""

    path: str | Path
    head: FileHead
    handle: BinaryIO
    format: TopicsFormat | None
    answers_only: bool
    needs_query: bool

    def rows(self) -> _Rows:
        """Return the records of the file, of whichever format it is."""
        if self.format is None and detection.has_generated_queries(self.head):
            raise unread_files.generated_queries_error(self.path, Table.QUERIES)
        if self._is_of(TopicsFormat.TREC, detection.is_trec_topics):
            return self._trec_rows()
        if self._is_of(TopicsFormat.CLICKS, detection.has_clicks_header):
            return self._click_rows()
        if self._has_columns:
            return self._column_rows()
        return self._json_rows()

    def _is_of(self, topics_format: TopicsFormat, rule: Callable[[FileHead], bool]) -> bool:
        """Return whether the file is of a format: the given one, or else one by its rule."""
        if self.format is None:
            return rule(self.head)
        return self.format is topics_format

    def _click_rows(self) -> _Rows:
        """Return the records of the queries of a click log."""
        queries = clicks.clicked_queries(self.path, self.handle)
        rows = ((None, {"id": query.qid, "text": query.text}) for query in queries)
        return _Rows(TopicsFormat.CLICKS, rows)

    def _trec_rows(self) -> _Rows:
        """Return the records of TREC topics with tags."""
        data = files.read_all(self.handle, self.path)
        rows = trec_topics.read_topics(data, self.path, needs_query=self.needs_query)
        return _Rows(TopicsFormat.TREC, rows)

    @property
    def _has_columns(self) -> bool:
        """Whether the file has columns between tabs; otherwise it is JSON."""
        if self.format is None:
            return self.head.record is None
        return self.format in COLUMNS

    def _json_rows(self) -> _Rows:
        """Return the records of JSON lines, of an array, or of an object by query id."""
        if self.format is TopicsFormat.JSON or self._is_object:
            return self._object_rows()
        rows = json_records.read_json(self.handle, self.head.line.encode(), self.path)
        if self.format is not None:
            return _Rows(None, rows)
        if detection.is_relation(self.head):
            return _Rows(TopicsFormat.ENTITY_QUESTIONS, rows)
        if detection.has_question_beside_title(self.head):
            return _Rows(TopicsFormat.QA, rows)
        return _Rows(None, rows)

    @property
    def _is_object(self) -> bool:
        """Whether the file is one object by query id, or a data set of llama_index."""
        # a named format says whether it is an object, but QA may be lines or an object
        if self.format not in (None, TopicsFormat.QA):
            return False
        return (
            detection.is_embedding_data(self.head)
            or detection.is_object_of_records(self.head)
            or detection.has_texts_by_id(self.head)
            or detection.is_cut_object(self.head)
        )

    def _object_rows(self) -> _Rows:
        """Return the records of one object by query id, of which the first decides the format."""
        data = files.read_all(self.handle, self.path)
        if detection.is_embedding_data(self.head):
            rows = json_objects.read_embedding_queries(data, self.path)
            return _Rows(self.format or TopicsFormat.JSON, rows)
        first_row, rows = files.first_and_all(json_objects.read_texts(data, self.path, "query"))
        if self.format is not None or first_row is None:
            return _Rows(self.format or TopicsFormat.JSON, rows)
        _, first_record = first_row
        if "question" in first_record:
            return _Rows(TopicsFormat.QA, rows)
        return _Rows(TopicsFormat.JSON, rows)

    def _column_rows(self) -> _Rows:
        """Return the records of lines with columns, by their header if there is one."""
        unread_files.reject_binary(self.head.data, self.path, Table.QUERIES)
        if self.format is None and detection.is_csv_of_queries(self.head):
            return self._csv_rows()
        numbered = files.read_text_lines(self.path, self.handle)
        numbered_line, lines = files.first_and_all(
            (line, text) for line, text in numbered if text.strip()
        )
        if numbered_line is None:
            return _Rows(TopicsFormat.TSV, ())
        line, text = numbered_line
        header = column_names.read_header(text.split("\t"), Table.QUERIES, self.path, line)
        if header is None:
            topics_format = self.format or self._format_without_header()
            return _Rows(topics_format, COLUMNS[topics_format](lines, self.path))
        next(lines)  # the header
        topics_format = self.format or _format_of_header(header.columns)
        self._require_columns(topics_format, header.columns, header.names, line)
        return _Rows(topics_format, _header_rows(lines, header, topics_format, self.path))

    def _csv_rows(self) -> _Rows:
        """Return the rows of CSV as records; its header may have columns with other names."""
        name_by_column = column_names.columns_by_meaning(self.head.csv_cells, Table.QUERIES)
        topics_format = _format_of_header(name_by_column)
        self._require_columns(topics_format, name_by_column, self.head.csv_cells, 1)
        lines = files.read_text_lines(self.path, self.handle)
        rows = delimited.read_table(lines, self.path, self.head.csv_delimiter)
        return _Rows(topics_format, _csv_records(rows, name_by_column, topics_format, self.path))

    def _require_columns(
        self,
        topics_format: TopicsFormat,
        columns: Iterable[Column],
        names: Sequence[str],
        line: int,
    ) -> None:
        """Raise an InputError for a header of `names` whose columns lack what the format needs."""
        required = {Column.ANSWERS if topics_format is TopicsFormat.DPR else Column.QUERY_ID}
        if not self.answers_only:
            required.add(Column.QUERY)
        if not required <= set(columns):
            found = f"the columns {column_names.show_cells(names)}"
            expected = f"columns of {' and '.join(sorted(required))}"
            hint = f"name them in the first line: {column_names.EXAMPLE_HEADERS[Table.QUERIES]}"
            raise InputError(self.path, line, found, expected, hint)

    def _format_without_header(self) -> TopicsFormat:
        """Return the format of columns without a header, by the first line."""
        if self.answers_only and detection.has_two_cells(self.head):
            return TopicsFormat.DPR
        topics_format = detection.format_of(self.head, TopicsFormat)
        if topics_format is not None:
            return topics_format
        expected = "id and text, or question and answers"
        error = unread_files.unread_file_error(
            self.head.data, self.path, Table.QUERIES, expected, line=1
        )
        if error is not None:
            raise error
        found = f"a line without a tab: {self.head.line[:60]!r}"
        hint = unread_files.numbering_hint(self.path, Table.QUERIES, self.head.lines)
        rule = detection.recognise(self.head)
        if rule is not None and RUN_AND_QRELS.issuperset(rule.formats):
            kinds = " or ".join(sorted(rule.formats))
            hint = (
                f"{rule.looks_like}: {kinds}? exchange topics and qrels if both are given; {hint}"
            )
        raise InputError(self.path, 1, found, expected, hint)


def _format_of_header(columns: Iterable[Column]) -> TopicsFormat:
    """Return the format of columns under a header: DPR's have answers in place of ids."""
    available = set(columns)
    if Column.ANSWERS in available and Column.QUERY_ID not in available:
        return TopicsFormat.DPR
    return TopicsFormat.TSV


def _take_answers(extra: dict[str, Any], path: str | Path, line: int | None) -> tuple[str, ...]:
    """Remove the answers from the further fields of a record and return them."""
    key = "answers" if "answers" in extra else "answer"
    answers = extra.pop(key, [])
    if isinstance(answers, str):
        answers = [answers]
    if isinstance(answers, dict) and "text" in answers:  # beside their positions, as in SQuAD
        answers = answers["text"]
    if not _is_list_of_strings(answers):
        raise InputError(path, line, f"{key} {str(answers)[:60]}", "a list of strings")
    return tuple(answers)


def _is_list_of_strings(value: Any) -> bool:
    """Return whether a value is a list of strings alone; an empty one is."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _header_rows(
    lines: files.Lines, header: Header, topics_format: TopicsFormat, path: str | Path
) -> Iterator[json_records.Numbered]:
    """Yield the lines under a header as records; its names decide what a column holds.

    Further tabs belong to the text if it is the last column.
    """
    key_by_column = _record_keys(topics_format)
    text_key = key_by_column[Column.QUERY]
    keys = [
        key_by_column.get(column, name)
        for column, name in zip(header.columns, header.names, strict=True)
    ]
    text_is_last = header.columns[-1] is Column.QUERY
    most_splits = len(keys) - 1 if text_is_last else -1  # -1: at all tabs
    for line, row in lines:
        cells = row.split("\t", most_splits)
        if len(cells) != len(keys):
            found = f"{columns_phrase(len(cells))} between tabs"
            raise InputError(path, line, found, f"{len(keys)}: {', '.join(header.names)}")
        if header.is_quoted:
            cells = [unquote_cell(cell) for cell in cells]
        record: dict[str, Any] = {text_key: "", **dict(zip(keys, cells, strict=True))}
        _parse_record_answers(record, path, line)
        yield line, record


def _record_keys(topics_format: TopicsFormat) -> dict[Column, str]:
    """Return the keys of the records that columns become: those of the format in `TOPICS_KEYS`."""
    text_key = "question" if topics_format is TopicsFormat.DPR else "text"
    return {Column.QUERY_ID: "id", Column.QUERY: text_key, Column.ANSWERS: "answers"}


def _csv_records(
    rows: Iterable[tuple[int, dict[str, str]]],
    name_by_column: Mapping[Column, str],
    topics_format: TopicsFormat,
    path: str | Path,
) -> Iterator[json_records.Numbered]:
    """Yield rows of CSV as records of a format; other columns keep their names."""
    key_by_column = _record_keys(topics_format)
    text_key = key_by_column[Column.QUERY]
    key_by_name = {
        name: key_by_column[column]
        for column, name in name_by_column.items()
        if column in key_by_column
    }
    for line, row in rows:
        record: dict[str, Any] = {text_key: ""}
        for name, value in row.items():
            record[key_by_name.get(name, name)] = value
        _parse_record_answers(record, path, line)
        yield line, record


def _parse_record_answers(record: dict[str, Any], path: str | Path, line: int) -> None:
    """Replace the answers of a record by their list, if they are written as one."""
    answers = record.get("answers", "")
    if is_answer_list(answers):
        record["answers"] = _parse_answers(answers, path, line)


def _tsv_rows(lines: files.Lines, path: str | Path) -> Iterator[json_records.Numbered]:
    """Yield `id <tab> text` lines as records; further tabs belong to the text."""
    for line, row in lines:
        qid, tab, text = row.partition("\t")
        if not tab:
            raise InputError(path, line, "a line without a tab", "a query id, a tab, the query")
        yield line, {"id": qid, "text": text}


def _colon_rows(lines: files.Lines, path: str | Path) -> Iterator[json_records.Numbered]:
    """Yield `id:text` lines as records; further colons belong to the text."""
    for line, row in lines:
        qid, colon, text = row.strip().partition(":")
        if not colon:
            raise InputError(path, line, "a line without a colon", "a query id, a colon, the query")
        yield line, {"id": qid, "text": text.strip()}


def _dpr_rows(lines: files.Lines, path: str | Path) -> Iterator[json_records.Numbered]:
    """Yield `question <tab> list of answers` lines as records."""
    for line, row in lines:
        cells = row.split("\t")
        if len(cells) != 2:
            found = f"{columns_phrase(len(cells))} between tabs"
            raise InputError(path, line, found, "2: question, list of answers")
        question, answer_list = cells
        answers = _parse_answers(answer_list, path, line)
        yield line, {"question": unquote_cell(question), "answers": answers}


def _parse_answers(cell: str, path: str | Path, line: int) -> list[str]:
    """Return the answers of a cell that is a list as a Python literal."""
    answers: Any = None
    literal_errors = (ValueError, SyntaxError, MemoryError, RecursionError, TypeError)
    with warnings.catch_warnings(), suppress(*literal_errors):
        warnings.simplefilter("ignore")  # "\d" in a pattern is what its author meant
        answers = ast.literal_eval(unquote_cell(cell.strip()))
    if isinstance(answers, tuple):
        answers = list(answers)
    if not _is_list_of_strings(answers):
        expected = "a list of strings, ['...', '...']"
        raise InputError(path, line, f"answers {cell[:60]!r}", expected)
    return list(answers)


# readers of the formats whose lines are columns, where no header names them
COLUMNS = {
    TopicsFormat.TSV: _tsv_rows,
    TopicsFormat.DPR: _dpr_rows,
    TopicsFormat.COLON: _colon_rows,
}


def topics_sha256(queries: Iterable[Query]) -> str:
    """Return the SHA-256 of the ids and texts of queries."""
    return texts_sha256([query.qid, query.text] for query in queries)


def describe_topics(
    source: str | None, fields: Sequence[str] | None, queries: Iterable[Query]
) -> dict[str, Any]:
    """Return what the manifest of a run records of its topics.

    `fields` are those that made the texts, if they were named.
    """
    description: dict[str, Any] = {"name": source, "sha256": topics_sha256(queries)}
    if fields:
        description["fields"] = list(fields)
    return description


def write_queries(path: str | Path, queries: Iterable[Query], topics_format: TopicsFormat) -> int:
    """Write queries in one of `WRITTEN`; return their number. What a format lacks is logged."""
    if topics_format in COLUMNS:
        losses: Counter[str] = Counter()
        count = written_files.write_lines(path, _query_lines(queries, topics_format, losses))
        written_files.log_losses(losses, topics_format)
        return count
    return json_records.write_objects(path, _query_records(queries, topics_format))


def _query_records(
    queries: Iterable[Query], topics_format: TopicsFormat
) -> Iterator[dict[str, Any]]:
    """Yield queries as records of a JSON format; their further fields come last."""
    id_key, text_key = WRITTEN_KEYS[topics_format]
    for query in queries:
        record: dict[str, Any] = {id_key: query.qid, text_key: query.text}
        if query.answers:
            record["answers"] = query.answers
        for key, value in query.extra.items():
            record.setdefault(key, value)
        yield record


def _query_lines(
    queries: Iterable[Query], topics_format: TopicsFormat, losses: Counter[str]
) -> Iterator[str]:
    """Yield queries as lines with columns; count what they leave out."""
    for number, (qid, text, answers, extra) in enumerate(queries):
        losses.update(extra.keys())
        text = one_line(text)
        if topics_format is TopicsFormat.TSV:
            losses["answers"] += len(answers)
            yield f"{qid}\t{text}\n"
        else:  # DPR's questions have no ids: a reader counts them from 0
            if qid != str(number):
                losses["ids, which become positions"] += 1
            yield f"{quote_cell(text)}\t{list(answers)!r}\n"
