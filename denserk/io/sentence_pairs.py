"""Sentence pairs with a label, and triplets of sentences.

    sentence1, sentence2, label             pairs; the label may be called score
    anchor, positive, negative              triplets; or Sentence1, Sentence2, Sentence3, as the
                                            Wikipedia sections set calls them

The columns are keys of JSON lines, or named by a header, in any order and among others: between
tabs nothing is quoted (GLUE's STS-B), between commas a column may be, as in CSV. Without a header
three columns between tabs have the order above, and seven or more are the STS benchmark's as first
released: genre, file, year, number, score, sentence, sentence.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from denserk.errors import InputError
from denserk.io.files import (
    columns,
    decode_lines,
    is_number,
    number_lines,
    open_binary,
    peek,
    read_rows,
)
from denserk.io.json_records import Fields, list_keys, parse_objects
from denserk.records import SentenceExample

PAIR = ("sentence1", "sentence2")
TRIPLETS = (("anchor", "positive", "negative"), ("sentence1", "sentence2", "sentence3"))
LABELS = ("label", "score", "similarity_score")
BENCHMARK = ("genre", "file", "year", "number", "score", *PAIR)
# by the number of sentences that an example must have
EXPECTED = {
    None: "pairs (sentence1, sentence2, label) or triplets (anchor, positive, negative)",
    2: "pairs: the columns sentence1, sentence2, and label or score",
    3: "triplets: the columns anchor, positive, negative",
}
Row = tuple[int, Mapping[str, Any]]


def read_sentences(source: str | Path, size: int | None = None) -> Iterator[SentenceExample]:
    """Yield pairs with their labels, or triplets; a file holds one of the two.

    Args:
        source: a file, plain or gzip by suffix; "-" is standard input.
        size: 2 for pairs, 3 for triplets; None detects it by the first row.
    """
    with open_binary(source) as handle:
        first, rows = peek(_named_rows(handle, source, size))
        if first is None:
            raise InputError(source, None, "no rows", EXPECTED[size])
        line, row = first
        names = _sentences_of(row, size)
        if names is None:
            found = f"the columns {list_keys(row)}"
            raise InputError(source, line, found, EXPECTED[size])
        split = row.get("split")
        for line, row in rows:
            if row.get("split") != split:
                raise InputError(
                    source, line, f"split {row.get('split')!r} after {split!r}", "a file a split"
                )
            yield _example(Fields(row, source, line), names)


def _sentences_of(row: Mapping[str, Any], size: int | None) -> tuple[str, ...] | None:
    """Return the names of a row's sentences; None if it is not what is asked for."""
    found = next((names for names in (*TRIPLETS, PAIR) if row.keys() >= set(names)), ())
    return found if found and size in (None, len(found)) else None


def _example(fields: Fields, names: tuple[str, ...]) -> SentenceExample:
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


def _named_rows(handle: BinaryIO, source: str | Path, size: int | None) -> Iterator[Row]:
    """Yield (line, row with its columns by name in lower case)."""
    numbered = ((number, line) for number, line in number_lines(handle, source) if line.strip())
    first, lines = peek(numbered)
    if first is None:
        return iter(())
    if first[1].lstrip()[:1] == b"{":
        rows = parse_objects(lines, source)
        return ((line, {key.lower(): value for key, value in row.items()}) for line, row in rows)
    texts = decode_lines(lines, source)
    if b"\t" not in first[1]:
        return _under_header(read_rows(texts, source, ",", EXPECTED[size]), source, size)
    return _under_header(((line, row.split("\t")) for line, row in texts), source, size)


def _under_header(
    rows: Iterator[tuple[int, list[str]]], source: str | Path, size: int | None
) -> Iterator[Row]:
    first, rows = peek(rows)
    if first is None:
        return
    line, row = first
    header = tuple(column.strip().lower() for column in row)
    if {"anchor", "sentence1"} & set(header):
        next(rows)
    else:
        header = _order_of(row, size)
        if not header:
            raise InputError(source, line, f"{columns(len(row))} without a header", EXPECTED[size])
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
