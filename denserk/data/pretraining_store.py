"""Prepared text to pre-train on: token ids without special tokens around them, memory-mapped.

texts.npy                       blocks, spans or passages, one after another (see `token_store`)
document-ends.npy               spans: the first and past-the-last span of each document
neighbours.npy                  passages: 1, -1 or 0: the next, the one before, or no neighbour
queries.npy, next.npy           passages: expansions; queries joined, [SEP] behind each
expansion-rows.npy              passages: the row of each one's expansion, -1 where it has none
word-*.npy, words.npy           passages: see `word_counts`
manifest.json                   what it was made from, and what was left out
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.data.token_store import Ragged, open_array
from denserk.data.word_counts import WordCounts
from denserk.errors import MismatchError
from denserk.formats.manifest import Kind, read_manifest
from denserk.settings.pretraining import PretrainingObjective


class Layout(StrEnum):
    """What an item of prepared text is."""

    BLOCKS = "blocks"
    """Sentences of a document, packed: mlm, condenser, retromae."""
    SPANS = "spans"
    """A document of two spans or more: cocondenser."""
    PASSAGES = "passages"
    """A passage with its neighbour, expansion and words: master."""

    @classmethod
    def of(cls, objective: PretrainingObjective) -> "Layout":
        """The layout that an objective reads."""
        special = {
            PretrainingObjective.COCONDENSER: cls.SPANS,
            PretrainingObjective.MASTER: cls.PASSAGES,
        }
        return special.get(objective, cls.BLOCKS)


class PretrainingStore:
    """Prepared text, opened; it costs no memory beyond the system's page cache.

    An item is a block, a document or a passage, by the layout; its number is its place in the
    files.

    Args:
        folder: what `pretraining_preparation.prepare` wrote.

    Attributes:
        layout: what an item is.
        contents: the manifest's counts.
        texts: token ids by row.
        document_ends: (N + 1,) of spans: document i has the rows ends[i] .. ends[i + 1] - 1.
        words: of passages.
        neighbours: (N,) of passages.
        queries, next: of passages, by the row of the expansion.
        expansion_rows: (N,) of passages.

    Raises:
        UsageError: there is no such folder.
        MismatchError: it holds something else.
    """

    document_ends: NDArray[np.int64]
    words: WordCounts
    neighbours: NDArray[np.int8]
    queries: Ragged
    next: Ragged
    expansion_rows: NDArray[np.int64]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        manifest = read_manifest(folder, Kind.PRETRAINING)
        self.contents: Mapping[str, Any] = manifest.contents
        self.layout = Layout(manifest.settings["layout"])
        self._tokenizer = str(manifest.settings["tokenizer"])
        self.texts = Ragged(folder, "texts")
        if self.layout is Layout.SPANS:
            self.document_ends = open_array(folder / "document-ends.npy")
        elif self.layout is Layout.PASSAGES:
            self.words = WordCounts(folder)
            self.neighbours = open_array(folder / "neighbours.npy")
            self.queries, self.next = Ragged(folder, "queries"), Ragged(folder, "next")
            self.expansion_rows = open_array(folder / "expansion-rows.npy")

    def __reduce__(self) -> tuple[type["PretrainingStore"], tuple[Path]]:
        return PretrainingStore, (self.folder,)  # another process maps the files itself

    def __len__(self) -> int:
        return len(self.texts) if self.layout is not Layout.SPANS else len(self.document_ends) - 1

    @property
    def items(self) -> str:
        """What the items are called."""
        return "documents" if self.layout is Layout.SPANS else self.layout.value

    def refuse_other(self, fingerprint: str) -> None:
        """Refuses a tokenizer that did not make this text's ids.

        Raises:
            MismatchError: it is another one.
        """
        if fingerprint != self._tokenizer:
            raise MismatchError(
                f"{self.folder} was tokenised by another tokenizer than the model's",
                "prepare the text again, with the model's own tokenizer",
            )
