"""Long inputs in numbered blocks, and outputs that are written block by block and can be resumed.

The journal has one JSON line per finished block. A file of lines stays in a folder beside it,
NAME.unfinished, until it is complete: `lines`, the journal, and manifest.json. A kill costs the
block that was being written.
"""

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from denserk.config.options import from_json
from denserk.errors import InputError, MismatchError, UsageError
from denserk.io.corpus import IdLedger
from denserk.io.files import STREAM, read_file, whole_binary, write_errors
from denserk.io.manifest import Manifest, beside, differences, write_manifest
from denserk.io.outputs import unfinished_folder
from denserk.reporting import track

logger = logging.getLogger(__name__)

JOURNAL = "blocks.jsonl"
OTHERS = "blocks-*.jsonl"  # of ranks 1, 2, ... until their lines are copied into the first journal
LINES = "lines"


@dataclass(frozen=True)
class Texts:
    """Passages or queries, read as often as needed (a stream: once)."""

    source: str
    unit: str  # "passages" or "queries"
    read: Callable[[], Iterator[Any]]  # from the start, one or more; the id comes first

    def checked(self) -> Iterator[Any]:
        """Yield all records; after the last one, reject a repeated id."""
        ledger = IdLedger()
        ledger.start(self.source)
        for record in self.read():
            ledger.extend([record[0]])
            yield record

        def id_at(position: int) -> str:
            return str(next(islice(self.read(), position, None))[0])

        ledger.refuse_repeat(None if self.source == STREAM else id_at, self.unit)

    def count(self) -> int | None:
        """Read and check all texts, before hours of work; None for a stream."""
        if self.source == STREAM:
            return None
        counted = 0
        with track(f"checking {self.unit}", None, self.unit) as progress:
            for _ in self.checked():
                counted += 1
                progress.advance()
        return counted

    def blocks(self, size: int, start: int, stop: int | None) -> Iterator[tuple[int, list[Any]]]:
        """Yield the blocks of a shard with their numbers in the whole source."""
        records = islice(self.checked() if self.source == STREAM else self.read(), start, stop)
        number = start // size
        while block := list(islice(records, size)):
            yield number, block
            number += 1


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
        raise UsageError(
            f"--shard-num {shard_num}: {count:,} texts make only {blocks} blocks of {block_size:,}",
            f"use at most {blocks} shards, or a smaller --block-size",
        )
    first, last = (blocks * shard // shard_num for shard in (shard_id, shard_id + 1))
    return first * block_size, min(count, last * block_size)


def texts_sha256(texts: Iterable[Sequence[str]]) -> str:
    """Return the SHA-256 of ids and texts, each record given as its parts."""
    digest = sha256()
    for parts in texts:
        digest.update("\x1f".join([*parts, "\x1e"]).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def refuse_other_run(
    where: str | Path, started: Manifest, now: Manifest, models: Iterable[str]
) -> None:
    """Raise a MismatchError if an output was started with other settings or another model.

    `models` are the keys of `made_from` that describe models; their names do not count.
    """
    found = differences(started.settings, now.settings)
    for key in models:
        old, new = dict(started.made_from.get(key) or {}), dict(now.made_from.get(key) or {})
        for described in (old, new):
            described.pop("name", None)  # a folder may have moved
            if described.get("plain") is False:  # written by earlier versions
                del described["plain"]
        if "backend" in new:
            old.setdefault("backend", "torch")  # of earlier versions
        found += differences(old, new, f"{key}.")
    if found:
        raise MismatchError(
            f"{where} was started with other settings: {'; '.join(found)}",
            "give the same settings, or start over with --overwrite",
        )
    if started.version != now.version:
        logger.warning(f"{where} was started by denserk {started.version}; this is {now.version}")


@dataclass(frozen=True)
class Block:
    """A finished block: number in the corpus, count of passages, SHA-256 of its texts."""

    number: int
    count: int
    input_sha256: str
    # SHA-256 of its files by suffix; empty in journals of older versions
    sha256: Mapping[str, str] = field(default_factory=dict, compare=False, kw_only=True)
    # in a file of lines, the byte behind the last line
    end: int | None = field(default=None, compare=False, kw_only=True)

    @property
    def name(self) -> str:
        """Stem of its files, block-00007."""
        return f"block-{self.number:05d}"


def journal_of(rank: int) -> str:
    """Return the name of the journal of a process."""
    return OTHERS.replace("*", str(rank)) if rank else JOURNAL


def read_journal(folder: Path) -> dict[int, Block]:
    """Read the finished blocks of all processes, by number and in its order.

    A last line cut short by a kill is no block.
    """
    found: dict[int, Block] = {}
    for where in [folder / JOURNAL, *folder.glob(OTHERS)]:
        lines = read_file(where).splitlines(keepends=True) if os.path.lexists(where) else []
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                block = from_json(Block, orjson.loads(line))
                if block.number < 0 or block.count < 1:
                    raise ValueError("numbers out of range")
            except (AttributeError, TypeError, ValueError, UsageError) as error:
                broken, hint = f"a broken line ({error})", "start over with --overwrite"
                raise InputError(where, number, broken, "one finished block", hint) from None
            found[block.number] = block
    return dict(sorted(found.items()))


def write_journal(folder: Path, blocks: Mapping[int, Block]) -> None:
    """Write the journal, sorted by block number, and remove those of other processes."""
    with whole_binary(folder / JOURNAL) as handle:
        handle.writelines(_line(blocks[number]) for number in sorted(blocks))
    with write_errors(folder):
        for other in folder.glob(OTHERS):
            other.unlink()


def append_to_journal(folder: Path, block: Block, name: str = JOURNAL) -> None:
    """Add a finished block."""
    with write_errors(folder), (folder / name).open("ab") as journal:
        journal.write(_line(block))


def _line(block: Block) -> bytes:
    values = {name: value for name, value in asdict(block).items() if value not in ({}, None)}
    return orjson.dumps(values, option=orjson.OPT_APPEND_NEWLINE)


class ResumableLines:
    """Writes blocks of lines in order, and renames the file when it is complete.

    `.gz` is compressed at the end. `overwrite` discards an unfinished output.
    """

    def __init__(self, output: str | Path, manifest: Manifest, *, overwrite: bool) -> None:
        self._output, self._manifest = Path(output), manifest
        self._folder = unfinished_folder(output)
        self._lines = self._folder / LINES
        with write_errors(output):
            if overwrite:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True, exist_ok=True)
            blocks = read_journal(self._folder)
            if blocks and not self._lines.exists() and self._output.exists():
                self._output.replace(self._lines)  # killed between renaming and manifest
            with self._lines.open("ab") as lines:
                size = lines.tell()
                self.finished = {n: b for n, b in blocks.items() if (b.end or 0) <= size}
                lines.truncate(max((b.end or 0 for b in self.finished.values()), default=0))
        write_manifest(self._folder, manifest)
        write_journal(self._folder, self.finished)

    def write(self, block: Block, lines: bytes) -> None:
        """Add a block; it is finished when its lines are on the disk."""
        with write_errors(self._output), self._lines.open("ab") as out:
            out.write(lines)
            out.flush()
            os.fsync(out.fileno())
            block = replace(block, end=out.tell())
        append_to_journal(self._folder, block)
        self.finished[block.number] = block

    def finish(self, contents: Mapping[str, Any]) -> None:
        """Rename the file, and write its manifest beside it."""
        with write_errors(self._output):
            if self._output.suffix == ".gz":
                with whole_binary(self._output) as packed, self._lines.open("rb") as lines:
                    shutil.copyfileobj(lines, packed, 1 << 20)
            else:
                self._lines.replace(self._output)
            write_manifest(self._output, replace(self._manifest, complete=True, contents=contents))
            shutil.rmtree(self._folder)


def started_output(output: str | Path) -> Path | None:
    """Return what has the manifest of an output, unfinished or else finished; None for neither."""
    unfinished = unfinished_folder(output)
    if beside(unfinished).exists():
        return unfinished
    return Path(output) if Path(output).exists() else None
