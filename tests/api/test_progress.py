"""`denserk.show_progress`: nothing is shown without it."""

import logging
import subprocess
import sys

import numpy as np
import pytest

import denserk
from denserk import reporting
from denserk.errors import UsageError
from tests.support.console import Terminal

VECTORS = np.eye(4, dtype=np.float32)
RUN = {"q1": {"d1": 1.0}, "q2": {"d1": 1.0}}
QRELS = {"q1": {"d1": 1}, "q2": {"d1": 1}, "q3": {"d1": 1}}


@pytest.fixture(autouse=True)
def _switched_off():
    yield
    denserk.show_progress(False)


def test_nothing_is_shown_by_default(capsys):
    denserk.evaluate(RUN, QRELS)
    assert capsys.readouterr() == ("", "")


def test_messages_are_shown_inside_of_a_with(capsys):
    with denserk.show_progress():
        for _ in range(2):
            denserk.evaluate(RUN, QRELS)
    shown = capsys.readouterr()
    assert shown.err.count("warning: run: 1 of 3 judged queries are not in the run") == 2
    assert shown.out == ""
    denserk.evaluate(RUN, QRELS)
    assert capsys.readouterr() == ("", "")
    assert logging.getLogger("denserk").level == logging.NOTSET


def test_messages_are_shown_until_they_are_switched_off(capsys):
    denserk.show_progress()
    with denserk.show_progress():
        pass
    denserk.evaluate(RUN, QRELS)
    assert "warning: run" in capsys.readouterr().err
    denserk.show_progress(False)
    denserk.evaluate(RUN, QRELS)
    assert capsys.readouterr().err == ""


def test_an_error_ends_it_too(capsys):
    with pytest.raises(UsageError), denserk.show_progress():
        denserk.fuse([RUN])
    assert not reporting.is_configured()


def test_progress_is_a_bar_on_a_terminal(monkeypatch, tiny):
    model = denserk.Encoder.load(tiny(), representation="mean", device="cpu")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with denserk.show_progress():
        model.encode_passages(["moon", "river"])
    assert "encoding passages" in terminal.getvalue()
    assert "2 of 2 passages" in terminal.getvalue()


def test_progress_is_lines_elsewhere(monkeypatch, capsys):
    monkeypatch.setattr(reporting, "EVERY", 0.0)
    with denserk.show_progress():
        denserk.Index.build(VECTORS).search(np.tile(VECTORS, (2000, 1)), hits=2)
    assert "searching: " in capsys.readouterr().err


WARNS = """
import denserk

denserk.evaluate({"q1": {"d1": 1.0}}, {"q1": {"d1": 1}, "q2": {"d1": 1}})
print(repr(denserk.show_progress()))
print(repr(denserk.show_progress(False)))
"""


def test_a_plain_python_prints_no_warning():
    """Without a handler, as pytest installs one, Python would print it."""
    process = subprocess.run(
        [sys.executable, "-c", WARNS], capture_output=True, text=True, check=True
    )
    assert process.stderr == ""
    assert process.stdout.splitlines() == [
        "<progress and messages are shown>",
        "<progress and messages are not shown>",
    ]
