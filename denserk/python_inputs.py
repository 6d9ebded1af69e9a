"""What the Python API takes in memory: texts, scores, training records and vectors.

`read_texts` is the one function that turns what a user gives into texts; `read_scores` and
`read_vectors` do the same for runs, qrels and vectors. What they do not know is a UsageError that
says what was given and what is taken: nothing is taken for something else.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from denserk.errors import DenserkError, UsageError
from denserk.io.json_records import identifier
from denserk.io.vector_formats import reject_non_finite
from denserk.records import EXCLUDED_IDS, NO_FIELDS, Passage, Query

# Columns of data frames and keys of records: the names that other toolkits use.
QID = ("qid", "query_id", "query-id", "q_id", "_id", "id")
DOCID = ("docid", "doc_id", "docno", "corpus-id", "_id", "id")
SCORE = ("score", "relevance", "rel", "label")
ARRAY = "a NumPy array or a torch tensor of shape (N, D)"
SHOWN = 60  # characters of a wrong value that a message shows


class Text(NamedTuple):
    """A text with its fields, and its id if the user gave one."""

    id: str | None
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class TextKind:
    """What texts are called in messages, and the columns of their ids and texts."""

    name: str
    record: str
    id_columns: tuple[str, ...]
    text_columns: tuple[str, ...]
    expected: str

    def error(self, found: str) -> UsageError:
        """Return an error that says what was given, and what is taken."""
        return UsageError(f"{self.name}: found {found}; expected {self.expected}")


QUERIES = TextKind(
    "queries",
    "query",
    QID,
    ("query", "text", "query_text"),
    "a text, a list of texts, a dict of texts by id, a list of dicts with qid and query, or a "
    "DataFrame of these columns",
)
PASSAGES = TextKind(
    "passages",
    "passage",
    DOCID,
    ("text", "contents"),
    "a text, a list of texts, a dict of texts by id, a list of dicts with docid, title and text, "
    "or a DataFrame of these columns",
)


def read_texts(value: Any, kind: TextKind) -> list[Text]:
    """Return the texts that a user gave, in their order.

    >>> read_texts({"q1": "moon"}, QUERIES)
    [Text(id='q1', fields={'text': 'moon'})]
    >>> read_texts([{"qid": 7, "query": "moon"}], QUERIES)
    [Text(id='7', fields={'qid': 7, 'query': 'moon'})]
    >>> read_texts("moon", QUERIES)
    [Text(id=None, fields={'text': 'moon'})]
    """
    texts = []
    for position, (key, item) in enumerate(_items(value, kind)):
        if isinstance(item, str):
            fields: Mapping[str, Any] = {"text": item}
        elif isinstance(item, Mapping):
            fields = {str(name): field for name, field in item.items()}
        else:
            name = f"item {position}" if key is None else repr(key)
            raise kind.error(f"{_described(item)} as {name}")
        if key is None:
            key = _first_field(fields, kind.id_columns)
        id = None if key is None else _id(key, kind.name, kind.record)
        _reject_surrogates(fields, kind.name, position)
        texts.append(Text(id, fields))
    return texts


def _first_field(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return the first of the named fields that a record has; None if it has none of them."""
    for name in names:
        if name in fields:
            return fields[name]
    return None


def _items(value: Any, kind: TextKind) -> Iterable[tuple[Any, Any]]:
    """Return (id or None, text or record) of what a user gave."""
    if isinstance(value, str):
        return [(None, value)]
    if isinstance(value, Mapping) and _is_record(value, kind):
        return [(None, value)]
    if isinstance(value, Mapping):
        return value.items()
    if is_frame(value):
        columns = [str(name) for name in value.columns]
        if not set(columns) & set(kind.text_columns):
            raise kind.error(f"a DataFrame with the columns {_shown(', '.join(columns))}")
        return [(None, record) for record in _rows(value)]
    if _is_series(value):
        return zip(value.index.tolist(), value.tolist(), strict=True)
    if isinstance(value, np.ndarray) and _has_texts(value):
        return [(None, item) for item in np.atleast_1d(value).tolist()]
    if not _is_sequence_of_items(value):
        raise kind.error(_described(value))
    return [(None, item) for item in value]


def _has_texts(array: NDArray[Any]) -> bool:
    """Return whether an array is one text or a list of them."""
    return array.dtype.kind in "UTO" and array.ndim <= 1


def _is_sequence_of_items(value: Any) -> bool:
    """Return whether an object yields texts or records in an order that is the user's."""
    if isinstance(value, np.ndarray) or is_vectors(value):
        return False
    if isinstance(value, bytes | bytearray | memoryview | set | frozenset):
        return False
    if hasattr(value, "__fspath__"):  # a path: its parts are no texts
        return False
    return isinstance(value, Iterable)


def _is_record(value: Mapping[Any, Any], kind: TextKind) -> bool:
    """Return whether a dict is one record with a text; reject one that may as well be texts by id.

    >>> _is_record({"qid": "q1", "query": "moon", "language": "en"}, QUERIES)
    True
    >>> _is_record({"q1": "moon"}, QUERIES)
    False
    """
    if not any(isinstance(value.get(name), str) for name in kind.text_columns):
        return False
    if not {*kind.id_columns, "title"}.isdisjoint(value):
        return True
    extra_fields = [field for name, field in value.items() if name not in kind.text_columns]
    if not extra_fields or not all(_may_be_text(field, kind) for field in extra_fields):
        return True
    names = _shown(", ".join(map(str, value)))
    raise UsageError(
        f"{kind.name}: a dict with the keys {names} may be one {kind.record} or several by id",
        f"give one {kind.record} an id, {kind.id_columns[0]}, or give several as a list of dicts",
    )


def _may_be_text(value: Any, kind: TextKind) -> bool:
    """Return whether a value may be a text, or a record with one."""
    if isinstance(value, Mapping):
        return not value.keys().isdisjoint(kind.text_columns)
    return isinstance(value, str)


def read_queries_of(value: Any) -> list[Query]:
    """Return queries with distinct ids: texts without ids are "0", "1", ..."""
    texts = _with_ids(read_texts(value, QUERIES), QUERIES)
    queries = []
    for text in texts:
        excluded = _excluded_ids(text)
        extra = {EXCLUDED_IDS: excluded} if excluded else NO_FIELDS
        queries.append(Query(str(text.id), _text(text, QUERIES), extra=extra))
    return queries


def _excluded_ids(query: Text) -> list[str]:
    """Return the passages that a query must not return; a missing value is none."""
    docids = query.fields.get(EXCLUDED_IDS)
    if docids is None or isinstance(docids, float):
        return []
    if isinstance(docids, str) or not isinstance(docids, Iterable):
        raise QUERIES.error(f"{_described(docids)} as {EXCLUDED_IDS} of {query.id}")
    return [_id(docid, QUERIES.name, "passage") for docid in docids]


def has_records(value: Any) -> bool:
    """Return whether an object is a table of records: a DataFrame, or a list of dicts."""
    if is_frame(value):
        return True
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], Mapping)


def has_passage_fields(table: Any) -> bool:
    """Return whether the first record of a table has the fields of an id and of a text."""
    records = _rows(table[:1]) if is_frame(table) else table
    names = {str(name) for name in records[0]} if records else set()
    return not names.isdisjoint(PASSAGES.id_columns) and not names.isdisjoint(PASSAGES.text_columns)


def read_passages_of(value: Any) -> list[Passage]:
    """Return passages with distinct ids: texts without ids are "0", "1", ..."""
    texts = _with_ids(read_texts(value, PASSAGES), PASSAGES)
    return [_passage(text, str(text.id)) for text in texts]


def read_query_texts(value: Any) -> list[Query]:
    """Return queries to encode, which need no ids."""
    return [Query("", _text(text, QUERIES)) for text in read_texts(value, QUERIES)]


def read_passage_texts(value: Any) -> list[Passage]:
    """Return passages to encode, which need no ids."""
    return [_passage(text, "") for text in read_texts(value, PASSAGES)]


def is_single(value: Any, kind: TextKind) -> bool:
    """Return whether a user gave one text, and not several."""
    return isinstance(value, str) or (isinstance(value, Mapping) and _is_record(value, kind))


def _with_ids(texts: Sequence[Text], kind: TextKind) -> list[Text]:
    """Number texts without ids; reject records without them, and ids that occur twice."""
    numbered = []
    for position, text in enumerate(texts):
        if text.id is None and text.fields.keys() != {"text"}:
            columns = ", ".join(text.fields)
            raise kind.error(f"no id among {_shown(columns)} of item {position}")
        id = str(position) if text.id is None else text.id
        numbered.append(Text(id, text.fields))
    _reject_repeated_ids([str(text.id) for text in numbered], kind.name)
    return numbered


def _reject_repeated_ids(ids: Iterable[str], argument: str) -> None:
    """Raise a UsageError for an id that occurs twice; `argument` is the name in the message."""
    distinct_ids = set()
    for id in ids:
        if id in distinct_ids:
            raise UsageError(f"{argument}: the id {id} occurs twice", "give each id once")
        distinct_ids.add(id)


def _text(text: Text, kind: TextKind) -> str:
    """Return the text of a record; a number is written out, a missing value is an error."""
    columns = [name for name in kind.text_columns if name in text.fields]
    if not columns:
        raise kind.error(f"a dict with the keys {_shown(', '.join(text.fields))}")
    name = columns[0]
    value = text.fields[name]
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        record = "" if text.id is None else f" of {text.id}"
        raise kind.error(f"{_described(value)} as {name}{record}")
    return value


def _passage(text: Text, docid: str) -> Passage:
    """Return a passage; its other fields are kept, and a missing title is empty."""
    passage_columns = {"text", "title", *DOCID}
    extra = {name: value for name, value in text.fields.items() if name not in passage_columns}
    title = text.fields.get("title")
    if not isinstance(title, str):
        title = ""
    return Passage(docid, _text(text, PASSAGES), title, extra)


def _id(value: Any, argument: str, record: str) -> str:
    """Return the id of a record, which is a string without white space, or a whole number."""
    if isinstance(value, np.generic):
        value = value.item()
    try:
        text = identifier(value, argument, None, record)
    except DenserkError as error:
        raise UsageError(error.message, error.hint) from None
    if "\0" in text:  # where trec_eval would end the id, and take two passages for one
        raise UsageError(f"{argument}: found a zero byte in the {record} id {_shown(repr(text))}")
    if _has_surrogate(text):
        raise _surrogate_error(text, f"{argument}: found the {record} id")
    return text


def _reject_surrogates(fields: Mapping[str, Any], argument: str, position: int) -> None:
    """Raise a UsageError for a text among the fields of a record that no file can hold."""
    for name, value in fields.items():
        if isinstance(value, str) and _has_surrogate(value):
            raise _surrogate_error(value, f"{argument}: found, as {name} of item {position},")


def _has_surrogate(text: str) -> bool:
    r"""Return whether a text has half of a character: UTF-8 cannot encode it.

    >>> _has_surrogate("café"), _has_surrogate(b"caf\xe9".decode("utf-8", "surrogateescape"))
    (False, True)
    """
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _surrogate_error(text: str, found: str) -> UsageError:
    """Return the error of a text with half of a character."""
    return UsageError(
        f"{found} {_shown(ascii(text))}; expected text that UTF-8 can encode",
        'of the name of a file: os.fsencode(name).decode("utf-8", "replace")',
    )


def read_records(value: Any, argument: str) -> list[dict[str, Any]]:
    """Return a list of dicts, or the rows of a DataFrame, as dicts."""
    rows = _rows(value) if is_frame(value) else value
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes | Mapping | AbstractSet):
        raise wrong_argument(argument, value, "a path, a list of dicts, or a DataFrame")
    records = []
    for position, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise UsageError(
                f"{argument}: found {_described(row)} as item {position}; expected a dict"
            )
        record = {str(name): field for name, field in row.items()}
        _reject_surrogates(record, argument, position)
        records.append(record)
    return records


def read_scores(value: Any, argument: str) -> dict[str, dict[str, float]]:
    """Return a run or qrels as {query id: {passage id: finite score}}."""
    if isinstance(value, Mapping):
        return _scores_of_mapping(value, argument)
    scores: dict[str, dict[str, float]] = {}
    for row in read_records(value, argument):
        qid = _id(_column(row, QID, argument), argument, "query")
        docid = _id(_column(row, DOCID, argument), argument, "passage")
        hits = scores.setdefault(qid, {})
        if docid in hits:
            raise UsageError(f"{argument}: passage {docid} occurs twice for query {qid}")
        hits[docid] = _score(_column(row, SCORE, argument), qid, docid, argument)
    return scores


def _scores_of_mapping(value: Mapping[Any, Any], argument: str) -> dict[str, dict[str, float]]:
    """Return the scores of a dict of dicts, with ids that are strings."""
    scores: dict[str, dict[str, float]] = {}
    for query_key, hits in value.items():
        if not isinstance(hits, Mapping):
            raise UsageError(
                f"{argument}: found {_described(hits)} as the hits of {query_key!r}; "
                "expected a dict of scores by passage id"
            )
        qid = _id(query_key, argument, "query")
        if qid in scores:
            raise UsageError(f"{argument}: the query id {qid} occurs twice", "give each id once")
        scores[qid] = {}
        for passage_key, score in hits.items():
            docid = _id(passage_key, argument, "passage")
            if docid in scores[qid]:
                raise UsageError(f"{argument}: passage {docid} occurs twice for query {qid}")
            scores[qid][docid] = _score(score, qid, str(passage_key), argument)
    return scores


def _column(row: Mapping[str, Any], names: Sequence[str], argument: str) -> Any:
    """Return the first of the named columns that a row has."""
    for name in names:
        if name in row:
            return row[name]
    columns = _shown(", ".join(row))
    raise UsageError(f"{argument}: found the columns {columns}; expected one of {', '.join(names)}")


def _score(value: Any, qid: str, docid: str, argument: str) -> float:
    """Return a finite score; a whole number stays whole."""
    if isinstance(value, np.generic):
        value = value.item()
    if not _is_finite(value):
        raise UsageError(
            f"{argument}: found the score {_shown(repr(value))} of query {qid}, passage {docid}; "
            "expected a finite number"
        )
    return value


def _is_finite(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number that a float can hold."""
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False


def grade(value: float, qid: str) -> int:
    """Return the grade of a relevance judgment, which is a whole number."""
    if value != int(value):
        raise UsageError(f"qrels: found the grade {value} of query {qid}; expected a whole number")
    return int(value)


def is_vectors(value: Any) -> bool:
    """Return whether an object is a torch tensor or a NumPy array of numbers."""
    if _is_tensor(value):
        return True
    return isinstance(value, np.ndarray) and value.dtype.kind in "fiuc"


def read_vectors(value: Any, argument: str) -> NDArray[np.float32]:
    """Return (N, D) float32 vectors of a torch tensor or of a NumPy array; (D,) is one vector."""
    if _is_tensor(value):
        value = value.detach().cpu()
        if value.is_floating_point():
            value = value.float()  # NumPy has no bfloat16
        value = value.numpy()
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
        raise wrong_argument(argument, value, ARRAY)
    rows = value[None] if value.ndim == 1 else value
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise wrong_argument(argument, value, ARRAY)
    with np.errstate(over="ignore"):
        return rows.astype(np.float32, copy=False)


def read_docids(docids: Any, argument: str) -> list[str]:
    """Return the ids of passages, in their order; those of a run's hits are its keys."""
    if isinstance(docids, str | bytes) or not isinstance(docids, Iterable):
        raise wrong_argument(argument, docids, "ids of passages")
    return [_id(docid, argument, "passage") for docid in docids]


def read_ids(ids: Any, vectors: NDArray[np.float32]) -> list[str]:
    """Return one distinct id for each of (N, D) finite vectors: by default the row numbers."""
    if ids is None:
        names = [str(number) for number in range(len(vectors))]
    elif isinstance(ids, str | bytes | Mapping | AbstractSet) or not isinstance(ids, Iterable):
        raise wrong_argument("ids", ids, f"a list of {len(vectors):,} ids")
    else:
        names = [_id(value, "ids", "passage") for value in ids]
    if len(names) != len(vectors):
        raise UsageError(f"{len(names):,} ids for {len(vectors):,} vectors", "give one id a vector")
    _reject_repeated_ids(names, "ids")
    if len(vectors):
        try:
            reject_non_finite("vectors", names, vectors)
        except DenserkError as error:
            error.hint = "give finite numbers that float32 can hold"
            raise
    return names


def wrong_argument(argument: str, value: Any, expected: str) -> UsageError:
    """Return the error of an argument of a wrong type.

    >>> wrong_argument("path", 7, "a path or a name").message
    'path: found int 7; expected a path or a name'
    """
    return UsageError(f"{argument}: found {_described(value)}; expected {expected}")


def _is_tensor(value: Any) -> bool:
    # torch itself takes seconds to import
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach")


def is_frame(value: Any) -> bool:
    """Return whether an object is a DataFrame of pandas or polars."""
    return hasattr(value, "to_dict") and hasattr(value, "columns")


def _rows(frame: Any) -> list[dict[Any, Any]]:
    """Return the rows of a DataFrame of pandas or polars."""
    rows = frame.to_dicts() if hasattr(frame, "to_dicts") else frame.to_dict("records")
    return list(rows)


def _is_series(value: Any) -> bool:
    return hasattr(value, "to_dict") and hasattr(value, "index") and not is_frame(value)


def _described(value: Any) -> str:
    """Describe a wrong object: its type, and its shape or its value where that is short."""
    name = type(value).__name__
    if value is None:
        return "None"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{name} of shape {tuple(value.shape)} and type {value.dtype}"
    if isinstance(value, str | bytes | int | float):
        return f"{name} {_shown(repr(value))}"
    return f"an object of type {name}"


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
