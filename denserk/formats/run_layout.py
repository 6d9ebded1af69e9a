"""The lines of a run, thousands at once: columns are laid side by side as arrays of bytes.

Every column is a table with a row a line, padded with zero bytes; what is left without the zeros is
the text. Ids that hold such a byte, or need escaping in JSON, are for the writer line by line.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from denserk.formats.decimals import Bytes, Numbers, format_decimals
from denserk.formats.names import Names
from denserk.settings.formats import RunFormat

WIDEST = 128
"""Bytes of an id up to which lines are laid out; a longer one would pad every line."""
END_OF_CONTROLS = ord("\x1f")
"""The last control character that JSON escapes."""
QUOTE, BACKSLASH = b'"\\'


def lay_out(
    form: RunFormat,
    queries: Sequence[tuple[str, int]],
    docids: Names,
    scores: Numbers,
    tag: str,
) -> bytes | None:
    """The lines of several queries; None where an id or the tag is not as the module wants it.

    Args:
        form: the shape.
        queries: ids, and how many hits each has.
        docids: N passages, those of a query together, best first.
        scores: (N,).
        tag: last column of a TREC run.

    >>> names = Names.of(["d1", "d22", "d1"])
    >>> lines = lay_out(RunFormat.TREC, [("q", 2), ("r", 1)], names, np.array([2, 1.5, 9]), "t")
    >>> print(lines.decode(), end="")
    q Q0 d1 1 2 t
    q Q0 d22 2 1.5 t
    r Q0 d1 1 9 t
    """
    counts = [count for _, count in queries]
    qids = Names.of([qid for qid, _ in queries])
    if qids is None or not tag or "\0" in tag:
        return None
    qid, docid = _table(qids, form), _table(docids, form)
    if qid is None or docid is None:
        return None
    columns = {
        "qid": np.repeat(qid, counts),
        "docid": docid,
        "rank": np.concatenate([_ranks(count, len(str(max(counts)))) for count in counts]),
        "score": format_decimals(scores),
        "tag": _fixed(tag),
    }
    pieces = [columns.get(piece, _fixed(piece)) for piece in LINES[form]]
    lines = np.empty(len(scores), [(f"{i}", piece.dtype) for i, piece in enumerate(pieces)])
    for i, piece in enumerate(pieces):
        lines[f"{i}"] = piece
    text: Bytes = lines.view(np.uint8)
    return bytes(text[text.astype(bool)])


LINES = {
    RunFormat.TREC: ("qid", " Q0 ", "docid", " ", "rank", " ", "score", " ", "tag", "\n"),
    RunFormat.MSMARCO: ("qid", "\t", "docid", "\t", "rank", "\n"),
    RunFormat.TEVATRON: ("qid", "\t", "docid", "\t", "score", "\n"),
    RunFormat.JSONL: (
        *('{"qid":"', "qid", '","docid":"', "docid"),
        *('","rank":', "rank", ',"score":', "score", "}\n"),
    ),
}
"""What stands in a line; a piece that names no column is written as it is."""


def _fixed(text: str) -> NDArray[np.void]:
    """One text for all lines."""
    return np.frombuffer(data := text.encode(), f"V{len(data)}")


def _table(names: Names, form: RunFormat) -> NDArray[np.void] | None:
    """Ids, one a row; None where one is too long, or not written as it is."""
    lengths = names.ends - names.starts
    if not 0 < int(lengths.max()) <= WIDEST:
        return None
    table = names.table()
    if np.count_nonzero(table) != lengths.sum():
        return None
    if form is RunFormat.JSONL:
        control = (table <= END_OF_CONTROLS) & (table > 0)
        if (control | (table == QUOTE) | (table == BACKSLASH)).any():
            return None
    return table.view(f"V{table.shape[1]}")[:, 0]


@lru_cache(maxsize=64)
def _ranks(count: int, width: int) -> NDArray[np.void]:
    """The numbers from 1 to `count`, one a row of so many bytes."""
    return np.array(range(1, count + 1), f"S{width}").view(f"V{width}")
