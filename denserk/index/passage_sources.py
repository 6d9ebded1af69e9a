"""The passages of an open index: the corpora that it was made from, and passages by their ids."""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from denserk.config.formats import DETECTED, CorpusSettings
from denserk.errors import UsageError
from denserk.index.opening import OpenedIndex
from denserk.io.corpus import PassageTexts, fitting_settings, read_passages
from denserk.io.files import STREAM
from denserk.io.manifest import CorpusSource, Manifest, corpora_of
from denserk.records import Passage


def corpora_of_index(opened: OpenedIndex, corpus: str | None) -> dict[str, CorpusSettings]:
    """Return the corpora that an index was made from, by name, or --corpus in their place.

    --corpus is read with the settings of the index's corpus if they fit, as the file may only have
    moved. A UsageError says which corpus is not there.
    """
    sources: list[CorpusSource] = []
    for manifest in opened.manifests:
        sources += corpora_of(manifest)
    settings = {source.name: source.settings for source in sources}
    if corpus is not None:
        recorded_settings = next(iter(settings.values()), DETECTED)
        return {corpus: fitting_settings(corpus, recorded_settings)}
    hint = "give --corpus and the file of the passages"
    for source in sources:
        if source.name == STREAM:
            raise UsageError(f"{opened.name} was made from standard input, which is gone", hint)
        if source.absent is not None:
            raise UsageError(f"{opened.name}: {source.absent}", hint)
    if not sources:
        problems = [f"{opened.name} names no corpus"]
        for manifest in opened.manifests:
            problems += _absent_vectors(manifest)
        raise UsageError("; ".join(problems), hint)
    return settings


def passages_of(corpora: Mapping[str, CorpusSettings]) -> Iterator[Passage]:
    """Yield the passages of corpora by name."""
    for name, settings in corpora.items():
        yield from read_passages(name, settings)


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


def _absent_vectors(manifest: Manifest | None) -> list[str]:
    """Return messages of the folders of vectors that are gone: they would name the corpus."""
    if manifest is None:
        return []
    folders = manifest.made_from.get("vectors", ())
    return [manifest.absent[folder] for folder in folders if folder in manifest.absent]
