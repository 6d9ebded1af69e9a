"""Progress of long work. Messages go to `logging`; bars are shown where `display` says so.

Nothing is printed from Python unless the caller configures the logger `denserk` (messages) or
calls `show_progress` (bars). The command line does both.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


class Progress:
    """A progress bar; this one is silent."""

    def advance(self, count: int = 1) -> None:
        """Count `count` more units as done."""

    def tell(self, text: str) -> None:
        """Show a note beside the count, for example the training loss."""

    def set_total(self, total: int) -> None:
        """Set the total once it is known."""


Display = Callable[[str, int | None, str], AbstractContextManager[Progress]]
_display: Display | None = None


def show_progress(display: Display | None) -> Display | None:
    """Set what shows the progress of long work, None for silence; return what did before."""
    global _display
    before, _display = _display, display
    return before


@contextmanager
def track(what: str, total: int | None, unit: str) -> Iterator[Progress]:
    """Show the progress of a long piece of work.

    Args:
        what: a verb phrase, "encoding passages".
        total: how many units there are, or None where that is not known.
        unit: the unit's plural, "passages".
    """
    if _display is None:
        yield Progress()
    else:
        with _display(what, total, unit) as progress:
            yield progress
