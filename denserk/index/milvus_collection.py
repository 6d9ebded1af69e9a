"""A collection of Milvus that denserk made: its fields, its manifest, what is done with it.

    row       INT64, the primary key: the number of the vector, in the order of the input
    passage   VARCHAR, the passage's id
    vector    FLOAT_VECTOR

The manifest stands in the collection's properties, with the number of rows that are surely there.
"""

import time
from collections.abc import Sequence
from typing import Any

from denserk.errors import MismatchError, ServerError, UsageError
from denserk.formats.manifest import Kind, Manifest, decoded, encoded
from denserk.index.milvus_connection import Connection
from denserk.index.vector_index import Vectors
from denserk.settings.milvus import CollectionSettings, MilvusIndexSettings, parameters

ROW, PASSAGE, VECTOR = "row", "passage", "vector"
MANIFEST = "denserk.manifest"
ROWS = "denserk.rows"
ID_BYTES = 1024
"""Bytes of UTF-8 that a passage's id may have."""
LIMIT = 16_384
"""Hits of a query that Milvus returns at most."""
HITS_AT_ONCE = 400_000
"""Hits of one request: Milvus sends no answer of more than 64 MB by default."""
TRIES = 6
"""How often a request that may be sent twice is sent at most."""
PAUSE = 0.5
"""Seconds between two looks at work that the server does by itself."""
FULL_CONSISTENCY = "Strong"
"""Every read sees every write before it."""


class Collection:
    """A collection, whether it is there or not.

    Args:
        connection: an open one.
        settings: names the collection.
    """

    def __init__(self, connection: Connection, settings: CollectionSettings) -> None:
        self._connection, self._name = connection, settings.name
        self._client = connection.client
        self.place = settings.place

    def _ask(self, what: str, method: str, *args: Any, tries: int = TRIES, **named: Any) -> Any:
        ask = getattr(self._client, method)
        return self._connection.call(
            f"{self.place}: {what}", ask, self._name, *args, tries=tries, **named
        )

    def exists(self) -> bool:
        """Whether there is a collection of that name."""
        return bool(self._ask("cannot be looked up", "has_collection"))

    def drop(self) -> None:
        """Removes it."""
        self._ask("cannot be removed", "drop_collection")

    def create(self, dimension: int, manifest: Manifest, settings: MilvusIndexSettings) -> None:
        """Makes it, empty, with its index.

        Raises:
            ServerError: the server refuses, for example a kind of index that it does not know.
        """
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        types = self._connection.library.DataType
        schema.add_field(ROW, types.INT64, is_primary=True)
        schema.add_field(PASSAGE, types.VARCHAR, max_length=ID_BYTES)
        schema.add_field(VECTOR, types.FLOAT_VECTOR, dim=dimension)
        properties = {MANIFEST: encoded(manifest).decode(), ROWS: "0"}
        self._ask(
            "cannot be made",
            "create_collection",
            tries=1,
            schema=schema,
            properties=properties,
            consistency_level=FULL_CONSISTENCY,
        )
        given: dict[str, Any] = {**parameters(settings.milvus_params)}
        if settings.is_embedded:  # milvus-lite reads them in the older form alone
            given = {"params": given}
        index = self._client.prepare_index_params()
        index.add_index(
            VECTOR,
            index_type=settings.milvus_index,
            index_name=VECTOR,
            metric_type="IP",
            params=given,
        )
        try:
            self._ask(f"no index {settings.milvus_index}", "create_index", index)
            self._ask("cannot be released", "release_collection")  # indexed when it is loaded again
        except ServerError:
            self.drop()
            raise

    def _properties(self) -> dict[str, str]:
        found = self._ask("cannot be described", "describe_collection")
        return dict(found.get("properties") or {})

    def manifest(self) -> Manifest | None:
        """What made it, finished or not; None where that was not denserk.

        Raises:
            InputError: the manifest is broken.
            MismatchError: it is a manifest of something else.
        """
        text = self._properties().get(MANIFEST)
        if text is None:
            return None
        manifest = decoded(text, self.place)
        if manifest.kind is not Kind.INDEX:
            raise MismatchError(f"{self.place} holds {manifest.kind}, not {Kind.INDEX}")
        return manifest

    def rows_there(self) -> int:
        """How many rows are surely there, counted from the first: where a killed load goes on."""
        return int(self._properties().get(ROWS, "0"))

    def keep_manifest(self, manifest: Manifest) -> None:
        """Replaces the manifest."""
        self._keep({MANIFEST: encoded(manifest).decode()})

    def keep_rows(self, rows: int) -> None:
        """Remembers that the first `rows` rows are there."""
        self._keep({ROWS: str(rows)})

    def _keep(self, properties: dict[str, str]) -> None:
        self._ask("its manifest cannot be written", "alter_collection_properties", properties)

    def write(self, first: int, ids: Sequence[str], vectors: Vectors) -> None:
        """Writes (n, D) vectors as rows `first`, `first` + 1, ...; a row that is there is replaced.

        Args:
            first: the number of the first.
            ids: n passage ids.
            vectors: (n, D) float32.
        """
        rows = [
            {ROW: first + place, PASSAGE: docid, VECTOR: vector}
            for place, (docid, vector) in enumerate(zip(ids, vectors, strict=True))
        ]
        self._ask("passages cannot be written", "upsert", rows)

    def settle(self) -> None:
        """Has the server seal what was written, finish the index, and take it into memory."""
        self._ask("cannot be sealed", "flush")
        while not self._is_indexed():
            time.sleep(PAUSE)
        self.load()

    def _is_indexed(self) -> bool:
        index = self._ask("its index cannot be looked at", "describe_index", VECTOR) or {}
        if index.get("state") == "Failed":
            raise ServerError(
                f"{self.place}: the index failed: {index.get('index_state_fail_reason')}"
            )
        return int(index.get("pending_index_rows") or 0) == 0

    def load(self) -> None:
        """Has the server take it into memory, where it is searched and counted."""
        self._ask("cannot be loaded", "load_collection", _async=True)
        while True:
            found = self._ask("cannot be loaded", "get_load_state")
            state = getattr(found["state"], "name", found["state"])
            if state == "Loaded":
                return
            if state != "Loading":
                raise ServerError(f"{self.place} cannot be loaded: it is {state}")
            time.sleep(PAUSE)

    def count(self) -> int:
        """How many rows it holds, once it is loaded."""
        found = self._ask(
            "cannot be counted",
            "query",
            filter="",
            output_fields=["count(*)"],
            consistency_level=FULL_CONSISTENCY,
        )
        return int(found[0]["count(*)"])

    def search(self, queries: Vectors, depth: int, search_params: dict[str, Any]) -> list[Any]:
        """The hits of each of (B, D) queries, each hit with row, score and passage."""
        found: list[Any] = []
        step = max(1, HITS_AT_ONCE // depth)
        for first in range(0, len(queries), step):
            found += self._ask(
                "cannot be searched",
                "search",
                data=list(queries[first : first + step]),
                anns_field=VECTOR,
                limit=depth,
                output_fields=[PASSAGE],
                search_params=search_params,
            )
        return found

    def passages_of(self, rows: Sequence[int]) -> dict[int, str]:
        """The passage ids of some rows."""
        found = self._ask("cannot be read", "get", ids=list(rows), output_fields=[PASSAGE])
        return {int(hit[ROW]): hit[PASSAGE] for hit in found}


def finished_manifest(collection: Collection) -> Manifest:
    """The manifest of a collection that may be searched.

    Raises:
        UsageError: there is no such collection.
        MismatchError: denserk did not make it, or its load was interrupted.
    """
    if not collection.exists():
        raise UsageError(
            f"there is no {collection.place}", "denserk index --engine milvus makes it"
        )
    manifest = collection.manifest()
    if manifest is None:
        raise MismatchError(
            f"{collection.place} was not made by denserk: it has no manifest",
            "load it with denserk index --engine milvus",
        )
    if not manifest.complete:
        raise MismatchError(
            f"{collection.place} is unfinished: the command that loads it was interrupted",
            "run that command again with --resume",
        )
    return manifest
