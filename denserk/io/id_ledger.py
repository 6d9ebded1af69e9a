"""Find ids that occur twice: hashes of 8 bytes are kept on the disk and sorted at the end.

Two different ids share a hash with a probability of 1e-5 among 21 million (Wikipedia).
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from hashlib import blake2b

import numpy as np

from denserk.io.files import write_errors
from denserk.io.outputs import scratch_folder

HASH = 8  # bytes
BUFFER = 1 << 20  # bytes that are written at once


class IdLedger(AbstractContextManager["IdLedger"]):
    """Takes ids in order; finds the first that repeats an earlier one.

    >>> with IdLedger() as ledger:
    ...     for docid in ledger.watch(["a", "b", "a"]):
    ...         pass
    ...     ledger.first_repeat()
    (0, 2)
    """

    def __init__(self) -> None:
        self._open = ExitStack()
        self._file = self._open.enter_context(scratch_folder("ids")) / "hashes"
        self._pending = bytearray()
        self.count = 0

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def add(self, docid: str) -> None:
        """Take the next id."""
        self.extend((docid,))

    def extend(self, docids: Collection[str]) -> None:
        """Take the next ids."""
        self._pending += b"".join(
            blake2b(docid.encode("utf-8", "surrogatepass"), digest_size=HASH).digest()
            for docid in docids
        )
        self.count += len(docids)
        if len(self._pending) >= BUFFER:
            self._write()

    def watch(self, ids: Iterable[str]) -> Iterator[str]:
        """Yield ids, taking each."""
        for docid in ids:
            self.add(docid)
            yield docid

    def _write(self) -> None:
        with write_errors(self._file.parent), self._file.open("ab") as out:
            out.write(self._pending)
        self._pending.clear()

    def first_repeat(self) -> tuple[int, int] | None:
        """Return (position it repeats, position), from 0, of the first repeat; None without one."""
        self._write()
        hashes = np.fromfile(self._file, np.uint64)
        ordered = np.sort(hashes)
        repeated = ordered[1:][ordered[1:] == ordered[:-1]]
        seen: dict[int, int] = {}
        for position in np.flatnonzero(np.isin(hashes, repeated)).tolist():
            first = seen.setdefault(int(hashes[position]), position)
            if first != position:
                return first, position
        return None
