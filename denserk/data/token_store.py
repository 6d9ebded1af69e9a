"""Arrays on the disk, written piece by piece, memory-mapped afterwards; lists of lists too.

A list of lists is two files: `NAME.npy`, all values one after another, and `NAME-ends.npy`, N + 1
offsets of which the first is 0: list i is `values[ends[i]:ends[i + 1]]`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import ArrayLike, DTypeLike, NDArray

HEADER = 128
"""Bytes of the header of a one-dimensional `.npy`."""


class ArrayWriter:
    """A one-dimensional `.npy` that grows; it is readable once closed.

    Args:
        path: the file.
        dtype: of its values.
    """

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._file = path.open("wb")
        self.count = 0
        self._write_header()

    def _write_header(self) -> None:
        # numpy leaves room in a header for a longer count, so that it can be written again
        shape = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.count,)}
        npy.write_array_header_1_0(self._file, shape)

    def append(self, values: ArrayLike) -> None:
        """Adds values at the end."""
        array = np.ascontiguousarray(values, dtype=self._dtype)
        self._file.write(array.data)
        self.count += len(array)

    def close(self) -> None:
        """Writes the final count."""
        if not self._file.closed:
            self._file.seek(0)
            self._write_header()
            self._file.close()


class RaggedWriter:
    """Lists of unequal length, written in order.

    Args:
        folder: an existing folder.
        name: the stem of its two files.
        dtype: of the values.
    """

    def __init__(self, folder: Path, name: str, dtype: DTypeLike) -> None:
        self._values = ArrayWriter(folder / f"{name}.npy", dtype)
        self._ends = ArrayWriter(folder / f"{name}-ends.npy", np.int64)
        self._ends.append([0])

    @property
    def count(self) -> int:
        """Lists so far."""
        return self._ends.count - 1

    @property
    def values(self) -> int:
        """Values so far."""
        return self._values.count

    def extend(self, lists: Sequence[Sequence[Any] | bytes]) -> None:
        """Adds lists at the end."""
        flat = [value for values in lists for value in values]
        self.extend_flat(flat, [len(values) for values in lists])

    def extend_flat(self, values: ArrayLike, lengths: ArrayLike) -> None:
        """Adds lists that stand one after another in `values`."""
        self._ends.append(self._values.count + np.cumsum(lengths, dtype=np.int64))
        self._values.append(values)

    def close(self) -> None:
        """Makes both files readable."""
        self._values.close()
        self._ends.close()


class ArrayReader:
    """A one-dimensional `.npy` read from its start, so that only what is asked for is in memory.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        npy.read_magic(self._file)
        _, _, self._dtype = npy.read_array_header_1_0(self._file)

    def read(self, count: int) -> NDArray[Any]:
        """The next `count` values; fewer at the end."""
        return np.fromfile(self._file, self._dtype, count)

    def close(self) -> None:
        """Lets the file go."""
        self._file.close()


def open_array(path: Path) -> NDArray[Any]:
    """A `.npy`, memory-mapped; an empty one, which cannot be, is an array in memory."""
    empty = path.stat().st_size <= HEADER
    array: NDArray[Any] = np.load(path, mmap_mode=None if empty else "r")
    return array.view(np.ndarray)  # a memmap's own slices are slow


class Ragged:
    """Lists of unequal length, memory-mapped.

    Args:
        folder: where they are.
        name: the stem of the two files.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.values = open_array(folder / f"{name}.npy")
        self.ends: NDArray[np.int64] = open_array(folder / f"{name}-ends.npy")

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, row: int) -> NDArray[Any]:
        return self.values[self.ends[row] : self.ends[row + 1]]
