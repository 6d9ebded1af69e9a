"""Records in a temporary file, for what memory may not hold."""

import os
from array import array
from pathlib import Path


class ScratchRecords:
    """Byte strings in a temporary file, numbered from 0; memory holds 8 bytes a record."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w+b", buffering=1 << 20)
        self._offsets = array("q", [0])  # where each record begins, and the last one ends

    def close(self) -> None:
        """Close the file; it stays."""
        self._file.close()

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def append(self, record: bytes) -> int:
        """Keep a record; return its number."""
        self._file.write(record)
        self._offsets.append(self._offsets[-1] + len(record))
        return len(self) - 1

    def __getitem__(self, number: int) -> bytes:
        self._file.flush()
        start = self._offsets[number]
        size = self._offsets[number + 1] - start
        return os.pread(self._file.fileno(), size, start)
