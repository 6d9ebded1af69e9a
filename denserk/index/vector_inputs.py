"""Inputs of an index: named by patterns, checked, and streamed into one flat file."""

import glob
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from denserk.config.retrieval import Metric
from denserk.errors import InputError, MismatchError, UsageError
from denserk.index.index_folder import DOCID, part_names
from denserk.io.checks import IdLedger
from denserk.io.files import STREAM, whole_binary, whole_text
from denserk.io.flat_file import FlatWriter
from denserk.io.manifest import Manifest
from denserk.io.vector_formats import VectorBlock, check_dimension
from denserk.io.vectors import VectorSource, read_vector_blocks
from denserk.reporting import track

logger = logging.getLogger(__name__)


class Gathered(NamedTuple):
    """Number of passages, vectors of each passage, dimension."""

    passages: int
    vectors_per_passage: int
    dimension: int


def _by_number(path: str) -> list[tuple[int, str]]:
    """Return a sort key that puts shard-2 before shard-10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path)
    ]


def expanded(inputs: Sequence[str], option: str = "--input") -> list[str]:
    """Return the inputs of `option`, patterns replaced by the sorted names that they match.

    Raises:
        UsageError: a pattern matches nothing, or an input is named twice.
    """
    found: list[str] = []
    for name in inputs:
        if name == STREAM or Path(name).exists() or not glob.has_magic(name):
            found.append(name)
            continue
        matches = sorted(glob.glob(name), key=_by_number)  # noqa: PTH207 - patterns with folders
        if not matches:
            raise UsageError(f"{option} {name}: the pattern matches nothing")
        found += matches
    for name in found:
        if found.count(name) > 1:
            raise UsageError(f"{option} {name} is given twice")
    return found


def open_sources(
    inputs: Sequence[str], allow_pickle: bool = False, others_elsewhere: bool = False
) -> list[VectorSource]:
    """Open every input before anything is written.

    Args:
        inputs: names and patterns.
        allow_pickle: whether pickles are read.
        others_elsewhere: do not warn of missing shards.

    Raises:
        UsageError: an input does not exist, or does not hold vectors.
        MismatchError: inputs differ in vectors per passage, or shards in their block size.
    """
    opened = [read_vector_blocks(name, allow_pickle=allow_pickle) for name in expanded(inputs)]
    first = opened[0]
    for source in opened[1:]:
        if source.vectors_per_passage != first.vectors_per_passage:
            raise MismatchError(
                f"{first.name} has {first.vectors_per_passage} vectors per passage, "
                f"{source.name} has {source.vectors_per_passage}"
            )
    refuse_other_blocks([(source.name, source.manifest) for source in opened])
    if not others_elsewhere:
        warn_of_missing_shards(opened)
    return opened


def refuse_other_blocks(named: Sequence[tuple[str, Manifest | None]]) -> None:
    """Reject shards of one corpus, given with their names, whose block sizes differ.

    Shards are whole blocks, so such shards overlap or leave passages out.

    Raises:
        MismatchError: block sizes differ.
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
                f"{other} was encoded in blocks of {expected} passages, {name} in blocks of {size}:"
                " these shards are not parts of one run",
                f"encode all shards with one --block-size, for example {expected}",
            )


def warn_of_missing_shards(sources: Sequence[VectorSource]) -> None:
    """Warn if shards of one corpus are missing."""
    manifests = [source.manifest for source in sources if source.manifest is not None]
    numbers = {manifest.settings.get("shard_num", 1) for manifest in manifests}
    if len(manifests) == len(sources) and len(numbers) == 1:
        there = {manifest.settings.get("shard_id", 0) for manifest in manifests}
        missing = sorted(set(range(numbers.pop())) - there)
        if missing:
            names = ", ".join(map(str, missing))
            logger.warning(f"shards are missing among the inputs: {names} (counted from 0)")


def known_count(sources: Sequence[VectorSource]) -> int | None:
    """Return the number of passages if the manifest of every source has it."""
    counts = [None if s.manifest is None else s.manifest.contents.get("count") for s in sources]
    return sum(int(c) for c in counts if c is not None) if None not in counts else None


class CheckedBlocks:
    """The blocks of several sources in a row: one dimension, every id once.

    Args:
        sources: in the order of the index.
        ledger: takes every id.
    """

    def __init__(self, sources: Sequence[VectorSource], ledger: IdLedger) -> None:
        self._sources, self._ledger = sources, ledger
        self._begins: list[tuple[int, VectorSource]] = []
        self.dimension = 0

    def __iter__(self) -> Iterator[VectorBlock]:
        for source in self._sources:
            self._begins.append((self._ledger.count, source))
            for block in source.blocks():
                self.dimension = check_dimension(block, self.dimension, source.name)
                self._ledger.extend(block.ids)
                yield block

    def refuse_repeats(self, name_of: Callable[[int], str]) -> None:
        """Reject ids that came twice, after the last block; see `refuse_repeat`."""

        def source_at(position: int) -> str:
            return next(s.name for begin, s in reversed(self._begins) if begin <= position)

        refuse_repeat(self._ledger, source_at, name_of)


def refuse_repeat(
    ledger: IdLedger, source_at: Callable[[int], str], name_of: Callable[[int], str]
) -> None:
    """Reject ids that the ledger took twice.

    Args:
        ledger: has taken every id.
        source_at: returns the source of the passage at a position.
        name_of: returns its id.

    Raises:
        InputError: an id occurs twice.
    """
    repeat = ledger.first_repeat()
    if repeat is not None:
        first, second = repeat
        raise InputError(
            source_at(second),
            None,
            f"the id {name_of(second)} again (vector {second + 1:,}; first as vector "
            f"{first + 1:,}, in {source_at(first)})",
            "each id once",
        )


def gather(sources: Sequence[VectorSource], vectors: Path, metric: Metric) -> Gathered:
    """Stream vectors into a flat file and their ids into `docid` beside it, one block in memory.

    Raises:
        InputError: an id occurs twice, a number is not finite, there is no vector, or the sources
            differ in their dimension.
    """
    size, ledger = sources[0].vectors_per_passage, IdLedger()
    with (
        whole_text(vectors.with_name(DOCID)) as lines,
        whole_binary(vectors) as rows,
        track("reading vectors", known_count(sources), "passages") as progress,
    ):
        flat, blocks = FlatWriter(rows, metric), CheckedBlocks(sources, ledger)
        for block in blocks:
            flat.add(block.vectors)
            names = block.ids
            if size > 1:
                names = [name for docid in names for name in part_names(docid, size)]
            lines.write("\n".join([*names, ""]))
            progress.advance(len(block.ids))

        def name_of(position: int) -> str:
            lines.flush()
            with Path(lines.name).open(encoding="utf-8") as written:
                line = next(islice(written, position * size, None)).rstrip()
            return line.rpartition("#")[0] if size > 1 else line

        blocks.refuse_repeats(name_of)
        flat.finish()
        return Gathered(ledger.count, size, flat.dimension)
