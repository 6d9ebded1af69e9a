"""What is known of several processes before they meet."""

import logging
import pickle
from functools import partial

import pytest

from denserk.errors import DenserkError, InputError, UsageError
from denserk.reporting import track
from denserk.tasks.processes import ALONE, Launched, _portable, launched, on_devices
from tests.reporters import Heard


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, None),
        ({"WORLD_SIZE": "1", "RANK": "0"}, None),
        ({"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"}, Launched(1, 4)),
    ],
)
def test_what_torchrun_says(monkeypatch, told, expected):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"MASTER_ADDR": "a", "MASTER_PORT": "1", **told}.items():
        monkeypatch.setenv(name, value)
    assert launched() == expected


def test_half_of_what_torchrun_says(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UsageError, match="RANK is not set"):
        launched()


def test_alone():
    assert ALONE.first(lambda: 3) == 3
    assert ALONE.gather("a") == ["a"]


def test_errors_travel():
    error = InputError("run.trec", 3, "a", "b", "c")
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), found.hint, found.line) == (InputError, str(error), "c", 3)

    class Foreign(Exception):
        """Of a class that pickle cannot find."""

    assert str(_portable(Foreign("x"))) == "Foreign: x"


def work(how, device, crew):
    """What each of two does: all that they can tell."""
    logging.getLogger("denserk.tasks").info(f"{device} {crew.rank} of {crew.size}")
    with track("working", 2, "things") as progress:
        progress.advance(2)
    if how == "refused" and crew.rank == 1:
        raise InputError("x", 1, "a", "b")
    first = crew.first(lambda: crew.rank + 7)
    return first, crew.gather(crew.rank)


@pytest.mark.slow
def test_what_processes_make_and_tell():
    heard = Heard()
    assert on_devices(["cpu", "cpu"], partial(work, "well")) == (7, [0, 1])
    assert heard.notes == ["cpu 0 of 2"]


@pytest.mark.slow
def test_the_first_error_is_the_one_told():
    with pytest.raises(DenserkError, match="x, line 1: found a; expected b"):
        on_devices(["cpu", "cpu"], partial(work, "refused"))
