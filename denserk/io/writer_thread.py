"""Writing beside the computation: a thread that does what it is given, in order."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Event
from types import TracebackType
from typing import Self


class WriterThread:
    """Calls functions one after the other in a thread of its own.

    At the end of its `with` block, what was submitted is done. After an error nothing more is
    called, and the error is raised in the caller's thread: by the next `submit` or `raise_error`,
    or at the end of the block.

    >>> written = []
    >>> with WriterThread() as writer:
    ...     for number in range(3):
    ...         writer.submit(lambda number=number: written.append(number))
    >>> written
    [0, 1, 2]
    """

    def __init__(self, waiting: int = 1) -> None:
        """Start no thread yet; at most `waiting` calls wait while one is running."""
        self._waiting = waiting
        self._calls: deque[Future[None]] = deque()
        self._failed = Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="writer")

    def __enter__(self) -> Self:
        """Return the thread."""
        return self

    def __exit__(
        self,
        error_class: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for the submitted calls; raise the error of one, unless the block raised one."""
        try:
            wait(self._calls)
        finally:
            # An interrupt may have ended the wait: the caller cleans up, and nothing writes then.
            wait(self._calls)
            self._pool.shutdown()
        if error is None:
            self.raise_error()

    def submit(self, call: Callable[[], object]) -> None:
        """Call a function after those submitted before; wait while too many of them wait."""
        while len(self._calls) > self._waiting:
            self._calls.popleft().result()
        self.raise_error()
        self._calls.append(self._pool.submit(self._run, call))

    def raise_error(self) -> None:
        """Raise the error of a call that failed, if there is one; wait for none."""
        while self._calls and self._calls[0].done():
            self._calls.popleft().result()

    def _run(self, call: Callable[[], object]) -> None:
        """Call a function, unless one before failed."""
        if self._failed.is_set():
            return
        try:
            call()
        except BaseException:
            self._failed.set()
            raise
