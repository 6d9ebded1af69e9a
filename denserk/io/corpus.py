"""Passages of a corpus: read, find by id, check the ids, write.

A corpus is JSON lines or an array, a table between tabs or commas, Parquet, documents of TREC, text
files, a folder of such files, or a named collection.
"""

import logging
import shlex
from array import array
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, dropwhile, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import orjson

from denserk.config.formats import DETECTED, CorpusFormat, CorpusSettings
from denserk.config.options import given_fields
from denserk.errors import DenserkError, InputError, UsageError
from denserk.io import (
    column_names,
    data_sets,
    delimited,
    detection,
    files,
    json_objects,
    json_records,
    record_fields,
    scratch_records,
    text_files,
    trec_documents,
    unread_files,
    written_files,
)
from denserk.io.column_names import Column, Header, Table
from denserk.io.detection import CORPUS_KEYS
from denserk.io.file_head import FileHead
from denserk.io.json_records import Numbered, RecordKeys, UsedKeys
from denserk.io.manifest import corpora_of_run
from denserk.io.outputs import MANIFEST
from denserk.io.record_fields import FIRST_RECORDS, OTHER_FIELDS, SHORTEST_TEXT, MadeIds
from denserk.io.short_texts import columns_phrase, first_names, one_line, unquote_cell
from denserk.io.tables import HUB, is_table
from denserk.records import NO_FIELDS, Passage, Query
from denserk.reporting import track

logger = logging.getLogger(__name__)

# of files with records, as a folder may hold them
ENDINGS = (".json", ".jsonl", ".tsv", ".csv")
COMPRESSED = (".z", ".0z", ".1z", ".2z")  # by `compress`, as files of the TREC disks are
COLUMNS = {
    CorpusFormat.MARCO: ("id", "text"),
    CorpusFormat.MARCO_TITLES: ("id", "title", "text"),
    CorpusFormat.DPR: ("id", "text", "title"),  # under a header, quoted as CSV
}
# of all records: of JSON, and of rows between tabs, whose columns become the same three keys
KEYS = CORPUS_KEYS | dict.fromkeys(COLUMNS, RecordKeys(("id",), ("text",), "title"))
READ_ONLY = (
    CorpusFormat.FLAG,
    CorpusFormat.JSON,
    CorpusFormat.CSV,
    CorpusFormat.TREC,
    CorpusFormat.TEXT,
)
WRITTEN = tuple(corpus_format for corpus_format in CorpusFormat if corpus_format not in READ_ONLY)

# whose documents were warned of: a command may read a corpus several times
_WARNED_FOLDERS: set[Path] = set()

PassageOrQuery = TypeVar("PassageOrQuery", Passage, Query)


def read_passages(
    source: str, settings: CorpusSettings = DETECTED, fields: Sequence[str] | None = None
) -> Iterator[Passage]:
    """Yield the passages of a corpus, in its order, in constant memory; reject one without any.

    The source is a file; a folder (of BEIR: its corpus.jsonl; else Parquet, or all of its .json,
    .jsonl, .tsv and .csv files, sorted by name; else .txt and .md files or documents of TREC, also
    in subfolders); "-"; `irds:NAME`; `beir:NAME`; `hf:NAME`. Anserini's `contents` are split into
    `fields`. Where ids are made of the texts, equal passages are one.
    """
    made_ids = MadeIds()  # of all files of the source
    passage_count = empty_count = 0
    for passage in _passages_of_source(source, settings, fields, made_ids):
        passage_count += 1
        if not passage.text.strip() and not passage.title.strip():
            empty_count += 1
        yield passage
    if not passage_count:
        raise InputError(source, None, "no passages", "at least one")
    name = files.display_name(source)
    if empty_count:
        logger.info(f"{name}: {empty_count:,} of {passage_count:,} passages are empty")
    if made_ids.repeats:
        logger.info(
            f"{name}: passages with the title and text of an earlier one are left out "
            f"({made_ids.repeats:,})"
        )


def _passages_of_source(
    source: str, settings: CorpusSettings, fields: Sequence[str] | None, made_ids: MadeIds
) -> Iterator[Passage]:
    """Return the passages of a table, a dataset's name, a file or a folder."""
    if is_table(source, "corpus"):
        return read_corpus_file(source, settings, fields, made_ids)
    dataset = data_sets.locate(source)
    if dataset.irds is not None:
        return iter(data_sets.irds_passages(dataset.irds))
    if not dataset.path.is_dir():
        return read_corpus_file(dataset.path, settings, fields, made_ids)
    record_paths = []
    if settings.corpus_format not in (CorpusFormat.TEXT, CorpusFormat.TREC):
        record_paths = corpus_files(dataset.path)
    if not record_paths:
        return _folder_of_documents(dataset.path, settings)
    _warn_of_texts_beside(dataset.path, record_paths)
    return chain.from_iterable(
        read_corpus_file(path, settings, fields, made_ids) for path in record_paths
    )


def with_used_fields(source: str, settings: CorpusSettings) -> CorpusSettings:
    """Return settings that name the fields which are used, for a corpus without a known format.

    What is recorded with an index is then read again in the same way. Other settings, and those of
    a corpus that can be read only once or is on the hub, stay as they are.
    """
    if source == files.STREAM or source.startswith(HUB):
        return settings
    if is_table(source, "corpus"):
        return _with_fields_of_file(source, settings)
    dataset = data_sets.locate(source)
    if dataset.irds is not None or written_files.is_special(dataset.path):
        return settings
    if not dataset.path.is_dir():
        return _with_fields_of_file(dataset.path, settings)
    record_paths = corpus_files(dataset.path)
    if not record_paths:
        _reject_fields(source, settings)
        return settings
    try:
        return _with_fields_of_file(record_paths[0], settings)
    except InputError:
        _warn_of_texts_beside(dataset.path, record_paths)  # perhaps they are the corpus
        raise


def _with_fields_of_file(path: str | Path, settings: CorpusSettings) -> CorpusSettings:
    """Return settings that name the fields which are used of a file."""
    with files.open_ahead(path, part="corpus") as (data, handle):
        file = _CorpusFile(path, FileHead(data, Path(path).name), handle, settings)
        if not file.has_records:
            _reject_fields(path, settings)
            return settings
        rows = file.rows()
        if rows.keys_by_format is not None:
            return settings  # a format is known, and says which fields are used
        used_fields, fields, _ = file.choose_fields(rows)
    if used_fields is None:
        return settings
    _log_fields(path, settings, used_fields, fields)
    return replace(
        settings,
        id_field=used_fields.id or "",  # "": ids are made
        text_field=used_fields.text,
        title_field=used_fields.title,
        docid_field=None,  # the synonym of `id_field`
    )


def as_searched(
    corpus: str | None, settings: CorpusSettings, runs: Iterable[str | Path]
) -> CorpusSettings:
    """Return how a corpus was read for the indexes that some runs come from, if that is recorded.

    What is given counts, and so does a corpus that is not the one of the indexes.
    """
    if corpus is None or given_fields(settings):
        return settings
    for run in runs:
        for indexed in corpora_of_run(run):
            is_same = (
                indexed.name == corpus or Path(indexed.name).resolve() == Path(corpus).resolve()
            )
            if is_same and given_fields(indexed.settings):
                logger.info(f"{files.display_name(corpus)}: read as for the index of {run}")
                return indexed.settings
    return settings


def fitting_settings(source: str, recorded_settings: CorpusSettings) -> CorpusSettings:
    """Return the settings that an index records of its corpus if they fit `source`; else detect.

    `source` may be the same documents in another format, or the recorded file at another path.
    """
    try:
        with_used_fields(source, recorded_settings)
    except (InputError, UsageError):
        return DETECTED
    return recorded_settings


def find_records(
    records: Iterable[PassageOrQuery], ids: Collection[str], source: str, unit: str = "passages"
) -> dict[str, PassageOrQuery]:
    """Return the passages or queries of some ids, in the order of `records`.

    Once all ids are found, no further record is read. `source` and `unit` name what the progress
    bar counts.
    """
    record_by_id: dict[str, PassageOrQuery] = {}
    if not ids:
        records = ()
    with track(f"reading {source}", None, unit) as progress:
        for record in records:
            progress.advance()
            id = record[0]  # docid or qid
            if id in ids:
                record_by_id[id] = record
                if len(record_by_id) == len(ids):
                    break
    return record_by_id


def corpus_files(folder: Path, endings: tuple[str, ...] = ENDINGS) -> list[Path]:
    """Return the corpus.jsonl of a BEIR folder, or all files with some endings, sorted by name.

    There may be none. Subfolders, hidden files and the manifest are left out. Without such a file,
    they are the packed JSON files that have no ending but .gz.
    """
    beir_file = data_sets.plain_or_packed(folder, "corpus.jsonl")
    if beir_file is not None:
        return [beir_file]
    paths = []
    for name in sorted(item.name for item in folder.iterdir()):
        has_ending = name.removesuffix(".gz").endswith(endings)
        is_hidden = name.startswith(".")
        if has_ending and not is_hidden and name != MANIFEST and (folder / name).is_file():
            paths.append(folder / name)
    return paths or _packed_records(folder)


def _packed_records(folder: Path) -> list[Path]:
    """Return the files msmarco_passage_00.gz, ... if the first one holds JSON records."""
    paths = []
    for path in sorted(folder.glob("*.gz")):
        has_other_ending = "." in path.name.removesuffix(".gz")
        if path.is_file() and not has_other_ending:
            paths.append(path)
    if not paths:
        return []
    with files.open_ahead(paths[0], part="corpus") as (data, _):
        if FileHead(data, paths[0].name).record is None:  # perhaps documents of TREC
            return []
    return paths


def _folder_of_documents(folder: Path, settings: CorpusSettings) -> Iterator[Passage]:
    """Return the passages of a folder of text files, or of documents of TREC."""
    _reject_fields(folder, settings)
    folder_files = text_files.walk(folder)
    text_paths = _text_paths(folder_files.paths, settings)
    if text_paths:
        _report_unread(folder, folder_files, text_paths)
        return text_files.read_documents(folder, text_paths)
    trec_paths = []
    if settings.corpus_format is not CorpusFormat.TEXT:
        trec_paths = _trec_paths(folder, folder_files.paths)
    if not trec_paths:
        raise _no_corpus(folder)
    _report_unread(folder, folder_files, trec_paths)
    return chain.from_iterable(read_corpus_file(path, settings) for path in trec_paths)


def _report_unread(
    folder: Path, folder_files: text_files.FolderFiles, read_paths: Sequence[Path]
) -> None:
    """Report the files of a folder that are not read; warn of documents that could be."""
    are_read = set(read_paths)
    unread_paths = [path for path in folder_files.paths if path not in are_read]
    text_files.report_skipped(folder, folder_files.skipped, unread_paths)
    endings = {
        path.suffix.lower()
        for path in unread_paths
        if are_read.isdisjoint(unread_files.converted_paths(path))
    }
    unread = unread_files.unread_documents(folder, endings)
    warned_folder = folder.resolve()
    if unread is not None and warned_folder not in _WARNED_FOLDERS:
        _WARNED_FOLDERS.add(warned_folder)
        logger.warning(f"{folder.name}: {unread.description} are not read; {unread.hint}")


def _text_paths(paths: Sequence[Path], settings: CorpusSettings) -> list[Path]:
    """Return the text files among some; none if the first is of TREC, unless that is excluded."""
    if settings.corpus_format is CorpusFormat.TREC:
        return []
    text_paths = [path for path in paths if text_files.is_named(path, *text_files.TEXT_ENDINGS)]
    if settings.corpus_format is None and text_paths and _is_trec_file(text_paths[0]):
        return []
    return text_paths


def _trec_paths(folder: Path, paths: Sequence[Path]) -> list[Path]:
    """Return the files with documents of TREC; reject those of `compress`."""
    for path in paths:
        if path.name.lower().endswith(COMPRESSED):
            hint = f"uncompress all: gunzip -r {shlex.quote(str(folder))}"
            raise InputError(path, None, "a file of `compress`", "text, or gzip", hint)
    return [path for path in paths if _is_trec_file(path)]


def _warn_of_texts_beside(folder: Path, record_paths: Sequence[Path]) -> None:
    """Warn once of documents in a folder, and below it, that are not read beside its records."""
    if detection.is_beir_folder({path.name for path in record_paths}):
        return
    walked_paths = text_files.walk(folder).paths
    document_count = sum(1 for path in walked_paths if text_files.is_document(path))
    warned_folder = folder.resolve()
    if not document_count or warned_folder in _WARNED_FOLDERS:
        return
    _WARNED_FOLDERS.add(warned_folder)
    source = shlex.quote(str(folder))
    first_record_path = shlex.quote(str(record_paths[0]))
    logger.warning(
        f"{folder.name}: .txt and .md files are not read beside {record_paths[0].name} "
        f"({document_count:,}); --corpus-format text reads them alone. To search both, convert "
        f"each into one folder: denserk convert {source} all/texts.jsonl --from text; "
        f"denserk convert {first_record_path} all/records.jsonl"
    )


def _no_corpus(folder: Path) -> DenserkError:
    """Return the error of a folder without files that are read."""
    table_names = ", ".join(f"*{ending}" for ending in ENDINGS)
    expected = f"{table_names}, *.txt or *.md files"
    unread_file = unread_files.unread_folder(folder)
    if unread_file is not None:
        return unread_file.error(folder, None, expected)
    message = f"{folder} holds no corpus"
    for path in text_files.walk(folder).paths:
        if text_files.is_named(path, *ENDINGS):
            return UsageError(message, f"{path.name} is in a subfolder: give {path.parent}")
    return UsageError(message, f"{expected}, perhaps with .gz")


def _reject_fields(path: str | Path, settings: CorpusSettings) -> None:
    """Raise a UsageError for fields of documents, which have none."""
    named_fields = (settings.text_field, settings.title_field, settings.id_key)
    if any(field is not None for field in named_fields):
        message = f"{path} holds documents of text, which have no fields to name"
        raise UsageError(message, "leave out --id-field, --text-field and --title-field")


def _is_trec_file(path: Path) -> bool:
    """Return whether a file begins as documents of TREC do."""
    with files.open_ahead(path, 1 << 13) as (data, _):  # little: files may be many
        return detection.is_trec_document(FileHead(data, path.name))


def read_corpus_file(
    path: str | Path,
    settings: CorpusSettings = DETECTED,
    fields: Sequence[str] | None = None,
    made_ids: MadeIds | None = None,
) -> Iterator[Passage]:
    """Yield the passages of one file ("-" is standard input); see `read_passages`."""
    with files.open_ahead(path, part="corpus") as (data, handle):
        head = FileHead(data, Path(path).name)
        if not head.line:
            return
        file = _CorpusFile(path, head, handle, settings)
        if not file.has_records:
            yield from file.documents()
            return
        rows = file.rows()
        if rows.keys_by_format is None:
            corpus_format = None
            records = _records_without_format(file, rows, made_ids or MadeIds())
        else:
            corpus_format, records = json_records.read_records(
                rows.rows, rows.keys_by_format, settings.corpus_format, path, Table.CORPUS
            )
        # a user types a line break and a tab as \n and \t
        delimiter = settings.delimiter.replace("\\n", "\n").replace("\\t", "\t")
        for line, docid, text, title, extra in records:
            passage = Passage(docid, text, title, extra or NO_FIELDS)
            if fields and corpus_format is CorpusFormat.ANSERINI:
                passage = _split_contents(passage, fields, delimiter, path, line)
            yield passage


def _records_without_format(
    file: "_CorpusFile", rows: "_Rows", made_ids: MadeIds
) -> Iterator[json_records.Record]:
    """Return the records of rows without a known format; report the fields that are used."""
    used_fields, fields, records = file.choose_fields(rows)
    if used_fields is None:
        return records
    _log_fields(file.path, file.settings, used_fields, fields)
    if used_fields.id is None:
        return _with_made_ids(records, made_ids)
    return records


def _log_fields(
    path: str | Path, settings: CorpusSettings, used_fields: UsedKeys, fields: Sequence[str]
) -> None:
    """Report the fields that were chosen, and ids that are made; nothing if all was named.

    Of the other `fields` of the file the first few are named.
    """
    name = files.display_name(path)
    description = record_fields.describe_fields(used_fields)
    if settings.text_field is None:
        unused_fields = [field for field in fields if field not in used_fields]
        unused = ""
        if unused_fields:
            unused = f"not used as text: {record_fields.list_fields(unused_fields)}; "
        logger.info(f"{name}: corpus ({description}); {unused}{OTHER_FIELDS}")
    elif used_fields.id is None and settings.id_key is None:
        logger.info(f"{name}: corpus ({description})")


def _with_made_ids(
    records: Iterable[json_records.Record], made_ids: MadeIds
) -> Iterator[json_records.Record]:
    """Yield records with ids of their texts, equal ones once."""
    for line, _, text, title, extra in records:
        docid = made_ids.make(title, text)
        if docid is not None:
            yield line, docid, text, title, extra


class _Rows(NamedTuple):
    """Rows of passages, and the keys of the formats that they may have.

    `keys_by_format` is None if no format decides: the fields are named, or chosen by the first
    rows.
    """

    keys_by_format: Mapping[CorpusFormat, RecordKeys] | None
    rows: Iterator[json_records.Row]


class _Records(NamedTuple):
    """Records of passages, and the fields that were chosen: None if there are no records.

    `fields` are all those of the first record.
    """

    used_fields: UsedKeys | None
    fields: Sequence[str]
    records: Iterator[json_records.Record]


class _CorpusFile(NamedTuple):
    """A file of passages that is open, its beginning, and what the user said about its format."""

    path: str | Path
    head: FileHead
    handle: BinaryIO
    settings: CorpusSettings

    @property
    def _format(self) -> CorpusFormat | None:
        """The format that was named or is detected; None if only the records decide it."""
        named_format = self.settings.corpus_format
        return named_format or detection.format_of(self.head, CorpusFormat)

    @property
    def has_records(self) -> bool:
        """Whether the file has records with fields; otherwise it is documents."""
        return self._format not in (CorpusFormat.TREC, CorpusFormat.TEXT)

    def documents(self) -> Iterator[Passage]:
        """Yield the documents of TREC, or the one that the file is."""
        _reject_fields(self.path, self.settings)
        unread_files.reject_binary(self.head.data, self.path, Table.CORPUS)
        if self._format is CorpusFormat.TREC:
            yield from trec_documents.read_documents(self.handle, self.path)
            return
        data = files.read_all(self.handle, self.path)
        docid = text_files.id_of_name(Path(self.path).name)
        yield text_files.document_of(data, self.path, docid)

    def rows(self) -> _Rows:
        """Return the rows of JSON, or of a table."""
        if self._is_csv:
            return _Rows(None, self._csv_rows())
        if self._has_columns:
            return self._column_rows()
        return self._json_rows()

    @property
    def _is_csv(self) -> bool:
        """Whether the file is CSV: by its name, its header, or a field that was named."""
        if self.settings.corpus_format is not None:
            return self.settings.corpus_format is CorpusFormat.CSV
        has_text_field = self.settings.text_field in self.head.csv_cells
        return has_text_field or self._format is CorpusFormat.CSV

    @property
    def _has_columns(self) -> bool:
        """Whether the file has columns between tabs; otherwise it is JSON."""
        corpus_format = self.settings.corpus_format
        if corpus_format is None:
            return self.head.record is None
        return corpus_format in COLUMNS

    def _json_rows(self) -> _Rows:
        """Return the rows of JSON lines, of an array, or of an object by passage id."""
        keys_by_format: Mapping[CorpusFormat, RecordKeys] = CORPUS_KEYS
        if self._is_object:
            keys_by_format = {CorpusFormat.JSON: CORPUS_KEYS[CorpusFormat.JSON]}
            rows = self._rows_of_object()
        else:
            rows = json_records.read_json(self.handle, self.head.line.encode(), self.path)
        first_row, rows = files.first_and_all(rows)
        if first_row is None:
            return _Rows(None, iter(()))
        if self._fields_replace_format:
            return _Rows(None, rows)
        keys_by_format = self._with_named_fields(keys_by_format)
        _, first_record = first_row
        if self.settings.corpus_format is not None:
            return _Rows(keys_by_format, rows)
        used_keys = json_records.first_used_keys(keys_by_format, first_record)
        if used_keys is None:
            return _Rows(None, rows)
        if used_keys.id is None:  # of the format, which may have ids under another name
            first_rows = list(islice(rows, FIRST_RECORDS))
            rows = chain(first_rows, rows)
            if record_fields.has_known_ids([record for _, record in first_rows]):
                return _Rows(None, rows)
        return _Rows(keys_by_format, rows)

    @property
    def _is_object(self) -> bool:
        """Whether the file is one object by passage id, or a data set of llama_index."""
        return self._format is CorpusFormat.JSON

    def _rows_of_object(self) -> Iterator[json_records.Row]:
        """Return the rows of one object by passage id."""
        data = files.read_all(self.handle, self.path)
        if detection.is_embedding_data(self.head):
            return json_objects.read_embedding_corpus(data, self.path)
        return json_objects.read_texts(data, self.path, "passage")

    @property
    def _fields_replace_format(self) -> bool:
        """Whether a named field leaves no use for a format: the text, or "" as the id, made ids."""
        return self.settings.text_field is not None or self.settings.id_key == ""

    def choose_fields(self, rows: _Rows) -> _Records:
        """Return the records of rows by the fields that are named, or that the first rows have."""
        first_rows = list(islice(rows.rows, FIRST_RECORDS))
        if not first_rows:
            return _Records(None, (), iter(()))
        used_fields = record_fields.choose_fields(first_rows, self.settings, self.path)
        records = json_records.records_of_keys(
            chain(first_rows, rows.rows), used_fields, self.path, "passage"
        )
        _, first_record = first_rows[0]
        return _Records(used_fields, list(first_record), records)

    def _csv_rows(self) -> Iterator[Numbered]:
        """Return the rows of CSV as records, by the names of its header."""
        unread_files.reject_binary(self.head.data, self.path, Table.CORPUS)
        delimiter = "\t" if "\t" in self.head.line else self.head.csv_delimiter
        has_one_column = len(self.head.csv_cells) == 0
        if has_one_column and "|" in self.head.line:
            expected = "columns between commas, semicolons or tabs"
            raise unread_files.table_of_pipes(self.path).error(self.path, 1, expected)
        lines = files.read_text_lines(self.path, self.handle)
        return delimited.read_table(lines, self.path, delimiter)

    def _column_rows(self) -> _Rows:
        """Return the rows of lines between tabs: below names of columns, or records alone."""
        unread_files.reject_binary(self.head.data, self.path, Table.CORPUS)
        numbered = files.read_text_lines(self.path, self.handle)
        # only the first blank lines: one further on may stand inside a quoted column
        numbered_line, lines = files.first_and_all(dropwhile(_is_blank, numbered))
        if numbered_line is None:
            return _Rows(None, iter(()))
        line, text = numbered_line
        cells = text.split("\t")
        header = None
        if not self._fields_replace_format:
            header = column_names.recognise_header(cells, Table.CORPUS)
        if header is not None:
            column_names.log_header(header, self.path, line)
            next(lines)  # the header
            return self._rows_below_header(header, lines)
        names = column_names.cell_names(cells)
        if self._are_names_of_fields(names):
            next(lines)  # the names
            is_quoted = column_names.are_quoted(cells)
            rows = _table_rows(lines, names, None, self.path, is_quoted=is_quoted)
            return _Rows(None, rows)
        column_names.warn_of_possible_header(cells, Table.CORPUS, self.path, line)
        return self._rows_without_names(lines)

    def _rows_below_header(self, header: Header, lines: Iterator[tuple[int, str]]) -> _Rows:
        """Return the rows below a header whose names are known."""
        keys = _record_keys(header, self.settings)
        corpus_format = self.settings.corpus_format or _format_of_header(header, keys)
        rows = _table_rows(lines, keys, corpus_format, self.path, is_quoted=header.is_quoted)
        return _Rows(self._keys_of(corpus_format), rows)

    def _rows_without_names(self, lines: Iterator[tuple[int, str]]) -> _Rows:
        """Return the rows of columns whose number alone says what they hold."""
        corpus_format = self.settings.corpus_format or self._format_of_columns()
        rows = _table_rows(lines, COLUMNS[corpus_format], corpus_format, self.path)
        return _Rows(self._keys_of(corpus_format), rows)

    def _are_names_of_fields(self, names: Sequence[str]) -> bool:
        """Return whether a first line that is no known header names the columns below it.

        It does if fields were named. Otherwise the names are short, each there once, and all lines
        have as many columns; where two or three columns may be a record, one of them is known as
        the name of a text.
        """
        settings = self.settings
        if self._fields_replace_format or settings.id_key or settings.title_field:
            return True
        if settings.corpus_format is not None or len(names) < 2 or len(self.head.rows) < 2:
            return False
        meanings = {column_names.column_of(name, Table.CORPUS) for name in names}
        may_be_record = self._format is not None  # by the number of columns
        if may_be_record and Column.TEXT not in meanings:
            return False
        are_distinct = len(set(names)) == len(names)
        all_lines_match = self.head.width == len(names)
        are_short = all(0 < len(name) < SHORTEST_TEXT for name in names)
        return are_distinct and all_lines_match and are_short

    def _keys_of(self, corpus_format: CorpusFormat) -> Mapping[CorpusFormat, RecordKeys]:
        """Return the keys of records of columns, whose format is decided."""
        return self._with_named_fields({corpus_format: KEYS[corpus_format]})

    def _with_named_fields(
        self, keys_by_format: Mapping[CorpusFormat, RecordKeys]
    ) -> Mapping[CorpusFormat, RecordKeys]:
        """Return keys with those that are named for id and title; a named text has no format."""
        id_key = self.settings.id_key
        title_field = self.settings.title_field
        changed_keys = {}
        for corpus_format, keys in keys_by_format.items():
            if id_key:
                keys = keys._replace(ids=(id_key,), must_have_id=True, ids_by_text={})
            if title_field is not None:
                keys = keys._replace(title=title_field)
            changed_keys[corpus_format] = keys
        return changed_keys

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
        found = f"{columns_phrase(width)} between tabs: {self.head.line[:60]!r}"
        hint = "write a line of their names above: docid, title, text, and any for the others"
        if width == 1:
            hint = unread_files.numbering_hint(self.path, Table.CORPUS, self.head.lines)
        if any(column_names.column_of(name, Table.CORPUS) for name in self.head.csv_cells):
            hint = "if it is CSV and its first row names the columns, add --corpus-format csv"
        raise InputError(self.path, 1, found, expected, hint)


def _format_of_header(header: Header, keys: Sequence[str]) -> CorpusFormat:
    """Return the format of columns under a header, by the keys of their records."""
    if sorted(keys) == sorted(COLUMNS[CorpusFormat.DPR]):
        return CorpusFormat.DPR
    has_title = Column.TITLE in header.columns
    return CorpusFormat.MARCO_TITLES if has_title else CorpusFormat.MARCO


def _is_blank(numbered_line: tuple[int, str]) -> bool:
    _, text = numbered_line
    return not text.strip()


def _record_keys(header: Header, settings: CorpusSettings) -> list[str]:
    """Return the keys of a table's records: those of `COLUMNS`, and other columns by name.

    A field that a user named keeps its name, by which it is looked up.
    """
    named_fields = (settings.id_key, settings.title_field)
    key_by_column = {Column.PASSAGE_ID: "id", Column.TEXT: "text", Column.TITLE: "title"}
    return [
        name if name in named_fields else key_by_column.get(column, name)
        for column, name in zip(header.columns, header.names, strict=True)
    ]


def _table_rows(
    lines: files.Lines,
    names: Sequence[str],
    corpus_format: CorpusFormat | None,
    path: str | Path,
    *,
    is_quoted: bool = False,
) -> Iterator[Numbered]:
    """Yield tab-separated lines as records with the columns `names`; DPR's are quoted as CSV."""
    rows: Iterable[tuple[int, list[str]]]
    if corpus_format is CorpusFormat.DPR:
        rows = delimited.read_rows(lines, path, "\t", ", ".join(names))
    else:
        rows = ((line, row.split("\t")) for line, row in lines if row.strip())
    for line, cells in rows:
        if len(cells) != len(names):
            expected = f"{len(names)}: {', '.join(names)}"
            raise InputError(path, line, f"{columns_phrase(len(cells))} between tabs", expected)
        if is_quoted and corpus_format is not CorpusFormat.DPR:
            cells = [unquote_cell(cell) for cell in cells]
        yield line, dict(zip(names, cells, strict=True))


def _split_contents(
    passage: Passage, fields: Sequence[str], delimiter: str, path: str | Path, line: int | None
) -> Passage:
    """Split Anserini's `contents` as Pyserini's `--fields` does, unless the record has the fields.

    One delimiter more than needed at the end is ignored.
    """
    extra = dict(passage.extra)
    has_fields = all(name in extra or name == "contents" for name in fields)
    if has_fields:
        text = json_records.as_text(extra.pop("text", passage.text), "text", path, line)
        title = json_records.as_text(extra.pop("title", ""), "title", path, line)
        return passage._replace(text=text, title=title, extra=extra)
    if len(fields) == 1:
        return passage
    values = passage.text.split(delimiter)
    if len(values) == len(fields) + 1 and not values[-1]:
        values.pop()
    if len(values) != len(fields):
        found = f"contents of {len(values)} parts between {delimiter!r}"
        expected = f"{len(fields)}: {', '.join(fields)}"
        hint = "leave out --fields to take contents as they are, or give --set delimiter"
        raise InputError(path, line, found, expected, hint)
    value_by_field = dict(zip(fields, values, strict=True))
    text = value_by_field.pop("text", value_by_field.pop("contents", ""))
    title = value_by_field.pop("title", "")
    return Passage(passage.docid, text, title, extra | value_by_field)


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

    def reject_repeat(
        self, read_ids: Callable[[], Iterable[str]] | None = None, unit: str = "passages"
    ) -> None:
        """Raise an InputError if an id repeats; `read_ids` returns all ids again, to name it."""
        hashes = np.array(self._hashes, np.int64)
        ordered = np.sort(hashes)
        if (ordered[1:] != ordered[:-1]).all():
            return
        _, first_positions = np.unique(hashes, return_index=True)  # of each hash
        repeated_positions = np.delete(np.arange(len(hashes)), first_positions)
        repeat = int(repeated_positions[0])
        original = int((hashes == hashes[repeat]).argmax())
        name = "an id"
        if read_ids is not None:
            name = f"the id {next(islice(read_ids(), repeat, None))}"
        found = f"{name} twice: {unit} {original + 1:,} and {repeat + 1:,}"
        source = self._source_of(repeat)
        source_of_original = self._source_of(original)
        if source_of_original != source:
            found += f", the first in {source_of_original}"
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
        self._records = scratch_records.ScratchRecords(path)
        # noted id -> number of its record; None until `find` has copied it
        self._rows: dict[str, int | None] = {}

    def close(self) -> None:
        """Close the file; it stays."""
        self._records.close()

    def refer(self, docids: Iterable[str]) -> None:
        """Note passages that `get` will return."""
        self._rows.update(dict.fromkeys(docids))

    @property
    def missing(self) -> list[str]:
        """The noted ids that the corpus lacks."""
        return [docid for docid, row in self._rows.items() if row is None]

    def find(self, passages: Iterable[Passage], source: str, *, everything: bool = False) -> None:
        """Copy what was noted, or all, of a corpus, read to its end; `source` is for errors."""
        if not self._rows and not everything:
            passages = ()
        with track(f"reading {files.display_name(source)}", None, "records") as progress:
            for passage in passages:
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
        return [None if row is None else self._passage(row) for row in rows]

    def _passage(self, row: int) -> Passage:
        """Return the passage that was written as record number `row`."""
        docid, text, title, extra = orjson.loads(self._records[row])
        return Passage(docid, text, title, extra)

    def require_all(self, source: str, named_by: str, hint: str) -> None:
        """Raise an InputError if the corpus lacks noted passages."""
        missing = self.missing
        if missing:
            found = (
                f"no passages with {len(missing):,} of the ids that {named_by} name "
                f"({first_names(missing)})"
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
        records = (_record(passage, corpus_format) for passage in passages)
        return json_records.write_objects(path, records)
    losses: Counter[str] = Counter()
    rows = _rows_of_passages(passages, corpus_format, losses)
    if corpus_format is CorpusFormat.DPR:
        header = COLUMNS[corpus_format]
        row_count = written_files.write_rows(path, chain([header], rows), "\t")
        count = row_count - 1  # without the header
    else:
        count = written_files.write_lines(path, ("\t".join(row) + "\n" for row in rows))
    written_files.log_losses(losses, corpus_format)
    return count


def _rows_of_passages(
    passages: Iterable[Passage], corpus_format: CorpusFormat, losses: Counter[str]
) -> Iterator[Sequence[str]]:
    """Yield passages as rows of a table; count the fields that they leave out."""
    for docid, text, title, extra in passages:
        losses.update(extra.keys())
        if corpus_format is CorpusFormat.MARCO and title:
            text = f"{title} {text}"
        cells = {"id": docid, "text": one_line(text), "title": one_line(title)}
        yield [cells[name] for name in COLUMNS[corpus_format]]


def _record(passage: Passage, corpus_format: CorpusFormat) -> dict[str, Any]:
    """Return a passage as a record of a JSON format; its further fields come last."""
    id_key = CORPUS_KEYS[corpus_format].ids[0]
    record: dict[str, Any] = {id_key: passage.docid}
    if corpus_format is not CorpusFormat.ANSERINI:
        record["title"] = passage.title
        record["text"] = passage.text
    elif passage.title:
        record["contents"] = f"{passage.title}\n{passage.text}"
    else:
        record["contents"] = passage.text
    for key, value in passage.extra.items():
        record.setdefault(key, value)
    return record
