"""Work on a long source in numbered blocks: looked over first, dealt into shards, continued."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TypeVar

from denserk.errors import InputError, MismatchError, UsageError
from denserk.io.corpus import duplicate
from denserk.io.files import STREAM
from denserk.io.id_ledger import IdLedger
from denserk.io.manifest import Manifest, differences
from denserk.records import Passage, Query
from denserk.reporting import track

logger = logging.getLogger(__name__)

R = TypeVar("R")
Reading = Callable[[], Iterator[Passage] | Iterator[Query]]  # Begins to read a source anew


def survey(source: str, unit: str, read: Reading) -> int | None:
    """Reads a source once, lest something broken is met after hours; its count, None for a stream.

    Raises:
        InputError: an id occurs twice, or the source is empty.
    """
    if source == STREAM:
        return None
    with IdLedger() as ledger:
        with track(f"checking {unit}", None, unit) as progress:
            for record in read():
                ledger.add(record[0])
                progress.advance()
        check_ids(source, unit, read, ledger)
        return ledger.count


def check_ids(source: str, unit: str, read: Reading, ledger: IdLedger) -> None:
    """Refuses a source without texts, and one that names two texts alike.

    Raises:
        InputError: it is one of these.
    """
    if ledger.count == 0:
        raise InputError(source, None, f"no {unit}", "at least one")
    repeat = ledger.first_repeat()
    if repeat is not None:
        raise duplicate(source, unit, repeat, read)


def blocks_of_shard(
    count: int | None, block_size: int, shard_id: int, shard_num: int
) -> tuple[int, int | None]:
    """First block of a shard, and the block after its last; of a stream, the whole.

    Raises:
        UsageError: there are fewer blocks than shards.

    >>> [blocks_of_shard(10_000, 1024, shard, 3) for shard in range(3)]
    [(0, 3), (3, 6), (6, 10)]
    """
    if count is None:
        return 0, None
    blocks = -(-count // block_size)
    if shard_num > blocks:
        raise UsageError(
            f"--shard-num {shard_num}: {count:,} texts make only {blocks} blocks of {block_size:,}",
            f"use at most {blocks} shards, or a smaller --block-size",
        )
    return blocks * shard_id // shard_num, blocks * (shard_id + 1) // shard_num


def numbered_blocks(
    records: Iterator[R], size: int, bounds: tuple[int, int | None]
) -> Iterator[tuple[int, list[R]]]:
    """The blocks of a shard with their numbers in the whole source.

    >>> list(numbered_blocks(iter("abcde"), 2, (1, 3)))
    [(1, ['c', 'd']), (2, ['e'])]
    """
    first, last = bounds
    own = islice(records, first * size, None if last is None else last * size)
    number = first
    while block := list(islice(own, size)):
        yield number, block
        number += 1


def dealt(
    blocks: Iterable[tuple[int, R]], finished: Collection[int], rank: int, size: int
) -> Iterator[tuple[int, R, bool]]:
    """Yield numbered blocks, and whether each is processed by this rank.

    Finished and unfinished blocks are dealt round robin apart, so that what one process lost is
    shared by all when the work is continued.

    >>> [number for number, _, own in dealt(enumerate("abcdefg"), {0, 2, 4}, 1, 2) if own]
    [2, 3, 6]
    """
    turn = {True: 0, False: 0}
    for number, block in blocks:
        done = number in finished
        yield number, block, turn[done] % size == rank
        turn[done] += 1


def texts_sha256(texts: Iterable[Sequence[str]]) -> str:
    """SHA-256 of ids and texts, each record given as its parts."""
    digest = sha256()
    for parts in texts:
        digest.update("\x1f".join([*parts, "\x1e"]).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def refuse_other_run(
    where: str | Path, begun: Manifest, now: Manifest, models: Iterable[str]
) -> None:
    """Refuses to continue what was begun with other settings or another model.

    Args:
        where: what is continued.
        begun: its manifest.
        now: the manifest of this run.
        models: keys of `made_from` that describe models; their names do not count.

    Raises:
        MismatchError: something differs; all of it is named.
    """
    found = differences(begun.settings, now.settings)
    for key in models:
        old, new = dict(begun.made_from.get(key) or {}), dict(now.made_from.get(key) or {})
        for described in (old, new):
            described.pop("name", None)  # a folder may have moved
            if described.get("plain") is False:  # written by earlier versions
                del described["plain"]
        found += differences(old, new, f"{key}.")
    if found:
        raise MismatchError(
            f"{where} was begun with other settings: {'; '.join(found)}",
            "give the same settings, or start over with --overwrite",
        )
    if begun.version != now.version:
        logger.warning(f"{where} was begun by denserk {begun.version}; this is {now.version}")
