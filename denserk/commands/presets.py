"""How presets are printed: all as a table, and one as a YAML file."""

import shutil
import sys
from collections.abc import Sequence
from textwrap import wrap

from denserk.config.presets import PresetRow, ShownPreset
from denserk.reporting import print_table, printable

WIDE = 120  # columns of a terminal in which a preset fits in one line
# widths of columns where it takes two
NAME_WIDTH = 34
TRAINED_WIDTH = 15


def print_presets(rows: Sequence[PresetRow], explanation: str) -> None:
    """Print presets: a table on a terminal, tab-separated lines with all columns elsewhere.

    `explanation` stands below the table.
    """
    if not sys.stdout.isatty():
        header = [name.replace("_", " ") for name in PresetRow._fields]
        print_table(header, rows)
        return
    width = shutil.get_terminal_size().columns
    if width < WIDE:
        _print_pairs_of_lines(rows, width)
    else:
        _print_lines(rows)
    _print("", *wrap(explanation, width))


def print_preset(preset: ShownPreset) -> None:
    """Print a preset as a YAML file, which --preset or --config reads."""
    _print(*preset.lines())


def _print_lines(rows: Sequence[PresetRow]) -> None:
    """Print a line for each preset."""
    header = ("preset", "trained", "size", "what for")
    print_table(header, [(row.preset, row.trained, row.size, row.what_for) for row in rows])


def _print_pairs_of_lines(rows: Sequence[PresetRow], width: int) -> None:
    """Print two lines or more for each preset: sizes, and what it is for."""
    indent = " " * 4
    _print(_columns("preset", "trained", "size"))
    for row in rows:
        _print(_columns(row.preset, row.trained, row.size))
        _print(*wrap(row.what_for, width, initial_indent=indent, subsequent_indent=indent))


def _columns(name: str, trained: str, size: str) -> str:
    return f"{name:<{NAME_WIDTH}}{trained:<{TRAINED_WIDTH}}{size}"


def _print(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(f"{printable(line, None)}\n")
