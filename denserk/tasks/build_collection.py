"""Vectors -> a collection of Milvus."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from typing import Any

from denserk.errors import MismatchError, ServerError, UsageError
from denserk.formats.files import STREAM
from denserk.formats.folder_checks import verify_folders
from denserk.formats.manifest import Kind, Manifest, differences
from denserk.formats.vectors import VectorSource
from denserk.index.milvus_collection import Collection
from denserk.index.milvus_connection import Connection
from denserk.index.milvus_index import EXHAUSTIVE, MilvusIndex
from denserk.index.milvus_loading import load
from denserk.index.recall import DEPTH, recall_over_blocks
from denserk.index.vector_index import Vectors
from denserk.index.vector_inputs import Gathered, expanded, open_sources
from denserk.settings.milvus import MilvusIndexSettings, MilvusSearchSettings, parameters
from denserk.settings.retrieval import Engine, IndexPaths, IndexSettings, SearchSettings
from denserk.tasks.model_chain import common_model

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CollectionResult:
    """A collection: passages, rows, seconds it took; recall where it is approximate."""

    count: int
    rows: int
    seconds: float
    recall: float | None = None


def build_collection(
    paths: IndexPaths,
    settings: IndexSettings,
    milvus: MilvusIndexSettings,
) -> CollectionResult:
    """Loads vectors into a collection of Milvus, or goes on where a load stopped.

    Args:
        paths: the vectors; there is no output folder.
        settings: `engine` is milvus, all else as it comes.
        milvus: the collection, its index.

    Raises:
        UsageError: options do not go together, an input is not there, or the collection is.
        InputError: an id comes twice, a vector is not finite, or there is nothing to load.
        MismatchError: the inputs were not made alike, or a load made otherwise is to be resumed.
        ServerError: the server does not answer, or refuses.
        OutputError: it has no room.
    """
    began, place = time.perf_counter(), milvus.place
    _refuse_folder_options(paths, settings)
    if paths.verify:
        verify_folders(expanded(paths.input))
    sources = open_sources(paths.input, paths.allow_pickle)
    manifest = Manifest(
        Kind.INDEX, False, _described(milvus), _made_from(sources), contents={"dimension": 0}
    )
    with Connection(milvus, create=True) as connection:
        collection = Collection(connection, milvus)
        start, finished = _begin(collection, paths, manifest, milvus)
        if finished is not None:
            logger.info(f"{place} is finished: nothing to do")
            return _result(finished, began)
        gathered = load(collection, sources, start, milvus.milvus_batch)
        logger.info(f"{place}: the server finishes its index {milvus.milvus_index}")
        collection.settle()
        _check_count(collection, gathered)
        contents = {
            "count": gathered.passages,
            "dimension": gathered.dimension,
            "vectors_per_passage": gathered.vectors_per_passage,
        }
        manifest = replace(manifest, complete=True, contents=contents)
        collection.keep_manifest(manifest)
        recall = _recall(milvus, sources, settings.seed)
        if recall is not None:
            manifest = replace(manifest, contents={**contents, "recall": recall})
            collection.keep_manifest(manifest)
    return _result(manifest, began)


def _recall(
    milvus: MilvusIndexSettings, sources: Sequence[VectorSource], seed: int
) -> float | None:
    """How much of the exact answer an approximate index finds; None where it is exact."""
    if milvus.milvus_index in EXHAUSTIVE:
        return None
    if any(source.name == STREAM for source in sources):
        logger.info("recall is not measured: standard input cannot be read again")
        return None
    place = MilvusSearchSettings(milvus.uri, milvus.collection, milvus.milvus_timeout)

    def blocks() -> Iterator[Vectors]:
        return (vectors for source in sources for _, vectors in source.blocks())

    with closing(MilvusIndex(place, SearchSettings(hits=DEPTH))) as index:
        recall, depth, queries = recall_over_blocks(index, blocks, seed)
    logger.info(
        f"{milvus.milvus_index} finds {recall:.1%} of the exact {depth} nearest "
        f"(with {queries} of its own vectors as queries)"
    )
    return round(recall, 4)


def _result(manifest: Manifest, began: float) -> CollectionResult:
    count = int(manifest.contents["count"])
    rows = count * int(manifest.contents["vectors_per_passage"])
    recall = manifest.contents.get("recall")
    return CollectionResult(count, rows, time.perf_counter() - began, recall)


def _refuse_folder_options(paths: IndexPaths, settings: IndexSettings) -> None:
    if paths.corpus is not None:
        raise UsageError("--engine milvus holds vectors; --corpus holds text", "give --input")
    if paths.trained_as:
        raise UsageError(
            f"--trained-as {paths.trained_as}: Milvus trains its own indexes", "leave it out"
        )
    if paths.output:
        raise UsageError(
            f"--output {paths.output}: --engine milvus makes no folder",
            "leave it out: --uri and --collection say where the vectors go",
        )
    plain = IndexSettings(engine=Engine.MILVUS)
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value != getattr(plain, field.name) and field.name not in ("engine", "seed"):
            raise UsageError(
                f"--{field.name.replace('_', '-')} {value} is not for --engine milvus",
                "give --set milvus-index and --set milvus-params",
            )


def _described(milvus: MilvusIndexSettings) -> dict[str, Any]:
    """What makes one collection another than the next."""
    return {
        "engine": Engine.MILVUS.value,
        "milvus_index": milvus.milvus_index,
        "milvus_params": parameters(milvus.milvus_params),
        "metric": "inner",
    }


def _made_from(sources: Sequence[VectorSource]) -> dict[str, Any]:
    return {"vectors": [source.name for source in sources], "model": common_model(sources)}


def _begin(
    collection: Collection,
    paths: IndexPaths,
    manifest: Manifest,
    milvus: MilvusIndexSettings,
) -> tuple[Callable[[int], int], Manifest | None]:
    """What makes the collection once the dimension is known; or the manifest of a finished one."""

    def anew(dimension: int) -> int:
        collection.create(dimension, replace(manifest, contents={"dimension": dimension}), milvus)
        return 0

    if not collection.exists():
        return anew, None
    if paths.overwrite:
        collection.drop()
        return anew, None
    begun = collection.manifest()
    if begun is None or not paths.resume:
        made = "" if begun is not None else ", and was not made by denserk"
        resume = "--resume goes on with it, " if begun is not None else ""
        raise UsageError(
            f"there is a {collection.place} already{made}", f"{resume}--overwrite replaces it"
        )
    _refuse_other_settings(collection.place, begun, manifest)

    def onward(dimension: int) -> int:
        if begun.contents["dimension"] != dimension:
            raise MismatchError(
                f"{collection.place} has {begun.contents['dimension']} dimensions, "
                f"the vectors have {dimension}",
                "choose another --collection, or replace it with --overwrite",
            )
        there = collection.rows_there()
        logger.info(f"{collection.place}: {there:,} rows are there; the load goes on")
        return there

    return onward, begun if begun.complete else None


def _refuse_other_settings(place: str, begun: Manifest, manifest: Manifest) -> None:
    found = differences(begun.settings, manifest.settings)
    found += differences(begun.made_from, manifest.made_from)
    if found:
        raise MismatchError(
            f"{place} was begun with other settings: {'; '.join(found)}",
            "choose another --collection, or replace it with --overwrite",
        )


def _check_count(collection: Collection, gathered: Gathered) -> None:
    expected = gathered.passages * gathered.vectors_per_passage
    there = collection.count()
    if there != expected:
        raise ServerError(
            f"{collection.place} holds {there:,} rows where {expected:,} were written",
            "load it again with --overwrite",
        )
