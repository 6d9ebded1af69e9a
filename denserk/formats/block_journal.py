"""What is finished of an output that is made block by block: JSON lines beside it."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import orjson

from denserk.errors import InputError
from denserk.formats.files import read_file, whole_binary, write_errors
from denserk.formats.schema import TEXT, mapping, record, require, whole

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
    """One finished block: its number in the corpus, its count, the SHA-256 of its texts.

    `sha256` holds the SHA-256 of its files by their suffix; empty in journals of older versions.
    """

    number: int
    count: int
    input_sha256: str
    sha256: Mapping[str, str] = field(default_factory=dict, compare=False, kw_only=True)

    @property
    def name(self) -> str:
        """The stem of its files.

        >>> Block(7, 4096, "").name
        'block-00007'
        """
        return f"block-{self.number:05d}"


B = TypeVar("B", bound=Block)
_LINE = record(
    {"number": whole(), "count": whole(1), "input_sha256": TEXT},
    {"end": whole(), "sha256": mapping(TEXT)},
)


def read_journal(folder: Path, kind: type[B], name: str = JOURNAL) -> list[B]:
    """The finished blocks; a last line cut short by a kill is not a block.

    Raises:
        InputError: another line is broken.
    """
    where = folder / name
    if not os.path.lexists(where):
        return []
    blocks: list[B] = []
    hint = "start over with --overwrite"
    for number, line in enumerate(read_file(where).splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            values = orjson.loads(line)
            require(values, _LINE, where, number, hint)
            blocks.append(kind(**values))
        except (ValueError, TypeError):
            raise InputError(
                where, number, "a broken line", "one finished block a line", hint
            ) from None
    return blocks


def _line(block: Block) -> bytes:
    values = asdict(block)
    if not block.sha256:
        del values["sha256"]
    return orjson.dumps(values, option=orjson.OPT_APPEND_NEWLINE)


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
