"""The page of `--report`: its content, and what its script does in headless Chromium."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

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
        self.open = [""]
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self.feed(page)
        self.close()
        assert self.open == [""]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        self.open += [tag] if tag not in VOID else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text[self.open[-1]] = self.text.get(self.open[-1], "") + data

    def plots(self) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.seen if attributes.get("class") == "plot"]


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


def test_a_page_of_hostile_texts_is_well_formed_and_needs_nothing_from_elsewhere(
    files: Path,
) -> None:
    Path("qrels.txt").write_text(f"q1 0 a 1\nq1 0 b 0\nq2 0 a 1\n{EVIL_ID} 0 {EVIL_ID} 2\n")
    Path("good.trec").write_text(f"q1 Q0 a 1 3 t\nq1 Q0 b 2 1 t\n{EVIL_ID} Q0 {EVIL_ID} 1 9 t\n")
    Path("bad.trec").write_text("q1 Q0 b 1 3 t\nq1 Q0 a 2 3 t\nq2 Q0 a 1 2 t\nx Q0 a 1 1 t\n")
    Path("queries.tsv").write_text(f"q1\twhat {EVIL}\n{EVIL_ID}\tplain words\n")
    record = '{"_id": "%s", "title": "head", "text": "%s"}\n'
    evil = EVIL.replace('"', '\\"')
    Path("corpus.jsonl").write_text(record % ("a", evil) + record % ("b", "x " * 999))
    made = {"index": {"name": "index", "bytes": 10**9}}
    contents = {"queries": 3, "seconds": {"encoding": 0.03, "searching": 0.06}}
    write_manifest("good.trec", Manifest(Kind.RUN, True, {}, made, contents))
    found = evaluate(list(RUNS), "qrels.txt", EvaluationSettings(("RR@10 R@100 NumRet",)))
    values = {run.name: run.per_query for run in found.runs}
    compared = compare(values, found.measures, "bad", ComparisonSettings(baseline="bad"))
    rows = published_rows(Paper.AGGRETRIEVER, "msmarco-dev")
    found = replace(found, comparison=compared, published=rows)
    sources = ReportSources(f"title {EVIL}", "qrels.txt", "queries.tsv", "corpus.jsonl")
    page = page_of(found, sources)
    read = Reader(page)
    assert page.startswith("<!doctype html>\n<html")
    assert not {"link", "iframe", "object", "b"} & {name for name, _ in read.seen}
    names = {name for _, attributes in read.seen for name in attributes}
    assert not [name for name in names if name.startswith("on")]
    ids = [attributes["id"] for _, attributes in read.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [a[k] for _, a in read.seen for k in ("src", "href", "action", "xlink:href") if k in a]
    links = [link for link in links if not str(link).startswith("data:image")]
    assert set(links) <= {f"#{name}" for name in ids}
    assert page.count("url(") == page.count("url(#")
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/", "")
    assert len(read.plots()) == 1 + 2 + 2  # recall; size, time; scores
    assert all(image["alt"] for image in read.plots())
    everything = "".join(read.text.values())
    for text in ("good", "bad", "q1", "q2", EVIL_ID, f"what {EVIL}", EVIL, f"title {EVIL}"):
        assert text in everything
    assert "bad: queries without judgments, which do not count: 1 ('x')" in read.text["li"]
    assert "differs from bad" in read.text["p"]
    assert "aggretriever" in read.text["th"]
    assert "good 1 GB." in read.text["figcaption"]
    assert "good 30 ms." in read.text["figcaption"]
    assert "x x x..." in read.text["p"]  # texts are cut between words


def test_texts_of_what_is_shown_and_of_nothing_else(result: EvaluationResult, files: Path) -> None:
    with (files / "corpus.jsonl").open("a") as out:
        out.write("not json\n")  # the corpus is read no further than needed
    sources = ReportSources("toy", "qrels.txt", "queries.tsv", "corpus.jsonl")
    page = page_of(result, sources, report_queries=1, report_passages=1)
    assert all(text in page for text in QUERIES.values())
    shown = [docid for docid, (_, text) in PASSAGES.items() if text in page]
    assert shown == ["d1", "d2"]  # the tops of q2, which moved most


def test_manifests_know_texts(result: EvaluationResult, files: Path) -> None:
    made = {"index": {"name": "index", "bytes": 12_300_000}, "topics": {"name": "queries.tsv"}}
    write_manifest("good.trec", Manifest(Kind.RUN, True, {}, made))
    for folder, kind, made_from in (
        ("index", Kind.INDEX, {"vectors": ["vectors"]}),
        ("vectors", Kind.VECTORS, {"texts": "corpus.jsonl"}),
    ):
        (files / folder).mkdir()
        write_manifest(folder, Manifest(kind, True, {}, made_from))
    page = page_of(result, ReportSources("toy", "qrels.txt"))
    assert all(text in page for text in ("good 12.3 MB.", PASSAGES["d1"][1], QUERIES["q1"]))
    write_manifest("index", Manifest(Kind.INDEX, True, {}, {"texts": "gone.jsonl"}))
    page = page_of(result, ReportSources("toy", "qrels.txt"))
    assert "The texts of passages are not known" in page


def test_standard_input_gives_no_page() -> None:
    with pytest.raises(UsageError, match="standard input can be read only once"):
        page_in(PageSettings(report="page"), ["a.trec", "-"])


def test_in_domain_and_zero_shot(result: EvaluationResult) -> None:
    settings = PageSettings("page")
    suites = {"msmarco-dev": result, "beir/scifact": result, "beir/nfcorpus": result}
    path = write_benchmarks_report(BenchmarksResult(("good", "bad"), suites), settings)
    read = Reader(path.read_text("utf-8"))
    (plot,) = read.plots()
    assert "Zero-shot" in (plot["alt"] or "")
    assert "beir/nfcorpus" in read.text["figcaption"]
    write_benchmarks_report(BenchmarksResult(("good", "bad"), {"dl19": result}), settings)
    assert "is not drawn" in Reader(path.read_text("utf-8")).text["li"]


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE = 300_000  # milliseconds; a busy machine is no failure


@pytest.fixture
def opened(files: Path) -> Iterator[Any]:
    """A page on a phone; at the end, it has printed nothing and requested nothing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium: Debian has it in the package chromium")
    qids = [f"q{n}" for n in range(1, 41)]
    Path("qrels.txt").write_text("".join(f"{qid} 0 a 1\n" for qid in qids))
    words = (f"{q}\twords {'river' if n % 10 == 0 else ''}\n" for n, q in enumerate(qids))
    Path("queries.tsv").write_text("".join(words))
    for step in (1, 2, 3):  # the relevant passage is at rank 1, 2, 3, ... by query
        lines = [
            f"{q} Q0 x{k} 1 {9 - k} t\n" for n, q in enumerate(qids) for k in range(n * step % 5)
        ]
        Path(f"run{step}.trec").write_text("".join([*lines, *(f"{q} Q0 a 1 1 t\n" for q in qids)]))
    found = evaluate([f"run{step}.trec" for step in (1, 2, 3)], "qrels.txt", FEW)
    page_of(found, ReportSources("runs", "qrels.txt", "queries.tsv"))
    address = (files / "pages/report/index.html").as_uri()
    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=PATIENCE)
        tab = browser.new_page(viewport={"width": 390, "height": 844})
        tab.set_default_timeout(PATIENCE)
        events: list[str] = []
        requests: list[str] = []
        tab.on("console", lambda message: events.append(message.text))
        tab.on("pageerror", lambda error: events.append(str(error)))
        tab.on("request", lambda request: requests.append(request.url.partition("#")[0]))
        tab.goto(address)
        yield tab
        assert (events, set(requests)) == ([], {address})
        browser.close()


@pytest.mark.slow
def test_the_page_in_a_browser(opened: Any) -> None:
    assert opened.evaluate("document.documentElement.scrollWidth") == 390

    def column(number: int) -> list[str]:
        cells = f"#queries tbody tr > :nth-child({number + 1})"
        return [text.split("\n")[0] for text in opened.locator(cells).all_inner_texts()]

    opened.focus("#queries thead th:nth-child(2)")
    for direction, down in (("descending", True), ("ascending", False)):
        opened.keyboard.press("Enter")
        values = list(map(float, column(1)))
        assert values == sorted(values, reverse=down)
        assert opened.get_attribute("#queries thead th:nth-child(2)", "aria-sort") == direction
    opened.click("#queries thead th:nth-child(1)")
    assert column(0) == [f"q{n}" for n in range(1, 41)]
    assert opened.get_attribute("#queries thead th:nth-child(2)", "aria-sort") is None
    opened.fill("#find", "river WORDS")
    assert opened.locator("#queries tbody tr:visible").count() == 4
    opened.fill("#find", "")
    assert opened.get_attribute("#moved-3", "open") is None
    opened.click("#queries a[href='#moved-3']")
    opened.wait_for_selector("#moved-3[open]")
