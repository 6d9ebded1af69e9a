"""The passages of served indexes, copied once for all indexes of the same corpora."""

import weakref
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from denserk.config.formats import CorpusSettings
from denserk.index.passage_sources import Passages
from denserk.io.versions import Versions


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
