"""Concurrent requests are collected for a moment and answered together, in one worker thread."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import NamedTuple, TypeAlias, TypeVar

from denserk.config.serving import HttpSettings
from denserk.errors import BeingWrittenError, DenserkError, reason_of
from denserk.serving.indexes import ServedIndex
from denserk.serving.metrics import Metrics
from denserk.serving.requests import AnsweredHit, RequestError, SearchRequest
from denserk.serving.search import SearchService

logger = logging.getLogger(__name__)

T = TypeVar("T")
Answer: TypeAlias = list[AnsweredHit]
RETRY_SECONDS = 1  # after which a client may ask again


class WaitingRequest(NamedTuple):
    """A request, and where its answer is expected."""

    request: SearchRequest
    answer: "asyncio.Future[Answer]"


class Batcher:
    """Answers requests in batches; `running` must be entered first, in the event loop.

    All work on the indexes is done by one thread. So a batch has the version of an index with
    which it began, and an index that was rebuilt is exchanged between two batches.
    """

    def __init__(self, service: SearchService, settings: HttpSettings, metrics: Metrics) -> None:
        self.service = service
        self.metrics = metrics
        self._settings = settings
        self._queue: asyncio.Queue[WaitingRequest] = asyncio.Queue()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="search")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests, and look for rebuilt indexes, until the end of the block."""
        tasks = [
            asyncio.create_task(self._answer_batches()),
            asyncio.create_task(self._reload_indexes()),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
            self._worker.shutdown(wait=False, cancel_futures=True)

    async def search(self, request: SearchRequest) -> Answer:
        """Return the answer of a request; a RequestError if too many wait, or the search fails."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        with self._one_waiting():
            self._queue.put_nowait(WaitingRequest(request, answer))
            return await answer

    async def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Return what a function of the service returns; a RequestError if too many wait."""
        with self._one_waiting():
            return await self._in_worker(function, *arguments)

    @contextmanager
    def _one_waiting(self) -> Iterator[None]:
        """Count a request while it is answered; a RequestError if too many are."""
        if self.metrics.waiting >= self._settings.max_waiting:
            message = f"Too many requests: {self.metrics.waiting} wait; ask again later"
            raise RequestError(503, message, RETRY_SECONDS)
        self.metrics.waiting += 1
        try:
            yield
        finally:
            self.metrics.waiting -= 1

    async def _in_worker(self, function: Callable[..., T], *arguments: object) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, function, *arguments)

    async def _answer_batches(self) -> None:
        """Answer the requests of the queue, as many together as have come meanwhile."""
        while True:
            batch = [await self._queue.get()]
            await asyncio.sleep(self._settings.batch_milliseconds / 1000)
            while len(batch) < self._settings.batch_queries and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            await self._answer(batch)

    async def _answer(self, batch: Sequence[WaitingRequest]) -> None:
        """Answer the requests of a batch; if it fails, each alone, so that others do not suffer."""
        self.metrics.batches += 1
        self.metrics.batched_queries += len(batch)
        requests = [waiting.request for waiting in batch]
        try:
            answers = await self._in_worker(self.service.answer, requests)
        except Exception as error:  # noqa: BLE001  (it is the answer of the request)
            if len(batch) == 1:
                _set_error(batch[0], error)
                return
            for waiting in batch:
                await self._answer([waiting])
            return
        for waiting, answer in zip(batch, answers, strict=True):
            if not waiting.answer.done():
                waiting.answer.set_result(answer)

    async def _reload_indexes(self) -> None:
        """Open indexes again whose folders were rebuilt, while the old versions answer."""
        while True:
            await asyncio.sleep(self._settings.reload_seconds)
            for index in self.service.indexes.values():
                await self._reload_if_rebuilt(index)

    async def _reload_if_rebuilt(self, index: ServedIndex) -> None:
        """Open the new version of an index and exchange it; the old one stays if that fails."""
        try:
            if not await asyncio.to_thread(index.was_rebuilt):
                index.reload_error = None
                return
            opened = await asyncio.to_thread(index.open)
        except Exception as error:  # noqa: BLE001  (whatever it is, the old version answers)
            message = reason_of(error)
            if message != index.reload_error:
                hint = error.hint if isinstance(error, DenserkError) else None
                warning = f"{index.name} answers from its old version: {message}"
                logger.warning(warning, extra={"hint": hint})
            index.reload_error = message
            return
        await self._in_worker(index.replace, opened)


def _set_error(waiting: WaitingRequest, error: Exception) -> None:
    """Answer a request by an error: of an index that was just rebuilt, or an internal one."""
    if waiting.answer.done():
        return
    if isinstance(error, BeingWrittenError):
        error = RequestError(503, "The index is being rebuilt; ask again later", RETRY_SECONDS)
    waiting.answer.set_exception(error)
