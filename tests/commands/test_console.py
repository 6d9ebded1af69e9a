import io
import json
import logging
import re
import time

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


def test_progress_in_lines_has_the_rate_and_the_time_left(capsys, monkeypatch):
    monkeypatch.setattr("denserk.reporting.EVERY", 0.05)
    configure(ConsoleSettings())
    with track("encoding", 40, "passages") as progress:
        progress.advance(20)
        while not (printed := capsys.readouterr().err):
            time.sleep(0.01)
    line = printed.splitlines()[-1]
    assert re.fullmatch(r"encoding: 20 of 40 passages, \d+ per second, 0 s left", line)


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
