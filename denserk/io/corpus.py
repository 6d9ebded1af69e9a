"""Passages of a corpus: JSON lines and arrays, tab-separated files, folders, named collections.

The first record of a file decides which of the format's keys the file uses; others must have them.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from denserk.config.formats import DETECTED, CorpusFormat, CorpusSettings
from denserk.errors import InputError, UsageError
from denserk.io import data_sets
from denserk.io.checks import IdLedger
from denserk.io.files import (
    STREAM,
    decode_lines,
    look_ahead,
    number_lines,
    open_binary,
    write_lines,
)
from denserk.io.json_records import (
    RecordKeys,
    as_text,
    identifier,
    read_json,
    read_records,
    write_objects,
)
from denserk.io.manifest import NAME as MANIFEST
from denserk.io.text_files import (
    Lines,
    columns,
    csv_row,
    display_name,
    first_line,
    is_json,
    one_line,
    peek,
    read_rows,
)
from denserk.records import NO_FIELDS, Passage
from denserk.reporting import track

logger = logging.getLogger(__name__)

ENDINGS = (".json", ".jsonl", ".tsv")
KEYS = {
    CorpusFormat.ANSERINI: RecordKeys(("id", "_id", "docid"), ("contents",)),
    CorpusFormat.BEIR: RecordKeys(("_id", "id"), ("text",), "title"),
    CorpusFormat.TEVATRON: RecordKeys(("docid",), ("text",), "title"),
    CorpusFormat.FLAG: RecordKeys((), ("text",), "title", must_have_id=False),
}
COLUMNS = {
    CorpusFormat.MARCO: ("id", "text"),
    CorpusFormat.MARCO_TITLES: ("id", "title", "text"),
    CorpusFormat.DPR: ("id", "text", "title"),  # under a header, quoted as CSV
}
WRITTEN = tuple(form for form in CorpusFormat if form is not CorpusFormat.FLAG)


def read_passages(
    source: str, settings: CorpusSettings = DETECTED, fields: Sequence[str] | None = None
) -> Iterator[Passage]:
    """Yield the passages of a corpus, in its order, in constant memory.

    Args:
        source: a file; a folder (of BEIR: its corpus.jsonl; else all of its .json, .jsonl and .tsv
            files, sorted by name); "-" for standard input; `irds:NAME`; `beir:NAME`.
        settings: a forced format, and where ids and fields are found.
        fields: fields into which Anserini's `contents` are split.

    Raises:
        UsageError: there is no such source, or an option does not go with its format.
        InputError: it holds no passages, or a line of it is broken.
    """
    place = data_sets.locate(source)
    if place.irds is not None:
        passages = data_sets.irds_passages(place.irds)
    else:
        files = corpus_files(place.path) if place.path.is_dir() else [place.path]
        passages = chain.from_iterable(read_corpus_file(path, settings, fields) for path in files)
    count = empty = 0
    for passage in passages:
        count += 1
        if not passage.text.strip() and not passage.title.strip():
            empty += 1
        yield passage
    if not count:
        raise InputError(source, None, "no passages", "at least one")
    if empty:
        logger.info(f"{display_name(source)}: {empty:,} of {count:,} passages are empty")


def find_passages(
    source: str,
    wanted: Collection[str],
    settings: CorpusSettings = DETECTED,
    fields: Sequence[str] | None = None,
) -> dict[str, Passage]:
    """Return the wanted passages by id, in the order of the corpus, which is read no further."""
    found: dict[str, Passage] = {}
    passages = read_passages(source, settings, fields) if wanted else iter(())
    with track(f"reading {source}", None, "passages") as progress:
        for passage in passages:
            progress.advance()
            if passage.docid in wanted:
                found[passage.docid] = passage
                if len(found) == len(wanted):
                    break
    return found


def corpus_files(folder: Path, endings: tuple[str, ...] = ENDINGS) -> list[Path]:
    """Return the corpus.jsonl of a BEIR folder, or all files with some endings, sorted by name."""
    if own := data_sets.plain_or_packed(folder, "corpus.jsonl"):
        return [own]
    files = [
        item
        for item in sorted(folder.iterdir(), key=lambda item: item.name)
        if item.name.removesuffix(".gz").endswith(endings)
        and not item.name.startswith(".")
        and item.name != MANIFEST
        and item.is_file()
    ]
    if not files:
        kinds = ", ".join(f"*{ending}" for ending in endings)
        raise UsageError(f"{folder} holds no corpus", f"{kinds} files, perhaps with .gz")
    return files


def read_corpus_file(
    path: str | Path, settings: CorpusSettings = DETECTED, fields: Sequence[str] | None = None
) -> Iterator[Passage]:
    """Yield the passages of one file ("-" is standard input); see `read_passages`."""
    with open_binary(path) as raw:
        head, handle = look_ahead(raw, path)
        start = first_line(head)
        if not start:
            return
        form = settings.corpus_format
        if is_json(start) if form is None else form in KEYS:
            yield from _read_json(handle, start, path, settings, fields)
            return
        if settings.docid_field is not None:
            raise UsageError(
                f"--docid-field {settings.docid_field} names a key of JSON lines; {path} has none",
                "leave it out: the first column is the id",
            )
        if form is None:
            form = detect_columns(start, path)
            what = ", ".join(COLUMNS[form]) + " under a header" * (form is CorpusFormat.DPR)
            logger.info(f"{display_name(path)}: {form} corpus ({what}, tab-separated)")
        yield from read_tsv(decode_lines(number_lines(handle, path), path), form, path)


def detect_columns(start: bytes, path: str | Path) -> CorpusFormat:
    """Return the format of a tab-separated corpus by its first line."""
    line = start.decode("utf-8", "replace")
    parts = line.split("\t")
    if sorted(parts) == sorted(COLUMNS[CorpusFormat.DPR]):
        return CorpusFormat.DPR
    if len(parts) not in (2, 3):
        raise InputError(
            path,
            1,
            f"{columns(len(parts))} between tabs: {line[:60]!r}",
            "JSON lines, or 2 columns (id, text) or 3 (id, title, text) between tabs",
        )
    return CorpusFormat.MARCO if len(parts) == 2 else CorpusFormat.MARCO_TITLES


def read_tsv(lines: Lines, form: CorpusFormat, path: str | Path) -> Iterator[Passage]:
    """Yield the passages of tab-separated lines; DPR's header may order the columns."""
    names = COLUMNS[form]
    if form is CorpusFormat.DPR:
        first, rows = peek(read_rows(lines, path, "\t", ", ".join(names)))
        if first is not None and sorted(first[1]) == sorted(names):
            names = tuple(first[1])
            next(rows)
    else:
        rows = ((line, row.split("\t")) for line, row in lines if row.strip())
    for line, parts in rows:
        if len(parts) != len(names):
            expected = f"{len(names)}: {', '.join(names)}"
            raise InputError(path, line, f"{columns(len(parts))} between tabs", expected)
        row = dict(zip(names, parts, strict=True))
        docid = identifier(row["id"], path, line, "passage")
        yield Passage(docid, row["text"], row.get("title", ""))


def _read_json(
    handle: BinaryIO,
    start: bytes,
    path: str | Path,
    settings: CorpusSettings,
    fields: Sequence[str] | None,
) -> Iterator[Passage]:
    formats, own = KEYS, settings.docid_field
    if own is not None:
        formats = {
            form: keys._replace(ids=(own,), must_have_id=True) for form, keys in KEYS.items()
        }
    objects = read_json(handle, start, path)
    form, records = read_records(objects, formats, settings.corpus_format, path, "corpus")
    delimiter = settings.delimiter.replace("\\n", "\n").replace("\\t", "\t")
    for line, docid, text, title, extra in records:
        passage = Passage(docid, text, title, extra or NO_FIELDS)
        if fields and form is CorpusFormat.ANSERINI:
            passage = split_contents(passage, fields, delimiter, path, line)
        yield passage


def split_contents(
    passage: Passage, fields: Sequence[str], delimiter: str, path: str | Path, line: int | None
) -> Passage:
    r"""Split Anserini's `contents` into fields, as Pyserini's `--fields` does.

    Fields that the record has as keys are taken from there; otherwise `contents` is split. One
    delimiter more than needed at the end is ignored.

    >>> passage = Passage("d1", "River\nthe old river")
    >>> split_contents(passage, ["title", "text"], "\n", "corpus.jsonl", 1)[:3]
    ('d1', 'the old river', 'River')
    """
    extra = dict(passage.extra)
    if all(name in extra or name == "contents" for name in fields):
        text = as_text(extra.pop("text", passage.text), "text", path, line)
        title = as_text(extra.pop("title", ""), "title", path, line)
        return passage._replace(text=text, title=title, extra=extra)
    if len(fields) == 1:
        return passage
    contents = passage.text
    if contents.count(delimiter) == len(fields):
        contents = contents.removesuffix(delimiter)
    parts = contents.split(delimiter)
    if len(parts) != len(fields):
        raise InputError(
            path,
            line,
            f"contents of {len(parts)} parts between {delimiter!r}",
            f"{len(fields)}: {', '.join(fields)}",
            "leave out --fields to take contents as they are, or give --set delimiter",
        )
    named = dict(zip(fields, parts, strict=True))
    text = named.pop("text", named.pop("contents", ""))
    return Passage(passage.docid, text, named.pop("title", ""), {**extra, **named})


def write_passages(path: str | Path, passages: Iterable[Passage], form: CorpusFormat) -> int:
    """Write a corpus in one of `WRITTEN`; return the number of passages.

    A title goes before the text where the format has no place for it: after a line break in
    Anserini's `contents`, before a space in MARCO.
    """
    if form in KEYS:
        return write_objects(path, (_record(passage, form) for passage in passages))
    if form is CorpusFormat.DPR:
        rows = (csv_row((p.docid, one_line(p.text), one_line(p.title))) for p in passages)
        return write_lines(path, rows, csv_row(COLUMNS[form]))
    if form is CorpusFormat.MARCO:
        texts = ((p.docid, f"{p.title} {p.text}" if p.title else p.text) for p in passages)
        return write_lines(path, (f"{docid}\t{one_line(text)}\n" for docid, text in texts))
    lines = (f"{p.docid}\t{one_line(p.title)}\t{one_line(p.text)}\n" for p in passages)
    return write_lines(path, lines)


def _record(passage: Passage, form: CorpusFormat) -> dict[str, Any]:
    own = {KEYS[form].ids[0]: passage.docid}
    if form is CorpusFormat.ANSERINI:
        own["contents"] = f"{passage.title}\n{passage.text}" if passage.title else passage.text
    else:
        own |= {"title": passage.title, "text": passage.text}
    return {**own, **{key: value for key, value in passage.extra.items() if key not in own}}


def duplicate(
    source: str, unit: str, positions: tuple[int, int], read: Callable[[], Iterator[Sequence[Any]]]
) -> InputError:
    """Return the error about an id that occurs twice, at two positions from 0.

    `unit` is "passages" or "queries"; `read` reads the source again, for the id.
    """
    first, second = positions
    name = "an id" if source == STREAM else f"the id {next(islice(read(), second, None))[0]}"
    found = f"{name} twice: {unit} {first + 1:,} and {second + 1:,}"
    return InputError(source, None, found, "ids that occur once", "remove or rename one of them")


def refuse_duplicates(read: Callable[[], Iterator[Passage]], source: str) -> Iterator[Passage]:
    """Yield the passages of a source; after the last one, reject a corpus that has an id twice.

    Raises:
        InputError: an id occurs twice.
    """
    ledger = IdLedger()
    for passage in read():
        ledger.extend([passage.docid])
        yield passage
    repeat = ledger.first_repeat()
    if repeat is not None:
        raise duplicate(source, "passages", repeat, read)
