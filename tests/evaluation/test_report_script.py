"""The page in headless Chromium: what its script does, and that it stays quiet."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from denserk.evaluation.evaluator import Evaluator
from denserk.evaluation.measures import parse_measures
from denserk.evaluation.page import as_page
from denserk.evaluation.report import Report, Texts, profile, query_rows
from denserk.evaluation.results import EvaluationResult

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE = 300_000
"""Milliseconds; a busy machine is no failure."""

QUERIES = {f"q{n}": {"a": 1} for n in range(1, 41)}
TEXTS = Texts(
    {qid: f"words of {qid} {'river' if n % 10 == 0 else ''}" for n, qid in enumerate(QUERIES)}
)


def ranks(step: int) -> dict[str, dict[str, float]]:
    """The relevant passage at rank 1, 2, 3, ... by query, `step` by `step`."""
    run: dict[str, dict[str, float]] = {}
    for n, qid in enumerate(QUERIES):
        before = {f"x{k}": 9.0 - k for k in range(n * step % 5)}
        run[qid] = {**before, "a": 1.0}
    return run


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = {"one": ranks(1), "two": ranks(2), "three": ranks(3)}
    measures = parse_measures(["RR@10", "P@1"]).measures
    evaluator = Evaluator(measures, QUERIES)
    results = tuple(evaluator.evaluate(name, run) for name, run in runs.items())
    result = EvaluationResult(measures, 1, evaluator.queries, results, evaluator.providers)
    rows = query_rows(result, "RR@10", 0)
    moved = [row.qid for row in rows[:4]]
    profiles = [profile(n, r, QUERIES, list(QUERIES), 1, moved, 3) for n, r in runs.items()]
    path = tmp_path_factory.mktemp("page") / "index.html"
    path.write_text(as_page(Report("runs", result, rows, 4, profiles, texts=TEXTS)))
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium: Debian has it in the package chromium")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"], timeout=PATIENCE
        )
        yield opened
        opened.close()


@pytest.fixture
def opened(browser: Any, page: Path) -> Iterator[Any]:
    """The page on a phone; at the end, it has said nothing and asked for nothing."""
    context = browser.new_context(viewport={"width": 390, "height": 844})
    context.set_default_timeout(PATIENCE)
    tab = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(page.as_uri())
    yield tab
    assert said == []
    assert {url.partition("#")[0] for url in asked} == {page.as_uri()}
    context.close()


def column(tab: Any, number: int) -> list[str]:
    script = f"[...document.querySelector('#queries').tBodies[0].rows].map(r => r.cells[{number}]"
    found: list[str] = tab.evaluate(f"{script}.innerText.split('\\n')[0])")
    return found


def test_the_page_fits_a_phone(opened: Any) -> None:
    assert opened.evaluate("document.documentElement.scrollWidth") == 390


def test_sorting_by_a_heading_with_the_keyboard(opened: Any) -> None:
    opened.focus("#queries thead th:nth-child(2)")
    for direction, down in (("descending", True), ("ascending", False)):
        opened.keyboard.press("Enter")
        values = list(map(float, column(opened, 1)))
        assert values == sorted(values, reverse=down)
        assert opened.get_attribute("#queries thead th:nth-child(2)", "aria-sort") == direction
    opened.click("#queries thead th:nth-child(1)")
    assert column(opened, 0) == list(QUERIES)
    assert opened.get_attribute("#queries thead th:nth-child(2)", "aria-sort") is None


def test_filtering(opened: Any) -> None:
    opened.fill("#find", "river WORDS")
    assert opened.locator("#queries tbody tr:visible").count() == 4


def test_a_query_leads_to_its_lists(opened: Any) -> None:
    assert opened.get_attribute("#moved-3", "open") is None
    opened.click("#queries a[href='#moved-3']")
    opened.wait_for_selector("#moved-3[open]")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_both_schemes(opened: Any, scheme: str) -> None:
    opened.emulate_media(color_scheme=scheme)
    told = opened.evaluate(
        "(({color, backgroundColor: b}) => [color, b])(getComputedStyle(document.body))"
    )
    text, paper = (sum(map(int, one[4:-1].split(","))) for one in told)
    assert abs(text - paper) > 500
    assert (text > paper) == (scheme == "dark")
