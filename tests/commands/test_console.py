import io
import json
import logging
import re
import time

import pytest

from denserk.commands.app import run
from denserk.errors import InputError
from denserk.reporting import ConsoleSettings, configure, show_error, track

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


@pytest.mark.parametrize(("total", "of"), [(40, " of 40"), (None, "")])
def test_progress_in_lines_has_the_rate_and_the_time_left(capsys, monkeypatch, total, of):
    monkeypatch.setattr("denserk.reporting.EVERY", 0.05)

    def next_line():
        while not (printed := capsys.readouterr().err):
            time.sleep(0.01)
        return printed.splitlines()[-1]

    configure(ConsoleSettings())
    with track("encoding", total, "passages") as progress:
        first = next_line()  # before any passage is finished
        progress.advance(20)
        second = next_line()
    assert first == f"encoding: 0{of} passages, 0 per second"
    left = r", 0 s left" if total else ""
    assert re.fullmatch(rf"encoding: 20{of} passages, \d+ per second{left}", second)


class Terminal(io.StringIO):
    def isatty(self):
        return True


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
