"""Tables of any text in Markdown and LaTeX: nothing is swallowed, nothing breaks a row."""

import re

import pytest

from denserk.evaluation.table_markup import (
    Cell,
    Table,
    as_latex,
    as_markdown,
    escape_latex,
    escape_markdown,
)

SPECIAL = r"""a_b&c%d#e$f{g}h~i^j\k<l>m|n"o`p"""
ODD_NAMES = [SPECIAL, "[x]", "*y", "line\n\nend", "a--b", "''", "\u2020 \u00b1", "\x1b[2J", ""]


def unescaped(text: str) -> str:
    """Return what is left of LaTeX's text without the commands that stand for a character."""
    return re.sub(r"\\[a-z]+(\{\d*\})?|\\[&%$#_{}]|\$[<>|]\$|\{[*\[\]]?\}|\$\S+\$", "", text)


def rows_of(latex: str) -> list[str]:
    body = latex.partition("\\toprule\n")[2].partition("\\bottomrule")[0]
    return [line for line in body.splitlines() if not re.match(r"\\(midrule|addlinespace)", line)]


def columns_of(row: str) -> list[str]:
    return re.split(r"(?<!\\)&", row.removesuffix(r" \\"))


def depth(latex: str) -> int:
    """Return how many braces stay open; escaped ones are none."""
    text = latex.replace(r"\{", "").replace(r"\}", "")
    return text.count("{") - text.count("}")


@pytest.mark.parametrize("character", SPECIAL)
def test_no_special_character_of_latex_is_left(character):
    escaped = escape_latex(f"x{character}y")
    assert not set('_&%#$~^\\<>|"`') & set(unescaped(escaped)), escaped
    assert depth(escaped) == 0
    assert escaped.startswith("x")
    assert escaped.endswith("y")


def test_characters_that_would_join_stay_apart():
    assert escape_latex("a---b") == "a-{}-{}-b"
    assert escape_latex("''") == "'{}'"


@pytest.mark.parametrize("name", ODD_NAMES)
def test_every_row_of_latex_has_every_column(name):
    rows = ((Cell(name), Cell("0.5", best=True, differs=True)), (Cell("b"), Cell("0.4")))
    latex = as_latex(Table(("run", name), 1, rows), f"Of {name}.", "tab:results")
    header, *lines = rows_of(latex)
    assert [len(columns_of(row)) for row in (header, *lines)] == [2, 2, 2]
    assert all(row.endswith(r" \\") for row in (header, *lines))
    assert depth(latex) == 0
    # what begins a row is no argument of the end of the row before
    assert not [row for row in lines if row.startswith(("[", "*"))]
    assert "\n\n" not in latex
    assert "\x1b" not in latex


def test_negative_values_have_a_minus_sign_in_latex_and_names_a_hyphen():
    rows = ((Cell("run-1"), Cell("-0.25"), Cell("-0.1..+0.2")),)
    latex = as_latex(Table(("run", "x", "y"), 1, rows), "C.", "tab:results")
    assert r"run-1 & $-$0.25 & $-$0.1..+0.2 \\" in latex


def test_latex_keeps_the_room_of_a_mark_in_its_column_only():
    rows = (
        (Cell("a"), Cell("0.5", best=True, differs=True), Cell("0.1")),
        (Cell("b"), Cell("0.4"), Cell("0.2 \u00b1 0.1", best=True)),
    )
    latex = as_latex(Table(("run", "x", "y"), 1, rows), "C.", "tab:results")
    assert rows_of(latex)[1:] == [
        r"a & \textbf{0.5}$^{\dagger}$ & 0.1 \\",
        r"b & 0.4$\phantom{^{\dagger}}$ & \textbf{0.2 $\pm$ 0.1} \\",
    ]


def test_latex_groups_rows_by_the_first_of_several_names():
    cells = [("q1", "a"), ("q1", "b"), ("q2", "a"), ("q2", "b")]
    rows = tuple((Cell(query), Cell(run), Cell("1")) for query, run in cells)
    latex = as_latex(Table(("query", "run", "x"), 2, rows), "C.", "tab:results")
    assert r"\begin{tabular}{llr}" in latex
    assert latex.partition("\\midrule\n")[2].splitlines()[:5] == [
        r"q1 & a & 1 \\",
        r" & b & 1 \\",
        r"\addlinespace",
        r"q2 & a & 1 \\",
        r" & b & 1 \\",
    ]


@pytest.mark.parametrize("text", ["R&D", "p < 0.05", "a > b", "1<2", "bm25_k1", '"x"', "x & y < z"])
def test_markdown_leaves_what_it_shows_as_it_is(text):
    assert escape_markdown(text) == text


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b", r"a\|b"),
        ("&lt;b&gt;", "&amp;lt;b&amp;gt;"),
        ("&#60;", "&amp;#60;"),
        ("<b>x</b>", "&lt;b>x&lt;/b>"),
        ("<!-- x -->", "&lt;!-- x -->"),
        ("__init__", r"\_\_init\_\_"),
        ("a\\|b", r"a\\\|b"),
        ("a\nb", r"a\\nb"),
    ],
)
def test_markdown_escapes_what_it_would_swallow(text, escaped):
    assert escape_markdown(text) == escaped


@pytest.mark.parametrize("name", ODD_NAMES)
def test_every_row_of_markdown_has_every_column(name):
    table = Table(("run", name), 1, ((Cell(name), Cell("0.5", best=True)),))
    lines = as_markdown(table).splitlines()[:3]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [3, 3, 3]
