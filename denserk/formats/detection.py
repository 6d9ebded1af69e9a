"""Looking at the beginning of a file, and telling what it was taken for."""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TypeVar

from denserk.formats.files import BOM, STREAM

T = TypeVar("T")


def first_line(head: bytes) -> bytes:
    r"""The first line of a file's beginning that is not blank, without its end.

    >>> first_line(b"\n\r\nid\ttext\r\nd1\tone")
    b'id\ttext'
    """
    for line in head.removeprefix(BOM).split(b"\n"):
        if line.strip():
            return line.rstrip(b"\r")
    return b""


def is_json(start: bytes) -> bool:
    """Whether a file that begins with this line is JSON, as lines or as one document."""
    return start.lstrip()[:1] in (b"{", b"[")


def is_number(text: str) -> bool:
    """Whether a column is a number.

    >>> is_number("-1.5"), is_number("nan"), is_number("a cat")
    (True, True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True


def peek(items: Iterator[T]) -> tuple[T | None, Iterator[T]]:
    """The first of an iterator's items, and all of them again.

    >>> first, items = peek(iter("abc"))
    >>> first, "".join(items)
    ('a', 'abc')
    """
    for first in items:
        return first, chain([first], items)
    return None, items


def told(path: str | Path) -> str:
    """A file's name as notes tell it.

    >>> told("toy/corpus.jsonl"), told("-")
    ('corpus.jsonl', 'standard input')
    """
    return "standard input" if str(path) == STREAM else Path(path).name


def columns(count: int) -> str:
    """A number of columns in words.

    >>> columns(1), columns(4)
    ('1 column', '4 columns')
    """
    return f"{count} column{'s' * (count != 1)}"


def list_keys(record: Iterable[str]) -> str:
    r"""The first keys of a record, in words and on one line.

    >>> list_keys({"_id": 1, "a\nb": 2}), list_keys({})
    ("_id, 'a\\nb'", 'of an empty object')
    """
    keys = list(record)
    shown = [key if key.isprintable() else repr(key) for key in (key[:40] for key in keys[:8])]
    return ", ".join([*shown, *["..."] * (len(keys) > 8)]) or "of an empty object"
