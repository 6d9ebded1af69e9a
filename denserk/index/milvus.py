"""Milvus as an engine, through pymilvus: a local file (milvus-lite), a server or a cluster.

A collection has one row per vector:

    row       INT64, the primary key: the number of the vector, in the order of the input
    passage   VARCHAR, the passage's id
    vector    FLOAT_VECTOR

The manifest is a property of the collection, and so is the number of rows that are surely there.
Rows are written by upsert under their numbers: a row sent twice, by a retry or by --resume, is one.
"""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from denserk.config.retrieval import TOKEN, CollectionSettings, MilvusIndexSettings, SearchSettings
from denserk.errors import MismatchError, ServerError, UsageError
from denserk.extras import require
from denserk.index.searcher import Rows, Scores, Vectors, in_order, padding
from denserk.io.manifest import Kind, Manifest, decoded, encoded, vectors_per_passage

logger = logging.getLogger(__name__)

ROW, PASSAGE, VECTOR = "row", "passage", "vector"
MANIFEST, ROWS = "denserk.manifest", "denserk.rows"  # properties of a collection
ID_BYTES = 1024  # bytes of a passage's id at most
LIMIT = 16_384  # hits of a query that Milvus returns at most
HITS_AT_ONCE = 400_000  # per request: Milvus sends no answer of more than 64 MB by default
BATCH_BYTES = 8 << 20  # bytes of vectors per request
KEPT_EVERY = 8  # batches between two updates of the number of rows that are surely there
TIMEOUT = 60.0  # seconds that a request may take, pymilvus' own retries included
PAUSE = 0.5  # seconds between two looks at work that the server does in the background


class Collection:
    """A connection to a collection, which need not exist; close it when done."""

    def __init__(self, settings: CollectionSettings, *, create: bool = False) -> None:
        if settings.uri is None or settings.collection is None:
            hint = "give --uri ./passages.db or --uri http://localhost:19530, and --collection NAME"
            raise UsageError("--engine milvus needs an address and a collection", hint)
        self._name, self.place = settings.collection, settings.place
        self._embedded = settings.is_embedded
        # to whose folder names in the manifest are relative; a server has none
        self._file = settings.uri if self._embedded else None
        self._folder = Path(settings.uri).parent if self._embedded else None
        self._library = require("pymilvus", "--engine milvus")
        # both would print what is raised here as one line
        for name in ("pymilvus", "milvus_lite"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        if self._embedded:
            require("milvus_lite", f"the local file {settings.uri}")
            path = Path(settings.uri)
            if not path.is_dir() and not (create and not path.exists()):
                what = "not a folder of milvus-lite 3" if path.exists() else "no such file"
                raise UsageError(f"{path}: {what}", "denserk index --engine milvus makes it")
            path.parent.mkdir(parents=True, exist_ok=True)
        in_use = "cannot be opened (does another process have it open?)"
        with self._errors(in_use if self._embedded else "cannot be reached"):
            self._client = self._library.MilvusClient(
                settings.uri, token=os.environ.get(TOKEN, ""), timeout=TIMEOUT / 6, dedicated=True
            )
        self.close = self._client.close

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Turn errors of pymilvus into denserk's, in one line and without the token."""
        grpc = require("grpc", "--engine milvus")
        library = (self._library.MilvusException, grpc.RpcError, grpc.FutureTimeoutError)
        try:
            yield
        except library as error:
            text = getattr(error, "message", "") or str(error) or type(error).__name__
            reason = text.split("\n")[0][:300]
            token = os.environ.get(TOKEN, "")
            for secret in filter(None, (token, token.partition(":")[2])):
                reason = reason.replace(secret, "***")
            raise ServerError(f"{self.place} {what}: {reason}") from None

    def call(self, method: str, *args: Any, **named: Any) -> Any:
        """Send a request about the collection."""
        # an embedded server is in this process: it cannot be away, only at work
        named.setdefault("timeout", None if self._embedded else TIMEOUT)
        with self._errors(f"failed at {method}"):
            return getattr(self._client, method)(self._name, *args, **named)

    def create(self, manifest: Manifest, settings: MilvusIndexSettings) -> None:
        """Create the collection, empty, and its index."""
        types = self._library.DataType
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field(ROW, types.INT64, is_primary=True)
        schema.add_field(PASSAGE, types.VARCHAR, max_length=ID_BYTES)
        schema.add_field(VECTOR, types.FLOAT_VECTOR, dim=manifest.contents["dimension"])
        noted = {MANIFEST: encoded(manifest, self._folder).decode(), ROWS: "0"}
        # every read sees every write before it
        self.call("create_collection", schema=schema, properties=noted, consistency_level="Strong")
        # milvus-lite reads parameters in the older form only
        given = {"params": settings.parameters} if self._embedded else settings.parameters
        index = self._client.prepare_index_params()
        index.add_index(VECTOR, settings.milvus_index, VECTOR, metric_type="IP", params=given)
        try:
            self.call("create_index", index)
            self.call("release_collection")  # indexed when it is loaded
        except ServerError:
            self.call("drop_collection")
            raise

    def noted(self, name: str) -> str | None:
        """Return a property of the collection."""
        return (self.call("describe_collection").get("properties") or {}).get(name)

    def read_manifest(self) -> Manifest:
        """Return the manifest, finished or not."""
        if (text := self.noted(MANIFEST)) is None:
            hint = "load it with denserk index --engine milvus --overwrite"
            raise MismatchError(f"{self.place} was not made by denserk: it has no manifest", hint)
        return decoded(text, self.place, self._file)

    def note_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest."""
        self.note(MANIFEST, encoded(manifest, self._folder).decode())

    def note(self, name: str, value: str) -> None:
        """Set a property of the collection."""
        self.call("alter_collection_properties", {name: value})

    def write(self, first: int, ids: Sequence[str], vectors: Vectors) -> None:
        """Write n vectors (n, D), with n passage ids, as rows `first`, `first` + 1, ..."""
        rows = zip(range(first, first + len(ids)), ids, vectors, strict=True)
        self.call("upsert", [{ROW: row, PASSAGE: name, VECTOR: v} for row, name, v in rows])

    def settle(self) -> None:
        """Wait until the server has sealed what was written, indexed it and loaded it."""
        self.call("flush", timeout=None)
        while True:
            index = self.call("describe_index", VECTOR) or {}
            if index.get("state") == "Failed":
                reason = index.get("index_state_fail_reason")
                raise ServerError(f"{self.place} cannot be indexed: {reason}")
            if not int(index.get("pending_index_rows") or 0):
                break
            time.sleep(PAUSE)
        self.call("load_collection", timeout=None)

    def count(self) -> int:
        """Return the number of rows of a loaded collection."""
        named = {"filter": "", "output_fields": ["count(*)"], "consistency_level": "Strong"}
        return int(self.call("query", **named)[0]["count(*)"])


class MilvusIndex(Collection):
    """An open collection.

    Milvus returns at most 16,384 rows for a query. Passages with m vectors are grouped by denserk:
    the best m * K rows hold the best vector of each of the K best passages.
    """

    def __init__(self, settings: CollectionSettings, rules: SearchSettings) -> None:
        super().__init__(settings)
        try:
            if not self.call("has_collection"):
                hint = "denserk index --engine milvus makes it"
                raise UsageError(f"there is no {self.place}", hint)
            self.manifest = self.read_manifest()
            if self.manifest.kind is not Kind.INDEX or not self.manifest.complete:
                what = f"{self.place} is unfinished: the command that loads it was interrupted"
                raise MismatchError(what, "run that command again with --resume")
            self.size = vectors_per_passage(self.manifest)
            if rules.hits * self.size > LIMIT:
                what = f"--hits {rules.hits} x {self.size}: Milvus returns at most {LIMIT:,} rows"
                hint = f"--hits {LIMIT // self.size} or less, or a faiss index (denserk index)"
                raise UsageError(what, hint)
            kind, given = self.manifest.settings["milvus_index"], dict(rules.index_options)
            found: dict[str, Any] = {}  # parameters for --ef-search and --nprobe
            if kind.startswith("HNSW"):
                found["ef"] = given.pop("--ef-search", 64)
            elif "IVF" in kind or kind == "SCANN":
                lists = (self.manifest.settings.get("milvus_params") or {}).get("nlist", 128)
                found["nprobe"] = given.pop("--nprobe", max(1, int(lists) // 16))
            for name, value in given.items():
                raise UsageError(f"{name} {value}: {self.place} has an index {kind}")
            self._parameters = found | settings.parameters
            self.is_exhaustive = kind in EXHAUSTIVE
            self.dimension = int(self.manifest.contents["dimension"])
            self.call("load_collection", timeout=None)
            self._count = self.count()
        except BaseException:
            self.close()
            raise
        self._ids: dict[int, str] = {}  # of the passages of the last search

    def __len__(self) -> int:
        return self._count

    @property
    def breadth(self) -> tuple[str, ...]:
        """The options that make a search find more, with their values."""
        flags = {"nprobe": "--nprobe", "ef": "--ef-search"}
        used = self._parameters.items()
        return tuple(f"{flags[name]} (now {value})" for name, value in used if name in flags)

    def names(self, passages: Rows) -> list[str]:
        """Return the ids of (K,) passages of the last search."""
        return [self._ids[passage] for passage in passages.tolist()]

    def search(self, queries: Vectors, depth: int) -> tuple[Scores, Rows]:
        """Return (B, K) scores and rows, at most 16,384 of them; fewer are padded."""
        wanted = min(depth, LIMIT, max(self._count, 1))
        parameters = dict(self._parameters)
        if isinstance(ef := parameters.get("ef"), int):
            parameters["ef"] = max(ef, wanted)
        scores, rows = padding(len(queries), depth)
        self._ids.clear()
        step = max(1, HITS_AT_ONCE // wanted)
        how = {"search_params": {"metric_type": "IP", "params": parameters}, "limit": wanted}
        named = {"anns_field": VECTOR, "output_fields": [PASSAGE], **how}
        for first in range(0, len(queries), step):
            answers = self.call("search", data=list(queries[first : first + step]), **named)
            for query, hits in enumerate(answers, start=first):
                if self.is_exhaustive and len(hits) < wanted:
                    found = f"{len(hits):,} hits of {wanted:,} in an exact search"
                    what = "its rows, or a vector that is not finite, are damaged"
                    hint = "load it again: denserk index --engine milvus --overwrite"
                    raise ServerError(f"{self.place} returned {found}: {what}", hint)
                scores[query, : len(hits)], rows[query, : len(hits)] = hits.distances, hits.ids
                for row, hit in zip(hits.ids, hits, strict=True):
                    self._ids[int(row) // self.size] = hit["entity"][PASSAGE]
        return in_order(scores, rows)


EXHAUSTIVE = ("FLAT", "GPU_BRUTE_FORCE", "BRUTE_FORCE")  # types that compare every row
