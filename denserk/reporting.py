"""Progress interface of long-running work; messages go to `logging`.

Nothing is printed unless the caller configures the logger `denserk` (messages) or calls
`show_progress` (bars), as the command line does.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


class Progress:
    """Progress of one task; this base class shows nothing."""

    def advance(self, count: int = 1) -> None:
        """Add `count` finished units."""

    def note(self, text: str) -> None:
        """Show a note beside the count, e.g. the training loss."""

    def set_total(self, total: int) -> None:
        """Set the total number of units."""


Display = Callable[[str, int | None, str], AbstractContextManager[Progress]]
_display: Display | None = None


def show_progress(display: Display | None) -> Display | None:
    """Set the progress display (None: no display), and return the previous one."""
    global _display
    before, _display = _display, display
    return before


@contextmanager
def track(what: str, total: int | None, unit: str) -> Iterator[Progress]:
    """Show the progress of a task, "encoding passages", of `total` units, "passages"."""
    if _display is None:
        yield Progress()
    else:
        with _display(what, total, unit) as progress:
            yield progress
