"""Records what denserk logs while a test runs."""

import io
import logging

from denserk.reporting import show_progress


class Heard(logging.Handler):
    """Keeps messages from its creation to the end of the test, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []
        self.warnings: list[str] = []
        logging.getLogger("denserk").addHandler(self)
        logging.getLogger("denserk").setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        kept = self.notes if record.levelno <= logging.INFO else self.warnings
        kept.append(record.getMessage())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def forget() -> None:
    """Stop listening, and showing what a command line that ran in this process set up."""
    logger = logging.getLogger("denserk")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    show_progress(None)
