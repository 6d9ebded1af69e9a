"""Tables of texts, and how they are written: in aligned columns, in Markdown and in LaTeX."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from denserk.reporting import printable

if TYPE_CHECKING:
    from rich.table import Table as RichTable

DAGGER = "\u2020"  # marks a value that differs significantly from the baseline's
LATEX_MARK = r"^{\dagger}"  # the same in LaTeX's mathematics
# What LaTeX would not print as it is: its special characters; in its first font encoding, "<", ">"
# and "|"; shorthands of babel; and what the end of a row takes as its argument ("[", "*").
LATEX_CHARACTERS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    '"': r"\symbol{34}",
    "`": r"\textasciigrave{}",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "\u00b1": r"$\pm$",
    DAGGER: f"${LATEX_MARK}$",
}


@dataclass(frozen=True)
class Cell:
    """A value as text; whether it is the best of its kind, and whether it differs significantly."""

    text: str
    best: bool = False
    differs: bool = False


@dataclass(frozen=True)
class Table:
    """`labels` columns of names, then columns of values; notes stand below."""

    header: tuple[str, ...]
    labels: int
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def marks_best(self) -> bool:
        """Return whether any value is the best of its kind."""
        return any(cell.best for cell in chain.from_iterable(self.rows))

    def legend(self, mark: str) -> tuple[str, ...]:
        """Return the notes, and before them what marks the best values, if any are marked."""
        if self.marks_best:
            return (f"{mark}: best run by each measure", *self.notes)
        return self.notes


def as_rich(table: Table) -> "RichTable":
    """Return aligned columns; a star and green mark the best values, a dagger those that differ."""
    from rich.table import Table as RichTable
    from rich.text import Text

    rich = RichTable(box=None, pad_edge=False, header_style="")
    for column, name in enumerate(table.header):
        if column < table.labels:
            rich.add_column(Text(printable(name, None)), justify="left")
        else:
            rich.add_column(Text(printable(name, None)), justify="right", no_wrap=True)
    for row in table.rows:
        texts = []
        for cell in row:
            marks = DAGGER if cell.differs else ""
            if cell.best:
                marks += "*"
            texts.append(Text(marks + printable(cell.text, None), "green" if cell.best else ""))
        rich.add_row(*texts)
    return rich


def as_markdown(table: Table) -> str:
    """Return a table in Markdown, and its notes below it."""
    header = [escape_markdown(name) for name in table.header]
    value_count = len(table.header) - table.labels
    lines = [_markdown_line(header)]
    lines.append("|" + "---|" * table.labels + "---:|" * value_count + "\n")
    for row in table.rows:
        lines.append(_markdown_line([_markdown_text(cell) for cell in row]))
    for note in table.legend("bold"):
        lines.append(f"\n{escape_markdown(note)}\n")
    return "".join(lines)


def escape_markdown(text: str) -> str:
    r"""Escape a text so that Markdown, HTML and Markdown's tables show it as it is.

    What Markdown shows as it is stays readable in the text itself: "&" unless it begins the name
    of a character, "<" unless it opens a tag, and "_" within a word.

    >>> print(escape_markdown("a|b <img src=x> [x](y) p < 0.05"))
    a\|b &lt;img src=x> \[x\](y) p < 0.05
    >>> print(escape_markdown("R&D &lt; a_b _c_"))
    R&D &amp;lt; a_b \_c\_
    """
    escaped = re.sub(r"([\\`*\[\]|])", r"\\\1", printable(text, None))
    escaped = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", escaped)
    escaped = re.sub(r"&(?=#?\w+;)", "&amp;", escaped)
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", escaped)


def _markdown_line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |\n"


def _markdown_text(cell: Cell) -> str:
    """Return a value in Markdown, the best in bold."""
    text = escape_markdown(cell.text)
    if cell.best:
        text = f"**{text}**"
    if cell.differs:
        text += DAGGER
    return text


def as_latex(table: Table, caption: str, label: str) -> str:
    """Return a table in LaTeX with its caption, the best values in bold.

    It needs no package but booktabs. The caption is a plain text, as are the cells.
    """
    columns = "l" * table.labels + "r" * (len(table.header) - table.labels)
    lines = [
        r"% in the preamble: \usepackage{booktabs}",
        r"\begin{table}[tb]",
        r"\centering",
        rf"\caption{{{escape_latex(caption)}}}",
        rf"\label{{{label}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _latex_line([escape_latex(name) for name in table.header]),
        r"\midrule",
        *_latex_lines(table),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "".join(f"{line}\n" for line in lines)


def escape_latex(text: str) -> str:
    r"""Escape a text so that LaTeX prints it as it is, in a cell or a caption.

    >>> print(escape_latex("bm25_k1=0.9 & 50% #2"))
    bm25\_k1=0.9 \& 50\% \#2
    >>> print(escape_latex("a--b <x>"))
    a-{}-b $<$x$>$
    """
    characters = [LATEX_CHARACTERS.get(character, character) for character in printable(text, None)]
    # two of these would print as one other character
    return re.sub(r"([-',])(?=\1)", r"\1{}", "".join(characters))


def _latex_lines(table: Table) -> Iterator[str]:
    """Yield the rows; of several columns of names, the first one groups the rows."""
    columns_with_marks = set()
    for row in table.rows:
        columns_with_marks |= {column for column, cell in enumerate(row) if cell.differs}
    group = None
    for row in table.rows:
        texts = []
        for column, cell in enumerate(row):
            texts.append(_latex_text(cell, leaves_room=column in columns_with_marks))
        if table.labels > 1:
            name = row[0].text
            if name == group:
                texts[0] = ""
            elif group is not None:
                yield r"\addlinespace"
            group = name
        yield _latex_line(texts)


def _latex_line(texts: Sequence[str]) -> str:
    return rf"{' & '.join(texts)} \\"


def _latex_text(cell: Cell, *, leaves_room: bool) -> str:
    """Return a value in LaTeX; without a mark, with the room of one, so that digits line up."""
    text = escape_latex(cell.text)
    if cell.best:
        text = rf"\textbf{{{text}}}"
    if cell.differs:
        return f"{text}${LATEX_MARK}$"
    if leaves_room:
        return rf"{text}$\phantom{{{LATEX_MARK}}}$"
    return text
