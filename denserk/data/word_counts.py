"""How often words occur, and in how many texts: counted exactly while texts are tokenised.

A word is its pieces joined with their marks kept, "fran##ce". Words are numbered from 1 in the
order in which a block of texts brings them; 0 stands for no word, which special tokens are.

word-numbers.npy                the word that each piece of the texts belongs to
words.npy                       the words in UTF-8, by number (0 is empty)
word-counts.npy                 occurrences of each
word-texts.npy                  texts with it
"""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.data.masking import Pieces, word_starts
from denserk.data.token_store import ArrayWriter, Ragged, RaggedWriter, open_array

Numbers = NDArray[np.int64]


class WordCounter:
    """Numbers and counts the words of texts.

    Args:
        folder: gets the files.
        pieces: of the vocabulary.
        names: the vocabulary's entries, by id.
    """

    def __init__(self, folder: Path, pieces: Pieces, names: Sequence[str]) -> None:
        self._folder, self._pieces, self._names = folder, pieces, names
        self._numbers = ArrayWriter(folder / "word-numbers.npy", np.uint32)
        self._single = np.zeros(len(pieces.special), dtype=np.int64)
        self._several: dict[bytes, int] = {}
        self._words: list[str] = [""]
        self._counts = np.zeros(1024, dtype=np.int64)
        self._texts = np.zeros(1024, dtype=np.int64)

    def add(self, ids: Numbers, lengths: Numbers) -> None:
        """Counts texts that stand one after another.

        Args:
            ids: (N,) pieces.
            lengths: (B,) pieces of each text, none of them 0.
        """
        first = np.zeros(len(ids), dtype=bool)
        first[np.cumsum(lengths)[:-1]] = True
        first[:1] = True
        starts = np.flatnonzero(word_starts(ids, first, self._pieces))
        inside = ~self._pieces.special[ids]
        word = np.searchsorted(starts, np.flatnonzero(inside), side="right") - 1
        sizes = np.bincount(word, minlength=len(starts))
        numbers = self._number(ids, starts, sizes)
        own = np.zeros(len(ids), dtype=np.uint32)
        own[inside] = numbers[word]
        self._numbers.append(own)
        self._count(numbers, np.repeat(np.arange(len(lengths)), lengths)[starts])

    def _number(self, ids: Numbers, starts: Numbers, sizes: Numbers) -> Numbers:
        """The number of each word, new ones included."""
        alone = sizes == 1
        pieces = ids[starts[alone]]
        for piece in np.unique(pieces[self._single[pieces] == 0]).tolist():
            self._single[piece] = self._new([piece])
        numbers = np.zeros(len(starts), dtype=np.int64)
        numbers[alone] = self._single[pieces]
        several = np.flatnonzero(~alone)
        for place, start, size in zip(
            several.tolist(), starts[several].tolist(), sizes[several].tolist(), strict=True
        ):
            word = ids[start : start + size]
            key = word.tobytes()
            number = self._several.get(key)
            if number is None:
                number = self._several[key] = self._new(word.tolist())
            numbers[place] = number
        return numbers

    def _new(self, pieces: list[int]) -> int:
        self._words.append("".join(self._names[piece] for piece in pieces))
        return len(self._words) - 1

    def _count(self, numbers: Numbers, texts: Numbers) -> None:
        size = len(self._words)
        if size > len(self._counts):
            room = np.zeros(size, dtype=np.int64)
            self._counts, self._texts = (
                np.concatenate([counts, room]) for counts in (self._counts, self._texts)
            )
        self._counts[:size] += np.bincount(numbers, minlength=size)
        once = np.unique(texts * size + numbers) % size
        self._texts[:size] += np.bincount(once, minlength=size)

    def close(self) -> None:
        """Writes the tables."""
        size = len(self._words)
        with ExitStack() as files:
            files.enter_context(closing(self._numbers))
            words = files.enter_context(closing(RaggedWriter(self._folder, "words", np.uint8)))
            words.extend([word.encode() for word in self._words])
            for name, counts in (("word-counts", self._counts), ("word-texts", self._texts)):
                writer = ArrayWriter(self._folder / f"{name}.npy", np.int64)
                files.enter_context(closing(writer)).append(counts[:size])


class WordCounts:
    """The tables that a `WordCounter` wrote, memory-mapped.

    Args:
        folder: where they are.

    Attributes:
        numbers: (N,) the word that each piece of the texts belongs to.
        counts: (W,) occurrences of each word.
        texts: (W,) texts with it.
    """

    def __init__(self, folder: Path) -> None:
        self.numbers: NDArray[Any] = open_array(folder / "word-numbers.npy")
        self.counts: Numbers = open_array(folder / "word-counts.npy")
        self.texts: Numbers = open_array(folder / "word-texts.npy")
        self._words = Ragged(folder, "words")

    def __len__(self) -> int:
        return len(self.counts)

    def word(self, number: int) -> str:
        """A word, its pieces' marks kept."""
        return self._words[number].tobytes().decode("utf-8")
