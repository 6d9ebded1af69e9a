"""What is measured, and how the measures are shown."""

import math
from dataclasses import dataclass
from enum import StrEnum

from denserk.errors import UsageError
from denserk.settings.options import Settings, option

DEFAULT_MEASURES = ("nDCG@10", "RR@10", "R@100")
"""What is measured when nothing is asked for: BEIR's two measures, and MS MARCO's first."""


class OutputFormat(StrEnum):
    """Shapes in which measures are written."""

    TABLE = "table"
    """Aligned columns for people; the best of several runs marked."""
    TSV = "tsv"
    """ir-measures' lines: measure, value; the run first where there are several."""
    JSON = "json"
    """One object, values in full precision."""
    TREC_EVAL = "trec_eval"
    """trec_eval's lines and names."""
    MARKDOWN = "markdown"
    """A table for a README; the best of several runs in bold."""


TREC_EVAL_MEASURES = ("official",)
"""The default measures of --format trec_eval: those that trec_eval prints."""


class RunOrder(StrEnum):
    """Column of a run that orders the hits of a query."""

    SCORE = "score"
    """The score, as in trec_eval; equal scores are ties."""
    RANK = "rank"
    """The rank, as in MS MARCO's scripts; scores are not read."""


@dataclass(frozen=True)
class MeasureSettings(Settings):
    """What is measured, over which queries, and what is demanded of it."""

    measures: tuple[str, ...] = option(
        (),
        "-m",
        repeat=True,
        metavar="MEASURES",
        shown_default="nDCG@10 RR@10 R@100, or the benchmark's",
    )
    """Measures in ir-measures' notation (nDCG@10) or trec_eval's (ndcg_cut.10), spaces between;
    --format trec_eval has trec_eval's official measures as its default."""
    relevance_level: int = option(1, "-l", at_least=1)
    """Lowest grade that counts as relevant, for measures that name none; nDCG keeps the grades."""
    complete: bool = option(True, "-c")
    """Queries missing from a run count as 0; without it they are left out of the means."""
    order: RunOrder = option(RunOrder.SCORE, rare=True)
    """Column of the run that orders the hits: the score (trec_eval) or the rank (MS MARCO)."""
    max_hits: int | None = option(
        None, "-M", "--Max-retrieved-per-topic", metavar="N", shown_default="all", at_least=1
    )
    """Evaluate only the first N hits of each query."""
    min: tuple[str, ...] = option((), repeat=True, metavar="MEASURE=VALUE")
    """Exit with status 1 where a run stays under a measure's value, for example nDCG@10=0.30."""


@dataclass(frozen=True)
class EvaluationSettings(MeasureSettings):
    """The same with the rules that a benchmark sets by itself."""

    remove_query: bool = False
    """Drop hits whose passage id is the query's own (ArguAna, Quora)."""


@dataclass(frozen=True)
class ReportSettings(Settings):
    """How the measures are shown."""

    per_query: bool = option(False, "-q", "--by-query")
    """Also each query's own values."""
    summary: bool = option(True, " /-n")
    """With --per-query: also the line `all` with the means."""
    format: OutputFormat | None = option(
        None, "-o", shown_default="table on a terminal, tsv elsewhere"
    )
    """Shape of the output."""
    places: int = option(4, "-p", at_least=0, at_most=17)
    """Decimal places of table, tsv and markdown."""

    def __post_init__(self) -> None:
        """Reject a report of nothing."""
        super().__post_init__()
        if not self.summary and not self.per_query:
            raise UsageError(
                "--no-summary leaves nothing to print", "add --per-query, or leave it out"
            )


@dataclass(frozen=True)
class Bound:
    """The least value that a measure may have."""

    measure: str
    value: float


def parse_bound(text: str) -> Bound:
    """Reads "measure=value".

    Raises:
        UsageError: there is no "=", or no number behind the last one.

    >>> parse_bound("AP(rel=2)@100=0.25")
    Bound(measure='AP(rel=2)@100', value=0.25)
    """
    measure, equals, number = text.rpartition("=")
    try:
        value = float(number) if equals and measure.strip() else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(
            f"--min {text}: a measure, an equals sign and a number are expected",
            "for example --min nDCG@10=0.30",
        )
    return Bound(measure.strip(), value)
