"""Inputs of an index: named by patterns, checked, and streamed into one flat file."""

import glob
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from denserk.config.retrieval import Metric
from denserk.errors import MismatchError, UsageError
from denserk.index.folder import part_names
from denserk.io.corpus import IdLedger
from denserk.io.files import STREAM
from denserk.io.manifest import Manifest
from denserk.io.vector_formats import VectorBlock, Vectors, check_dimension, write_flat
from denserk.io.vectors import VectorSource, read_vector_blocks
from denserk.reporting import track

logger = logging.getLogger(__name__)


def expanded(inputs: Sequence[str], option: str = "--input") -> list[str]:
    """Return the inputs of `option`, patterns replaced by the sorted names that they match."""

    def by_number(path: str) -> list[int | str]:  # shard-2 before shard-10
        return [int(p) if p.isdecimal() else p for p in re.split(r"(\d+)", path)]

    found: list[str] = []
    for name in inputs:
        if name == STREAM or Path(name).exists() or not glob.has_magic(name):
            found.append(name)
            continue
        matches = sorted(glob.glob(name), key=by_number)  # noqa: PTH207 - patterns with folders
        if not matches:
            raise UsageError(f"{option} {name}: the pattern matches nothing")
        found += matches
    for name in found:
        if found.count(name) > 1:
            raise UsageError(f"{option} {name} is given twice")
    return found


def open_sources(inputs: Sequence[str], allow_pickle: bool = False) -> list[VectorSource]:
    """Open every input before anything is written."""
    opened = [read_vector_blocks(name, allow_pickle=allow_pickle) for name in expanded(inputs)]
    require_same("vectors per passage", [(s.name, s.vectors_per_passage) for s in opened])
    check_shards([(source.name, source.manifest) for source in opened])
    return opened


def require_same(what: str, named: Sequence[tuple[str, Any]]) -> None:
    """Raise a MismatchError if values, given with the names that they belong to, differ."""
    for name, value in named[1:]:
        if value != named[0][1]:
            raise MismatchError(f"{named[0][0]} has {named[0][1]} {what}, {name} has {value}")


def check_shards(named: Sequence[tuple[str, Manifest | None]]) -> None:
    """Reject shards of one corpus, given with their names, whose block sizes differ.

    Shards are whole blocks, so such shards overlap or leave passages out.
    """
    first: dict[int, tuple[str, Any]] = {}
    ids: set[tuple[int, Any]] = set()
    for name, manifest in named:
        chosen = {} if manifest is None else manifest.settings
        number, shard, size = (chosen.get(k) for k in ("shard_num", "shard_id", "block_size"))
        if not isinstance(number, int) or number < 2 or (number, shard) in ids:
            continue  # a whole corpus, or a shard of another one
        ids.add((number, shard))
        other, expected = first.setdefault(number, (name, size))
        if size != expected:
            raise MismatchError(
                f"{other} was encoded in blocks of {expected} passages, {name} in blocks of {size}",
                f"encode all shards with one --block-size, for example {expected}",
            )
    if len(first) == 1 and len(ids) == len(named):
        (number,) = first
        if missing := sorted(set(range(number)) - {shard for _, shard in ids}):
            logger.warning(f"shards are missing among the inputs: {missing} (counted from 0)")


def known_count(sources: Sequence[VectorSource]) -> int | None:
    """Return the number of passages if the manifest of every source has it."""
    counts = [s.manifest.contents.get("count") if s.manifest else None for s in sources]
    return None if None in counts else sum(int(count or 0) for count in counts)


def checked_blocks(sources: Sequence[VectorSource]) -> Iterator[VectorBlock]:
    """Yield the blocks of several sources; at the end, reject an id that occurred twice."""
    dimension, ids = 0, IdLedger()
    for source in sources:
        ids.start(source.name)
        for block in source.blocks():
            dimension = check_dimension(block, dimension, source.name)
            ids.extend(block.ids)
            yield block

    def again() -> Iterator[str]:
        return (docid for source in sources for block in source.read() for docid in block.ids)

    ids.refuse_repeat(None if STREAM in [source.name for source in sources] else again)


def gather(sources: Sequence[VectorSource], vectors: Path, metric: Metric) -> dict[str, int]:
    """Stream vectors into a flat file, and ids into `docid` beside it; return what is there."""
    size = sources[0].vectors_per_passage
    with track("reading vectors", known_count(sources), "passages") as progress:

        def blocks() -> Iterator[tuple[list[str], Vectors]]:
            for block in checked_blocks(sources):
                names = [name for docid in block.ids for name in part_names(docid, size)]
                yield names, block.vectors
                progress.advance(len(block.ids))

        rows, dimension = write_flat(vectors, metric, blocks())
    return {"count": rows // size, "vectors_per_passage": size, "dimension": dimension}
