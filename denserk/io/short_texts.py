"""Short texts: phrases of messages, white space, and cells of a row."""

import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice


def first_names(names: Iterable[str]) -> str:
    """Return the first three names, quoted, for a message.

    >>> print(first_names(["a", "b"]), "and", first_names(["a", "b", "c", "d"]))
    'a', 'b' and 'a', 'b', 'c', ...
    """
    beginning = list(islice(names, 4))
    quoted = ", ".join(map(repr, beginning[:3]))
    return f"{quoted}, ..." if len(beginning) > 3 else quoted


def columns_phrase(count: int) -> str:
    """Return a number of columns for a message: "1 column", "4 columns"."""
    return "1 column" if count == 1 else f"{count} columns"


def one_line(text: str) -> str:
    """Replace tabs and line ends by spaces."""
    return re.sub(r"\r\n|[\t\n\r]", " ", text)


def with_single_spaces(text: str) -> str:
    """Return a text with one space for each stretch of white space, and none around it."""
    return " ".join(text.split())


def is_number(text: str) -> bool:
    """Return whether a column is a number; "nan" is one."""
    with suppress(ValueError):
        float(text)
        return True
    return False


def quote_cell(cell: str) -> str:
    """Quote a column that would otherwise be read as a quoted one."""
    if not cell.startswith('"'):
        return cell
    doubled = cell.replace('"', '""')
    return f'"{doubled}"'


def unquote_cell(cell: str) -> str:
    """Undo the quoting of a column that a CSV writer may have quoted.

    >>> unquote_cell('"the ""old"" river"'), unquote_cell('"the" river')
    ('the "old" river', '"the" river')
    """
    if len(cell) < 2 or cell[0] != '"' or cell[-1] != '"':
        return cell
    inner = cell[1:-1]
    is_quoted = '"' not in inner.replace('""', "")
    return inner.replace('""', '"') if is_quoted else cell
