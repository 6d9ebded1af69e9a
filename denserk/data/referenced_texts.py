"""Texts of one side of the training data -> token ids, each once: inline ones, and ones by id.

An inline text is tokenised as it comes. One that is known by id alone is noted, and tokenised when
its corpus streams by; only texts that are referred to are. Memory is constant: ids are noted on
the disk, as 128-bit digests, and looked up in a sorted, memory-mapped table of them.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from itertools import islice, pairwise
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from denserk.data.token_store import ArrayReader, ArrayWriter, Ragged, RaggedWriter, open_array
from denserk.errors import InputError
from denserk.formats.id_ledger import digest
from denserk.records import Passage, Query
from denserk.reporting import Progress

BLOCK = 4096
"""Texts tokenised at once."""
PART = 1 << 19
"""Digests sorted at once."""
DIGEST = np.dtype("S16")
LARGEST_KEY = np.int64(0x7FFFFFFFFFFFFFFF)

Text = TypeVar("Text", Passage, Query)
Digests = NDArray[np.bytes_]
Rows = NDArray[np.int64]


def keys_of(texts: Sequence[Passage | Query]) -> Rows:
    """Numbers from 0 that are equal where two records are the same: by id, by text without one.

    >>> one, other, none = Passage("d1", "a"), Passage("d1", "b"), Passage("", "a")
    >>> keys = keys_of([one, other, none, none])
    >>> len(set(keys.tolist())), keys[0] == keys[1], keys[2] == keys[3]
    (2, np.True_, np.True_)
    """
    names = [f"id {text[0]}" if text[0] else f"text {text[1:3]}" for text in texts]
    return _digests(names).view("<i8")[::2] & LARGEST_KEY


def sort_unique(source: Path, target: Path) -> Digests:
    """Writes the distinct digests of a file in order, a range of first bytes at a time; maps them.

    Args:
        source: a `.npy` of 16-byte digests.
        target: the `.npy` to write.
    """
    parts = max(1, -(-source.stat().st_size // (PART * DIGEST.itemsize)))
    bounds = [-(-(part << 16) // parts) for part in range(parts + 1)]
    writer = ArrayWriter(target, DIGEST)
    for low, high in pairwise(bounds):
        chosen = [np.empty(0, DIGEST)]
        with closing(ArrayReader(source)) as reader:
            while len(block := reader.read(PART // 8)):
                first = block.view(">u2")[::8]
                chosen.append(block[(first >= low) & (first < high)])
        writer.append(np.unique(np.concatenate(chosen)))
    writer.close()
    return open_array(target)


class Texts(Generic[Text]):
    """The texts of one side, tokenised in the order in which they come.

    A slot stands for a text before its row is known: an inline text's slot is its row; that of a
    text known by id is negative, -1 for the first reference, -2 for the second, and so on.

    Args:
        folder: gets the tokens.
        scratch: gets what is needed until all rows are known.
        name: the stem of the files.
        tokenize: records -> token ids.
        vocabulary_size: token ids are below it.
        keyed: also write the key of each text (see `keys_of`).
    """

    def __init__(
        self,
        folder: Path,
        scratch: Path,
        name: str,
        tokenize: Callable[[Sequence[Text]], list[list[int]]],
        vocabulary_size: int,
        *,
        keyed: bool = False,
    ) -> None:
        small = vocabulary_size <= np.iinfo(np.uint16).max + 1
        self._files = ExitStack()
        self._tokens = self._files.enter_context(
            closing(RaggedWriter(folder, name, np.uint16 if small else np.int32))
        )
        self._keys = ArrayWriter(folder / f"{name}-keys.npy", np.int64) if keyed else None
        if self._keys is not None:
            self._files.enter_context(closing(self._keys))
        self._scratch, self._name = scratch, name
        self._tokenize: Callable[[Sequence[Text]], list[list[int]]] = tokenize
        self._digests = self._files.enter_context(
            closing(ArrayWriter(scratch / f"{name}-digests.npy", DIGEST))
        )
        self._ids = self._files.enter_context(
            closing(RaggedWriter(scratch, f"{name}-ids", np.uint8))
        )
        self._texts: list[Text] = []
        self._referred: list[str] = []

    @property
    def count(self) -> int:
        """Texts taken, which is the next text's row."""
        return self._tokens.count + len(self._texts)

    @property
    def tokens(self) -> int:
        """Tokens written."""
        return self._tokens.values

    @property
    def references(self) -> int:
        """References noted."""
        return self._digests.count + len(self._referred)

    def add(self, text: Text) -> int:
        """Takes a text; returns its row."""
        self._texts.append(text)
        if len(self._texts) == BLOCK:
            self._flush_texts()
        return self.count - 1

    def refer(self, identifier: str) -> int:
        """Notes that a text is known by its id; returns its slot."""
        self._referred.append(identifier)
        if len(self._referred) == BLOCK:
            self._flush_references()
        return -self.references

    def _flush_texts(self) -> None:
        self._tokens.extend(self._tokenize(self._texts))
        if self._keys is not None:
            self._keys.append(keys_of(self._texts))
        self._texts.clear()

    def _flush_references(self) -> None:
        self._digests.append(_digests(self._referred))
        self._ids.extend([identifier.encode() for identifier in self._referred])
        self._referred.clear()

    def find(self, texts: Iterable[Text], source: str, progress: Progress) -> None:
        """Tokenises the texts that are referred to, and no others; then no more can be added.

        Args:
            texts: the corpus, or the queries; read until all are found.
            source: names them in errors.
            progress: told of every text that comes by.

        Raises:
            InputError: an id that is referred to comes twice.
        """
        self._flush_references()
        self._digests.close()
        self._ids.close()
        self._wanted = sort_unique(
            self._scratch / f"{self._name}-digests.npy", self._scratch / f"{self._name}-wanted.npy"
        )
        # one more than wanted, as nothing cannot be mapped; the last row stays -1
        self._rows: Rows = npy.open_memmap(
            self._scratch / f"{self._name}-rows.npy", "w+", np.int64, (len(self._wanted) + 1,)
        )
        self._rows[:] = -1
        missing = len(self._wanted)
        stream = iter(texts)
        while missing and (block := list(islice(stream, BLOCK))):
            progress.advance(len(block))
            places = self._places(_digests([text[0] for text in block]))
            for number in np.flatnonzero(places < len(self._wanted)):
                text, place = block[number], places[number]
                if self._rows[place] >= 0:
                    raise InputError(source, None, f"the id {text[0]} twice", "each id once")
                self._rows[place] = self.add(text)
                missing -= 1
        self._flush_texts()
        self._tokens.close()
        self._reader = self._files.enter_context(
            closing(ArrayReader(self._scratch / f"{self._name}-digests.npy"))
        )

    def _places(self, digests: Digests) -> Rows:
        """Where digests stand among the wanted; past the end those that nobody refers to."""
        places = np.searchsorted(self._wanted, digests)
        found = np.zeros(len(digests), dtype=bool)
        inside = places < len(self._wanted)
        found[inside] = self._wanted[places[inside]] == digests[inside]
        return np.where(found, places, len(self._wanted))

    def rows_of(self, slots: Rows) -> Rows:
        """The rows of slots, -1 where the text is nowhere; asked in the order of the slots."""
        rows = slots.copy()
        by_id = slots < 0
        digests = self._reader.read(int(by_id.sum()))
        rows[by_id] = self._rows[self._places(digests)]
        return rows

    def id_of(self, slot: int) -> str:
        """The id behind a negative slot."""
        return bytes(Ragged(self._scratch, f"{self._name}-ids")[-1 - slot]).decode()

    def close(self) -> None:
        """Lets all files go."""
        self._files.close()


def _digests(identifiers: Sequence[str]) -> Digests:
    return np.frombuffer(b"".join(map(digest, identifiers)), DIGEST)
