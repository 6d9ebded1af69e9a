"""Lines that are written block by block for hours, and take their name only once they are whole.

Until then they stand in a folder beside it, NAME.unfinished: `lines`, the finished blocks one after
another; the journal that tells where each ends; and manifest.json. A kill costs the block that was
being made.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from denserk.errors import UsageError
from denserk.io.block_journal import Block, append_to_journal, read_journal, write_journal
from denserk.io.files import whole_binary, write_errors
from denserk.io.manifest import Manifest, beside, write_manifest
from denserk.io.outputs import UNFINISHED

LINES = "lines"


@dataclass(frozen=True)
class LineBlock(Block):
    """One finished block of lines; `end` is the byte behind its last one."""

    end: int


def folder_of(output: str | Path) -> Path:
    """Where the unfinished lines of an output stand.

    >>> folder_of("out/expansions.jsonl").name
    'expansions.jsonl.unfinished'
    """
    return Path(f"{output}{UNFINISHED}")


def refuse_occupied_file(output: str | Path, *, overwrite: bool, resume: bool) -> None:
    """Refuses an output that is there, finished or begun, unless a flag says what becomes of it.

    Raises:
        UsageError: it is there, or it is a folder.
    """
    path, unfinished = Path(output), folder_of(output)
    if path.exists() and not path.is_file():
        raise UsageError(f"{output} is no file; a file is expected", "choose another --output")
    if overwrite or resume:
        return
    if unfinished.exists():
        raise UsageError(
            f"{output} was begun and not finished (its part is in {unfinished})",
            "add --resume to continue it, --overwrite to start over, or choose another output",
        )
    if path.exists():
        raise UsageError(
            f"{output} exists", "add --overwrite to replace it, or choose another output"
        )


class UnfinishedLines:
    """Writes blocks of lines in their order, and gives the whole its name.

    Args:
        output: the name; `.gz` is compressed in the end.
        manifest: settings and inputs of the run; `complete` must be false.
        overwrite: start over where something was begun.
    """

    def __init__(self, output: str | Path, manifest: Manifest, *, overwrite: bool) -> None:
        self._output, self._manifest = Path(output), manifest
        self._folder = folder_of(output)
        self._lines = self._folder / LINES
        with write_errors(output):
            if overwrite:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True, exist_ok=True)
            self.finished = self._whole_blocks()
            end = max((block.end for block in self.finished.values()), default=0)
            with self._lines.open("ab") as lines:
                lines.truncate(end)
        write_manifest(self._folder, manifest)
        write_journal(self._folder, self.finished.values())

    def _whole_blocks(self) -> dict[int, LineBlock]:
        blocks = read_journal(self._folder, LineBlock)
        if blocks and not self._lines.exists() and self._output.exists():
            self._output.replace(self._lines)  # killed after the renaming, before the last word
        size = self._lines.stat().st_size if self._lines.exists() else 0
        return {block.number: block for block in blocks if block.end <= size}

    def write(self, block: Block, lines: bytes) -> None:
        """Adds a block; it counts as finished once its lines are on the disk."""
        with write_errors(self._output), self._lines.open("ab") as out:
            out.write(lines)
            out.flush()
            os.fsync(out.fileno())
            end = out.tell()
        done = LineBlock(block.number, block.count, block.input_sha256, end)
        append_to_journal(self._folder, done)
        self.finished[block.number] = done

    def finish(self, contents: Mapping[str, Any]) -> None:
        """Gives the lines their name, with a manifest beside them."""
        with write_errors(self._output):
            if self._output.suffix == ".gz":
                with whole_binary(self._output) as packed, self._lines.open("rb") as lines:
                    shutil.copyfileobj(lines, packed, 1 << 20)
            else:
                self._lines.replace(self._output)
            whole = replace(self._manifest, complete=True, contents=contents)
            write_manifest(self._output, whole)
            shutil.rmtree(self._folder)


def begun_manifest(output: str | Path) -> Path | None:
    """What has the manifest of an output that was begun, or else finished; None for neither."""
    unfinished = folder_of(output)
    if beside(unfinished).exists():
        return unfinished
    return Path(output) if Path(output).exists() else None
