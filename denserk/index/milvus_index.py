"""Milvus as an engine: a local file or a cluster, searched through one client.

Milvus returns at most 16,384 hits for a query. Passages with m vectors each are grouped here: the
best m * K rows hold the best vector of each of the K best passages, so that grouping loses nothing
as long as m * K stays within that limit.
"""

from collections.abc import Sequence

import numpy as np

from denserk.errors import UsageError
from denserk.formats.manifest import Manifest
from denserk.index.index_folder import PART
from denserk.index.milvus_collection import LIMIT, PASSAGE, Collection, finished_manifest
from denserk.index.milvus_connection import Connection
from denserk.index.vector_index import Rows, Scores, Vectors
from denserk.settings.milvus import MilvusSearchSettings, Value, parameters
from denserk.settings.retrieval import SearchSettings

EXHAUSTIVE = ("FLAT", "GPU_BRUTE_FORCE", "BRUTE_FORCE")
"""Kinds of index that compare every row."""
BREADTH = 64
"""The least breadth of a search in a graph."""


class MilvusIds(Sequence[str]):
    """The ids of a collection's rows: those of the last search are at hand, others are asked for.

    Args:
        collection: holds them.
        count: how many rows there are.
        size: vectors of a passage; above 1, an id ends in "#" and the number of the vector.
    """

    def __init__(self, collection: Collection, count: int, size: int) -> None:
        self._collection, self._count, self._size = collection, count, size
        self._known: dict[int, str] = {}

    def know(self, passages: dict[int, str]) -> None:
        """Replaces what is at hand: row -> passage."""
        self._known = passages

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        if not 0 <= row < self._count:
            raise IndexError(row)
        if row not in self._known:
            self._known |= self._collection.passages_of([row])
        docid = self._known[row]
        return docid if self._size == 1 else f"{docid}{PART}{row % self._size}"


class MilvusIndex:
    """An open collection.

    Args:
        settings: the collection, and Milvus's own parameters of the search.
        rules: depth and breadth.

    Raises:
        UsageError: there is no such collection, or Milvus cannot search that deep.
        MismatchError: it is unfinished, or denserk did not make it.
        ServerError: the server does not answer, or refuses.
    """

    def __init__(
        self,
        settings: MilvusSearchSettings,
        rules: SearchSettings,
    ) -> None:
        self._connection = Connection(settings)
        try:
            self._collection = Collection(self._connection, settings)
            self.manifest: Manifest = finished_manifest(self._collection)
            self._size = int(self.manifest.contents["vectors_per_passage"])
            _refuse_depth(rules.hits, self._size)
            self._kind = str(self.manifest.settings["milvus_index"])
            self._given = _breadths(self._kind, self.manifest, rules)
            self._given |= parameters(settings.milvus_params)
            self._collection.load()
            self._count = self._collection.count()
        except BaseException:
            self._connection.close()
            raise
        self.ids = MilvusIds(self._collection, self._count, self._size)
        self.place = settings.place

    def __len__(self) -> int:
        return self._count

    @property
    def dimension(self) -> int:
        """D, of its vectors and of any query."""
        return int(self.manifest.contents["dimension"])

    @property
    def is_exhaustive(self) -> bool:
        """Whether every row is compared."""
        return self._kind in EXHAUSTIVE

    def search(self, queries: Vectors, depth: int) -> tuple[Scores, Rows]:
        """The `depth` best rows for each query, 16,384 at most; fewer are padded."""
        wanted = min(depth, LIMIT, max(self._count, 1))
        scores: Scores = np.full((len(queries), depth), -np.inf, np.float32)
        rows: Rows = np.full((len(queries), depth), -1, np.int64)
        known: dict[int, str] = {}
        asked = {"metric_type": "IP", "params": self._parameters(wanted)}
        for query, hits in enumerate(self._collection.search(queries, wanted, asked)):
            order = np.lexsort((hits.ids, -np.array(hits.distances, np.float32)))
            scores[query, : len(hits)] = np.array(hits.distances, np.float32)[order]
            rows[query, : len(hits)] = np.array(hits.ids, np.int64)[order]
            known |= {
                int(row): hit["entity"][PASSAGE] for row, hit in zip(hits.ids, hits, strict=True)
            }
        self.ids.know(known)
        return scores, rows

    def _parameters(self, depth: int) -> dict[str, Value]:
        """The search's parameters, with a breadth that reaches the depth."""
        given = dict(self._given)
        for name in ("ef", "search_list"):
            if name in given and isinstance(given[name], int):
                given[name] = max(int(given[name]), depth)
        return given

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()


def _refuse_depth(hits: int, size: int) -> None:
    if hits * size > LIMIT:
        several = f" of {size} vectors each" if size > 1 else ""
        raise UsageError(
            f"--hits {hits}{several}: Milvus returns at most {LIMIT:,} rows for a query",
            f"--hits {LIMIT // size} or less, or a faiss index (denserk index), of any depth",
        )


def _breadths(kind: str, manifest: Manifest, rules: SearchSettings) -> dict[str, Value]:
    """How broadly an approximate index is searched, where Milvus's own names do not say."""
    given: dict[str, Value] = {}
    if kind.startswith("HNSW"):
        given["ef"] = rules.ef_search or BREADTH
    elif kind == "DISKANN":
        given["search_list"] = rules.ef_search or BREADTH
    elif rules.ef_search is not None:
        raise UsageError(f"--ef-search {rules.ef_search}: an index {kind} is no graph")
    if rules.k_factor is not None:
        raise UsageError(f"--k-factor {rules.k_factor}: Milvus refines by its --set milvus-params")
    made = manifest.settings.get("milvus_params") or {}
    if "IVF" in kind or kind == "SCANN":
        lists = int(made.get("nlist", 128))
        given["nprobe"] = rules.nprobe or max(1, lists // 16)
    elif rules.nprobe is not None:
        raise UsageError(f"--nprobe {rules.nprobe}: an index {kind} has no lists")
    return given
