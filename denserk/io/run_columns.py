"""Hits of runs column by column: blocks of clean lines are read without an object for each hit.

The ids of a block are one text with the positions where each begins. Passages are compared by the
bytes of their ids as numbers of 64 bits (`HitColumns.words`), so that NumPy finds repeated and
judged passages. A word is such a number here, never a term of a text.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.io.column_names import Column

WORD = 8  # bytes of an id that one number holds
LONGEST_ID = 8 * WORD  # bytes; hits with longer ids are lists
RANK_DIGITS = 18  # at most, as where a run is read line by line; 10**18 also fits into an int64
# A column of more than RANK_DIGITS digits whose first one is a zero. There is a pattern for each
# separator, as a search for one that begins with fixed bytes is many times faster.
PADDED_NUMBERS = [
    re.compile(separator + b"0[0-9]{%d}" % RANK_DIGITS) for separator in (b" ", b"\n")
]
MANY_HITS = 64  # hits of a query from which columns are quicker than lists

HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2**64 by the golden ratio, odd: it spreads all bits

Words = NDArray[np.uint64]  # (W, K): column k is the id of hit k, in W numbers
# At n, the bits of the first n bytes of a big-endian number: an id with n bytes left fills these.
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
        """Return the first row whose passage an earlier row has, too; None without one."""
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
        candidate_rows = np.flatnonzero(np.isin(keys_of(self.words), keys)).tolist()
        # different ids may have equal keys
        candidates = zip(candidate_rows, self.docids_at(candidate_rows), strict=True)
        passages = set(docids)
        return [row for row, docid in candidates if docid in passages]

    def repeated_row(self) -> int | None:
        """Return the first row whose passage an earlier row has, too; None without one."""
        ascending_keys = np.sort(keys_of(self.words))
        all_differ = (ascending_keys[1:] != ascending_keys[:-1]).all()
        if all_differ:
            return None
        # different ids may have equal keys
        return self.as_lists().repeated_row()


def keys_of(words: Words) -> NDArray[np.uint64]:
    """Return a number for each id, equal for equal ids and seldom for others: (K,)."""
    keys: NDArray[np.uint64] = words[0]
    for next_words in words[1:]:
        keys = (keys * HASH_FACTOR) ^ next_words
    return keys


def words_of(docids: Collection[str], count: int) -> Words:
    """Return the first bytes of ids as `count` big-endian numbers each: (count, K).

    A longer id is cut off, and so may have the words of another one.

    >>> [hex(word) for word in words_of(["d1", "passage-7"], 2).T.ravel().tolist()]
    ['0x6431000000000000', '0x0', '0x706173736167652d', '0x3700000000000000']
    """
    encoded = np.array([docid.encode() for docid in docids], f"S{count * WORD}")
    words: Words = encoded.view(">u8").reshape(len(docids), count).T.astype(np.uint64)
    return words


def words_between(codes: NDArray[np.uint8], starts: NDArray[np.int32]) -> Words:
    """Return the words, (W, K), of K ids that stand one behind the other: see `HitColumns`.

    `codes` are the bytes of their text, `starts`, (K + 1,), the positions in it. No id may be
    longer than `LONGEST_ID`.
    """
    lengths = np.diff(starts)
    # the last id is read to the end of the words that the longest one has
    padded = np.concatenate([codes, np.zeros(LONGEST_ID, np.uint8)])
    # the 8 bytes from each position on, as a number: a view that copies nothing
    windows = np.ndarray(len(padded) - WORD + 1, ">u8", padded.data, strides=(1,))
    count = -(-int(lengths.max()) // WORD)  # rounded up
    words = np.empty((count, len(lengths)), np.uint64)
    for number in range(count):
        first_byte = number * WORD
        words[number] = windows[starts[:-1] + first_byte]
        # where the id has fewer than 8 bytes left, the others are those of the next id
        remaining_bytes = np.clip(lengths - first_byte, 0, WORD)
        words[number] &= FILLED_BITS[remaining_bytes]
    return words


def join_hits(hits_of_blocks: Sequence[RankedList | HitColumns]) -> RankedList | HitColumns:
    """Return the hits of a query, which go on from block to block, as one object."""
    if len(hits_of_blocks) == 1:
        return hits_of_blocks[0]
    columns = [hits for hits in hits_of_blocks if isinstance(hits, HitColumns)]
    if len(columns) == len(hits_of_blocks):
        return _join_columns(columns)
    return _join_lists([hits.as_lists() for hits in hits_of_blocks])


def _join_lists(lists: Sequence[RankedList]) -> RankedList:
    """Return hits of one query as one list."""
    docids: list[str] = []
    scores: list[float] = []
    lines: list[int] = []
    for hits in lists:
        docids += hits.docids
        scores += hits.scores
        lines += hits.lines
    return RankedList(lists[0].qid, docids, scores, lines)


def _join_columns(columns: Sequence[HitColumns]) -> HitColumns:
    """Return hits of one query as one object with a text of its ids alone."""
    texts: list[str] = []
    lengths: list[NDArray[np.int32]] = []
    for hits in columns:
        texts.append(hits.text[hits.starts[0] : hits.starts[-1]])
        lengths.append(np.diff(hits.starts))
    starts = np.zeros(sum(map(len, lengths)) + 1, np.int32)
    np.cumsum(np.concatenate(lengths), out=starts[1:])
    return HitColumns(
        qid=columns[0].qid,
        text="".join(texts),
        starts=starts,
        words=join_words([hits.words for hits in columns]),
        scores=np.concatenate([hits.scores for hits in columns]),
        lines=range(columns[0].lines.start, columns[-1].lines.stop),
    )


def join_words(arrays: Sequence[Words]) -> Words:
    """Return the words of all ids, (W, K), with as many for each id as the longest one needs.

    >>> join_words([np.array([[1, 2]], np.uint64), np.array([[3], [4]], np.uint64)])
    array([[1, 2, 3],
           [0, 0, 4]], dtype=uint64)
    """
    count = max(map(len, arrays))
    padded = [np.pad(words, ((0, count - len(words)), (0, 0))) for words in arrays]
    return np.concatenate(padded, axis=1)


@dataclass(frozen=True)
class RankedWords:
    """The K hits of a query: the words of their ids, (W, K), and their scores, (K,).

    Words are those of `HitColumns`: ids are ASCII without zero bytes, and not long.
    """

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
        id_bytes = np.ascontiguousarray(self.id_bytes()[rows])
        texts = id_bytes.view(f"S{id_bytes.shape[1]}").ravel()  # NumPy cuts zeros off their ends
        docids: list[str] = texts.astype(str).tolist()
        return docids

    def first(self, count: int | None) -> "RankedWords":
        """Return the first `count` hits; all without a number."""
        return RankedWords(self.words[:, :count], self.scores[:count])

    def best_first(self) -> "RankedWords":
        """Return the hits in the order of `records.best_first`."""
        is_in_order = (self.scores[1:] < self.scores[:-1]).all()
        if is_in_order:
            return self
        # by score, then by id: lexsort takes the key that counts most as the last one
        ascending_rows = np.lexsort((*self.words[::-1], self.scores))
        rows = ascending_rows[::-1]
        return RankedWords(self.words[:, rows], self.scores[rows])

    def packed(self) -> bytes:
        """Return the hits as bytes, which `unpacked` reads: their number, scores and words.

        Number and scores have 8 bytes each, as words have.
        """
        return b"".join([len(self).to_bytes(WORD), self.scores.tobytes(), self.words.tobytes()])

    @classmethod
    def unpacked(cls, record: bytes) -> "RankedWords":
        """Return the hits, at least one, that `packed` wrote into a record."""
        count = int.from_bytes(record[:WORD])
        scores = np.frombuffer(record, np.float64, count, offset=WORD)
        words = np.frombuffer(record, np.uint64, offset=WORD * (1 + count))
        return cls(words.reshape(-1, count), scores)

    def id_bytes(self) -> NDArray[np.uint8]:
        """Return the bytes of the ids, filled up with zeros: (K, 8 W)."""
        return np.ascontiguousarray(self.words.T.astype(">u8")).view(np.uint8)


NO_HITS = RankedWords(np.empty((1, 0), np.uint64), np.empty(0))  # W = 1: ids have a word at least


class HitBlock(NamedTuple):
    """The hits of a block of lines, column by column."""

    qids: list[str]  # one for each stretch of consecutive lines of a query
    ends: list[int]  # for each of these, the row after its last hit
    docids: bytes  # without anything between them
    starts: NDArray[np.int32]  # of the ids, and the end of the last one
    scores: NDArray[np.float64]

    def by_query(self, first_line: int) -> Iterator[RankedList | HitColumns]:
        """Yield the hits query by query; `first_line` is the number of the first hit's line.

        Queries with few hits come as lists, which need fewer steps a query.
        """
        text = self.docids.decode("ascii")
        has_few_hits = len(self.scores) < MANY_HITS * len(self.qids)  # on average of the queries
        has_long_ids = np.diff(self.starts).max() > LONGEST_ID
        if has_few_hits or has_long_ids:
            return self._lists_by_query(text, first_line)
        return self._columns_by_query(text, first_line)

    def _lists_by_query(self, text: str, first_line: int) -> Iterator[RankedList]:
        docids = [text[start:end] for start, end in pairwise(self.starts.tolist())]
        scores = self.scores.tolist()
        for qid, (start, end) in zip(self.qids, pairwise([0, *self.ends]), strict=True):
            lines = range(first_line + start, first_line + end)
            yield RankedList(qid, docids[start:end], scores[start:end], lines)

    def _columns_by_query(self, text: str, first_line: int) -> Iterator[HitColumns]:
        words = words_between(np.frombuffer(self.docids, np.uint8), self.starts)
        for qid, (start, end) in zip(self.qids, pairwise([0, *self.ends]), strict=True):
            yield HitColumns(
                qid=qid,
                text=text,
                starts=self.starts[start : end + 1],
                words=words[:, start:end],
                scores=self.scores[start:end],
                lines=range(first_line + start, first_line + end),
            )


def read_block(text: bytes, order: Sequence[Column], *, has_ranks: bool) -> HitBlock | None:
    """Read a block of lines with columns in some order, between single tabs or blanks.

    Returns None where a line may be anything but a hit: the block is then to be read line by line,
    which also finds the error. A block that passes the checks is read to the same hits: its lines
    have no white space but one separator between columns, pyarrow takes only lines with as many
    columns as `order`, no query begins like a comment, and each score is a finite number, which
    pyarrow rounds as Python does. With `has_ranks` a hit has a rank, whose negative is its score.
    """
    if b"\t" in text:
        text = text.replace(b"\t", b" ")
    if not has_clean_lines(text):
        return None
    value_column = Column.RANK if has_ranks else Column.SCORE
    table = _read_table(text, order, value_column)
    if table is None:
        return None
    from pyarrow import compute

    values = np.asarray(np.from_dlpack(table[value_column].chunk(0)))  # to_numpy imports pandas
    if has_ranks:
        if not _are_ranks(values, text):
            return None
        scores = -values.astype(np.float64)
    else:
        scores = values
    consecutive_queries = compute.run_end_encode(table[Column.QUERY_ID].chunk(0))
    qids = consecutive_queries.values.to_pylist()
    may_have_comment = any(qid.startswith("#") for qid in qids)
    if may_have_comment or not np.isfinite(scores).all():
        return None
    # pyarrow's array of strings: which are missing, where each begins, and their characters
    _, positions, characters = table[Column.PASSAGE_ID].chunk(0).buffers()
    starts = np.frombuffer(positions, np.int32, len(scores) + 1)
    docids = bytes(memoryview(characters)[: starts[-1]])
    return HitBlock(qids, consecutive_queries.run_ends.to_pylist(), docids, starts, scores)


def _read_table(text: bytes, order: Sequence[Column], value_column: Column) -> Any:
    """Return queries, passages, and ranks or scores as a table of pyarrow with one chunk.

    Returns None where a line has another number of columns, or a value may be no number.
    """
    import pyarrow as pa
    from pyarrow import csv

    value_type = pa.int64() if value_column is Column.RANK else pa.float64()
    types = {
        str(Column.QUERY_ID): pa.string(),
        str(Column.PASSAGE_ID): pa.string(),
        str(value_column): value_type,
    }
    names = [str(column) for column in order]
    in_one_block = csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names)
    unquoted = csv.ParseOptions(delimiter=" ", quote_char=False)
    needed_columns = csv.ConvertOptions(
        check_utf8=False, column_types=types, null_values=[], include_columns=list(types)
    )
    try:
        return csv.read_csv(pa.BufferReader(text), in_one_block, unquoted, needed_columns)
    except pa.ArrowInvalid:
        return None


def _are_ranks(values: NDArray[np.int64], text: bytes) -> bool:
    """Return whether the whole numbers that pyarrow read are ranks: digits only, and not too many.

    pyarrow also reads -1, -0, 0x1, and any number of zeros in front. The text is searched as a
    whole: an id that looks like such a number only makes the block one that is read line by line.
    """
    lowest = values.min()
    highest = values.max()
    if lowest < 0 or highest >= 10**RANK_DIGITS:
        return False
    if lowest == 0 and b"-0" in text:
        return False
    if b"0x" in text or b"0X" in text:
        return False
    lines = b"\n" + text  # each column has a separator before it
    has_padded_number = any(pattern.search(lines) for pattern in PADDED_NUMBERS)
    return not has_padded_number


def has_clean_lines(text: bytes) -> bool:
    r"""Return whether all lines are printable ASCII, with one blank between columns.

    >>> has_clean_lines(b"q Q0 d 1 2.0 tag\n"), has_clean_lines(b"q  Q0 d 1 2.0 tag\n")
    (True, False)
    """
    codes = np.frombuffer(text, np.uint8)
    is_blank = codes <= ord(" ")  # line ends and other control characters among them
    if is_blank[0] or codes[-1] != ord("\n"):
        return False
    has_empty_column = (is_blank[1:] & is_blank[:-1]).any()
    if has_empty_column or not text.isascii():
        return False
    control_characters = np.count_nonzero(codes < ord(" "))
    return bool(control_characters == text.count(b"\n"))  # no others than line ends
