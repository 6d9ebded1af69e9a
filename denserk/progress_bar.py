"""The bar of a task's progress on a terminal; imported late, as rich is slow to import."""

from collections.abc import Iterator

from rich import progress
from rich.console import Console, RenderableType
from rich.text import Text


class Bar(progress.Progress):
    """A bar on stderr with the task before it, its `state` behind it and a note below."""

    def __init__(self) -> None:
        self.note = ""
        super().__init__(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TextColumn("{task.fields[state]}"),
            console=Console(stderr=True),
        )

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bar, and the note on a line of its own."""
        yield from super().get_renderables()
        yield Text(f"  {self.note}", no_wrap=True, overflow="ellipsis")
