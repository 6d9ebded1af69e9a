"""Queries (topics) and relevance judgments (qrels): files of all formats, Parquet, by name.

Lists of answers that are written as Python literals are parsed as literals, never run.
"""

import ast
import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from denserk.config.formats import QrelsFormat, TopicsFormat
from denserk.errors import InputError, MismatchError, UsageError
from denserk.io import data_sets, detection, files, json_records
from denserk.io.detection import Column, Header, Table
from denserk.io.json_records import Fields, RecordKeys, list_keys
from denserk.io.tables import is_table
from denserk.records import NO_FIELDS, NO_SUBTOPIC, Passage, Qrel, Query

logger = logging.getLogger(__name__)

Row = tuple[int | None, dict[str, Any]]  # line, record
KEYS = {
    TopicsFormat.BEIR: RecordKeys(("_id",), ("text",)),
    TopicsFormat.TEVATRON: RecordKeys(("query_id",), ("query", "query_text")),
    TopicsFormat.ANSERINI: RecordKeys(("id", "qid"), ("title", "query", "text")),
    TopicsFormat.QA: RecordKeys(("_id", "id", "qid"), ("question",), must_have_id=False),
    TopicsFormat.ENTITY_QUESTIONS: RecordKeys((), ("question",), must_have_id=False),
    TopicsFormat.TSV: RecordKeys(("id",), ("text",)),
    TopicsFormat.DPR: RecordKeys((), ("question",), must_have_id=False),
}
WRITTEN_KEYS = {
    TopicsFormat.ANSERINI: ("qid", "title"),
    TopicsFormat.BEIR: ("_id", "text"),
    TopicsFormat.TEVATRON: ("query_id", "query"),
    TopicsFormat.QA: ("id", "question"),
}
WRITTEN = tuple(form for form in TopicsFormat if form is not TopicsFormat.ENTITY_QUESTIONS)
BEIR_HEADER = ("query-id", "corpus-id", "score")
QREL_COLUMNS = {
    QrelsFormat.TREC: "4 columns: query, iteration, passage, relevance",
    QrelsFormat.BEIR: "3 columns: query, passage, relevance",
}
ORDERS = {
    QrelsFormat.TREC: (Column.QUERY_ID, Column.ITERATION, Column.PASSAGE_ID, Column.GRADE),
    QrelsFormat.BEIR: (Column.QUERY_ID, Column.PASSAGE_ID, Column.GRADE),
}
WIDTHS = {4: QrelsFormat.TREC, 3: QrelsFormat.BEIR}
RUN_HINT = "six columns are a run, and qrels are expected: exchange run and qrels if both are given"
SUBTOPIC_HINT = (
    "the second column names sub-topics; only measures of sub-topics, such as alpha_nDCG@10, take "
    "a passage that is judged for several"
)
QREL_KEYS = "query-id|query_id|qid with corpus-id|corpus_id|docid with score|relevance"
NEEDED = (Column.QUERY_ID, Column.PASSAGE_ID, Column.GRADE)
GRADE = re.compile(r"([+-]?[0-9]{1,18})(\.0*)?")  # trec_eval reads 1.0 as 1


def read_queries(
    source: str, form: TopicsFormat | None = None, qrels: str | None = None
) -> Iterator[Query]:
    """Yield the queries of a source, in its order, each id once; reject one without any.

    The source is a file; a folder (of BEIR: its queries.jsonl; else EntityQuestions); "-";
    `irds:NAME`; `beir:NAME`; `beir:NAME/SPLIT` (the judged queries of the split); Parquet;
    `hf:NAME`. Only queries that `qrels` judge are kept: BEIR's queries.jsonl holds all splits.
    """
    judged = None if qrels is None else read_qrels_map(qrels)
    first, count, kept = "", 0, 0
    for query in _queries(source, form):
        first, count = first or query.qid, count + 1
        if judged is None or query.qid in judged:
            kept += 1
            yield query
    if not count:
        raise InputError(source, None, "no queries", "at least one")
    if judged is not None and not kept:
        others = f"none of the {count:,} queries of {source}, such as {first}"
        found = f"{qrels} judges queries such as {next(iter(judged))}, and {others}"
        raise MismatchError(found, "name the qrels of these queries")
    if judged is not None:
        more = f", which judges {len(judged) - kept:,} more" if len(judged) > kept else ""
        name = files.display_name(source)
        logger.info(f"{name}: {kept:,} of {count:,} queries are judged in {qrels}{more}")


def read_questions(source: str) -> Iterator[Query]:
    """Yield questions with their answers; the text is empty if a file has ids and answers alone."""
    found = False
    for query in _queries(source, None, textless=True):
        found = found or bool(query.answers)
        yield query
    if not found:
        raise InputError(source, None, "no answers", "questions with `answers`")


def _queries(source: str, form: TopicsFormat | None, *, textless: bool = False) -> Iterator[Query]:
    """Yield the queries of a source; reject an id that occurs twice."""
    judged: Container[str] | None = None
    found: Iterable[Query]
    if is_table(source, "queries"):
        found = read_topics_file(source, form, textless=textless)
    elif (place := data_sets.locate(source)).irds is not None:
        found = data_sets.irds_queries(place.irds)
    elif not place.path.is_dir():
        found = read_topics_file(place.path, form, textless=textless)
    elif (own := data_sets.plain_or_packed(place.path, "queries.jsonl")) is not None:
        judged = read_qrels_map(split_file(place.path, place.split)) if place.split else None
        found = read_topics_file(own, form)
    else:
        parts = sorted(item for item in place.path.iterdir() if is_relation_file(item))
        if not parts:
            hint = "queries.jsonl, or P17.test.json and its like"
            raise UsageError(f"{place.path} holds no queries", hint)
        logger.info(f"{place.path.name}: entity-questions queries ({len(parts)} relations)")
        relation = TopicsFormat.ENTITY_QUESTIONS
        found = chain.from_iterable(read_topics_file(item, relation) for item in parts)
    seen: set[str] = set()
    for query in found:
        if judged is not None and query.qid not in judged:
            continue
        if query.qid in seen:
            raise InputError(source, None, f"the query id {query.qid} twice", "each id once")
        seen.add(query.qid)
        yield query


def read_topics_file(
    path: str | Path, form: TopicsFormat | None = None, *, textless: bool = False
) -> Iterator[Query]:
    """Yield the queries of one file, in its order.

    If `textless`, only answers are needed: JSON records may lack the question, and two columns are
    question and answers.
    """
    with files.open_ahead(path, part="queries") as (head, handle):
        start, record = files.first_line(head).strip(), json_records.first_record(head)
        if not start:
            return
        # a record for each query id, perhaps on several lines
        keyed = start.startswith(b"{") and all(isinstance(v, dict) for v in (record or {}).values())
        guess = None
        rows: Iterable[Row]
        if record is None if form is None else form in COLUMNS:
            guess, rows = _read_columns(path, handle, head, form, textless)
        elif keyed and form in (None, TopicsFormat.QA):
            guess, rows = TopicsFormat.QA, _keyed_rows(files.read_all(handle, path), path)
        else:
            rows = json_records.read_json(handle, start, path)
            if form is None and start.startswith(b"[") and is_relation_file(path):
                guess = TopicsFormat.ENTITY_QUESTIONS
        formats = {guess: KEYS[guess]} if guess else KEYS
        if textless and guess is not TopicsFormat.TSV:
            rows = ((line, {"question": "", **record}) for line, record in rows)
        form, records = json_records.read_records(rows, formats, form, path, "queries")
        relation = Path(path).name.partition(".")[0]
        for line, qid, text, _, extra in records:
            key = "answers" if "answers" in extra else "answer"
            answers = extra.pop(key, [])
            answers = [answers] if isinstance(answers, str) else answers
            if not isinstance(answers, list) or not all(isinstance(a, str) for a in answers):
                raise InputError(path, line, f"{key} {str(answers)[:60]}", "a list of strings")
            if form is TopicsFormat.ENTITY_QUESTIONS:
                qid, extra = f"{relation}-{qid}", {**extra, "relation": relation}
            yield Query(qid, text, tuple(answers), extra or NO_FIELDS)


def _read_columns(
    path: str | Path, handle: BinaryIO, head: bytes, form: TopicsFormat | None, textless: bool
) -> tuple[TopicsFormat, Iterator[Row]]:
    """Return the format and the records of lines with columns, by their header if there is one."""
    detection.reject_binary(head, path, Table.QUERIES)
    numbered = files.read_text_lines(path, handle)
    first_line, lines = files.peek(each for each in numbered if each[1].strip())
    if first_line is None:
        return TopicsFormat.TSV, iter(())
    line, text = first_line
    header = detection.read_header(text.split("\t"), Table.QUERIES, path, line)
    if header is None:
        form = form or _detect_columns(text, path, head, textless)
        return form, COLUMNS[form](lines, path)
    next(lines)
    if form is None:
        has_ids = Column.QUERY_ID in header.columns
        form = TopicsFormat.TSV if has_ids else TopicsFormat.DPR
    first_column = Column.ANSWERS if form is TopicsFormat.DPR else Column.QUERY_ID
    needed = {first_column} if textless else {first_column, Column.QUERY}
    if not needed <= set(header.columns):
        found = f"the columns {', '.join(header.names)}"
        raise InputError(path, line, found, f"columns of {' and '.join(sorted(needed))}")
    return form, _header_rows(lines, header, form, path)


def _detect_columns(line: str, path: str | Path, head: bytes, textless: bool) -> TopicsFormat:
    parts = line.split("\t")
    if len(parts) == 1:
        expected = "id and text, or question and answers"
        error = detection.unread_file_error(head, path, Table.QUERIES, expected, line=1)
        if error is not None:
            raise error
        hint = detection.numbering_hint(path, Table.QUERIES)
        raise InputError(path, 1, f"a line without a tab: {line[:60]!r}", expected, hint)
    with_answers = len(parts) == 2 and (textless or is_answer_list(parts[1]))
    return TopicsFormat.DPR if with_answers else TopicsFormat.TSV


def _header_rows(
    lines: files.Lines, header: Header, form: TopicsFormat, path: str | Path
) -> Iterator[json_records.Numbered]:
    """Yield the lines under a header as records; its names decide what a column holds.

    Further tabs belong to the text if it is the last column.
    """
    text_key = "question" if form is TopicsFormat.DPR else "text"
    keys = {Column.QUERY_ID: "id", Column.QUERY: text_key, Column.ANSWERS: "answers"}
    names = [
        keys.get(column, name) for column, name in zip(header.columns, header.names, strict=True)
    ]
    text_is_last = header.columns[-1] is Column.QUERY
    for line, row in lines:
        cells = row.split("\t", len(names) - 1) if text_is_last else row.split("\t")
        if len(cells) != len(names):
            found = f"{files.columns(len(cells))} between tabs"
            raise InputError(path, line, found, f"{len(names)}: {', '.join(header.names)}")
        if header.is_quoted:
            cells = [files.unquote(cell) for cell in cells]
        record: dict[str, Any] = {text_key: "", **dict(zip(names, cells, strict=True))}
        if is_answer_list(record.get("answers", "")):
            record["answers"] = _parse_answers(record["answers"], path, line)
        yield line, record


def _keyed_rows(data: bytes, path: str | Path) -> Iterator[Row]:
    """Yield the records of one JSON object that has a record for each query id."""
    expected = "an object of objects by query id, or one object a line"
    try:
        value = orjson.loads(data)
    except ValueError as error:
        raise InputError(path, None, f"a document that is not JSON ({error})", expected) from None
    for qid, record in value.items():
        if not isinstance(record, dict):
            raise InputError(path, None, f"JSON {type(record).__name__} for query {qid}", expected)
        yield None, {**record, "_id": qid}


def _tsv_rows(lines: files.Lines, path: str | Path) -> Iterator[json_records.Numbered]:
    """Yield `id <tab> text` lines as records; further tabs belong to the text."""
    for line, row in lines:
        qid, tab, text = row.partition("\t")
        if not tab:
            raise InputError(path, line, "a line without a tab", "a query id, a tab, the query")
        yield line, {"id": qid, "text": text}


def _dpr_rows(lines: files.Lines, path: str | Path) -> Iterator[json_records.Numbered]:
    """Yield `question <tab> list of answers` lines as records."""
    for line, row in lines:
        parts = row.split("\t")
        if len(parts) != 2:
            found = f"{files.columns(len(parts))} between tabs"
            raise InputError(path, line, found, "2: question, list of answers")
        answers = _parse_answers(parts[1], path, line)
        yield line, {"question": files.unquote(parts[0]), "answers": answers}


def _parse_answers(column: str, path: str | Path, line: int) -> list[str]:
    """Return the answers of a column that is a list as a Python literal."""
    answers: Any = None
    broken = ValueError, SyntaxError, MemoryError, RecursionError, TypeError
    with warnings.catch_warnings(), suppress(*broken):
        warnings.simplefilter("ignore")  # "\d" in a pattern is what its author meant
        answers = ast.literal_eval(files.unquote(column.strip()))
    if not isinstance(answers, list | tuple) or not all(isinstance(a, str) for a in answers):
        expected = "a list of strings, ['...', '...']"
        raise InputError(path, line, f"answers {column[:60]!r}", expected)
    return list(answers)


# readers of the formats that are not JSON
COLUMNS = {TopicsFormat.TSV: _tsv_rows, TopicsFormat.DPR: _dpr_rows}


def is_answer_list(column: str) -> bool:
    """Return whether a column looks like a list written as a Python literal, quoted or not."""
    bare = files.unquote(column.strip())
    return bare.startswith("[") and bare.endswith("]")


def is_relation_file(path: str | Path) -> bool:
    """Return whether a file is named as EntityQuestions names its relations: P17.test.json."""
    return re.fullmatch(r"P\d+\..*json(\.gz)?", Path(path).name) is not None


def write_queries(path: str | Path, queries: Iterable[Query], form: TopicsFormat) -> int:
    """Write queries in one of `WRITTEN`; return their number. What a format lacks is logged."""
    if form in COLUMNS:
        losses: Counter[str] = Counter()
        count = files.write_lines(path, _query_lines(queries, form, losses))
        files.log_losses(losses, form)
        return count
    id_key, text_key = WRITTEN_KEYS[form]

    def records() -> Iterator[dict[str, Any]]:
        for qid, text, answers, extra in queries:
            own = {id_key: qid, text_key: text, **({"answers": answers} if answers else {})}
            yield own | {key: value for key, value in extra.items() if key not in own}

    return json_records.write_objects(path, records())


def _query_lines(
    queries: Iterable[Query], form: TopicsFormat, losses: Counter[str]
) -> Iterator[str]:
    """Yield queries as lines with columns; count what they leave out."""
    for number, (qid, text, answers, extra) in enumerate(queries):
        losses.update(extra.keys())
        text = files.one_line(text)
        if form is TopicsFormat.TSV:
            losses["answers"] += len(answers)
            yield f"{qid}\t{text}\n"
        else:
            losses["ids, which become positions"] += qid != str(number)
            yield f"{files.quote(text)}\t{list(answers)!r}\n"


# writes a question with passages that were retrieved: score, and whether the passage has an answer
Write = Callable[[Query, Iterable[tuple[Passage, float, bool]]], None]


@contextmanager
def contexts_writer(path: str | Path, *, pyserini: bool = False) -> Iterator[Write]:
    """Open a file of questions, answers and contexts, best first.

    DPR's format is an array with `ctxs`; Pyserini's is an object by query id with `contexts`.
    """
    with files.whole_binary(path) as out:
        before = b"{\n" if pyserini else b"[\n"

        def write(query: Query, contexts: Iterable[tuple[Passage, float, bool]]) -> None:
            nonlocal before
            entries: list[dict[str, Any]] = []
            for (docid, text, title, _), value, has_answer in contexts:
                entry = {"id": docid, "title": title, "text": text}
                if pyserini:  # one line end after the title
                    both = f"{files.one_line(title)}\n{files.one_line(text)}"
                    entry = {"docid": docid, "text": both}
                entries.append({**entry, "score": f"{value:.9g}", "has_answer": has_answer})
            name = "contexts" if pyserini else "ctxs"
            record = {"question": query.text, "answers": query.answers, name: entries}
            key = orjson.dumps(query.qid) + b":" if pyserini else b""
            out.write(before + key + orjson.dumps(record))
            before = b",\n"

        yield write
        end = b"\n}\n" if pyserini else b"\n]\n"
        out.write(end if before == b",\n" else before.strip() + end)


def read_qrels(
    source: str | Path, form: QrelsFormat | None = None, *, by_subtopic: bool = False
) -> Iterator[Qrel]:
    """Yield the judgments of a source, in its order; lines of a query need not stand together.

    The source is a file; a BEIR folder with one split; "-"; `irds:NAME`; `beir:NAME/SPLIT`;
    Parquet; `hf:NAME/SPLIT`. A `form` of None is detected by the number of columns. A passage has
    one grade for a query, or with `by_subtopic` one for each sub-topic of it.
    """
    judged: dict[tuple[str, str, str], int] = {}
    for path, line, qrel in _judgments(source, form):
        key = qrel.qid, qrel.docid, qrel.subtopic if by_subtopic else NO_SUBTOPIC
        grade = judged.setdefault(key, qrel.relevance)
        if grade != qrel.relevance:
            found = (
                f"relevance {qrel.relevance} for query {qrel.qid}, passage {qrel.docid}, "
                f"and {grade} above"
            )
            hint = None if qrel.subtopic == NO_SUBTOPIC else SUBTOPIC_HINT
            raise InputError(path, line, found, "one judgment of a passage", hint)
        yield qrel


Judgment = tuple[str | Path, int | None, Qrel]  # file, line


def _judgments(source: str | Path, form: QrelsFormat | None) -> Iterator[Judgment]:
    if is_table(source, "qrels"):
        yield from _read_qrels_file(source, form)
    elif (place := data_sets.locate(str(source))).irds is not None:
        for record in data_sets.irds_records(place.irds, "qrels"):
            subtopic = getattr(record, "subtopic_id", getattr(record, "iteration", NO_SUBTOPIC))
            qrel = _qrel(record.query_id, record.doc_id, int(record.relevance), str(subtopic))
            yield source, None, qrel
    else:
        path = split_file(place.path, place.split) if place.path.is_dir() else place.path
        yield from _read_qrels_file(path, form)


def _qrel(qid: str, docid: str, relevance: int, subtopic: str) -> Qrel:
    """Return a judgment; `Q0` in the second column of qrels is no sub-topic."""
    return Qrel(qid, docid, relevance, NO_SUBTOPIC if subtopic == "Q0" else subtopic)


def _read_qrels_file(path: str | Path, form: QrelsFormat | None) -> Iterator[Judgment]:
    is_empty = True
    for row in _qrels_rows(path, form):
        grade = GRADE.fullmatch(row.grade)
        if not grade:
            raise InputError(path, row.line, f"relevance {row.grade[:40]!r}", "an integer")
        is_empty = False
        yield path, row.line, _qrel(row.qid, row.docid, int(grade[1]), row.subtopic)
    if is_empty:
        raise InputError(path, None, "no judgments", QREL_COLUMNS[form or QrelsFormat.TREC])


class QrelRow(NamedTuple):
    """A judgment as it stands in a file."""

    line: int | None
    qid: str
    docid: str
    grade: str
    subtopic: str = NO_SUBTOPIC


def _qrels_rows(path: str | Path, form: QrelsFormat | None) -> Iterator[QrelRow]:
    with files.open_ahead(path, part="qrels") as (head, handle):
        if json_records.first_record(head) is None:
            yield from _qrels_columns(files.read_text_lines(path, handle), path, form, head)
        elif detection.OBJECT_OF_SCORES.match(head):
            raise _unread_qrels(head, path) or InputError(path, None, "JSON", QREL_KEYS)
        else:
            rows = json_records.read_json(handle, files.first_line(head), path)
            yield from _qrels_records(rows, path, form)


def _qrels_columns(
    lines: files.Lines, path: str | Path, form: QrelsFormat | None, head: bytes
) -> Iterator[QrelRow]:
    """Yield judgments in columns, which a header may name and order."""
    order: tuple[Column, ...] = ()
    is_quoted = False
    for line, text in lines:
        parts = text.split()
        # a line that begins with `#` may be a judgment, or a comment of trec_eval 10
        fits = len(parts) == 3 or (len(parts) == 4 and parts[1] in ("0", "Q0"))
        if not parts or (parts[0][0] == "#" and not (fits and GRADE.fullmatch(parts[-1]))):
            continue
        if not order:
            cells = detection.split_columns(text)
            header = detection.recognise_header(cells, Table.QRELS)
            width = len(header.columns) if header else len(parts)
            if width not in WIDTHS and (error := _unread_qrels(head, path)):
                raise error
            form = _qrels_format(width, form, path, line, parts)
            order = header.columns if header else ORDERS[form]
            hint = detection.header_hint(cells, Table.QRELS)
            if header is None and hint and not GRADE.fullmatch(parts[-1]):
                found = f"the columns {detection.show_cells(cells)}"
                raise InputError(path, line, found, QREL_COLUMNS[form], hint)
            if header is not None:
                detection.log_header(header, path, line)
                is_quoted = header.is_quoted
                continue
        if len(parts) != len(order):
            expected = QREL_COLUMNS[form] if form else ""
            hint = RUN_HINT if len(parts) == 6 else None
            raise InputError(path, line, files.columns(len(parts)), expected, hint)
        if is_quoted:
            parts = [files.unquote(part) for part in parts]
        values = dict(zip(order, parts, strict=True))
        yield QrelRow(
            line,
            values[Column.QUERY_ID],
            values[Column.PASSAGE_ID],
            values[Column.GRADE],
            values.get(Column.ITERATION, NO_SUBTOPIC),
        )


def _unread_qrels(head: bytes, path: str | Path) -> InputError | None:
    """Return an error for a file of a format that is not read yet."""
    expected = QREL_COLUMNS[QrelsFormat.TREC]
    return detection.unread_file_error(head, path, Table.QRELS, expected)


def _qrels_format(
    width: int, form: QrelsFormat | None, path: str | Path, line: int, parts: list[str]
) -> QrelsFormat:
    """Return the format of qrels by the number of columns of their first line."""
    detected = WIDTHS.get(width)
    if detected is None or form not in (None, detected):
        expected = QREL_COLUMNS[form] if form else " or ".join(QREL_COLUMNS.values())
        hint = detection.header_hint(parts, Table.QRELS)
        if width == 6:
            hint = RUN_HINT
        raise InputError(path, line, files.columns(len(parts)), expected, hint)
    if form is None:
        logger.info(f"{files.display_name(path)}: {detected} qrels ({files.columns(width)})")
    return detected


def _qrels_records(
    rows: Iterable[json_records.Numbered], path: str | Path, form: QrelsFormat | None
) -> Iterator[QrelRow]:
    """Yield judgments of JSON records; BEIR's have no sub-topics."""
    for line, record in rows:
        fields = Fields(record, path, line)
        names = filter(fields.__contains__, record)
        keys = detection.columns_by_meaning(names, Table.QRELS)
        if not keys.keys() >= set(NEEDED):
            raise fields.error(f"the columns {list_keys(record)}", QREL_KEYS)
        value = record[keys[Column.GRADE]]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        subtopic = NO_SUBTOPIC
        if Column.ITERATION in keys and form is not QrelsFormat.BEIR:
            subtopic = fields.identifier(keys[Column.ITERATION], NO_SUBTOPIC)
        yield QrelRow(
            line,
            json_records.identifier(record[keys[Column.QUERY_ID]], path, line, "query"),
            json_records.identifier(record[keys[Column.PASSAGE_ID]], path, line, "passage"),
            str(value),
            subtopic,
        )


def read_qrels_map(source: str | Path) -> dict[str, dict[str, int]]:
    """Read all judgments of a source: query -> passage -> relevance, in its order."""
    return grades_by_query(read_qrels(source))


def grades_by_query(qrels: Iterable[Qrel]) -> dict[str, dict[str, int]]:
    """Return query -> passage -> relevance."""
    judged: dict[str, dict[str, int]] = {}
    for qrel in qrels:
        judged.setdefault(qrel.qid, {})[qrel.docid] = qrel.relevance
    return judged


def split_file(folder: Path, split: str | None) -> Path:
    """Return the qrels of one split of a BEIR folder; without a split, of its only one."""
    where = folder / "qrels"
    names = {item.name.partition(".")[0]: item for item in sorted(where.glob("*.tsv*"))}
    if split in names or (split is None and len(names) == 1):
        return names[split or min(names)]
    usual = [name for name in ("test", "dev", "train") if name in names]  # published first
    there = usual + sorted(names.keys() - usual)
    asked = f"no split {split}" if split else "several splits"
    found = f"{asked if names else 'no qrels'} (there: {', '.join(there) or 'none'})"
    hint = f"name one: {where / (there[0] + '.tsv')}" if names else None
    raise UsageError(f"{where}: {found}", hint)


def write_qrels(path: str | Path, qrels: Iterable[Qrel], form: QrelsFormat) -> int:
    """Write judgments; return their number. BEIR's format has no place for sub-topics."""
    if form is QrelsFormat.TREC:
        return files.write_lines(
            path, (f"{q.qid} {q.subtopic} {q.docid} {q.relevance}\n" for q in qrels)
        )
    subtopics: set[str] = set()

    def rows() -> Iterator[str]:
        for qrel in qrels:
            subtopics.add(qrel.subtopic)
            yield f"{qrel.qid}\t{qrel.docid}\t{qrel.relevance}\n"

    count = files.write_lines(path, rows(), "\t".join(BEIR_HEADER) + "\n")
    if len(subtopics) > 1:
        logger.info(f"{path}: without the iterations or sub-topics, which BEIR's qrels do not hold")
    return count
