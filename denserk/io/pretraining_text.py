"""Text to pre-train on: any corpus, plain text, spans of documents, token ids; generated text."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from denserk.config.formats import DETECTED, CorpusSettings
from denserk.config.pretraining import RawText
from denserk.errors import InputError
from denserk.io.corpus import ENDINGS, corpus_files, read_passages
from denserk.io.detection import document_list_key
from denserk.io.files import STREAM, display_name, open_ahead, read_text_lines
from denserk.io.json_records import Fields, first_record, read_objects
from denserk.io.tables import is_table
from denserk.records import Passage

logger = logging.getLogger(__name__)

TEXT_ENDING = ".txt"
TOKENS = "tokens.jsonl"  # the file of token ids in a folder that holds tokenised text


class Document(NamedTuple):
    """A document to pre-train on: its texts, or the token ids of them."""

    docid: str
    title: str
    texts: tuple[str, ...]  # of its fields, or of its spans; empty where there are `tokens`
    has_spans: bool = False  # whether it is cut into spans already
    # ids without special tokens around them; None if the record has none
    tokens: list[list[int]] | None = None  # of the text, or of each span
    queries: list[list[int]] | None = None
    continuations: list[list[int]] | None = None
    # where it was read, for errors about token ids
    path: str = ""
    line: int | None = None


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
        if _is_plain_text(file, raw_text):
            yield from _text_documents(file, raw_text)
            continue
        list_key = _listed_key(file)
        if list_key is not None:
            yield from _read_records(file, list_key)
            continue
        for passage in read_passages(file, corpus_settings, fields):
            yield _document_of_passage(passage, fields)


def _files_of(source: str) -> list[str]:
    """Return the files of a folder that are read one by one, or else the source itself."""
    folder = Path(source)
    token_file = folder / TOKENS
    if token_file.is_file():
        return [str(token_file)]
    if not folder.is_dir() or is_table(folder, "corpus"):
        return [source]
    paths = corpus_files(folder, (*ENDINGS, TEXT_ENDING))
    if not paths:
        return [source]  # a folder of Markdown, or of subfolders
    return [str(path) for path in paths]


def _is_plain_text(file: str, raw_text: RawText | None) -> bool:
    """Return whether a file is a .txt file, or standard input that was declared as plain text."""
    if file == STREAM:
        return raw_text is not None
    return Path(file).is_file() and file.removesuffix(".gz").endswith(TEXT_ENDING)


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
    stripped_texts = (passage.field(name).strip() for name in fields)
    texts = tuple(filter(None, stripped_texts))
    return Document(passage.docid, passage.title.strip(), texts)


def _listed_key(file: str) -> str | None:
    """Return the key of the list that a file's first record has; None for a corpus."""
    if not Path(file).is_file():
        return None
    with open_ahead(file) as (head, _):
        record = first_record(head) or {}
    key = document_list_key(record)
    if key is not None:
        first_item = next(iter(record[key]), None)
        has_texts = key == "spans" and not isinstance(first_item, list)
        contents = "spans" if has_texts else "token ids"
        logger.info(f"{display_name(file)}: {contents} of documents")
    return key


def _read_records(file: str, list_key: str) -> Iterator[Document]:
    """Yield the documents of JSON lines that have token ids or spans under `list_key`."""
    for line, record in read_objects(file):
        fields = Fields(record, file, line)
        if list_key not in fields:
            found = f"a record without `{list_key}`"
            raise fields.error(found, f"`{list_key}`, as in the first record")
        items = fields.items(list_key)
        if list_key == "text":
            yield _document_of_ids(fields, items)
        elif all(isinstance(span, str) for span in items):
            spans = tuple(span for span in items if span.strip())
            yield Document(str(line), "", spans, has_spans=True)
        else:
            yield Document(
                docid="",
                title="",
                texts=(),
                has_spans=True,
                tokens=_check_ids(fields, list_key, items),
                path=file,
                line=line,
            )


def _document_of_ids(fields: Fields, text_ids: list[Any]) -> Document:
    """Return the document of a record with the token ids of one text, and of its expansion."""
    return Document(
        docid="",
        title="",
        texts=(),
        tokens=_check_ids(fields, "text", [text_ids]),
        queries=_optional_ids(fields, "queries"),
        continuations=_optional_ids(fields, "next"),
        path=str(fields.path),
        line=fields.line,
    )


def _optional_ids(fields: Fields, key: str) -> list[list[int]] | None:
    """Return the lists of token ids under a key; None if the record lacks it."""
    if key not in fields:
        return None
    return _check_ids(fields, key, fields.items(key))


def _check_ids(fields: Fields, key: str, lists: list[Any]) -> list[list[int]]:
    """Return lists of token ids as they are; raise an InputError for anything else under `key`."""
    if not all(map(_are_token_ids, lists)):
        raise fields.error(f"{key} that are no token ids", f"a list of whole numbers as {key}")
    return lists


def _are_token_ids(value: Any) -> bool:
    """Return whether a JSON value is a list of whole numbers; `true` is none."""
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


class Expansion(NamedTuple):
    """A passage's generated queries, and its generated continuations."""

    docid: str
    queries: tuple[str, ...]
    continuations: tuple[str, ...]


class HasDocid(Protocol):
    """A record that belongs to a passage."""

    @property
    def docid(self) -> str:
        """The id of the passage."""


PassageRecord = TypeVar("PassageRecord", bound=HasDocid)


def read_expansions(path: str | Path) -> Iterator[Expansion]:
    """Yield the expansions of a file, in its order."""
    for line, record in read_objects(path):
        fields = Fields(record, path, line)
        docid = fields.identifier("docid")
        if not docid:
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
    passages: Iterable[Passage], records: Iterator[PassageRecord], path: str | Path
) -> Iterator[tuple[Passage, PassageRecord | None]]:
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
        hint = "give the corpus that `denserk generate` read"
        raise InputError(path, None, found, expected, hint)
