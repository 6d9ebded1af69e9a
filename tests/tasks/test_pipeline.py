import threading
import time
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.tasks.pipeline import ahead, behind


class Broken(Exception):
    pass


def feed(finish, items, error=None):
    """Hands items over, and then fails if told so."""
    with behind(finish) as hand_over:
        for item in items:
            hand_over(item)
        if error is not None:
            raise error


@given(st.lists(st.integers()), st.integers(1, 4))
def test_items_keep_their_order_whoever_is_quicker(items, workers):
    def slow_when_even(item):
        time.sleep(0.0005 * (item % 2 == 0))
        return item

    finished: list[int] = []
    with behind(finished.append) as hand_over:
        for item in ahead(slow_when_even, items, workers):
            hand_over(item)
    assert finished == items


@pytest.mark.parametrize("workers", [1, 3])
def test_no_more_is_read_ahead_than_was_told(workers):
    read = []

    def items():
        for number in range(20):
            read.append(number)
            yield number

    for done, _ in enumerate(ahead(str, items(), workers)):
        assert len(read) <= done + 1 + workers


def test_no_more_is_handed_over_than_waits():
    gate, handed, finished = threading.Event(), [], []

    def finish(item):
        assert gate.wait(10)
        finished.append(item)

    def feed():
        with behind(finish) as hand_over:
            for item in range(6):
                hand_over(item)
                handed.append(item)

    feeder = threading.Thread(target=feed)
    feeder.start()
    deadline = time.monotonic() + 10
    while len(handed) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.02)
    assert (handed, finished) == ([0, 1], [])
    gate.set()
    feeder.join()
    assert finished == list(range(6))


def reads_until(end, error):
    yield from range(end)
    raise error


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_an_error_of_reading_comes_after_what_was_read(workers):
    made: list[str] = []
    with pytest.raises(Broken):
        made.extend(ahead(str, reads_until(3, Broken()), workers))
    assert made == ["0", "1", "2"]


def test_an_error_of_preparing_comes_in_its_place():
    def prepare(item):
        if item == 2:
            raise Broken
        return item

    made: list[int] = []
    with pytest.raises(Broken):
        made.extend(ahead(prepare, range(9), 3))
    assert made == [0, 1]


def test_an_error_of_finishing_ends_finishing():
    finished = []

    def finish(item):
        if item == 2:
            raise Broken(item)
        finished.append(item)

    with pytest.raises(Broken, match="2"):
        feed(finish, range(1000))
    assert finished == [0, 1]


def test_an_error_of_the_last_one_is_met_on_leaving():
    def finish(item):
        raise Broken(item)

    with pytest.raises(Broken):
        feed(finish, [1])


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


def test_what_went_wrong_first_is_told():
    def finish(item):
        raise Broken("behind")

    with pytest.raises(Broken, match="behind"):
        feed(finish, [0], Broken("between"))


def test_no_thread_stays():
    before = threading.active_count()
    with closing(ahead(str, range(100), 3)) as ready:
        next(ready)
    with behind(str) as hand_over:
        hand_over(1)
    assert threading.active_count() == before
