"""Training data: queries with positives and negatives, in every format; pairs of sentences.

An absent query id is the number of the record, from 0. A triple is a line: lines of one query that
follow each other make one example, and an example is written as every positive with every negative.
DPR's random negatives stay among the extra fields.

Pairs of sentences have a label (sentence1, sentence2, label or score), triplets none (anchor,
positive, negative; or Sentence1, Sentence2, Sentence3). Columns are keys of JSON lines, or named by
a header: between tabs nothing is quoted (GLUE's STS-B), in CSV a column may be. Without a
header three columns between tabs have the order above, and seven or more are the STS benchmark's.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby, product
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from denserk.config.formats import READ_ONLY_TRAINING, WITHOUT_TEXTS, TrainingFormat
from denserk.errors import DenserkError, InputError
from denserk.io import (
    clicks,
    column_names,
    delimited,
    detection,
    files,
    json_hints,
    json_objects,
    json_records,
    unread_files,
    written_files,
)
from denserk.io.column_names import Column, Table, TrainingColumns, training_columns
from denserk.io.detection import PASSAGE_LISTS
from denserk.io.file_head import FileHead
from denserk.io.json_records import Fields, dump_json, list_keys
from denserk.io.short_texts import columns_phrase, first_names, is_number, one_line
from denserk.records import Candidate, SentenceExample, TrainingExample

logger = logging.getLogger(__name__)

# keys of an id in objects of passages: the first that an object has counts
PASSAGE_ID_KEYS = ("docid", "passage_id", "psg_id")
RANDOM_NEGATIVES = "negative_ctxs"  # DPR's key of negatives that it does not train with
# columns of pairs and triplets of sentences
LABELS = ("label", "score", "similarity_score")
EMBEDDING_TEXTS = "a text for each id of relevant_docs"
PAIR = ("sentence1", "sentence2")
TRIPLET = ("anchor", "positive", "negative")
TRIPLETS = (TRIPLET, ("sentence1", "sentence2", "sentence3"))
BENCHMARK = ("genre", "file", "year", "number", "score", *PAIR)  # STS, without a header
# what files of sentences hold, by the number of sentences that an example must have
EXPECTED_SENTENCES = {
    None: "pairs (sentence1, sentence2, label) or triplets (anchor, positive, negative)",
    2: "pairs: the columns sentence1, sentence2, and label or score",
    3: "triplets: the columns anchor, positive, negative",
}
Candidates = tuple[Candidate, ...]
Row = tuple[int, Mapping[Any, Any]]  # line number, columns by name or number


def _read_passages(fields: Fields, key: str) -> Candidates:
    """Return the passages of a list of objects with id, text, title and score."""
    candidates = []
    for value in fields.items(key, dict):
        passage = Fields(value, fields.path, fields.line)
        id_key = next((name for name in PASSAGE_ID_KEYS if name in passage), PASSAGE_ID_KEYS[0])
        candidate = Candidate(
            docid=passage.identifier(id_key),
            text=passage.text("text"),
            title=passage.text("title"),
            score=passage.number("score"),
            extra=passage.rest((*PASSAGE_ID_KEYS, "text", "title", "score")),
        )
        candidates.append(candidate)
    return tuple(candidates)


def _read_texts(fields: Fields, key: str) -> Candidates:
    """Return the passages of a list of texts, whose scores may stand in a list beside it."""
    texts = fields.texts(key)
    scores_key = f"{key}_scores"
    scores = fields.items(scores_key) or [None] * len(texts)
    if len(scores) != len(texts):
        found = f"{len(scores)} {scores_key} for {len(texts)} {key}"
        raise fields.error(found, "one score for each text")
    return tuple(
        Candidate(text=text, score=fields.as_number(score, scores_key))
        for text, score in zip(texts, scores, strict=True)
    )


def _read_ids(fields: Fields, key: str) -> Candidates:
    """Return the ids of a list, or of lists by the system that retrieved them, there each once."""
    value = fields.record.get(key)
    if not isinstance(value, dict):
        return tuple(map(Candidate, fields.identifiers(key)))
    ids_by_system = Fields(value, fields.path, fields.line)
    ids: dict[str, None] = {}
    for system in value:
        ids.update(dict.fromkeys(ids_by_system.identifiers(system)))
    return tuple(map(Candidate, ids))


def _to_passage(candidate: Candidate, id_key: str = "docid") -> dict[str, Any]:
    """Return a passage as the object that `_read_passages` reads."""
    passage: dict[str, Any] = {
        id_key: candidate.docid,
        "title": candidate.title,
        "text": candidate.text,
    }
    if candidate.score is not None:
        passage["score"] = candidate.score
    return {**passage, **candidate.extra}


class JsonFormat(NamedTuple):
    """A format of one JSON record an example: its keys, and how its lists hold passages."""

    qid: str  # empty if queries have no ids
    query: str
    positives: str
    negatives: str
    read: Callable[[Fields, str], Candidates]  # the passages of the list under a key
    write: Callable[[Candidate], Any]  # a passage as an item of such a list

    def example(self, fields: Fields, qid: str = "") -> TrainingExample:
        """Return the example of a record; `qid` is the query's id if the record has none."""
        read_keys = [self.qid, self.query, self.positives, self.negatives, "answers"]
        if self.read is _read_texts:
            read_keys += [f"{self.positives}_scores", f"{self.negatives}_scores"]
        # an empty list of random negatives, which DPR's records must have, is no extra field
        if self.read is _read_passages and not fields.record.get(RANDOM_NEGATIVES):
            read_keys.append(RANDOM_NEGATIVES)
        return TrainingExample(
            qid=fields.identifier(self.qid, qid),
            query=fields.text(self.query),
            positives=self.read(fields, self.positives),
            negatives=self.read(fields, self.negatives),
            answers=fields.texts("answers"),
            extra=fields.rest(read_keys),
        )


class ColumnFormat(NamedTuple):
    """A format of lines with columns, each of which is read as a record of a JSON format.

    The columns are the query and its passages, or else a list of negatives: by their names where
    these are known, otherwise in this order, a positive first.
    """

    expected: str
    widths: Sequence[int]
    json_format: JsonFormat
    lists_negatives: bool = False  # in one column, with commas between them

    @property
    def holds_ids(self) -> bool:
        """Return whether the columns are ids, not texts."""
        return self.json_format is IDS

    def example(self, fields: Fields, columns: TrainingColumns | None = None) -> TrainingExample:
        """Return the example of a line; `columns` say what its columns hold."""
        if columns is None:
            columns = training_columns(list(fields.record), ids=self.holds_ids)
        self._check(fields, columns)
        positives, negatives = self._positives_and_negatives(fields, columns)
        qid = "" if columns.query_id is None else fields.identifier(columns.query_id)
        # among ids, the query is its id, too
        query_key = self.json_format.qid or self.json_format.query
        record = {
            query_key: fields.record[columns.query],
            self.json_format.positives: positives,
            self.json_format.negatives: negatives,
        }
        return self.json_format.example(Fields(record, fields.path, fields.line), qid)

    def _check(self, fields: Fields, columns: TrainingColumns) -> None:
        """Raise an error for a line with another number of columns, or a label of no use."""
        width = 1 + len(columns.positives) + len(columns.negatives)  # with the query
        if columns.label is not None:
            # a label says of one passage whether it is a positive; a score says no such thing
            is_label = str(columns.label).lower() == "label"
            if not is_label or width != 2:
                raise fields.error(f"the column {columns.label}", self.expected)
        if columns.query is None or width not in self.widths:
            raise fields.error(columns_phrase(len(fields.record)), self.expected)

    def _positives_and_negatives(
        self, fields: Fields, columns: TrainingColumns
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the positives and the negatives of a line, texts or ids."""
        positives = _column_values(fields.record, columns.positives)
        negatives = _column_values(fields.record, columns.negatives)
        if columns.label is not None:
            grade = fields.number(columns.label)
            if grade not in (0, 1):
                raise fields.error(f"the label {grade}", "1 of a positive or 0 of a negative")
            passages = positives + negatives
            positives = passages if grade == 1 else []
            negatives = passages if grade == 0 else []
        if self.lists_negatives:
            (name,) = columns.positives + columns.negatives
            docids = [docid.strip() for docid in fields.text(name).split(",")]
            return [], [docid for docid in docids if docid]
        return positives, negatives


def _column_values(record: Mapping[Any, Any], names: Iterable[Any]) -> list[Any]:
    """Return the values of columns, each of which is a text, an id or a list of them."""
    values: list[Any] = []
    for name in names:
        value = record[name]
        values += value if isinstance(value, list) else [value]
    return values


_docid = attrgetter("docid")
_text = attrgetter("text")
_to_dpr = partial(_to_passage, id_key="passage_id")
TEXTS = JsonFormat("", "query", *PASSAGE_LISTS[TrainingFormat.FLAG], read=_read_texts, write=_text)
IDS = JsonFormat("qid", "query", *PASSAGE_LISTS[TrainingFormat.FLAG], read=_read_ids, write=_docid)
# the formats of one JSON record an example
KEYS = {
    TrainingFormat.TEVATRON: JsonFormat(
        "query_id",
        "query",
        *PASSAGE_LISTS[TrainingFormat.TEVATRON],
        read=_read_passages,
        write=_to_passage,
    ),
    TrainingFormat.TEVATRON_IDS: JsonFormat(
        "query_id",
        "query_text",
        *PASSAGE_LISTS[TrainingFormat.TEVATRON_IDS],
        read=_read_ids,
        write=_docid,
    ),
    TrainingFormat.DPR: JsonFormat(
        "query_id",
        "question",
        *PASSAGE_LISTS[TrainingFormat.DPR],
        read=_read_passages,
        write=_to_dpr,
    ),
    TrainingFormat.FLAG: TEXTS,
    TrainingFormat.ST_IDS: IDS,
}
# the formats of lines, of which several may be one example
COLUMNS = {
    TrainingFormat.ST_TRIPLET: ColumnFormat(
        "at least 2 columns of texts alone: anchor, positive[, negatives]", range(2, 1 << 20), TEXTS
    ),
    TrainingFormat.TRIPLES: ColumnFormat("3 columns: query id, positive id, negative id", [3], IDS),
    TrainingFormat.TEXT_TRIPLES: ColumnFormat(
        "3 columns: query, positive, negative text", [3], TEXTS
    ),
    TrainingFormat.NEGATIVES: ColumnFormat(
        "2 columns: query id, negative ids with commas between them", [2], IDS, lists_negatives=True
    ),
}
WRITTEN = tuple(
    training_format
    for training_format in TrainingFormat
    if training_format not in READ_ONLY_TRAINING
)


def random_negatives(example: TrainingExample, path: str | Path) -> Candidates:
    """Return the random negatives of a DPR example; `path` names the input in errors."""
    return _read_passages(Fields(example.extra, path, None), RANDOM_NEGATIVES)


def all_candidates(example: TrainingExample) -> Candidates:
    """Return positives and negatives."""
    return example.positives + example.negatives


def packed(example: TrainingExample) -> bytes:
    """Return an example as JSON for a temporary file, which `unpacked` reads."""
    return orjson.dumps(example, default=_as_json)


def _as_json(value: Any) -> Any:
    """Return a named tuple as a list and a read-only mapping as a dict."""
    return dict(value) if isinstance(value, Mapping) else list(value)


def unpacked(record: bytes) -> TrainingExample:
    """Return the example of a `packed` record."""
    qid, query, positives, negatives, answers, extra = orjson.loads(record)
    return TrainingExample(
        qid,
        query,
        tuple(Candidate(*fields) for fields in positives),
        tuple(Candidate(*fields) for fields in negatives),
        tuple(answers),
        extra,
    )


def read_training(
    source: str | Path, training_format: TrainingFormat | None = None
) -> Iterator[TrainingExample]:
    """Read training examples one at a time; a `training_format` of None is detected.

    The source is a file, plain or gzip by suffix; "-"; Parquet, or a folder of it; a folder that
    `datasets` saved; `hf:NAME`.
    """
    with files.open_ahead(source, part="train") as (head, handle):
        unread_files.reject_binary(head, source, Table.TRAINING)
        files.reject_carriage_returns(head, source)
        if training_format is None:
            training_format = _detect_format(head, source)
        if training_format is TrainingFormat.LLAMA_INDEX:
            yield from _embedding_examples(files.read_all(handle, source), source)
        elif training_format is TrainingFormat.CLICKS:
            yield from clicks.clicked_examples(source, handle=handle)
        elif training_format in KEYS:
            yield from _json_examples(handle, head, source, KEYS[training_format])
        else:
            line_examples = _column_examples(handle, head, source, training_format)
            yield from _join_line_examples(line_examples)


def _detect_format(head: bytes, source: str | Path) -> TrainingFormat:
    """Return the format of training data by its beginning."""
    file_head = FileHead(head)
    if detection.has_generated_queries(file_head):
        raise unread_files.generated_queries_error(source, Table.TRAINING)
    training_format = detection.format_of(file_head, TrainingFormat)
    if training_format is None:
        raise _unknown_format(head, source)
    logger.info(f"{source}: training data in the format {training_format}")
    return training_format


def _json_examples(
    handle: BinaryIO, head: bytes, source: str | Path, json_format: JsonFormat
) -> Iterator[TrainingExample]:
    """Yield the example of each record; an absent id of a query is the number of the record."""
    records = json_records.read_json(handle, head.lstrip()[:1], source)
    for number, (line, record) in enumerate(records):
        yield json_format.example(Fields(record, source, line), str(number))


def _join_line_examples(line_examples: Iterable[TrainingExample]) -> Iterator[TrainingExample]:
    """Join the lines of one query that follow each other; an absent id is the example's number."""
    groups = groupby(line_examples, key=lambda example: (example.qid, example.query))
    for number, ((qid, query), group) in enumerate(groups):
        examples_of_query = list(group)
        positives = _distinct_candidates(example.positives for example in examples_of_query)
        negatives = _distinct_candidates(example.negatives for example in examples_of_query)
        yield TrainingExample(qid or str(number), query, positives, negatives)


def _embedding_examples(data: bytes, source: str | Path) -> Iterator[TrainingExample]:
    """Yield the queries of a data set of llama_index with the passages that answer them."""
    data_set = json_objects.load_embedding_data(data, source)
    queries = Fields(data_set.queries, source, None)
    passages = Fields(data_set.corpus, source, None)
    for qid, docids in json_objects.relevant_passages(data_set, source):
        if qid not in queries:
            raise queries.error(f"no query {qid}, which relevant_docs names", EMBEDDING_TEXTS)
        positives = []
        for docid in docids:
            if docid not in passages:
                found = f"no passage {docid}, which relevant_docs names for query {qid}"
                raise passages.error(found, EMBEDDING_TEXTS)
            positives.append(Candidate(docid, passages.text(docid)))
        yield TrainingExample(qid, queries.text(qid), tuple(positives), ())


def _unknown_format(head: bytes, source: str | Path) -> InputError:
    """Return the error of training data that begins like no known format."""
    hint = (
        "name its format: --from of convert, --train-format elsewhere; "
        "denserk mine-negatives makes training data of topics, qrels and runs"
    )
    record = json_records.first_record(head)
    if not record:
        found = "no training data of a known format"
        hint = json_hints.arrays_of_ids_hint(files.first_line(head), source) or hint
        return InputError(source, None, found, f"one of {', '.join(TrainingFormat)}", hint)
    found = f"no training data of a known format: the columns {list_keys(record)}"
    keys_of_formats = [f"{keys.query} with {keys.positives}" for keys in KEYS.values()]
    columns = "anchor|query|question with positive|answer|label"
    expected = " or ".join([*dict.fromkeys(keys_of_formats), columns])
    return InputError(source, None, found, expected, hint)


def _distinct_candidates(lists: Iterable[Candidates]) -> Candidates:
    """Join lists of passages, each passage once; the last one with an id and text counts."""
    candidates: dict[tuple[str, str], Candidate] = {}
    for candidate in chain.from_iterable(lists):
        candidates[candidate.docid, candidate.text] = candidate
    return tuple(candidates.values())


def _column_examples(
    handle: BinaryIO, head: bytes, source: str | Path, training_format: TrainingFormat
) -> Iterator[TrainingExample]:
    """Yield an example for each line with columns, or for each JSON record with them as keys."""
    column_format = COLUMNS[training_format]
    if training_format is TrainingFormat.ST_TRIPLET or files.is_json(head):
        rows = _named_rows(handle, head, source, column_format.expected)
    else:
        rows = _tab_rows(handle, source)
    # keys of a JSON object have no order: that of the first record with these keys counts
    columns_by_keys: dict[frozenset[Any], TrainingColumns] = {}
    for line, record in rows:
        keys = frozenset(record)
        columns = columns_by_keys.get(keys)
        if columns is None:
            columns = training_columns(list(record), ids=column_format.holds_ids)
            columns_by_keys[keys] = columns
            if not columns.is_in_order:
                _log_columns(columns, source, line)
        yield column_format.example(Fields(record, source, line), columns)


def _log_columns(columns: TrainingColumns, source: str | Path, line: int) -> None:
    """Report which columns were taken for what; a warning where only their order decided."""
    message = f"{files.display_name(source)}, line {line}: {columns}"
    if columns.by_position:
        unknown = ", ".join(map(str, columns.by_position))
        logger.warning(f"{message} (by position: {unknown})")
    else:
        logger.info(message)


def _tab_rows(handle: BinaryIO, source: str | Path) -> Iterator[Row]:
    """Yield lines between tabs as records with numbers as keys, or with the names of a header."""
    texts = files.read_text_lines(source, handle)
    first_row, rows = files.first_and_all(
        (line, text.split("\t")) for line, text in texts if text.strip("\t")
    )
    if first_row is None:
        return
    line, cells = first_row
    header = column_names.read_header(cells, Table.TRAINING, source, line)
    if header is None:
        for line, cells in rows:
            yield line, dict(enumerate(cells))
        return
    next(rows)
    names = _number_repeated_names(header.names)
    for line, cells in rows:
        yield line, _named_cells(names, cells, source, line, is_quoted=header.is_quoted)


def _named_cells(
    names: Sequence[str], cells: Sequence[str], source: str | Path, line: int, *, is_quoted: bool
) -> dict[str, str]:
    """Return the cells of a row by the names of their columns."""
    texts = column_names.cells_under_header(names, cells, source, line, is_quoted=is_quoted)
    return dict(zip(names, texts, strict=True))


def _number_repeated_names(names: Sequence[str]) -> list[str]:
    """Number names that a header has twice, as in (query, positive, negative, negative).

    >>> _number_repeated_names(["query", "positive", "negative", "negative"])
    ['query', 'positive', 'negative', 'negative_2']
    """
    counts: Counter[str] = Counter()
    distinct = []
    for name in names:
        counts[name] += 1
        distinct.append(name if counts[name] == 1 else f"{name}_{counts[name]}")
    return distinct


def _check_writable(example: TrainingExample, training_format: TrainingFormat) -> None:
    """Raise an error for an example without the texts, or the ids, that a format needs."""
    passages = all_candidates(example)
    query = f"query {example.qid}"
    has_ids = any(passage.docid for passage in passages)
    has_texts = any(passage.text or passage.title for passage in passages)
    if training_format in WITHOUT_TEXTS:
        _check_writable_ids(passages, query, training_format)
    elif not example.query:
        raise DenserkError(
            f"{query} has no text, and {training_format} holds texts", "add --queries"
        )
    elif has_ids and not has_texts:
        message = (
            f"the passages of {query} have ids and no texts, and {training_format} holds texts"
        )
        raise DenserkError(message, "add --corpus")


def _check_writable_ids(passages: Candidates, query: str, training_format: TrainingFormat) -> None:
    """Raise an error for passages whose ids a format of ids alone cannot hold."""
    if not all(passage.docid for passage in passages):
        message = f"a passage of {query} has no id, and {training_format} holds ids alone"
        hint = "write a format with texts: tevatron, dpr, flag, st-triplet or text-triples"
        raise DenserkError(message, hint)
    has_comma = any("," in passage.docid for passage in passages)
    if training_format is TrainingFormat.NEGATIVES and has_comma:
        message = f"a passage id of {query} has a comma, which separates ids in {training_format}"
        raise DenserkError(message, "write tevatron-ids or triples")


def _count_contents(example: TrainingExample) -> Counter[str]:
    """Count what an example consists of."""
    passages = all_candidates(example)
    counts: Counter[str] = Counter()
    counts["examples"] = 1
    counts["positives"] = len(example.positives)
    counts["passage ids"] = sum(bool(passage.docid) for passage in passages)
    counts["texts"] = sum(bool(passage.text) for passage in passages)
    counts["titles"] = sum(bool(passage.title) for passage in passages)
    counts["scores"] = sum(passage.score is not None for passage in passages)
    counts["query texts"] = int(bool(example.query))
    counts["answers"] = len(example.answers)
    counts.update(example.extra.keys())
    for passage in passages:
        counts.update(passage.extra.keys())
    return counts


def write_training(
    path: str | Path, examples: Iterable[TrainingExample], training_format: TrainingFormat
) -> int:
    """Write training examples; return how many the file holds.

    What a format has no place for is logged once. Raises a DenserkError if it has no place for any
    of the examples.
    """
    losses: Counter[str] = Counter()
    count = 0
    pair_count = 0
    unwritten_qids: list[str] = []
    # DPR reads an array; a file that is named .jsonl gets lines
    is_array = training_format is TrainingFormat.DPR and ".jsonl" not in Path(path).suffixes
    with written_files.whole_binary(path) as out:
        if is_array:
            out.write(b"[\n")
        for example in examples:
            _check_writable(example, training_format)
            records = _records(example, count, training_format)
            for record in records:
                if is_array:
                    out.write(_as_item(record, is_first=count == 0))
                else:
                    out.write(_as_line(record, training_format))
            losses += _lost_contents(example, records, training_format, path)
            if not records:
                unwritten_qids.append(example.qid)
                continue
            count += 1
            if not example.negatives:
                pair_count += 1
        if unwritten_qids and not count:
            raise _nothing_written(unwritten_qids, training_format)
        if is_array:
            out.write(b"\n]\n")
    written_files.log_losses(losses, training_format)
    _warn_of_omissions(count, pair_count, unwritten_qids, training_format)
    return count


def _warn_of_omissions(
    count: int, pair_count: int, unwritten_qids: Sequence[str], training_format: TrainingFormat
) -> None:
    """Warn of examples that a format has no place for, and of negatives that only some lack."""
    if unwritten_qids:
        total = count + len(unwritten_qids)
        logger.warning(
            f"left out, without the positive or the negative that {training_format} needs: "
            f"{len(unwritten_qids):,} of {total:,} examples (queries {first_names(unwritten_qids)})"
        )
    if training_format is TrainingFormat.ST_TRIPLET and 0 < pair_count < count:
        logger.warning(
            f"{pair_count:,} of {count:,} examples have no negatives and are written as pairs "
            "among triplets: denserk reads both, sentence-transformers needs files of their own"
        )


def _lost_contents(
    example: TrainingExample,
    records: Iterable[Mapping[Any, Any]],
    training_format: TrainingFormat,
    path: str | Path,
) -> Counter[str]:
    """Count what of an example is not read from the records that are written of it."""
    written_format = (KEYS | COLUMNS)[training_format]
    lost = _count_contents(example)
    for record in records:  # a Counter drops what is no longer positive
        lost -= _count_contents(written_format.example(Fields(record, path, None)))
    return lost


def training_records(
    examples: Iterable[TrainingExample], training_format: TrainingFormat
) -> Iterator[dict[Any, Any]]:
    """Yield the records that `write_training` writes of examples."""
    for number, example in enumerate(examples):
        _check_writable(example, training_format)
        yield from _records(example, number, training_format)


def _as_item(record: Mapping[str, Any], *, is_first: bool) -> bytes:
    """Return a record as an item of a JSON array, behind the comma after an earlier one."""
    separator = b"" if is_first else b",\n"
    return separator + dump_json(record).rstrip(b"\n")


def _as_line(record: Mapping[Any, Any], training_format: TrainingFormat) -> bytes:
    """Return a record as a line of JSON, or of columns."""
    if training_format in KEYS or training_format is TrainingFormat.ST_TRIPLET:
        return dump_json(record)
    columns = "\t".join(map(one_line, record.values()))
    return f"{columns}\n".encode()


def _nothing_written(qids: Sequence[str], training_format: TrainingFormat) -> DenserkError:
    """Return the error of a format that has no place for any of the examples."""
    is_triplet = training_format is TrainingFormat.ST_TRIPLET  # or a pair
    passages = "a positive" if is_triplet else "a positive and a negative"
    message = (
        f"none of the {len(qids):,} examples can be written: {training_format} needs {passages} "
        f"for each query (queries {first_names(qids)})"
    )
    hint = "write tevatron or flag; denserk mine-negatives finds negatives"
    return DenserkError(message, hint)


def _records(
    example: TrainingExample, number: int, training_format: TrainingFormat
) -> list[dict[Any, Any]]:
    """Return the lines of an example, written after `number` others, as keys or columns."""
    if training_format is TrainingFormat.NEGATIVES:
        return [{0: example.qid, 1: ",".join(map(_docid, example.negatives))}]
    if training_format is TrainingFormat.TRIPLES:
        return _triples(example.qid, example, _docid, range(3))
    if training_format is TrainingFormat.TEXT_TRIPLES:
        return _triples(example.query, example, _text, range(3))
    if training_format is TrainingFormat.ST_TRIPLET and example.negatives:
        return _triples(example.query, example, _text, TRIPLET)
    if training_format is TrainingFormat.ST_TRIPLET:
        anchor, positive, _ = TRIPLET
        return [{anchor: example.query, positive: _text(passage)} for passage in example.positives]
    return [_json_record(example, number, training_format)]


def _triples(
    query: str, example: TrainingExample, value_of: Callable[[Candidate], str], names: Sequence[Any]
) -> list[dict[Any, Any]]:
    """Return every positive with every negative, as three columns of some names."""
    query_name, positive_name, negative_name = names
    positives = map(value_of, example.positives)
    negatives = map(value_of, example.negatives)
    return [
        {query_name: query, positive_name: positive, negative_name: negative}
        for positive, negative in product(positives, negatives)
    ]


def _json_record(
    example: TrainingExample, number: int, training_format: TrainingFormat
) -> dict[str, Any]:
    """Return an example, written after `number` others, as the record of a JSON format."""
    keys = KEYS[training_format]
    positives = [keys.write(passage) for passage in example.positives]
    negatives = [keys.write(passage) for passage in example.negatives]
    if training_format is TrainingFormat.ST_IDS:
        ids_by_system = {"denserk": negatives}
        return {keys.qid: example.qid, keys.positives: positives, keys.negatives: ids_by_system}
    is_dpr = training_format is TrainingFormat.DPR
    # a reader numbers examples without an id
    is_numbered = is_dpr and example.qid == str(number)
    record: dict[str, Any] = {}
    if keys.qid and not is_numbered:
        record[keys.qid] = example.qid
    record[keys.query] = example.query
    if example.answers or is_dpr:
        record["answers"] = list(example.answers)
    record[keys.positives] = positives
    record[keys.negatives] = negatives
    all_have_scores = all(passage.score is not None for passage in all_candidates(example))
    if training_format is TrainingFormat.FLAG and all_have_scores:
        record[f"{keys.positives}_scores"] = [passage.score for passage in example.positives]
        record[f"{keys.negatives}_scores"] = [passage.score for passage in example.negatives]
    if is_dpr:
        record[RANDOM_NEGATIVES] = []
    extra = dict(example.extra)
    if keys.read is not _read_passages:
        extra.pop(RANDOM_NEGATIVES, None)
    return {**record, **extra}


def read_sentences(source: str | Path, size: int | None = None) -> Iterator[SentenceExample]:
    """Yield pairs with their labels, or triplets; a file (or "-") holds one of the two.

    A `size`, the number of sentences, of 2 asks for pairs, of 3 for triplets; None detects it by
    the first row.
    """
    expected = EXPECTED_SENTENCES[size]
    names_without_header = partial(_sentence_columns, size=size)
    names: Sequence[str] = ()
    with files.open_ahead(source, part="train") as (head, handle):
        for line, record in _named_rows(handle, head, source, expected, names_without_header):
            row = _with_standard_names(record)
            if not names:
                names = _names_of_sentences(row, size)
            if not names:
                raise InputError(source, line, f"the columns {list_keys(row)}", expected)
            yield _sentence_example(Fields(row, source, line), names)
    if not names:
        raise InputError(source, None, "no rows", expected)


def _sentence_columns(cells: Sequence[str], size: int | None) -> Sequence[str]:
    """Name the columns of a file without a header; none if their number does not decide."""
    if len(cells) >= len(BENCHMARK):
        return BENCHMARK
    if len(cells) != 3:
        return ()
    has_label = is_number(cells[2]) if size is None else size == 2
    return (*PAIR, "label") if has_label else TRIPLET


def _names_of_sentences(row: Mapping[str, Any], size: int | None) -> Sequence[str]:
    """Return the names of the columns that hold the sentences; none without a pair or triplet."""
    for names in (*TRIPLETS, PAIR):
        if size in (None, len(names)) and row.keys() >= set(names):
            return names
    return ()


def _sentence_example(fields: Fields, names: Sequence[str]) -> SentenceExample:
    """Return a pair with its label, or a triplet, of the columns of these names."""
    texts = tuple(map(fields.text, names))
    for name, text in zip(names, texts, strict=True):
        if not text.strip():
            raise fields.error(f"no {name}", "a sentence")
    label = next((fields.number(name) for name in LABELS if name in fields), None)
    if len(names) == 3:
        return SentenceExample(texts, None)
    if label is None:
        found = f"no label among the columns {list_keys(fields.record)}"
        raise fields.error(found, "a number as label or score")
    return SentenceExample(texts, label)


def _with_standard_names(row: Mapping[str, Any]) -> dict[str, Any]:
    """Rename columns of sentences whose names are another spelling: sentence_a is sentence1."""
    renamed: dict[str, Any] = {}
    for name, value in row.items():
        column = column_names.column_of(name, Table.SENTENCES)
        # of labels, `LABELS` are the only spellings; a column of the usual name goes first
        is_other_spelling = column not in (None, Column.LABEL) and str(column) not in row
        renamed[str(column) if is_other_spelling else name] = value
    return renamed


def _named_rows(
    handle: BinaryIO,
    head: bytes,
    source: str | Path,
    expected: str,
    names_without_header: Callable[[Sequence[str]], Sequence[str]] | None = None,
) -> Iterator[Row]:
    """Yield (line, row with its columns by name in lower case) of JSON, tabs or CSV.

    `names_without_header` names the columns of a file by the cells of its first row, if that is no
    header; where it is None, all files have a header.
    """
    start = files.first_line(head)
    if files.is_json(start):
        for line, record in json_records.read_json(handle, start, source):
            yield line, {key.lower(): value for key, value in record.items()}
        return
    delimiter = _delimiter(head)
    first_row, rows = files.first_and_all(_rows_of_cells(handle, source, expected, delimiter))
    if first_row is None:
        return
    line, cells = first_row
    is_quoted = delimiter == "\t" and column_names.are_quoted(cells)
    names: Sequence[str]
    if names_without_header is None or _is_sentence_header(cells):
        names = _header_names(cells)
        next(rows)
    else:
        names = names_without_header(cells)
        if not names:
            found = f"{columns_phrase(len(cells))} without a header"
            raise InputError(source, line, found, expected)
    for line, cells in rows:
        if names is BENCHMARK:
            cells = cells[: len(BENCHMARK)]  # links may follow
        yield line, _named_cells(names, cells, source, line, is_quoted=is_quoted)


def _delimiter(head: bytes) -> str:
    """Return what stands between the columns: tabs, semicolons of a header, or else commas.

    Without a header a semicolon may be of a text.
    """
    file_head = FileHead(head)
    if "\t" in file_head.line:
        return "\t"
    cells = file_head.semicolon_cells
    is_header = detection.is_training_header(cells) or (
        column_names.recognise_header(cells, Table.SENTENCES) is not None
    )
    return ";" if is_header else ","


def _rows_of_cells(
    handle: BinaryIO, source: str | Path, expected: str, delimiter: str
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, cells) of rows between tabs, or of CSV."""
    texts = files.read_text_lines(source, handle)
    if delimiter != "\t":
        yield from delimited.read_rows(texts, source, delimiter, expected)
        return
    for line, text in texts:
        if text.strip():
            yield line, text.split("\t")


def _header_names(cells: Sequence[str]) -> list[str]:
    """Return the names of a header's columns, in lower case and without quotes."""
    return _number_repeated_names([cell.strip().strip('"').lower() for cell in cells])


def _is_sentence_header(cells: Sequence[str]) -> bool:
    """Return whether the first row of pairs or triplets of sentences names its columns."""
    names = _header_names(cells)
    has_name_of_sentence = "anchor" in names or "sentence1" in names
    has_name_of_label = any(name in LABELS for name in names)
    has_number = any(is_number(name) for name in names)
    if has_name_of_sentence or (has_name_of_label and not has_number):
        return True
    return column_names.recognise_header(cells, Table.SENTENCES) is not None
