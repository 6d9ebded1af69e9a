"""The pages for people: without scripts, with every text escaped, usable by keyboard."""

import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from denserk.commands.app import run
from denserk.config.serving import AnswerSettings
from tests.support.serving import client_of, opened_service, running_server

HTML = {"Accept": "text/html,application/xhtml+xml,*/*"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE = 300_000  # milliseconds; a busy machine is no failure


class Reader(HTMLParser):
    """The texts of a page by element, and the attributes of its elements."""

    def __init__(self, page):
        super().__init__()
        self.elements = []  # (tag, attributes)
        self.texts = {}  # by tag
        self._open = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data.strip())

    def attributes(self, tag):
        """Return the attributes of all elements of a name."""
        return [attributes for name, attributes in self.elements if name == tag]


def read(client, path, status=200, **parameters):
    """Return a page as a browser asks for it."""
    response = client.get(path, params=parameters or None, headers=HTML)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    return Reader(response.text)


def test_words_in_the_address_are_answered(client):
    page = read(client, "/", q="river boat")
    assert page.texts["mark"] == ["Boat", "boat", "River", "river"]  # titles and texts
    addresses = [attributes["href"] for attributes in page.attributes("a")]
    assert addresses[-2:] == ["/passage?index=bm25&id=d5", "/passage?index=bm25&id=d1"]
    (field,) = [each for each in page.attributes("input") if each.get("type") == "search"]
    assert field["value"] == "river boat"


def test_a_hit_leads_to_its_passage(client):
    page = read(client, "/", q="cat in a house", index=["bm25", "dense"])
    links = [attributes["href"] for attributes in page.attributes("a")]
    address = next(link for link in links if link.endswith("id=d3"))
    passage = read(client, address)
    assert passage.texts["h1"] == ["d3"]  # it has no title
    assert "the cat sleeps in the house" in passage.texts["p"]


def test_indexes_hits_and_the_query_stay_as_they_were_chosen(client):
    page = read(client, "/", q="moon", index=["dense", "bm25"], hits="20")
    boxes = [each for each in page.attributes("input") if each.get("type") == "checkbox"]
    assert [box["value"] for box in boxes if "checked" in box] == ["bm25", "dense"]
    (chosen,) = [each for each in page.attributes("option") if "selected" in each]
    options = page.attributes("option")
    assert page.texts["option"][options.index(chosen)] == "20"


def test_a_page_is_read_by_landmarks_and_labels(client):
    page = read(client, "/", q="moon")
    tags = [tag for tag, _ in page.elements]
    for landmark in ("header", "nav", "main", "footer"):
        assert tags.count(landmark) == 1
    assert tags.count("h1") == 1
    assert "script" not in tags
    first_link = page.attributes("a")[0]
    assert first_link["href"] == "#content"
    assert page.attributes("main")[0]["id"] == "content"
    labels = {attributes.get("for") for attributes in page.attributes("label")}
    assert {"query"} <= labels
    assert page.attributes("form")[0]["role"] == "search"
    assert page.attributes("html")[0]["lang"] == "en"


def test_no_hits_and_errors_are_said(client):
    assert read(client, "/", q="zebra", index="bm25").texts["h1"] == ["No hits"]
    page = read(client, "/", 400, q="moon", hits="many")
    assert "Parameter 'hits' must be an integer" in page.texts["p"]
    page = read(client, "/", 400, q="moon", index="sparse")
    assert any("No index is named 'sparse'" in text for text in page.texts["p"])
    assert read(client, "/passage", 404, index="bm25", id="d99").texts["h1"] == ["Error 404"]
    assert read(client, "/nothing", 404).texts["h1"] == ["Error 404"]
    assert client.get("/nothing").json() == {"error": "There is nothing at /nothing"}


def test_the_interface_is_described_on_a_page(client):
    page = read(client, "/docs")
    assert "GET /v1/{index}/search" in page.texts["code"]
    assert "max_doc_length" in page.texts["code"]


def test_a_client_that_wants_json_gets_what_pyserini_has_at_its_root(client):
    answer = client.get("/", headers={"Accept": "application/json"}).json()
    assert answer["version"] == "v1"
    assert answer["openapi"] == "/openapi.yaml"


def test_the_page_offers_what_a_reranker_scores(served, tiny_reranker):
    answers = AnswerSettings(rerank_depth=20)
    with (
        opened_service(f"bm25={served}/bm25", rerank=tiny_reranker(), answers=answers) as service,
        client_of(service, answers) as client,
    ):
        page = read(client, "/", q="moon", rerank="false")
    choices = [option for option in page.texts["option"] if option]
    assert choices == ["10", "20", "yes", "no"]
    (_, chosen) = [each for each in page.attributes("option") if "selected" in each]
    assert chosen["value"] == "false"


@pytest.fixture
def hostile_service(tmp_path, monkeypatch):
    """The service of a corpus whose texts and ids are markup."""
    monkeypatch.chdir(tmp_path)
    script = "<script>alert(1)</script>"
    passage = (
        f'{{"_id": "d\\"><b>/../1?", "title": "{script}", "text": "moon <img src=x> {script}"}}\n'
    )
    Path("corpus.jsonl").write_text(passage)
    index = ["index", "--type", "bm25", "--corpus", "corpus.jsonl", "--output", "bm25"]
    assert run([*index, "--quiet"]) == 0
    with opened_service("bm25") as service:
        yield service


def test_texts_ids_and_queries_are_escaped(hostile_service):
    with client_of(hostile_service) as client:
        for query in ("moon", 'moon "><script>alert(2)</script>', "moon <img src=x>"):
            page = read(client, "/", q=query)
            tags = [tag for tag, _ in page.elements]
            assert not {"script", "img", "b"} & set(tags)
        (address,) = {
            attributes["href"]
            for attributes in page.attributes("a")
            if attributes["href"].startswith("/passage")
        }
        assert "&" in urlsplit(address).query
        passage = read(client, address)
        assert any("<img src=x>" in text for text in passage.texts["p"])
        assert 'd"><b>/../1?' in passage.texts["code"]


@pytest.fixture
def browser():
    """Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium: Debian has it in the package chromium")
    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=PATIENCE)
        yield browser
        browser.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_searches_by_keyboard_on_a_phone(served, browser, scheme):
    events = []
    requests = set()
    with running_server(served, "--index", "bm25", "--index", "dense") as server:
        tab = browser.new_page(
            viewport={"width": 360, "height": 740}, color_scheme=scheme, java_script_enabled=False
        )
        tab.set_default_timeout(PATIENCE)
        tab.on("console", lambda message: events.append(message.text))
        tab.on("request", lambda request: requests.add(urlsplit(request.url).netloc))
        tab.goto(server.address)
        tab.locator("input:focus").wait_for()  # the page gives it to the field
        tab.keyboard.type("river boat")
        tab.keyboard.press("Enter")
        tab.get_by_role("heading", name="2 hits").wait_for()
        width = tab.locator("main").bounding_box()["width"]
        assert width <= 360
        tab.get_by_role("link", name="Boat").press("Enter")
        tab.get_by_role("heading", name="Boat").wait_for()
        assert tab.get_by_text("a red boat on blue water").is_visible()
        assert requests == {urlsplit(server.address).netloc}
    assert events == []
