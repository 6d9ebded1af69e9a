"""Commands of jq for JSON that is not read as it is: they stand in the messages of errors."""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from denserk.io import files
from denserk.io.column_names import Column, Table, column_of, columns_by_meaning, plain_name

# a program of jq: a line of ColBERT, [query, [passage, score], ...], in Tevatron's format
SCORED_IDS = (
    "{query_id: .[0], positive_passages: [.[1] | {docid: .[0], score: .[1]}], "
    "negative_passages: [.[2:][] | {docid: .[0], score: .[1]}]}"
)


def choose_keys(records: Sequence[Mapping[str, Any]], table: Table) -> dict[str, str] | None:
    """Return which keys of records of another format most probably are denserk's; None if none is.

    The text is under a known name, or under the key with the longest texts.

    >>> choose_keys([{"doc_key": "a1", "headline": "Moon", "body_text": "a b"}], Table.CORPUS)
    {'_id': 'doc_key', 'title': 'headline', 'text': 'body_text'}
    """
    is_corpus = table is Table.CORPUS
    id_column = Column.PASSAGE_ID if is_corpus else Column.QUERY_ID
    text_column = Column.TEXT if is_corpus else Column.QUERY
    by_meaning = columns_by_meaning(records[0], table)
    id_key = by_meaning.get(id_column)
    if id_key is None:
        id_key = next(filter(is_id_name, records[0]), None)
    lengths = _text_lengths(records)
    if id_key is not None:
        lengths.pop(id_key, None)
    if not lengths:
        return None
    title_key = by_meaning.get(Column.TITLE)
    text_key = by_meaning.get(text_column)
    if text_key not in lengths:
        text_key = _longest_key(lengths, title_key)
    keys = {}
    if id_key is not None:
        keys["_id"] = id_key
    if title_key is not None and title_key in lengths and title_key != text_key:
        keys["title"] = title_key
    # queries without ids are questions, which denserk numbers
    text_name = "text" if is_corpus or id_key is not None else "question"
    keys[text_name] = text_key
    return keys


def _longest_key(lengths: Mapping[str, int], title_key: str | None) -> str:
    """Return the key with the longest texts: that of the title only if it is alone."""
    longest_first = sorted(lengths, key=lambda key: lengths[key], reverse=True)
    if longest_first[0] == title_key and len(longest_first) > 1:
        return longest_first[1]
    return longest_first[0]


def _text_lengths(records: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of characters under each key with texts, over all records."""
    lengths: dict[str, int] = {}
    for record in records:
        for key, value in record.items():
            if isinstance(value, str):
                lengths[key] = lengths.get(key, 0) + len(value)
    return lengths


def is_id_name(name: str) -> bool:
    """Return whether a key is probably that of an id: doc_key, uid, number, url."""
    return re.search(r"(id|key|no|num|number|url|uri)$", plain_name(name)) is not None


def keys_hint(record: Mapping[str, Any], path: str | Path, table: Table) -> str | None:
    """Return a command of jq for JSON records without known keys.

    It renames the keys, or takes the records out of a list or an object inside of this one. None
    for other sources, and for records without a text.
    """
    if not Path(path).is_file() or Path(path).suffix == ".parquet":
        return None
    if not _longest_text(record):
        hint = unpacking_hint(record, path, table) or flattening_hint(record, path)
        if hint is not None:
            return hint
    keys = choose_keys([record], table)
    if keys is None:
        return None
    pairs = [f"{key}: {_jq_path(name)}" for key, name in keys.items()]
    program = f"{{{', '.join(pairs)}}}"
    purpose = "rename the keys"
    if table is Table.QUERIES and all(isinstance(value, str) for value in record.values()):
        purpose = "if it is one object of texts by id, name the format, json; else rename the keys"
    return f"{purpose}: {_jq_command(program, path)}"


def unpacking_hint(record: Mapping[str, Any], path: str | Path, table: Table) -> str | None:
    """Return a command of jq that writes the records which are in a list inside of a record.

    Lists are followed up to records with a text. None for a record without such a list.
    """
    program = ""
    while (nested_records := _find_records(record)) is not None:
        program += nested_records.program
        record = nested_records.first_record
        if _has_text(record, table):
            break
    if not program:
        return None
    return f"if the records are those of {program}: {_jq_command(program, path)}"


class _NestedRecords(NamedTuple):
    """The first record of a list, and the program of jq that yields all of the list."""

    program: str
    first_record: Mapping[str, Any]


def _find_records(record: Mapping[str, Any]) -> _NestedRecords | None:
    """Return the first list of objects in a record, or in an object inside; None without one."""
    for key, value in record.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return _NestedRecords(f"{_jq_path(key)}[]", value[0])
        nested_records = _find_records(value) if isinstance(value, dict) else None
        if nested_records is not None:
            return nested_records._replace(program=_jq_path(key) + nested_records.program)
    return None


def _has_text(record: Mapping[str, Any], table: Table) -> bool:
    """Return whether a record has a text of a table: under a known name, or any of a corpus."""
    texts = {name: value for name, value in record.items() if isinstance(value, str)}
    texts = {name: value for name, value in texts.items() if plain_name(name) != "title"}
    meanings = {column_of(name, table) for name in texts}
    is_known = not meanings.isdisjoint({Column.QUERY, Column.TEXT})
    return is_known or (table is Table.CORPUS and _longest_text(texts) > 0)


def _longest_text(record: Mapping[str, Any]) -> int:
    """Return the length of a record's longest string of several words; 0 without one."""
    texts = [value for value in record.values() if isinstance(value, str) and " " in value.strip()]
    return max(map(len, texts), default=0)


def flattening_hint(record: Mapping[str, Any], path: str | Path) -> str | None:
    """Return a command of jq that moves the fields of an object inside of a record into the record.

    None unless the record's longest text is in such an object.
    """
    longest = _longest_text(record)
    longest_key = None
    for key, value in record.items():
        if isinstance(value, dict) and _longest_text(value) > longest:
            longest = _longest_text(value)
            longest_key = key
    if longest_key is None:
        return None
    key_path = _jq_path(longest_key)
    command = _jq_command(f". + {key_path} | del({key_path})", path)
    return f"if the text is inside of {longest_key}: {command}"


def rewriting_hint(line: bytes, position: int, path: str | Path, *, is_first: bool) -> str | None:
    """Return a command of jq for a line that is not JSON from a position on.

    It writes objects of several lines on one line each, and null for NaN. None for other lines.
    """
    rest = line[position:].lstrip(b"-")
    if rest.startswith((b"NaN", b"Infinity")):
        return f"NaN and Infinity are not JSON; jq replaces them: {_jq_command('.', path)}"
    is_cut = line.lstrip().startswith(b"{") and position >= len(line.rstrip()) - 1
    if is_first and is_cut:
        return f"if objects take several lines: {_jq_command('.', path)}"
    return None


def arrays_of_ids_hint(line: bytes, path: str | Path) -> str | None:
    """Return a command of jq for ColBERT's examples, an array of ids on each line.

    They are triples, or the query's id before passages with scores. None for other lines.
    """
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, list) or len(values) < 2 or isinstance(values[0], list | dict):
        return None
    if len(values) == 3 and not any(isinstance(value, list | dict) for value in values):
        return f"if they are triples of ids: jq -r @tsv {files.shell_path(path)} > converted.tsv"
    if all(isinstance(value, list) and len(value) == 2 for value in values[1:]):
        return f"if they are ids with scores: {_jq_command(SCORED_IDS, path, of_records=False)}"
    return None


def array_of_texts_hint(path: str | Path) -> str:
    """Return a command of jq that makes records of an array of texts."""
    command = _jq_command("{question: .}", path)
    return f"if they are queries (of passages write text in place of question): {command}"


def _jq_command(program: str, path: str | Path, *, of_records: bool = True) -> str:
    """Return a command that writes what a program of jq makes of each record of a file.

    Unless it is `of_records`, the program takes each line, which may be an array.
    """
    if of_records and _is_array(path):
        program = f".[] | {program}"
    output = "converted.jsonl"
    if Path(path).name == output:
        output = f"re{output}"
    if str(path).endswith(".gz"):
        return f"zcat {files.shell_path(path)} | jq -c {shlex.quote(program)} > {output}"
    return f"jq -c {shlex.quote(program)} {files.shell_path(path)} > {output}"


def _is_array(path: str | Path) -> bool:
    """Return whether a file is a JSON array; False for what is no file."""
    if not Path(path).is_file():
        return False
    with files.open_ahead(path, 1 << 10) as (head, _):
        return head.lstrip().startswith(b"[")


def _jq_path(key: str) -> str:
    """Return a key as a program of jq names it."""
    if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", key):
        return f".{key}"
    return f".[{json.dumps(key)}]"
