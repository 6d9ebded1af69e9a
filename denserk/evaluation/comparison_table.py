"""Differences from a baseline as text: a grid, lines of three columns, JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from denserk.evaluation.comparison import Comparison
from denserk.evaluation.grid import DIFFERS, Cell, Grid
from denserk.settings.comparison import Correction, PairedTest

LEAST = 0.0005
"""P-values below it are shown with an exponent."""
TESTS = {PairedTest.T: "paired t-test", PairedTest.RANDOMISATION: "paired randomisation test"}
CORRECTIONS = {
    Correction.HOLM: "Holm's correction",
    Correction.BONFERRONI: "Bonferroni's correction",
    Correction.NONE: "no correction",
}


def note_on(comparison: Comparison) -> str:
    """What the dagger means."""
    settings = comparison.settings
    tests = sum(map(len, comparison.differences.values()))
    correction = f"; {CORRECTIONS[settings.correction]}"
    if settings.correction is not Correction.NONE:
        correction = f"{correction} of p and interval for {tests} tests" if tests > 1 else ""
    return (
        f"{DIFFERS} differs from {comparison.baseline} "
        f"(p < {settings.alpha:g}; {TESTS[settings.test]}{correction})"
    )


LEGEND = "d: Cohen's d of the paired differences; +/=/-: queries better, equal, worse"


def as_difference_grid(comparison: Comparison, places: int) -> Grid:
    """Runs and measures down; what is told of each difference across.

    The last column: on how many queries the run is better, equal, worse.
    """
    share = f"{100 * (1 - comparison.settings.alpha):g}% interval"
    header = ("run", "measure", "difference", share, "d", "p", "+/=/-")
    rows = [
        (
            Cell(run),
            Cell(measure),
            Cell(f"{found.mean:+.{places}f}", differs=comparison.significant(run, measure)),
            Cell(f"{found.low:+.{places}f}..{found.high:+.{places}f}"),
            Cell(f"{found.effect:.2f}"),
            Cell(f"{found.corrected:.1e}" if found.corrected < LEAST else f"{found.corrected:.3f}"),
            Cell(f"{found.wins}/{found.ties}/{found.losses}"),
        )
        for run, measures in comparison.differences.items()
        for measure, found in measures.items()
    ]
    return Grid(header, 2, tuple(rows), (note_on(comparison), LEGEND))


def difference_lines(comparison: Comparison, places: int) -> Iterator[str]:
    """Lines of run, measure with what is told of it, and value, as ir-measures writes them."""
    for run, measures in comparison.differences.items():
        for measure, found in measures.items():
            told = {
                "difference": found.mean,
                "low": found.low,
                "high": found.high,
                "effect": found.effect,
                "p": found.corrected,
            }
            for name, value in told.items():
                shown = f"{value:.3g}" if name == "p" else f"{value:.{places}f}"
                yield f"{run}\t{measure}:{name}\t{shown}\n"
            for name in ("wins", "ties", "losses"):
                yield f"{run}\t{measure}:{name}\t{getattr(found, name)}\n"


def as_json_value(comparison: Comparison) -> dict[str, Any]:
    """The whole comparison, in full precision."""
    settings = comparison.settings
    return {
        "baseline": comparison.baseline,
        "test": settings.test,
        "correction": settings.correction,
        "alpha": settings.alpha,
        "runs": {
            run: {measure: asdict(found) for measure, found in measures.items()}
            for run, measures in comparison.differences.items()
        },
    }
