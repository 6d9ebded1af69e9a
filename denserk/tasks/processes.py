"""Several processes at one piece of work: started here, one a device, or joined under torchrun.

What they tell each other is small (counts, names of blocks) and goes through gloo, on any device.
A process that ends before its work is done ends the work of all.
"""

import logging
import os
import pickle
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeVar

import torch.distributed as dist

from denserk.errors import DenserkError, UsageError
from denserk.reporting import Progress, show_progress, track

T = TypeVar("T")
Made = TypeVar("Made", covariant=True)
PATIENCE = timedelta(days=30)
"""How long a process waits for the others, who may have days of work left."""
KEPT = "what was finished is kept: continue with --resume"


class Crew:
    """The processes of one piece of work, seen by one of them; this one works alone.

    Attributes:
        rank: this process's number, from 0.
        size: how many there are.
    """

    rank, size = 0, 1

    def first(self, work: Callable[[], T]) -> T:
        """Work that the first process does; all get what it made, or its error."""
        return work()

    def gather(self, item: T) -> list[T]:
        """Everybody's items in rank order, in the first process; nothing in the others."""
        return [item]


ALONE = Crew()


class _LostError(DenserkError):
    """Another process ended, which is told where that is known."""


class _Gloo(Crew):
    """Processes that have met through torch.distributed."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def first(self, work: Callable[[], T]) -> T:
        told: list[Any] = [None]
        if self.rank == 0:
            try:
                told = [(work(), None)]
            except Exception as error:  # noqa: BLE001 - raised again by all
                told = [(None, _portable(error))]
        with _lost():
            dist.broadcast_object_list(told, src=0)
        made, failure = told[0]
        if failure is not None:
            raise failure
        found: T = made
        return found

    def gather(self, item: T) -> list[T]:
        items: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with _lost():
            dist.gather_object(item, items, dst=0)
        return items or []


@contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except RuntimeError:
        raise _LostError("another process of this run ended before it was done", KEPT) from None


def _portable(error: Exception) -> Exception:
    """An error that another process can be told."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - whatever a foreign error does when it is packed
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


@contextmanager
def _met(**how: Any) -> Iterator[Crew]:
    dist.init_process_group("gloo", timeout=PATIENCE, **how)
    try:
        yield _Gloo()
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True)
class Launched:
    """What torchrun says of this process: its number on its machine, and how many there are."""

    local_rank: int
    size: int


def launched() -> Launched | None:
    """What torchrun says in the environment; None where one process was started.

    Raises:
        UsageError: it says only a part of it.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return None
    if missing := [n for n in ("RANK", "MASTER_ADDR", "MASTER_PORT") if n not in os.environ]:
        raise UsageError(
            f"WORLD_SIZE is {size} and {missing[0]} is not set",
            "start the processes with torchrun, or unset WORLD_SIZE",
        )
    return Launched(int(os.environ.get("LOCAL_RANK", "0")), size)


@contextmanager
def under_torchrun() -> Iterator[Crew]:
    """The processes that torchrun started, this one among them."""
    with _met() as crew:
        yield crew


class Work(Protocol[Made]):
    """What each process does on its device; it is sent to them, and must allow that (pickle)."""

    def __call__(self, device: str, crew: Crew) -> Made:
        """Does it, and returns what the first process's caller gets."""


class _Forwarding(logging.Handler):
    """Sends messages and progress to the parent process; ends this one where that one is gone."""

    def __init__(self, to: Connection) -> None:
        super().__init__()
        self._to, self._lock = to, Lock()

    def send(self, *message: Any) -> None:
        with self._lock:
            try:
                self._to.send(message)
            except BrokenPipeError:
                os._exit(1)

    def emit(self, record: logging.LogRecord) -> None:
        self.send("log", record.name, record.levelno, record.getMessage())

    @contextmanager
    def track(self, what: str, total: int | None, unit: str) -> Iterator[Progress]:
        self.send("track", what, total, unit)
        yield _ForwardingProgress(self)
        self.send("tracked")


class _ForwardingProgress(Progress):
    def __init__(self, to: _Forwarding) -> None:
        self._to = to

    def advance(self, count: int = 1) -> None:
        self._to.send("advance", count)

    def tell(self, text: str) -> None:
        self._to.send("tell", text)

    def set_total(self, total: int) -> None:
        self._to.send("set_total", total)


def _process(
    work: Work[Any], device: str, rank: int, size: int, meeting: str, to: Connection
) -> None:
    """One process that was started here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends us
    forward = _Forwarding(to)
    logging.getLogger("denserk").addHandler(forward)
    logging.getLogger("denserk").setLevel(logging.INFO)
    show_progress(forward.track)
    try:
        with _met(init_method=f"file://{meeting}", rank=rank, world_size=size) as crew:
            forward.send("made", work(device, crew))
    except Exception as error:  # noqa: BLE001 - raised again by the parent
        forward.send("failed", _portable(error))


class _Watch:
    """What the processes say: the first one's words are passed on, any error ends the work."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack, self._progress = stack, Progress()

    def hear(self, rank: int, kind: str, *given: Any) -> None:
        if rank == 0 and kind == "log":
            name, level, text = given
            logging.getLogger(name).log(level, text)
        elif rank == 0 and kind == "track":
            self._progress = self._stack.enter_context(track(*given))
        elif rank == 0 and kind == "tracked":
            self._stack.close()
        elif rank == 0 and kind in ("advance", "tell", "set_total"):
            getattr(self._progress, kind)(*given)


def _listen(ends: Sequence[tuple[str, Any, Connection]], watch: _Watch) -> Any:
    """What the first process made.

    Raises:
        Exception: the first error of any process, or a word on the one that was killed; only where
            nothing else is known, that some process lost another.
    """
    ranks = {connection: rank for rank, (_, _, connection) in enumerate(ends)}
    made: dict[int, Any] = {}
    lost: Exception | None = None
    while ranks:
        for ready in wait(list(ranks)):
            assert isinstance(ready, Connection)
            rank = ranks[ready]
            try:
                kind, *given = ready.recv()
            except (EOFError, ConnectionResetError):
                kind, given = "ended", []
            if kind == "made":
                made[rank] = given[0]
            elif kind == "failed" and not isinstance(given[0], _LostError):
                raise given[0]
            elif kind == "failed":
                lost = given[0]
            watch.hear(rank, kind, *given)
            if kind in ("made", "failed", "ended"):
                del ranks[ready]
            if kind == "ended":
                raise _ended(rank, *ends[rank][:2])
    if lost is not None:
        raise lost
    return made[0]


def _ended(rank: int, device: str, process: Any) -> DenserkError:
    process.join()
    status = process.exitcode
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return DenserkError(f"process {rank} of this run, on {device}, {how}", KEPT)


def on_devices(devices: Sequence[str], work: Work[T]) -> T:
    """Starts a process for each device and waits for them; the first one's result.

    Args:
        devices: names of devices, one a process.
        work: what each does.

    Raises:
        DenserkError: what one of them raised, or that one was killed; the others are ended.
    """
    context = get_context("spawn")
    ends: list[tuple[str, Any, Connection]] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ExitStack() as bars:
        meeting = str(Path(folder) / "meeting")
        try:
            for rank, device in enumerate(devices):
                receiver, sender = context.Pipe(duplex=False)
                given = (work, device, rank, len(devices), meeting, sender)
                process = context.Process(target=_process, args=given, daemon=True)
                process.start()
                sender.close()
                ends.append((device, process, receiver))
            found: T = _listen(ends, _Watch(bars))
            for _, process, _ in ends:
                process.join()
            return found
        finally:
            for _, process, _ in ends:
                process.kill()
                process.join()
