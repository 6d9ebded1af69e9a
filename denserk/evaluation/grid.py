"""A table before it is drawn, and the plain texts it is drawn as."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from html import escape

DIFFERS = "\u2020"
"""Stands behind a value that differs from the baseline's."""


@dataclass(frozen=True)
class Cell:
    """A value as text; whether it is the best of its kind, and whether it differs significantly."""

    text: str
    best: bool = False
    differs: bool = False


@dataclass(frozen=True)
class Grid:
    """`labels` columns of names, then columns of values; notes stand below."""

    header: tuple[str, ...]
    labels: int
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def legend(self, mark: str) -> tuple[str, ...]:
        """Return the notes, and before them what marks the best values, where there are any."""
        best = any(cell.best for row in self.rows for cell in row)
        return (*([f"{mark}: best run by each measure"] if best else []), *self.notes)


def as_text(grid: Grid) -> str:
    """Aligned columns in plain text; a star marks the best, a dagger what differs."""
    values = [cell for row in grid.rows for cell in row[grid.labels :]]
    starred, daggered = any(cell.best for cell in values), any(cell.differs for cell in values)

    def shown(cell: Cell, column: int) -> str:
        if column < grid.labels:
            return cell.text
        dagger = (DIFFERS if cell.differs else " ") if daggered else ""
        return cell.text + dagger + (("*" if cell.best else " ") if starred else "")

    cells = (tuple(map(Cell, grid.header)), *grid.rows)
    lines = [[shown(cell, column) for column, cell in enumerate(row)] for row in cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = [
        [
            text.ljust(widths[i]) if i < grid.labels else text.rjust(widths[i])
            for i, text in enumerate(line)
        ]
        for line in lines
    ]
    table = "".join("  ".join(line).rstrip() + "\n" for line in aligned)
    return table + "".join(f"{note}\n" for note in grid.legend("*"))


def as_markdown_text(text: str) -> str:
    r"""A text as markdown shows it as it stands: no markup of its own, of HTML or of the table.

    >>> print(as_markdown_text("a|b <img src=x> [x](y)"))
    a\|b &lt;img src=x&gt; \[x\](y)
    """
    return re.sub(r"([\\`*\[\]|])", r"\\\1", escape(text, quote=False))


def as_markdown_table(grid: Grid) -> str:
    """A table in markdown; the best in bold."""

    def line(texts: Iterable[str]) -> str:
        return "| " + " | ".join(texts) + " |\n"

    def shown(cell: Cell) -> str:
        text = f"**{as_markdown_text(cell.text)}**" if cell.best else as_markdown_text(cell.text)
        return text + DIFFERS if cell.differs else text

    rule = "---|" * grid.labels + "---:|" * (len(grid.header) - grid.labels)
    rows = "".join(line(map(shown, row)) for row in grid.rows)
    escaped = replace(grid, notes=tuple(map(as_markdown_text, grid.notes)))
    notes = "".join(f"\n{note}\n" for note in escaped.legend("**bold**"))
    return line(map(as_markdown_text, grid.header)) + f"|{rule}\n" + rows + notes
