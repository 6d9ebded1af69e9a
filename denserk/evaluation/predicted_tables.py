"""Means and differences with predicted labels as tables, lines and notes."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from denserk.config.evaluation import ReportSettings
from denserk.evaluation.prediction_powered import Gain, least_correlation
from denserk.evaluation.results import (
    MeanInterval,
    PoweredDifference,
    PoweredMean,
    PredictedLabels,
    Sample,
)
from denserk.evaluation.table_markup import DAGGER, Cell, Table, p_text, summary_labels

# of the columns that both tables have
COLUMNS_NOTE = (
    "r: correlation of values by human and by predicted labels; weight: of the predictions, 0 if "
    "they do not help and the interval is that of the human-judged queries; worth: number of "
    "human-judged queries that alone would give as short an interval"
)


def predicted_tables(predicted: PredictedLabels, places: int) -> list[Table]:
    """Return a table of means, and one of differences from the baseline if there is one."""
    tables = [_means_table(predicted, places)]
    if predicted.differences:
        tables.append(_differences_table(predicted, places))
    return tables


def is_significant(predicted: PredictedLabels, difference: PoweredDifference) -> bool:
    """Return whether a difference has a corrected p-value below alpha."""
    return difference.corrected < predicted.alpha


def _means_table(predicted: PredictedLabels, places: int) -> Table:
    """Return a table of runs and measures by their means, without and with predicted labels."""
    level = _level(predicted)
    header = ("run", "measure", "human", level, "with predictions", level, "r", "weight", "worth")
    rows = []
    for run, means in predicted.means.items():
        for measure, mean in means.items():
            rows.append((Cell(run), Cell(measure), *_mean_cells(mean, places)))
    notes = (*predicted_notes(predicted), *_gain_notes(predicted.means, predicted), COLUMNS_NOTE)
    return Table(header, 2, tuple(rows), notes, "Means with predicted labels")


def _mean_cells(mean: PoweredMean, places: int) -> list[Cell]:
    """Return the cells of a mean."""
    return [
        Cell(f"{mean.human.mean:.{places}f}"),
        Cell(_bounds(mean.human, f".{places}f")),
        Cell(f"{mean.powered.mean:.{places}f}"),
        Cell(_bounds(mean.powered, f".{places}f")),
        *_gain_cells(mean),
    ]


def _differences_table(predicted: PredictedLabels, places: int) -> Table:
    """Return a table of runs and measures by their differences from the baseline."""
    level = _level(predicted)
    header = (
        "run",
        "measure",
        "difference",
        level,
        "with predictions",
        level,
        "p",
        "r",
        "weight",
        "worth",
    )
    rows = []
    for run, differences in predicted.differences.items():
        for measure, difference in differences.items():
            differs = is_significant(predicted, difference)
            cells = _difference_cells(difference, places, differs=differs)
            rows.append((Cell(run), Cell(measure), *cells))
    dagger_note = (
        f"{DAGGER} differs from {predicted.baseline} with predictions (p < {predicted.alpha:g}; "
        f"Student's t; correction of p and interval: {predicted.correction})"
    )
    notes = (dagger_note, *_gain_notes(predicted.differences, predicted))
    return Table(header, 2, tuple(rows), notes, "Differences with predicted labels")


def _difference_cells(difference: PoweredDifference, places: int, *, differs: bool) -> list[Cell]:
    """Return the cells of a difference."""
    return [
        Cell(f"{difference.human.mean:+.{places}f}"),
        Cell(_bounds(difference.human, f"+.{places}f")),
        Cell(f"{difference.powered.mean:+.{places}f}", differs=differs),
        Cell(_bounds(difference.powered, f"+.{places}f")),
        Cell(p_text(difference.corrected)),
        *_gain_cells(difference),
    ]


def _gain_cells(mean: PoweredMean) -> list[Cell]:
    """Return the correlation, the weight, and what the predictions are worth."""
    return [
        Cell(f"{mean.correlation:.2f}"),
        Cell(f"{mean.weight:.2f}"),
        Cell(f"{mean.effective_queries:.0f}"),
    ]


def _bounds(interval: MeanInterval, number_format: str) -> str:
    """Return the bounds of an interval as text."""
    return f"{interval.low:{number_format}}..{interval.high:{number_format}}"


def _level(predicted: PredictedLabels) -> str:
    """Return the header of a column of intervals."""
    return f"{100 * (1 - predicted.alpha):g}% interval"


def predicted_notes(predicted: PredictedLabels) -> list[str]:
    """Return how many queries have which labels, and whether the intervals are valid."""
    counts = (
        f"{predicted.human_queries:,} queries have human labels, {predicted.predicted_queries:,} "
        "predicted ones, those of the human-judged queries among them; means are estimates for "
        "the population that the queries with predicted labels are a sample of"
    )
    return [counts, sample_note(predicted)]


def sample_note(predicted: PredictedLabels) -> str:
    """Return whether the human-judged queries are a random sample."""
    if predicted.sample is Sample.DRAWN:
        return (
            "the human-judged queries are a random sample: the first "
            f"{predicted.human_queries:,} of the draw with seed {predicted.seed}"
        )
    if predicted.sample is Sample.NOT_FIRST:
        return (
            "not valid: the human-judged queries are not the first "
            f"{predicted.human_queries:,} of the draw with seed {predicted.seed}"
        )
    return (
        "valid only if the human-judged queries are a random sample of the predicted ones, which "
        "no draw shows (--draw N makes one)"
    )


def _gain_notes(
    means: Mapping[str, Mapping[str, PoweredMean]], predicted: PredictedLabels
) -> Iterator[str]:
    """Yield notes on means or differences that predictions do not help: a reason, and which."""
    threshold = least_correlation(predicted.human_queries)
    reasons = {
        Gain.UNCORRELATED: f"the predictions do not help (r at most {threshold:.2f})",
        Gain.NO_GAIN: "the predictions do not help (the interval would not be shorter)",
        Gain.TOO_FEW: (
            "too few of the human values differ for an interval that can be trusted, with or "
            "without predictions; judge more queries"
        ),
    }
    for gain, reason in reasons.items():
        names = []
        for run, means_of_run in means.items():
            for measure, mean in means_of_run.items():
                if mean.gain is gain:
                    names.append(f"{run} {measure}")
        if names:
            yield f"{reason}: {', '.join(names)}"


def predicted_lines(
    predicted: PredictedLabels, report: ReportSettings
) -> Iterator[tuple[str, ...]]:
    """Yield (run, measure:statistic, value) of the means and differences.

    Where there is only one run, its name is left out. `all` stands behind it if queries are
    reported, too.
    """
    for run, means in predicted.means.items():
        run_labels = [run] if len(predicted.means) > 1 else []
        labels = [*run_labels, *summary_labels(report)]
        for measure, mean in means.items():
            for statistic, text in _statistics(mean, "mean", report.places):
                yield *labels, f"{measure}:{statistic}", text
    for run, differences in predicted.differences.items():
        labels = [run, *summary_labels(report)]
        for measure, difference in differences.items():
            for statistic, text in _statistics(difference, "difference", report.places):
                yield *labels, f"{measure}:{statistic}", text
            yield *labels, f"{measure}:powered_difference_p", f"{difference.corrected:.3g}"


def _statistics(mean: PoweredMean, noun: str, places: int) -> Iterator[tuple[str, str]]:
    """Yield the names and values of the statistics of a mean or difference, the `noun`."""
    for labels, interval in (("human", mean.human), ("powered", mean.powered)):
        yield f"{labels}_{noun}", f"{interval.mean:.{places}f}"
        yield f"{labels}_{noun}_low", f"{interval.low:.{places}f}"
        yield f"{labels}_{noun}_high", f"{interval.high:.{places}f}"
    yield f"{noun}_correlation", f"{mean.correlation:.{places}f}"
    yield f"{noun}_weight", f"{mean.weight:.{places}f}"
    yield f"{noun}_effective_queries", f"{mean.effective_queries:.1f}"
    yield f"{noun}_predictions", mean.gain


def predicted_object(predicted: PredictedLabels) -> dict[str, Any]:
    """Return means and differences for JSON, in full precision."""
    values = asdict(predicted)
    values["least_correlation"] = least_correlation(predicted.human_queries)
    return values
