"""Finds ids that occur twice, in memory that does not grow with the collection.

Ids are kept as 128-bit hashes on the disk (24 bytes an id), dealt into buckets by their first byte
and compared bucket by bucket at the end. Two different ids share a hash with a probability under
1e-18 at a billion ids.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from denserk.formats.files import write_errors
from denserk.formats.outputs import scratch_folder

BUCKETS = 256
BUFFER = 1 << 16
DIGEST = 16
RECORD = np.dtype([("high", ">u8"), ("low", ">u8"), ("position", ">u8")])


def digest(identifier: str) -> bytes:
    """The 16 bytes that stand for an id."""
    return blake2b(identifier.encode("utf-8", "surrogatepass"), digest_size=DIGEST).digest()


class IdLedger:
    """Takes ids in order; tells which positions repeat an earlier one.

    >>> with IdLedger() as ledger:
    ...     for docid in ledger.watch(["a", "b", "a"]):
    ...         pass
    ...     ledger.first_repeat()
    (0, 2)
    """

    def __init__(self) -> None:
        self._open = ExitStack()
        self._folder = self._open.enter_context(scratch_folder("ids"))
        self._pending = bytearray()
        self.count = 0

    def __enter__(self) -> "IdLedger":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    def add(self, docid: str) -> None:
        """Takes the next id."""
        self.extend((docid,))

    def extend(self, docids: Collection[str]) -> None:
        """Takes the next ids."""
        self._pending += b"".join(map(digest, docids))
        self.count += len(docids)
        if len(self._pending) >= BUFFER * DIGEST:
            self._spill()

    def watch(self, ids: Iterable[str]) -> Iterator[str]:
        """Passes ids through, taking each."""
        for docid in ids:
            self.add(docid)
            yield docid

    def _records(self) -> NDArray[np.void]:
        """What is pending, with its positions."""
        digests = np.frombuffer(bytes(self._pending), dtype=RECORD.descr[:2])
        self._pending.clear()
        records = np.empty(len(digests), RECORD)
        records["high"], records["low"] = digests["high"], digests["low"]
        records["position"] = np.arange(self.count - len(digests), self.count)
        return records

    def _spill(self) -> None:
        records = self._records()
        bucket = records["high"].astype(np.uint64) >> np.uint64(56)
        order = np.argsort(bucket, kind="stable")
        ends = np.searchsorted(bucket[order], np.arange(BUCKETS + 1, dtype=np.uint64))
        with write_errors(self._folder):
            for number in range(BUCKETS):
                part = records[order[ends[number] : ends[number + 1]]]
                if len(part):
                    with (Path(self._folder) / str(number)).open("ab") as out:
                        out.write(part.tobytes())

    def first_repeat(self) -> tuple[int, int] | None:
        """(position it repeats, position), from 0, of the earliest repeat; None if all differ."""
        if self.count * DIGEST == len(self._pending):  # nothing is on the disk
            repeat = _first_repeat(self._records())
            return None if repeat is None else (repeat[1], repeat[0])
        self._spill()
        buckets = (np.fromfile(where, RECORD) for where in Path(self._folder).iterdir())
        repeats = [repeat for repeat in map(_first_repeat, buckets) if repeat is not None]
        if not repeats:
            return None
        second, first = min(repeats)
        return first, second


def _first_repeat(records: NDArray[np.void]) -> tuple[int, int] | None:
    """(position, position it repeats) of the earliest repeat among some records."""
    records = records[np.lexsort((records["position"], records["low"], records["high"]))]
    same = (records["high"][1:] == records["high"][:-1]) & (
        records["low"][1:] == records["low"][:-1]
    )
    if not same.any():
        return None
    before, after = records["position"][:-1][same], records["position"][1:][same]
    return min((int(b), int(a)) for a, b in zip(before, after, strict=True))
