import json
import re
import time

import pytest

from denserk.cli.console import Console, ConsoleSettings
from denserk.errors import InputError


def test_notes_warnings_and_errors_go_to_stderr(capsys):
    console = Console(ConsoleSettings())
    console.note("detected")
    console.warn("odd")
    console.error(InputError("f", 3, "x", "y", "do z"))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "detected",
        "warning: odd",
        "error: f, line 3: found x; expected y",
        "  do z",
    ]


def test_quiet_keeps_warnings(capsys):
    console = Console(ConsoleSettings(quiet=True))
    console.note("detected")
    with console.track("working", 2, "things") as progress:
        progress.advance()
    console.warn("odd")
    assert capsys.readouterr().err == "warning: odd\n"


def test_json_lines(capsys):
    console = Console(ConsoleSettings(log_json=True))
    console.error(InputError("f", 3, "ö", "y", "do z"))
    assert json.loads(capsys.readouterr().err) == {
        "level": "error",
        "message": "f, line 3: found ö; expected y",
        "hint": "do z",
    }


@pytest.mark.parametrize(("total", "of"), [(40, " of 40"), (None, "")])
def test_plain_progress_prints_rate_and_rest(capsys, monkeypatch, total, of):
    monkeypatch.setattr("denserk.cli.console._PlainProgress.every", 0.05)

    def next_line():
        while not (said := capsys.readouterr().err):
            time.sleep(0.01)
        return said.splitlines()[-1]

    with Console(ConsoleSettings()).track("encoding", total, "passages") as progress:
        first = next_line()  # although no text is done yet
        progress.advance(20)
        second = next_line()
    assert first == f"encoding: 0{of} passages, 0 a second"
    left = r", 0 s left" if total else ""
    assert re.fullmatch(rf"encoding: 20{of} passages, \d+ a second{left}", second)


def test_plain_progress_is_rarer_after_two_minutes(capsys, monkeypatch):
    waits = []

    class Clock:
        def wait(self, seconds):
            waits.append(seconds)
            return len(waits) == 14

        def set(self):
            pass

    monkeypatch.setattr("denserk.cli.console.Event", Clock)
    with Console(ConsoleSettings()).track("encoding", None, "passages"):
        pass
    assert waits == [10.0] * 12 + [60.0] * 2
    assert len(capsys.readouterr().err.splitlines()) == 13
