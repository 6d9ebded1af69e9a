"""Stages of one piece of work that overlap: items made ready ahead of it, and finished behind it.

The work itself stays in the caller's thread, which reads the source too, so that an interrupt is
felt even while a stream keeps it waiting. Order is kept throughout, and what is in hand is bounded.
An error leaves as it would without threads: once everything before it is done.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import Empty, Full, Queue
from threading import Thread
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ahead(
    prepare: Callable[[T], R], items: Iterable[T], workers: int = 1
) -> Generator[R, None, None]:
    """What `prepare` makes of each item, made in other threads while the caller works.

    Close it (`contextlib.closing`) where an error of the caller's may end it early.

    Args:
        prepare: makes an item ready.
        items: read in the caller's thread, at most `workers` + 1 beyond the last one yielded.
        workers: threads.

    >>> list(ahead(str.upper, ["a", "b", "c"]))
    ['A', 'B', 'C']
    """
    reading = iter(items)
    waiting: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="ahead")

    def begin() -> bool:
        """Begins one more item; False where there is none."""
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
    """Yields a function that hands an item to `finish`, which works in a thread of its own.

    One item may wait while another is being finished; handing over a third waits. Leaving waits
    until all are finished. After an error nothing more is finished; it is raised when the next item
    is handed over, or on leaving.

    >>> finished = []
    >>> with behind(finished.append) as hand_over:
    ...     hand_over(1)
    ...     hand_over(2)
    >>> finished
    [1, 2]
    """
    waiting: Queue[tuple[T] | None] = Queue(1)
    failures: list[BaseException] = []

    def work() -> None:
        while (item := _next(waiting)) is not None:
            if not failures:
                try:
                    finish(*item)
                except BaseException as error:  # noqa: BLE001 - raised again by the caller
                    failures.append(error)

    def refuse() -> None:
        if failures:
            raise failures[0]

    def hand_over(item: T) -> None:
        refuse()
        waiting.put((item,))

    thread = Thread(target=work, name="behind", daemon=True)  # `_end` waits for it
    try:
        thread.start()
        yield hand_over
    except Exception:
        _end(waiting, thread)
        refuse()  # what went wrong behind came first
        raise
    except BaseException:
        _end(waiting, thread)
        raise
    _end(waiting, thread)
    refuse()


# A signal that raises in the main thread can leave a queue's condition with a waiter that nobody
# waits for any more, and the next notification is lost on it. So nothing here waits for ever.


def _next(waiting: "Queue[tuple[T] | None]") -> tuple[T] | None:
    while True:
        with suppress(Empty):
            return waiting.get(timeout=1)


def _end(waiting: "Queue[tuple[T] | None]", thread: Thread) -> None:
    while thread.is_alive():
        with suppress(Full):
            waiting.put(None, timeout=0.1)
        thread.join(0.1)
