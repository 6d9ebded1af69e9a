"""Training data: queries with positives and negatives, in every format; pairs of sentences.

An absent query id is the number of the record, from 0. A triple is a line: lines of one query that
follow each other make one example, and an example is written as every positive with every negative.
DPR's random negatives stay among the extra fields.

Pairs of sentences have a label (sentence1, sentence2, label or score), triplets none (anchor,
positive, negative; or Sentence1, Sentence2, Sentence3). Columns are keys of JSON lines, or named by
a header: between tabs nothing is quoted (GLUE's STS-B), between commas a column may be. Without a
header three columns between tabs have the order above, and seven or more are the STS benchmark's.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, product
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from denserk.config.formats import WITHOUT_TEXTS, TrainingFormat
from denserk.errors import DenserkError, InputError
from denserk.io import detection, files, json_records
from denserk.io.detection import Column, Header, Table, TrainingColumns, training_columns
from denserk.io.json_records import Fields, dump_json, list_keys
from denserk.records import Candidate, SentenceExample, TrainingExample

logger = logging.getLogger(__name__)

RANDOM_NEGATIVES = "negative_ctxs"  # DPR's key of negatives that it does not train with
LABELS = ("label", "score", "similarity_score")
ST_NAMES = {"anchor"}  # a key that training data alone has
QUERY_NAMES = {"anchor", "query", "question"}  # beside a label; sentences have labels, too
# columns of a list of negatives
NEGATIVE_LISTS = {Column.QUERY_ID, Column.NEGATIVE, Column.NEGATIVE_ID}
Candidates = tuple[Candidate, ...]
Order = Callable[[Sequence[str]], Sequence[str]]  # names of the columns of a row
Row = tuple[int, Mapping[Any, Any]]  # line number, columns by name or number


def _passages(fields: Fields, key: str) -> Candidates:
    ids, found = ("docid", "passage_id", "psg_id"), []
    for value in fields.items(key, dict):
        each = Fields(value, fields.path, fields.line)
        docid = each.identifier(next((name for name in ids if name in each), ids[0]))
        texts, score = (each.text("text"), each.text("title")), each.number("score")
        found.append(Candidate(docid, *texts, score, each.rest((*ids, "text", "title", "score"))))
    return tuple(found)


def _texts(fields: Fields, key: str) -> Candidates:
    texts, name = fields.texts(key), f"{key}_scores"
    scores = fields.items(name) or [None] * len(texts)
    if len(scores) != len(texts):
        found = f"{len(scores)} {name} for {len(texts)} {key}"
        raise fields.error(found, "one score for each text")
    pairs = zip(texts, scores, strict=True)
    return tuple(Candidate(text=text, score=fields.as_number(s, name)) for text, s in pairs)


def _ids(fields: Fields, key: str) -> Candidates:
    """Ids in a list, or in lists by the system that retrieved them; there each id once."""
    value = fields.record.get(key)
    if not isinstance(value, dict):
        return tuple(map(Candidate, fields.identifiers(key)))
    systems = Fields(value, fields.path, fields.line)
    ids = dict.fromkeys(docid for name in value for docid in systems.identifiers(name))
    return tuple(map(Candidate, ids))


def _to_passage(candidate: Candidate, id_key: str = "docid") -> dict[str, Any]:
    score = {} if candidate.score is None else {"score": candidate.score}
    texts = {"title": candidate.title, "text": candidate.text}
    return {id_key: candidate.docid, **texts, **score, **candidate.extra}


class Keys(NamedTuple):
    """A JSON format of one record an example, whose passages are read and written in lists."""

    qid: str
    query: str
    positives: str
    negatives: str
    read: Callable[[Fields, str], Candidates]
    write: Callable[[Candidate], Any]

    def example(self, fields: Fields, qid: str = "") -> TrainingExample:
        """Return the example of a record; `qid` is the query's id if the record has none."""
        known = [*self[:4], "answers"]
        if self.read is _texts:
            known += [f"{key}_scores" for key in (self.positives, self.negatives)]
        if self.read is _passages and not fields.record.get(RANDOM_NEGATIVES):
            known.append(RANDOM_NEGATIVES)
        qid, query = fields.identifier(self.qid, qid), fields.text(self.query)
        positives, negatives = self.read(fields, self.positives), self.read(fields, self.negatives)
        answers, extra = fields.texts("answers"), fields.rest(known)
        return TrainingExample(qid, query, positives, negatives, answers, extra)


class Columns(NamedTuple):
    """A format of lines with columns, each of which is read as a record of a JSON format.

    The columns are the query and its passages, or else a list of negatives: by their names where
    these are known, otherwise in this order, a positive first.
    """

    expected: str
    widths: Sequence[int]
    keys: Keys
    is_listed: bool = False

    @property
    def holds_ids(self) -> bool:
        """Return whether the columns are ids, not texts."""
        return self.keys is IDS

    def example(self, fields: Fields, columns: TrainingColumns | None = None) -> TrainingExample:
        """Return the example of a line; `columns` say what its columns hold."""
        record = fields.record
        columns = columns or training_columns(list(record), ids=self.holds_ids)
        passages = columns.positives + columns.negatives
        width = 1 + len(passages)
        self._check(fields, columns, width)
        positives = _values(record, columns.positives)
        negatives = _values(record, columns.negatives)
        if columns.label is not None:
            grade = fields.number(columns.label)
            if grade not in (0, 1):
                raise fields.error(f"the label {grade}", "1 of a positive or 0 of a negative")
            texts = positives + negatives
            positives, negatives = (texts, []) if grade else ([], texts)
        if self.is_listed:
            ids = fields.text(passages[0]).split(",")
            positives = []
            negatives = [docid.strip() for docid in ids if docid.strip()]
        qid = "" if columns.query_id is None else fields.identifier(columns.query_id)
        sides = {self.keys.positives: positives, self.keys.negatives: negatives}
        renamed = {self.keys.qid or self.keys.query: record[columns.query], **sides}
        return self.keys.example(Fields(renamed, fields.path, fields.line), qid)

    def _check(self, fields: Fields, columns: TrainingColumns, width: int) -> None:
        """Raise an error for a line with another number of columns, or a label of no use."""
        count = len(fields.record)
        label = columns.label
        is_pair = label is not None and str(label).lower() == "label" and width == 2
        if label is not None and not is_pair:
            raise fields.error(f"the column {label}", self.expected)
        if columns.query is None or width not in self.widths:
            raise fields.error(files.columns(count), self.expected)


def _values(record: Mapping[Any, Any], names: Iterable[Any]) -> list[Any]:
    """Return the values of columns, each of which is a text, an id or a list of them."""
    values: list[Any] = []
    for name in names:
        value = record[name]
        values += value if isinstance(value, list) else [value]
    return values


_docid, _text = attrgetter("docid"), attrgetter("text")
_to_dpr = partial(_to_passage, id_key="passage_id")
TEXTS = Keys("", "query", "pos", "neg", _texts, _text)
IDS = Keys("qid", "query", "pos", "neg", _ids, _docid)
KEYS = {
    TrainingFormat.TEVATRON: Keys(
        "query_id", "query", "positive_passages", "negative_passages", _passages, _to_passage
    ),
    TrainingFormat.TEVATRON_IDS: Keys(
        "query_id", "query_text", "positive_document_ids", "negative_document_ids", _ids, _docid
    ),
    TrainingFormat.DPR: Keys(
        "query_id", "question", "positive_ctxs", "hard_negative_ctxs", _passages, _to_dpr
    ),
    TrainingFormat.FLAG: TEXTS,
    TrainingFormat.ST_IDS: IDS,
}
COLUMNS = {
    TrainingFormat.ST_TRIPLET: Columns(
        "at least 2 columns of texts alone: anchor, positive[, negatives]", range(2, 1 << 20), TEXTS
    ),
    TrainingFormat.TRIPLES: Columns("3 columns: query id, positive id, negative id", [3], IDS),
    TrainingFormat.TEXT_TRIPLES: Columns("3 columns: query, positive, negative text", [3], TEXTS),
    TrainingFormat.NEGATIVES: Columns(
        "2 columns: query id, negative ids with commas between them", [2], IDS, is_listed=True
    ),
}


def random_negatives(example: TrainingExample, path: str | Path) -> Candidates:
    """Return the random negatives of a DPR example; `path` names the input in errors."""
    return _passages(Fields(example.extra, path, None), RANDOM_NEGATIVES)


def all_candidates(example: TrainingExample) -> Candidates:
    """Return positives and negatives."""
    return example.positives + example.negatives


def packed(example: TrainingExample) -> bytes:
    """Return an example as JSON for a temporary file, which `unpacked` reads."""
    return orjson.dumps(example, default=lambda it: dict(it) if isinstance(it, Mapping) else [*it])


def unpacked(record: bytes) -> TrainingExample:
    """Return the example of a `packed` record."""
    qid, query, positives, negatives, answers, extra = orjson.loads(record)
    of, against = (tuple(Candidate(*each) for each in side) for side in (positives, negatives))
    return TrainingExample(qid, query, of, against, tuple(answers), extra)


def read_training(
    source: str | Path, form: TrainingFormat | None = None
) -> Iterator[TrainingExample]:
    """Read training examples one at a time; a `form` of None is detected.

    The source is a file, plain or gzip by suffix; "-"; Parquet, or a folder of it; a folder that
    `datasets` saved; `hf:NAME`.
    """
    with files.open_ahead(source, part="train") as (head, handle):
        if form is None:
            form = detect_training(head)
            if form is None:
                expected = f"one of {', '.join(TrainingFormat)}"
                found = "no training data of a known format"
                if record := json_records.first_record(head):
                    sides = dict.fromkeys(f"{k.query} with {k.positives}" for k in KEYS.values())
                    own = "anchor|query|question with positive|answer|label"
                    expected = " or ".join([*sides, own])
                    found += f": the columns {list_keys(record)}"
                hint = (
                    "name its format: --from of convert, --train-format elsewhere; "
                    "denserk mine-negatives makes training data of topics, qrels and runs"
                )
                raise InputError(source, None, found, expected, hint)
            logger.info(f"{source}: training data in the format {form}")
        if form in KEYS:
            records = json_records.read_json(handle, head.lstrip()[:1], source)
            for number, (line, record) in enumerate(records):
                yield KEYS[form].example(Fields(record, source, line), str(number))
            return
        # lines of one query that follow each other are one example; an absent id is its number
        examples = _column_examples(handle, head, source, form)
        groups = groupby(examples, key=lambda example: (example.qid, example.query))
        for number, ((qid, query), group) in enumerate(groups):
            joined = list(group)
            positives = {(c.docid, c.text): c for each in joined for c in each.positives}
            negatives = {(c.docid, c.text): c for each in joined for c in each.negatives}
            unique = tuple(positives.values()), tuple(negatives.values())
            yield TrainingExample(qid or str(number), query, *unique)


def _column_examples(
    handle: BinaryIO, head: bytes, source: str | Path, form: TrainingFormat
) -> Iterator[TrainingExample]:
    """Yield the example of each line with columns, or of each record of the same keys."""
    reader = COLUMNS[form]
    if form is TrainingFormat.ST_TRIPLET or files.is_json(head):
        rows = _named_rows(handle, head, source, reader.expected)
    else:
        rows = _tab_rows(handle, source)
    # keys of a JSON object have no order: that of the first record with these keys counts
    known_columns: dict[frozenset[Any], TrainingColumns] = {}
    for line, record in rows:
        keys = frozenset(record)
        if keys not in known_columns:
            known_columns[keys] = training_columns(list(record), ids=reader.holds_ids)
            if not known_columns[keys].is_in_order:
                _log_columns(known_columns[keys], source, line)
        yield reader.example(Fields(record, source, line), known_columns[keys])


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
    numbered = files.read_text_lines(source, handle)
    first_line, lines = files.peek(each for each in numbered if each[1].strip("\t"))
    if first_line is None:
        return
    line, text = first_line
    header = detection.read_header(text.split("\t"), Table.TRAINING, source, line)
    names = None if header is None else _distinct(header.names)
    if header is not None:
        next(lines)
    for line, text in lines:
        cells = text.split("\t")
        if names is None:
            yield line, dict(enumerate(cells))
            continue
        if len(cells) != len(names):
            expected = f"{len(names)}: {', '.join(names)}"
            raise InputError(source, line, files.columns(len(cells)), expected)
        if header is not None and header.is_quoted:
            cells = [files.unquote(cell) for cell in cells]
        yield line, dict(zip(names, cells, strict=True))


def _distinct(names: Sequence[str]) -> list[str]:
    """Number names that a header has twice, as in (query, positive, negative, negative).

    >>> _distinct(["query", "positive", "negative", "negative"])
    ['query', 'positive', 'negative', 'negative_2']
    """
    counts: Counter[str] = Counter()
    distinct = []
    for name in names:
        counts[name] += 1
        distinct.append(name if counts[name] == 1 else f"{name}_{counts[name]}")
    return distinct


def detect_training(head: bytes) -> TrainingFormat | None:
    """Return the format of training data that begins with these bytes; None if it is unknown."""
    if (record := json_records.first_record(head)) is not None:
        keys = record.keys()
        if isinstance(record.get("neg"), dict) or {"qid", "pos"} <= keys:
            return TrainingFormat.ST_IDS
        own = (form for form, own in KEYS.items() if keys & {own.positives, own.negatives})
        if form := next(own, None):
            return form
        return _detect_keys(record)
    lines = [line for line in head.splitlines()[:100] if line.strip()]
    if len(lines) > 1 and not head.endswith((b"\n", b"\r")):
        lines.pop()  # it may be cut short
    texts = [line.decode("utf-8", "replace") for line in lines]
    if texts and "\t" not in texts[0]:
        return _detect_commas(texts)
    return _detect_tabs([[cell.strip() for cell in text.split("\t")] for text in texts])


def _detect_tabs(rows: Sequence[Sequence[str]]) -> TrainingFormat | None:
    """Return the format of lines with columns between tabs; None if it is unknown."""
    if len({*map(len, rows)}) != 1:
        return None
    width = len(rows[0])
    header = detection.recognise_header(rows[0], Table.TRAINING)
    if header is not None:
        return _detect_header(header, rows[1:])
    if _names_pairs(rows[0]):
        return TrainingFormat.ST_TRIPLET
    is_bare = not any(" " in cell for row in rows for cell in row)
    if width == 3:
        return TrainingFormat.TRIPLES if is_bare else TrainingFormat.TEXT_TRIPLES
    return TrainingFormat.NEGATIVES if width == 2 and is_bare else None


def _detect_header(header: Header, rows: Sequence[Sequence[str]]) -> TrainingFormat:
    """Return the format of columns under a header, by its names and the rows below."""
    columns = set(header.columns)
    if columns <= NEGATIVE_LISTS:
        return TrainingFormat.NEGATIVES
    cells = [cell for row in rows for cell in row]
    are_numbers = bool(cells) and all(map(str.isdecimal, cells))
    names_ids = Column.QUERY_ID in columns and Column.QUERY not in columns
    if len(header.columns) == 3 and Column.LABEL not in columns and (names_ids or are_numbers):
        return TrainingFormat.TRIPLES
    return TrainingFormat.ST_TRIPLET


def _detect_keys(record: Mapping[str, Any]) -> TrainingFormat | None:
    """Return the format of JSON records whose keys are columns; None if it is unknown."""
    keys = record.keys()
    meanings = {detection.column_of(key, Table.TRAINING) for key in keys}
    names_passages = not meanings.isdisjoint((Column.POSITIVE, Column.NEGATIVE))
    texts = names_passages or ("label" in keys and not QUERY_NAMES.isdisjoint(keys))
    ids = {Column.POSITIVE_ID, Column.NEGATIVE_ID} <= meanings
    ids = ids or all(type(value) is int for value in record.values())
    if len(keys) == 3 and ids and (texts or Column.QUERY_ID in meanings):
        return TrainingFormat.TRIPLES
    return TrainingFormat.ST_TRIPLET if texts or keys & ST_NAMES else None


def _detect_commas(lines: Sequence[str]) -> TrainingFormat | None:
    """Return the format of lines without tabs: columns between commas under a header, or none."""
    try:
        row = next(files.read_rows(enumerate(lines, 1), "", ",", ""), None)
    except InputError:
        return None
    if row is None or len(row[1]) < 2:
        return None
    is_header = detection.recognise_header(row[1], Table.TRAINING) or _names_pairs(row[1])
    return TrainingFormat.ST_TRIPLET if is_header else None


def _names_pairs(cells: Sequence[str]) -> bool:
    """Return whether cells name a query and a positive, and perhaps columns of other names."""
    meanings = {detection.column_of(cell, Table.TRAINING) for cell in cells}
    return {Column.QUERY, Column.POSITIVE} <= meanings


def _check(example: TrainingExample, form: TrainingFormat) -> None:
    """Raise an error for an example without the texts, or the ids, that a format needs."""
    passages, query = all_candidates(example), f"query {example.qid}"
    if form in WITHOUT_TEXTS:
        if not all(passage.docid for passage in passages):
            hint = "write a format with texts: tevatron, dpr, flag, st-triplet or text-triples"
            raise DenserkError(f"a passage of {query} has no id, and {form} holds ids alone", hint)
        if form is TrainingFormat.NEGATIVES and any("," in passage.docid for passage in passages):
            found = f"a passage id of {query} has a comma, which separates ids in {form}"
            raise DenserkError(found, "write tevatron-ids or triples")
    elif not example.query:
        raise DenserkError(f"{query} has no text, and {form} holds texts", "add --queries")
    elif any(each.docid for each in passages) and not any(c.text or c.title for c in passages):
        found = f"the passages of {query} have ids and no texts, and {form} holds texts"
        raise DenserkError(found, "add --corpus")


def _contents(example: TrainingExample) -> Counter[str]:
    """Count what an example consists of."""
    passages = all_candidates(example)
    counted = Counter({"examples": 1, "positives": len(example.positives)})
    counted["passage ids"] = sum(bool(each.docid) for each in passages)
    counted["texts"] = sum(bool(each.text) for each in passages)
    counted["titles"] = sum(bool(each.title) for each in passages)
    counted["scores"] = sum(each.score is not None for each in passages)
    counted["query texts"] = int(bool(example.query))
    counted["answers"] = len(example.answers)
    counted.update(key for extra in (example.extra, *(c.extra for c in passages)) for key in extra)
    return counted


def write_training(
    path: str | Path, examples: Iterable[TrainingExample], form: TrainingFormat
) -> int:
    """Write training examples; return how many the file holds.

    What a format has no place for is logged once. Raises a DenserkError if it has no place for any
    of the examples.
    """
    losses: Counter[str] = Counter()
    count = pair_count = 0
    unwritten: list[str] = []
    array = form is TrainingFormat.DPR and ".jsonl" not in Path(path).suffixes
    with files.whole_binary(path) as out:
        out.write(b"[\n" * array)
        for example in examples:
            _check(example, form)
            lost = _contents(example)
            records = _records(example, count, form)
            for record in records:
                read_back = (KEYS | COLUMNS)[form].example(Fields(record, path, None))
                if form in KEYS or form is TrainingFormat.ST_TRIPLET:
                    line = dump_json(record)
                else:
                    line = ("\t".join(map(files.one_line, record.values())) + "\n").encode()
                out.write(b",\n" * (count > 0) + line.rstrip(b"\n") if array else line)
                lost -= _contents(read_back)
            losses += lost
            if records:
                count += 1
                pair_count += not example.negatives
            else:
                unwritten.append(example.qid)
        if unwritten and not count:
            raise _nothing_written(unwritten, form)
        out.write(b"\n]\n" * array)
    files.log_losses(losses, form)
    if unwritten:
        total = count + len(unwritten)
        logger.warning(
            f"left out, without the positive or the negative that {form} needs: "
            f"{len(unwritten):,} of {total:,} examples (queries {files.some(unwritten)})"
        )
    if form is TrainingFormat.ST_TRIPLET and 0 < pair_count < count:
        logger.warning(
            f"{pair_count:,} of {count:,} examples have no negatives and are written as pairs "
            "among triplets: denserk reads both, sentence-transformers needs files of their own"
        )
    return count


def _nothing_written(qids: Sequence[str], form: TrainingFormat) -> DenserkError:
    needed = "a positive" if form is TrainingFormat.ST_TRIPLET else "a positive and a negative"
    message = (
        f"none of the {len(qids):,} examples can be written: {form} needs {needed} for each query "
        f"(queries {files.some(qids)})"
    )
    hint = "write tevatron or flag; denserk mine-negatives finds negatives"
    return DenserkError(message, hint)


def _records(example: TrainingExample, number: int, form: TrainingFormat) -> list[dict[Any, Any]]:
    """Return the lines of an example, written after `number` others, as keys or columns."""
    if form is TrainingFormat.NEGATIVES:
        return [{0: example.qid, 1: ",".join(each.docid for each in example.negatives)}]
    if form in COLUMNS:
        names = TRIPLETS[0] if form is TrainingFormat.ST_TRIPLET else range(3)
        if form is TrainingFormat.ST_TRIPLET and not example.negatives:
            anchor, positive, _ = TRIPLETS[0]
            return [{anchor: example.query, positive: _text(each)} for each in example.positives]
        value = _docid if form is TrainingFormat.TRIPLES else _text
        query = example.qid if form is TrainingFormat.TRIPLES else example.query
        pairs = product(map(value, example.positives), map(value, example.negatives))
        return [dict(zip(names, (query, *pair), strict=True)) for pair in pairs]
    keys, dpr = KEYS[form], form is TrainingFormat.DPR
    sides = {keys.positives: example.positives, keys.negatives: example.negatives}
    lists: dict[str, Any] = {key: [keys.write(c) for c in side] for key, side in sides.items()}
    if form is TrainingFormat.ST_IDS:
        ids = {"denserk": lists[keys.negatives]}
        return [{keys.qid: example.qid, **lists, keys.negatives: ids}]
    has_id = keys.qid and not (dpr and example.qid == str(number))
    record: dict[str, Any] = {keys.qid: example.qid} if has_id else {}
    record[keys.query] = example.query
    if example.answers or dpr:
        record["answers"] = list(example.answers)
    record |= lists
    scored = all(each.score is not None for each in all_candidates(example))
    if form is TrainingFormat.FLAG and scored:
        record |= {f"{key}_scores": [c.score for c in side] for key, side in sides.items()}
    if dpr:
        record[RANDOM_NEGATIVES] = []
    left_out = () if keys.read is _passages else (RANDOM_NEGATIVES,)
    return [record | {key: value for key, value in example.extra.items() if key not in left_out}]


PAIR = ("sentence1", "sentence2")
TRIPLETS = (("anchor", "positive", "negative"), ("sentence1", "sentence2", "sentence3"))
BENCHMARK = ("genre", "file", "year", "number", "score", *PAIR)
# by the number of sentences that an example must have
EXPECTED = {
    None: "pairs (sentence1, sentence2, label) or triplets (anchor, positive, negative)",
    2: "pairs: the columns sentence1, sentence2, and label or score",
    3: "triplets: the columns anchor, positive, negative",
}


def read_sentences(source: str | Path, size: int | None = None) -> Iterator[SentenceExample]:
    """Yield pairs with their labels, or triplets; a file (or "-") holds one of the two.

    A `size` of 2 asks for pairs, 3 for triplets; None detects it by the first row.
    """

    def order(row: Sequence[str]) -> Sequence[str]:
        """Name the columns of a file without a header; none if their number does not decide."""
        if len(row) >= len(BENCHMARK):
            return BENCHMARK
        if len(row) != 3:
            return ()
        labelled = size == 2 or (size is None and files.is_number(row[2]))
        return (*PAIR, "label") if labelled else TRIPLETS[0]

    names: Sequence[str] = ()
    kinds = [names for names in (*TRIPLETS, PAIR) if size in (None, len(names))]
    with files.open_ahead(source, part="train") as (head, handle):
        for line, row in _named_rows(handle, head, source, EXPECTED[size], order):
            row = _with_standard_names(row)
            names = names or next((names for names in kinds if row.keys() >= set(names)), ())
            if not names:
                raise InputError(source, line, f"the columns {list_keys(row)}", EXPECTED[size])
            fields = Fields(row, source, line)
            texts = tuple(map(fields.text, names))
            if blank := [n for n, text in zip(names, texts, strict=True) if not text.strip()]:
                raise fields.error(f"no {blank[0]}", "a sentence")
            label = next((fields.number(name) for name in LABELS if name in fields), None)
            if label is None and len(names) == 2:
                found = f"no label among the columns {list_keys(row)}"
                raise fields.error(found, "a number as label or score")
            yield SentenceExample(texts, label if len(names) == 2 else None)
    if not names:
        raise InputError(source, None, "no rows", EXPECTED[size])


def _with_standard_names(row: Mapping[str, Any]) -> dict[str, Any]:
    """Rename columns of sentences whose names are another spelling: sentence_a is sentence1."""
    renamed: dict[str, Any] = {}
    for name, value in row.items():
        column = detection.column_of(name, Table.SENTENCES)
        standard = name if column in (None, Column.LABEL) else str(column)
        renamed[name if standard in row else standard] = value
    return renamed


def _named_rows(
    handle: BinaryIO, head: bytes, source: str | Path, expected: str, order: Order | None = None
) -> Iterator[Row]:
    """Yield (line, row with its columns by name in lower case) of JSON, tabs or commas.

    `order` names the columns of a file without a header; where it is None, all have a header.
    """
    start = files.first_line(head)
    if files.is_json(start):
        for line, record in json_records.read_json(handle, start, source):
            yield line, {key.lower(): value for key, value in record.items()}
        return
    texts = files.read_text_lines(source, handle)
    rows: Iterable[tuple[int, list[str]]]
    if b"\t" in start:
        rows = ((line, text.split("\t")) for line, text in texts if text.strip())
    else:
        rows = files.read_rows(texts, source, ",", expected)
    header: Sequence[str] = ()
    is_quoted = False
    for line, row in rows:
        width = files.columns(len(row))
        if not header:
            header = _header_names(row)
            is_quoted = b"\t" in start and all(cell.strip().startswith('"') for cell in row)
            if order is None or _is_sentence_header(row):
                continue
            header = order(row)
            if not header:
                raise InputError(source, line, f"{width} without a header", expected)
        known = row[: len(BENCHMARK)] if header is BENCHMARK else row
        if len(known) != len(header):
            raise InputError(source, line, width, f"{len(header)}: {', '.join(header)}")
        if is_quoted:
            known = [files.unquote(cell) for cell in known]
        yield line, dict(zip(header, known, strict=True))


def _header_names(cells: Sequence[str]) -> list[str]:
    return _distinct([cell.strip().strip('"').lower() for cell in cells])


def _is_sentence_header(cells: Sequence[str]) -> bool:
    """Return whether the first row of pairs or triplets of sentences names its columns."""
    names = _header_names(cells)
    names_label = any(name in LABELS for name in names) and not any(map(files.is_number, names))
    if names_label or not {"anchor", "sentence1"}.isdisjoint(names):
        return True
    return detection.recognise_header(cells, Table.SENTENCES) is not None
