"""What a command shows: the warnings that it logged, and a stream that passes for a terminal."""

import io
import logging

import pytest


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return denserk's messages above the level of information, oldest first."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("denserk") and record.levelno > logging.INFO
    ]


class Terminal(io.StringIO):
    """A stream on which the command line draws bars and aligned tables, as on a terminal."""

    def isatty(self) -> bool:
        return True
