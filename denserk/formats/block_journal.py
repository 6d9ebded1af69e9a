"""What is finished of an output that is made block by block: JSON lines beside it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import orjson

from denserk.errors import InputError
from denserk.formats.files import whole_binary, write_errors

JOURNAL = "blocks.jsonl"
OTHERS = "blocks-*.jsonl"
"""Journals of the other processes at the same output, until their lines stand in the first one."""


def journal_of(rank: int) -> str:
    """The journal that a process of several adds to.

    >>> journal_of(0), journal_of(3)
    ('blocks.jsonl', 'blocks-3.jsonl')
    """
    return OTHERS.replace("*", str(rank)) if rank else JOURNAL


@dataclass(frozen=True)
class Block:
    """One finished block: its number in the corpus, its count, the SHA-256 of its texts."""

    number: int
    count: int
    input_sha256: str

    @property
    def name(self) -> str:
        """The stem of its files.

        >>> Block(7, 4096, "").name
        'block-00007'
        """
        return f"block-{self.number:05d}"


B = TypeVar("B", bound=Block)


def read_journal(folder: Path, kind: type[B], name: str = JOURNAL) -> list[B]:
    """The finished blocks; a last line cut short by a kill is not a block.

    Raises:
        InputError: another line is broken.
    """
    where = folder / name
    if not where.exists():
        return []
    blocks: list[B] = []
    for line in where.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        try:
            blocks.append(kind(**orjson.loads(line)))
        except (ValueError, TypeError):
            raise InputError(
                where,
                len(blocks) + 1,
                "a broken line",
                "one finished block a line",
                "start over with --overwrite",
            ) from None
    return blocks


def _line(block: Block) -> bytes:
    return orjson.dumps(asdict(block), option=orjson.OPT_APPEND_NEWLINE)


def write_journal(folder: Path, blocks: Iterable[Block]) -> None:
    """Writes the journal whole, in the order of the blocks' numbers."""
    with whole_binary(folder / JOURNAL) as handle:
        for block in sorted(blocks, key=lambda block: block.number):
            handle.write(_line(block))


def append_to_journal(folder: Path, block: Block, name: str = JOURNAL) -> None:
    """Adds a block that is finished."""
    with write_errors(folder), (folder / name).open("ab") as journal:
        journal.write(_line(block))


def read_journals(folder: Path, kind: type[B]) -> list[B]:
    """The finished blocks of all processes; one that two journals hold is there once.

    Raises:
        InputError: see `read_journal`.
    """
    names = [JOURNAL, *(path.name for path in sorted(folder.glob(OTHERS)))]
    found = {b.number: b for name in names for b in read_journal(folder, kind, name)}
    return list(found.values())


def write_only_journal(folder: Path, blocks: Iterable[Block]) -> None:
    """`write_journal`, after which those of other processes are removed."""
    write_journal(folder, blocks)
    with write_errors(folder):
        for other in folder.glob(OTHERS):
            other.unlink()
