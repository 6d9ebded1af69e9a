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
    folder, files = Path(source), [source]
    if (folder / TOKENS).is_file():
        files = [str(folder / TOKENS)]
    elif folder.is_dir() and not is_table(folder, "corpus"):
        present = table_files(folder, (*ENDINGS, TEXT_ENDING))
        files = [str(file) for file in present] or [source]
    for file in files:
        is_file = Path(file).is_file()
        is_text = is_file and file.removesuffix(".gz").endswith(TEXT_ENDING)
        if is_text or (file == STREAM and raw_text is not None):
            ends, lines = raw_text, (line for _, line in read_text_lines(file))
            if ends is None:  # without empty lines, each line is a document
                with open_ahead(file) as (head, _):
                    head = head.strip().replace(b"\r\n", b"\n")
                ends = RawText.PARAGRAPHS if b"\n\n" in head else RawText.LINES
                logger.info(f"{display_name(file)}: plain text, documents are {ends}")
            texts = (text for text in lines if text.strip())
            if ends is RawText.PARAGRAPHS:
                groups = groupby(lines, key=lambda line: bool(line.strip()))
                texts = ("\n".join(group) for text, group in groups if text)
            for number, text in enumerate(texts):
                yield Document(str(number), "", (text,))
        elif is_file and (key := _listed_key(file)):
            yield from _read_records(file, key)
        else:
            for passage in read_passages(file, corpus_settings, fields):
                parts = tuple(part for name in fields if (part := passage.field(name).strip()))
                yield Document(passage.docid, passage.title.strip(), parts)


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
