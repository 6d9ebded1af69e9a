"""TREC documents: <DOC> with <DOCNO>, as on the TREC disks and in later collections.

Titles are TITLE, HEADLINE, HL and HEAD, the text is LP, LEADPARA and TEXT (as Anserini reads them),
or all that is left where there is none.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from denserk.errors import InputError
from denserk.io import files
from denserk.io.short_texts import with_single_spaces
from denserk.records import Passage

START = re.compile(r"<DOC>", re.IGNORECASE)
END = re.compile(r"</DOC>", re.IGNORECASE)
DOCNO = re.compile(r"<DOCNO>\s*(.*?)\s*</DOCNO>", re.IGNORECASE | re.DOTALL)
TITLES = re.compile(
    r"<(TITLE|HEADLINE|HL|HEAD)\b[^>]*>(.*?)(?:</\1\s*>|(?=<TEXT\b)|$)", re.IGNORECASE | re.DOTALL
)
TEXTS = re.compile(r"<(TEXT|LP|LEADPARA)\b[^>]*>(.*?)(?:</\1\s*>|$)", re.IGNORECASE | re.DOTALL)
NO_TEXT = re.compile(
    r"<(DOCID|DOCHDR|DOCOLDNO|SCRIPT|STYLE)\b[^>]*>.*?</\1\s*>", re.IGNORECASE | re.DOTALL
)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
TAG = re.compile(r"</?[A-Za-z][^<>]*>")
LONGEST = 1 << 26  # characters of a document, past which its end is missing


def read_documents(handle: BinaryIO, path: str | Path) -> Iterator[Passage]:
    """Yield the documents of an open file; memory holds one of them."""
    for line, text in _documents(handle, path):
        match = DOCNO.search(text)
        if match is None:
            raise InputError(path, line, "a <DOC> without <DOCNO>", "<DOCNO>ID</DOCNO>")
        docno = match.group(1)
        if docno.split() != [docno]:
            found = f"the DOCNO {docno[:80]!r}"
            raise InputError(path, line, found, "an id without white space")
        markup = text[: match.start()] + text[match.end() :]
        yield parse_document(docno, markup)


@dataclass
class _OpenDocument:
    """A <DOC> whose end was not yet read."""

    line: int  # on which it starts
    lines: list[str] = field(default_factory=list)
    length: int = 0

    def append(self, text: str) -> None:
        """Add a line, or what of it belongs to the document."""
        self.lines.append(text)
        self.length += len(text) + 1


def _documents(handle: BinaryIO, path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield the content of each <DOC>, with the line on which it starts."""
    document: _OpenDocument | None = None
    for number, line in files.read_text_lines(path, handle):
        unread = line
        while True:
            if document is None:
                start = START.search(unread)
                if start is None:
                    break
                document = _OpenDocument(number)
                unread = unread[start.end() :]
            end = END.search(unread)
            if end is None:
                document.append(unread)
                break
            document.append(unread[: end.start()])
            yield document.line, "\n".join(document.lines)
            document = None
            unread = unread[end.end() :]
        if document is None:
            continue
        is_nested = document.line < number and START.search(line) is not None
        if is_nested or document.length > LONGEST:
            raise _unclosed(path, document.line)
    if document is not None:
        raise _unclosed(path, document.line)


def _unclosed(path: str | Path, line: int) -> InputError:
    return InputError(path, line, "a <DOC> without its end", "</DOC>")


def parse_document(docno: str, markup: str) -> Passage:
    """Return the passage of a document's markup.

    >>> parse_document("d1", "<HL>A moon</HL><TEXT><P>It rises &amp; sets.</P></TEXT>")
    Passage(docid='d1', text='It rises & sets.', title='A moon', extra=mappingproxy({}))
    """
    markup = COMMENT.sub(" ", markup)
    texts = [match.group(2) for match in TEXTS.finditer(markup)]
    outside_texts = TEXTS.sub(" ", markup)
    titles = [plain_text(match.group(2)) for match in TITLES.finditer(outside_texts)]
    if not texts:
        texts = [NO_TEXT.sub(" ", TITLES.sub(" ", markup))]
    text = "\n".join(map(plain_text, texts))
    return Passage(docno, text.strip(), " ".join(filter(None, titles)))


def plain_text(markup: str) -> str:
    r"""Return text without tags, each line without blanks around it; entities are characters.

    >>> plain_text("<P>The  moon</P>\n\n<P>rises</P>")
    'The moon\nrises'
    """
    text = html.unescape(TAG.sub(" ", markup))
    lines = [with_single_spaces(line) for line in text.splitlines()]
    return "\n".join(filter(None, lines))
