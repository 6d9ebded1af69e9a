"""Progress and messages, which are off by default."""

import logging
from types import TracebackType

from denserk import reporting

# Without a handler, Python prints warnings on stderr.
logging.getLogger("denserk").addHandler(logging.NullHandler())


class ShownProgress:
    """Progress and messages that are shown; the end of a `with` puts back what was before."""

    def __init__(self, *, was_shown: bool) -> None:
        self._was_shown = was_shown

    def __repr__(self) -> str:
        state = "shown" if reporting.is_configured() else "not shown"
        return f"<progress and messages are {state}>"

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _show(self._was_shown)


def show_progress(shown: bool = True) -> ShownProgress:
    """Show progress and messages on stderr from now on, or inside of a `with`; False: no longer.

    Progress is a bar on a terminal, and lines in a notebook or a log.

    >>> with show_progress():
    ...     pass  # messages and progress are shown here alone
    """
    was_shown = reporting.is_configured()
    _show(shown)
    return ShownProgress(was_shown=was_shown)


def _show(shown: bool) -> None:
    if shown:
        reporting.configure(reporting.ConsoleSettings(), repeats_notes=True)
    else:
        reporting.stop_showing()
