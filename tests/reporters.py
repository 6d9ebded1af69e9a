"""Records what denserk logs, and the progress that it shows, while a test runs."""

import logging
from collections.abc import Callable
from typing import Any, Self

from denserk.reporting import show_progress


class _Handler(logging.Handler):
    def __init__(self, heard: "Heard") -> None:
        super().__init__()
        self.heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        take = self.heard.note if record.levelno <= logging.INFO else self.heard.warn
        take(record.getMessage())


class Heard:
    """Keeps messages from its creation to the end of the test, oldest first."""

    notes: list[str]
    warnings: list[str]
    track: Callable[..., Any] | None = None

    def __new__(cls, *_: Any) -> Self:
        """Listen from now on."""
        self = super().__new__(cls)
        self.notes, self.warnings = [], []
        logging.getLogger("denserk").addHandler(_Handler(self))
        logging.getLogger("denserk").setLevel(logging.INFO)
        if self.track is not None:
            show_progress(self.track)
        return self

    def note(self, text: str) -> None:
        """Keep a note."""
        self.notes.append(text)

    def warn(self, text: str) -> None:
        """Keep a warning."""
        self.warnings.append(text)


def forget() -> None:
    """Stop listening, and showing what a command line that ran in this process set up."""
    logger = logging.getLogger("denserk")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    show_progress(None)
