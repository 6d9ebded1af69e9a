"""Calls in a thread of its own: in order, few at a time, and an error is heard of at once."""

import signal
import time
from functools import partial
from threading import Event, current_thread, main_thread

import pytest

from denserk.io.writer_thread import WriterThread

PATIENCE = 20  # seconds


def test_calls_run_beside_the_caller_in_order():
    started = Event()
    go_on = Event()
    written: list[int] = []

    def write(number):
        assert current_thread() is not main_thread()
        started.set()
        assert go_on.wait(PATIENCE)
        written.append(number)

    with WriterThread() as thread:
        for number in range(2):  # neither of which is done
            thread.submit(partial(write, number))
        assert started.wait(PATIENCE)
        assert written == []
        go_on.set()
        for number in range(2, 6):
            thread.submit(partial(write, number))
    assert written == list(range(6))


def test_no_more_than_two_calls_are_kept():
    done: list[int] = []
    with WriterThread() as thread:
        for number in range(9):
            thread.submit(partial(done.append, number))
            assert len(done) >= number - 1


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_is_raised_at_once_and_nothing_more_is_called(error):
    failed = Event()
    written: list[str] = []

    def fail():
        failed.set()
        raise error("disk full")

    def write_all():
        with WriterThread() as thread:
            thread.submit(partial(written.append, "before"))
            thread.submit(fail)
            thread.submit(partial(written.append, "after"))
            assert failed.wait(PATIENCE)
            while True:
                thread.raise_error()

    with pytest.raises(error, match="disk full"):
        write_all()
    assert written == ["before"]


def test_an_error_of_the_last_call_is_raised_at_the_end():
    def fail():
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"), WriterThread() as thread:
        thread.submit(fail)


def test_what_was_submitted_before_an_error_of_the_caller_is_done():
    written: list[int] = []

    def write_all():
        with WriterThread() as thread:
            for number in range(2):
                thread.submit(partial(written.append, number))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_all()
    assert written == [0, 1]


@pytest.fixture
def _interrupts_are_heard():
    """SIGINT raises KeyboardInterrupt, also in a shell's background, where it is ignored."""
    previous_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous_handler)


@pytest.mark.usefixtures("_interrupts_are_heard")
def test_an_interrupt_at_the_end_leaves_nothing_running():
    at_the_end = Event()
    written: list[str] = []

    def write():
        assert at_the_end.wait(PATIENCE)
        time.sleep(0.2)  # until the caller waits for this call
        identifier = main_thread().ident
        assert identifier is not None
        signal.pthread_kill(identifier, signal.SIGINT)
        time.sleep(0.5)
        written.append("all")

    def write_all():
        with WriterThread() as thread:
            thread.submit(write)
            at_the_end.set()

    with pytest.raises(KeyboardInterrupt):
        write_all()
    assert written == ["all"]
