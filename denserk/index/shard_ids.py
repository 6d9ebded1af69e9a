"""The passage ids of many shards: those of the last search at hand, the others in their files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from denserk.errors import InputError, MismatchError
from denserk.formats.names import PADDING, Bytes, Names, Places
from denserk.index.index_folder import PART, PassageIds
from denserk.index.vector_index import Rows


@dataclass(frozen=True)
class IdFile:
    """A file of ids, one a line.

    Attributes:
        shard: the folder, as it was named.
        path: the file.
        passages: how many there are.
        lines: lines of a passage; above 1, they end in "#" and the number of the vector.
        stays_open: whether where its lines end is kept, 8 bytes a line.
    """

    shard: str
    path: Path
    passages: int
    lines: int = 1
    stays_open: bool = False


class ShardIds(Sequence[str]):
    """Names rows counted through all shards by their passages.

    Args:
        files: in the order of the rows.
        size: vectors of a passage, neighbouring rows.
    """

    def __init__(self, files: Sequence[IdFile], size: int = 1) -> None:
        self._files, self._size = files, size
        self._firsts = np.cumsum([0, *(file.passages for file in files)])
        self._open: dict[Path, PassageIds] = {}
        self._known: NDArray[np.int64] = np.array([-1])  # in order; no passage yet
        self._names = Names(np.zeros(PADDING, np.uint8), self._known, self._known)

    def __len__(self) -> int:
        return int(self._firsts[-1]) * self._size

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self.passages(np.array([row])).strings()[0]

    def passages(self, rows: NDArray[np.int64]) -> Names:
        """The ids of the passages that rows belong to."""
        wanted = rows // self._size
        places = np.searchsorted(self._known, wanted)
        if not np.array_equal(self._known.take(places, mode="clip"), wanted):
            self.know(rows[None])
            places = np.searchsorted(self._known, wanted)
        return self._names.at(places)

    def know(self, rows: Rows) -> None:
        """Replaces what is at hand by the ids of rows that a search found, file by file.

        Raises:
            InputError: a file of ids is not there.
            MismatchError: two passages of different shards go by one id.
        """
        self._known = np.unique(rows[rows >= 0] // self._size)
        places = np.searchsorted(self._firsts, self._known, side="right") - 1
        texts, lengths = [np.empty(0, np.uint8)], [np.empty(0, np.int64)]
        for number in np.unique(places).tolist():
            found = self._known[places == number] - self._firsts[number]
            names = self._read(self._files[number], found)
            texts.append(_cut_out(names))
            lengths.append(names.ends - names.starts)
        ends = np.cumsum(np.concatenate(lengths))
        text = np.concatenate([*texts, np.zeros(PADDING, np.uint8)])
        self._names = Names(text, ends - np.concatenate(lengths), ends)
        self._refuse_repeats(places)

    def _read(self, file: IdFile, passages: Places) -> Names:
        """The ids of some passages of one file."""
        if not file.path.is_file():
            raise InputError(file.path, None, "nothing", "ids, one a line", "make the shard again")
        ids = self._open.get(file.path) or PassageIds(file.path, file.passages * file.lines)
        if file.stays_open:
            self._open[file.path] = ids
        names = ids.names(passages * file.lines)
        return names if file.lines == 1 else names._replace(ends=names.ends - len(f"{PART}0"))

    def _refuse_repeats(self, places: Places) -> None:
        """Refuses an id that stands for two passages among what was found."""
        keys = self._names.keys()
        _, firsts, counts = np.unique(keys, return_index=True, return_counts=True)
        if (counts == 1).all():
            return
        for key in keys[firsts[counts > 1]]:  # equal ids, or long ones that are mixed alike
            same = np.flatnonzero(keys == key)
            seen: dict[str, int] = {}
            for at, name in zip(same.tolist(), self._names.at(same).strings(), strict=True):
                if (before := seen.setdefault(name, at)) != at:
                    one, other = (self._files[places[i]].shard for i in (before, at))
                    where = f"twice in {one}" if one == other else f"in {one} and in {other}"
                    raise MismatchError(
                        f"the id {name} stands {where}", "search shards that share no passage"
                    )


def _cut_out(names: Names) -> Bytes:
    """The bytes of ids, one behind the other."""
    lengths = names.ends - names.starts
    begins = np.cumsum(lengths) - lengths
    places = np.arange(int(lengths.sum())) + np.repeat(names.starts - begins, lengths)
    found: Bytes = names.text[places]
    return found
