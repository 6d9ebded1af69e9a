"""Training data: queries with positives and negatives, in every format.

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
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, product
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from denserk.config.formats import TrainingFormat
from denserk.errors import DenserkError, InputError, UsageError
from denserk.io.files import (
    BOM,
    STREAM,
    columns,
    decode_lines,
    first_line,
    look_ahead,
    number_lines,
    one_line,
    open_binary,
    peek,
    whole_binary,
)
from denserk.io.json_records import Fields, dump_json, read_json
from denserk.records import Candidate, TrainingExample

logger = logging.getLogger(__name__)

RANDOM_NEGATIVES = "negative_ctxs"  # DPR's key of negatives that it does not train with
LABELS = ("label", "score")
FIRST_COLUMNS = ("anchor", "query", "question", "sentence", "sentence1")
SAMPLE = 100  # lines that decide between formats of columns
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
FILE_ENDINGS = (".jsonl", ".json", ".tsv", ".csv", ".txt", ".gz", ".parquet")
Rows = Sequence[dict[str, Any] | list[str]]
Losses = Counter[str]  # what a written format has no place for -> how many
Candidates = tuple[Candidate, ...]
Row = tuple[int, Mapping[str, Any]]


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


class JsonKeys(NamedTuple):
    """The keys of a JSON format, and how its passages are read."""

    qid: str
    query: str
    positives: str
    negatives: str
    candidates: Callable[[Fields, str], Candidates]

    def example(self, fields: Fields, number: int) -> TrainingExample:
        """Return the example of an object, the record of a number from 0."""
        known = [self.qid, self.query, self.positives, self.negatives, "answers"]
        if self.candidates is _texts:
            known += [f"{self.positives}_scores", f"{self.negatives}_scores"]
        if self.candidates is _passages and not fields.record.get(RANDOM_NEGATIVES):
            known.append(RANDOM_NEGATIVES)
        return TrainingExample(
            fields.identifier(self.qid, str(number)) if self.qid else str(number),
            fields.text(self.query),
            self.candidates(fields, self.positives),
            self.candidates(fields, self.negatives),
            fields.texts("answers"),
            fields.rest(known),
        )

    def read(self, handle: BinaryIO, path: str | Path) -> Iterator[TrainingExample]:
        """Yield the examples of JSON lines or an array; `path` names the input in errors."""
        head, handle = look_ahead(handle, path)
        array = head.removeprefix(BOM).lstrip()[:1] == b"["
        for number, (line, record) in enumerate(read_json(handle, b"[" * array, path)):
            yield self.example(Fields(record, path, line), number if array else line - 1)


def random_negatives(example: TrainingExample, path: str | Path) -> Candidates:
    """Return the random negatives of a DPR example; `path` names the input in errors."""
    return _passages(Fields(example.extra, path, None), RANDOM_NEGATIVES)


def _rows(handle: BinaryIO, path: str | Path, expected: str) -> Iterator[tuple[Fields, list[str]]]:
    """Yield the columns of lines, as many as `expected` begins with; blank lines are skipped."""
    for line, text in decode_lines(number_lines(handle, path), path):
        if text.strip():
            fields, row = Fields({}, path, line), text.split("\t")
            if len(row) != int(expected[0]):
                raise fields.error(columns(len(row)), expected)
            yield fields, row


def _read_triples(handle: BinaryIO, path: str | Path) -> Iterator[TrainingExample]:
    for fields, row in _rows(handle, path, "3 columns: query id, positive id, negative id"):
        qid, positive, negative = (fields.as_identifier(v.strip(), "the id") for v in row)
        yield TrainingExample(qid, "", (Candidate(positive),), (Candidate(negative),))


def _read_text_triples(handle: BinaryIO, path: str | Path) -> Iterator[TrainingExample]:
    expected = "3 columns: query, positive text, negative text"
    return (_of_texts(row) for _, row in _rows(handle, path, expected))


def _read_negatives(handle: BinaryIO, path: str | Path) -> Iterator[TrainingExample]:
    expected = "2 columns: query id, negative ids with commas between them"
    for fields, (qid, listed) in _rows(handle, path, expected):
        ids = (part.strip() for part in listed.split(",") if part.strip())
        negatives = tuple(Candidate(fields.as_identifier(docid, "the id")) for docid in ids)
        yield TrainingExample(fields.as_identifier(qid.strip(), "the id"), "", (), negatives)


def _read_st_triplet(handle: BinaryIO, path: str | Path) -> Iterator[TrainingExample]:
    """Read sentence-transformers' columns, whose order counts and whose names do not."""
    head, handle = look_ahead(handle, path)
    if head.removeprefix(BOM).lstrip()[:1] == b"{":
        for line, record in read_json(handle, b"", path):
            yield _of_row(Fields(record, path, line))
        return
    header: list[str] | None = None
    for line, text in decode_lines(number_lines(handle, path), path):
        row = text.split("\t")
        if header is None and text.strip():
            header = row
            _of_row(Fields(dict.fromkeys(header, ""), path, line))
        elif header and text.strip():
            if len(row) != len(header):
                raise InputError(path, line, columns(len(row)), f"the header's {len(header)}")
            yield _of_texts(row)


def _of_texts(texts: Sequence[str]) -> TrainingExample:
    query, positive, *negatives = texts
    others = tuple(Candidate(text=text) for text in negatives)
    return TrainingExample("", query, (Candidate(text=positive),), others)


def _of_row(fields: Fields) -> TrainingExample:
    """Return the example of a row of named columns."""
    for key in LABELS:
        if key in fields.record:
            raise fields.error(f"the column {key}", "texts alone: anchor, positive, negatives")
    if len(fields.record) < 2:
        found = columns(len(fields.record))
        raise fields.error(found, "at least 2: anchor, positive[, negatives]")
    return _of_texts([fields.text(key) for key in fields.record])


def join_neighbours(examples: Iterable[TrainingExample]) -> Iterator[TrainingExample]:
    """Join lines of one query that follow each other; an absent id becomes the number from 0.

    >>> lines = [
    ...     TrainingExample("", "q", (Candidate("d1"),), (Candidate("d2"),)),
    ...     TrainingExample("", "q", (Candidate("d1"),), (Candidate("d3"),)),
    ... ]
    >>> [(e.qid, [c.docid for c in e.positives], [c.docid for c in e.negatives])
    ...  for e in join_neighbours(lines)]
    [('0', ['d1'], ['d2', 'd3'])]
    """
    groups = groupby(examples, key=lambda example: (example.qid, example.query))
    for number, ((qid, query), group) in enumerate(groups):
        lines = list(group)
        positives = {(c.docid, c.text): c for line in lines for c in line.positives}
        negatives = {(c.docid, c.text): c for line in lines for c in line.negatives}
        yield TrainingExample(
            qid or str(number), query, tuple(positives.values()), tuple(negatives.values())
        )


def all_candidates(example: TrainingExample) -> Iterator[Candidate]:
    """Yield positives, then negatives."""
    yield from example.positives
    yield from example.negatives


def pairs(example: TrainingExample, losses: Losses) -> Iterator[tuple[Candidate, Candidate]]:
    """Yield every positive with every negative; an example without both is counted as lost."""
    if not (example.positives and example.negatives):
        losses["examples without a positive or without a negative"] += 1
    yield from product(example.positives, example.negatives)


def _answers(example: TrainingExample) -> dict[str, Any]:
    return {"answers": list(example.answers)} if example.answers else {}


def _docids(candidates: Candidates) -> list[str]:
    return [candidate.docid for candidate in candidates]


def _extra(example: TrainingExample) -> dict[str, Any]:
    """Return the extra fields without DPR's random negatives, whose texts only DPR carries."""
    return {key: value for key, value in example.extra.items() if key != RANDOM_NEGATIVES}


def _contents(candidate: Candidate) -> dict[str, Any]:
    score = {} if candidate.score is None else {"score": candidate.score}
    return {"title": candidate.title, "text": candidate.text, **score, **candidate.extra}


# Rows of a written format: (example, its number from 0, losses) -> JSON objects, or columns


def _to_tevatron(example: TrainingExample, number: int, losses: Losses) -> Rows:
    sides = ("positive_passages", example.positives), ("negative_passages", example.negatives)
    record = {"query_id": example.qid, "query": example.query, **_answers(example)}
    passages = {key: [{"docid": c.docid, **_contents(c)} for c in side] for key, side in sides}
    return [record | passages | dict(example.extra)]


def _to_tevatron_ids(example: TrainingExample, number: int, losses: Losses) -> Rows:
    record = {"query_id": example.qid, "query_text": example.query, **_answers(example)}
    record["positive_document_ids"] = _docids(example.positives)
    record["negative_document_ids"] = _docids(example.negatives)
    return [record | _extra(example)]


def _to_dpr(example: TrainingExample, number: int, losses: Losses) -> Rows:
    def contexts(candidates: Candidates) -> list[dict[str, Any]]:
        return [{**_contents(c), "passage_id": c.docid} for c in candidates]

    record = {
        **({} if example.qid == str(number) else {"query_id": example.qid}),
        "question": example.query,
        "answers": list(example.answers),
        "positive_ctxs": contexts(example.positives),
        RANDOM_NEGATIVES: [],
        "hard_negative_ctxs": contexts(example.negatives),
    }
    return [record | dict(example.extra)]


def _to_flag(example: TrainingExample, number: int, losses: Losses) -> Rows:
    """Scores are written if every passage of an example has one."""
    scores = [c.score for c in all_candidates(example) if c.score is not None]
    scored = len(scores) == len(example.positives) + len(example.negatives) > 0
    losses["scores"] += 0 if scored else len(scores)
    record: dict[str, Any] = {"query": example.query, **_answers(example)}
    for key, candidates in (("pos", example.positives), ("neg", example.negatives)):
        record[key] = [c.text for c in candidates]
        if scored:
            record[f"{key}_scores"] = [c.score for c in candidates]
    return [record | _extra(example)]


def _to_st_ids(example: TrainingExample, number: int, losses: Losses) -> Rows:
    pos, neg = _docids(example.positives), _docids(example.negatives)
    return [{"qid": example.qid, "pos": pos, "neg": {"denserk": neg}}]


def _to_st_triplet(example: TrainingExample, number: int, losses: Losses) -> Rows:
    return [
        {"anchor": example.query, "positive": positive.text, "negative": negative.text}
        for positive, negative in pairs(example, losses)
    ]


def _to_triples(example: TrainingExample, number: int, losses: Losses) -> Rows:
    return [[example.qid, one.docid, other.docid] for one, other in pairs(example, losses)]


def _to_text_triples(example: TrainingExample, number: int, losses: Losses) -> Rows:
    texts = (example.query, *(candidate.text for candidate in all_candidates(example)))
    losses["tabs and line ends inside texts"] += sum(one_line(text) != text for text in texts)
    return [
        [one_line(text) for text in (example.query, positive.text, negative.text)]
        for positive, negative in pairs(example, losses)
    ]


def _to_negatives(example: TrainingExample, number: int, losses: Losses) -> Rows:
    losses["positives"] += len(example.positives)
    docids = _docids(example.negatives)
    if any("," in docid for docid in docids):
        raise DenserkError(
            f"a passage id of query {example.qid} has a comma, which separates ids in this format",
            "write tevatron-ids or triples",
        )
    return [[example.qid, ",".join(docids)]]


class Format(NamedTuple):
    """How a format is written and read.

    `carries` names the fields of examples and candidates that are written; a format that does not
    carry "docid" alone needs texts. `keys` is set for JSON formats of one record an example; the
    others are read line by line, and lines of one query joined.
    """

    write: Callable[[TrainingExample, int, Losses], Rows]
    carries: str
    keys: JsonKeys | None = None
    read_lines: Callable[[BinaryIO, str | Path], Iterator[TrainingExample]] | None = None

    def read(self, handle: BinaryIO, path: str | Path) -> Iterator[TrainingExample]:
        """Yield the examples of an input; `path` names it in errors."""
        if self.keys is not None:
            return self.keys.read(handle, path)
        assert self.read_lines is not None
        examples = self.read_lines(handle, path)
        return examples if self.read_lines is _read_negatives else join_neighbours(examples)


ALL = "query docid text title score answers extra candidate.extra random"
PASSAGES = "positive_passages", "negative_passages", _passages
IDS = "positive_document_ids", "negative_document_ids", _ids
CONTEXTS = "positive_ctxs", "hard_negative_ctxs", _passages
FORMATS: dict[TrainingFormat, Format] = {
    TrainingFormat.TEVATRON: Format(_to_tevatron, ALL, JsonKeys("query_id", "query", *PASSAGES)),
    TrainingFormat.TEVATRON_IDS: Format(
        _to_tevatron_ids, "query docid answers extra", JsonKeys("query_id", "query_text", *IDS)
    ),
    TrainingFormat.DPR: Format(_to_dpr, ALL, JsonKeys("query_id", "question", *CONTEXTS)),
    TrainingFormat.FLAG: Format(
        _to_flag, "query text score answers extra", JsonKeys("", "query", "pos", "neg", _texts)
    ),
    TrainingFormat.ST_IDS: Format(
        _to_st_ids, "docid", JsonKeys("qid", "query", "pos", "neg", _ids)
    ),
    TrainingFormat.ST_TRIPLET: Format(_to_st_triplet, "query text", None, _read_st_triplet),
    TrainingFormat.TRIPLES: Format(_to_triples, "docid", None, _read_triples),
    TrainingFormat.TEXT_TRIPLES: Format(_to_text_triples, "query text", None, _read_text_triples),
    TrainingFormat.NEGATIVES: Format(_to_negatives, "docid", None, _read_negatives),
}
# any of these keys in the first object decides; the first row that fits counts
DECIDING_KEYS = (
    (TrainingFormat.TEVATRON, ("positive_passages", "negative_passages")),
    (TrainingFormat.TEVATRON_IDS, ("positive_document_ids", "negative_document_ids")),
    (TrainingFormat.DPR, ("positive_ctxs", "hard_negative_ctxs")),
    (TrainingFormat.FLAG, ("pos", "neg")),
    (TrainingFormat.ST_TRIPLET, ("positive", "negative", "negative_1", "anchor", "answer")),
)


def check(example: TrainingExample, carried: Collection[str]) -> None:
    """Raise an error for an example without the texts, or the ids, that a format needs."""
    candidates = list(all_candidates(example))
    if "text" not in carried:
        if not all(candidate.docid for candidate in candidates):
            raise DenserkError(
                f"a passage of query {example.qid} has no id, and this format holds ids alone",
                "write a format with texts: tevatron, dpr, flag, st-triplet or text-triples",
            )
    elif not example.query:
        raise DenserkError(
            f"query {example.qid} has no text, and this format holds texts",
            "add --queries, the file with the texts of the queries",
        )
    elif any(c.docid for c in candidates) and not any(c.text or c.title for c in candidates):
        raise DenserkError(
            f"the passages of query {example.qid} are known by id alone; this format holds texts",
            "add --corpus, the file with the texts of the passages",
        )


def count_losses(example: TrainingExample, losses: Losses, carried: Collection[str]) -> None:
    """Count what an example holds beyond `carried`, names of the fields of the records.

    >>> losses = Losses()
    >>> example = TrainingExample("1", "q", (Candidate("d", "text", "title"),), (), ("yes",))
    >>> count_losses(example, losses, {"query", "docid", "text"})
    >>> dict(+losses)
    {'titles': 1, 'answers': 1}
    """
    candidates = list(all_candidates(example))
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
    """Write training examples; what the format cannot carry is counted and logged once.

    Returns:
        The number of examples.
    """
    losses, count, format = Losses(), 0, FORMATS[form]
    carried = format.carries.split()
    array = form is TrainingFormat.DPR and ".jsonl" not in Path(path).suffixes
    with whole_binary(path) as out:
        out.write(b"[\n" * array)
        for example in examples:
            check(example, carried)
            count_losses(example, losses, carried)
            for row in format.write(example, count, losses):
                line = dump_json(row) if isinstance(row, dict) else _tab_line(row)
                out.write((b",\n" * (count > 0) + line.rstrip(b"\n")) if array else line)
            count += 1
        out.write(b"\n]\n" * array)
    lost = ", ".join(f"{name}: {number:,}" for name, number in losses.items() if number)
    if lost:
        logger.info(f"left out, as {form} has no place for them: {lost}")
    return count


def _tab_line(row: Sequence[str]) -> bytes:
    return ("\t".join(row) + "\n").encode()


def detect_training(head: bytes) -> TrainingFormat | None:
    r"""Return the format of training data that begins with these bytes; None if it is unknown.

    >>> detect_training(b'{"query": "q", "pos": ["a"], "neg": []}\n').value
    'flag'
    >>> detect_training(b"1\t20\t30\n1\t20\t31\n").value
    'triples'
    """
    head = head.removeprefix(BOM)
    if head.lstrip()[:1] == b"[":
        return TrainingFormat.DPR if b"_ctxs" in head else None
    if head.lstrip()[:1] == b"{":
        try:
            return _of_record(orjson.loads(first_line(head)))
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
    return next((form for form, deciding in DECIDING_KEYS if keys & set(deciding)), None)


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


def read_training(
    source: str | Path, form: TrainingFormat | None = None
) -> Iterator[TrainingExample]:
    """Read training examples one at a time.

    Args:
        source: a file, plain or gzip by suffix, or Parquet; "-" is standard input; a folder that
            `datasets` saved; or a dataset on the Hugging Face hub, NAME or NAME:CONFIG, of which
            the split `train` is read.
        form: its format; None detects it, and logs what was detected.
    """
    rows = _table(str(source))
    if rows is not None:
        yield from _of_table(rows, source, form)
        return
    with open_binary(source) as handle:
        if form is None:
            head, handle = look_ahead(handle, source)
            form = _known(detect_training(head), source, empty=not head.strip())
        yield from FORMATS[form].read(handle, source)


def _known(form: TrainingFormat | None, source: str | Path, *, empty: bool) -> TrainingFormat:
    if form is None:
        raise InputError(
            source,
            None,
            "nothing" if empty else "training data of no known format",
            f"one of {', '.join(TrainingFormat)}",
            "name its format if it is one of them",
        )
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


def _of_table(
    rows: Iterator[Row], source: str | Path, form: TrainingFormat | None
) -> Iterator[TrainingExample]:
    first, rows = peek(rows)
    if first is None:
        raise InputError(source, None, "no rows", "training examples")
    if form is None:
        form = _known(_of_record(first[1]), source, empty=False)
    fields = (Fields(row, source, line) for line, row in rows)
    if keys := FORMATS[form].keys:
        yield from (keys.example(each, number) for number, each in enumerate(fields))
    elif form is TrainingFormat.ST_TRIPLET:
        yield from join_neighbours(map(_of_row, fields))
    else:
        raise UsageError(f"{source} has named columns, and {form} has none")
