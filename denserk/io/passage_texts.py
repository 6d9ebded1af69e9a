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

Hashes = NDArray[np.int64]


class ScratchRecords:
    """Byte strings in a temporary file, numbered from 0; memory holds 8 bytes a record.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     records = ScratchRecords(Path(folder) / "records")
    ...     numbers = [records.append(b"one"), records.append(b"three")]
    ...     print(numbers, records[1], len(records))
    ...     records.close()
    [0, 1] b'three' 2
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b", buffering=1 << 20)
        self._ends = array("q", [0])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def append(self, record: bytes) -> int:
        """Keep a record; return its number."""
        self._file.write(record)
        self._ends.append(self._ends[-1] + len(record))
        return len(self) - 1

    def __getitem__(self, number: int) -> bytes:
        self._file.flush()
        start, end = self._ends[number], self._ends[number + 1]
        return os.pread(self._file.fileno(), end - start, start)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class PassageTexts:
    """Notes ids, copies their passages from a corpus, and returns them.

    Ids are told apart by Python's 64-bit hashes; a record holds its id, so that the passage of
    another id is never returned.

    Args:
        path: the file for the texts.
        fields: extra fields of passages that are kept.
    """

    def __init__(self, path: Path, fields: Sequence[str] = ()) -> None:
        self._fields = fields
        self._records = ScratchRecords(path)
        self._wanted: Hashes = np.empty(0, np.int64)
        self._pending = array("q")
        self._rows: Hashes = np.empty(0, np.int64)

    def refer(self, docids: Iterable[str]) -> None:
        """Note passages that will be asked for."""
        self._pending.extend(map(hash, docids))
        if len(self._pending) > max(PENDING, len(self._wanted)):
            self._sort_in()

    @property
    def referred(self) -> bool:
        """Whether any passage was asked for."""
        return bool(len(self._wanted) or self._pending)

    def _sort_in(self) -> None:
        pending = np.array(self._pending, np.int64)
        self._wanted = np.unique(np.concatenate([self._wanted, pending]))
        self._pending = array("q")

    def find(self, passages: Iterable[Passage], source: str, progress: Progress) -> None:
        """Copy what was noted from a corpus, which is read to its end; `source` names it in errors.

        Raises:
            InputError: a passage that was noted comes twice.
        """
        self._sort_in()
        self._rows = np.full(len(self._wanted), -1, np.int64)
        stream = iter(passages)
        while block := list(islice(stream, BLOCK)):
            progress.advance(len(block))
            places = self._places([passage.docid for passage in block])
            for number in np.flatnonzero(places >= 0).tolist():
                passage, place = block[number], places[number]
                if self._rows[place] >= 0:
                    raise InputError(source, None, f"the id {passage.docid} twice", "each id once")
                extra = {key: passage.extra[key] for key in self._fields if key in passage.extra}
                record = orjson.dumps([passage.docid, passage.text, passage.title, extra])
                self._rows[place] = self._records.append(record)

    @property
    def missing(self) -> int:
        """The number of noted ids that the corpus lacks."""
        return int((self._rows < 0).sum())

    def _places(self, docids: Sequence[str]) -> Hashes:
        """Return where ids stand among the wanted; -1 for others."""
        hashes = np.fromiter(map(hash, docids), np.int64, len(docids))
        if not len(self._wanted):
            return np.full(len(docids), -1, np.int64)
        places = np.minimum(np.searchsorted(self._wanted, hashes), len(self._wanted) - 1)
        return np.where(self._wanted[places] == hashes, places, -1)

    def get(self, docids: Sequence[str]) -> list[Passage | None]:
        """Return the passages of ids that were noted; None where the corpus has none."""
        if not len(self._rows):
            return [None] * len(docids)
        places = self._places(docids)
        rows = np.where(places >= 0, self._rows[places], -1).tolist()
        found = [Passage(*orjson.loads(self._records[row])) if row >= 0 else None for row in rows]
        return [
            passage if passage and passage.docid == docid else None
            for docid, passage in zip(docids, found, strict=True)
        ]

    def lacking(self, docids: Sequence[str]) -> list[str]:
        """Return the ids that the corpus lacks."""
        found = zip(docids, self.get(docids), strict=True)
        return [docid for docid, passage in found if passage is None]

    def close(self) -> None:
        """Close the file."""
        self._records.close()
