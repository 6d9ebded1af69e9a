"""Passages of a corpus: read, find by id, check the ids, write.

A corpus is JSON lines or an array, a tab-separated file, a folder of them, or a named collection.
"""

import logging
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from denserk.config.formats import DETECTED, CorpusFormat, CorpusSettings
from denserk.errors import InputError, UsageError
from denserk.io import data_sets
from denserk.io.files import (
    Lines,
    ScratchRecords,
    columns,
    display_name,
    first_line,
    is_json,
    one_line,
    open_ahead,
    peek,
    read_rows,
    read_text_lines,
    some,
    write_lines,
    write_rows,
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
from denserk.records import NO_FIELDS, Passage, Query
from denserk.reporting import track

logger = logging.getLogger(__name__)

BLOCK = 4096  # passages of the corpus that are looked up together
PENDING = 1 << 22  # hashes that wait, at least, before they are sorted in
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

Hashes = NDArray[np.int64]
Found = TypeVar("Found", Passage, Query)


def read_passages(
    source: str, settings: CorpusSettings = DETECTED, fields: Sequence[str] | None = None
) -> Iterator[Passage]:
    """Yield the passages of a corpus, in its order, in constant memory; reject one without any.

    The source is a file; a folder (of BEIR: its corpus.jsonl; else all of its .json, .jsonl and
    .tsv files, sorted by name); "-"; `irds:NAME`; `beir:NAME`. Anserini's `contents` are split into
    `fields`.
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
        if not (passage.text.strip() or passage.title.strip()):
            empty += 1
        yield passage
    if not count:
        raise InputError(source, None, "no passages", "at least one")
    if empty:
        logger.info(f"{display_name(source)}: {empty:,} of {count:,} passages are empty")


def find_records(
    records: Iterable[Found], wanted: Collection[str], source: str, unit: str = "passages"
) -> dict[str, Found]:
    """Return the wanted passages or queries by id, in the order of `source`, read no further."""
    found: dict[str, Found] = {}
    with track(f"reading {source}", None, unit) as progress:
        for record in records if wanted else ():
            progress.advance()
            if record[0] in wanted:
                found[record[0]] = record
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
        names = ", ".join(f"*{ending}" for ending in endings)
        raise UsageError(f"{folder} holds no corpus", f"{names} files, perhaps with .gz")
    return files


def read_corpus_file(
    path: str | Path, settings: CorpusSettings = DETECTED, fields: Sequence[str] | None = None
) -> Iterator[Passage]:
    """Yield the passages of one file ("-" is standard input); see `read_passages`."""
    with open_ahead(path) as (head, handle):
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
            form = _detect_columns(start.decode("utf-8", "replace"), path)
            what = ", ".join(COLUMNS[form]) + " under a header" * (form is CorpusFormat.DPR)
            logger.info(f"{display_name(path)}: {form} corpus ({what}, tab-separated)")
        yield from _read_tsv(read_text_lines(path, handle), form, path)


def _detect_columns(line: str, path: str | Path) -> CorpusFormat:
    parts = line.split("\t")
    if sorted(parts) == sorted(COLUMNS[CorpusFormat.DPR]):
        return CorpusFormat.DPR
    if len(parts) not in (2, 3):
        found = f"{columns(len(parts))} between tabs: {line[:60]!r}"
        expected = "JSON lines, or 2 columns (id, text) or 3 (id, title, text) between tabs"
        raise InputError(path, 1, found, expected)
    return CorpusFormat.MARCO if len(parts) == 2 else CorpusFormat.MARCO_TITLES


def _read_tsv(lines: Lines, form: CorpusFormat, path: str | Path) -> Iterator[Passage]:
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
    formats, key = KEYS, settings.docid_field
    if key is not None:
        formats = {
            form: keys._replace(ids=(key,), must_have_id=True) for form, keys in KEYS.items()
        }
    objects = read_json(handle, start, path)
    form, records = read_records(objects, formats, settings.corpus_format, path, "corpus")
    delimiter = settings.delimiter.replace("\\n", "\n").replace("\\t", "\t")
    for line, docid, text, title, extra in records:
        passage = Passage(docid, text, title, extra or NO_FIELDS)
        if fields and form is CorpusFormat.ANSERINI:
            passage = _split_contents(passage, fields, delimiter, path, line)
        yield passage


def _split_contents(
    passage: Passage, fields: Sequence[str], delimiter: str, path: str | Path, line: int | None
) -> Passage:
    """Split Anserini's `contents` as Pyserini's `--fields` does, unless the record has the fields.

    One delimiter more than needed at the end is ignored.
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
        found = f"contents of {len(parts)} parts between {delimiter!r}"
        expected = f"{len(fields)}: {', '.join(fields)}"
        hint = "leave out --fields to take contents as they are, or give --set delimiter"
        raise InputError(path, line, found, expected, hint)
    named = dict(zip(fields, parts, strict=True))
    text = named.pop("text", named.pop("contents", ""))
    return Passage(passage.docid, text, named.pop("title", ""), {**extra, **named})


class IdLedger:
    """Takes the ids of one or several sources in order; each may occur once. 8 bytes per id.

    Two different ids of 21 million share a 64-bit hash with a probability of 1e-5.
    """

    def __init__(self) -> None:
        self._hashes = array("q")
        self._sources: list[tuple[int, str]] = []

    @property
    def count(self) -> int:
        """Number of ids."""
        return len(self._hashes)

    def start(self, source: str | Path) -> None:
        """Name the source of the ids that follow."""
        self._sources.append((self.count, str(source)))

    def extend(self, docids: Iterable[str]) -> None:
        """Take the next ids."""
        self._hashes.extend(map(hash, docids))

    def refuse_repeat(
        self, id_at: Callable[[int], str] | None = None, unit: str = "passages"
    ) -> None:
        """Raise an InputError if an id repeats; `id_at` returns the one at a position from 0."""
        hashes = np.array(self._hashes, np.int64)
        ordered = np.sort(hashes)
        if (ordered[1:] != ordered[:-1]).all():
            return
        _, firsts, places = np.unique(hashes, return_index=True, return_inverse=True)
        earliest = firsts[places]
        second = int((earliest != np.arange(len(hashes))).argmax())
        first = int(earliest[second])
        one, other = (
            next(name for start, name in reversed(self._sources) if start <= position)
            for position in (first, second)
        )
        name = "an id" if id_at is None else f"the id {id_at(second)}"
        found = f"{name} twice: {unit} {first + 1:,} and {second + 1:,}"
        if one != other:
            found += f", the first in {one}"
        raise InputError(other, None, found, "each id once", "remove or rename one of them")


class PassageTexts:
    """The passages that runs or training data refer to by id, copied from a corpus to the disk.

    Ids are noted first by `refer`; then `find` reads the corpus once, and keeps texts and the extra
    `fields` in a file at `path`. Memory holds 24 bytes for each noted passage: its id is compared
    by Python's 64-bit hash, and a record holds the id, so that another passage is never returned.
    """

    def __init__(self, path: Path, fields: Sequence[str] = ()) -> None:
        self._fields = fields
        self._records = ScratchRecords(path)
        self._wanted: Hashes = np.empty(0, np.int64)
        self._pending = array("q")
        self._rows: Hashes = np.empty(0, np.int64)
        self.close = self._records.close

    def refer(self, docids: Iterable[str]) -> None:
        """Note passages that will be asked for."""
        self._pending.extend(map(hash, docids))
        if len(self._pending) > max(PENDING, len(self._wanted)):
            self._sort_in()

    @property
    def referred(self) -> bool:
        """Whether any passage was noted."""
        return bool(len(self._wanted) or self._pending)

    @property
    def missing(self) -> int:
        """The number of noted ids that the corpus lacks."""
        return int((self._rows < 0).sum())

    def _sort_in(self) -> None:
        pending = np.array(self._pending, np.int64)
        self._wanted = np.unique(np.concatenate([self._wanted, pending]))
        self._pending = array("q")

    def find(self, passages: Iterable[Passage], source: str) -> None:
        """Copy what was noted from a corpus, which is read to its end; `source` is for errors."""
        self._sort_in()
        self._rows = np.full(len(self._wanted), -1, np.int64)
        with track(f"reading {display_name(source)}", None, "records") as progress:
            stream = iter(passages)
            while block := list(islice(stream, BLOCK)):
                progress.advance(len(block))
                places = self._places([passage.docid for passage in block])
                for number in np.flatnonzero(places >= 0).tolist():
                    passage, place = block[number], places[number]
                    docid, text, title, more = passage
                    if self._rows[place] >= 0:
                        raise InputError(source, None, f"the id {docid} twice", "each id once")
                    extra = {key: more[key] for key in self._fields if key in more}
                    record = orjson.dumps([docid, text, title, extra])
                    self._rows[place] = self._records.append(record)

    def _places(self, docids: Sequence[str]) -> Hashes:
        """Return where ids stand among the noted ones; -1 for others."""
        hashes = np.fromiter(map(hash, docids), np.int64, len(docids))
        if not len(self._wanted):
            return np.full(len(docids), -1, np.int64)
        places = np.minimum(np.searchsorted(self._wanted, hashes), len(self._wanted) - 1)
        return np.where(self._wanted[places] == hashes, places, -1)

    def get(self, docids: Sequence[str]) -> list[Passage | None]:
        """Return the passages of ids that were noted; None where the corpus has none."""
        if not len(self._rows):
            return [None] * len(docids)
        places = self._places(docids)
        rows = np.where(places >= 0, self._rows[places], -1).tolist()
        found = [Passage(*orjson.loads(self._records[row])) if row >= 0 else None for row in rows]
        return [
            passage if passage and passage.docid == docid else None
            for docid, passage in zip(docids, found, strict=True)
        ]

    def require_all(self, needed: Iterable[str], source: str, named_by: str, hint: str) -> None:
        """Raise an InputError if the corpus lacks passages; `needed` repeats the noted ids."""
        if self.missing:
            lacking = some(docid for docid in needed if self.get([docid]) == [None])
            found = f"no passages with {self.missing:,} of the ids that {named_by} name ({lacking})"
            raise InputError(source, None, found, "the corpus that was searched", hint)


def write_passages(path: str | Path, passages: Iterable[Passage], form: CorpusFormat) -> int:
    """Write a corpus in one of `WRITTEN`; return the number of passages.

    Where the format has no title, it goes before the text: in Anserini's `contents` before a line
    break, in MARCO before a space.
    """
    if form in KEYS:
        return write_objects(path, (_record(passage, form) for passage in passages))
    if form is CorpusFormat.DPR:
        rows = ((p.docid, one_line(p.text), one_line(p.title)) for p in passages)
        return write_rows(path, chain([COLUMNS[form]], rows), "\t") - 1
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
    return own | {key: value for key, value in passage.extra.items() if key not in own}
