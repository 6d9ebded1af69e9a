"""Passages of a corpus that runs or training data refer to by id, kept on disk.

Ids are noted first, then the corpus streams by once and what was noted is copied to the disk.
Memory holds 24 bytes for each passage that was noted, however often it was.
"""

import os
from array import array
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from denserk.errors import InputError
from denserk.records import Passage
from denserk.reporting import Progress

BLOCK = 4096  # passages of the corpus that are looked up together
PENDING = 1 << 22  # hashes that wait, at least, before they are sorted in
BUFFER = 1 << 20  # bytes

Hashes = NDArray[np.int64]


class ScratchRecords:
    """Byte strings in a temporary file, numbered from 0; memory holds 8 bytes a record.

    Args:
        path: the file.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     records = ScratchRecords(Path(folder) / "records")
    ...     numbers = [records.append(b"one"), records.append(b"three")]
    ...     print(numbers, records[1], len(records))
    ...     records.close()
    [0, 1] b'three' 2
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b", buffering=BUFFER)
        self._ends = array("q", [0])
        self._settled = True

    def __len__(self) -> int:
        return len(self._ends) - 1

    def append(self, record: bytes) -> int:
        """Keep a record; return its number."""
        self._file.write(record)
        self._ends.append(self._ends[-1] + len(record))
        self._settled = False
        return len(self) - 1

    def __getitem__(self, number: int) -> bytes:
        if not self._settled:
            self._file.flush()
            self._settled = True
        start, end = self._ends[number], self._ends[number + 1]
        return os.pread(self._file.fileno(), end - start, start)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class PassageTexts:
    """Notes ids, copies their passages from a corpus, and returns them.

    Ids are told apart by Python's 64-bit hashes; a record holds its id, so that two ids of one hash
    are no confusion.

    Args:
        path: the file for the texts.
        fields: extra fields of passages that are kept.
    """

    def __init__(self, path: Path, fields: Sequence[str] = ()) -> None:
        self._fields = fields
        self._records = ScratchRecords(path)
        self._wanted: Hashes = np.empty(0, dtype=np.int64)
        self._pending = array("q")
        self._rows: Hashes = np.empty(0, dtype=np.int64)
        self._others: dict[str, int] = {}

    def refer(self, docids: Sequence[str]) -> None:
        """Note passages that will be asked for."""
        self._pending.extend(map(hash, docids))
        if len(self._pending) > max(PENDING, len(self._wanted)):
            self._sort_in()

    @property
    def referred(self) -> bool:
        """Whether any passage was asked for."""
        return bool(len(self._wanted) or self._pending)

    def _sort_in(self) -> None:
        pending = np.array(self._pending, dtype=np.int64)
        self._wanted = np.unique(np.concatenate([self._wanted, pending]))
        self._pending = array("q")

    def find(self, passages: Iterable[Passage], source: str, progress: Progress) -> None:
        """Copy what was noted from a corpus, which is read to its end.

        Args:
            passages: the corpus.
            source: names it in errors.
            progress: told of every passage that comes by.

        Raises:
            InputError: a passage that was noted comes twice.
        """
        self._sort_in()
        self._rows = np.full(len(self._wanted), -1, dtype=np.int64)
        stream = iter(passages)
        while block := list(islice(stream, BLOCK)):
            progress.advance(len(block))
            places, found = self._places(_hashes([passage.docid for passage in block]))
            for number in np.flatnonzero(found).tolist():
                self._take(block[number], int(places[number]), source)

    @property
    def missing(self) -> int:
        """The number of noted ids that the corpus lacks."""
        return int((self._rows < 0).sum())

    def _take(self, passage: Passage, place: int, source: str) -> None:
        extra = {name: passage.extra[name] for name in self._fields if name in passage.extra}
        record = [passage.docid, passage.text, passage.title, extra]
        row = self._records.append(orjson.dumps(record))
        if self._rows[place] < 0:
            self._rows[place] = row
            return
        if passage.docid in (self._read(int(self._rows[place])).docid, *self._others):
            raise InputError(source, None, f"the id {passage.docid} twice", "each id once")
        self._others[passage.docid] = row

    def _places(self, hashes: Hashes) -> tuple[Hashes, NDArray[np.bool_]]:
        """Return where hashes stand among the wanted, and whether they are there."""
        places = np.searchsorted(self._wanted, hashes)
        inside = np.minimum(places, max(len(self._wanted) - 1, 0))
        found = self._wanted[inside] == hashes if len(self._wanted) else np.zeros(len(hashes), bool)
        return inside, found

    def _read(self, row: int) -> Passage:
        return Passage(*orjson.loads(self._records[row]))

    def get(self, docids: Sequence[str]) -> list[Passage | None]:
        """Return the passages of ids that were noted; None where the corpus has none."""
        if not len(self._rows):
            return [None] * len(docids)
        places, found = self._places(_hashes(docids))
        return [
            self._named(docid, int(self._rows[place]) if there else -1)
            for docid, place, there in zip(docids, places.tolist(), found.tolist(), strict=True)
        ]

    def lacking(self, docids: Sequence[str]) -> list[str]:
        """Return the ids that the corpus lacks."""
        found = zip(docids, self.get(docids), strict=True)
        return [docid for docid, passage in found if passage is None]

    def _named(self, docid: str, row: int) -> Passage | None:
        passage = self._read(row) if row >= 0 else None
        if passage is not None and passage.docid != docid:
            row = self._others.get(docid, -1)
            passage = self._read(row) if row >= 0 else None
        return passage

    def close(self) -> None:
        """Close the file."""
        self._records.close()


def _hashes(docids: Sequence[str]) -> Hashes:
    return np.fromiter(map(hash, docids), np.int64, len(docids))
