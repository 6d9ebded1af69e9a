"""Ids that stand in a text, without a string made of each."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]

WIDEST = 64
"""Bytes of ids up to which they are cut out as one table."""
PADDING = 24
"""Zero bytes behind a text, so that whole words can be read from every place in it."""
LOW_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], dtype=np.uint64)
ODD = np.uint64(0x9E3779B97F4A7C15)


class Names(NamedTuple):
    """Id i is text[starts[i]:ends[i]].

    Attributes:
        text: (T,) bytes of UTF-8, for example a mapped file.
        starts: (K,).
        ends: (K,).
    """

    text: Bytes
    starts: Places
    ends: Places

    def at(self, rows: "slice | Places") -> "Names":
        """Some of the ids."""
        return Names(self.text, self.starts[rows], self.ends[rows])

    def table(self) -> Bytes:
        """The ids as (K, W) bytes, W that of the longest, zeros behind the others."""
        lengths = self.ends - self.starts
        width = max(int(lengths.max()), 1)
        text = self.text
        if len(text) < width:
            text = np.zeros(width, np.uint8)
        windows = np.ndarray((len(text) - width + 1,), f"V{width}", text, strides=(1,))
        inside = np.minimum(self.starts, len(windows) - 1)
        rows = windows[inside]
        for row in np.flatnonzero(inside < self.starts).tolist():  # the last ids of the text
            rows[row] = np.void(text[self.starts[row] :].tobytes().ljust(width))
        table = rows.view(np.uint8).reshape(-1, width)
        table *= np.arange(width) < lengths[:, None]
        return table

    def strings(self) -> list[str]:
        """The ids themselves.

        >>> Names(np.frombuffer(b"d1 d27", np.uint8), np.array([3, 0]), np.array([6, 2])).strings()
        ['d27', 'd1']
        """
        lengths = self.ends - self.starts
        if len(lengths) and int(lengths.max()) <= WIDEST:
            table = self.table()
            if (table < 128).all() and np.count_nonzero(table) == lengths.sum():
                found: list[str] = table.astype(np.uint32).view(f"U{table.shape[1]}")[:, 0].tolist()
                return found
        places = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return [self.text[start:end].tobytes().decode() for start, end in places]

    def keys(self) -> NDArray[np.uint64]:
        """A number for each id of a padded text: equal ids have equal numbers.

        Ids of up to eight bytes have different numbers where they differ; of longer ones the first
        and the last eight bytes are mixed.
        """
        lengths = self.ends - self.starts
        words = np.ndarray((len(self.text) - 7,), np.dtype("<u8"), self.text, strides=(1,))
        keys: NDArray[np.uint64] = words[self.starts] & LOW_BYTES[np.minimum(lengths, 8)]
        long = np.flatnonzero(lengths > 8)
        if len(long):
            keys[long] = keys[long] * ODD + words[self.ends[long] - 8]
        return keys
