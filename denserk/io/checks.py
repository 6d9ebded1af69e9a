"""Validation of ids, vector folders and indexes: duplicates, counts, sizes, checksums.

What is cheap is checked whenever a folder is opened: the journal and every file of ids against
their checksums (files without one are checked id by id), and the sizes of all other files.
`verify_folders` also reads the vectors and the index, and compares their checksums.
"""

import logging
from array import array
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from denserk.errors import InputError, MismatchError
from denserk.io.blocks import JOURNAL, Block, read_journal
from denserk.io.files import read_errors, read_file, read_text_lines
from denserk.io.json_records import identifier
from denserk.io.manifest import (
    NAME,
    Kind,
    Manifest,
    beside,
    decoded,
    file_sha256,
    read_manifest,
    require_fields,
)
from denserk.reporting import track

logger = logging.getLogger(__name__)

DOCID = "docid"
AGAIN = "the file was changed or damaged: copy it again, or make the folder again"
AT_ONCE = 1 << 16  # ids that are checked together


class IdLedger:
    """Takes ids in order, and finds the first that repeats an earlier one; 8 bytes per id.

    Two different ids of 21 million share a 64-bit hash with a probability of 1e-5.

    >>> ledger = IdLedger()
    >>> ledger.extend(["a", "b", "a"])
    >>> ledger.count, ledger.first_repeat()
    (3, (0, 2))
    """

    def __init__(self) -> None:
        self._hashes = array("q")

    @property
    def count(self) -> int:
        """Number of ids."""
        return len(self._hashes)

    def extend(self, docids: Iterable[str]) -> None:
        """Take the next ids."""
        self._hashes.extend(map(hash, docids))

    def first_repeat(self) -> tuple[int, int] | None:
        """Return (position it repeats, position), from 0, of the first repeat; None without one."""
        hashes = np.array(self._hashes, np.int64)
        ordered = np.sort(hashes)
        repeated = ordered[1:][ordered[1:] == ordered[:-1]]
        seen: dict[int, int] = {}
        for position in np.flatnonzero(np.isin(hashes, repeated)).tolist():
            first = seen.setdefault(int(hashes[position]), position)
            if first != position:
                return first, position
        return None


def check_vectors(folder: Path, manifest: Manifest, blocks: Sequence[Block]) -> None:
    """Check a vector folder's journal and ids against its manifest."""
    require_fields(folder, manifest, "contents", "count", "dimension", "dtype")
    contents, numbers = manifest.contents, [block.number for block in blocks]
    if "journal_sha256" in contents:
        _compare(folder / JOURNAL, contents["journal_sha256"])
    if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise MismatchError(
            f"{folder} lacks blocks between {numbers[0]} and {numbers[-1]}", "encode with --resume"
        )
    for what, expected, found in (
        ("blocks", contents.get("blocks", len(blocks)), len(blocks)),
        ("passages", contents["count"], sum(block.count for block in blocks)),
    ):
        if expected != found:
            raise MismatchError(
                f"{folder} holds {found:,} {what} by its journal, {expected:,} by its {NAME}",
                "encode again with --overwrite",
            )
    for block in blocks:
        path = folder / f"{block.name}.{DOCID}"
        _check_ids(path, block.count, block.sha256.get(DOCID), unique=False)


def check_index(folder: Path, manifest: Manifest | None) -> None:
    """Check an index folder's ids and the sizes of its files; without a manifest, its ids alone."""
    contents = {} if manifest is None else manifest.contents
    if manifest is not None:
        require_fields(folder, manifest, "contents", "count")
    for name, size in contents.get("bytes", {}).items():
        with read_errors(folder / name):
            found = (folder / name).stat().st_size
        if found != size:
            raise InputError(folder / name, None, f"{found:,} bytes", f"{size:,} bytes", AGAIN)
    path = folder / DOCID
    if path.exists():
        count = contents.get("count")
        lines = None if count is None else count * contents.get("vectors_per_passage", 1)
        _check_ids(path, lines, contents.get("sha256", {}).get(DOCID), unique=True)


def verify_folders(names: Iterable[str]) -> None:
    """Compare every file of finished vector folders and indexes with its checksum.

    What is no such folder, or has no checksums, is reported.
    """
    for name in names:
        sums = _checksums(Path(name))
        if not sums:
            logger.warning(f"--verify: {name} holds no checksums, and is not verified")
            continue
        with track(f"verifying {name}", len(sums), "files") as progress:
            for path, digest in sums.items():
                _compare(path, digest)
                progress.advance()


def _checksums(folder: Path) -> dict[Path, str]:
    """Return the files of a folder that have checksums."""
    where = beside(folder)
    if not folder.is_dir() or not where.exists():
        return {}
    if decoded(read_file(where), where).kind is Kind.INDEX:
        named = read_manifest(folder, Kind.INDEX).contents.get("sha256", {})
        return {folder / name: digest for name, digest in named.items()}
    read_manifest(folder, Kind.VECTORS)
    return {
        folder / f"{block.name}.{suffix}": digest
        for block in read_journal(folder).values()
        for suffix, digest in block.sha256.items()
    }


def _compare(path: Path, digest: str) -> None:
    if file_sha256(path) != digest:
        found = "bytes that differ from the checksum written with them"
        raise InputError(path, None, found, digest[:12], AGAIN)


def _check_ids(path: Path, count: int | None, sha256: str | None, *, unique: bool) -> None:
    """Check a file of `count` ids: by its checksum if it has one, else id by id."""
    if sha256 is not None:
        _compare(path, sha256)
        return
    ledger, lines = IdLedger(), read_text_lines(path)
    while names := [line.rstrip() for _, line in islice(lines, AT_ONCE)]:
        if names != " ".join(names).split():
            for line, name in enumerate(names, start=ledger.count + 1):
                identifier(name, path, line, "passage")
        ledger.extend(names)
    if count is not None and ledger.count != count:
        raise InputError(path, None, f"{ledger.count:,} ids", f"{count:,} ids", AGAIN)
    repeat = ledger.first_repeat() if unique else None
    if repeat is not None:
        first, second = repeat
        _, name = next(islice(read_text_lines(path), second, None))
        found = f"the id {name.rstrip()} again (first in line {first + 1:,})"
        hint = "remove one of them and index again"
        raise InputError(path, second + 1, found, "each id once", hint)
