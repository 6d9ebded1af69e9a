"""Outputs that are written block by block and can be resumed: the journal, and files of lines.

The journal has one JSON line per finished block. A file of lines stays in a folder beside it,
NAME.unfinished, until it is complete: `lines`, the journal, and manifest.json. A kill costs the
block that was being made.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from denserk.errors import InputError
from denserk.io.files import read_file, whole_binary, write_errors
from denserk.io.manifest import Manifest, beside, write_manifest
from denserk.io.outputs import unfinished_folder
from denserk.io.schema import TEXT, mapping, record, require, whole

JOURNAL = "blocks.jsonl"
OTHERS = "blocks-*.jsonl"  # of ranks 1, 2, ... until their lines are copied into the first journal
LINES = "lines"


def journal_of(rank: int) -> str:
    """Return the name of the journal of a process.

    >>> journal_of(0), journal_of(3)
    ('blocks.jsonl', 'blocks-3.jsonl')
    """
    return OTHERS.replace("*", str(rank)) if rank else JOURNAL


@dataclass(frozen=True)
class Block:
    """A finished block: number in the corpus, count of passages, SHA-256 of its texts.

    Attributes:
        sha256: SHA-256 of its files by suffix; empty in journals of older versions.
        end: in a file of lines, the byte behind the last line.
    """

    number: int
    count: int
    input_sha256: str
    sha256: Mapping[str, str] = field(default_factory=dict, compare=False, kw_only=True)
    end: int | None = field(default=None, compare=False, kw_only=True)

    @property
    def name(self) -> str:
        """Stem of its files.

        >>> Block(7, 4096, "").name
        'block-00007'
        """
        return f"block-{self.number:05d}"


_FIELDS = {"number": whole(), "count": whole(1), "input_sha256": TEXT}
_LINE = record(_FIELDS, {"end": whole(), "sha256": mapping(TEXT)})


def read_journal(folder: Path) -> list[Block]:
    """Read the finished blocks of all processes; a last line cut short by a kill is no block."""
    found: dict[int, Block] = {}
    hint = "start over with --overwrite"
    for where in [folder / JOURNAL, *sorted(folder.glob(OTHERS))]:
        lines = read_file(where).splitlines(keepends=True) if os.path.lexists(where) else []
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                values = orjson.loads(line)
                require(values, _LINE, where, number, hint)
                block = Block(**values)
            except (ValueError, TypeError):
                expected = "one finished block a line"
                raise InputError(where, number, "a broken line", expected, hint) from None
            found[block.number] = block
    return list(found.values())


def _line(block: Block) -> bytes:
    values = {name: value for name, value in asdict(block).items() if value not in ({}, None)}
    return orjson.dumps(values, option=orjson.OPT_APPEND_NEWLINE)


def write_journal(folder: Path, blocks: Iterable[Block]) -> None:
    """Write the journal, sorted by block number, and remove those of other processes."""
    with whole_binary(folder / JOURNAL) as handle:
        handle.writelines(map(_line, sorted(blocks, key=lambda block: block.number)))
    with write_errors(folder):
        for other in folder.glob(OTHERS):
            other.unlink()


def append_to_journal(folder: Path, block: Block, name: str = JOURNAL) -> None:
    """Add a finished block."""
    with write_errors(folder), (folder / name).open("ab") as journal:
        journal.write(_line(block))


class ResumableLines:
    """Writes blocks of lines in order, and renames the file when it is complete.

    Args:
        output: the final path; `.gz` is compressed at the end.
        manifest: settings and inputs of the run, not `complete`.
        overwrite: start over if something was begun.
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
                ends = {block.number: block.end or 0 for block in blocks}
                self.finished = {b.number: b for b in blocks if ends[b.number] <= lines.tell()}
                lines.truncate(max((ends[number] for number in self.finished), default=0))
        write_manifest(self._folder, manifest)
        write_journal(self._folder, self.finished.values())

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


def begun_manifest(output: str | Path) -> Path | None:
    """Return what has the manifest of an output, unfinished or else finished; None for neither."""
    unfinished = unfinished_folder(output)
    if beside(unfinished).exists():
        return unfinished
    return Path(output) if Path(output).exists() else None
