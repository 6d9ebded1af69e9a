"""Triples of a query, a positive and a negative, by id or by text; columns; comma lists of ids.

    qid <tab> pid <tab> pid               MS MARCO's qidpidtriples
    query <tab> passage <tab> passage     triples of texts
    anchor, positive, negative[, ...]     sentence-transformers' columns: JSON lines, or tabs and
                                          a header
    qid <tab> pid,pid,pid                 RetroMAE's and coCondenser's negatives

A triple is a line; lines of one query that follow each other make one example, and an example is
written as every positive with every negative.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from denserk.errors import DenserkError, InputError
from denserk.formats.files import look_ahead, number_lines, whole_text
from denserk.formats.json_records import Fields, parse_objects, write_objects
from denserk.formats.training_records import (
    Losses,
    count_losses,
    join_neighbours,
    need_ids,
    need_texts,
    pairs,
)
from denserk.records import Candidate, TrainingExample

NOT_COLUMNS = ("label", "score")


def _columns(
    handle: BinaryIO, path: str | Path, expected: str, counts: Sequence[int]
) -> Iterator[tuple[int, list[str]]]:
    """Lines cut at their tabs; empty lines are passed over."""
    for number, line in number_lines(handle, path):
        if not line.strip():
            continue
        try:
            columns = line.decode("utf-8").split("\t")
        except UnicodeDecodeError as error:
            found = f"a byte that is not UTF-8 (0x{line[error.start]:02x})"
            raise InputError(path, number, found, "UTF-8 text") from None
        if len(columns) not in counts:
            raise InputError(path, number, f"{len(columns)} columns", expected)
        yield number, columns


def _ids(values: Iterable[str], path: str | Path, line: int) -> list[str]:
    return [Fields({}, path, line).as_identifier(value, "the id") for value in values]


def read_id_triples(handle: BinaryIO, path: str | Path) -> Iterator[TrainingExample]:
    """Reads triples of ids; `path` names the input in errors.

    Raises:
        InputError: a line is not three ids.
    """
    expected = "3 columns: query id, positive id, negative id"

    def lines() -> Iterator[TrainingExample]:
        for number, columns in _columns(handle, path, expected, (3,)):
            qid, positive, negative = _ids(map(str.strip, columns), path, number)
            yield TrainingExample(qid, "", (Candidate(positive),), (Candidate(negative),))

    return join_neighbours(lines())


def read_text_triples(handle: BinaryIO, path: str | Path) -> Iterator[TrainingExample]:
    """Reads triples of texts; `path` names the input in errors.

    Raises:
        InputError: a line is not three texts.
    """
    expected = "3 columns: query, positive text, negative text"
    lines = _columns(handle, path, expected, (3,))
    return join_neighbours(_of_texts(columns) for _, columns in lines)


def _of_texts(texts: Sequence[str]) -> TrainingExample:
    query, positive, *negatives = texts
    others = tuple(Candidate(text=text) for text in negatives)
    return TrainingExample("", query, (Candidate(text=positive),), others)


def read_columns(handle: BinaryIO, path: str | Path) -> Iterator[TrainingExample]:
    """Reads sentence-transformers' columns, whose order counts and whose names do not.

    Raises:
        InputError: a line lacks a positive, or is labelled: such data is no training by triplets.
    """
    head, handle = look_ahead(handle, path)
    if head.lstrip()[:1] == b"{":
        rows = parse_objects(number_lines(handle, path), path)
        return join_neighbours(of_row(Fields(row, path, line)) for line, row in rows)
    return join_neighbours(_of_table(handle, path))


def of_row(fields: Fields) -> TrainingExample:
    """Return the example of a row of columns."""
    for key in NOT_COLUMNS:
        if key in fields.record:
            raise fields.error(f"the column {key}", "texts alone: anchor, positive, negatives")
    texts = [fields.text(key) for key in fields.record]
    if len(texts) < 2:
        raise fields.error(f"{len(texts)} columns", "at least 2: anchor, positive[, negatives]")
    return _of_texts(texts)


def _of_table(handle: BinaryIO, path: str | Path) -> Iterator[TrainingExample]:
    lines = _columns(handle, path, "a header: anchor, positive[, negatives]", range(2, 1000))
    line, header = next(lines, (1, []))
    for key in NOT_COLUMNS:
        if key in header:
            found = f"the column {key}"
            raise InputError(path, line, found, "texts alone: anchor, positive, negatives")
    for number, columns in lines:
        if len(columns) != len(header):
            found = f"{len(columns)} columns"
            raise InputError(path, number, found, f"the header's {len(header)}")
        yield _of_texts(columns)


def read_negatives(handle: BinaryIO, path: str | Path) -> Iterator[TrainingExample]:
    """Reads comma lists of negatives: examples without positives and without the query's text.

    Raises:
        InputError: a line is not an id and a comma list of ids.
    """
    expected = "2 columns: query id, negative ids with commas between them"
    for number, (qid, listed) in _columns(handle, path, expected, (2,)):
        ids = (part.strip() for part in listed.split(",") if part.strip())
        negatives = tuple(map(Candidate, _ids(ids, path, number)))
        yield TrainingExample(_ids([qid.strip()], path, number)[0], "", (), negatives)


def _write_lines(path: str | Path, examples: Iterable[TrainingExample], lines: Any) -> int:
    count = 0
    with whole_text(path) as out:
        for example in examples:
            out.writelines("\t".join(columns) + "\n" for columns in lines(example))
            count += 1
    return count


def write_id_triples(path: str | Path, examples: Iterable[TrainingExample], losses: Losses) -> int:
    """Writes triples of ids; returns how many examples they came from.

    Raises:
        DenserkError: a passage has no id.
    """

    def lines(example: TrainingExample) -> Iterator[tuple[str, ...]]:
        need_ids(example)
        count_losses(example, losses, {"docid"})
        losses["query texts"] += bool(example.query)
        for positive, negative in pairs(example, losses):
            yield example.qid, positive.docid, negative.docid

    return _write_lines(path, examples, lines)


def write_text_triples(
    path: str | Path, examples: Iterable[TrainingExample], losses: Losses
) -> int:
    """Writes triples of texts, their tabs and line ends as spaces; returns how many examples.

    Raises:
        DenserkError: an example knows its passages by id alone.
    """

    def flat(text: str) -> str:
        losses["tabs and line ends inside texts"] += any(sign in text for sign in "\t\r\n")
        return text.replace("\t", " ").replace("\r", " ").replace("\n", " ")

    def lines(example: TrainingExample) -> Iterator[tuple[str, ...]]:
        need_texts(example)
        count_losses(example, losses, {"text"})
        query = flat(example.query)
        for positive, negative in pairs(example, losses):
            yield query, flat(positive.text), flat(negative.text)

    return _write_lines(path, examples, lines)


def write_columns(path: str | Path, examples: Iterable[TrainingExample], losses: Losses) -> int:
    """Writes JSON lines of anchor, positive, negative; returns how many examples.

    Raises:
        DenserkError: an example knows its passages by id alone.
    """
    count = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal count
        for example in examples:
            count += 1
            need_texts(example)
            count_losses(example, losses, {"text"})
            for positive, negative in pairs(example, losses):
                texts = (example.query, positive.text, negative.text)
                yield dict(zip(("anchor", "positive", "negative"), texts, strict=True))

    write_objects(path, rows())
    return count


def write_negatives(path: str | Path, examples: Iterable[TrainingExample], losses: Losses) -> int:
    """Writes comma lists of negatives; returns how many.

    Raises:
        DenserkError: a passage has no id.
    """

    def lines(example: TrainingExample) -> Iterator[tuple[str, ...]]:
        need_ids(example)
        count_losses(example, losses, {"docid"})
        losses["query texts"] += bool(example.query)
        losses["positives"] += len(example.positives)
        for candidate in example.negatives:
            if "," in candidate.docid:
                raise DenserkError(
                    f"the passage id {candidate.docid} holds a comma, and commas part the ids here",
                    "write tevatron-ids or triples",
                )
        yield example.qid, ",".join(c.docid for c in example.negatives)

    return _write_lines(path, examples, lines)
