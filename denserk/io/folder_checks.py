"""Validation of vector folders and indexes before they are used: ids, counts, sizes, checksums.

What is cheap is checked whenever a folder is opened: the journal and every file of ids against
their checksums (files without one are checked id by id), and the sizes of all other files.
`verify_folders` also reads the vectors and the index, and compares their checksums.
"""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from denserk.errors import InputError, MismatchError
from denserk.io.block_journal import JOURNAL, Block, read_journal
from denserk.io.files import read_chunks, read_errors, read_file, read_text_lines
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
AT_ONCE = 1 << 16  # Ids that are checked together


class _Ids(NamedTuple):
    """Where ids stand and what is known of them."""

    path: Path
    lines: int | None
    sha256: str | None
    unique: bool


def check_vectors(folder: Path, manifest: Manifest, blocks: Sequence[Block]) -> None:
    """Check a vector folder's journal and ids against its manifest.

    Raises:
        InputError: a file is missing or was changed, or a line is no id.
        MismatchError: counts disagree, or blocks are missing.
    """
    require_fields(folder, manifest, "contents", "count", "dimension", "dtype")
    contents, numbers = manifest.contents, [block.number for block in blocks]
    digest = contents.get("journal_sha256")
    if digest is not None:
        _compare(folder / JOURNAL, digest)
    if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise MismatchError(
            f"{folder} lacks blocks between {numbers[0]} and {numbers[-1]}", "encode with --resume"
        )
    for what, told, found in (
        ("blocks", contents.get("blocks", len(blocks)), len(blocks)),
        ("passages", contents["count"], sum(block.count for block in blocks)),
    ):
        if told != found:
            raise MismatchError(
                f"{folder} holds {found:,} {what} by its journal, {told:,} by its {NAME}",
                "encode again with --overwrite",
            )
    for block in blocks:
        path = folder / f"{block.name}.{DOCID}"
        _check_ids(_Ids(path, block.count, block.sha256.get(DOCID), unique=False))


def check_index(folder: Path, manifest: Manifest | None) -> None:
    """Check an index folder's ids and the sizes of its files; without a manifest, its ids alone.

    Raises:
        InputError: a file is missing or was changed, a line is no id, or an id stands twice.
        MismatchError: there are not as many ids as the manifest says.
    """
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
        _check_ids(_Ids(path, lines, contents.get("sha256", {}).get(DOCID), unique=True))


def verify_folders(names: Iterable[str]) -> None:
    """Compare every file of finished vector folders and indexes with its checksum.

    Args:
        names: folders; what is none, or has no checksums, is reported.

    Raises:
        InputError: a file is missing or was changed.
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
    """The files of a folder that have checksums."""
    where = beside(folder)
    if not folder.is_dir() or not where.exists():
        return {}
    manifest = decoded(read_file(where), where)
    if manifest.kind is Kind.INDEX:
        named = read_manifest(folder, Kind.INDEX).contents.get("sha256", {})
        return {folder / name: digest for name, digest in named.items()}
    read_manifest(folder, Kind.VECTORS)
    return {
        folder / f"{block.name}.{suffix}": digest
        for block in read_journal(folder, Block)
        for suffix, digest in block.sha256.items()
    }


def _compare(path: Path, digest: str) -> None:
    if file_sha256(path) != digest:
        raise InputError(
            path, None, "bytes that differ from the checksum written with them", digest[:12], AGAIN
        )


def _check_ids(ids: _Ids) -> None:
    """Check one file of ids: by its checksum where it has one, else id by id."""
    digest, lines = hashlib.sha256(), 0
    if ids.sha256 is None:
        lines = _check_each(ids)
    else:
        with read_errors(ids.path), ids.path.open("rb") as handle:
            for chunk in read_chunks(handle, ids.path):
                digest.update(chunk)
                lines += chunk.count(b"\n")
        if digest.hexdigest() != ids.sha256:
            raise InputError(
                ids.path,
                None,
                "ids that differ from the checksum written with them",
                ids.sha256[:12],
                AGAIN,
            )
    if ids.lines is not None and lines != ids.lines:
        raise InputError(ids.path, None, f"{lines:,} ids", f"{ids.lines:,} ids", AGAIN)


def _check_each(ids: _Ids) -> int:
    """Check that every line is an id and, where asked for, that no id stands twice."""
    hashes = [np.empty(0, np.int64)]
    for number, names in _in_parts(ids.path):
        for line, name in (
            enumerate(names, start=number) if names != " ".join(names).split() else ()
        ):
            identifier(name, ids.path, line, "passage")
        hashes.append(np.fromiter(map(hash, names), np.int64, len(names)))
    keys = np.concatenate(hashes)
    if ids.unique:
        ordered = np.sort(keys)
        if (ordered[1:] == ordered[:-1]).any():
            _refuse_repeats(ids.path, set(ordered[1:][ordered[1:] == ordered[:-1]].tolist()))
    return len(keys)


def _refuse_repeats(path: Path, hashes: set[int]) -> None:
    """Raise an error at the second line of an id whose hash occurs twice."""
    seen: dict[str, int] = {}
    for number, names in _in_parts(path):
        for line, name in enumerate(names, start=number):
            if hash(name) in hashes and seen.setdefault(name, line) != line:
                raise InputError(
                    path,
                    line,
                    f"the id {name} again (first in line {seen[name]:,})",
                    "each id once",
                    "remove one of them and index again",
                )


def _in_parts(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first line, ids) of a file, without white space at their ends."""
    lines, number = read_text_lines(path), 1
    while names := [line.rstrip() for _, line in islice(lines, AT_ONCE)]:
        yield number, names
        number += len(names)
