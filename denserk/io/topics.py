"""Queries (topics) and relevance judgments (qrels): files of all formats, Parquet, by name.

Lists of answers that are written as Python literals are parsed as literals, never run.
"""

import ast
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from denserk.config.formats import READ_ONLY_TOPICS, QrelsFormat, TopicsFormat
from denserk.errors import InputError, MismatchError, UsageError
from denserk.io import (
    clicks,
    column_names,
    data_sets,
    detection,
    files,
    json_objects,
    json_records,
    trec_topics,
    unread_files,
)
from denserk.io.column_names import Column, Header, Table
from denserk.io.detection import GRADE, TOPICS_KEYS, is_answer_list, is_relation_file
from denserk.io.file_head import FileHead
from denserk.io.json_records import Fields, list_keys
from denserk.io.tables import is_table
from denserk.records import NO_FIELDS, NO_SUBTOPIC, Passage, Qrel, Query

logger = logging.getLogger(__name__)

WRITTEN_KEYS = {
    TopicsFormat.ANSERINI: ("qid", "title"),
    TopicsFormat.BEIR: ("_id", "text"),
    TopicsFormat.TEVATRON: ("query_id", "query"),
    TopicsFormat.QA: ("id", "question"),
}
WRITTEN_QRELS = tuple(
    qrels_format for qrels_format in QrelsFormat if qrels_format is not QrelsFormat.CLICKS
)
WRITTEN = tuple(
    topics_format for topics_format in TopicsFormat if topics_format not in READ_ONLY_TOPICS
)
BEIR_HEADER = ("query-id", "corpus-id", "score")
QREL_COLUMNS = {
    QrelsFormat.TREC: "4 columns: query, iteration, passage, relevance",
    QrelsFormat.BEIR: "3 columns: query, passage, relevance",
    QrelsFormat.JSON: "one JSON object: {query: {passage: whole number}}",
    QrelsFormat.CLICKS: clicks.EXPECTED,
}
LISTED_QRELS = "one JSON object: {query: [relevant passages]}"
QREL_ORDERS = {
    QrelsFormat.TREC: (Column.QUERY_ID, Column.ITERATION, Column.PASSAGE_ID, Column.GRADE),
    QrelsFormat.BEIR: (Column.QUERY_ID, Column.PASSAGE_ID, Column.GRADE),
}
FORMAT_BY_WIDTH = {len(order): qrels_format for qrels_format, order in QREL_ORDERS.items()}
RUN_HINT = "six columns are a run, and qrels are expected: exchange run and qrels if both are given"
SUBTOPIC_HINT = (
    "the second column names sub-topics; only measures of sub-topics, such as alpha_nDCG@10, take "
    "a passage that is judged for several"
)
JSON_QRELS = "query-id|query_id|qid with corpus-id|corpus_id|docid with score|relevance"


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
    queries = _at_least_one(_queries(source, topics_format, fields=fields), source)
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
    """Yield questions with their answers; the text is empty if a file has ids and answers alone."""
    has_answers = False
    for query in _queries(source, None, textless=True):
        has_answers = has_answers or bool(query.answers)
        yield query
    if not has_answers:
        raise InputError(source, None, "no answers", "questions with `answers`")


def _queries(
    source: str,
    topics_format: TopicsFormat | None,
    *,
    textless: bool = False,
    fields: Sequence[str] | None = None,
) -> Iterator[Query]:
    """Yield the queries of a source; reject an id that occurs twice."""
    read_file = partial(
        read_topics_file, topics_format=topics_format, textless=textless, needs_query=not fields
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
    """Return the queries of a table, a dataset's name, a file or a folder."""
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
    textless: bool = False,
    needs_query: bool = True,
) -> Iterator[Query]:
    """Yield the queries of one file, in its order.

    If `textless`, only answers are needed: JSON records may lack the question, and two columns are
    question and answers. Unless it `needs_query`, a TREC topic may have other fields alone.
    """
    with files.open_ahead(path, part="queries") as (data, handle):
        head = FileHead(data, Path(path).name)
        if not head.line:
            return
        file = _TopicsFile(path, head, handle, topics_format, textless, needs_query)
        detected_format, rows = file.rows()
        keys_by_format = TOPICS_KEYS  # of JSON lines, the keys of the first record decide
        if detected_format is not None:
            keys_by_format = {detected_format: TOPICS_KEYS[detected_format]}
        if textless and detected_format is not TopicsFormat.TSV:
            # records of answers may lack the question
            rows = ((line, {"question": "", **record}) for line, record in rows)
        topics_format, records = json_records.read_records(
            rows, keys_by_format, topics_format, path, Table.QUERIES
        )
        relation = Path(path).name.partition(".")[0]
        for line, qid, text, _, extra in records:
            answers = _take_answers(extra, path, line)
            if topics_format is TopicsFormat.ENTITY_QUESTIONS:
                qid = f"{relation}-{qid}"
                extra = {**extra, "relation": relation}
            yield Query(qid, text, answers, extra or NO_FIELDS)


class _Rows(NamedTuple):
    """Records of queries, and their format where more than their keys decides it."""

    format: TopicsFormat | None
    records: Iterable[json_records.Row]


class _TopicsFile(NamedTuple):
    """A file of queries that is open, its beginning, and its format if that is given."""

    path: str | Path
    head: FileHead
    handle: BinaryIO
    format: TopicsFormat | None
    textless: bool
    needs_query: bool

    def rows(self) -> _Rows:
        """Return the records of the file, of whichever format it is."""
        if self.format is None and detection.has_generated_queries(self.head):
            raise unread_files.generated_queries_error(self.path, Table.QUERIES)
        if self._is_of(TopicsFormat.TREC, detection.is_trec_topics):
            return self._topics()
        if self._is_of(TopicsFormat.CLICKS, detection.has_clicks_header):
            return self._clicked_queries()
        if self._has_columns:
            return self._column_rows()
        return self._json_rows()

    def _is_of(self, topics_format: TopicsFormat, rule: Callable[[FileHead], bool]) -> bool:
        """Return whether the file is of a format: the given one, or else one by its rule."""
        if self.format is None:
            return rule(self.head)
        return self.format is topics_format

    def _clicked_queries(self) -> _Rows:
        """Return the records of the queries of a click log."""
        queries = clicks.clicked_queries(self.path, self.handle)
        rows = ((None, {"id": query.qid, "text": query.text}) for query in queries)
        return _Rows(TopicsFormat.CLICKS, rows)

    def _topics(self) -> _Rows:
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
        if self.format is None and detection.is_relation(self.head):
            return _Rows(TopicsFormat.ENTITY_QUESTIONS, rows)
        return _Rows(None, rows)

    @property
    def _is_object(self) -> bool:
        """Whether the file is one object by query id, or a data set of llama_index."""
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
        first_row, rows = files.peek(json_objects.read_texts(data, self.path, "query"))
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
        first_line, lines = files.peek((line, text) for line, text in numbered if text.strip())
        if first_line is None:
            return _Rows(TopicsFormat.TSV, ())
        line, text = first_line
        header = column_names.read_header(text.split("\t"), Table.QUERIES, self.path, line)
        if header is None:
            topics_format = self.format or self._format_without_header()
            return _Rows(topics_format, COLUMNS[topics_format](lines, self.path))
        next(lines)
        topics_format = self.format or _format_of_header(header.columns)
        self._require_columns(topics_format, header.columns, header.names, line)
        return _Rows(topics_format, _header_rows(lines, header, topics_format, self.path))

    def _csv_rows(self) -> _Rows:
        """Return the rows of CSV as records; its header may have columns with other names."""
        names = column_names.columns_by_meaning(self.head.csv_cells, Table.QUERIES)
        topics_format = _format_of_header(names)
        self._require_columns(topics_format, names, self.head.csv_cells, 1)
        lines = files.read_text_lines(self.path, self.handle)
        rows = files.read_table(lines, self.path, self.head.csv_delimiter)
        return _Rows(topics_format, _csv_records(rows, names, topics_format, self.path))

    def _require_columns(
        self,
        topics_format: TopicsFormat,
        columns: Iterable[Column],
        names: Sequence[str],
        line: int,
    ) -> None:
        """Raise an InputError for a header that lacks what the format needs."""
        required = {Column.ANSWERS if topics_format is TopicsFormat.DPR else Column.QUERY_ID}
        if not self.textless:
            required.add(Column.QUERY)
        if not required <= set(columns):
            found = f"the columns {column_names.show_cells(names)}"
            expected = f"columns of {' and '.join(sorted(required))}"
            hint = f"name them in the first line: {column_names.EXAMPLE_HEADERS[Table.QUERIES]}"
            raise InputError(self.path, line, found, expected, hint)

    def _format_without_header(self) -> TopicsFormat:
        """Return the format of columns without a header, by the first line."""
        if self.textless and detection.has_two_cells(self.head):
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
        hint = unread_files.numbering_hint(self.path, Table.QUERIES)
        found = f"a line without a tab: {self.head.line[:60]!r}"
        raise InputError(self.path, 1, found, expected, hint)


def _format_of_header(columns: Iterable[Column]) -> TopicsFormat:
    """Return the format of columns under a header: DPR's have answers in place of ids."""
    available = set(columns)
    if Column.ANSWERS in available and Column.QUERY_ID not in available:
        return TopicsFormat.DPR
    return TopicsFormat.TSV


def _take_answers(fields: dict[str, Any], path: str | Path, line: int | None) -> tuple[str, ...]:
    """Remove the answers from the fields of a record and return them."""
    key = "answers" if "answers" in fields else "answer"
    answers = fields.pop(key, [])
    if isinstance(answers, str):
        answers = [answers]
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
    text_key = _text_key(topics_format)
    key_by_column = {Column.QUERY_ID: "id", Column.QUERY: text_key, Column.ANSWERS: "answers"}
    keys = [
        key_by_column.get(column, name)
        for column, name in zip(header.columns, header.names, strict=True)
    ]
    text_is_last = header.columns[-1] is Column.QUERY
    most_splits = len(keys) - 1 if text_is_last else -1  # -1: at all tabs
    for line, row in lines:
        cells = row.split("\t", most_splits)
        if len(cells) != len(keys):
            found = f"{files.columns(len(cells))} between tabs"
            raise InputError(path, line, found, f"{len(keys)}: {', '.join(header.names)}")
        if header.is_quoted:
            cells = [files.unquote(cell) for cell in cells]
        record: dict[str, Any] = {text_key: "", **dict(zip(keys, cells, strict=True))}
        _parse_answers_of(record, path, line)
        yield line, record


def _text_key(topics_format: TopicsFormat) -> str:
    """Return the key of the query in records of columns."""
    return "question" if topics_format is TopicsFormat.DPR else "text"


def _csv_records(
    rows: Iterable[tuple[int, dict[str, str]]],
    names: Mapping[Column, str],
    topics_format: TopicsFormat,
    path: str | Path,
) -> Iterator[json_records.Numbered]:
    """Yield rows of CSV as records of a format; other columns keep their names."""
    text_key = _text_key(topics_format)
    key_by_column = {Column.QUERY_ID: "id", Column.QUERY: text_key, Column.ANSWERS: "answers"}
    key_by_name = {
        name: key_by_column[column] for column, name in names.items() if column in key_by_column
    }
    for line, row in rows:
        record: dict[str, Any] = {text_key: ""}
        for name, value in row.items():
            record[key_by_name.get(name, name)] = value
        _parse_answers_of(record, path, line)
        yield line, record


def _parse_answers_of(record: dict[str, Any], path: str | Path, line: int) -> None:
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
            found = f"{files.columns(len(cells))} between tabs"
            raise InputError(path, line, found, "2: question, list of answers")
        question, answer_list = cells
        answers = _parse_answers(answer_list, path, line)
        yield line, {"question": files.unquote(question), "answers": answers}


def _parse_answers(column: str, path: str | Path, line: int) -> list[str]:
    """Return the answers of a column that is a list as a Python literal."""
    answers: Any = None
    errors_of_no_literal = (ValueError, SyntaxError, MemoryError, RecursionError, TypeError)
    with warnings.catch_warnings(), suppress(*errors_of_no_literal):
        warnings.simplefilter("ignore")  # "\d" in a pattern is what its author meant
        answers = ast.literal_eval(files.unquote(column.strip()))
    if isinstance(answers, tuple):
        answers = list(answers)
    if not _is_list_of_strings(answers):
        expected = "a list of strings, ['...', '...']"
        raise InputError(path, line, f"answers {column[:60]!r}", expected)
    return list(answers)


# readers of the formats that are not JSON
COLUMNS = {
    TopicsFormat.TSV: _tsv_rows,
    TopicsFormat.DPR: _dpr_rows,
    TopicsFormat.COLON: _colon_rows,
}


def write_queries(path: str | Path, queries: Iterable[Query], topics_format: TopicsFormat) -> int:
    """Write queries in one of `WRITTEN`; return their number. What a format lacks is logged."""
    if topics_format in COLUMNS:
        losses: Counter[str] = Counter()
        count = files.write_lines(path, _query_lines(queries, topics_format, losses))
        files.log_losses(losses, topics_format)
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
        text = files.one_line(text)
        if topics_format is TopicsFormat.TSV:
            losses["answers"] += len(answers)
            yield f"{qid}\t{text}\n"
        else:  # DPR's questions have no ids
            if qid != str(number):
                losses["ids, which become positions"] += 1
            yield f"{files.quote(text)}\t{list(answers)!r}\n"


# a retrieved passage, its score, and whether it has an answer
Context = tuple[Passage, float, bool]
WriteContexts = Callable[[Query, Iterable[Context]], None]


@contextmanager
def contexts_writer(path: str | Path, *, pyserini: bool = False) -> Iterator[WriteContexts]:
    """Open a file of questions, answers and contexts; yield the function that writes a question.

    DPR's format is an array with `ctxs`, best first; Pyserini's is an object by query id with
    `contexts`.
    """
    opening, closing = b"[", b"]"
    if pyserini:
        opening, closing = b"{", b"}"
    with files.whole_binary(path) as out:
        out.write(opening)
        yield _ContextsFile(out, pyserini=pyserini).write
        out.write(b"\n" + closing + b"\n")


class _ContextsFile:
    """An open file of questions with their contexts."""

    def __init__(self, out: BinaryIO, *, pyserini: bool) -> None:
        self._out = out
        self._is_pyserini = pyserini
        self._is_empty = True

    def write(self, query: Query, contexts: Iterable[Context]) -> None:
        """Write a question with its answers and its contexts."""
        entries = []
        for passage, score, has_answer in contexts:
            entry = _pyserini_entry(passage) if self._is_pyserini else _dpr_entry(passage)
            entries.append({**entry, "score": f"{score:.9g}", "has_answer": has_answer})
        list_key = "contexts" if self._is_pyserini else "ctxs"
        record = {"question": query.text, "answers": query.answers, list_key: entries}
        self._out.write(b"\n" if self._is_empty else b",\n")
        self._is_empty = False
        if self._is_pyserini:
            self._out.write(orjson.dumps(query.qid) + b":")
        self._out.write(orjson.dumps(record))


def _dpr_entry(passage: Passage) -> dict[str, Any]:
    return {"id": passage.docid, "title": passage.title, "text": passage.text}


def _pyserini_entry(passage: Passage) -> dict[str, Any]:
    """Return a passage whose text has one line end, after the title."""
    text = f"{files.one_line(passage.title)}\n{files.one_line(passage.text)}"
    return {"docid": passage.docid, "text": text}


def read_qrels(
    source: str | Path, qrels_format: QrelsFormat | None = None, *, by_subtopic: bool = False
) -> Iterator[Qrel]:
    """Yield the judgments of a source, in its order; lines of a query need not stand together.

    The source is a file; a BEIR folder with one split; "-"; `irds:NAME`; `beir:NAME/SPLIT`;
    Parquet; `hf:NAME/SPLIT`. A `qrels_format` of None is detected by the number of columns. A
    passage has one grade for a query, or with `by_subtopic` one for each sub-topic of it.
    """
    grades: dict[tuple[str, str, str], int] = {}  # by query, passage and sub-topic
    for path, line, qrel in _judgments(source, qrels_format):
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


Judgment = tuple[str | Path, int | None, Qrel]  # file, line


def _judgments(source: str | Path, qrels_format: QrelsFormat | None) -> Iterator[Judgment]:
    """Return the judgments of a table, a dataset's name, a file or a folder."""
    if is_table(source, "qrels"):
        return _read_qrels_file(source, qrels_format)
    dataset = data_sets.locate(str(source))
    if dataset.irds is not None:
        return _irds_judgments(source, dataset.irds)
    path = dataset.path
    if path.is_dir():
        path = split_file(path, dataset.split)
    return _read_qrels_file(path, qrels_format)


def _irds_judgments(source: str | Path, name: str) -> Iterator[Judgment]:
    """Yield the judgments of a dataset of ir_datasets, which names sub-topics in two ways."""
    for record in data_sets.irds_records(name, "qrels"):
        subtopic = getattr(record, "subtopic_id", getattr(record, "iteration", NO_SUBTOPIC))
        qrel = _qrel(record.query_id, record.doc_id, int(record.relevance), str(subtopic))
        yield source, None, qrel


def _qrel(qid: str, docid: str, relevance: int, subtopic: str) -> Qrel:
    """Return a judgment; `Q0` in the second column of qrels is no sub-topic."""
    if subtopic == "Q0":
        subtopic = NO_SUBTOPIC
    return Qrel(qid, docid, relevance, subtopic)


def _read_qrels_file(path: str | Path, qrels_format: QrelsFormat | None) -> Iterator[Judgment]:
    """Yield the judgments of one file, whose grades are integers."""
    is_empty = True
    for row in _qrels_rows(path, qrels_format):
        grade = GRADE.fullmatch(row.grade)
        if not grade:
            raise InputError(path, row.line, f"relevance {row.grade[:40]!r}", "an integer")
        is_empty = False
        yield path, row.line, _qrel(row.qid, row.docid, int(grade[1]), row.subtopic)
    if is_empty:
        raise InputError(path, None, "no judgments", QREL_COLUMNS[qrels_format or QrelsFormat.TREC])


class QrelRow(NamedTuple):
    """A judgment as it stands in a file."""

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
        elif head.record is None:
            lines = files.read_text_lines(path, handle)
            yield from _qrels_columns(lines, path, qrels_format, head)
        elif detection.is_embedding_data(head):
            yield from _embedding_qrels(files.read_all(handle, path), path)
        elif detection.is_object_of_lists(head):
            yield from _listed_qrels(files.read_all(handle, path), path)
        elif qrels_format is QrelsFormat.JSON or detection.is_object_by_query(head):
            yield from _object_qrels(files.read_all(handle, path), path)
        else:
            rows = json_records.read_json(handle, head.line.encode(), path)
            yield from _qrels_records(rows, path, qrels_format)


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
    width = len(head.terms)
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
        yield _qrels_row(line, terms, layout, path)


def _is_qrels_comment(text: str, terms: Sequence[str], width: int) -> bool:
    """Return whether a line is a comment of trec_eval 10, no judgment of a query named `#...`.

    `width` is the number of columns of judgments. Three columns of a query named `#` are a judgment
    only between tabs: a comment may end with a number, too.
    """
    if not terms[0].startswith("#"):
        return False
    if len(terms) != width or GRADE.fullmatch(terms[-1]) is None:
        return True
    if width == 3:
        return terms[0] == "#" and text.count("\t") != 2
    return width != 4 or terms[1] not in ("0", "Q0")


def _qrels_row(line: int, cells: Sequence[str], layout: _QrelsLayout, path: str | Path) -> QrelRow:
    """Return the judgment of a line with columns."""
    if len(cells) != len(layout.columns):
        hint = RUN_HINT if len(cells) == 6 else None
        expected = QREL_COLUMNS[layout.format]
        raise InputError(path, line, files.columns(len(cells)), expected, hint)
    if layout.is_quoted:
        cells = [files.unquote(cell) for cell in cells]
    values = dict(zip(layout.columns, cells, strict=True))
    return QrelRow(
        line,
        values[Column.QUERY_ID],
        values[Column.PASSAGE_ID],
        values[Column.GRADE],
        values.get(Column.ITERATION, NO_SUBTOPIC),
    )


def _qrels_layout(
    line: int, text: str, path: str | Path, qrels_format: QrelsFormat | None, head: bytes
) -> _QrelsLayout:
    """Return what the columns of qrels hold, by their first line."""
    terms = text.split()
    cells = column_names.split_columns(text)
    header = column_names.recognise_header(cells, Table.QRELS)
    width = len(terms) if header is None else len(header.columns)
    if width not in FORMAT_BY_WIDTH:
        expected = QREL_COLUMNS[QrelsFormat.TREC]
        error = unread_files.unread_file_error(head, path, Table.QRELS, expected)
        if error is not None:
            raise error
    qrels_format = _qrels_format(width, qrels_format, path, line, terms)
    if header is not None:
        column_names.log_header(header, path, line)
        return _QrelsLayout(qrels_format, header.columns, True, header.is_quoted)
    hint = column_names.header_hint(cells, Table.QRELS)
    if hint and not GRADE.fullmatch(terms[-1]):
        found = f"the columns {column_names.show_cells(cells)}"
        raise InputError(path, line, found, QREL_COLUMNS[qrels_format], hint)
    return _QrelsLayout(qrels_format, QREL_ORDERS[qrels_format])


def _qrels_format(
    width: int, qrels_format: QrelsFormat | None, path: str | Path, line: int, terms: Sequence[str]
) -> QrelsFormat:
    """Return the format of qrels by the number of columns of their first line."""
    format_of_width = FORMAT_BY_WIDTH.get(width)
    if format_of_width is None or qrels_format not in (None, format_of_width):
        expected = " or ".join(QREL_COLUMNS.values())
        if qrels_format is not None:
            expected = QREL_COLUMNS[qrels_format]
        hint = RUN_HINT if width == 6 else column_names.header_hint(terms, Table.QRELS)
        raise InputError(path, line, files.columns(len(terms)), expected, hint)
    if qrels_format is None:
        name = files.display_name(path)
        logger.info(f"{name}: {format_of_width} qrels ({files.columns(width)})")
    return format_of_width


def _qrels_records(
    rows: Iterable[json_records.Numbered], path: str | Path, qrels_format: QrelsFormat | None
) -> Iterator[QrelRow]:
    """Yield judgments of JSON records; BEIR's have no sub-topics."""
    for line, record in rows:
        fields = Fields(record, path, line)
        filled_keys = (key for key in record if key in fields)
        keys = column_names.columns_by_meaning(filled_keys, Table.QRELS)
        if not column_names.has_required_columns(keys.keys(), Table.QRELS):
            raise fields.error(f"the columns {list_keys(record)}", JSON_QRELS)
        grade = record[keys[Column.GRADE]]
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
    paths = {path.name.partition(".")[0]: path for path in sorted(qrels_folder.glob("*.tsv*"))}
    if split is None and len(paths) == 1:
        return next(iter(paths.values()))
    if split is not None and split in paths:
        return paths[split]
    if not paths:
        raise UsageError(f"{qrels_folder}: no qrels (there: none)")
    usual_splits = [name for name in ("test", "dev", "train") if name in paths]
    splits = [*usual_splits, *sorted(paths.keys() - usual_splits)]
    message = f"{qrels_folder}: several splits (there: {', '.join(splits)})"
    if split:
        message = f"{qrels_folder}: no split {split} (there: {', '.join(splits)})"
    raise UsageError(message, f"name one: {qrels_folder / splits[0]}.tsv")


def write_qrels(path: str | Path, qrels: Iterable[Qrel], qrels_format: QrelsFormat) -> int:
    """Write judgments; return their number. BEIR's format has no place for sub-topics."""
    if qrels_format is QrelsFormat.JSON:
        return _write_qrels_object(path, qrels)
    if qrels_format is QrelsFormat.TREC:
        lines = (f"{qrel.qid} {qrel.subtopic} {qrel.docid} {qrel.relevance}\n" for qrel in qrels)
        return files.write_lines(path, lines)
    subtopics: set[str] = set()
    header = "\t".join(BEIR_HEADER) + "\n"
    count = files.write_lines(path, _beir_lines(qrels, subtopics), header)
    _log_subtopics(path, subtopics, qrels_format)
    return count


def _beir_lines(qrels: Iterable[Qrel], subtopics: set[str]) -> Iterator[str]:
    """Yield judgments as lines of BEIR; add the sub-topics, which these leave out, to a set."""
    for qrel in qrels:
        subtopics.add(qrel.subtopic)
        yield f"{qrel.qid}\t{qrel.docid}\t{qrel.relevance}\n"


def _write_qrels_object(path: str | Path, qrels: Iterable[Qrel]) -> int:
    """Write judgments as one object by query, which has each passage of a query once."""
    subtopics: set[str] = set()
    grades: dict[str, dict[str, int]] = {}
    for qrel in qrels:
        subtopics.add(qrel.subtopic)
        grades.setdefault(qrel.qid, {})[qrel.docid] = qrel.relevance
    with files.whole_binary(path) as out:
        out.write(json_records.dump_json(grades))
    _log_subtopics(path, subtopics, QrelsFormat.JSON)
    return sum(map(len, grades.values()))


def _log_subtopics(path: str | Path, subtopics: Set[str], qrels_format: QrelsFormat) -> None:
    """Report sub-topics that a format has no place for."""
    if len(subtopics) > 1:
        logger.info(
            f"{path}: without the iterations or sub-topics, which {qrels_format} qrels do not hold"
        )
