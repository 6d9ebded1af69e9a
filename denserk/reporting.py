"""What a task tells while it works: through a Reporter. Only the command line prints."""

from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """A bar that someone may be watching; this one is silent."""

    def advance(self, count: int = 1) -> None:
        """Counts `count` more units as done."""

    def tell(self, text: str) -> None:
        """Shows a word on how it goes, beside the count."""

    def set_total(self, total: int) -> None:
        """Tells the total once it becomes known."""


class Reporter:
    """Silent base, and the default of every task called from Python."""

    def note(self, text: str) -> None:
        """Tells something worth knowing: what was detected, chosen or skipped."""

    def warn(self, text: str) -> None:
        """Tells something the user may want to change."""

    @contextmanager
    def track(self, what: str, total: int | None, unit: str) -> Iterator[Progress]:
        """Watches a long piece of work.

        Args:
            what: a verb phrase, "encoding passages".
            total: how many units there are, or None where that is not known.
            unit: the unit's plural, "passages".
        """
        yield Progress()


SILENT = Reporter()
