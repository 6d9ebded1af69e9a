"""Passages of a corpus: read, find by id, check the ids, write.

A corpus is JSON lines or an array, a tab-separated file, Parquet, a folder, or a named collection.
"""

import logging
from array import array
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, dropwhile, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import orjson

from denserk.config.formats import DETECTED, CorpusFormat, CorpusSettings
from denserk.errors import InputError, UsageError
from denserk.io import (
    column_names,
    data_sets,
    detection,
    files,
    json_objects,
    json_records,
    unread_files,
)
from denserk.io.column_names import Column, Header, Table
from denserk.io.detection import CORPUS_KEYS
from denserk.io.file_head import FileHead
from denserk.io.json_records import Numbered, RecordKeys
from denserk.io.manifest import NAME as MANIFEST
from denserk.io.tables import is_table
from denserk.records import NO_FIELDS, Passage, Query
from denserk.reporting import track

logger = logging.getLogger(__name__)

ENDINGS = (".json", ".jsonl", ".tsv")
COLUMNS = {
    CorpusFormat.MARCO: ("id", "text"),
    CorpusFormat.MARCO_TITLES: ("id", "title", "text"),
    CorpusFormat.DPR: ("id", "text", "title"),  # under a header, quoted as CSV
}
KEYS = CORPUS_KEYS | dict.fromkeys(COLUMNS, RecordKeys(("id",), ("text",), "title"))
WRITTEN = tuple(
    corpus_format
    for corpus_format in CorpusFormat
    if corpus_format not in (CorpusFormat.FLAG, CorpusFormat.JSON)
)

Record = TypeVar("Record", Passage, Query)


def read_passages(
    source: str, settings: CorpusSettings = DETECTED, fields: Sequence[str] | None = None
) -> Iterator[Passage]:
    """Yield the passages of a corpus, in its order, in constant memory; reject one without any.

    The source is a file; a folder (of BEIR: its corpus.jsonl; else Parquet, or all of its .json,
    .jsonl and .tsv files, sorted by name); "-"; `irds:NAME`; `beir:NAME`; `hf:NAME`. Anserini's
    `contents` are split into `fields`.
    """
    passage_count = empty_count = 0
    for passage in _passages_of_source(source, settings, fields):
        passage_count += 1
        if not passage.text.strip() and not passage.title.strip():
            empty_count += 1
        yield passage
    if not passage_count:
        raise InputError(source, None, "no passages", "at least one")
    if empty_count:
        name = files.display_name(source)
        logger.info(f"{name}: {empty_count:,} of {passage_count:,} passages are empty")


def _passages_of_source(
    source: str, settings: CorpusSettings, fields: Sequence[str] | None
) -> Iterator[Passage]:
    """Return the passages of a table, a dataset's name, a file or a folder."""
    if is_table(source, "corpus"):
        return read_corpus_file(source, settings, fields)
    dataset = data_sets.locate(source)
    if dataset.irds is not None:
        return iter(data_sets.irds_passages(dataset.irds))
    paths = corpus_files(dataset.path) if dataset.path.is_dir() else [dataset.path]
    return chain.from_iterable(read_corpus_file(path, settings, fields) for path in paths)


def find_records(
    records: Iterable[Record], ids: Collection[str], source: str, unit: str = "passages"
) -> dict[str, Record]:
    """Return the passages or queries of some ids, in the order of `source`, read no further."""
    record_by_id: dict[str, Record] = {}
    with track(f"reading {source}", None, unit) as progress:
        for record in records if ids else ():
            progress.advance()
            id = record[0]
            if id in ids:
                record_by_id[id] = record
                if len(record_by_id) == len(ids):
                    break
    return record_by_id


def corpus_files(folder: Path, endings: tuple[str, ...] = ENDINGS) -> list[Path]:
    """Return the corpus.jsonl of a BEIR folder, or all files with some endings, sorted by name."""
    beir_file = data_sets.plain_or_packed(folder, "corpus.jsonl")
    if beir_file is not None:
        return [beir_file]
    paths = []
    for name in sorted(item.name for item in folder.iterdir()):
        has_ending = name.removesuffix(".gz").endswith(endings)
        is_hidden = name.startswith(".")
        if has_ending and not is_hidden and name != MANIFEST and (folder / name).is_file():
            paths.append(folder / name)
    if paths:
        return paths
    expected = f"{', '.join(f'*{ending}' for ending in endings)} files, perhaps with .gz"
    unread = unread_files.unread_folder(folder)
    if unread is not None:
        raise unread.error(folder, None, expected)
    raise UsageError(f"{folder} holds no corpus", expected)


def read_corpus_file(
    path: str | Path, settings: CorpusSettings = DETECTED, fields: Sequence[str] | None = None
) -> Iterator[Passage]:
    """Yield the passages of one file ("-" is standard input); see `read_passages`."""
    with files.open_ahead(path, part="corpus") as (data, handle):
        head = FileHead(data, Path(path).name)
        if not head.line:
            return
        file = _CorpusFile(path, head, handle, settings)
        keys_by_format, rows = file.columns() if file.has_columns else file.json_records()
        corpus_format, records = json_records.read_records(
            rows, keys_by_format, settings.corpus_format, path, "corpus"
        )
        delimiter = settings.delimiter.replace("\\n", "\n").replace("\\t", "\t")
        for line, docid, text, title, extra in records:
            passage = Passage(docid, text, title, extra or NO_FIELDS)
            if fields and corpus_format is CorpusFormat.ANSERINI:
                passage = _split_contents(passage, fields, delimiter, path, line)
            yield passage


class _Rows(NamedTuple):
    """Records of passages, and the keys of the formats that they may have."""

    keys_by_format: Mapping[CorpusFormat, RecordKeys]
    records: Iterator[json_records.Row]


class _CorpusFile(NamedTuple):
    """A file of passages that is open, its beginning, and what was said about its format."""

    path: str | Path
    head: FileHead
    handle: BinaryIO
    settings: CorpusSettings

    @property
    def has_columns(self) -> bool:
        """Whether the file has columns between tabs; otherwise it is JSON."""
        corpus_format = self.settings.corpus_format
        if corpus_format is None:
            return self.head.record is None
        return corpus_format in COLUMNS

    def json_records(self) -> _Rows:
        """Return the records of JSON lines, of an array, or of an object by passage id."""
        if self._is_object:
            return self._object_records()
        rows = json_records.read_json(self.handle, self.head.line.encode(), self.path)
        return _Rows(self._with_docid_field(CORPUS_KEYS), rows)

    @property
    def _is_object(self) -> bool:
        """Whether the file is one object by passage id, or a data set of llama_index."""
        if self.settings.corpus_format is not None:
            return self.settings.corpus_format is CorpusFormat.JSON
        detected = detection.format_of(self.head, CorpusFormat)
        return detected is CorpusFormat.JSON

    def _object_records(self) -> _Rows:
        """Return the records of one object by passage id."""
        data = files.read_all(self.handle, self.path)
        if detection.is_embedding_data(self.head):
            rows = json_objects.read_embedding_corpus(data, self.path)
        else:
            rows = json_objects.read_texts(data, self.path, "passage")
        return _Rows({CorpusFormat.JSON: CORPUS_KEYS[CorpusFormat.JSON]}, rows)

    def columns(self) -> _Rows:
        """Return the records of lines with columns, by their header if there is one."""
        unread_files.reject_binary(self.head.data, self.path, Table.CORPUS)
        numbered = files.read_text_lines(self.path, self.handle)
        # a blank line further on may stand inside a quoted column
        first_line, lines = files.peek(dropwhile(_is_blank, numbered))
        corpus_format = self.settings.corpus_format
        if first_line is None:
            return self._rows(corpus_format or CorpusFormat.MARCO, iter(()))
        line, text = first_line
        header = column_names.read_header(text.split("\t"), Table.CORPUS, self.path, line)
        if header is None:
            corpus_format = corpus_format or self._format_of_columns()
            rows = _table_rows(lines, COLUMNS[corpus_format], corpus_format, self.path)
            return self._rows(corpus_format, rows)
        next(lines)
        names = _record_keys(header, self.settings.docid_field)
        corpus_format = corpus_format or _format_of_header(header, names)
        rows = _table_rows(lines, names, corpus_format, self.path, is_quoted=header.is_quoted)
        return self._rows(corpus_format, rows)

    def _rows(self, corpus_format: CorpusFormat, rows: Iterator[Numbered]) -> _Rows:
        """Return records of columns, whose format is decided."""
        keys = {corpus_format: KEYS[corpus_format]}
        return _Rows(self._with_docid_field(keys), rows)

    def _with_docid_field(
        self, keys_by_format: Mapping[CorpusFormat, RecordKeys]
    ) -> Mapping[CorpusFormat, RecordKeys]:
        """Return keys with the one that --set docid-field names as id."""
        docid_field = self.settings.docid_field
        if docid_field is None:
            return keys_by_format
        return {
            corpus_format: RecordKeys((docid_field,), keys.texts, keys.title)
            for corpus_format, keys in keys_by_format.items()
        }

    def _format_of_columns(self) -> CorpusFormat:
        """Return the format of columns without a header, by the first line."""
        corpus_format = detection.format_of(self.head, CorpusFormat)
        if corpus_format is not None:
            return corpus_format
        expected = "JSON lines, or 2 columns (id, text) or 3 (id, title, text) between tabs"
        data = self.head.data
        error = unread_files.unread_file_error(data, self.path, Table.CORPUS, expected, line=1)
        if error is not None:
            raise error
        width = len(self.head.cells)
        found = f"{files.columns(width)} between tabs: {self.head.line[:60]!r}"
        hint = unread_files.numbering_hint(self.path, Table.CORPUS) if width == 1 else None
        raise InputError(self.path, 1, found, expected, hint)


def _format_of_header(header: Header, names: Sequence[str]) -> CorpusFormat:
    """Return the format of columns under a header, by the keys of their records."""
    if sorted(names) == sorted(COLUMNS[CorpusFormat.DPR]):
        return CorpusFormat.DPR
    has_title = Column.TITLE in header.columns
    return CorpusFormat.MARCO_TITLES if has_title else CorpusFormat.MARCO


def _is_blank(numbered_line: tuple[int, str]) -> bool:
    _, text = numbered_line
    return not text.strip()


def _record_keys(header: Header, docid_field: str | None) -> list[str]:
    """Return the keys of a table's records: those of `COLUMNS`, and other columns by name."""
    keys = {Column.PASSAGE_ID: "id", Column.TEXT: "text", Column.TITLE: "title"}
    return [
        name if name == docid_field else keys.get(column, name)
        for column, name in zip(header.columns, header.names, strict=True)
    ]


def _table_rows(
    lines: files.Lines,
    names: Sequence[str],
    corpus_format: CorpusFormat,
    path: str | Path,
    *,
    is_quoted: bool = False,
) -> Iterator[Numbered]:
    """Yield tab-separated lines as records with the columns `names`; DPR's are quoted as CSV."""
    rows: Iterable[tuple[int, list[str]]]
    if corpus_format is CorpusFormat.DPR:
        rows = files.read_rows(lines, path, "\t", ", ".join(names))
    else:
        rows = ((line, row.split("\t")) for line, row in lines if row.strip())
    for line, parts in rows:
        if len(parts) != len(names):
            expected = f"{len(names)}: {', '.join(names)}"
            raise InputError(path, line, f"{files.columns(len(parts))} between tabs", expected)
        if is_quoted and corpus_format is not CorpusFormat.DPR:
            parts = [files.unquote(part) for part in parts]
        yield line, dict(zip(names, parts, strict=True))


def _split_contents(
    passage: Passage, fields: Sequence[str], delimiter: str, path: str | Path, line: int | None
) -> Passage:
    """Split Anserini's `contents` as Pyserini's `--fields` does, unless the record has the fields.

    One delimiter more than needed at the end is ignored.
    """
    extra = dict(passage.extra)
    if all(name in extra or name == "contents" for name in fields):
        text = json_records.as_text(extra.pop("text", passage.text), "text", path, line)
        title = json_records.as_text(extra.pop("title", ""), "title", path, line)
        return passage._replace(text=text, title=title, extra=extra)
    if len(fields) == 1:
        return passage
    parts = passage.text.split(delimiter)
    if len(parts) == len(fields) + 1 and not parts[-1]:
        parts.pop()
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

    def hashes(self, start: int, stop: int) -> Sequence[int]:
        """Return the hashes of the ids number `start` (from 0) to `stop`, which is left out."""
        return self._hashes[start:stop]

    def start(self, source: str | Path) -> None:
        """Name the source of the ids that follow."""
        self._sources.append((self.count, str(source)))

    def extend(self, docids: Iterable[str]) -> None:
        """Take the next ids."""
        self._hashes.extend(map(hash, docids))

    def refuse_repeat(
        self, read_ids: Callable[[], Iterable[str]] | None = None, unit: str = "passages"
    ) -> None:
        """Raise an InputError if an id repeats; `read_ids` returns all ids again, to name it."""
        hashes = np.array(self._hashes, np.int64)
        ordered = np.sort(hashes)
        if (ordered[1:] != ordered[:-1]).all():
            return
        _, first_positions = np.unique(hashes, return_index=True)
        second = int(np.delete(np.arange(len(hashes)), first_positions)[0])
        first = int((hashes == hashes[second]).argmax())
        name = "an id"
        if read_ids is not None:
            name = f"the id {next(islice(read_ids(), second, None))}"
        found = f"{name} twice: {unit} {first + 1:,} and {second + 1:,}"
        source = self._source_of(second)
        if self._source_of(first) != source:
            found += f", the first in {self._source_of(first)}"
        raise InputError(source, None, found, "each id once", "remove or rename one of them")

    def _source_of(self, position: int) -> str:
        """Return the source of the id at a position."""
        starts = [start for start, _ in self._sources]
        _, name = self._sources[bisect(starts, position) - 1]
        return name


class PassageTexts:
    """The passages that runs or training data refer to by id, copied from a corpus to the disk.

    Ids are noted first by `refer`; then `find` reads the corpus once, and writes texts and the
    extra `fields` to a file at `path`. Memory holds the noted ids.
    """

    def __init__(self, path: Path, fields: Sequence[str] = ()) -> None:
        self._fields = fields
        self._records = files.ScratchRecords(path)
        self._rows: dict[str, int | None] = {}  # noted id -> number of its record
        self.close = self._records.close

    def refer(self, docids: Iterable[str]) -> None:
        """Note passages that `get` will return."""
        self._rows.update(dict.fromkeys(docids))

    @property
    def missing(self) -> list[str]:
        """The noted ids that the corpus lacks."""
        return [docid for docid, row in self._rows.items() if row is None]

    def find(self, passages: Iterable[Passage], source: str, *, everything: bool = False) -> None:
        """Copy what was noted, or all, of a corpus, read to its end; `source` is for errors."""
        with track(f"reading {files.display_name(source)}", None, "records") as progress:
            for passage in passages if self._rows or everything else ():
                progress.advance()
                if everything or passage.docid in self._rows:
                    self._copy(passage, source)

    def _copy(self, passage: Passage, source: str) -> None:
        """Write a passage to the file; reject one whose id was written."""
        docid, text, title, all_fields = passage
        if self._rows.get(docid) is not None:
            raise InputError(source, None, f"the id {docid} twice", "each id once")
        extra = {key: all_fields[key] for key in self._fields if key in all_fields}
        self._rows[docid] = self._records.append(orjson.dumps([docid, text, title, extra]))

    def get(self, docids: Sequence[str]) -> list[Passage | None]:
        """Return the passages of ids that were noted; None where the corpus has none."""
        rows = map(self._rows.get, docids)
        return [None if row is None else Passage(*orjson.loads(self._records[row])) for row in rows]

    def require_all(self, source: str, named_by: str, hint: str) -> None:
        """Raise an InputError if the corpus lacks noted passages."""
        missing = self.missing
        if missing:
            found = (
                f"no passages with {len(missing):,} of the ids that {named_by} name "
                f"({files.some(missing)})"
            )
            raise InputError(source, None, found, "the corpus that was searched", hint)


def write_passages(
    path: str | Path, passages: Iterable[Passage], corpus_format: CorpusFormat
) -> int:
    """Write a corpus in one of `WRITTEN`; return the number of passages.

    Where the format has no title, it goes before the text: in Anserini's `contents` before a line
    break, in MARCO before a space.
    """
    if corpus_format in CORPUS_KEYS:
        return json_records.write_objects(
            path, (_record(passage, corpus_format) for passage in passages)
        )

    losses: Counter[str] = Counter()

    def rows() -> Iterator[Sequence[str]]:
        for docid, text, title, extra in passages:
            losses.update(extra.keys())
            if corpus_format is CorpusFormat.MARCO and title:
                text = f"{title} {text}"
            values = {"id": docid, "text": files.one_line(text), "title": files.one_line(title)}
            yield [values[name] for name in COLUMNS[corpus_format]]

    if corpus_format is CorpusFormat.DPR:
        count = files.write_rows(path, chain([COLUMNS[corpus_format]], rows()), "\t") - 1
    else:
        count = files.write_lines(path, ("\t".join(row) + "\n" for row in rows()))
    files.log_losses(losses, corpus_format)
    return count


def _record(passage: Passage, corpus_format: CorpusFormat) -> dict[str, Any]:
    """Return a passage as a record of a JSON format; its further fields come last."""
    record = {CORPUS_KEYS[corpus_format].ids[0]: passage.docid}
    if corpus_format is CorpusFormat.ANSERINI:
        has_title = bool(passage.title)
        record["contents"] = f"{passage.title}\n{passage.text}" if has_title else passage.text
    else:
        record["title"] = passage.title
        record["text"] = passage.text
    return {**record, **{key: passage.extra[key] for key in passage.extra if key not in record}}
