"""Records kept on the disk and read back by number: what need not be in memory at once."""

import os
from array import array
from pathlib import Path

BUFFER = 1 << 20


class ScratchRecords:
    """Byte strings in one file, numbered from 0 in the order in which they come.

    In memory are 8 bytes a record.

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
        """Keeps a record; returns its number."""
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
        """Lets the file go."""
        self._file.close()
