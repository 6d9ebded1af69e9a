"""The passages of served indexes: copied from their corpora to the disk, and found by id."""

import weakref
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from denserk.config.formats import CorpusSettings
from denserk.index.passage_sources import passages_of
from denserk.io.corpus import PassageTexts
from denserk.io.versions import Versions
from denserk.records import Passage


class Passages:
    """The passages of corpora, by id; their temporary file goes together with this object."""

    def __init__(
        self, corpora: Mapping[str, CorpusSettings], path: Path, fields: Sequence[str] = ()
    ) -> None:
        texts = PassageTexts(path, fields)
        weakref.finalize(self, texts.close)
        path.unlink()  # the open file stays until it is closed
        texts.find(passages_of(corpora), ", ".join(corpora), everything=True)
        self._texts = texts

    def get(self, docids: Sequence[str]) -> list[Passage | None]:
        """Return passages by their ids; None where the corpora have none."""
        return self._texts.get(docids)


class SharedPassages:
    """Passages of corpora, read once for all indexes that were made from the same ones.

    They have title and text, and the further `fields`.
    """

    def __init__(self, folder: Path, fields: Sequence[str] = ()) -> None:
        self._folder = folder
        self._fields = fields
        self._numbers = count()
        self._opened: weakref.WeakValueDictionary[object, Passages] = weakref.WeakValueDictionary()

    def of(self, corpora: Mapping[str, CorpusSettings]) -> Passages:
        """Return the passages of corpora by name, as they are now."""
        versions = Versions.of(corpora)
        stamps = [tuple(version.files.items()) for version in versions]
        key = (tuple(corpora.items()), tuple(stamps))
        passages = self._opened.get(key)
        if passages is None:
            path = self._folder / f"passages-{next(self._numbers)}"
            passages = Passages(corpora, path, self._fields)
            self._opened[key] = passages
        return passages
