"""Milvus as an engine, through pymilvus: a local file (milvus-lite), a server or a cluster.

A collection has one row per vector:

    row       INT64, the primary key: the number of the vector, in the order of the input
    passage   VARCHAR, the passage's id
    vector    FLOAT_VECTOR

The manifest is a property of the collection, and so is the number of rows that are surely written.
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
from denserk.index.engines import Rows, Scores, Vectors, in_order, padding
from denserk.io.manifest import Kind, Manifest, decoded, encoded, vectors_per_passage

logger = logging.getLogger(__name__)

# fields of a row
ROW = "row"
PASSAGE = "passage"
VECTOR = "vector"
# properties of a collection
MANIFEST = "denserk.manifest"
ROWS = "denserk.rows"  # a number: the rows that are surely written
ID_BYTES = 1024  # bytes of a passage's id at most
LIMIT = 16_384  # hits of a query that Milvus returns at most
HITS_AT_ONCE = 400_000  # per request: Milvus sends no answer of more than 64 MB by default
BATCH_BYTES = 8 << 20  # bytes of vectors per request
KEPT_EVERY = 8  # batches between two updates of the property ROWS
TIMEOUT = 60.0  # seconds that a request may take, pymilvus' own retries included
PAUSE = 0.5  # seconds between two looks at work that the server does in the background
EXHAUSTIVE = ("FLAT", "GPU_BRUTE_FORCE", "BRUTE_FORCE")  # types that compare every row
PARAMETERS = {"--ef-search": "ef", "--nprobe": "nprobe"}  # Milvus's names of options
DEFAULT_EF = 64
DEFAULT_LISTS = 128  # of Milvus, where an index is made without nlist
SEARCHED_SHARE = 16  # one of so many lists is searched by default, as by faiss_index.py


class Collection:
    """A connection to a collection, which need not exist; close it when done."""

    def __init__(self, settings: CollectionSettings, *, create: bool = False) -> None:
        if settings.uri is None or settings.collection is None:
            hint = "give --uri ./passages.db or --uri http://localhost:19530, and --collection NAME"
            raise UsageError("--engine milvus needs an address and a collection", hint)
        self._name = settings.collection
        self.place = settings.place
        self._embedded = settings.is_embedded
        # names in the manifest are relative to the folder of the local file; a server has no folder
        self._file = settings.uri if self._embedded else None
        self._folder = Path(settings.uri).parent if self._embedded else None
        self._library = require("pymilvus", "--engine milvus")
        # their loggers would print, in many lines, the errors that are raised here in one
        for name in ("pymilvus", "milvus_lite"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        if self._embedded:
            _prepare_file(settings.uri, create=create)
        self._client = self._connect(settings.uri)
        self.close = self._client.close

    def _connect(self, uri: str) -> Any:
        """Return a client of the local file or the server."""
        message = f"{self.place} cannot be reached"
        if self._embedded:
            message = f"{self.place} cannot be opened (does another process have it open?)"
        timeout = TIMEOUT / 6  # an address without a server is reported sooner than a slow request
        with self._errors(message):
            return self._library.MilvusClient(
                uri, token=os.environ.get(TOKEN, ""), timeout=timeout, dedicated=True
            )

    @contextmanager
    def _errors(self, message: str) -> Iterator[None]:
        """Turn an error of pymilvus into a ServerError: the message, and the error's first line."""
        grpc = require("grpc", "--engine milvus")
        try:
            yield
        except (self._library.MilvusException, grpc.RpcError, grpc.FutureTimeoutError) as error:
            reason = getattr(error, "message", "") or str(error) or type(error).__name__
            first_line = reason.split("\n")[0]
            raise ServerError(f"{message}: {_without_token(first_line[:300])}") from None

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Send a request about the collection: call a method of the client, with its name first."""
        # a local file is served in this process: a request that takes long is still at work
        options.setdefault("timeout", None if self._embedded else TIMEOUT)
        with self._errors(f"{self.place} failed at {method}"):
            return getattr(self._client, method)(self._name, *arguments, **options)

    def create(self, manifest: Manifest, settings: MilvusIndexSettings) -> None:
        """Create the collection, empty, and its index."""
        types = self._library.DataType
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field(ROW, types.INT64, is_primary=True)
        schema.add_field(PASSAGE, types.VARCHAR, max_length=ID_BYTES)
        schema.add_field(VECTOR, types.FLOAT_VECTOR, dim=manifest.contents["dimension"])
        properties = {MANIFEST: self._encoded(manifest), ROWS: "0"}
        # every read sees every write before it
        self.call(
            "create_collection", schema=schema, properties=properties, consistency_level="Strong"
        )
        parameters = settings.parameters
        if self._embedded:  # milvus-lite reads parameters in the older form only
            parameters = {"params": parameters}
        index = self._client.prepare_index_params()
        index.add_index(VECTOR, settings.milvus_index, VECTOR, metric_type="IP", params=parameters)
        try:
            self.call("create_index", index)
            self.call("release_collection")  # it is loaded once its rows are written and indexed
        except ServerError:
            self.call("drop_collection")
            raise

    def read_property(self, name: str) -> str | None:
        """Return a property of the collection; None if it does not have it."""
        properties = self.call("describe_collection").get("properties") or {}
        value: str | None = properties.get(name)
        return value

    def set_property(self, name: str, value: str) -> None:
        """Set a property of the collection."""
        self.call("alter_collection_properties", {name: value})

    def read_manifest(self) -> Manifest:
        """Return the manifest, finished or not."""
        text = self.read_property(MANIFEST)
        if text is None:
            hint = "load it with denserk index --engine milvus --overwrite"
            raise MismatchError(f"{self.place} was not made by denserk: it has no manifest", hint)
        return decoded(text, self.place, self._file)

    def replace_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest."""
        self.set_property(MANIFEST, self._encoded(manifest))

    def _encoded(self, manifest: Manifest) -> str:
        """Return the manifest as JSON, for a property."""
        return encoded(manifest, self._folder).decode()

    def write(self, first: int, ids: Sequence[str], vectors: Vectors) -> None:
        """Write n vectors (n, D), with n passage ids, as rows `first`, `first` + 1, ..."""
        rows = []
        for number, (docid, vector) in enumerate(zip(ids, vectors, strict=True), start=first):
            rows.append({ROW: number, PASSAGE: docid, VECTOR: vector})
        self.call("upsert", rows)

    def settle(self) -> None:
        """Wait until the server has sealed what was written, indexed it and loaded it.

        This takes as long as it takes: requests have no timeout.
        """
        self.call("flush", timeout=None)
        while self._is_indexing():
            time.sleep(PAUSE)
        self.call("load_collection", timeout=None)

    def _is_indexing(self) -> bool:
        """Return whether there are rows that are not indexed yet."""
        index = self.call("describe_index", VECTOR) or {}
        if index.get("state") == "Failed":
            reason = index.get("index_state_fail_reason")
            raise ServerError(f"{self.place} cannot be indexed: {reason}")
        return int(index.get("pending_index_rows") or 0) > 0

    def count(self) -> int:
        """Return the number of rows of a loaded collection."""
        counting = {"filter": "", "output_fields": ["count(*)"], "consistency_level": "Strong"}
        (answer,) = self.call("query", **counting)
        return int(answer["count(*)"])


def _prepare_file(uri: str, *, create: bool) -> None:
    """Check a local file of milvus-lite, which is a folder, and create its parent folder.

    With `create`, the file need not exist.
    """
    require("milvus_lite", f"the local file {uri}")
    path = Path(uri)
    hint = "denserk index --engine milvus makes it"
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path}: not a folder of milvus-lite 3", hint)
    if not path.exists() and not create:
        raise UsageError(f"{path}: no such file", hint)
    path.parent.mkdir(parents=True, exist_ok=True)


def _without_token(text: str) -> str:
    """Return a text without the secrets of the token, which is NAME:PASSWORD or a key."""
    token = os.environ.get(TOKEN, "")
    _, _, password = token.partition(":")
    for secret in (token, password):
        if secret:
            text = text.replace(secret, "***")
    return text


class MilvusIndex(Collection):
    """An open collection.

    Milvus returns at most LIMIT rows for a query. Rows of passages with m vectors are joined by
    `Searcher`: the best m * K rows hold the best vector of each of the K best passages.
    """

    def __init__(self, collection: CollectionSettings, settings: SearchSettings) -> None:
        super().__init__(collection)
        try:
            if not self.call("has_collection"):
                hint = "denserk index --engine milvus makes it"
                raise UsageError(f"there is no {self.place}", hint)
            self.manifest = self._read_finished_manifest()
            self.vectors_per_passage = vectors_per_passage(self.manifest)
            self._require_depth(settings.hits)
            self._parameters = self._parameters_of(settings) | collection.parameters
            self.is_exhaustive = self._index_type in EXHAUSTIVE
            self.dimension = int(self.manifest.contents["dimension"])
            self.call("load_collection", timeout=None)
            self._count = self.count()
        except BaseException:
            self.close()
            raise
        self._ids: dict[int, str] = {}  # of the passages of the last search

    def _read_finished_manifest(self) -> Manifest:
        """Return the manifest; raise a MismatchError if not all rows were written."""
        manifest = self.read_manifest()
        if manifest.kind is not Kind.INDEX or not manifest.complete:
            message = f"{self.place} is unfinished: the command that loads it was interrupted"
            raise MismatchError(message, "run that command again with --resume")
        return manifest

    def _require_depth(self, hits: int) -> None:
        """Raise a UsageError for more hits than Milvus returns."""
        size = self.vectors_per_passage
        if hits * size > LIMIT:
            message = f"--hits {hits} x {size}: Milvus returns at most {LIMIT:,} rows"
            hint = f"--hits {LIMIT // size} or less, or a faiss index (denserk index)"
            raise UsageError(message, hint)

    @property
    def _index_type(self) -> str:
        """The type of the index, by Milvus's name."""
        index_type: str = self.manifest.settings["milvus_index"]
        return index_type

    def _parameters_of(self, settings: SearchSettings) -> dict[str, Any]:
        """Return the parameters of a search by Milvus's names.

        An option that has no effect on the type of the index is a UsageError.
        """
        parameters: dict[str, Any] = {}
        if self._index_type.startswith("HNSW"):
            parameters["ef"] = DEFAULT_EF
        elif "IVF" in self._index_type or self._index_type == "SCANN":
            index_parameters = self.manifest.settings.get("milvus_params") or {}
            lists = int(index_parameters.get("nlist", DEFAULT_LISTS))
            parameters["nprobe"] = max(1, lists // SEARCHED_SHARE)
        for option, value in settings.index_options.items():
            name = PARAMETERS.get(option)
            if name not in parameters:
                raise UsageError(f"{option} {value}: {self.place} has an index {self._index_type}")
            parameters[name] = value
        return parameters

    def __len__(self) -> int:
        return self._count

    @property
    def breadth(self) -> tuple[str, ...]:
        """The options that make a search find more, with their values."""
        option_by_name = {name: option for option, name in PARAMETERS.items()}
        options = []
        for name, value in self._parameters.items():
            if name in option_by_name:
                options.append(f"{option_by_name[name]} (now {value})")
        return tuple(options)

    def names(self, passages: Rows) -> list[str]:
        """Return the ids of (K,) passages of the last search."""
        return [self._ids[passage] for passage in passages.tolist()]

    def search(self, queries: Vectors, depth: int) -> tuple[Scores, Rows]:
        """Return (B, K) scores and rows; beyond the LIMIT of Milvus, and its rows, padding."""
        limit = min(depth, LIMIT, max(self._count, 1))
        parameters = dict(self._parameters)
        ef = parameters.get("ef")
        # Milvus rejects more hits than `ef`, and also a text that --set milvus-params sets it to
        if isinstance(ef, int):
            parameters["ef"] = max(ef, limit)
        scores, rows = padding(len(queries), depth)
        self._ids.clear()
        batch_size = max(1, HITS_AT_ONCE // limit)
        for first in range(0, len(queries), batch_size):
            answers = self.call(
                "search",
                data=list(queries[first : first + batch_size]),
                anns_field=VECTOR,
                output_fields=[PASSAGE],
                search_params={"metric_type": "IP", "params": parameters},
                limit=limit,
            )
            for query, hits in enumerate(answers, start=first):
                if self.is_exhaustive and len(hits) < limit:
                    raise self._damaged(len(hits), limit)
                scores[query, : len(hits)] = hits.distances  # inner products, by metric "IP"
                rows[query, : len(hits)] = hits.ids
                for row, hit in zip(hits.ids, hits, strict=True):
                    self._ids[int(row) // self.vectors_per_passage] = hit["entity"][PASSAGE]
        return in_order(scores, rows)

    def _damaged(self, count: int, limit: int) -> ServerError:
        """Return the error of an exact search that does not return every row."""
        message = (
            f"{self.place} returned {count:,} hits of {limit:,} in an exact search: its rows, or a "
            "vector that is not finite, are damaged"
        )
        hint = "load it again: denserk index --engine milvus --overwrite"
        return ServerError(message, hint)
