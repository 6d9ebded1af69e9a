"""Text to pre-train on: any corpus, plain text, spans of documents, token ids; generated text."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from denserk.config.formats import DETECTED, CorpusSettings
from denserk.config.pretraining import RawText
from denserk.errors import InputError
from denserk.io.corpus import ENDINGS, read_passages, table_files
from denserk.io.detection import document_list_key
from denserk.io.files import STREAM, display_name, open_ahead, read_text_lines
from denserk.io.json_records import Fields, first_record, read_objects
from denserk.io.tables import is_table
from denserk.records import Passage

logger = logging.getLogger(__name__)

TEXT_ENDING = ".txt"
TOKENS = "tokens.jsonl"  # the file of token ids in a folder that holds tokenised text


class Document(NamedTuple):
    """A document's texts: its fields, or its spans if it is `cut` already.

    Or, without texts, `tokens`: the token ids of its text or of its spans, without special tokens
    around them, and of its queries and continuations; None if the record has none.
    """

    docid: str
    title: str
    parts: tuple[str, ...]
    cut: bool = False
    tokens: list[list[int]] | None = None
    queries: list[list[int]] | None = None
    next: list[list[int]] | None = None
    place: tuple[str, int | None] = ("", None)  # file and line, for errors about token ids


def read_documents(
    source: str,
    corpus_settings: CorpusSettings = DETECTED,
    fields: Sequence[str] = ("title", "text"),
    raw_text: RawText | None = None,
) -> Iterator[Document]:
    """Yield the documents of a source, in its order, in constant memory.

    The source is as in `corpus.read_passages`; a folder's .txt files count too, and standard input
    is plain text if `raw_text`, which says where a document ends, is given. Of passages `fields`
    are read. JSON lines may also have spans, {"spans": ["...", ...]}, or token ids: {"text": [ids],
    "queries": [[ids]], "next": [[ids]]} or {"spans": [[ids], ...]}.
    """
    for file in _files_of(source):
        is_file = Path(file).is_file()
        is_text_file = is_file and file.removesuffix(".gz").endswith(TEXT_ENDING)
        is_text_stream = file == STREAM and raw_text is not None
        if is_text_file or is_text_stream:
            yield from _text_documents(file, raw_text)
            continue
        list_key = _listed_key(file) if is_file else None
        if list_key is not None:
            yield from _read_records(file, list_key)
        else:
            for passage in read_passages(file, corpus_settings, fields):
                yield _document_of_passage(passage, fields)


def _files_of(source: str) -> list[str]:
    """Return the files of a folder that are read one by one, or else the source itself."""
    folder = Path(source)
    if (folder / TOKENS).is_file():
        return [str(folder / TOKENS)]
    if folder.is_dir() and not is_table(folder, "corpus"):
        paths = table_files(folder, (*ENDINGS, TEXT_ENDING))
        return [str(path) for path in paths] or [source]
    return [source]


def _text_documents(file: str, raw_text: RawText | None) -> Iterator[Document]:
    """Yield the documents of plain text, whose ids are numbers from 0."""
    end_of_document = raw_text or _detected_end(file)
    lines = (line for _, line in read_text_lines(file))
    if end_of_document is RawText.PARAGRAPHS:
        texts = _paragraphs(lines)
    else:
        texts = (line for line in lines if line.strip())
    for number, text in enumerate(texts):
        yield Document(str(number), "", (text,))


def _detected_end(file: str) -> RawText:
    """Return where a document of plain text ends: without empty lines, each line is one."""
    with open_ahead(file) as (head, _):
        text = head.strip().replace(b"\r\n", b"\n")
    end_of_document = RawText.PARAGRAPHS if b"\n\n" in text else RawText.LINES
    logger.info(f"{display_name(file)}: plain text, documents are {end_of_document}")
    return end_of_document


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yield the texts between empty lines."""
    for has_text, group in groupby(lines, key=lambda line: bool(line.strip())):
        if has_text:
            yield "\n".join(group)


def _document_of_passage(passage: Passage, fields: Sequence[str]) -> Document:
    """Return a passage as a document of its fields, without those that are empty."""
    texts = (passage.field(name).strip() for name in fields)
    parts = tuple(filter(None, texts))
    return Document(passage.docid, passage.title.strip(), parts)


def _listed_key(file: str) -> str | None:
    """Return the key of the list that a file's first record has; None for a corpus."""
    with open_ahead(file) as (head, _):
        record = first_record(head) or {}
    key = document_list_key(record)
    if key is not None:
        has_spans = key == "spans" and not isinstance(next(iter(record[key]), None), list)
        contents = "spans" if has_spans else "token ids"
        logger.info(f"{display_name(file)}: {contents} of documents")
    return key


def _read_records(file: str, key: str) -> Iterator[Document]:
    for line, record in read_objects(file):
        fields = Fields(record, file, line)
        if key not in fields:
            raise fields.error(f"a record without `{key}`", f"`{key}`, as in the first record")
        found, place = fields.items(key), (file, line)
        if key == "text":
            ids = _check_ids(fields, key, [found])
            others = (name for name in ("queries", "next") if name in fields)
            lists = {name: _check_ids(fields, name, fields.items(name)) for name in others}
            yield Document("", "", (), False, ids, place=place, **lists)
        elif all(isinstance(span, str) for span in found):
            yield Document(str(line), "", tuple(span for span in found if span.strip()), cut=True)
        else:
            yield Document("", "", (), True, _check_ids(fields, key, found), place=place)


def _check_ids(fields: Fields, key: str, lists: list[Any]) -> list[list[int]]:
    for ids in lists:
        if not isinstance(ids, list) or not all(type(item) is int and item >= 0 for item in ids):
            raise fields.error(f"{key} that are no token ids", f"a list of whole numbers as {key}")
    return lists


class Expansion(NamedTuple):
    """A passage's generated queries, and its generated continuations."""

    docid: str
    queries: tuple[str, ...]
    next: tuple[str, ...]


class HasDocid(Protocol):
    """A record that belongs to a passage."""

    @property
    def docid(self) -> str:
        """The id of the passage."""


R = TypeVar("R", bound=HasDocid)


def read_expansions(path: str | Path) -> Iterator[Expansion]:
    """Yield the expansions of a file, in its order."""
    for line, record in read_objects(path):
        fields = Fields(record, path, line)
        if not (docid := fields.identifier("docid")):
            raise fields.error("an expansion without `docid`", "the id of its passage")
        yield Expansion(docid, fields.texts("queries"), fields.texts("next"))


def append_queries(passages: Iterable[Passage], path: str | Path) -> Iterator[Passage]:
    """Append generated queries to the text of their passages, separated by spaces.

    Nogueira and Lin, "From doc2query to docTTTTTquery" (2019): what BM25 then indexes. Expansions
    are in the order of the passages, and may lack some.
    """
    for passage, expansion in with_records(passages, read_expansions(path), path):
        if expansion is not None:
            text = " ".join(filter(None, (passage.text, *expansion.queries)))
            passage = passage._replace(text=text)
        yield passage


def with_records(
    passages: Iterable[Passage], records: Iterator[R], path: str | Path
) -> Iterator[tuple[Passage, R | None]]:
    """Yield each passage with its record of the file `path`, which `generate` wrote, or None.

    The records are in the order of the passages, and may lack some.
    """
    record = next(records, None)
    for passage in passages:
        if record is not None and record.docid == passage.docid:
            yield passage, record
            record = next(records, None)
        else:
            yield passage, None
    if record is not None:
        found = f"an expansion of {record.docid}, which the corpus does not have there"
        expected = "expansions in the order of the corpus"
        raise InputError(
            path, None, found, expected, "give the corpus that `denserk generate` read"
        )
