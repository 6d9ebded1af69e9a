"""The page of `--report`: its content, and what its script does in headless Chromium."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from denserk.commands.app import run
from denserk.config.benchmarks import Paper
from denserk.config.evaluation import (
    ComparisonSettings,
    EvalSettings,
    EvaluationSettings,
    PageSettings,
    ReportSources,
)
from denserk.errors import UsageError
from denserk.evaluation.benchmarks import published_rows
from denserk.evaluation.query_details import check_query_ids
from denserk.evaluation.report import page_in, write_benchmarks_report, write_report
from denserk.evaluation.results import BenchmarksResult, EvaluationResult
from denserk.evaluation.significance import compare
from denserk.io.manifest import Kind, Manifest, write_manifest
from denserk.tasks.evaluate import evaluate
from tests.support.toy import PASSAGES, QUERIES

pytest.importorskip("matplotlib")
VOID = {"img", "meta", "input", "br"}
EVIL = "</script><img src=x onerror=alert(1)>&amp;'\""
EVIL_ID = '<b>"&'


class Reader(HTMLParser):
    """Reads a page; every element that begins has to end."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open_tags = [""]
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}  # by tag
        self.feed(page)
        self.close()
        assert self.open_tags == [""]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open_tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        tag = self.open_tags[-1]
        self.text[tag] = self.text.get(tag, "") + data

    @property
    def ids(self) -> list[str | None]:
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]

    def plots(self) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.elements if attributes.get("class") == "plot"]


RUNS = {
    "good.trec": "q1 Q0 d3 1 3 t\nq2 Q0 d1 1 3 t\nq2 Q0 d5 2 2 t\nq3 Q0 d4 1 2 t\n",
    "bad.trec": "q1 Q0 d1 1 3 t\nq1 Q0 d3 2 2 t\nq2 Q0 d2 1 3 t\nq3 Q0 d4 1 2 t\n",
}
FEW = EvaluationSettings(("RR@10 R@2",))


@pytest.fixture
def files(toy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(toy)
    for name, lines in RUNS.items():
        (toy / name).write_text(lines)
    return toy


@pytest.fixture
def result(files: Path) -> EvaluationResult:
    return evaluate(list(RUNS), "qrels.txt", FEW)


def page_of(result: EvaluationResult, sources: ReportSources, **shown: Any) -> str:
    runs = [f"{run.name}.trec" for run in result.runs]
    path = write_report(result, runs, sources, EvalSettings(report="pages/report", **shown))
    assert path == Path("pages/report/index.html")
    return path.read_text("utf-8")


@pytest.fixture
def hostile_page(files: Path) -> str:
    """A page whose ids, texts and title are hostile, with a manifest and published results."""
    Path("qrels.txt").write_text(f"q1 0 a 1\nq1 0 b 0\nq2 0 a 1\n{EVIL_ID} 0 {EVIL_ID} 2\n")
    Path("good.trec").write_text(f"q1 Q0 a 1 3 t\nq1 Q0 b 2 1 t\n{EVIL_ID} Q0 {EVIL_ID} 1 9 t\n")
    Path("bad.trec").write_text("q1 Q0 b 1 3 t\nq1 Q0 a 2 3 t\nq2 Q0 a 1 2 t\nx Q0 a 1 1 t\n")
    Path("queries.tsv").write_text(f"q1\twhat {EVIL}\n{EVIL_ID}\tplain words\n")
    passages = [
        {"_id": "a", "title": "head", "text": EVIL},
        {"_id": "b", "title": "head", "text": "x " * 999},
    ]
    Path("corpus.jsonl").write_text("".join(json.dumps(passage) + "\n" for passage in passages))
    manifest = Manifest(
        Kind.RUN,
        complete=True,
        settings={},
        made_from={"index": {"name": "index", "bytes": 10**9}},
        contents={"queries": 3, "seconds": {"encoding": 0.03, "searching": 0.06}},
    )
    write_manifest("good.trec", manifest)
    result = evaluate(list(RUNS), "qrels.txt", EvaluationSettings(("RR@10 R@100 NumRet",)))
    values = {run.name: run.per_query for run in result.runs}
    comparison = compare(values, result.measures, "bad", ComparisonSettings(baseline="bad"))
    published = published_rows(Paper.AGGRETRIEVER, "msmarco-dev")
    result = replace(result, comparison=comparison, published=published)
    sources = ReportSources(f"title {EVIL}", "qrels.txt", "queries.tsv", "corpus.jsonl")
    return page_of(result, sources, report_ids=("q1", EVIL_ID))


def test_a_page_of_hostile_texts_is_well_formed(hostile_page: str) -> None:
    assert hostile_page.startswith("<!doctype html>\n<html")
    page = Reader(hostile_page)
    assert not {"link", "iframe", "object", "b"} & {tag for tag, _ in page.elements}
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]
    assert len(page.ids) == len(set(page.ids))


def test_a_page_needs_nothing_from_elsewhere(hostile_page: str) -> None:
    page = Reader(hostile_page)
    for _, attributes in page.elements:
        for name in ("src", "href", "action", "xlink:href"):
            address = attributes.get(name) or ""
            if address and not address.startswith("data:image"):
                assert address.removeprefix("#") in page.ids
    assert hostile_page.count("url(") == hostile_page.count("url(#")
    without_names = hostile_page.replace("http-equiv", "").replace("http://www.w3.org/", "")
    assert "http" not in without_names


def test_a_page_shows_texts_as_they_are(hostile_page: str) -> None:
    page = Reader(hostile_page)
    page_text = "".join(page.text.values())
    for text in ("good", "bad", "q1", "q2", EVIL_ID, f"what {EVIL}", EVIL, f"title {EVIL}"):
        assert text in page_text
    assert page.text["summary"].count("x x x") > 1
    assert page_text.count("x ") < 2 * 999 + 99  # the rest of a text is there once


def test_a_page_has_plots_notes_and_tables(hostile_page: str) -> None:
    page = Reader(hostile_page)
    assert len(page.plots()) == 1 + 2 + 2  # recall; size, time; scores
    assert all(image["alt"] for image in page.plots())
    assert "good 1 GB." in page.text["figcaption"]
    assert "good 30 ms." in page.text["figcaption"]
    assert "bad: queries without judgments, which do not count: 1 ('x')" in page.text["li"]
    assert "differs from bad" in page.text["p"]
    assert "aggretriever" in page.text["th"]


def test_texts_of_what_is_shown_and_of_nothing_else(result: EvaluationResult, files: Path) -> None:
    with (files / "corpus.jsonl").open("a") as out:
        out.write("not json\n")  # the corpus is read no further than needed
    sources = ReportSources("toy", "qrels.txt", "queries.tsv", "corpus.jsonl")
    page = page_of(result, sources, report_queries=1, report_passages=1)
    assert all(text in page for text in QUERIES.values())
    shown = [docid for docid, (_, text) in PASSAGES.items() if text in page]
    assert shown == ["d1", "d2"]  # the tops of q2, which moved most


def text_of(page: str, id: str) -> str:
    """The text of the element with an id, in one line."""
    start = page.index(f'id="{id}"')
    end = page.index("</details>" if id.startswith("query-") else "</section>", start)
    return " ".join(re.sub("<[^>]*>", " ", page[start:end].partition(">")[2]).split())


def test_selected_queries_come_first_in_their_order(result: EvaluationResult) -> None:
    sources = ReportSources("toy", "qrels.txt", "queries.tsv", "corpus.jsonl")
    page = page_of(result, sources, report_ids=("q3", "q1"), report_queries=1)
    positions = [page.index(text) for text in (QUERIES["q3"], QUERIES["q1"], QUERIES["q2"])]
    assert positions == sorted(positions)
    assert QUERIES["q2"] in text_of(page, "moved")
    assert QUERIES["q1"] not in text_of(page, "moved")  # a query is shown once


def test_passages_that_were_missed_have_text_grade_and_rank_in_each_run(files: Path) -> None:
    irrelevant = "".join(f"q2 Q0 x{rank} 1 {20 - rank} t\n" for rank in range(1, 12))
    Path("bad.trec").write_text(irrelevant + "q2 Q0 d1 12 1 t\n")
    result = evaluate(list(RUNS), "qrels.txt", FEW)
    sources = ReportSources("toy", "qrels.txt", "queries.tsv", "corpus.jsonl")
    shown = text_of(page_of(result, sources, report_ids=("q2",)), "query-1")
    assert "missed among the first 10 2 of 2" in shown
    passage = f"good: rank 1 , bad: rank 12 {' '.join(PASSAGES['d1'])}"
    assert f"\N{CHECK MARK} 2 d1 {passage}" in shown
    assert "d5 good: rank 2 , bad: not within 12" in shown
    page = page_of(result, ReportSources("toy", "qrels.txt"), report_ids=("q2",))
    assert "d5 good: rank 2 , bad: not within 12" in text_of(page, "query-1")
    assert "--corpus adds" in page
    assert PASSAGES["d1"][1] not in page


def test_queries_on_which_every_run_fails_are_counted(files: Path) -> None:
    with Path("qrels.txt").open("a") as out:
        out.write("q8 0 d1 1\nq9 0 d1 1\nq9 0 d2 1\nq7 0 d1 0\n")
    two_runs = evaluate(list(RUNS), "qrels.txt", FEW)
    page = page_of(two_runs, ReportSources("toy", "qrels.txt"), report_queries=1)
    failing = text_of(page, "failing")
    assert "0 for every run on 2 of 6 queries" in failing
    assert "q9" in failing  # it has the most relevant passages
    assert "q8" not in failing
    assert "No relevant passage is known for 1 queries: &#39;q7&#39;" in page
    assert page.count('class="fails"') == 2
    one_run = evaluate(["bad.trec"], "qrels.txt", FEW)
    page = page_of(one_run, ReportSources("toy", "qrels.txt"))
    assert "0 on 3 of 6 queries" in text_of(page, "failing")
    assert "q1" in text_of(page, "moved")


def test_a_query_that_is_not_judged_cannot_be_shown(result: EvaluationResult) -> None:
    with pytest.raises(UsageError, match="no query 'q11'") as caught:
        check_query_ids(["q1", "q11"], result)
    assert "did you mean q1" in str(caught.value.hint)
    Path("good.trec").write_text(RUNS["good.trec"] + "q9 Q0 d1 1 1 t\n")
    with_hits_of_q9 = evaluate(list(RUNS), "qrels.txt", FEW)
    with pytest.raises(UsageError, match="'q9', although there are hits in good"):
        check_query_ids(["q9"], with_hits_of_q9)


def test_the_command_checks_the_queries_before_it_writes(
    files: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", *RUNS, "qrels.txt", "--report", "page", "--set"]
    assert run([*command, "report-ids=q2,q22"]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "no query 'q22'" in printed.err
    assert not Path("page/index.html").exists()
    assert run([*command, "report-ids=q3, q2"]) == 0
    shown = text_of(Path("page/index.html").read_text("utf-8"), "selected")
    assert shown.index("q3") < shown.index("q2")


def test_manifests_know_texts_and_sizes(result: EvaluationResult, files: Path) -> None:
    Path("index").mkdir()
    Path("vectors").mkdir()
    made_from = {"index": {"name": "index", "bytes": 12_300_000}, "topics": {"name": "queries.tsv"}}
    write_manifest("good.trec", Manifest(Kind.RUN, True, {}, made_from))
    write_manifest("index", Manifest(Kind.INDEX, True, {}, {"vectors": ["vectors"]}))
    write_manifest("vectors", Manifest(Kind.VECTORS, True, {}, {"texts": "corpus.jsonl"}))
    page = page_of(result, ReportSources("toy", "qrels.txt"))
    _, text_of_d1 = PASSAGES["d1"]
    assert "good 12.3 MB." in page
    assert text_of_d1 in page
    assert QUERIES["q1"] in page

    write_manifest("index", Manifest(Kind.INDEX, True, {}, {"texts": "gone.jsonl"}))
    page = page_of(result, ReportSources("toy", "qrels.txt"))
    assert "The texts of passages are not known" in page


def test_standard_input_gives_no_page() -> None:
    with pytest.raises(UsageError, match="standard input can be read only once"):
        page_in(PageSettings(report="page"), ["a.trec", "-"])


def test_in_domain_and_zero_shot(result: EvaluationResult) -> None:
    settings = PageSettings("page")
    results = {"msmarco-dev": result, "beir/scifact": result, "beir/nfcorpus": result}
    path = write_benchmarks_report(BenchmarksResult(("good", "bad"), results), settings)
    page = Reader(path.read_text("utf-8"))
    (plot,) = page.plots()
    assert "Zero-shot" in (plot["alt"] or "")
    assert "beir/nfcorpus" in page.text["figcaption"]
    write_benchmarks_report(BenchmarksResult(("good", "bad"), {"dl19": result}), settings)
    assert "is not drawn" in Reader(path.read_text("utf-8")).text["li"]


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE = 300_000  # milliseconds; a busy machine is no failure


@pytest.fixture
def open_page(files: Path) -> Iterator[Callable[..., Any]]:
    """Opens the report in a browser; at the end, it has printed nothing and requested nothing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium: Debian has it in the package chromium")
    address = (files / "pages/report/index.html").as_uri()
    events: list[str] = []
    requests: set[str] = set()
    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=PATIENCE)

        def open_report(**options: Any) -> Any:
            tab = browser.new_page(viewport={"width": 390, "height": 844}, **options)  # a phone
            tab.set_default_timeout(PATIENCE)
            tab.on("console", lambda message: events.append(message.text))
            tab.on("pageerror", lambda error: events.append(str(error)))
            tab.on("dialog", lambda dialog: events.append(dialog.message))
            tab.on("request", lambda request: requests.add(request.url.partition("#")[0]))
            tab.goto(address)
            return tab

        yield open_report
        browser.close()
    assert events == []
    assert requests == {address}


def write_many_queries(count: int) -> EvaluationResult:
    """Evaluate three runs of which none finds anything for the last two queries."""
    qids = [f"q{n}" for n in range(1, count + 1)]
    Path("qrels.txt").write_text("".join(f"{qid} 0 a 1\n" for qid in qids))
    with Path("queries.tsv").open("w") as out:
        for number, qid in enumerate(qids):
            out.write(f"{qid}\twords river\n" if number % 10 == 0 else f"{qid}\twords \n")
    for step in (1, 2, 3):
        with Path(f"run{step}.trec").open("w") as out:
            for number, qid in enumerate(qids):
                for irrelevant in range(number * step % 5):  # above the relevant passage
                    out.write(f"{qid} Q0 x{irrelevant} 1 {9 - irrelevant} t\n")
                if qid not in qids[-2:]:
                    out.write(f"{qid} Q0 a 1 1 t\n")
    return evaluate([f"run{step}.trec" for step in (1, 2, 3)], "qrels.txt", FEW)


@pytest.mark.slow
def test_thousands_of_queries_are_listed_in_parts(open_page: Callable[..., Any]) -> None:
    page_of(write_many_queries(1200), ReportSources("runs", "qrels.txt", "queries.tsv"))
    tab = open_page()
    rows = tab.locator("#queries tbody tr")
    assert rows.count() == 500
    assert tab.locator("#count").inner_text() == "1,200 of 1,200 queries"
    tab.fill("#find", "q1199")
    assert rows.count() == 1
    tab.fill("#find", "Q9")  # the query itself before those whose ids begin so
    assert rows.count() == 111
    assert rows.first.locator("th").inner_text().startswith("q9\n")
    tab.fill("#find", "")
    tab.click("#show-all")
    assert rows.count() == 1200
    assert not tab.is_visible("#show-all")
    without_scripts = open_page(java_script_enabled=False)
    assert without_scripts.locator("#queries tbody tr").count() == 1200
    assert not without_scripts.is_visible("#find")


@pytest.mark.slow
def test_hostile_texts_do_nothing_in_a_browser(open_page: Callable[..., Any]) -> None:
    Path("queries.tsv").write_text(f"q1\t{EVIL}\nq2\t{EVIL}\n")
    long_text = f"{EVIL} " * 40
    records = [{"_id": docid, "title": EVIL, "text": long_text} for docid in PASSAGES]
    Path("corpus.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    result = evaluate(list(RUNS), "qrels.txt", FEW)
    page_of(result, ReportSources(EVIL, "qrels.txt", "queries.tsv", "corpus.jsonl"))
    tab = open_page()
    for details in tab.locator("details.passage").all():
        details.evaluate("details => { details.open = true; }")
    assert tab.locator("img[src='x'], script").count() == 1  # the page's own script
    assert tab.locator("details.passage[open] p").first.inner_text() in long_text
    tab.fill("#find", EVIL)
    assert tab.locator("#queries tbody tr").count() == 2


@pytest.mark.slow
def test_the_page_in_a_browser(open_page: Callable[..., Any]) -> None:
    page_of(write_many_queries(42), ReportSources("runs", "qrels.txt", "queries.tsv"))
    opened = open_page()
    assert opened.evaluate("document.documentElement.scrollWidth") == 390

    def column(number: int) -> list[str]:
        cells = f"#queries tbody tr > :nth-child({number + 1})"
        return [text.split("\n")[0] for text in opened.locator(cells).all_inner_texts()]

    header = "#queries thead th:nth-child(3)"
    opened.focus(f"{header} button")
    for direction, down in (("descending", True), ("ascending", False)):
        opened.keyboard.press("Enter")
        values = list(map(float, column(2)))
        assert values == sorted(values, reverse=down)
        assert opened.get_attribute(header, "aria-sort") == direction
    opened.click("#queries thead th:nth-child(1) button")
    assert column(0) == [f"q{n}" for n in range(1, 43)]
    assert opened.get_attribute(header, "aria-sort") is None
    opened.fill("#find", "river WORDS")
    assert opened.locator("#queries tbody tr").count() == 5
    opened.fill("#find", "")
    opened.check("#failing-only")
    assert column(0) == ["q41", "q42"]
    assert opened.locator("#count").inner_text() == "2 of 42 queries"
    opened.uncheck("#failing-only")
    assert opened.get_attribute("#query-6", "open") is None
    opened.click("#queries a[href='#query-6']")
    opened.wait_for_selector("#query-6[open]")
