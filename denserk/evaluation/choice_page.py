"""Picture and HTML page of a choice."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from denserk.evaluation.choice import Choice, SystemResult, sentence, undecided_sentence
from denserk.evaluation.pages import write_template
from denserk.evaluation.report_figures import Figure
from denserk.extras import installed
from denserk.plots import INKS, TEXT, NamedPoint, as_image, new_axes, style, write_names
from denserk.version import __version__

DROPPED = "#8a929b"
NOTE_WIDTH = 125  # characters of a line below the picture
ROOM_FOR_NAMES = 3.5  # the axis ends at so many times the highest cost


class CostAxis(NamedTuple):
    """What the horizontal axis shows."""

    label: str  # empty where costs are not known, and positions are numbers
    positions: Sequence[float]  # of the systems

    @property
    def shows_cost(self) -> bool:
        """Whether positions are costs."""
        return bool(self.label)


def draw_choice(choice: Choice) -> Any:
    """Draw each system: its mean, and its interval against the leader, by its cost.

    The cost is the time of a query or, where that is not known of all systems, the size of a
    passage; else the systems stand side by side.
    """
    axes = new_axes(6.2, 4.2)
    cost = cost_axis(choice.systems)
    leader = choice.leader
    for position, system in zip(cost.positions, choice.systems, strict=True):
        ink = INKS[0] if system.may_be_best else DROPPED
        if system is leader:
            ink = TEXT
        low = leader.mean + system.low
        high = leader.mean + system.high
        axes.plot((position, position), (low, high), color=ink, lw=1.1)
        marker = "o" if system.may_be_best else "X"
        axes.plot(position, leader.mean + system.difference, marker, color=ink, ms=6)
    axes.axhline(leader.mean, color=TEXT, lw=0.7, ls=(0, (4, 3)))
    axes.set(xlabel=cost.label, ylabel=choice.measure)
    axes.margins(x=0.2)
    if cost.shows_cost:
        axes.set_xscale("log")
        axes.set_xlim(min(cost.positions) / 1.5, max(cost.positions) * ROOM_FOR_NAMES)
        axes.xaxis.set_major_formatter("{x:,g}")
    else:
        axes.set_xlim(-0.5, len(choice.systems))
        axes.set_xticks([])
    points = [
        NamedPoint(leader.mean + system.difference, position, system.name)
        for position, system in zip(cost.positions, choice.systems, strict=True)
    ]
    write_names(axes, points)
    level = f"{1 - choice.alpha:.0%}"
    note = (
        f"{choice.queries:,} queries. Heights: the mean of {leader.name} (dashed) plus the "
        "difference from it on the same queries, which for a dropped system (cross) are fewer. "
        f"Bars: {level} intervals of the difference."
    )
    axes.figure.supxlabel(fill(note, NOTE_WIDTH), fontsize=6.5, x=0.01, ha="left")
    return axes


def cost_axis(systems: Sequence[SystemResult]) -> CostAxis:
    """Return the time of a query, else the size of a passage, else the numbers of the systems.

    A cost is taken only if it is known, and above 0, for all systems.
    """
    times = [system.cost.query_milliseconds for system in systems]
    known_times = [time for time in times if time]
    if len(known_times) == len(systems):
        return CostAxis("milliseconds a query", known_times)
    sizes = [system.cost.passage_bytes for system in systems]
    known_sizes = [size for size in sizes if size]
    if len(known_sizes) == len(systems):
        return CostAxis("bytes a passage", known_sizes)
    return CostAxis("", range(len(systems)))


def write_page(path: Path, choice: Choice) -> None:
    """Write the page of a choice; its picture only where matplotlib is installed."""
    figures = []
    if installed("matplotlib"):
        with style():
            image = as_image(draw_choice(choice), f"{choice.measure} and cost of each system")
        caption = f"{choice.measure} of each system, with its interval against the leader, by cost."
        figures.append(Figure(image, caption))
    content = {
        "choice": choice,
        "sentence": sentence(choice),
        "undecided_sentences": [
            undecided_sentence(difference, choice) for difference in choice.undecided
        ],
        "rows": [table_row(system, choice) for system in choice.systems],
        "header": HEADER,
        "figures": figures,
        "version": __version__,
    }
    write_template(path, "choice.html", content)


HEADER = (
    *("system", "may be best", "queries", "mean", "difference", "interval"),
    *("ms a query", "bytes a passage", "minutes to build"),
)


def table_row(system: SystemResult, choice: Choice) -> tuple[str, ...]:
    """Return the cells of a system, under `HEADER`."""
    is_leader = system is choice.leader
    return (
        system.name,
        "yes" if system.may_be_best else "no",
        f"{system.queries:,}",
        f"{system.mean:.4f}",
        "" if is_leader else f"{system.difference:+.4f}",
        "" if is_leader else f"{system.low:+.4f}..{system.high:+.4f}",
        number_text(system.cost.query_milliseconds, 2),
        number_text(system.cost.passage_bytes, 0),
        number_text(system.cost.build_minutes, 2),
    )


def number_text(value: float | None, places: int) -> str:
    """Return a cost with decimal places; "-" if it is not known.

    >>> number_text(1536.4, 0), number_text(None, 2)
    ('1,536', '-')
    """
    return "-" if value is None else f"{value:,.{places}f}"
