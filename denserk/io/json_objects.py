"""One JSON object by id: runs, qrels, queries and passages, as programs dump what they hold.

pytrec_eval, ranx and BEIR keep runs and qrels as {query: {passage: number}}; BEIR has queries as
{id: text} and passages as {id: {"title", "text"}}; llama_index's EmbeddingQAFinetuneDataset is
queries, corpus and relevant passages in one object. Such a file is read whole: what an object holds
is known at its last bracket.
"""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from denserk.errors import InputError
from denserk.io.column_names import Table
from denserk.io.json_hints import unpacking_hint
from denserk.io.json_records import Row, identifier, type_name

TEXTS_BY_ID = 'one JSON object: {id: text}, or {id: {"text": ..., ...}}'
EMBEDDING_DATA = (
    "one JSON object of llama_index: queries {id: text}, corpus {id: text}, "
    "relevant_docs {query id: [passage ids]}"
)


class Fault(NamedTuple):
    """What is wrong inside a JSON document, and the keys that lead to it."""

    keys: tuple[str, ...]
    description: str

    def __str__(self) -> str:
        return f"{self.description} under {', '.join(key[:80] for key in self.keys)}"


def find_fault(data: bytes) -> Fault | None:
    """Return the first key that an object has twice, or number that is not finite; None if none is.

    >>> print(find_fault(b'{"q1": {"d1": 1, "d1": 2}}'))
    a key twice under q1, d1
    >>> print(find_fault(b'{"q1": {"d1": NaN}}'))
    NaN under q1, d1
    """
    try:
        value = json.loads(
            data,
            object_pairs_hook=_fault_of_members,
            parse_constant=partial(Fault, ()),
            parse_int=str,
            parse_float=str,
        )
    except (ValueError, RecursionError):
        return None  # no JSON: the parser of the values says why
    return value if isinstance(value, Fault) else None


def _fault_of_members(members: list[tuple[str, Any]]) -> Fault | None:
    """Return the fault of an object, whose values are the faults of the objects inside."""
    names = set()
    for name, value in members:
        if name in names:
            return Fault((name,), "a key twice")
        names.add(name)
        if isinstance(value, Fault):
            return Fault((name, *value.keys), value.description)
    return None


def load_object(data: bytes, path: str | Path, expected: str) -> dict[str, Any]:
    """Return the object that a file is, whose keys are distinct and whose numbers are finite."""
    fault = find_fault(data)
    if fault is not None:
        raise InputError(path, None, str(fault), expected)
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InputError(path, None, f"a document that is not JSON ({error})", expected) from None
    if not isinstance(value, dict):
        raise InputError(path, None, type_name(value), expected)
    return value


class QueryScores(NamedTuple):
    """The scores or grades of a query's passages."""

    qid: str
    scores: Mapping[str, float]


def read_scores(data: bytes, path: str | Path, expected: str) -> Iterator[QueryScores]:
    """Yield the finite numbers of each query in {query: {passage: number}}."""
    for name, scores in load_object(data, path, expected).items():
        qid = identifier(name, path, None, "query")
        if not isinstance(scores, dict):
            raise InputError(path, None, f"{type_name(scores)} for query {qid}", expected)
        for docid, score in scores.items():
            identifier(docid, path, None, "passage")
            if type(score) not in (int, float) or not isfinite(score):
                shown = repr(score)[:40] if isinstance(score, str | float) else type_name(score)
                found = f"{shown} for query {qid}, passage {docid}"
                raise InputError(path, None, found, expected)
        yield QueryScores(qid, scores)


def read_texts(data: bytes, path: str | Path, unit: str) -> Iterator[Row]:
    """Yield (no line, record with `_id`) of {id: text} or {id: record}: a `unit` for each id."""
    return _texts_by_id(load_object(data, path, TEXTS_BY_ID), path, unit, TEXTS_BY_ID)


def _texts_by_id(
    values: Mapping[str, Any], path: str | Path, unit: str, expected: str
) -> Iterator[Row]:
    """Yield records of texts, or of records, by id."""
    for id, value in values.items():
        if isinstance(value, str):
            yield None, {"_id": id, "text": value}
        elif isinstance(value, dict):
            # `_id` comes first, and is the key, not an `_id` inside
            yield None, {"_id": id} | value | {"_id": id}
        else:
            found = f"{type_name(value)} for {unit} {id[:80]}"
            hint = unpacking_hint(
                values, path, Table.CORPUS if unit == "passage" else Table.QUERIES
            )
            raise InputError(path, None, found, expected, hint)


class EmbeddingData(NamedTuple):
    """A data set of llama_index: texts by id, and the ids of the passages that answer a query."""

    queries: Mapping[str, Any]
    corpus: Mapping[str, Any]
    relevant_docs: Mapping[str, Any]


def load_embedding_data(data: bytes, path: str | Path) -> EmbeddingData:
    """Return the three parts of a data set of llama_index, each of which must be an object."""
    value = load_object(data, path, EMBEDDING_DATA)
    for name in EmbeddingData._fields:
        if name not in value:
            raise InputError(path, None, f"no {name}", EMBEDDING_DATA)
        if not isinstance(value[name], dict):
            raise InputError(path, None, f"{type_name(value[name])} as {name}", EMBEDDING_DATA)
    return EmbeddingData(value["queries"], value["corpus"], value["relevant_docs"])


def read_embedding_queries(data: bytes, path: str | Path) -> Iterator[Row]:
    """Yield (no line, record with `_id`) of the queries of a data set of llama_index."""
    return _texts_by_id(load_embedding_data(data, path).queries, path, "query", EMBEDDING_DATA)


def read_embedding_corpus(data: bytes, path: str | Path) -> Iterator[Row]:
    """Yield (no line, record with `_id`) of the passages of a data set of llama_index."""
    return _texts_by_id(load_embedding_data(data, path).corpus, path, "passage", EMBEDDING_DATA)


class QueryPassages(NamedTuple):
    """A query, and the ids of passages that belong to it, each once."""

    qid: str
    docids: tuple[str, ...]


def relevant_passages(data: EmbeddingData, path: str | Path) -> Iterator[QueryPassages]:
    """Yield the relevant passages of each query of a data set of llama_index."""
    return _lists_by_query(data.relevant_docs, path, EMBEDDING_DATA)


def read_lists(data: bytes, path: str | Path, expected: str) -> Iterator[QueryPassages]:
    """Yield the passages of each query in {query: [passage ids]}."""
    return _lists_by_query(load_object(data, path, expected), path, expected)


def _lists_by_query(
    lists: Mapping[str, Any], path: str | Path, expected: str
) -> Iterator[QueryPassages]:
    """Yield the passages of each query, whose ids are checked."""
    for name, ids in lists.items():
        qid = identifier(name, path, None, "query")
        if not isinstance(ids, list):
            found = f"{type_name(ids)} as the passages of query {qid}"
            raise InputError(path, None, found, expected)
        docids = [identifier(id, path, None, "passage") for id in ids]
        yield QueryPassages(qid, tuple(dict.fromkeys(docids)))
