"""The parts that pages are built of: sections, tables, figures, legends."""

from collections.abc import Sequence

from denserk.evaluation.grid import DIFFERS, Grid
from denserk.evaluation.markup import Html, join, tag
from denserk.evaluation.plots import swatch


def section(name: str, heading: str, *content: Html) -> Html:
    """A part of the page; nothing where it has no content."""
    if not any(content):
        return Html()
    return tag("section", tag("h2", heading), *content, id=name)


def grid_table(grid: Grid) -> Html:
    """A grid as a table; the best in bold, what differs with a dagger."""

    def head(place: int, text: str) -> Html:
        return tag("th", text, scope="col", class_=None if place < grid.labels else "number")

    rows = []
    for row in grid.rows:
        cells = [
            tag("th", cell.text, scope="row") if place == 0 else tag("td", cell.text)
            for place, cell in enumerate(row[: grid.labels])
        ]
        for cell in row[grid.labels :]:
            told = tag("strong", cell.text) if cell.best else cell.text
            cells.append(
                tag("td", told, tag("sup", DIFFERS) if cell.differs else "", class_="number")
            )
        rows.append(tag("tr", *cells))
    header = tag("tr", *(head(place, text) for place, text in enumerate(grid.header)))
    table = tag("table", tag("thead", header), tag("tbody", *rows))
    notes = [tag("p", note, class_="note") for note in grid.legend("bold")]
    return join(scrolling(table, f"table of {', '.join(grid.header[: grid.labels])}"), notes)


def scrolling(table: Html, label: str) -> Html:
    """A wide table that scrolls by itself, by keyboard too, so that the page does not."""
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=label)


def figure(caption: str, *content: str) -> Html:
    """A plot with its words."""
    return tag("figure", *content, tag("figcaption", caption))


def legend(names: Sequence[str], *, line: bool = True) -> Html:
    """Which ink, dash and mark is which run's."""
    items = [tag("li", swatch(number, line=line), name) for number, name in enumerate(names)]
    return tag("ul", *items, class_="legend")


def several(things: Sequence[object], one: str, more: str | None = None) -> str:
    """How many there are, and of what.

    >>> several("ab", "run"), several("a", "query", "queries")
    ('2 runs', '1 query')
    """
    return f"{len(things):,} {one if len(things) == 1 else more or f'{one}s'}"
