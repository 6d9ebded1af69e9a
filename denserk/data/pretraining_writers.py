"""The files of prepared text, written an item at a time; one writer for each layout."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from denserk.data.masking import Pieces
from denserk.data.token_store import ArrayWriter, RaggedWriter, open_array
from denserk.data.word_counts import WordCounter
from denserk.formats.id_ledger import digest

DIGEST = np.dtype("S16")
UNTITLED = ("", "-")
"""Titles that say nothing; the second is MS MARCO's with titles."""
TokenIds = list[int]


class CutDocument(NamedTuple):
    """A document as its texts' token ids; `expansion` is its joined queries and continuation."""

    docid: str
    title: str
    texts: list[TokenIds]
    expansion: tuple[TokenIds, TokenIds] | None = None


class BlockWriter:
    """Every text is an item.

    Args:
        folder: gets the files.
        dtype: of token ids.
    """

    def __init__(self, folder: Path, dtype: DTypeLike) -> None:
        self.folder = folder
        self.files = ExitStack()
        self.texts = self.files.enter_context(closing(RaggedWriter(folder, "texts", dtype)))

    def write(self, documents: Sequence[CutDocument]) -> None:
        """Adds documents, none of them without texts."""
        texts = [text for document in documents for text in document.texts]
        lengths = np.fromiter(map(len, texts), np.int64)
        ids = np.fromiter(chain.from_iterable(texts), np.int64, int(lengths.sum()))
        self.texts.extend_flat(ids, lengths)
        self.extra(documents, ids, lengths)

    def extra(
        self, documents: Sequence[CutDocument], ids: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> None:
        """What a layout keeps beside the texts."""

    def finish(self) -> dict[str, int]:
        """Makes the files readable; returns what there is to count."""
        counts = {"texts": self.texts.count, "tokens": self.texts.values}
        self.files.close()
        return counts


class SpanWriter(BlockWriter):
    """Every document is an item; it has two texts or more."""

    def __init__(self, folder: Path, dtype: DTypeLike) -> None:
        super().__init__(folder, dtype)
        ends = ArrayWriter(folder / "document-ends.npy", np.int64)
        self.ends = self.files.enter_context(closing(ends))
        self.ends.append([0])

    def extra(
        self, documents: Sequence[CutDocument], ids: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> None:
        """Where documents end."""
        counts = np.array([len(document.texts) for document in documents], dtype=np.int64)
        self.ends.append(self.texts.count - counts.sum() + np.cumsum(counts))


class PassageWriter(BlockWriter):
    """Every text is a passage, with its words, its neighbour and its expansion.

    Two passages in a row belong to one document if they were cut from one, if they have the same
    title, or if their ids are the same up to their last "#".
    """

    def __init__(
        self, folder: Path, dtype: DTypeLike, pieces: Pieces, names: Sequence[str]
    ) -> None:
        super().__init__(folder, dtype)
        self.words = self.files.enter_context(closing(WordCounter(folder, pieces, names)))
        self.queries = self.files.enter_context(closing(RaggedWriter(folder, "queries", dtype)))
        self.next = self.files.enter_context(closing(RaggedWriter(folder, "next", dtype)))
        self._scratch = folder / "digests.npy"
        self.digests = self.files.enter_context(closing(ArrayWriter(self._scratch, DIGEST)))
        self.continues = bytearray()
        self.own_rows: list[NDArray[np.int64]] = []
        self.expanded = bytearray()
        self.last = ("", "")

    def extra(
        self, documents: Sequence[CutDocument], ids: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> None:
        """Counts words, notes who continues whom, and whose expansion came with it."""
        self.words.add(ids, lengths)
        rows, digests = [], []
        for document in documents:
            same = self._same_document(document)
            for number in range(len(document.texts)):
                self.continues.append(same or number > 0)
                several = len(document.texts) > 1
                docid = f"{document.docid}#{number}" if several else document.docid
                digests.append(digest(docid))
                rows.append(-1 if document.expansion is None else self.queries.count)
                if document.expansion is not None:
                    self.expand(*document.expansion, b"")
        self.own_rows.append(np.array(rows, dtype=np.int64))
        self.digests.append(np.frombuffer(b"".join(digests), DIGEST))

    def _same_document(self, document: CutDocument) -> bool:
        stem = document.docid.rpartition("#")[0]
        before, self.last = self.last, (document.title, stem)
        titled = document.title not in UNTITLED and document.title == before[0]
        return titled or (stem != "" and stem == before[1])

    def expand(self, queries: TokenIds, continuation: TokenIds, key: bytes) -> None:
        """Adds an expansion; its passage is known by the digest `key`, or has come just now."""
        self.queries.extend([queries])
        self.next.extend([continuation])
        self.expanded += key.ljust(DIGEST.itemsize, b"\0")

    def finish(self) -> dict[str, int]:
        """Settles who is whose neighbour, and whose expansion is whose."""
        counts = super().finish()
        neighbours = _neighbours(np.frombuffer(bytes(self.continues), dtype=np.uint8))
        rows = self._expansion_rows()
        for name, values in (("neighbours", neighbours), ("expansion-rows", rows)):
            with closing(ArrayWriter(self.folder / f"{name}.npy", values.dtype)) as writer:
                writer.append(values)
        self._scratch.unlink()
        return counts | {
            "with_neighbour": int((neighbours != 0).sum()),
            "expanded": int((rows >= 0).sum()),
            "expansions": len(self.expanded) // DIGEST.itemsize,
            "words": len(open_array(self.folder / "word-counts.npy")) - 1,
        }

    def _expansion_rows(self) -> NDArray[np.int64]:
        rows = np.concatenate([np.zeros(0, np.int64), *self.own_rows])
        keys = np.frombuffer(bytes(self.expanded), DIGEST)
        order = np.argsort(keys, kind="stable")
        order = order[keys[order] != b""]
        ordered = keys[order]
        if not len(ordered):
            return rows
        wanted = open_array(self._scratch)
        places = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
        found = (ordered[places] == wanted) & (rows < 0)
        rows[found] = order[places[found]]
        return rows


def _neighbours(continues: NDArray[Any]) -> NDArray[np.int8]:
    """The next passage of a document is a passage's neighbour; the last one's is the one before.

    >>> _neighbours(np.array([0, 1, 1, 0, 0, 1])).tolist()
    [1, 1, -1, 0, 1, -1]
    """
    followed = np.append(continues[1:], 0).astype(bool)
    return np.where(followed, 1, np.where(continues.astype(bool), -1, 0)).astype(np.int8)
