"""The vectors that an index is built from: several folders and files, checked and gathered."""

import glob
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from denserk.config.retrieval import Metric
from denserk.errors import MismatchError, UsageError
from denserk.io.corpus import IdLedger
from denserk.io.files import STREAM
from denserk.io.manifest import Description, Manifest, common_model, reject_mixed_precision
from denserk.io.vector_formats import VectorBlock, Vectors, check_dimension, part_names, write_flat
from denserk.io.vectors import VectorSource, read_vector_blocks
from denserk.reporting import Progress, track

logger = logging.getLogger(__name__)


def expanded(inputs: Sequence[str], option: str = "--input") -> list[str]:
    """Return the inputs of `option`, patterns replaced by the sorted names that they match."""
    names: list[str] = []
    for name in inputs:
        if name == STREAM or Path(name).exists() or not glob.has_magic(name):
            names.append(name)
            continue
        matches = glob.glob(name)  # noqa: PTH207 - patterns with folders
        if not matches:
            raise UsageError(f"{option} {name}: the pattern matches nothing")
        names += sorted(matches, key=_numeric_order)
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{option} {name} is given twice")
    return names


def _numeric_order(name: str) -> list[int | str]:
    """Return a key that sorts shard-2 before shard-10."""
    texts_and_numbers = re.split(r"(\d+)", name)
    return [int(text) if text.isdecimal() else text for text in texts_and_numbers]


def open_sources(inputs: Sequence[str], allow_pickle: bool = False) -> list[VectorSource]:
    """Open every input before anything is written."""
    sources = [read_vector_blocks(name, allow_pickle=allow_pickle) for name in expanded(inputs)]
    counts = [(source.name, source.vectors_per_passage) for source in sources]
    require_same("vectors per passage", counts)
    check_shards([(source.name, source.manifest) for source in sources])
    return sources


def model_of_sources(sources: Sequence[VectorSource]) -> Description | None:
    """Return the model of all sources; raise an error for several models or precisions."""
    named_manifests = [(source.name, source.manifest) for source in sources]
    model = common_model(named_manifests)
    reject_mixed_precision(named_manifests)
    return model


def checksums_of_sources(sources: Sequence[VectorSource]) -> list[str | None]:
    """Return the checksum of each folder's journal, which lists those of its files of vectors."""
    return [
        None if source.manifest is None else source.manifest.contents.get("journal_sha256")
        for source in sources
    ]


def require_same(unit: str, values: Sequence[tuple[str, Any]]) -> None:
    """Raise a MismatchError if values, given with the names that they belong to, differ."""
    if not values:
        return
    first_name, first_value = values[0]
    for name, value in values[1:]:
        if value != first_value:
            message = f"{first_name} has {first_value} {unit}, {name} has {value}"
            raise MismatchError(message)


class _Shard(NamedTuple):
    """One of several shards of a corpus, as the manifest of its folder says."""

    folder: str
    shard_num: int  # shards of the corpus
    shard_id: Any
    block_size: Any


def check_shards(manifests: Sequence[tuple[str, Manifest | None]]) -> None:
    """Reject shards of one corpus, given with their names, whose block sizes differ.

    Shards are whole blocks, so such shards overlap or leave passages out.
    """
    shards: dict[tuple[int, Any], _Shard] = {}
    for name, manifest in manifests:
        settings = {} if manifest is None else manifest.settings
        shard_num = settings.get("shard_num")
        if not isinstance(shard_num, int) or shard_num < 2:
            continue  # a whole corpus
        shard = _Shard(name, shard_num, settings.get("shard_id"), settings.get("block_size"))
        # where a shard comes twice, the second one is of another corpus
        shards.setdefault((shard.shard_num, shard.shard_id), shard)
    _require_one_block_size(list(shards.values()))
    are_of_one_corpus = len({shard_num for shard_num, _ in shards}) == 1
    if are_of_one_corpus and len(shards) == len(manifests):
        _warn_of_missing(list(shards.values()))


def _require_one_block_size(shards: Sequence[_Shard]) -> None:
    """Raise a MismatchError if shards of one number differ in their block size."""
    first_shards: dict[int, _Shard] = {}  # by the number of shards
    for shard in shards:
        first = first_shards.setdefault(shard.shard_num, shard)
        if shard.block_size != first.block_size:
            message = (
                f"{first.folder} was encoded in blocks of {first.block_size} passages, "
                f"{shard.folder} in blocks of {shard.block_size}"
            )
            hint = f"encode all shards with one --block-size, for example {first.block_size}"
            raise MismatchError(message, hint)


def _warn_of_missing(shards: Sequence[_Shard]) -> None:
    """Warn if shards of one corpus are not all; one shard alone may be meant."""
    if len(shards) == 1:
        return
    missing = sorted(set(range(shards[0].shard_num)) - {shard.shard_id for shard in shards})
    if missing:
        logger.warning(f"shards are missing among the inputs: {missing} (counted from 0)")


def known_count(sources: Sequence[VectorSource]) -> int | None:
    """Return the number of passages if the manifest of every source has it."""
    total = 0
    for source in sources:
        count = None if source.manifest is None else source.manifest.contents.get("count")
        if count is None:
            return None
        total += int(count)
    return total


def checked_blocks(sources: Sequence[VectorSource]) -> Iterator[VectorBlock]:
    """Yield the blocks of several sources; at the end, reject an id that occurred twice."""
    dimension = 0
    ledger = IdLedger()
    for source in sources:
        ledger.start(source.name)
        for block in source.blocks():
            dimension = check_dimension(block, dimension, source.name)
            ledger.extend(block.ids)
            yield block

    def all_ids() -> Iterator[str]:
        for source in sources:
            for block in source.read():
                yield from block.ids

    has_stream = any(source.name == STREAM for source in sources)  # which is read once
    ledger.reject_repeat(None if has_stream else all_ids)


def gather(sources: Sequence[VectorSource], vectors: Path, metric: Metric) -> dict[str, int]:
    """Stream vectors into a flat file, and ids into `docid` beside it; return their counts."""
    size = sources[0].vectors_per_passage
    with track("reading vectors", known_count(sources), "passages") as progress:
        blocks = _named_blocks(sources, size, progress)
        rows, dimension = write_flat(vectors, metric, blocks)
    return {"count": rows // size, "vectors_per_passage": size, "dimension": dimension}


def _named_blocks(
    sources: Sequence[VectorSource], size: int, progress: Progress
) -> Iterator[tuple[list[str], Vectors]]:
    """Yield the vectors of sources in blocks, each with the names of its vectors."""
    for block in checked_blocks(sources):
        names: list[str] = []
        for docid in block.ids:
            names += part_names(docid, size)
        yield names, block.vectors
        progress.advance(len(block.ids))
