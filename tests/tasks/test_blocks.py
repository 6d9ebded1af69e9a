import threading
import time
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.errors import MismatchError
from denserk.io.manifest import Kind, Manifest
from denserk.tasks.blocks import ahead, behind, refuse_other_run


class Broken(Exception):
    pass


def feed(finish, items, error=None):
    """Hand items over, then raise an error."""
    with behind(finish) as hand_over:
        for item in items:
            hand_over(item)
        if error is not None:
            raise error


@given(st.lists(st.integers()), st.integers(1, 4))
def test_items_keep_their_order(items, workers):
    def slow_when_even(item):
        time.sleep(0.0005 * (item % 2 == 0))
        return item

    finished: list[int] = []
    feed(finished.append, ahead(slow_when_even, items, workers))
    assert finished == items


@pytest.mark.parametrize("workers", [1, 3])
def test_reading_ahead_is_bounded(workers):
    read = []

    def items():
        for number in range(20):
            read.append(number)
            yield number

    for done, _ in enumerate(ahead(str, items(), workers)):
        assert len(read) <= done + 1 + workers


def test_one_item_waits_at_most():
    gate, handed, finished = threading.Event(), [], []

    def finish(item):
        assert gate.wait(10)
        finished.append(item)

    def items():
        for item in range(6):
            handed.append(item)
            yield item

    feeder = threading.Thread(target=feed, args=[finish, items()])
    feeder.start()
    deadline = time.monotonic() + 10
    while len(handed) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.02)
    assert (handed, finished) == ([0, 1], [])
    gate.set()
    feeder.join()
    assert finished == list(range(6))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_an_error_comes_in_its_place(workers):
    def reading():
        yield from range(3)
        raise Broken

    def prepare(item):
        if item == 2:
            raise Broken
        return item

    made: list[object] = []
    with pytest.raises(Broken):
        made.extend(ahead(str, reading(), workers))
    with pytest.raises(Broken):
        made.extend(ahead(prepare, range(9), workers))
    assert made == ["0", "1", "2", 0, 1]


@pytest.mark.parametrize("items", [range(1000), range(3)])
def test_an_error_of_finishing_ends_finishing(items):
    finished = []

    def finish(item):
        if item == 2:
            raise Broken(item)
        finished.append(item)

    with pytest.raises(Broken, match="2"):
        feed(finish, items)
    assert finished == [0, 1]


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
def test_an_error_between_leaves_nothing_half_finished(error):
    begun, finished = [], []

    def finish(item):
        begun.append(item)
        time.sleep(0.01)
        finished.append(item)

    with pytest.raises(error):
        feed(finish, [0, 1], error)
    assert begun == finished == [0, 1]


def test_the_first_error_is_raised():
    def finish(item):
        raise Broken("behind")

    with pytest.raises(Broken, match="behind"):
        feed(finish, [0], Broken("between"))


def test_no_thread_stays():
    before = threading.active_count()
    with closing(ahead(str, range(100), 3)) as ready:
        next(ready)
    feed(str, [1])
    assert threading.active_count() == before


def test_a_run_of_an_earlier_version_is_resumed_by_torch():
    def made(**model):
        return Manifest(Kind.VECTORS, False, {}, {"model": {"fingerprint": "1", **model}})

    refuse_other_run("vectors", made(), made(backend="torch"), ["model"])
    with pytest.raises(MismatchError, match="backend"):
        refuse_other_run("vectors", made(), made(backend="openvino"), ["model"])
