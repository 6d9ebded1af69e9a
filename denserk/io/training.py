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
from denserk.io import files, json_records
from denserk.io.json_records import Fields, dump_json, list_keys
from denserk.records import Candidate, SentenceExample, TrainingExample

logger = logging.getLogger(__name__)

RANDOM_NEGATIVES = "negative_ctxs"  # DPR's key of negatives that it does not train with
LABELS = ("label", "score", "similarity_score")
FIRST_COLUMNS = ("anchor", "query", "question", "sentence", "sentence1")
NAMES = {"positive", "negative", "negative_1", "anchor", "answer"}  # of columns of st-triplet
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

    The columns are the query and its passages, a positive first, or else a list of negatives.
    """

    expected: str
    widths: Sequence[int]
    keys: Keys
    listed: bool = False

    def example(self, fields: Fields) -> TrainingExample:
        """Return the example of a line, whose columns are in order."""
        label = next((key for key in LABELS if key in fields.record), None)
        is_pair = label == "label" and len(fields.record) == 3
        if (label and not is_pair) or len(fields.record) not in self.widths:
            found = f"the column {label}" if label else files.columns(len(fields.record))
            raise fields.error(found, self.expected)
        first, *passages = (value for key, value in fields.record.items() if key != label)
        sides = {"pos": passages[:1], "neg": passages[1:]}
        if is_pair:
            if (grade := fields.number("label")) not in (0, 1):
                raise fields.error(f"the label {grade}", "1 of a positive or 0 of a negative")
            sides = {"pos" if grade else "neg": passages}
        if self.listed:
            ids = (part.strip() for part in fields.text([*fields.record][1]).split(","))
            sides = {"neg": [docid for docid in ids if docid]}
        record = {self.keys.qid or self.keys.query: first, **sides}
        return self.keys.example(Fields(record, fields.path, fields.line))


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
        "2 columns: query id, negative ids with commas between them", [2], IDS, listed=True
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
                hint = "denserk mine-negatives makes it of topics, qrels and runs"
                raise InputError(source, None, found, expected, hint)
            logger.info(f"{source}: training data in the format {form}")
        rows: Iterable[Row]
        if form in KEYS:
            rows = json_records.read_json(handle, head.lstrip()[:1], source)
        elif form is TrainingFormat.ST_TRIPLET or (form in WITHOUT_TEXTS and files.is_json(head)):
            rows = _named_rows(handle, source, COLUMNS[form].expected)
        else:
            lines = files.read_text_lines(source, handle)
            filled = ((line, text.split("\t")) for line, text in lines if text.strip("\t"))
            rows = ((line, dict(enumerate(columns))) for line, columns in filled)
        fields = (Fields(record, source, line) for line, record in rows)
        if form in KEYS:
            yield from (KEYS[form].example(each, str(n)) for n, each in enumerate(fields))
            return
        # lines of one query that follow each other are one example; an absent id is its number
        examples = map(COLUMNS[form].example, fields)
        groups = groupby(examples, key=lambda example: (example.qid, example.query))
        for number, ((qid, query), group) in enumerate(groups):
            joined = list(group)
            positives = {(c.docid, c.text): c for each in joined for c in each.positives}
            negatives = {(c.docid, c.text): c for each in joined for c in each.negatives}
            unique = tuple(positives.values()), tuple(negatives.values())
            yield TrainingExample(qid or str(number), query, *unique)


def detect_training(head: bytes) -> TrainingFormat | None:
    """Return the format of training data that begins with these bytes; None if it is unknown."""
    if (record := json_records.first_record(head)) is not None:
        keys = record.keys()
        if isinstance(record.get("neg"), dict) or {"qid", "pos"} <= keys:
            return TrainingFormat.ST_IDS
        own = (form for form, own in KEYS.items() if keys & {own.positives, own.negatives})
        if form := next(own, None):
            return form
        texts = keys & NAMES or ("label" in keys and keys & {"anchor", "query", "question"})
        ids = {"positive_id", "negative_id"} <= keys or all(type(v) is int for v in record.values())
        if len(keys) == 3 and ids and (texts or "query_id" in keys):
            return TrainingFormat.TRIPLES
        return TrainingFormat.ST_TRIPLET if texts else None
    lines = [line for line in head.splitlines()[:100] if line.strip()]
    if len(lines) > 1 and not head.endswith((b"\n", b"\r")):
        lines.pop()  # it may be cut short
    rows = [[column.strip() for column in line.split(b"\t")] for line in lines]
    if len({*map(len, rows)}) != 1:
        return None
    first = [column.decode("utf-8", "replace").lower() for column in rows[0]]
    width = len(first)
    if width > 1 and first[0] in FIRST_COLUMNS and first[1].startswith(("pos", "answer")):
        return TrainingFormat.ST_TRIPLET
    bare = not any(b" " in column for row in rows for column in row)
    if width == 3:
        return TrainingFormat.TRIPLES if bare else TrainingFormat.TEXT_TRIPLES
    return TrainingFormat.NEGATIVES if width == 2 and bare else None


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
    """Write training examples; return their number. Losses by the format are logged once."""
    losses: Counter[str] = Counter()
    count = 0
    array = form is TrainingFormat.DPR and ".jsonl" not in Path(path).suffixes
    with files.whole_binary(path) as out:
        out.write(b"[\n" * array)
        for example in examples:
            _check(example, form)
            lost = _contents(example)
            for record in _records(example, count, form):
                read_back = (KEYS | COLUMNS)[form].example(Fields(record, path, None))
                if form in KEYS or form is TrainingFormat.ST_TRIPLET:
                    line = dump_json(record)
                else:
                    line = ("\t".join(map(files.one_line, record.values())) + "\n").encode()
                out.write(b",\n" * (count > 0) + line.rstrip(b"\n") if array else line)
                lost -= _contents(read_back)
            losses += lost
            count += 1
        out.write(b"\n]\n" * array)
    if losses:
        listed = ", ".join(f"{name}: {number:,}" for name, number in losses.items())
        logger.info(f"left out, as {form} has no place for them: {listed}")
    return count


def _records(example: TrainingExample, number: int, form: TrainingFormat) -> list[dict[Any, Any]]:
    """Return the lines of an example, written after `number` others, as keys or columns."""
    if form is TrainingFormat.NEGATIVES:
        return [{0: example.qid, 1: ",".join(each.docid for each in example.negatives)}]
    if form in COLUMNS:
        names = TRIPLETS[0] if form is TrainingFormat.ST_TRIPLET else range(3)
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
    with files.open_binary(source, "train") as handle:
        for line, row in _named_rows(handle, source, EXPECTED[size], order):
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


def _named_rows(
    handle: BinaryIO, source: str | Path, expected: str, order: Order | None = None
) -> Iterator[Row]:
    """Yield (line, row with its columns by name in lower case) of JSON lines, tabs or commas.

    `order` names the columns of a file without a header; where it is None, all have a header.
    """
    numbered = (each for each in files.number_lines(handle, source) if each[1].strip())
    start, lines = files.peek(numbered)
    if start is None:
        return
    if files.is_json(start[1]):
        for line, record in json_records.parse_objects(lines, source):
            yield line, {key.lower(): value for key, value in record.items()}
        return
    texts = files.decode_lines(lines, source)
    tabs = ((line, text.split("\t")) for line, text in texts)
    rows = tabs if b"\t" in start[1] else files.read_rows(texts, source, ",", expected)
    header: Sequence[str] = ()
    for line, row in rows:
        width = files.columns(len(row))
        if not header:
            header = [column.strip().lower() for column in row]
            if order is None or {"anchor", "sentence1"} & set(header):
                continue
            if not (header := order(row)):
                raise InputError(source, line, f"{width} without a header", expected)
        known = row[: len(BENCHMARK)] if header is BENCHMARK else row
        if len(known) != len(header):
            raise InputError(source, line, width, f"{len(header)}: {', '.join(header)}")
        yield line, dict(zip(header, known, strict=True))
