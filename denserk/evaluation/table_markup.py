"""Tables of texts, and how they are written: in aligned columns, in Markdown and in LaTeX."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import isnan
from typing import TYPE_CHECKING

from denserk.config.evaluation import ReportSettings
from denserk.reporting import columns_that_fit, printable

if TYPE_CHECKING:
    from rich.table import Table as RichTable

ALL = "all"  # names the line of the mean among the queries
DAGGER = "\u2020"  # marks a value that differs significantly from the baseline's
LEAST_P = 5e-4  # smaller p-values would print as 0.000
LATEX_MARK = r"^{\dagger}"  # the same in LaTeX's mathematics
# What LaTeX would not print as it is: its special characters; "<", ">" and "|", which are other
# characters in its default font encoding (OT1); quotation marks, of which '"' is a shorthand in
# some languages of babel; and "[" and "*", which at the start of a row would be arguments of the
# \\ that ends the row before.
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
    """A value or a name as plain text, and how it is marked."""

    text: str
    best: bool = False  # the best run by this measure
    differs: bool = False  # significantly, from the baseline


@dataclass(frozen=True)
class Table:
    """Columns of names, such as runs, then columns of values; notes stand below."""

    header: tuple[str, ...]
    name_columns: int  # the first columns, which hold names
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    title: str = ""  # a heading of the report, where other tables stand above

    @property
    def marks_best(self) -> bool:
        """Return whether any value is marked as the best."""
        return any(cell.best for cell in chain.from_iterable(self.rows))

    def legend(self, mark: str) -> tuple[str, ...]:
        """Return the notes; before them, what `mark` means, if values are marked as the best.

        `mark` is the name of the mark in this markup, such as "bold".
        """
        if self.marks_best:
            return (f"{mark}: best run by each measure", *self.notes)
        return self.notes


def summary_labels(report: ReportSettings) -> list[str]:
    """Return the field by which a line of all queries differs from those of each query, if any."""
    return [ALL] if report.per_query else []


def p_text(p: float) -> str:
    """Return a p-value with three decimals, or with its power of ten where these are 0.

    >>> p_text(0.0312), p_text(0.00002), p_text(float("nan"))
    ('0.031', '2.0e-05', '-')
    """
    if isnan(p):
        return "-"
    return f"{p:.1e}" if p < LEAST_P else f"{p:.3f}"


def as_rich(table: Table) -> "RichTable":
    """Return aligned columns for a terminal, without the notes, which the caller prints.

    A star and green mark the best values, a dagger those that differ. Marks stand before values,
    which are aligned on the right, so that digits line up.
    """
    from rich.table import Table as RichTable
    from rich.text import Text

    rich_table = RichTable(box=None, pad_edge=False, header_style="")
    for column, name in enumerate(table.header):
        title = Text(printable(name, longest=None))
        if column < table.name_columns:
            rich_table.add_column(title, justify="left")
        else:
            rich_table.add_column(title, justify="right", no_wrap=True)
    for row in table.rows:
        rich_table.add_row(*(Text(marked(cell), "green" if cell.best else "") for cell in row))
    return rich_table


def marked(cell: Cell) -> str:
    """Return the text of a cell for a terminal, behind its marks."""
    marks = DAGGER if cell.differs else ""
    if cell.best:
        marks += "*"
    return marks + printable(cell.text, longest=None)


def parts_that_fit(table: Table, width: int) -> list[Table]:
    """Return a table in parts of at most `width` characters, each with the columns of names."""
    widths = [len(title) for title in table.header]
    for row in table.rows:
        for column, cell in enumerate(row):
            widths[column] = max(widths[column], len(marked(cell)))
    parts = []
    for columns in columns_that_fit(widths, table.name_columns, width):
        header = tuple(table.header[column] for column in columns)
        rows = [tuple(row[column] for column in columns) for row in table.rows]
        parts.append(replace(table, header=header, rows=tuple(rows)))
    return parts


def as_markdown(table: Table) -> str:
    """Return a table in Markdown, and its notes below it."""
    header = [escape_markdown(name) for name in table.header]
    value_columns = len(table.header) - table.name_columns
    lines = [_markdown_line(header)]
    lines.append("|" + "---|" * table.name_columns + "---:|" * value_columns + "\n")
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
    escaped = re.sub(r"([\\`*\[\]|])", r"\\\1", printable(text, longest=None))
    # "_" without a letter or digit before or behind it; [^\W_] is a letter or digit
    escaped = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", escaped)
    # the start of a character's name or number, such as "&lt;" or "&#60;"
    escaped = re.sub(r"&(?=#?\w+;)", "&amp;", escaped)
    # the start of a tag, or of a comment
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
    """Return a table in LaTeX with its caption, the best values in bold, without the notes.

    It needs no package but booktabs. The caption is a plain text, as are the cells; `label` is the
    key of its cross-references, and is not escaped.
    """
    value_columns = len(table.header) - table.name_columns
    alignment = "l" * table.name_columns + "r" * value_columns
    lines = [
        r"% in the preamble: \usepackage{booktabs}",
        r"\begin{table}[tb]",
        r"\centering",
        rf"\caption{{{escape_latex(caption)}}}",
        rf"\label{{{label}}}",
        rf"\begin{{tabular}}{{{alignment}}}",
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
    plain_text = printable(text, longest=None)
    escaped = "".join(LATEX_CHARACTERS.get(character, character) for character in plain_text)
    # LaTeX joins two of these to one other character, such as a dash; {} keeps them apart
    return re.sub(r"([-',])(?=\1)", r"\1{}", escaped)


def _latex_lines(table: Table) -> Iterator[str]:
    """Yield the rows; of several columns of names, the first one groups the rows.

    A group has its name in its first row alone, and is set apart from the group before it.
    """
    columns_with_marks = _columns_with_marks(table)
    previous_group = None
    for row in table.rows:
        texts = []
        for column, cell in enumerate(row):
            if column < table.name_columns:
                texts.append(escape_latex(cell.text))
            else:
                texts.append(_latex_value(cell, leaves_room=column in columns_with_marks))
        if table.name_columns > 1:
            group = row[0].text
            if group == previous_group:
                texts[0] = ""
            elif previous_group is not None:
                yield r"\addlinespace"
            previous_group = group
        yield _latex_line(texts)


def _columns_with_marks(table: Table) -> set[int]:
    """Return the numbers of the columns in which a value is marked as different."""
    columns = set()
    for row in table.rows:
        for column, cell in enumerate(row):
            if cell.differs:
                columns.add(column)
    return columns


def _latex_line(texts: Sequence[str]) -> str:
    return rf"{' & '.join(texts)} \\"


def _latex_value(cell: Cell, *, leaves_room: bool) -> str:
    """Return a value in LaTeX, with minus signs, where "-" alone would be a hyphen.

    With `leaves_room`, a value without a mark gets the room of one, so that digits line up.
    """
    text = re.sub(r"-(?=\d)", "$-$", escape_latex(cell.text))
    if cell.best:
        text = rf"\textbf{{{text}}}"
    if cell.differs:
        return f"{text}${LATEX_MARK}$"
    if leaves_room:
        return rf"{text}$\phantom{{{LATEX_MARK}}}$"
    return text
