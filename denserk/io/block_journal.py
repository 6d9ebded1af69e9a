"""Journal of an output that is written block by block: JSON lines of the finished blocks."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import orjson

from denserk.errors import InputError
from denserk.io.files import read_file, whole_binary, write_errors
from denserk.io.schema import TEXT, mapping, record, require, whole

JOURNAL = "blocks.jsonl"
OTHERS = "blocks-*.jsonl"  # of ranks 1, 2, ... until their lines are copied into the first journal


def journal_of(rank: int) -> str:
    """Return the name of the journal of a process.

    >>> journal_of(0), journal_of(3)
    ('blocks.jsonl', 'blocks-3.jsonl')
    """
    return OTHERS.replace("*", str(rank)) if rank else JOURNAL


@dataclass(frozen=True)
class Block:
    """A finished block: number in the corpus, count of passages, SHA-256 of its texts.

    `sha256` maps suffixes of its files to their SHA-256; empty in journals of older versions.
    """

    number: int
    count: int
    input_sha256: str
    sha256: Mapping[str, str] = field(default_factory=dict, compare=False, kw_only=True)

    @property
    def name(self) -> str:
        """Stem of its files.

        >>> Block(7, 4096, "").name
        'block-00007'
        """
        return f"block-{self.number:05d}"


B = TypeVar("B", bound=Block)
_LINE = record(
    {"number": whole(), "count": whole(1), "input_sha256": TEXT},
    {"end": whole(), "sha256": mapping(TEXT)},
)


def read_journal(folder: Path, kind: type[B]) -> list[B]:
    """Read the finished blocks of all processes; a last line cut short by a kill is no block.

    Raises:
        InputError: another line is broken.
    """
    found: dict[int, B] = {}
    hint = "start over with --overwrite"
    for where in [folder / JOURNAL, *sorted(folder.glob(OTHERS))]:
        lines = read_file(where).splitlines(keepends=True) if os.path.lexists(where) else []
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                values = orjson.loads(line)
                require(values, _LINE, where, number, hint)
                block = kind(**values)
            except (ValueError, TypeError):
                raise InputError(
                    where, number, "a broken line", "one finished block a line", hint
                ) from None
            found[block.number] = block
    return list(found.values())


def _line(block: Block) -> bytes:
    values = asdict(block)
    if not block.sha256:
        del values["sha256"]
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
