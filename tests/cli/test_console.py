import json
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
def test_plain_progress_tells_rate_and_rest(capsys, monkeypatch, total, of):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Console(ConsoleSettings()).track("encoding", total, "passages") as progress:
        now[0] = 5.0
        progress.advance(10)
        now[0] = 10.0
        progress.advance(10)
    left = ", 10 s left" if total else ""
    assert capsys.readouterr().err == f"encoding: 20{of} passages, 2 a second{left}\n"
