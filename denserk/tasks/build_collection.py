"""`denserk index --engine milvus`: vectors are loaded into a collection of Milvus."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from denserk.config.options import given_fields, spelled
from denserk.config.retrieval import (
    CollectionSettings,
    Engine,
    IndexPaths,
    IndexSettings,
    Metric,
    MilvusIndexSettings,
    SearchSettings,
)
from denserk.errors import ServerError, UsageError
from denserk.index.engines import Vectors
from denserk.index.inputs import (
    checked_blocks,
    checksums_of_sources,
    expanded,
    known_count,
    model_of_sources,
    open_sources,
)
from denserk.index.milvus import BATCH_BYTES, EXHAUSTIVE, KEPT_EVERY, ROWS, Collection, MilvusIndex
from denserk.io.files import STREAM
from denserk.io.manifest import Kind, Manifest, metric_of_model
from denserk.io.vectors import VectorSource, verify_folders
from denserk.reporting import track
from denserk.tasks.build_index import (
    RECALL_DEPTH,
    VECTORS_SHA256,
    IndexResult,
    check_present,
    measure_recall,
)

logger = logging.getLogger(__name__)
# fields of IndexSettings and IndexPaths whose options a collection takes
COLLECTION_FIELDS = {
    "engine",
    "metric",
    "seed",
    "input",
    "allow_pickle",
    "verify",
    "resume",
    "overwrite",
}


def build_collection(
    paths: IndexPaths, settings: IndexSettings, milvus: MilvusIndexSettings
) -> IndexResult:
    """Load vectors into a collection of Milvus, or resume an interrupted load."""
    started = time.perf_counter()
    _reject_other_options(paths, settings)
    if paths.verify:
        verify_folders(expanded(paths.input))
    sources = open_sources(paths.input, paths.allow_pickle)
    planned = _describe(sources, settings, milvus)
    with closing(Collection(milvus, create=True)) as collection:
        present = _prepare(collection, paths, planned)
        if present is not None and present.complete:
            contents = present.contents
        else:
            contents = _load(collection, sources, planned, present, milvus)
            collection.replace_manifest(replace(planned, complete=True, contents=contents))
            if _is_measurable(sources, milvus):
                contents = {**contents, "recall": _measure_recall(sources, settings, milvus)}
                collection.replace_manifest(replace(planned, complete=True, contents=contents))
    return IndexResult(
        count=contents["count"],
        bytes=0,
        seconds=time.perf_counter() - started,
        recall=contents.get("recall"),
    )


def _reject_other_options(paths: IndexPaths, settings: IndexSettings) -> None:
    """Raise a UsageError for options that have no effect on a collection."""
    names = {*given_fields(settings), *given_fields(paths)}
    for name in sorted(names - COLLECTION_FIELDS):
        option = spelled(name, IndexSettings, IndexPaths)
        raise UsageError(f"{option} is not for --engine milvus", f"leave out {option}")


def _describe(
    sources: Sequence[VectorSource], settings: IndexSettings, milvus: MilvusIndexSettings
) -> Manifest:
    """Return the manifest of a collection that is not loaded yet.

    A model whose vectors Milvus would rank differently is a UsageError, unless --metric is given.
    """
    recorded_settings = {
        "engine": Engine.MILVUS.value,
        "milvus_index": milvus.milvus_index,
        "milvus_params": milvus.parameters,
        "metric": "inner",
    }
    model = model_of_sources(sources)
    if settings.metric is None and metric_of_model(model) is Metric.L2:
        raise UsageError(
            "the model of the vectors compares by Euclidean distance, and --engine milvus by inner "
            "product",
            "use --engine faiss, or give --metric inner for another ranking",
        )
    origin = {
        "vectors": [source.name for source in sources],
        VECTORS_SHA256: checksums_of_sources(sources),
        "model": model,
    }
    return Manifest(Kind.INDEX, False, recorded_settings, origin)


def _prepare(collection: Collection, paths: IndexPaths, planned: Manifest) -> Manifest | None:
    """Return the manifest of a collection that is resumed; drop one that is replaced."""
    if not collection.call("has_collection"):
        return None
    if paths.overwrite:
        collection.call("drop_collection")
        return None
    if not paths.resume:
        hint = "--resume continues it, --overwrite replaces it"
        raise UsageError(f"{collection.place} exists already", hint)
    present = collection.read_manifest()
    check_present(collection.place, present, planned)
    return present


def _is_measurable(sources: Sequence[VectorSource], milvus: MilvusIndexSettings) -> bool:
    """Return whether the index is approximate, and its vectors can be read again."""
    is_streamed = any(source.name == STREAM for source in sources)
    return milvus.milvus_index not in EXHAUSTIVE and not is_streamed


def _measure_recall(
    sources: Sequence[VectorSource], settings: IndexSettings, milvus: MilvusIndexSettings
) -> float:
    """Return the recall of a collection, with some of its own vectors as queries."""

    def blocks() -> Iterator[Vectors]:
        for source in sources:
            for block in source.blocks():
                yield block.vectors

    collection = CollectionSettings(milvus.uri, milvus.collection)
    with closing(MilvusIndex(collection, SearchSettings(hits=RECALL_DEPTH))) as index:
        return measure_recall(milvus.milvus_index, index, blocks, settings)


def _load(
    collection: Collection,
    sources: Sequence[VectorSource],
    planned: Manifest,
    interrupted: Manifest | None,
    milvus: MilvusIndexSettings,
) -> dict[str, Any]:
    """Write vectors into a collection, one block in memory; return the manifest's contents.

    With the manifest of an interrupted load, its rows are not written again.
    """
    per_passage = sources[0].vectors_per_passage
    loading = _Loading(collection, per_passage)
    dimension = 0  # until the first block is read
    with track("loading vectors", known_count(sources), "passages") as progress:
        for ids, vectors, _ in checked_blocks(sources):
            if not dimension:
                dimension = vectors.shape[1]
                if interrupted is None:
                    unfinished = replace(planned, contents={"dimension": dimension})
                    collection.create(unfinished, milvus)
                else:
                    loading.resume()
            bytes_of_passage = 4 * per_passage * dimension
            step = milvus.milvus_batch or max(1, BATCH_BYTES // bytes_of_passage)
            for start in range(0, len(ids), step):
                stop = start + step
                batch_ids = ids[start:stop]
                loading.write(batch_ids, vectors[start * per_passage : stop * per_passage])
                progress.advance(len(batch_ids))
        loading.settle()
    loading.require_rows()
    return {
        "count": loading.rows // per_passage,
        "vectors_per_passage": per_passage,
        "dimension": dimension,
    }


class _Loading:
    """Rows that are written into a collection in order, after those that are there already."""

    def __init__(self, collection: Collection, vectors_per_passage: int) -> None:
        self._collection = collection
        self._vectors_per_passage = vectors_per_passage
        self._present_rows = 0  # of an interrupted load
        self._batches = 0
        self.rows = 0  # present or written

    def resume(self) -> None:
        """Skip the rows that an interrupted load noted as written."""
        self._present_rows = int(self._collection.read_property(ROWS) or 0)
        logger.info(
            f"{self._collection.place}: {self._present_rows:,} rows are there, load resumed"
        )

    def write(self, ids: Sequence[str], vectors: Vectors) -> None:
        """Write the vectors of some passages, unless they are there."""
        ids_of_rows: list[str] = []
        for docid in ids:
            ids_of_rows += [docid] * self._vectors_per_passage
        first_row = self.rows
        self.rows += len(ids_of_rows)
        if self.rows <= self._present_rows:
            return
        self._collection.write(first_row, ids_of_rows, vectors.astype(np.float32))
        self._batches += 1
        if self._batches % KEPT_EVERY == 0:
            self._collection.set_property(ROWS, str(self.rows))

    def settle(self) -> None:
        """Note the number of rows, and wait until the server has indexed them."""
        self._collection.set_property(ROWS, str(self.rows))
        self._collection.settle()

    def require_rows(self) -> None:
        """Raise a ServerError unless the server holds all rows."""
        count = self._collection.count()
        if count != self.rows:
            message = (
                f"{self._collection.place} holds {count:,} rows where {self.rows:,} were written"
            )
            raise ServerError(message, "load it again with --overwrite")
