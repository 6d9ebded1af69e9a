"""Tables that docs/rows.py and docs/results.py write into pages, each between a mark and END."""

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

END = "<!-- to here -->"


def markdown_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    right_aligned: Collection[str] = (),
) -> list[str]:
    """Return the lines of a table; `right_aligned` are headers of columns of numbers.

    >>> markdown_table(["", "nDCG@10"], [["squad", "0.9181"]], right_aligned=["nDCG@10"])
    ['| | nDCG@10 |', '|---|--:|', '| squad | 0.9181 |']
    """
    rules = ["--:" if header in right_aligned else "---" for header in headers]
    lines = [_line(headers), "|" + "|".join(rules) + "|"]
    lines += [_line(row) for row in rows]
    return lines


def _line(cells: Sequence[str]) -> str:
    """Return a line of a table."""
    padded_cells = [f" {cell} " if cell else " " for cell in cells]
    return "|" + "|".join(padded_cells) + "|"


def text_with_tables(page: Path, lines_by_mark: Mapping[str, Sequence[str]]) -> str:
    """Return the text of a page with other lines between each mark and its END.

    Exit if a mark is not there once, or if no END follows before the next mark: what is written in
    place of a table would be lost, or would replace what a person has written.
    """
    text = page.read_text("utf-8")
    for mark, lines in lines_by_mark.items():
        before, _, rest = text.partition(mark)
        old_table, _, after = rest.partition(END)
        is_closed = END in rest and not any(other in old_table for other in lines_by_mark)
        if text.count(mark) != 1 or not is_closed:
            sys.exit(f"error: {page} needs one line {mark}, and below it one line {END}")
        table = "\n".join(lines)
        text = f"{before}{mark}\n\n{table}\n\n{END}{after}"
    return text


def table_in(page: Path, mark: str) -> list[str]:
    """Return the lines that a page has between a mark and its END."""
    _, _, rest = page.read_text("utf-8").partition(mark)
    table, _, _ = rest.partition(END)
    return table.strip().splitlines()
