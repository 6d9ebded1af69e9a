"""The page that compares runs: one HTML file that needs nothing beside it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from denserk import __version__
from denserk.evaluation.evaluator import EvaluationResult, some
from denserk.evaluation.markup import Html, tag
from denserk.evaluation.published_table import as_published_grid
from denserk.evaluation.query_differences import QueryRow
from denserk.evaluation.report_figures import Cost, run_figures, transfer_figure
from denserk.evaluation.report_parts import grid_table, section, several
from denserk.evaluation.report_queries import Texts, moved_section, query_section
from denserk.evaluation.run_profile import RunProfile
from denserk.evaluation.suites_result import SuitesResult
from denserk.evaluation.suites_table import as_suites_grid
from denserk.evaluation.table import as_grids
from denserk.settings.evaluation import ReportSettings

CLOSED = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""The page's own law: nothing is fetched."""


@dataclass(frozen=True)
class Report:
    """What the page is made of.

    Attributes:
        title: of the page.
        result: the measures.
        rows: the queries in the order of their differences in the main measure.
        shown: how many of them are shown with their lists.
        profiles: the runs against judgements; none where there are no judgements.
        costs: a run's, in the order of the runs.
        texts: of the queries and passages that are shown, as far as they are known.
        lacking: what is not on the page and why, one sentence each.
    """

    title: str
    result: EvaluationResult
    rows: Sequence[QueryRow]
    shown: int
    profiles: Sequence[RunProfile] = ()
    costs: Sequence[Cost] = ()
    texts: Texts = field(default_factory=Texts)
    lacking: Sequence[str] = ()


def as_page(report: Report) -> str:
    """The whole page."""
    moved = report.rows[: report.shown]
    linked = [row.qid for row in moved] if report.profiles else []
    sections = [
        section(
            "measures", "Measures", *map(grid_table, as_grids(report.result, ReportSettings()))
        ),
        section("plots", "Curves", *run_figures(report.result, report.profiles, report.costs)),
        moved_section(report.result, moved, report.profiles, report.texts),
        query_section(report.result, report.rows, report.texts, linked),
        section("notes", "What to know", _notes(report)),
    ]
    runs = [run.name for run in report.result.runs]
    count = f"{several(runs, 'run')}, {several(report.result.queries, 'query', 'queries')}"
    return _document(report.title, count, runs, sections)


def as_suites_page(result: SuitesResult) -> str:
    """The page of runs on several suites: their table, and in-domain against zero-shot."""
    grids = [as_suites_grid(result, ReportSettings().places)]
    if result.published:
        grids.append(as_published_grid(result.published, result.measures))
    figure, lacking = transfer_figure(result)
    sections = [section("measures", "Measures", *map(grid_table, grids))]
    if figure is not None:
        sections.append(section("plots", "In-domain and zero-shot", figure))
    else:
        sections.append(section("notes", "What to know", tag("ul", tag("li", lacking))))
    count = f"{several(result.runs, 'run')}, {several(list(result.results), 'suite')}"
    return _document("Runs on several suites", count, list(result.runs), sections)


def _notes(report: Report) -> Html:
    result = report.result
    notes = []
    for run in result.runs:
        if run.missing:
            notes.append(
                f"{run.name} lacks {len(run.missing):,} of {len(result.queries):,} judged queries: "
                f"{some(run.missing)}."
            )
        if run.unjudged:
            others = several(run.unjudged, "query", "queries")
            notes.append(f"{run.name} has {others} without judgements, which do not count.")
        if run.ties.lines:
            notes.append(
                f"{run.name} has {run.ties.lines:,} lines that tie with another of their query; "
                "here ties fall as in trec_eval, by passage id descending."
            )
    told = (f"{', '.join(names)} by {who}" for who, names in result.providers.items())
    notes.append(f"Computed through ir-measures: {'; '.join(told)}.")
    return tag("ul", *(tag("li", note) for note in (*notes, *report.lacking)))


def _document(title: str, count: str, runs: Sequence[str], sections: Sequence[Html]) -> str:
    kept = [one for one in sections if one]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=CLOSED),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(_asset("report.css"))),
    )
    header = tag("header", tag("h1", title), tag("p", f"{count}: {', '.join(runs)}", class_="note"))
    footer = tag("footer", tag("p", f"Made by denserk {__version__}."))
    script = tag("script", Html(_asset("report.js")))
    body = tag("body", header, tag("main", *kept), footer, script)
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _asset(name: str) -> str:
    return files("denserk.evaluation").joinpath(name).read_text("utf-8")
