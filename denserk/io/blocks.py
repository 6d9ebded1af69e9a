"""Inputs in numbered blocks, and folders that are written block by block and can be resumed.

A folder holds the files of each block, a journal with one JSON line per finished block, and
manifest.json. A kill costs the blocks that are not written yet. A file of lines is built from such
a folder beside it, NAME.unfinished.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b, sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from denserk.config.options import from_json
from denserk.errors import InputError, MismatchError, UsageError
from denserk.io.corpus import IdLedger
from denserk.io.durability import make_folder
from denserk.io.file_errors import write_errors
from denserk.io.files import STREAM, read_file
from denserk.io.json_records import dump_json
from denserk.io.manifest import Manifest, differences, file_sha256, write_manifest
from denserk.io.outputs import (
    JOURNAL,
    discard_replaced,
    reject_occupied,
    remove_own_files,
    unfinished_folder,
)
from denserk.io.unchanged import changed
from denserk.io.written_files import flush_written, whole_binary
from denserk.reporting import track

logger = logging.getLogger(__name__)

# of ranks 1, 2, ... until their lines are copied into the first journal
RANK_JOURNALS = "blocks-*.jsonl"

Hashes = NDArray[np.bytes_]  # (N,) of 16 bytes each


@dataclass
class Texts:
    """Passages or queries, read as often as needed (a stream: once)."""

    source: str
    unit: str  # "passages" or "queries"
    # yields all records, one or more, each a sequence that begins with the id
    read: Callable[[], Iterator[Any]]
    # the ids of the last reading by `checked`
    counted: IdLedger | None = field(default=None, init=False)

    def checked(self) -> Iterator[Any]:
        """Yield all records; after the last one, reject a repeated id."""
        ledger = IdLedger()
        ledger.start(self.source)
        self.counted = ledger
        for record in self.read():
            ledger.extend([record[0]])
            yield record
        ledger.reject_repeat(None if self.source == STREAM else self._ids, self.unit)

    def _ids(self) -> Iterator[str]:
        """Read the ids once more, for the error that names a repeated one."""
        return (record[0] for record in self.read())

    def count(self) -> int | None:
        """Read and check all texts, before hours of work; None for a stream."""
        if self.source == STREAM:
            return None
        count = 0
        with track(f"checking {self.unit}", None, self.unit) as progress:
            for _ in self.checked():
                count += 1
                progress.advance()
        return count

    def blocks(self, size: int, start: int, stop: int | None) -> Iterator[tuple[int, list[Any]]]:
        """Yield the blocks of a shard with their numbers in the whole source.

        `size`, `start` and `stop` count texts, as `shard_bounds` returns them. Without a `stop`, as
        for a stream, the texts are checked while they are read.
        """
        records = self.checked() if stop is None else self._as_counted(start, stop)
        number = start // size
        while block := list(islice(records, size)):
            yield number, block
            number += 1

    def _as_counted(self, start: int, stop: int) -> Iterator[Any]:
        """Yield the records of a shard; raise an error where they are not those that were counted.

        The first record after the shard is read too, so that texts which grew are noticed. Where
        another process counted, only the number of records is known.
        """
        # of the last shard, there is no hash for a record after it
        hashes = None if self.counted is None else self.counted.hashes(start, stop + 1)
        count = 0  # of records that were read
        for record in islice(self.read(), start, stop + 1):
            if hashes is not None and count == len(hashes):
                raise changed(self.source, f"it has more {self.unit} than the {stop:,} it had")
            if hashes is not None and hash(record[0]) != hashes[count]:
                change = f"number {start + count + 1:,} of its {self.unit} is now {record[0]}"
                raise changed(self.source, change)
            count += 1
            if start + count <= stop:
                yield record
        expected_count = stop - start if hashes is None else len(hashes)
        missing = expected_count - count
        if missing > 0:
            change = f"it has {start + count:,} {self.unit}, and had at least {missing:,} more"
            raise changed(self.source, change)


def shard_bounds(
    count: int | None, block_size: int, shard_id: int, shard_num: int
) -> tuple[int, int | None]:
    """Return the first text of a shard and the end of its last block; of a stream, (0, None).

    >>> [shard_bounds(10_000, 1024, shard, 3) for shard in range(3)]
    [(0, 3072), (3072, 6144), (6144, 10000)]
    """
    if count is None:
        return 0, None
    blocks = -(-count // block_size)
    if shard_num > blocks:
        message = (
            f"--shard-num {shard_num}: {count:,} texts make only {blocks} blocks of {block_size:,}"
        )
        hint = f"use at most {blocks} shards, or a smaller --block-size"
        raise UsageError(message, hint)
    first_block = blocks * shard_id // shard_num
    end_block = blocks * (shard_id + 1) // shard_num
    return first_block * block_size, min(count, end_block * block_size)


def texts_sha256(texts: Iterable[Sequence[str]]) -> str:
    """Return the SHA-256 of ids and texts, each record given as its parts."""
    digest = sha256()
    for parts in texts:
        record = "\x1f".join([*parts, "\x1e"])  # ASCII's separators of units and of records
        digest.update(record.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def text_hashes(texts: Iterable[Sequence[str]]) -> Hashes:
    """Return the 128-bit BLAKE2b hashes of texts, each given as its parts."""
    digests = []
    for parts in texts:
        data = "\x1f".join(parts).encode("utf-8", "surrogatepass")
        digests.append(blake2b(data, digest_size=16).digest())
    return np.frombuffer(b"".join(digests), "S16")


def reject_other_run(
    output: str | Path,
    started: Manifest,
    current: Manifest,
    inputs: Iterable[str],
    hint: str = "give the same settings, or start over with --overwrite",
) -> None:
    """Raise a MismatchError if an output was started with other settings or another model.

    `inputs` are the keys of `made_from` that describe models, or vectors, by a fingerprint.
    """
    phrases = differences(started.settings, current.settings)
    for key in inputs:
        started_input = _description_of_input(started, key)
        current_input = _description_of_input(current, key)
        phrases += differences(started_input, current_input, f"{key}.")
    if phrases:
        message = f"{output} was started with other settings: {'; '.join(phrases)}"
        raise MismatchError(message, hint)
    if started.version != current.version:
        logger.warning(
            f"{output} was started by denserk {started.version}; this is {current.version}"
        )


def _description_of_input(manifest: Manifest, key: str) -> dict[str, Any]:
    """Return the description of an input without what does not change its vectors.

    A folder may have moved, and so may a server; a precision is the same one whether it was
    certified or asked for.
    """
    unchanging = {"name": None, "base_url": None, "certificate": None}
    return {**(manifest.made_from.get(key) or {}), **unchanging}


@dataclass(frozen=True)
class Block:
    """A finished block: number in the corpus, count of passages, SHA-256 of its texts."""

    number: int
    count: int
    input_sha256: str
    # SHA-256 of its files by suffix, once they are written; not compared, so that a finished block
    # equals the one that would be written again of the same texts
    sha256: Mapping[str, str] = field(default_factory=dict, compare=False, kw_only=True)

    @property
    def name(self) -> str:
        """Stem of its files, block-00007."""
        return f"block-{self.number:05d}"


Finished = Mapping[int, Block]  # by number


def read_journal(folder: Path) -> dict[int, Block]:
    """Read the finished blocks of all processes, by number and sorted by it."""
    blocks: dict[int, Block] = {}
    for journal in (folder / JOURNAL, *folder.glob(RANK_JOURNALS)):
        if not journal.exists():
            continue
        for number, line in enumerate(read_file(journal).splitlines(keepends=True), start=1):
            if not line.endswith(b"\n"):
                break  # cut short by a kill
            block = _parse_block(line, journal, number)
            blocks[block.number] = block
    return dict(sorted(blocks.items()))


def _parse_block(line: bytes, journal: Path, number: int) -> Block:
    """Return the block of a line of a journal; errors name the journal and the line's `number`."""
    try:
        block = from_json(Block, orjson.loads(line))
        if block.number < 0 or block.count < 1:
            raise ValueError("numbers out of range")
    except (AttributeError, TypeError, ValueError, UsageError) as error:
        found = f"a broken line ({error})"
        expected = "one finished block"
        raise InputError(journal, number, found, expected, "start over with --overwrite") from None
    return block


def start_folder(folder: Path, manifest: Manifest) -> dict[int, Block]:
    """Prepare a folder for writing or resuming; return its finished blocks by number."""
    finished = read_journal(folder)
    for temporary in folder.glob(".*.part"):  # of a killed process
        temporary.unlink()
    write_manifest(folder, manifest)
    _write_journal(folder, finished)  # a line cut short by a kill must not be continued
    return finished


def _write_journal(folder: Path, blocks: Finished) -> None:
    """Write the journal, sorted by block number, and remove those of other processes."""
    with whole_binary(folder / JOURNAL) as handle:
        handle.writelines(dump_json(block) for _, block in sorted(blocks.items()))
    with write_errors(folder):
        for journal in folder.glob(RANK_JOURNALS):
            journal.unlink()


class BlockFolder:
    """Writes the files of blocks, each renamed when complete, and records finished blocks.

    With several processes, rank 0 calls `start_folder` before the others create their writers, and
    finishes the folder after their blocks were added to its `finished`. The manifest is that of an
    unfinished folder.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, finished: Finished | None = None, rank: int = 0
    ) -> None:
        self._folder = folder
        self._manifest = manifest
        self._journal = folder / JOURNAL
        if rank > 0:
            self._journal = folder / RANK_JOURNALS.replace("*", str(rank))
        if finished is None:
            finished = start_folder(folder, manifest)
        self.finished = dict(finished)

    def write_files(self, block: Block, files: Mapping[str, bytes]) -> None:
        """Write the files of a block, by suffix, and add it to the journal.

        The files are on the disk before the journal names their block.
        """
        paths = {suffix: self._folder / f"{block.name}.{suffix}" for suffix in files}
        for suffix, data in files.items():
            with whole_binary(paths[suffix], flush=False) as handle:
                handle.write(data)
        with write_errors(self._folder):
            flush_written(paths.values())
        digests = {suffix: sha256(data).hexdigest() for suffix, data in files.items()}
        finished_block = replace(block, sha256=digests)
        self.finished[block.number] = finished_block
        with write_errors(self._folder), self._journal.open("ab") as journal:
            journal.write(dump_json(finished_block))
            journal.flush()
            os.fsync(journal.fileno())
        discard_replaced(self._folder)  # now the new folder holds finished work

    def complete(self, contents: Mapping[str, Any]) -> Manifest:
        """Write the journal in order and the manifest; return it."""
        _write_journal(self._folder, self.finished)
        digest = file_sha256(self._folder / JOURNAL)
        contents = {"journal_sha256": digest, **contents}
        manifest = replace(self._manifest, complete=True, contents=contents)
        write_manifest(self._folder, manifest)
        return manifest


class ResumableLines(BlockFolder):
    """Writes blocks of lines, and then the whole file; `overwrite` discards an unfinished one."""

    def __init__(self, output: str | Path, manifest: Manifest, *, overwrite: bool) -> None:
        self._output = Path(output)
        folder = unfinished_folder(output)
        with write_errors(output):
            if overwrite and folder.exists():
                reject_occupied(folder, overwrite=True)
                remove_own_files(folder)
            make_folder(folder)
        super().__init__(folder, manifest)

    def finish(self, contents: Mapping[str, Any]) -> None:
        """Write the file, and its manifest beside it."""
        with whole_binary(self._output) as out:
            for _, block in sorted(self.finished.items()):
                out.write(read_file(self._folder / f"{block.name}.jsonl"))
        write_manifest(self._output, replace(self._manifest, complete=True, contents=contents))
        with write_errors(self._folder):
            remove_own_files(self._folder)
