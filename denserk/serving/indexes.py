"""An index that is served: open for search, and opened again when its folder is rebuilt."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from denserk.config.encoding import NO_SERVER, ComputeSettings, ServerSettings
from denserk.config.retrieval import SearchSettings
from denserk.config.serving import NamedIndex
from denserk.errors import BeingWrittenError
from denserk.index.bm25 import query_texts, recorded_bm25
from denserk.index.opening import OpenedIndex, open_index
from denserk.index.passage_sources import Passages, corpora_of_index
from denserk.index.query_encoder import QueryEncoder, load_query_encoder
from denserk.index.ranking import Hits
from denserk.records import Query
from denserk.serving.passages import SharedPassages

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class QueryModel:
    """What encodes queries: options of `denserk search`."""

    name: str | None  # None: the model of the index
    overrides: tuple[Mapping[str, Any], Mapping[str, Any]]  # of representation and texts
    compute: ComputeSettings
    server: ServerSettings = NO_SERVER  # of a model behind a URL


@dataclass(frozen=True)
class OpenIndex:
    """One version of an index, with its passages and the encoder of its queries."""

    opened: OpenedIndex
    encoder: QueryEncoder | None  # None for BM25
    passages: Passages

    def search(self, queries: Sequence[str], hits: int) -> list[Hits]:
        """Return the hits of each query text, the best first."""
        names = [str(number) for number in range(len(queries))]
        records = [Query(name, text) for name, text in zip(names, queries, strict=True)]
        encode = query_texts if self.encoder is None else self.encoder.encode_queries
        searcher = self.opened.searcher(SearchSettings(hits=hits))
        return [hits for _, hits in searcher.search(names, encode(records))]

    def __len__(self) -> int:
        return len(self.opened.index) // self.opened.vectors_per_passage

    def description(self) -> dict[str, Any]:
        """Return what clients may know of the index, as plain JSON."""
        description: dict[str, Any] = {"passages": len(self)}
        if self.opened.bm25 is not None:
            bm25 = recorded_bm25(self.opened.manifests[0])
            return {"type": "bm25", **description, "k1": bm25.k1, "b": bm25.b}
        description["dimension"] = self.opened.index.dimension
        description["model"] = None if self.encoder is None else self.encoder.name
        return {"type": "vectors", **description}


class ServedIndex:
    """An index by its name in requests; `current` is the version that answers.

    `open` may take long, and runs in any thread. `replace` exchanges the version, and is called
    where searches are, between two of them.
    """

    def __init__(
        self,
        index: NamedIndex,
        model: QueryModel,
        corpus: str | None,
        shared_passages: SharedPassages,
    ) -> None:
        self.name = index.name
        self.path = index.path
        self.reloads = 0
        self.reload_error: str | None = None  # why the version that is there now is not served
        self._model = model
        self._corpus = corpus
        self._shared_passages = shared_passages
        self.current = self.open()

    def open(self) -> OpenIndex:
        """Open the version that is there now, and search once, which loads what is loaded late."""
        compute = self._model.compute
        opened = open_index([self.path], SearchSettings(), compute)
        corpora = corpora_of_index(opened, self._corpus)
        encoder = None
        if opened.bm25 is None:
            encoder = load_query_encoder(
                opened,
                self._model.name,
                self._model.overrides,
                compute,
                server=self._model.server,
            )
        index = OpenIndex(opened, encoder, self._shared_passages.of(corpora))
        index.search(["first query"], 1)
        return index

    def was_rebuilt(self) -> bool:
        """Return whether another version of the folder is there than the one that answers."""
        for version in self.current.opened.versions:
            try:
                version.require_unchanged()
            except BeingWrittenError:
                return True
        return False

    def replace(self, index: OpenIndex) -> None:
        """Answer from another version from now on."""
        self.current = index
        self.reloads += 1
        self.reload_error = None
        logger.info(f"{self.path} was rebuilt: {self.name} has {len(index):,} passages now")
