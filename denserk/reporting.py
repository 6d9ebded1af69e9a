"""Progress interface of long-running work; messages go to `logging`.

Nothing is printed unless the caller configures the logger `denserk` (messages) or calls
`show_progress` (bars), as the command line does.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


class Progress:
    """Progress of one task, which a display reads: finished units and a note."""

    done, text = 0, ""

    def advance(self, count: int = 1) -> None:
        """Add `count` finished units."""
        self.done += count

    def note(self, text: str) -> None:
        """Show a note beside the count, e.g. the training loss."""
        self.text = text


Display = Callable[[str, int | None, str], AbstractContextManager[Progress]]
_display: Display | None = None


def show_progress(display: Display | None) -> None:
    """Set the progress display; None: no display."""
    global _display
    _display = display


@contextmanager
def track(what: str, total: int | None, unit: str) -> Iterator[Progress]:
    """Show the progress of a task, "encoding passages", of `total` units, "passages"."""
    if _display is None:
        yield Progress()
    else:
        with _display(what, total, unit) as progress:
            yield progress
