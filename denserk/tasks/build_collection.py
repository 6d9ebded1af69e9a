"""Vectors -> a collection of Milvus."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, fields, replace

from denserk.errors import MismatchError, UsageError
from denserk.formats.files import STREAM
from denserk.formats.folder_checks import verify_folders
from denserk.formats.manifest import Kind, Manifest, differences, encoded
from denserk.formats.model_chain import common_model
from denserk.index.milvus import EXHAUSTIVE, Collection, MilvusIndex, load
from denserk.index.recall import DEPTH, recall_over_blocks
from denserk.index.vector_index import Vectors
from denserk.index.vector_inputs import expanded, open_sources
from denserk.settings.milvus import CollectionSettings, MilvusIndexSettings
from denserk.settings.options import spelled
from denserk.settings.retrieval import Engine, IndexPaths, IndexSettings, SearchSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CollectionResult:
    """A collection: passages, rows, seconds; recall if it is approximate."""

    count: int
    rows: int
    seconds: float
    recall: float | None = None


def build_collection(
    paths: IndexPaths, settings: IndexSettings, milvus: MilvusIndexSettings
) -> CollectionResult:
    """Load vectors into a collection of Milvus, or resume an interrupted load.

    Args:
        paths: the vectors; there is no output folder.
        settings: `engine` is milvus, all else the defaults.
        milvus: the collection and its index.

    Raises:
        UsageError: options do not go together, an input does not exist, or the collection does.
        InputError: an id occurs twice, a vector is not finite, or there is nothing to load.
        MismatchError: the inputs do not belong together, or --resume finds other settings.
        ServerError: the server does not answer, or rejects a request.
        OutputError: the server has no room.
    """
    began = time.perf_counter()
    _reject_folder_options(paths, settings)
    if paths.verify:
        verify_folders(expanded(paths.input))
    sources = open_sources(paths.input, paths.allow_pickle)
    manifest = Manifest(
        Kind.INDEX,
        False,
        {
            "engine": Engine.MILVUS.value,
            "milvus_index": milvus.milvus_index,
            "milvus_params": milvus.parameters,
            "metric": "inner",
        },
        {"vectors": [source.name for source in sources], "model": common_model(sources)},
    )
    with closing(Collection(milvus, create=True)) as collection:
        start, finished = _start(collection, paths, manifest, milvus)
        if finished is None:
            gathered = load(collection, sources, start, milvus.milvus_batch)
            contents = {
                "count": gathered.passages,
                "dimension": gathered.dimension,
                "vectors_per_passage": gathered.vectors_per_passage,
            }
            finished = replace(manifest, complete=True, contents=contents)
            collection.set_properties(manifest=encoded(finished).decode())
            streamed = any(source.name == STREAM for source in sources)
            if milvus.milvus_index not in EXHAUSTIVE and not streamed:

                def blocks() -> Iterator[Vectors]:
                    return (vectors for source in sources for _, vectors in source.blocks())

                place = CollectionSettings(milvus.uri, milvus.collection)
                with closing(MilvusIndex(place, SearchSettings(hits=DEPTH))) as index:
                    recall, depth, asked = recall_over_blocks(index, blocks, settings.seed)
                logger.info(
                    f"{milvus.milvus_index}: recall@{depth} {recall:.3f}, "
                    f"for {asked} of its own vectors as queries"
                )
                finished = replace(finished, contents={**contents, "recall": round(recall, 4)})
                collection.set_properties(manifest=encoded(finished).decode())
        else:
            logger.info(f"{milvus.place} is finished: nothing to do")
    count, size = (int(finished.contents[name]) for name in ("count", "vectors_per_passage"))
    seconds = time.perf_counter() - began
    return CollectionResult(count, count * size, seconds, finished.contents.get("recall"))


def _reject_folder_options(paths: IndexPaths, settings: IndexSettings) -> None:
    """Raise a UsageError for options of an index folder."""
    default = IndexSettings(engine=Engine.MILVUS)
    names = [field.name for field in fields(settings) if field.name != "seed"]
    given = {name: getattr(settings, name) for name in names}
    changed = {name: value for name, value in given.items() if value != getattr(default, name)}
    for name in ("corpus", "trained_as", "output"):
        if getattr(paths, name):
            changed[name] = getattr(paths, name)
    for name, value in changed.items():
        raise UsageError(
            f"{spelled(name, IndexSettings, IndexPaths)} {value} is not for --engine milvus",
            "it takes --input, --uri, --collection and --set milvus-index, milvus-params",
        )


def _start(
    collection: Collection, paths: IndexPaths, manifest: Manifest, milvus: MilvusIndexSettings
) -> tuple[Callable[[int], int], Manifest | None]:
    """Return what creates or continues the collection, and the manifest of a finished one."""

    def create(dimension: int) -> int:
        collection.create(dimension, replace(manifest, contents={"dimension": dimension}), milvus)
        return 0

    exists = collection.exists()
    if exists and paths.overwrite:
        collection.drop()
    if not exists or paths.overwrite:
        return create, None
    if not paths.resume:
        raise UsageError(
            f"{collection.place} exists already", "--resume continues it, --overwrite replaces it"
        )
    found = collection.manifest()
    changed = differences(found.settings, manifest.settings)
    changed += differences(found.made_from, manifest.made_from)

    def resume(dimension: int) -> int:
        if found.contents["dimension"] != dimension:
            raise MismatchError(
                f"{collection.place} has {found.contents['dimension']} dimensions, "
                f"the vectors have {dimension}",
                "choose another --collection, or replace it with --overwrite",
            )
        there = collection.rows_there()
        logger.info(f"{collection.place}: {there:,} rows are there; the load is resumed")
        return there

    if changed:
        raise MismatchError(
            f"{collection.place} was started with other settings: {'; '.join(changed)}",
            "choose another --collection, or replace it with --overwrite",
        )
    return resume, found if found.complete else None
