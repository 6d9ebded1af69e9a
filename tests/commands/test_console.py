import json
import logging
import re
import time

import pytest

from denserk.commands.app import run
from denserk.commands.console import ConsoleSettings, configure, show_error
from denserk.errors import InputError
from denserk.reporting import track

logger = logging.getLogger("denserk.test")


def test_notes_warnings_and_errors_go_to_stderr(capsys):
    configure(ConsoleSettings())
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


def test_a_message_is_shown_once(capsys):
    configure(ConsoleSettings())
    for _ in range(2):
        logger.info("detected")
    assert capsys.readouterr().err == "detected\n"


def test_json_lines(capsys):
    configure(ConsoleSettings(log_json=True))
    show_error(InputError("f", 3, "ö", "y", "do z"))
    assert json.loads(capsys.readouterr().err) == {
        "level": "error",
        "message": "f, line 3: found ö; expected y",
        "hint": "do z",
    }


@pytest.mark.parametrize(("total", "of"), [(40, " of 40"), (None, "")])
def test_plain_progress_prints_rate_and_rest(capsys, monkeypatch, total, of):
    monkeypatch.setattr("denserk.commands.console.EVERY", 0.05)

    def next_line():
        while not (said := capsys.readouterr().err):
            time.sleep(0.01)
        return said.splitlines()[-1]

    configure(ConsoleSettings())
    with track("encoding", total, "passages") as progress:
        first = next_line()  # although no text is done yet
        progress.advance(20)
        second = next_line()
    assert first == f"encoding: 0{of} passages, 0 per second"
    left = r", 0 s left" if total else ""
    assert re.fullmatch(rf"encoding: 20{of} passages, \d+ per second{left}", second)


def test_wrong_usage_is_reported_like_every_other_error(capsys):
    assert run(["encode", "--no-such-option", "--log-json"]) == 2
    assert json.loads(capsys.readouterr().err)["level"] == "error"
