"""Hits of runs column by column: blocks of clean lines are read without an object for each hit.

The ids of a block are one text with the positions where each begins. Passages are compared by the
bytes of their ids as numbers of 64 bits (`HitColumns.words`), so that NumPy finds repeated and
judged passages.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.io.column_names import Column

WORD = 8  # bytes of an id that one number holds
LONGEST_ID = 8 * WORD  # bytes; blocks with longer ids are read line by line
RANK_DIGITS = 18  # at most, as where a run is read line by line; 10**18 also fits into an int64
# A column that begins with a zero and has more digits. There is a pattern for each separator,
# as a search for one that begins with fixed bytes is many times faster.
PADDED_NUMBERS = [
    re.compile(separator + b"0[0-9]{%d}" % RANK_DIGITS) for separator in (b" ", b"\n")
]
MANY_HITS = 64  # hits of a query from which columns are quicker than lists

Words = NDArray[np.uint64]
# The bits that the first 0 to 8 bytes of a big-endian number fill.
FILLED_BITS = np.array([(1 << 64) - (1 << (64 - 8 * size)) for size in range(WORD + 1)], np.uint64)


class RankedList(NamedTuple):
    """K hits of one query, in the order of the file; `lines` are their line numbers."""

    qid: str
    docids: list[str]
    scores: list[float]
    lines: Sequence[int]

    def as_lists(self) -> "RankedList":
        """Return the hits as lists, which they are."""
        return self

    def scores_array(self) -> NDArray[np.float64]:
        """Return the (K,) scores."""
        return np.array(self.scores, np.float64)

    def docids_at(self, rows: Sequence[int]) -> list[str]:
        """Return the passages of some rows."""
        return [self.docids[row] for row in rows]

    def rows_of(self, docids: Collection[str]) -> list[int]:
        """Return the rows of those passages that are hits, in any order."""
        return list(map(self.docids.index, set(docids).intersection(self.docids)))

    def repeated_row(self) -> int | None:
        """Return the row of the first passage that stands above, too; None if each stands once."""
        if len(set(self.docids)) == len(self.docids):
            return None
        return next(row for row, docid in enumerate(self.docids) if docid in self.docids[:row])


class HitColumns(NamedTuple):
    """K hits of one query, in the order of the file, column by column; ids are ASCII.

    Attributes:
        text: passage ids without anything between them.
        starts: (K + 1,) where each id begins in `text`, and where the last one ends.
        words: (W, K) the bytes of each id as big-endian numbers, filled up with zeros. Ids hold no
            zero byte: equal ids have equal numbers, and the order of numbers is that of ids.
        scores: (K,)
        lines: line numbers.
    """

    qid: str
    text: str
    starts: NDArray[np.int32]
    words: Words
    scores: NDArray[np.float64]
    lines: range

    def as_lists(self) -> RankedList:
        """Return the hits as lists."""
        docids = self.docids_at(range(len(self.scores)))
        return RankedList(self.qid, docids, self.scores.tolist(), self.lines)

    def scores_array(self) -> NDArray[np.float64]:
        """Return the (K,) scores."""
        return self.scores

    def docids_at(self, rows: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Return the passages of some rows."""
        index = np.asarray(rows, np.int64)
        starts = self.starts[index].tolist()
        ends = self.starts[index + 1].tolist()
        return [self.text[start:end] for start, end in zip(starts, ends, strict=True)]

    def rows_of(self, docids: Collection[str]) -> list[int]:
        """Return the rows of those passages that are hits, in any order."""
        if not docids:
            return []
        keys = keys_of(words_of(docids, len(self.words)))
        rows = np.flatnonzero(np.isin(keys_of(self.words), keys)).tolist()
        # equal keys may be those of different ids
        wanted = set(docids)
        docids_of_rows = self.docids_at(rows)
        return [row for row, docid in zip(rows, docids_of_rows, strict=True) if docid in wanted]

    def repeated_row(self) -> int | None:
        """Return the row of the first passage that stands above, too; None if each stands once."""
        keys = np.sort(keys_of(self.words))
        if (keys[1:] != keys[:-1]).all():
            return None
        return self.as_lists().repeated_row()


def keys_of(words: Words) -> Words:
    """Return a number for each id, equal for equal ids and seldom for others."""
    keys: Words = words[0]
    for more in words[1:]:
        keys = keys * np.uint64(0x9E3779B97F4A7C15) ^ more
    return keys


def words_of(docids: Collection[str], count: int) -> Words:
    """Return the first bytes of ids as `count` big-endian numbers each: (count, K).

    >>> [hex(word) for word in words_of(["d1", "passage-7"], 2).T.ravel().tolist()]
    ['0x6431000000000000', '0x0', '0x706173736167652d', '0x3700000000000000']
    """
    encoded = np.array([docid.encode() for docid in docids], f"S{count * WORD}")
    words: Words = encoded.view(">u8").reshape(len(docids), count).T.astype(np.uint64)
    return words


def words_between(codes: NDArray[np.uint8], starts: NDArray[np.int32]) -> Words:
    """Return the words of ids that stand one behind the other in bytes: see `HitColumns`."""
    lengths = np.diff(starts)
    padded = np.concatenate([codes, np.zeros(LONGEST_ID, np.uint8)])
    # the 8 bytes from each position on, as a number
    windows = np.ndarray(len(padded) - WORD + 1, ">u8", padded.data, strides=(1,))
    count = -(-int(lengths.max()) // WORD)
    words = np.empty((count, len(lengths)), np.uint64)
    for number in range(count):
        first = number * WORD
        filled = np.clip(lengths - first, 0, WORD)
        words[number] = windows[starts[:-1] + first]
        words[number] &= FILLED_BITS[filled]
    return words


def join_columns(parts: Sequence[HitColumns]) -> HitColumns:
    """Return consecutive hits of one query as one."""
    texts: list[str] = []
    lengths: list[NDArray[np.int32]] = []
    for part in parts:
        texts.append(part.text[part.starts[0] : part.starts[-1]])
        lengths.append(np.diff(part.starts))
    count = max(len(part.words) for part in parts)
    words = [np.pad(part.words, ((0, count - len(part.words)), (0, 0))) for part in parts]
    starts = np.zeros(sum(map(len, lengths)) + 1, np.int32)
    np.cumsum(np.concatenate(lengths), out=starts[1:])
    return HitColumns(
        parts[0].qid,
        "".join(texts),
        starts,
        np.concatenate(words, axis=1),
        np.concatenate([part.scores for part in parts]),
        range(parts[0].lines.start, parts[-1].lines.stop),
    )


def join_hits(parts: Sequence[RankedList | HitColumns]) -> RankedList | HitColumns:
    """Return the consecutive hits of a query, which may cross blocks, as one."""
    if len(parts) == 1:
        return parts[0]
    columns = [part for part in parts if isinstance(part, HitColumns)]
    if len(columns) == len(parts):
        return join_columns(columns)
    lists = [part.as_lists() for part in parts]
    return RankedList(
        parts[0].qid,
        list(chain.from_iterable(hits.docids for hits in lists)),
        list(chain.from_iterable(hits.scores for hits in lists)),
        list(chain.from_iterable(hits.lines for hits in lists)),
    )


@dataclass(frozen=True)
class RankedWords:
    """The K hits of a query: the words of their ids, (W, K), and their scores, (K,)."""

    words: Words
    scores: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.scores)

    def as_list(self) -> list[tuple[str, float]]:
        """Return passages with their scores."""
        docids = self.docids_at(slice(None))
        return list(zip(docids, self.scores.tolist(), strict=True))

    def docids_at(self, rows: slice | list[int]) -> list[str]:
        """Return the passages of some rows."""
        encoded = np.ascontiguousarray(self.id_bytes()[rows])
        docids: list[str] = encoded.view(f"S{encoded.shape[1]}").ravel().astype(str).tolist()
        return docids

    def first(self, count: int | None) -> "RankedWords":
        """Return the first hits."""
        return RankedWords(self.words[:, :count], self.scores[:count])

    def best_first(self) -> "RankedWords":
        """Return the hits in the order of `records.best_first`."""
        if (self.scores[1:] < self.scores[:-1]).all():
            return self
        order = np.lexsort((*self.words[::-1], self.scores))[::-1]
        return RankedWords(self.words[:, order], self.scores[order])

    def packed(self) -> bytes:
        """Return the hits as bytes, which `unpacked` reads."""
        return b"".join([len(self).to_bytes(WORD), self.scores.tobytes(), self.words.tobytes()])

    @classmethod
    def unpacked(cls, record: bytes) -> "RankedWords":
        """Return the hits of a record."""
        count = int.from_bytes(record[:WORD])
        scores = np.frombuffer(record, np.float64, count, offset=WORD)
        words = np.frombuffer(record, np.uint64, offset=WORD * (1 + count))
        return cls(words.reshape(-1, count), scores)

    def id_bytes(self) -> NDArray[np.uint8]:
        """Return the bytes of the ids, filled up with zeros: (K, 8 W)."""
        return np.ascontiguousarray(self.words.T.astype(">u8")).view(np.uint8)


NO_HITS = RankedWords(np.empty((1, 0), np.uint64), np.empty(0))


class HitBlock(NamedTuple):
    """The hits of a block of lines, column by column."""

    qids: list[str]  # of consecutive lines
    ends: list[int]  # for each of them, the row after its last hit
    docids: bytes  # without anything between them
    starts: NDArray[np.int32]  # of the ids, and the end of the last one
    scores: NDArray[np.float64]

    def hits(self, number: int) -> Iterator[RankedList | HitColumns]:
        """Yield the hits query by query; `number` is that of the first line.

        Queries with few hits come as lists, which need fewer steps a query.
        """
        text = self.docids.decode("ascii")
        longest_id = np.diff(self.starts).max()
        if len(self.scores) < MANY_HITS * len(self.qids) or longest_id > LONGEST_ID:
            yield from self._lists(text, number)
            return
        words = words_between(np.frombuffer(self.docids, np.uint8), self.starts)
        for qid, (start, end) in zip(self.qids, pairwise([0, *self.ends]), strict=True):
            yield HitColumns(
                qid,
                text,
                self.starts[start : end + 1],
                words[:, start:end],
                self.scores[start:end],
                range(number + start, number + end),
            )

    def _lists(self, text: str, number: int) -> Iterator[RankedList]:
        """Yield the hits query by query as lists."""
        docids = [text[start:end] for start, end in pairwise(self.starts.tolist())]
        scores = self.scores.tolist()
        for qid, (start, end) in zip(self.qids, pairwise([0, *self.ends]), strict=True):
            lines = range(number + start, number + end)
            yield RankedList(qid, docids[start:end], scores[start:end], lines)


def read_block(text: bytes, order: Sequence[Column], *, has_ranks: bool) -> HitBlock | None:
    """Read a block of lines with columns in some order, between single tabs or blanks.

    Returns None where a line may be anything but a hit: the block is then to be read line by line,
    which also finds the error. A block that passes the checks is read to the same hits: its lines
    have no white space but one separator between columns, pyarrow takes only lines with as many
    columns as `order`, no query begins like a comment, and each score is a finite number, which
    pyarrow rounds as Python does. With `has_ranks` a score is the negative of a whole number.
    """
    if b"\t" in text:
        text = text.replace(b"\t", b" ")
    if not has_clean_lines(text):
        return None
    import pyarrow as pa
    from pyarrow import compute, csv

    value_column = Column.RANK if has_ranks else Column.SCORE
    types = {
        str(Column.QUERY_ID): pa.string(),
        str(Column.PASSAGE_ID): pa.string(),
        str(value_column): pa.int64() if has_ranks else pa.float64(),
    }
    names = [str(column) for column in order]
    in_one_block = csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names)
    unquoted = csv.ParseOptions(delimiter=" ", quote_char=False)
    needed_columns = csv.ConvertOptions(
        check_utf8=False, column_types=types, null_values=[], include_columns=list(types)
    )
    try:
        table = csv.read_csv(pa.BufferReader(text), in_one_block, unquoted, needed_columns)
    except pa.ArrowInvalid:  # another number of columns, or a score that may be none
        return None
    values = np.asarray(np.from_dlpack(table[value_column].chunk(0)))  # to_numpy imports pandas
    if has_ranks and not _are_ranks(values, text):
        return None
    scores = -values.astype(np.float64) if has_ranks else values
    queries = compute.run_end_encode(table[Column.QUERY_ID].chunk(0))
    qids = queries.values.to_pylist()
    if any(qid.startswith("#") for qid in qids) or not np.isfinite(scores).all():
        return None
    _, positions, characters = table[Column.PASSAGE_ID].chunk(0).buffers()
    starts = np.frombuffer(positions, np.int32, len(scores) + 1)
    docids = bytes(memoryview(characters)[: starts[-1]])
    return HitBlock(qids, queries.run_ends.to_pylist(), docids, starts, scores)


def _are_ranks(values: NDArray[np.int64], text: bytes) -> bool:
    """Return whether the whole numbers that pyarrow read are ranks: digits only, and not too many.

    pyarrow also reads -1, -0, 0x1, and any number of zeros in front. The text is searched as a
    whole: an id that looks like such a number only makes the block one that is read line by line.
    """
    lowest = values.min()
    if lowest < 0 or values.max() >= 10**RANK_DIGITS:
        return False
    may_be_negative_zero = lowest == 0 and b"-0" in text
    may_be_hexadecimal = b"0x" in text or b"0X" in text
    if may_be_negative_zero or may_be_hexadecimal:
        return False
    lines = b"\n" + text  # each column has a separator before it
    return not any(pattern.search(lines) for pattern in PADDED_NUMBERS)


def has_clean_lines(text: bytes) -> bool:
    r"""Return whether all lines are printable ASCII, with one blank between columns.

    >>> has_clean_lines(b"q Q0 d 1 2.0 tag\n"), has_clean_lines(b"q  Q0 d 1 2.0 tag\n")
    (True, False)
    """
    codes = np.frombuffer(text, np.uint8)
    is_blank = codes <= ord(" ")
    if is_blank[0] or codes[-1] != ord("\n"):
        return False
    has_empty_column = (is_blank[1:] & is_blank[:-1]).any()
    if has_empty_column or not text.isascii():
        return False
    control_characters = np.count_nonzero(codes < ord(" "))
    return bool(control_characters <= text.count(b"\n"))
