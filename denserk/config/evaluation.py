"""Options of evaluation: measures, answer matching, significance tests, output and report."""

import math
from dataclasses import dataclass
from enum import StrEnum

from denserk.config.formats import DETECTED, CorpusSettings
from denserk.config.options import Settings, option, setting
from denserk.config.shared import check_plot
from denserk.errors import UsageError

# Default measures: BEIR's two, and MS MARCO's first.
DEFAULT_MEASURES = ("nDCG@10", "RR@10", "R@100")
# Measures that a shell completes, among the many there are.
COMMON_MEASURES = (
    "nDCG@10",
    "nDCG@20",
    "nDCG@100",
    "RR@10",
    "RR@100",
    "R@100",
    "R@1000",
    "AP",
    "AP@100",
    "P@10",
    "Rprec",
    "Success@1",
    "Success@5",
    "Success@20",
    "Success@100",
    "Judged@10",
    "Bpref",
    "official",
)
# Output formats of measures: tsv as ir-measures prints it, with the run first if there are several.
OutputFormat = StrEnum("OutputFormat", "TABLE TSV JSON TREC_EVAL MARKDOWN LATEX")
# Default measures of --format trec_eval, as trec_eval prints.
TREC_EVAL_MEASURES = ("official",)
RunOrder = StrEnum("RunOrder", "SCORE RANK")


class EvaluationSettings(Settings):
    """Measures."""

    measures: tuple[str, ...] = option(
        (), "-m", repeat=True, metavar="MEASURES", completes="measures"
    )
    """Measures, separated by spaces, as ir-measures (nDCG@10) or trec_eval (ndcg_cut.10).
    [default: nDCG@10 RR@10 R@100, or the benchmark's]"""
    relevance_level: int = option(1, "-l", at_least=1)
    """Minimum grade of a relevant passage, for measures without their own; nDCG uses grades."""
    complete: bool = option(True, "-c")
    """Count queries missing from a run as 0 instead of leaving them out of the mean."""
    order: RunOrder = setting(RunOrder.SCORE)
    """Order hits by score (trec_eval) or by rank (MS MARCO)."""
    max_hits: int | None = option(None, "-M", "--Max-retrieved-per-topic", metavar="N", at_least=1)
    """Evaluate only the first N hits of each query. [default: all]"""
    min: tuple[str, ...] = option((), repeat=True, metavar="MEASURE=VALUE")
    """Exit with status 1 if a run is below this value, e.g. nDCG@10=0.30; repeatable."""
    remove_query: bool = False
    """Drop hits whose id is the query's own (ArguAna, Quora)."""


class ReportSettings(Settings):
    """Output: the printed measures."""

    per_query: bool = option(False, "-q", "--by-query")
    """Print the values of each query, too."""
    summary: bool = option(True, " /-n", needs="per_query")
    """With --per-query: also print the mean values."""
    format: OutputFormat | None = option(None, "-o", "--output-format")
    """Output format. [default: table on a terminal, tsv elsewhere]"""
    places: int = option(4, "-p", at_least=0, at_most=17)
    """Decimal places of table, TSV, Markdown and LaTeX."""


def parse_bound(text: str) -> tuple[str, float]:
    """Parse "measure=value"; the measure may contain "=", too."""
    measure, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not measure.strip() or not math.isfinite(value):
        raise UsageError(f"--min {text}: MEASURE=VALUE is expected", "for example nDCG@10=0.30")
    return measure.strip(), value


# Default measures with answers: the papers' top-k accuracies.
DEFAULT_ANSWER_MEASURES = ("Success@5", "Success@20", "Success@100")


class EvaluationInput(Settings):
    """Input: of `eval`."""

    run: tuple[str, ...] = option((), metavar="RUN", repeat=True)
    """Run file; repeatable."""
    qrels: str | None = option(None, metavar="QRELS", excludes="answers")
    """Qrels: a file, a BEIR folder, or a dataset name (beir:scifact)."""
    answers: str | None = option(None, metavar="FILE|DIR|-", needs="corpus")
    """Questions with answers, instead of qrels: a hit is relevant if it contains an answer.
    [default: use the qrels]"""
    corpus: str | None = option(
        None, metavar="FILE|DIR|NAME|-", needs="answers report to_judge draw"
    )
    """Passages of the runs, for --answers, --report, --to-judge and --draw."""
    explain: str | None = option(None, metavar="QID", excludes="answers report baseline min")
    """Print one query as trec_eval, ir_measures, BEIR, MTEB and MS MARCO's script evaluate it.
    Why a run fails on it: --report with --set report-ids=QID."""


class DrawSettings(Settings):
    """Draw: of queries for people to judge."""

    draw: int | None = option(
        None,
        metavar="N",
        at_least=1,
        needs="output",
        excludes="qrels answers explain unjudged report plot baseline min",
    )
    """Draw N queries at random for people to judge, of those of --predicted, or else of --topics or
    the runs, and write their first hits in all runs to --output. A smaller N is the beginning of a
    larger one."""
    seed: int = option(42, at_least=0, needs="draw")
    """--draw: random seed."""
    draw_depth: int = setting(10, at_least=1, needs="draw")
    """--draw: number of hits of each run that are to be judged."""


class PredictedSettings(Settings):
    """Predicted labels: of many queries, beside human labels of few."""

    predicted: str | None = option(None, metavar="QRELS", excludes="answers explain seeds")
    """Predicted qrels of many queries, beside those of people for few of them:
    prediction-powered intervals of means and differences."""
    drawn: str | None = option(None, metavar="FILE", needs="predicted", excludes="draw")
    """File that --draw wrote: checks that the human-judged queries are the first ones drawn.
    [default: the qrels, if --draw wrote them]"""


class AnswerSettings(Settings):
    """Answers: how they are matched."""

    topk: tuple[int, ...] = setting((), metavar="K,K,...", at_least=1, needs="answers")
    """Top-k accuracy at these depths; 5,20 is -m 'Success@5 Success@20'. [default: 5,20,100]"""
    regex: bool = option(False, needs="answers")
    """Answers are regular expressions (CuratedTREC)."""
    strict_dpr: bool = setting(False, excludes="regex", needs="answers")
    """Answers without letters, digits or symbols match every passage, as in DPR's code."""
    skip_missing: bool = option(False, needs="answers")
    """Treat passages missing from the corpus as irrelevant instead of stopping."""
    num_workers: int = option(1, at_least=1, needs="answers")
    """Number of processes for answer matching."""
    write_dpr_json: str | None = option(None, metavar="FILE", needs="answers")
    """Also write questions and passages as DPR's reader input."""
    write_pyserini_json: str | None = option(None, metavar="FILE", needs="answers")
    """Also write questions and passages for Pyserini's evaluate_dpr_retrieval."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the output files."""
        return tuple(filter(None, (self.write_dpr_json, self.write_pyserini_json)))


Unjudged = StrEnum("Unjudged", "BOUNDS")


class UnjudgedSettings(Settings):
    """Unjudged hits: passages that a run returns and that the qrels do not grade."""

    unjudged: Unjudged | None = option(None, excludes="answers explain seeds")
    """bounds: also print the least and greatest values over all judgments of unjudged hits.
    [default: count them as not relevant]"""
    to_judge: int | None = option(None, metavar="N", at_least=1, needs="unjudged")
    """Choose at most N unjudged hits whose judgments decide the sign of the first difference that
    is open, by the first measure; say how many it takes. [default: none]"""
    output: str | None = option(None, metavar="FILE", needs="to_judge draw")
    """Write the hits of --to-judge or --draw as a table with an empty column of grades.
    [default: not written]"""


PREVIOUS = "previous"  # --baseline: of each run the one before it
PairedTest = StrEnum("PairedTest", "T RANDOMISATION")
Correction = StrEnum("Correction", "HOLM BONFERRONI TUKEY NONE")


class ComparisonSettings(Settings):
    """Significance tests."""

    baseline: str | None = option(None, metavar="RUN|previous", completes="baselines")
    """Run file, or name of a run or system, to test the other runs against; previous tests each
    run against the one before it. [default: no test]"""
    seeds: bool = option(False, excludes="report answers")
    """Runs whose names differ in the number at their end alone (agg-1, agg-2) are one system over
    seeds: print mean and spread; tests permute runs within queries."""
    test: PairedTest = PairedTest.T
    """Paired significance test."""
    correction: Correction = Correction.HOLM
    """Correction of p-values and confidence intervals for multiple tests; tukey: randomised Tukey
    HSD of all runs, in place of --test."""
    alpha: float = option(0.05, above=0, below=1)
    """Significance level; the confidence level of the intervals is 1 - alpha."""
    permutations: int = setting(100_000, at_least=1)
    """randomisation, tukey: number of permutations."""
    test_seed: int = setting(42)
    """randomisation, tukey: random seed."""

    def _check(self) -> None:
        if self.seeds and self.correction is Correction.TUKEY:
            raise UsageError(
                "--seeds and --correction tukey exclude each other",
                "--seeds tests pairs of systems; correct them by --correction holm",
            )


class PageSettings(Settings):
    """Report."""

    report: str | None = option(None, metavar="DIR")
    """Write an HTML report, DIR/index.html: tables, curves, and queries with their hits and the
    relevant passages that were missed; --set report-ids=QID chooses queries."""
    topics: str | None = option(
        None,
        metavar="FILE|DIR|NAME",
        needs="report write_dpr_json write_pyserini_json to_judge draw",
    )
    """Topics with the query texts for --report and --write-dpr-json. [default: see the runs]"""
    report_ids: tuple[str, ...] = setting(
        (), metavar="QID,QID,...", needs="report", excludes="answers"
    )
    """--report: queries to show in detail first, in this order."""
    report_queries: int = setting(20, at_least=0, needs="report")
    """--report: number of queries shown in detail: of those on which every run fails, and of those
    with the largest differences."""
    report_passages: int = setting(5, at_least=1, needs="report")
    """--report: number of passages shown per query and run, and of missed relevant passages."""
    misses: str | None = setting(None, metavar="FILE", needs="report")
    """--report: table of analyze misses, for the section on causes. [default: misses.csv beside a
    run, if it is of that run]"""
    plot: str | None = option(None, metavar="FILE")
    """Plot of the runs as .png, .pdf or .svg: a panel per measure with confidence intervals;
    curves over depth for one measure at three or more cut-offs (R@1 R@10 R@100)."""

    def _check(self) -> None:
        check_plot(self.plot)


class EvalSettings(
    PageSettings, ReportSettings, ComparisonSettings, AnswerSettings, EvaluationSettings
):
    """Options that `eval` and `benchmark` share."""


class EvalInputSettings(
    EvaluationInput, UnjudgedSettings, PredictedSettings, DrawSettings, EvalSettings
):
    """Options of `eval`."""


@dataclass(frozen=True)
class ReportSources:
    """Sources of a report's texts and judgments; None: see the manifests of the runs."""

    title: str
    qrels: str | None = None
    topics: str | None = None
    corpus: str | None = None
    reading: CorpusSettings = DETECTED
