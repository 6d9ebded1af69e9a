import errno
import signal

import pytest

from denserk import __version__
from denserk.commands import app as module
from denserk.commands.app import run
from denserk.errors import GateError, InputError, Interrupted, UsageError


@pytest.fixture
def failing(monkeypatch):
    """Makes the command line meet an error."""

    def fail_with(error):
        def stand_in(**_):
            raise error

        monkeypatch.setattr(module, "app", stand_in)

    return fail_with


def test_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"denserk {__version__}\n"


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UsageError("no"), 2, "error: no"),
        (InputError("f", 1, "a", "b"), 1, "error: f, line 1: found a; expected b"),
        (GateError("low"), 1, "error: low"),
        (KeyboardInterrupt(), 130, "error: interrupted"),
        (OSError(errno.ENOSPC, "No space left on device", "f"), 1, "f: No space left on device"),
        (MemoryError(), 1, "error: out of memory"),
        (ZeroDivisionError("oh"), 1, "error: internal error: ZeroDivisionError: oh"),
    ],
)
def test_errors_leave_as_one_line(failing, capsys, error, status, said):
    failing(error)
    assert run([]) == status
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_an_error_that_a_library_makes_of_a_signal_is_the_signal(failing, capsys, monkeypatch):
    monkeypatch.setattr(Interrupted, "received", Interrupted(signal.SIGTERM))
    failing(RuntimeError("could not determine the shape of object"))
    assert run([]) == 143
    assert "interrupted by SIGTERM" in capsys.readouterr().err
