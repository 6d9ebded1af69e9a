"""Training data: queries with positives and negatives, in every format; pairs of sentences.

    tevatron       {"query_id", "query", "positive_passages": [{"docid", "title", "text", "score"}],
                    "negative_passages": [...], "answers"}
    tevatron-ids   {"query_id", "query_text", "positive_document_ids", "negative_document_ids"}
    dpr            {"question", "answers", "positive_ctxs": [{"title", "text", "score",
                    "passage_id"}], "hard_negative_ctxs": [...], "negative_ctxs": [...]}
    flag           {"query", "pos": [text], "neg": [text], "pos_scores", "neg_scores"}
    st-ids         {"qid", "pos": [id], "neg": {system: [id]}}, sentence-transformers' MS MARCO
    st-triplet     anchor, positive, negative[, ...]: JSON lines, or tabs under a header
    triples        qid <tab> pid <tab> pid                MS MARCO's qidpidtriples
    text-triples   query <tab> passage <tab> passage
    negatives      qid <tab> pid,pid,pid                  RetroMAE and coCondenser

JSON objects stand on lines or in one array. An absent query id is the number of the record, from 0.
A triple is a line: lines of one query that follow each other make one example, and an example is
written as every positive with every negative. DPR's random negatives stay among the extra fields.

Pairs of sentences have a label (sentence1, sentence2, label or score), triplets none (anchor,
positive, negative; or Sentence1, Sentence2, Sentence3). Columns are keys of JSON lines, or named by
a header, in any order and among others: between tabs nothing is quoted (GLUE's STS-B), between
commas a column may be. Without a header three columns between tabs have the order above, and seven
or more are the STS benchmark's: genre, file, year, number, score, sentence, sentence.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, product
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from denserk.config.formats import TrainingFormat
from denserk.errors import DenserkError, InputError, UsageError
from denserk.io.files import (
    STREAM,
    columns,
    decode_lines,
    first_line,
    is_number,
    number_lines,
    one_line,
    open_ahead,
    open_binary,
    peek,
    read_rows,
    read_text_lines,
    whole_binary,
)
from denserk.io.json_records import Fields, dump_json, list_keys, parse_objects, read_json
from denserk.records import Candidate, SentenceExample, TrainingExample

logger = logging.getLogger(__name__)

RANDOM_NEGATIVES = "negative_ctxs"  # DPR's key of negatives that it does not train with
LABELS = ("label", "score", "similarity_score")
FIRST_COLUMNS = ("anchor", "query", "question", "sentence", "sentence1")
NAMES = {"positive", "negative", "negative_1", "anchor", "answer"}  # of columns of st-triplet
SAMPLE = 100  # lines that decide between formats of columns
TEXTS_ALONE = "at least 2 columns of texts alone: anchor, positive[, negatives]"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
FILE_ENDINGS = (".jsonl", ".json", ".tsv", ".csv", ".txt", ".gz", ".parquet")
Losses = Counter[str]  # what a written format has no place for -> how many
Candidates = tuple[Candidate, ...]
Row = tuple[int, Mapping[str, Any]]  # line number, columns by name


def _passages(fields: Fields, key: str) -> Candidates:
    return tuple(map(_passage, fields.objects(key)))


def _passage(fields: Fields) -> Candidate:
    ids = ("docid", "passage_id", "psg_id")
    key = next((name for name in ids if name in fields), ids[0])
    known = (*ids, "text", "title", "score")
    texts = fields.text("text"), fields.text("title")
    return Candidate(fields.identifier(key), *texts, fields.number("score"), fields.rest(known))


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


def _contents(candidate: Candidate) -> dict[str, Any]:
    score = {} if candidate.score is None else {"score": candidate.score}
    return {"title": candidate.title, "text": candidate.text, **score, **candidate.extra}


def _to_passage(candidate: Candidate) -> dict[str, Any]:
    return {"docid": candidate.docid, **_contents(candidate)}


def _to_context(candidate: Candidate) -> dict[str, Any]:
    return {**_contents(candidate), "passage_id": candidate.docid}


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


class Keys(NamedTuple):
    """A JSON format of one record an example; `sides` are the keys of positives and negatives."""

    qid: str
    query: str
    sides: tuple[str, str]
    read: Callable[[Fields, str], Candidates]
    write: Callable[[Candidate], Any]

    def example(self, fields: Fields, number: int) -> TrainingExample:
        """Return the example of a record; `number` counts records from 0."""
        known = [self.qid, self.query, *self.sides, "answers"]
        if self.read is _texts:
            known += [f"{key}_scores" for key in self.sides]
        if self.read is _passages and not fields.record.get(RANDOM_NEGATIVES):
            known.append(RANDOM_NEGATIVES)
        positives, negatives = (self.read(fields, key) for key in self.sides)
        qid, query = fields.identifier(self.qid, str(number)), fields.text(self.query)
        answers, extra = fields.texts("answers"), fields.rest(known)
        return TrainingExample(qid, query, positives, negatives, answers, extra)


class Columns(NamedTuple):
    """A format of lines with columns: how a line is read, and an example is written."""

    expected: str  # begins with the number of columns
    read: Callable[[Fields, Sequence[str]], TrainingExample]
    write: Callable[[TrainingExample, Losses], Iterable[Sequence[str]]]


def _of_texts(fields: Fields, texts: Sequence[str]) -> TrainingExample:
    query, positive, *negatives = texts
    others = tuple(Candidate(text=text) for text in negatives)
    return TrainingExample("", query, (Candidate(text=positive),), others)


def _of_ids(fields: Fields, row: Sequence[str]) -> TrainingExample:
    qid, positive, negative = (fields.as_identifier(value.strip(), "a column") for value in row)
    return TrainingExample(qid, "", (Candidate(positive),), (Candidate(negative),))


def _of_listed(fields: Fields, row: Sequence[str]) -> TrainingExample:
    qid = fields.as_identifier(row[0].strip(), "query")
    ids = (part.strip() for part in row[1].split(",") if part.strip())
    negatives = tuple(Candidate(fields.as_identifier(docid, "passage")) for docid in ids)
    return TrainingExample(qid, "", (), negatives)


def pairs(example: TrainingExample, losses: Losses) -> Iterator[tuple[Candidate, Candidate]]:
    """Yield every positive with every negative; an example without both is counted as lost."""
    if not (example.positives and example.negatives):
        losses["examples without a positive or without a negative"] += 1
    yield from product(example.positives, example.negatives)


def _triples(example: TrainingExample, losses: Losses) -> Iterator[list[str]]:
    for positive, negative in pairs(example, losses):
        yield [example.qid, positive.docid, negative.docid]


def _texts_of_triples(example: TrainingExample, losses: Losses) -> Iterator[list[str]]:
    for positive, negative in pairs(example, losses):
        yield [example.query, positive.text, negative.text]


def _text_triples(example: TrainingExample, losses: Losses) -> Iterator[list[str]]:
    texts = (example.query, *(candidate.text for candidate in all_candidates(example)))
    losses["tabs and line ends inside texts"] += sum(one_line(text) != text for text in texts)
    return ([one_line(text) for text in row] for row in _texts_of_triples(example, losses))


def _listed(example: TrainingExample, losses: Losses) -> Iterator[list[str]]:
    losses["positives"] += len(example.positives)
    docids = [candidate.docid for candidate in example.negatives]
    if any("," in docid for docid in docids):
        raise DenserkError(
            f"a passage id of query {example.qid} has a comma, which separates ids in this format",
            "write tevatron-ids or triples",
        )
    yield [example.qid, ",".join(docids)]


class Format(NamedTuple):
    """The fields of examples and candidates that a format carries; st-triplet has any columns."""

    carries: str
    layout: Keys | Columns | None = None


ALL = "query docid text title score answers extra candidate.extra random"
PASSAGES = "positive_passages", "negative_passages"
IDS = "positive_document_ids", "negative_document_ids"
CONTEXTS = "positive_ctxs", "hard_negative_ctxs"
SHORT = "pos", "neg"
ID_LINES = Columns("3 columns: query id, positive id, negative id", _of_ids, _triples)
TEXT_LINES = Columns("3 columns: query, positive text, negative text", _of_texts, _text_triples)
LISTS = Columns("2 columns: query id, negative ids with commas between them", _of_listed, _listed)
FORMATS = {
    TrainingFormat.TEVATRON: Format(
        ALL, Keys("query_id", "query", PASSAGES, _passages, _to_passage)
    ),
    TrainingFormat.TEVATRON_IDS: Format(
        "query docid answers extra", Keys("query_id", "query_text", IDS, _ids, attrgetter("docid"))
    ),
    TrainingFormat.DPR: Format(ALL, Keys("query_id", "question", CONTEXTS, _passages, _to_context)),
    TrainingFormat.FLAG: Format(
        "query text score answers extra", Keys("", "query", SHORT, _texts, attrgetter("text"))
    ),
    TrainingFormat.ST_IDS: Format("docid", Keys("qid", "query", SHORT, _ids, attrgetter("docid"))),
    TrainingFormat.ST_TRIPLET: Format("query text"),
    TrainingFormat.TRIPLES: Format("docid", ID_LINES),
    TrainingFormat.TEXT_TRIPLES: Format("query text", TEXT_LINES),
    TrainingFormat.NEGATIVES: Format("docid", LISTS),
}


def read_training(
    source: str | Path, form: TrainingFormat | None = None
) -> Iterator[TrainingExample]:
    """Read training examples one at a time; a `form` of None is detected.

    The source is a file, plain or gzip by suffix, or Parquet; "-"; a folder that `datasets` saved;
    or the split `train` of a dataset on the Hugging Face hub, NAME or NAME:CONFIG.
    """
    rows = _table(str(source))
    if rows is not None:
        first, rows = peek(rows)
        if first is None:
            raise InputError(source, None, "no rows", "training examples")
        form = form or _known(_of_record(first[1]), source, empty=False)
        yield from _of_objects(rows, source, form)
        return
    with open_ahead(source) as (head, handle):
        form = form or _known(detect_training(head), source, empty=not head.strip())
        layout = FORMATS[form].layout
        if isinstance(layout, Keys):
            yield from _of_objects(read_json(handle, head.lstrip()[:1], source), source, form)
        elif layout is None:
            yield from _of_objects(_named_rows(handle, source, TEXTS_ALONE), source, form)
        else:
            examples = _of_lines(layout, handle, source)
            yield from examples if layout is LISTS else join_neighbours(examples)


def _of_objects(
    objects: Iterable[Row], source: str | Path, form: TrainingFormat
) -> Iterator[TrainingExample]:
    layout = FORMATS[form].layout
    if isinstance(layout, Columns):
        raise UsageError(f"{source} has named columns, and {form} has none")
    fields = (Fields(record, source, line) for line, record in objects)
    if layout is None:
        yield from join_neighbours(map(_of_row, fields))
    else:
        yield from (layout.example(each, number) for number, each in enumerate(fields))


def _of_lines(layout: Columns, handle: BinaryIO, path: str | Path) -> Iterator[TrainingExample]:
    for line, text in read_text_lines(path, handle):
        fields, row = Fields({}, path, line), text.split("\t")
        if text.strip() and len(row) != int(layout.expected[0]):
            raise fields.error(columns(len(row)), layout.expected)
        if text.strip():
            yield layout.read(fields, row)


def _of_row(fields: Fields) -> TrainingExample:
    if label := next((key for key in LABELS if key in fields.record), None):
        raise fields.error(f"the column {label}", TEXTS_ALONE)
    if len(fields.record) < 2:
        raise fields.error(columns(len(fields.record)), TEXTS_ALONE)
    return _of_texts(fields, [fields.text(key) for key in fields.record])


def join_neighbours(examples: Iterable[TrainingExample]) -> Iterator[TrainingExample]:
    """Join lines of one query that follow each other; an absent id becomes the number from 0."""
    groups = groupby(examples, key=lambda example: (example.qid, example.query))
    for number, ((qid, query), group) in enumerate(groups):
        lines = list(group)
        positives = {(c.docid, c.text): c for line in lines for c in line.positives}
        negatives = {(c.docid, c.text): c for line in lines for c in line.negatives}
        yield TrainingExample(
            qid or str(number), query, tuple(positives.values()), tuple(negatives.values())
        )


def _known(form: TrainingFormat | None, source: str | Path, *, empty: bool) -> TrainingFormat:
    if form is None:
        found = "nothing" if empty else "training data of no known format"
        expected = f"one of {', '.join(TrainingFormat)}"
        raise InputError(source, None, found, expected, "name its format if it is one of them")
    logger.info(f"{source}: training data in the format {form}")
    return form


def _table(source: str) -> Iterator[Row] | None:
    """Return the rows of Parquet, of a saved dataset, or of one on the hub; None of other files."""
    if not Path(source).is_dir() and not source.endswith(".parquet"):
        if source == STREAM or source.endswith(FILE_ENDINGS) or Path(source).exists():
            return None
        if not HUB_NAME.fullmatch(source) or Path(source).parent.is_dir():
            return None
    return enumerate(_dataset_rows(source), start=1)


def _dataset_rows(source: str) -> Iterator[Mapping[str, Any]]:
    import pyarrow
    from datasets import DatasetDict, load_dataset, load_from_disk
    from pyarrow import parquet

    try:
        if source.endswith(".parquet") and not Path(source).is_dir():
            if not Path(source).exists():
                raise UsageError(f"{source}: no such file")
            with parquet.ParquetFile(source) as file:
                for batch in file.iter_batches(batch_size=1024):
                    yield from batch.to_pylist()
        elif Path(source).is_dir():
            found: Any = load_from_disk(source)
            yield from found["train"] if isinstance(found, DatasetDict) else found
        else:
            name, _, config = source.partition(":")
            yield from load_dataset(name, config or None, split="train", streaming=True)
    except (pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        if Path(source).is_file():
            found = f"a broken file ({reason})"
            raise InputError(source, None, found, "a Parquet file") from None
        raise UsageError(
            f"{source}: no such file, and no dataset that could be read ({reason})",
            "give a file, a folder of save_to_disk with a split train, or a dataset of the hub as "
            "NAME or NAME:CONFIG",
        ) from None


def detect_training(head: bytes) -> TrainingFormat | None:
    """Return the format of training data that begins with these bytes; None if it is unknown."""
    start = first_line(head).lstrip()
    if start.startswith(b"["):
        return TrainingFormat.DPR if b"_ctxs" in head else None
    if start.startswith(b"{"):
        try:
            return _of_record(orjson.loads(start))
        except orjson.JSONDecodeError:
            return None
    lines = [line for line in head.splitlines()[:SAMPLE] if line.strip()]
    if len(lines) > 1 and not head.endswith((b"\n", b"\r")):
        lines.pop()  # it may be cut short
    return _of_columns(lines) if lines else None


def _of_record(record: Mapping[str, Any]) -> TrainingFormat | None:
    keys = record.keys()
    if isinstance(record.get("neg"), dict) or {"qid", "pos"} <= keys:
        return TrainingFormat.ST_IDS
    for form, format in FORMATS.items():
        if isinstance(format.layout, Keys) and keys & set(format.layout.sides):
            return form
    return TrainingFormat.ST_TRIPLET if keys & NAMES else None


def _of_columns(lines: list[bytes]) -> TrainingFormat | None:
    rows = [[column.strip() for column in line.split(b"\t")] for line in lines]
    width = len(rows[0])
    if any(len(row) != width for row in rows):
        return None
    first = [column.decode("utf-8", "replace").lower() for column in rows[0]]
    if width > 1 and first[0] in FIRST_COLUMNS and first[1].startswith(("pos", "answer")):
        return TrainingFormat.ST_TRIPLET
    bare = not any(b" " in column for row in rows for column in row)
    if width == 3:
        return TrainingFormat.TRIPLES if bare else TrainingFormat.TEXT_TRIPLES
    return TrainingFormat.NEGATIVES if width == 2 and bare else None


def _check(example: TrainingExample, carried: Collection[str]) -> None:
    """Raise an error for an example without the texts, or the ids, that a format needs."""
    candidates = all_candidates(example)
    error = hint = None
    if "text" not in carried:
        if not all(candidate.docid for candidate in candidates):
            error = f"a passage of query {example.qid} has no id, and this format holds ids alone"
            hint = "write a format with texts: tevatron, dpr, flag, st-triplet or text-triples"
    elif not example.query:
        error = f"query {example.qid} has no text, and this format holds texts"
        hint = "add --queries, the file with the texts of the queries"
    elif any(c.docid for c in candidates) and not any(c.text or c.title for c in candidates):
        error = (
            f"the passages of query {example.qid} have ids and no texts; this format holds texts"
        )
        hint = "add --corpus, the file with the texts of the passages"
    if error:
        raise DenserkError(error, hint)


def _count_losses(example: TrainingExample, losses: Losses, carried: Collection[str]) -> None:
    """Count what an example holds beyond `carried`, names of the fields of the records."""
    candidates = all_candidates(example)
    found = {
        "docid": {"passage ids": sum(bool(c.docid) for c in candidates)},
        "text": {"texts": sum(bool(c.text) for c in candidates)},
        "title": {"titles": sum(bool(c.title) for c in candidates)},
        "score": {"scores": sum(c.score is not None for c in candidates)},
        "answers": {"answers": len(example.answers)},
        "query": {"query texts": int(bool(example.query))},
        "candidate.extra": Counter(key for c in candidates for key in c.extra),
        "extra": Counter(_extra(example).keys()),
        "random": {RANDOM_NEGATIVES: int(RANDOM_NEGATIVES in example.extra)},
    }
    for name, counts in found.items():
        if name not in carried:
            losses.update(counts)


def write_training(
    path: str | Path, examples: Iterable[TrainingExample], form: TrainingFormat
) -> int:
    """Write training examples; return their number. Losses by the format are logged once."""
    losses, count = Losses(), 0
    carried = FORMATS[form].carries.split()
    array = form is TrainingFormat.DPR and ".jsonl" not in Path(path).suffixes
    with whole_binary(path) as out:
        out.write(b"[\n" * array)
        for example in examples:
            _check(example, carried)
            _count_losses(example, losses, carried)
            before = b",\n" * (array and count > 0)
            for line in _written(example, count, form, losses):
                out.write(before + (line.rstrip(b"\n") if array else line))
            count += 1
        out.write(b"\n]\n" * array)
    lost = ", ".join(f"{name}: {number:,}" for name, number in losses.items() if number)
    if lost:
        logger.info(f"left out, as {form} has no place for them: {lost}")
    return count


def _written(
    example: TrainingExample, number: int, form: TrainingFormat, losses: Losses
) -> Iterator[bytes]:
    """Yield the lines of an example, which is written after `number` others."""
    layout = FORMATS[form].layout
    if isinstance(layout, Keys):
        yield dump_json(_record(example, number, form, layout, losses))
    elif isinstance(layout, Columns):
        for row in layout.write(example, losses):
            yield ("\t".join(row) + "\n").encode()
    else:
        for row in _texts_of_triples(example, losses):
            yield dump_json(dict(zip(TRIPLETS[0], row, strict=True)))


def _record(
    example: TrainingExample, number: int, form: TrainingFormat, keys: Keys, losses: Losses
) -> dict[str, Any]:
    carried, dpr = FORMATS[form].carries.split(), form is TrainingFormat.DPR
    record: dict[str, Any] = {}
    if keys.qid and not (dpr and example.qid == str(number)):
        record[keys.qid] = example.qid
    if "query" in carried:
        record[keys.query] = example.query
    if "answers" in carried and (example.answers or dpr):
        record["answers"] = list(example.answers)
    scores = [candidate.score for candidate in all_candidates(example)]
    scored = form is TrainingFormat.FLAG and bool(scores) and None not in scores
    sides = zip(keys.sides, (example.positives, example.negatives), strict=True)
    for key, candidates in sides:
        record[key] = [keys.write(candidate) for candidate in candidates]
        if scored:  # only where every passage has one
            record[f"{key}_scores"] = [candidate.score for candidate in candidates]
    if form is TrainingFormat.FLAG and not scored:
        losses["scores"] += len(scores) - scores.count(None)
    if form is TrainingFormat.ST_IDS:
        record["neg"] = {"denserk": record["neg"]}
    if dpr:
        record[RANDOM_NEGATIVES] = []
    if "extra" in carried:
        record |= example.extra if "random" in carried else _extra(example)
    return record


def _extra(example: TrainingExample) -> dict[str, Any]:
    """Return the extra fields without DPR's random negatives."""
    return {key: value for key, value in example.extra.items() if key != RANDOM_NEGATIVES}


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
    with open_binary(source) as handle:
        order = partial(_order_of, size=size)
        first, rows = peek(_named_rows(handle, source, EXPECTED[size], order))
        if first is None:
            raise InputError(source, None, "no rows", EXPECTED[size])
        line, row = first
        names = next((names for names in (*TRIPLETS, PAIR) if row.keys() >= set(names)), ())
        if not names or size not in (None, len(names)):
            raise InputError(source, line, f"the columns {list_keys(row)}", EXPECTED[size])
        split = row.get("split")
        for line, row in rows:
            fields = Fields(row, source, line)
            if row.get("split") != split:
                raise fields.error(f"split {row.get('split')!r} after {split!r}", "a file a split")
            yield _sentences(fields, names)


def _sentences(fields: Fields, names: tuple[str, ...]) -> SentenceExample:
    texts = tuple(fields.text(name) for name in names)
    for name, text in zip(names, texts, strict=True):
        if not text.strip():
            raise fields.error(f"no {name}", "a sentence")
    if len(names) == 3:
        return SentenceExample(texts)
    label = next((fields.number(name) for name in LABELS if name in fields), None)
    if label is None:
        found = f"no label among the columns {list_keys(fields.record)}"
        raise fields.error(found, "a number as label or score")
    return SentenceExample(texts, label)


def _named_rows(
    handle: BinaryIO,
    source: str | Path,
    expected: str,
    order: Callable[[Sequence[str]], Sequence[str]] | None = None,
) -> Iterator[Row]:
    """Yield (line, row with its columns by name in lower case) of JSON lines, tabs or commas.

    `order` names the columns of a file without a header; where it is None, all have a header.
    """
    numbered = ((number, line) for number, line in number_lines(handle, source) if line.strip())
    start, lines = peek(numbered)
    if start is None:
        return
    if start[1].lstrip()[:1] == b"{":
        for line, record in parse_objects(lines, source):
            yield line, {key.lower(): value for key, value in record.items()}
        return
    texts = decode_lines(lines, source)
    tabs = ((line, text.split("\t")) for line, text in texts)
    first, rows = peek(tabs if b"\t" in start[1] else read_rows(texts, source, ",", expected))
    if first is None:
        return
    line, row = first
    header: Sequence[str] = [column.strip().lower() for column in row]
    if order is None or {"anchor", "sentence1"} & set(header):
        if twice := {name for name in header if header.count(name) > 1}:
            raise InputError(source, line, f"the column {twice.pop()} twice", "each name once")
        next(rows)
    elif not (header := order(row)):
        raise InputError(source, line, f"{columns(len(row))} without a header", expected)
    for line, row in rows:
        known = row[: len(BENCHMARK)] if header is BENCHMARK else row
        if len(known) != len(header):
            raise InputError(source, line, columns(len(row)), f"{len(header)}: {', '.join(header)}")
        yield line, dict(zip(header, known, strict=True))


def _order_of(row: Sequence[str], size: int | None) -> tuple[str, ...]:
    """Return the names of columns without a header; none if their number does not decide."""
    if len(row) >= len(BENCHMARK):
        return BENCHMARK
    if len(row) != 3:
        return ()
    labelled = size == 2 or (size is None and is_number(row[2]))
    return (*PAIR, "label") if labelled else TRIPLETS[0]
