"""What is measured, and how the measures are shown."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from denserk.errors import UsageError
from denserk.settings.formats import DETECTED, CorpusSettings
from denserk.settings.options import Settings, option

# What is measured when nothing is asked for: BEIR's two measures, and MS MARCO's first
DEFAULT_MEASURES = ("nDCG@10", "RR@10", "R@100")


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


# The default measures of --format trec_eval: those that trec_eval prints
TREC_EVAL_MEASURES = ("official",)


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


# What is measured by answers when nothing is asked for: the top-k accuracies of the papers
DEFAULT_ANSWER_MEASURES = ("Success@5", "Success@20", "Success@100")


@dataclass(frozen=True)
class AnswerInput:
    """Questions with answers, and the passages they are looked for in."""

    answers: str | None = option(
        None, metavar="FILE|DIR|-", shown_default="the judgements that are named"
    )
    """Questions with their answers, in place of judgements: a hit is relevant where its text
    contains one. DPR's .qa.csv, JSON lines, or a folder of EntityQuestions."""
    corpus: str | None = option(None, metavar="FILE|DIR|NAME|-", shown_default="none")
    """The passages that the runs name: --answers looks into them, --report shows some."""

    def __post_init__(self) -> None:
        if self.answers is not None and self.corpus is None:
            raise UsageError(
                f"--answers {self.answers} are looked for in the texts of hits, and there is no "
                "corpus",
                "add --corpus, the passages that were searched",
            )


@dataclass(frozen=True)
class AnswerSettings(Settings):
    """How answers are matched, and what is written of it."""

    topk: tuple[int, ...] = option((), metavar="K,K,...", shown_default="5,20,100", rare=True)
    """Top-k accuracy at these depths: 5,20 is -m 'Success@5 Success@20'."""
    regex: bool = False
    """Answers are regular expressions (CuratedTREC)."""
    strict_dpr: bool = option(False, rare=True)
    """An answer without a letter, number or sign matches every passage, as in DPR's own code;
    otherwise it matches none."""
    skip_missing: bool = False
    """Passages that the corpus lacks hold no answer; otherwise they are refused."""
    num_workers: int = option(1, at_least=1)
    """Processes that look for answers."""
    write_dpr_json: str | None = option(None, metavar="FILE", shown_default="none")
    """Also write the questions with their passages as DPR does, for readers such as FiD."""
    write_pyserini_json: str | None = option(None, metavar="FILE", shown_default="none")
    """Also write them as Pyserini does, for its evaluate_dpr_retrieval."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(depth < 1 for depth in self.topk):
            raise UsageError(f"--set topk={','.join(map(str, self.topk))}: at least 1 is expected")
        if self.regex and self.strict_dpr:
            raise UsageError(
                "--strict-dpr is about answers that are words; with --regex they are patterns",
                "leave one of them out",
            )
        if "-" in self.outputs:
            raise UsageError("standard output (-) is for the measures", "name a file to write to")

    @property
    def outputs(self) -> tuple[str, ...]:
        """The files that are asked for."""
        both = (self.write_dpr_json, self.write_pyserini_json)
        return tuple(path for path in both if path is not None)


# DPR's matching, by words, in this process
MATCHING = AnswerSettings()


def reject_unused(settings: Sequence[Any], why: str, hint: str) -> None:
    """Refuses options that were given and would do nothing.

    Args:
        settings: settings objects, all of whose options would.
        why: what they are for.
        hint: what to do.

    Raises:
        UsageError: a field differs from its default; all such options are named.

    >>> reject_unused([AnswerSettings(regex=True)], "for --answers", "add it")
    Traceback (most recent call last):
    denserk.errors.UsageError: --regex: for --answers
    """
    given = [
        "--" + field.name.replace("_", "-")
        for group in settings
        for field in dataclasses.fields(group)
        if getattr(group, field.name) != field.default
    ]
    if given:
        raise UsageError(f"{', '.join(given)}: {why}", hint)


class PairedTest(StrEnum):
    """How it is judged whether two runs differ."""

    T = "t"
    """The paired t-test."""
    RANDOMISATION = "randomisation"
    """The paired randomisation test (Fisher's): signs of the differences drawn at random."""


class Correction(StrEnum):
    """What is done about testing several runs or measures at once."""

    HOLM = "holm"
    """Holm's step-down correction."""
    BONFERRONI = "bonferroni"
    """Each p-value times the number of tests."""
    NONE = "none"
    """Nothing."""


@dataclass(frozen=True)
class ComparisonSettings(Settings):
    """Whether runs differ from one of them."""

    baseline: str | None = option(None, metavar="RUN", shown_default="no test")
    """Test every other run against this one, per measure: a file, or a run's name in the table."""
    test: PairedTest = PairedTest.T
    """The paired test."""
    correction: Correction = Correction.HOLM
    """Correction of p-values and intervals over all runs and measures tested."""
    alpha: float = 0.05
    """Corrected p-values below it are marked; 1 - alpha is the confidence of the intervals."""
    permutations: int = option(100_000, rare=True, at_least=1)
    """randomisation: how many draws."""
    test_seed: int = option(42, rare=True)
    """randomisation: seed of the draws."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha < 1:
            raise UsageError(f"--alpha {self.alpha}: between 0 and 1", "0.05 is usual")


@dataclass(frozen=True)
class PageSettings(Settings):
    """A page made from the runs."""

    report: str | None = option(None, metavar="DIR", shown_default="no page")
    """Also write DIR/index.html: tables, curves, queries side by side, in one file."""
    topics: str | None = option(None, metavar="FILE|DIR|NAME", shown_default="as the runs know")
    """Queries whose texts --report shows, and --write-dpr-json writes where --answers has none."""
    report_queries: int = option(20, rare=True, at_least=0)
    """--report: how many of the queries that moved most have their lists side by side."""
    report_passages: int = option(5, rare=True, at_least=1)
    """--report: how many passages of each list are shown."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.report is None:
            told = [option for option in self.asked if not option.startswith("--topics ")]
            if told:
                raise UsageError(f"{' and '.join(told)}: for --report alone", "add --report DIR")

    @property
    def asked(self) -> tuple[str, ...]:
        """The options about queries and passages that differ from their defaults, as typed.

        >>> PageSettings(report="page", report_queries=5).asked
        ('--report-queries 5',)
        """
        about = [field for field in fields(self) if field.name != "report"]
        return tuple(
            f"--{field.name.replace('_', '-')} {getattr(self, field.name)}"
            for field in about
            if getattr(self, field.name) != field.default
        )


@dataclass(frozen=True)
class ReportSources:
    """What stands behind the measures of runs.

    Attributes:
        title: of the page.
        qrels: the judgements; None where answers were matched instead.
        topics: the queries; None where nobody said, and the runs' manifests are asked.
        corpus: the passages; the same.
        shape: how the corpus is read.
    """

    title: str
    qrels: str | None = None
    topics: str | None = None
    corpus: str | None = None
    shape: CorpusSettings = DETECTED
