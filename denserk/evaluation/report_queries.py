"""Queries in a report: the table of all of them, and the lists of those that moved most."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from denserk.evaluation.evaluator import EvaluationResult
from denserk.evaluation.markup import Html, join, tag
from denserk.evaluation.measures import is_count
from denserk.evaluation.plot_scales import told_score
from denserk.evaluation.query_differences import QueryRow, main_measure, reference_of
from denserk.evaluation.report_parts import scrolling, section
from denserk.evaluation.run_profile import Hit, RunProfile, TopList
from denserk.records import Passage

LONGEST = 420
"""Characters of a passage that are shown."""
MOST_ROWS = 10_000
"""Queries that the table holds, those that moved most; browsers grow slow on more."""
PLACES = 4


@dataclass(frozen=True)
class Texts:
    """The texts that are known: query id -> text, passage id -> passage."""

    queries: Mapping[str, str] = field(default_factory=dict)
    passages: Mapping[str, Passage] = field(default_factory=dict)


def query_section(
    result: EvaluationResult, rows: Sequence[QueryRow], texts: Texts, linked: Sequence[str]
) -> Html:
    """All queries in one table, to be sorted and filtered, and their values for the script.

    Args:
        result: the measures.
        rows: the queries in order.
        texts: those that are known.
        linked: queries that have their lists on the page.
    """
    kept = rows[:MOST_ROWS]
    names = [run.name for run in result.runs]
    reference = reference_of(result)
    several = len(names) > 1
    table = tag(
        "table",
        tag("thead", tag("tr", *_head(names, several))),
        tag("tbody", *(_row(row, reference, texts, linked) for row in kept)),
        id="queries",
    )
    values = tag("script", _values(result, kept, reference), type="application/json", id="values")
    told = [_order(result, reference)]
    if len(kept) < len(rows):
        told.append(f"The first {len(kept):,} of {len(rows):,} queries are here.")
    return section(
        "per-query",
        "Query by query",
        tag("p", " ".join(told), class_="note"),
        _controls(result, names, reference),
        tag("p", id="count", role="status", class_="note"),
        scrolling(table, "values of each query"),
        values,
    )


def _order(result: EvaluationResult, reference: int) -> str:
    names = [run.name for run in result.runs]
    if len(names) == 1:
        return "The queries with the lowest values first."
    which = "" if len(names) == 2 else ", of the run that differs most"
    return f"Δ is the difference from {names[reference]}{which}; the largest come first."


def _head(names: Sequence[str], several: bool) -> list[Html]:
    shown = [("query", None), *((name, "number") for name in names)]
    if several:
        shown.append(("Δ", "number"))
    return [
        tag("th", tag("button", name, type="button", disabled=True), scope="col", class_=kind)
        for name, kind in shown
    ]


def _row(row: QueryRow, reference: int, texts: Texts, linked: Sequence[str]) -> Html:
    name: str = row.qid
    if row.qid in linked:
        name = tag("a", row.qid, href=f"#{anchor(linked, row.qid)}")
    text = texts.queries.get(row.qid)
    told = tag("span", text, class_="text") if text else ""
    cells = [tag("td", value_told(value), class_="number") for value in row.values]
    if len(row.values) > 1:
        cells.append(tag("td", difference_told(row.difference), class_=direction(row.difference)))
    return tag("tr", tag("th", name, told, scope="row"), *cells)


def anchor(linked: Sequence[str], qid: str) -> str:
    """The id of a query's lists on the page."""
    return f"moved-{linked.index(qid) + 1}"


def value_told(value: float) -> str:
    """A value; a dash where there is none."""
    return "–" if math.isnan(value) else f"{value:.{PLACES}f}"


def difference_told(value: float) -> str:
    """A difference with its sign.

    >>> difference_told(-0.25), difference_told(0.0)
    ('−0.2500', '0.0000')
    """
    if math.isnan(value):
        return "–"
    shown = f"{abs(value):.{PLACES}f}"
    sign = "" if float(shown) == 0 else "+" if value > 0 else "−"
    return sign + shown


def direction(value: float) -> str:
    """The class of a difference."""
    return "number up" if value > 0 else "number down" if value < 0 else "number"


def _values(result: EvaluationResult, rows: Sequence[QueryRow], reference: int) -> Html:
    """All measures of all rows, for the script; safe inside a script element."""

    def known(run: Mapping[str, float], qid: str) -> float | None:
        value = run.get(qid, math.nan)
        return None if math.isnan(value) else round(value, PLACES + 2)

    whole = {
        "reference": reference,
        "places": PLACES,
        "values": {
            str(measure): [
                [known(run.per_query[str(measure)], row.qid) for row in rows] for run in result.runs
            ]
            for measure in result.measures
        },
    }
    text = orjson.dumps(whole).decode()
    for letter in "<>&":  # may stand in the name of a measure alone
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Html(text)


def _controls(result: EvaluationResult, names: Sequence[str], reference: int) -> Html:
    """What sorts and filters; hidden where there is no script."""

    def choice(name: str, label: str, options: Sequence[tuple[str, str]]) -> Html:
        made = [tag("option", text, value=value) for value, text in options]
        return tag("label", tag("span", label), tag("select", *made, id=name))

    main = main_measure(result)
    compared = [str(measure) for measure in result.measures if not is_count(measure)]
    measures = dict.fromkeys((main, *compared))
    words = tag("input", type="search", id="words", placeholder="id or words", autocomplete="off")
    controls = [
        tag("label", tag("span", "Find"), words),
        choice("measure", "Measure", [(name, name) for name in measures]),
    ]
    if len(names) > 2:
        others = [(str(n), name) for n, name in enumerate(names) if n != reference]
        controls.append(choice("other", "Δ of", [("-1", "the widest"), *others]))
    if len(names) > 1:
        signs = [("all", "all"), ("up", "better"), ("down", "worse"), ("same", "equal")]
        controls.append(choice("sign", "Queries", signs))
    sizes = [("25", "25"), ("100", "100"), ("500", "500"), ("0", "all")]
    controls.append(choice("limit", "Rows", sizes))
    return tag("form", *controls, id="controls", hidden=True)


def moved_section(
    result: EvaluationResult,
    rows: Sequence[QueryRow],
    profiles: Sequence[RunProfile],
    texts: Texts,
) -> Html:
    """The queries that moved most, with the first passages of each run side by side.

    Args:
        result: the measures.
        rows: those queries.
        profiles: the runs' lists.
        texts: those that are known.
    """
    if not profiles:
        return Html()
    measure = main_measure(result)
    names = [run.name for run in result.runs]
    articles = []
    for place, row in enumerate(rows, start=1):
        values = ", ".join(
            f"{name} {value_told(value)}" for name, value in zip(names, row.values, strict=True)
        )
        told = f"{measure}: {values}"
        if len(names) > 1:
            told += f" (Δ {difference_told(row.difference)})"
        head = tag(
            "summary",
            tag("span", texts.queries.get(row.qid) or f"query {row.qid}", class_="question"),
            tag("span", f"{row.qid} · {told}" if row.qid in texts.queries else told, class_="note"),
        )
        lists = [_list(one, one.lists[row.qid], texts) for one in profiles]
        body = tag("div", *lists, class_="lists")
        articles.append(tag("details", head, body, id=f"moved-{place}", open=place <= 2))
    several = len(names) > 1
    heading = "The queries that moved most" if several else "The queries with the lowest values"
    key = tag(
        "p",
        "Beside each passage: its judgement, and its score. ",
        _badge(2, relevant=True),
        " relevant, ",
        _badge(0, relevant=False),
        " judged not relevant, ",
        _badge(None, relevant=False),
        " not judged.",
        class_="note",
    )
    return section("moved", heading, key, *articles)


def _list(run: RunProfile, found: TopList, texts: Texts) -> Html:
    if not found.hits:
        told = "no hits"
    elif found.first_relevant is None:
        told = f"nothing relevant among {found.hits:,}"
    else:
        told = f"first relevant: rank {found.first_relevant:,}"
    hits = [_hit(hit, run.level, texts.passages.get(hit.docid)) for hit in found.top]
    head = tag("h3", run.name, " ", tag("small", told))
    return tag("div", head, tag("ol", *hits) if hits else "", class_="list")


def _hit(hit: Hit, level: int, passage: Passage | None) -> Html:
    relevant = hit.grade is not None and hit.grade >= level
    head = join(
        _badge(hit.grade, relevant=relevant),
        " ",
        tag("code", hit.docid),
        " ",
        tag("small", told_score(hit.score)),
    )
    title = tag("strong", passage.title, " ") if passage is not None and passage.title else ""
    text = tag("p", title, shortened(passage.text)) if passage is not None else ""
    return tag("li", head, text)


def _badge(grade: int | None, *, relevant: bool) -> Html:
    """A grade, told by word, sign and colour."""
    if grade is None:
        return tag("span", "?", class_="grade", title="not judged")
    kind = "grade good" if relevant else "grade bad"
    word = "relevant" if relevant else "not relevant"
    return tag("span", "✓ " if relevant else "✗ ", str(grade), class_=kind, title=word)


def shortened(text: str, longest: int = LONGEST) -> str:
    """A text, cut between words where it is long.

    >>> shortened("one two three", 9)
    'one two …'
    """
    if len(text) <= longest:
        return text
    return (
        text[: longest - 1].rpartition(" ")[0] + " …"
        if " " in text[:longest]
        else text[:longest] + "…"
    )
