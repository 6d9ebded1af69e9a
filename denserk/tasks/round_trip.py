"""Round trips: whether generated queries find their passages in an index.

Consistency filtering as in Promptagator (Dai et al., 2023): a query that does not find the passage
that it was made of is vague, or wrong.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from denserk.config.encoding import ComputeSettings, is_served
from denserk.config.retrieval import SearchSettings
from denserk.errors import UsageError
from denserk.index.bm25 import query_texts
from denserk.index.opening import open_index
from denserk.index.query_encoder import QueryEncoder, load_query_encoder
from denserk.records import Query


class RoundTrip:
    """An open index in which queries are searched for."""

    def __init__(self, index: str, hits: int, compute: ComputeSettings) -> None:
        """Open an index of BM25 or of vectors, and load the encoder of the latter's queries."""
        if Path(index).is_file():
            message = f"--round-trip {index} is a file; expected the folder of an index"
            raise UsageError(message, "denserk index --type bm25 --corpus FILE --output FOLDER")
        settings = SearchSettings(hits=hits)
        self._name = index
        self._opened = open_index([index], settings, compute)
        self._searcher = self._opened.searcher(settings)
        self._encoder: QueryEncoder | None = None
        if self._opened.bm25 is None:
            # --device and --dtype are of the model that generates, too
            is_elsewhere = is_served((self._opened.model or {}).get("name"))
            query_compute = ComputeSettings() if is_elsewhere else compute
            self._encoder = load_query_encoder(self._opened, compute=query_compute)

    def find(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Return for each pair, of a query and a passage's id, whether it finds the passage."""
        if not pairs:
            return []
        queries = []
        for number, (text, docid) in enumerate(pairs):
            queries.append(Query(f"{docid}-{number}", text))
        qids = [query.qid for query in queries]
        results = self._searcher.search(qids, self._encode(queries))
        is_found = []
        for (_, docid), (_, hits) in zip(pairs, results, strict=True):
            hit_docids = {hit_docid for hit_docid, _ in hits}
            is_found.append(docid in hit_docids)
        return is_found

    def description(self) -> dict[str, Any]:
        """Return what a manifest records of the index."""
        checksums = [record["sha256"] for record in self._opened.descriptions()]
        return {"name": self._name, "sha256": checksums}

    def _encode(self, queries: Sequence[Query]) -> NDArray[Any]:
        """Return the vectors of queries, or their texts for a BM25 index."""
        if self._encoder is None:
            return query_texts(queries)
        return self._encoder.encode_queries(queries)
