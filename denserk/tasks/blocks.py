"""Work on a long source in numbered blocks: checked first, cut into shards, resumed, overlapped.

`ahead` and `behind` overlap the stages of one task. The work itself stays in the caller's thread,
which reads the source too, so that an interrupt is felt even while a stream keeps it waiting.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from denserk.errors import InputError, MismatchError, UsageError
from denserk.io.checks import IdLedger
from denserk.io.corpus import duplicate
from denserk.io.files import STREAM
from denserk.io.manifest import Manifest, differences
from denserk.reporting import track

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Texts:
    """Passages or queries, read as often as needed (a stream: once).

    Attributes:
        source: names them in errors.
        unit: "passages" or "queries".
        read: reads them from the start; the id of a record comes first.
    """

    source: str
    unit: str
    read: Callable[[], Iterator[Any]]

    def survey(self) -> int | None:
        """Read all once, so that nothing broken is met after hours; None for a stream.

        Raises:
            InputError: an id occurs twice, or there are no texts.
        """
        if self.source == STREAM:
            return None
        ledger = IdLedger()
        with track(f"checking {self.unit}", None, self.unit) as progress:
            for record in self.read():
                ledger.extend([record[0]])
                progress.advance()
        self._check(ledger)
        return ledger.count

    def _check(self, ledger: IdLedger) -> None:
        if ledger.count == 0:
            raise InputError(self.source, None, f"no {self.unit}", "at least one")
        repeat = ledger.first_repeat()
        if repeat is not None:
            raise duplicate(self.source, self.unit, repeat, self.read)

    def blocks(self, size: int, bounds: tuple[int, int | None]) -> Iterator[tuple[int, list[Any]]]:
        """Yield the blocks of a shard with their numbers in the whole source.

        The ids of a stream are checked at its end.

        >>> list(Texts("c", "passages", lambda: iter("abcde")).blocks(2, (1, 3)))
        [(1, ['c', 'd']), (2, ['e'])]
        """
        first, last = bounds
        own = islice(self.read(), first * size, None if last is None else last * size)
        ledger, number = IdLedger(), first
        while block := list(islice(own, size)):
            if self.source == STREAM:
                ledger.extend(record[0] for record in block)
            yield number, block
            number += 1
        if self.source == STREAM:
            self._check(ledger)


def blocks_of_shard(
    count: int | None, block_size: int, shard_id: int, shard_num: int
) -> tuple[int, int | None]:
    """Return the first block of a shard, and the block after its last; of a stream, the whole.

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


def size_of_shard(count: int | None, block_size: int, bounds: tuple[int, int | None]) -> int | None:
    """Return how many texts a shard has; None if it is not known."""
    first, last = bounds
    if count is None or last is None:
        return None
    return min(count, last * block_size) - first * block_size


def dealt(
    blocks: Iterable[tuple[int, T]], finished: Collection[int], rank: int, size: int
) -> Iterator[tuple[int, T, bool]]:
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
    """Return the SHA-256 of ids and texts, each record given as its parts."""
    digest = sha256()
    for parts in texts:
        digest.update("\x1f".join([*parts, "\x1e"]).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def refuse_other_run(
    where: str | Path, begun: Manifest, now: Manifest, models: Iterable[str]
) -> None:
    """Refuse to continue what was begun with other settings or another model.

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
        if "backend" in new:
            old.setdefault("backend", "torch")  # of earlier versions
        found += differences(old, new, f"{key}.")
    if found:
        raise MismatchError(
            f"{where} was begun with other settings: {'; '.join(found)}",
            "give the same settings, or start over with --overwrite",
        )
    if begun.version != now.version:
        logger.warning(f"{where} was begun by denserk {begun.version}; this is {now.version}")


def ahead(
    prepare: Callable[[T], R], items: Iterable[T], workers: int = 1
) -> Generator[R, None, None]:
    """Yield prepared items in order, prepared by other threads while the caller works.

    Items are read in the caller's thread, at most `workers` + 1 beyond the last one yielded. An
    error is raised once everything before it was yielded. Close the generator
    (`contextlib.closing`) if the caller may stop early.

    >>> list(ahead(str.upper, ["a", "b", "c"]))
    ['A', 'B', 'C']
    """
    reading = iter(items)
    waiting: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="ahead")

    def begin() -> bool:
        """Begin one more item; False if there is none."""
        try:
            waiting.append(pool.submit(prepare, next(reading)))
        except StopIteration:
            return False
        except Exception as error:  # noqa: BLE001 - raised again, in its turn
            waiting.append(Future())
            waiting[-1].set_exception(error)
            return False
        return True

    try:
        more = True
        while more or waiting:
            while more and len(waiting) <= workers:
                more = begin()
            if waiting:
                yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def behind(finish: Callable[[T], object]) -> Iterator[Callable[[T], None]]:
    """Yield a function that hands an item to `finish`, which works in a thread of its own.

    Handing over the next item waits until the one before is finished, and raises its error; leaving
    does the same.

    >>> finished = []
    >>> with behind(finished.append) as hand_over:
    ...     hand_over(1)
    ...     hand_over(2)
    >>> finished
    [1, 2]
    """
    last: Future[object] = Future()
    last.set_result(None)
    with ThreadPoolExecutor(1, thread_name_prefix="behind") as pool:

        def hand_over(item: T) -> None:
            nonlocal last
            last.result()
            last = pool.submit(finish, item)

        try:
            yield hand_over
        except Exception:
            last.result()  # what went wrong behind came first
            raise
        last.result()
