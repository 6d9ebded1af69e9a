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
from denserk.index.folder import checked_blocks, expanded, known_count, open_sources
from denserk.index.milvus import BATCH_BYTES, EXHAUSTIVE, KEPT_EVERY, ROWS, Collection, MilvusIndex
from denserk.index.searcher import Vectors
from denserk.io.files import STREAM
from denserk.io.manifest import Kind, Manifest, common_model, metric_of_model
from denserk.io.vectors import VectorSource, verify_folders
from denserk.reporting import track
from denserk.tasks.build_index import DEPTH, IndexResult, measure_recall, resumed

logger = logging.getLogger(__name__)
# options of IndexSettings and IndexPaths that a collection takes
TAKEN = {"engine", "metric", "seed", "input", "allow_pickle", "verify", "resume", "overwrite"}


def build_collection(
    paths: IndexPaths, settings: IndexSettings, milvus: MilvusIndexSettings
) -> IndexResult:
    """Load vectors into a collection of Milvus, or resume an interrupted load."""
    started = time.perf_counter()
    for name in sorted({*given_fields(settings), *given_fields(paths)} - TAKEN):
        option = spelled(name, IndexSettings, IndexPaths)
        raise UsageError(f"{option} is not for --engine milvus", f"leave out {option}")
    if paths.verify:
        verify_folders(expanded(paths.input))
    sources = open_sources(paths.input, paths.allow_pickle)
    chosen = {
        "engine": Engine.MILVUS.value,
        "milvus_index": milvus.milvus_index,
        "milvus_params": milvus.parameters,
        "metric": "inner",
    }
    made_from: dict[str, Any] = {
        "vectors": [source.name for source in sources],
        "model": common_model((source.name, source.manifest) for source in sources),
    }
    if settings.metric is None and metric_of_model(made_from["model"]) is Metric.L2:
        raise UsageError(
            "the model of the vectors compares by Euclidean distance, and --engine milvus by inner "
            "product",
            "use --engine faiss, or give --metric inner for another ranking",
        )
    manifest = Manifest(Kind.INDEX, False, chosen, made_from)
    with closing(Collection(milvus, create=True)) as collection:
        found, exists = None, collection.call("has_collection")
        if exists and paths.overwrite:
            collection.call("drop_collection")
        elif exists:
            if not paths.resume:
                hint = "--resume continues it, --overwrite replaces it"
                raise UsageError(f"{collection.place} exists already", hint)
            found = resumed(collection.place, collection.read_manifest(), manifest)
        if found is None or not found.complete:
            contents = _load(collection, sources, manifest, found, milvus)
            found = replace(manifest, complete=True, contents=contents)
            collection.note_manifest(found)
            streamed = any(source.name == STREAM for source in sources)
            if milvus.milvus_index not in EXHAUSTIVE and not streamed:
                place = CollectionSettings(milvus.uri, milvus.collection)
                with closing(MilvusIndex(place, SearchSettings(hits=DEPTH))) as index:

                    def blocks() -> Iterator[Vectors]:
                        return (block.vectors for each in sources for block in each.blocks())

                    kind = milvus.milvus_index
                    contents["recall"] = measure_recall(kind, index, blocks, settings)
                collection.note_manifest(found)
    seconds = time.perf_counter() - started
    return IndexResult(found.contents["count"], 0, seconds, found.contents.get("recall"))


def _load(
    collection: Collection,
    sources: Sequence[VectorSource],
    manifest: Manifest,
    found: Manifest | None,
    milvus: MilvusIndexSettings,
) -> dict[str, Any]:
    """Write vectors into a collection, one block in memory; return the manifest's contents.

    With the manifest `found` of an interrupted load, its rows are not written again.
    """
    size = sources[0].vectors_per_passage
    sent, there, batches, dimension = 0, 0, 0, 0
    with track("loading vectors", known_count(sources), "passages") as bar:
        for ids, vectors, _ in checked_blocks(sources):
            if not dimension:
                dimension = vectors.shape[1]
                if found is None:
                    started = replace(manifest, contents={"dimension": dimension})
                    collection.create(started, milvus)
                else:
                    there = int(collection.noted(ROWS) or 0)
                    logger.info(f"{collection.place}: {there:,} rows are there, load resumed")
            step = milvus.milvus_batch or max(1, BATCH_BYTES // (4 * size * dimension))
            for first in range(0, len(ids), step):
                names = [name for name in ids[first : first + step] for _ in range(size)]
                sent += len(names)
                if sent > there:
                    rows = vectors[first * size : (first + step) * size]
                    collection.write(sent - len(names), names, rows.astype(np.float32))
                    batches += 1
                    if batches % KEPT_EVERY == 0:
                        collection.note(ROWS, str(sent))
                bar.advance(len(names) // size)
        collection.note(ROWS, str(sent))
        collection.settle()
    if (count := collection.count()) != sent:
        what = f"{collection.place} holds {count:,} rows where {sent:,} were written"
        raise ServerError(what, "load it again with --overwrite")
    return {"count": sent // size, "vectors_per_passage": size, "dimension": dimension}
