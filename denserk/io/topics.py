"""Queries (topics): tab-separated, JSON, Parquet, questions with answers, by name.

Lists of answers that are written as Python literals are parsed as literals, never run.
"""

import ast
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from denserk.config.formats import TopicsFormat
from denserk.errors import InputError, MismatchError, UsageError
from denserk.io import data_sets, files, json_records
from denserk.io.qrels import read_qrels_map, split_file
from denserk.io.tables import is_table
from denserk.records import NO_FIELDS, Passage, Query

logger = logging.getLogger(__name__)

Row = tuple[int | None, dict[str, Any]]  # line, record
KEYS = {
    TopicsFormat.BEIR: json_records.RecordKeys(("_id",), ("text",)),
    TopicsFormat.TEVATRON: json_records.RecordKeys(("query_id",), ("query", "query_text")),
    TopicsFormat.ANSERINI: json_records.RecordKeys(("id", "qid"), ("title", "query", "text")),
    TopicsFormat.QA: json_records.RecordKeys(
        ("_id", "id", "qid"), ("question",), must_have_id=False
    ),
    TopicsFormat.ENTITY_QUESTIONS: json_records.RecordKeys((), ("question",), must_have_id=False),
    TopicsFormat.TSV: json_records.RecordKeys(("id",), ("text",)),
    TopicsFormat.DPR: json_records.RecordKeys((), ("question",), must_have_id=False),
}
WRITTEN_KEYS = {
    TopicsFormat.ANSERINI: ("qid", "title"),
    TopicsFormat.BEIR: ("_id", "text"),
    TopicsFormat.TEVATRON: ("query_id", "query"),
    TopicsFormat.QA: ("id", "question"),
}
# what `ast.literal_eval` raises
BROKEN_LITERAL = (ValueError, SyntaxError, MemoryError, RecursionError, TypeError)
WRITTEN = tuple(form for form in TopicsFormat if form is not TopicsFormat.ENTITY_QUESTIONS)


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
        raise MismatchError(
            f"{qrels} judges queries such as {next(iter(judged))}, and none of the "
            f"{count:,} queries of {source}, such as {first}",
            "name the qrels of these queries",
        )
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
    seen: set[str] = set()
    for query in _located(source, form, textless):
        if query.qid in seen:
            raise InputError(source, None, f"the query id {query.qid} twice", "each id once")
        seen.add(query.qid)
        yield query


def _located(source: str, form: TopicsFormat | None, textless: bool) -> Iterator[Query]:
    if is_table(source, "queries"):
        yield from read_topics_file(source, form, textless=textless)
    elif (place := data_sets.locate(source)).irds is not None:
        yield from data_sets.irds_queries(place.irds)
    elif not place.path.is_dir():
        yield from read_topics_file(place.path, form, textless=textless)
    elif (own := data_sets.plain_or_packed(place.path, "queries.jsonl")) is not None:
        judged = place.split and read_qrels_map(split_file(place.path, place.split))
        for query in read_topics_file(own, form):
            if not judged or query.qid in judged:
                yield query
    else:
        files = sorted(item for item in place.path.iterdir() if is_relation_file(item))
        if not files:
            hint = "queries.jsonl, or P17.test.json and its like"
            raise UsageError(f"{place.path} holds no queries", hint)
        logger.info(f"{place.path.name}: entity-questions queries ({len(files)} relations)")
        for item in files:
            yield from read_topics_file(item, TopicsFormat.ENTITY_QUESTIONS)


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
            guess = form or _detect_columns(start.decode("utf-8", "replace"), path, textless)
            lines = files.read_text_lines(path, handle)
            rows = COLUMNS[guess]((each for each in lines if each[1].strip()), path)
        elif keyed and form in (None, TopicsFormat.QA):
            guess, rows = TopicsFormat.QA, _keyed_rows(files.read_all(handle, path), path)
        else:
            rows = json_records.read_json(handle, start, path)
            if form is None and start.startswith(b"[") and is_relation_file(path):
                guess = TopicsFormat.ENTITY_QUESTIONS
        formats = {guess: KEYS[guess]} if guess else KEYS
        if textless:
            rows = ((line, {"question": "", **record}) for line, record in rows)
        form, records = json_records.read_records(rows, formats, form, path, "queries")
        relation = Path(path).name.partition(".")[0]
        for line, qid, text, _, extra in records:
            answers = _pop_answers(extra, path, line)
            if form is TopicsFormat.ENTITY_QUESTIONS:
                qid, extra = f"{relation}-{qid}", {**extra, "relation": relation}
            yield Query(qid, text, answers, extra or NO_FIELDS)


def _pop_answers(extra: dict[str, Any], path: str | Path, line: int | None) -> tuple[str, ...]:
    """Remove the answers, a string or a list of strings, from the fields of a record."""
    key = "answers" if "answers" in extra else "answer"
    answers = extra.pop(key, [])
    if isinstance(answers, str):
        answers = [answers]
    if not isinstance(answers, list) or not all(isinstance(each, str) for each in answers):
        raise InputError(path, line, f"{key} {str(answers)[:60]}", "a list of strings")
    return tuple(answers)


def _detect_columns(line: str, path: str | Path, textless: bool) -> TopicsFormat:
    parts = line.split("\t")
    if len(parts) == 1:
        found = f"a line without a tab: {line[:60]!r}"
        raise InputError(path, 1, found, "id and text, or question and answers")
    with_answers = len(parts) == 2 and (textless or is_answer_list(parts[1]))
    return TopicsFormat.DPR if with_answers else TopicsFormat.TSV


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
        answers: Any = None
        with warnings.catch_warnings(), suppress(*BROKEN_LITERAL):
            warnings.simplefilter("ignore")  # "\d" in a pattern is what its author meant
            answers = ast.literal_eval(files.unquote(parts[1].strip()))
        is_list = isinstance(answers, list | tuple)
        if not is_list or not all(isinstance(item, str) for item in answers):
            expected = "a list of strings, ['...', '...']"
            raise InputError(path, line, f"answers {parts[1][:60]!r}", expected)
        yield line, {"question": files.unquote(parts[0]), "answers": list(answers)}


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
    """Write queries in one of `WRITTEN`; return their number."""
    if form is TopicsFormat.TSV:
        return files.write_lines(
            path, (f"{query.qid}\t{files.one_line(query.text)}\n" for query in queries)
        )
    if form is TopicsFormat.DPR:  # the ids become positions
        rows = (
            f"{files.quote(files.one_line(query.text))}\t{list(query.answers)!r}\n"
            for query in queries
        )
        return files.write_lines(path, rows)
    return json_records.write_objects(path, (_record(query, form) for query in queries))


def _record(query: Query, form: TopicsFormat) -> dict[str, Any]:
    id_key, text_key = WRITTEN_KEYS[form]
    answers = {"answers": list(query.answers)} if query.answers else {}
    own = {id_key: query.qid, text_key: query.text, **answers}
    return own | {key: value for key, value in query.extra.items() if key not in own}


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
                    entry = {
                        "docid": docid,
                        "text": f"{files.one_line(title)}\n{files.one_line(text)}",
                    }
                entries.append({**entry, "score": f"{value:.9g}", "has_answer": has_answer})
            name = "contexts" if pyserini else "ctxs"
            record = {"question": query.text, "answers": query.answers, name: entries}
            key = orjson.dumps(query.qid) + b":" if pyserini else b""
            out.write(before + key + orjson.dumps(record))
            before = b",\n"

        yield write
        end = b"\n}\n" if pyserini else b"\n]\n"
        out.write(end if before == b",\n" else before.strip() + end)
