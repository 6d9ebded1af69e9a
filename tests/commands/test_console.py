import errno
import json
import logging
import re
import signal
import time

import pytest

from denserk.commands import app as module
from denserk.commands.app import run
from denserk.errors import GateError, InputError, Interrupted, UsageError
from denserk.reporting import ConsoleSettings, configure, show_error, track, warning_of_deadline
from tests.support.console import Terminal

logger = logging.getLogger("denserk.test")


def test_messages_go_to_stderr_and_notes_are_shown_once(capsys):
    configure(ConsoleSettings())
    for _ in range(2):
        logger.info("detected")
    logger.warning("odd")
    show_error(InputError("f", 3, "x", "y", "do z"))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "detected",
        "warning: odd",
        "error: f, line 3: found x; expected y",
        "  do z",
    ]


def test_progress_in_lines_has_the_rate_and_the_time_left(capsys, monkeypatch):
    monkeypatch.setattr("denserk.reporting.EVERY", 0.05)
    configure(ConsoleSettings())
    with track("encoding", 40, "passages") as progress:
        progress.advance(20)
        while not (printed := capsys.readouterr().err):
            time.sleep(0.01)
    line = printed.splitlines()[-1]
    assert re.fullmatch(r"encoding: 20 of 40 passages, \d+ per second, 0 s left", line)


def test_progress_without_news_is_not_a_line(capsys, monkeypatch):
    monkeypatch.setattr("denserk.reporting.EVERY", 0.02)
    configure(ConsoleSettings())
    with track("searching", 323, "queries") as progress:
        time.sleep(0.2)
        progress.advance(5)
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("searching: 5 of 323 queries")


@pytest.mark.parametrize("quiet", [False, True])
def test_a_task_that_will_end_after_a_deadline_is_a_warning(capsys, monkeypatch, quiet):
    """Once, when a part of it is done, with and without progress that is shown."""
    monkeypatch.setattr("denserk.reporting.EVERY", 0.05)
    configure(ConsoleSettings(quiet=quiet))
    start = time.monotonic()
    with (
        warning_of_deadline(start + 0.2, "--budget 0.2s"),
        track("encoding", 100, "passages") as progress,
    ):
        progress.advance(5)
        assert "warning" not in capsys.readouterr().err  # too early for an estimate
        time.sleep(0.1)
        progress.advance(5)
        progress.advance(5)
    message = capsys.readouterr().err
    assert len(re.findall(r"warning: encoding will take about \d+ s more", message)) == 1
    assert "--budget 0.2s" in message
    assert progress.done == 15


@pytest.mark.parametrize("seconds", [None, 1000.0])
def test_a_task_that_will_end_in_time_is_no_warning(capsys, monkeypatch, seconds):
    monkeypatch.setattr("denserk.reporting.EVERY", 0.01)
    configure(ConsoleSettings(quiet=True))
    deadline = None if seconds is None else time.monotonic() + seconds
    with (
        warning_of_deadline(deadline, "--budget 1000s"),
        track("encoding", 100, "passages") as progress,
        track("reading", None, "lines") as lines,
    ):
        time.sleep(0.05)
        progress.advance(50)
        lines.advance(50)
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar_with_the_note_below(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    configure(ConsoleSettings())
    with track("training", 4, "steps") as progress:
        progress.advance(4)
        progress.note("loss 0.5 (contrastive 0.5)")
    *_, bar, note, _ = terminal.getvalue().split("\n")
    assert "4 of 4 steps" in bar
    assert "loss 0.5 (contrastive 0.5)" in note


def test_wrong_usage_as_json_lines(capsys):
    assert run(["encode", "--no-such-option", "--log-json"]) == 2
    error = json.loads(capsys.readouterr().err)
    assert (error["level"], error["hint"]) == ("error", "see denserk encode --help")


@pytest.fixture
def failing(monkeypatch):

    def fail_with(error):
        def stand_in(**_):
            raise error

        monkeypatch.setattr(module, "app", stand_in)

    return fail_with


@pytest.mark.parametrize(
    ("error", "status", "message"),
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
def test_errors_leave_as_one_line(failing, capsys, error, status, message):
    failing(error)
    assert run([]) == status
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_an_error_that_a_library_makes_of_a_signal_is_the_signal(failing, capsys, monkeypatch):
    monkeypatch.setattr(Interrupted, "received", Interrupted(signal.SIGTERM))
    failing(RuntimeError("could not determine the shape of object"))
    assert run([]) == 143
    assert "interrupted by SIGTERM" in capsys.readouterr().err
