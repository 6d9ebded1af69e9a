"""One file of passages, whatever its shape: told apart by its first line, read, written."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from denserk.errors import InputError, UsageError
from denserk.formats import text_jsonl, tsv
from denserk.formats.detection import columns, first_line, is_json, list_keys, peek, told
from denserk.formats.files import decode_lines, look_ahead, number_lines, open_binary
from denserk.formats.json_records import Numbered, parse_objects, read_array
from denserk.records import Passage
from denserk.settings.formats import DETECTED, CorpusFormat, CorpusSettings

logger = logging.getLogger(__name__)

TSV = (CorpusFormat.MARCO, CorpusFormat.MARCO_TITLES, CorpusFormat.DPR)


_COLUMNS = {
    CorpusFormat.MARCO: "id, text",
    CorpusFormat.MARCO_TITLES: "id, title, text",
    CorpusFormat.DPR: "id, text, title under a header",
}


def read_corpus_file(
    path: str | Path,
    settings: CorpusSettings = DETECTED,
    fields: Sequence[str] | None = None,
) -> Iterator[Passage]:
    """Passages of one file ("-" is standard input), in its order.

    Args:
        path: the file.
        settings: a forced shape, and where ids and fields are found.
        fields: fields asked for by name, which `contents` is split into.

    Raises:
        UsageError: there is no such file, or an option does not go with its shape.
        InputError: it is not a corpus, or a line of it is broken.
    """
    with open_binary(path) as raw:
        head, handle = look_ahead(raw, path)
        start = first_line(head)
        if not start:
            return
        form = settings.corpus_format
        if is_json(start) if form is None else form not in TSV:
            yield from _read_json(handle, start, path, settings, fields)
            return
        if settings.docid_field is not None:
            raise UsageError(
                f"--docid-field {settings.docid_field} names a key of JSON lines; {path} has none",
                "leave it out: the first column is the id",
            )
        if form is None:
            form = detect_columns(start, path)
            logger.info(f"{told(path)}: {form} corpus ({_COLUMNS[form]}, tab-separated)")
        yield from tsv.read_passages(decode_lines(number_lines(handle, path), path), form, path)


def _objects(handle: BinaryIO, start: bytes, path: str | Path) -> Iterator[Numbered]:
    if start.lstrip().startswith(b"["):
        return read_array(handle, path)
    return parse_objects(number_lines(handle, path), path)


def _read_json(
    handle: BinaryIO,
    start: bytes,
    path: str | Path,
    settings: CorpusSettings,
    fields: Sequence[str] | None,
) -> Iterator[Passage]:
    first, objects = peek(_objects(handle, start, path))
    if first is None:
        return iter(())
    line, record = first
    form, keys = _recognise(record, settings, path, line)
    if settings.corpus_format is None:
        names = ", ".join(key for key in keys if key and key in record)
        logger.info(f"{told(path)}: {form} corpus ({names})")
    delimiter = settings.delimiter.replace("\\n", "\n").replace("\\t", "\t")
    return text_jsonl.read_passages(objects, keys, path, fields, delimiter)


def detect_columns(start: bytes, path: str | Path) -> CorpusFormat:
    """The shape of a tab-separated corpus by its first line.

    Raises:
        InputError: its columns are neither two nor three.
    """
    line = start.decode("utf-8", "replace")
    if tsv.is_dpr_header(line):
        return CorpusFormat.DPR
    count = line.count("\t") + 1
    if count not in (2, 3):
        raise InputError(
            path,
            1,
            f"{columns(count)} between tabs: {line[:60]!r}",
            "JSON lines, or 2 columns (id, text) or 3 (id, title, text) between tabs",
        )
    return CorpusFormat.MARCO if count == 2 else CorpusFormat.MARCO_TITLES


def _recognise(
    record: Mapping[str, object], settings: CorpusSettings, path: str | Path, line: int
) -> tuple[CorpusFormat, text_jsonl.Keys]:
    shapes = text_jsonl.PASSAGES
    if settings.docid_field is not None:
        if settings.docid_field not in record:
            raise UsageError(
                f"--docid-field {settings.docid_field} is no key of {told(path)}",
                f"its keys are {list_keys(record)}",
            )
        shapes = {
            form: shape._replace(ids=(settings.docid_field,), must_have_id=True)
            for form, shape in shapes.items()
        }
    return text_jsonl.recognise(record, shapes, settings.corpus_format, path, line)


def write_passages(path: str | Path, passages: Iterable[Passage], form: CorpusFormat) -> int:
    """Writes a corpus; returns how many passages. "-" is standard output, `.gz` is compressed.

    Raises:
        UsageError: the shape is only read.
        OutputError: it cannot be written.
    """
    if form is CorpusFormat.FLAG:
        raise UsageError(
            "the flag shape has no ids, and is only read", f"write one of {', '.join(WRITTEN)}"
        )
    write = tsv.write_passages if form in TSV else text_jsonl.write_passages
    return write(path, passages, form)


WRITTEN = tuple(form for form in CorpusFormat if form is not CorpusFormat.FLAG)
"""Shapes of a corpus that are written."""
