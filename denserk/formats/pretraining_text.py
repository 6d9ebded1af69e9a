"""Text to pre-train on: any corpus, plain text, spans of documents, or token ids.

| shape | one record | a document |
|---|---|---|
| any corpus of `sources` | as there | the record |
| plain text (.txt) | a line, or lines up to an empty one | the record |
| spans | {"spans": ["...", ...]} | the record, cut already |
| token ids | {"text": [ids], "queries": [[ids]], "next": [[ids]]} | the record |
| token ids of spans | {"spans": [[ids], ...]} | the record, cut already |
"""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from denserk.errors import UsageError
from denserk.formats.detection import first_line, is_json, told
from denserk.formats.files import STREAM, look_ahead, open_binary, read_text_lines
from denserk.formats.json_records import Fields, read_objects
from denserk.formats.manifest import NAME as MANIFEST
from denserk.formats.sources import CORPUS_ENDINGS, read_passages
from denserk.settings.formats import DETECTED, CorpusSettings
from denserk.settings.pretraining import RawText

logger = logging.getLogger(__name__)

TEXT_ENDING = ".txt"
TOKENS = "tokens.jsonl"
"""The file of token ids in a folder that holds tokenised text."""


class Document(NamedTuple):
    """A document's texts: its fields, or, where it comes `cut`, its spans."""

    docid: str
    title: str
    parts: tuple[str, ...]
    cut: bool = False


class TokenDocument(NamedTuple):
    """A document's token ids, without special tokens around them.

    `texts`: one, or the spans of a document that comes `cut`. `queries` and `next` are None where
    the record has none. `fields` names file and line in errors.
    """

    texts: list[list[int]]
    cut: bool
    queries: list[list[int]] | None
    next: list[list[int]] | None
    fields: Fields


def read_documents(
    source: str,
    corpus_settings: CorpusSettings = DETECTED,
    fields: Sequence[str] = ("title", "text"),
    raw_text: RawText | None = None,
) -> Iterator[Document | TokenDocument]:
    """The documents of a source, in its order, in constant memory.

    Args:
        source: a file, a folder, "-", or a collection by name (see `sources.read_passages`). A
            folder's .txt files count too. Standard input is plain text if `raw_text` is given, and
            otherwise a corpus.
        corpus_settings: how the passages of a corpus are read.
        fields: fields of a passage that are read.
        raw_text: where a document of plain text ends; None detects it.

    Raises:
        UsageError: there is no such source.
        InputError: it is empty, or a line of it is broken.
    """
    for file in _files(source):
        if _is_text(file, raw_text):
            yield from _read_text(file, raw_text)
        elif key := _token_key(file):
            logger.info(f"{told(file)}: {key[1]}")
            yield from _read_records(file, key[0])
        else:
            for passage in read_passages(file, corpus_settings, fields):
                parts = tuple(part for name in fields if (part := passage.field(name).strip()))
                yield Document(passage.docid, passage.title.strip(), parts)


def _files(source: str) -> list[str]:
    folder = Path(source)
    if not folder.is_dir():
        return [source]
    if (folder / TOKENS).is_file():
        return [str(folder / TOKENS)]
    if any((folder / name).is_file() for name in ("corpus.jsonl", "corpus.jsonl.gz")):
        return [source]
    endings = (*CORPUS_ENDINGS, TEXT_ENDING)
    files = [
        str(item)
        for item in sorted(folder.iterdir(), key=lambda item: item.name)
        if item.name.removesuffix(".gz").endswith(endings)
        and not item.name.startswith(".")
        and item.name != MANIFEST
        and item.is_file()
    ]
    if not files:
        raise UsageError(f"{source} holds no text", "*.jsonl, *.tsv or *.txt files, perhaps .gz")
    return files


def _is_text(file: str, raw_text: RawText | None) -> bool:
    if file == STREAM:
        return raw_text is not None
    return file.removesuffix(".gz").endswith(TEXT_ENDING) and Path(file).is_file()


def _token_key(file: str) -> tuple[str, str] | None:
    """The key of a record's token ids or spans, and what they are called; None of a corpus."""
    if file == STREAM or not Path(file).is_file():
        return None
    with open_binary(file) as raw:
        start = first_line(look_ahead(raw, file)[0])
    try:
        record = orjson.loads(start) if is_json(start) else None
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    if isinstance(record.get("text"), list):
        return "text", "token ids of texts"
    if isinstance(spans := record.get("spans"), list):
        ids = bool(spans) and isinstance(spans[0], list)
        return "spans", "token ids of spans" if ids else "spans of documents"
    return None


def _read_text(file: str, raw_text: RawText | None) -> Iterator[Document]:
    if raw_text is None:
        raw_text = _detect(file)
        logger.info(f"{told(file)}: plain text, documents are {raw_text}")
    for number, lines in enumerate(_paragraphs(file, raw_text)):
        yield Document(str(number), "", (lines,))


def _detect(file: str) -> RawText:
    """Empty lines between lines of text end documents; without them each line does."""
    with open_binary(file) as raw:
        head = look_ahead(raw, file)[0]
    inner = head.strip().replace(b"\r\n", b"\n")
    return RawText.PARAGRAPHS if b"\n\n" in inner else RawText.LINES


def _paragraphs(file: str, raw_text: RawText) -> Iterator[str]:
    if raw_text is RawText.LINES:
        yield from (line for _, line in read_text_lines(file) if line.strip())
        return
    lines: list[str] = []
    for _, line in read_text_lines(file):
        if line.strip():
            lines.append(line)
        elif lines:
            yield "\n".join(lines)
            lines = []
    if lines:
        yield "\n".join(lines)


def _read_records(file: str, key: str) -> Iterator[Document | TokenDocument]:
    for line, record in read_objects(file):
        fields = Fields(record, file, line)
        if key not in fields:
            raise fields.error(f"a record without `{key}`", f"`{key}`, as in the first record")
        if key == "text":
            found = [_ids(fields, fields.items("text"), "text")]
            queries, following = _lists(fields, "queries"), _lists(fields, "next")
            yield TokenDocument(found, False, queries, following, fields)
            continue
        spans = fields.items("spans")
        if all(isinstance(span, str) for span in spans):
            yield Document(str(line), "", tuple(span for span in spans if span.strip()), cut=True)
        else:
            found = [_ids(fields, span, "spans") for span in spans]
            yield TokenDocument(found, True, None, None, fields)


def _lists(fields: Fields, key: str) -> list[list[int]] | None:
    if key not in fields:
        return None
    return [_ids(fields, value, key) for value in fields.items(key)]


def _ids(fields: Fields, value: Any, key: str) -> list[int]:
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        raise fields.error(f"{key} that are no token ids", f"a list of whole numbers as {key}")
    return value
