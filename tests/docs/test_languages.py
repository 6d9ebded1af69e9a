"""The examples of docs/howto/languages.md: each query finds its passage where the page says so."""

import re
from pathlib import Path

import pytest

from denserk import BM25
from tests.support.peers import java_home

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "languages.md"
HEAD = "| `--language` | query | passage |"


def examples():
    """Return the rows of the page's table: language, query, passage, and a yes or no of each."""
    _, _, table = PAGE.read_text("utf-8").partition(HEAD)
    lines = table.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip(" `") for cell in re.split(r"\s\|\s", line.strip("| "))] for line in lines]


EXAMPLES = examples()
PASSAGES = {f"d{number}": row[2] for number, row in enumerate(EXAMPLES)}


def found(language_of, **options):
    """Return for each row whether its passage is among the hits of its query."""
    indexes = {}
    answers = []
    for number, (language, query, *_) in enumerate(EXAMPLES):
        name = language_of(language)
        if name not in indexes:
            indexes[name] = BM25.build(PASSAGES, language=name, **options)
        hits = indexes[name].search([query])["0"]
        answers.append("yes" if f"d{number}" in hits else "no")
    return answers


def test_the_page_has_an_example_of_each_way():
    languages = {language for language, *_ in EXAMPLES}
    assert languages == {"german", "chinese", "japanese", "thai", "korean", "arabic"}
    assert all(len(row) == 7 for row in EXAMPLES)


def test_queries_find_what_the_page_says():
    pytest.importorskip("bm25s")
    assert found(lambda language: "english") == [row[3] for row in EXAMPLES]
    assert found(lambda language: language) == [row[4] for row in EXAMPLES]
    assert found(lambda language: "multilingual") == [row[5] for row in EXAMPLES]


@pytest.mark.peer
@pytest.mark.slow
def test_lucene_finds_what_the_page_says(monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(java_home()))
    assert found(lambda language: language, engine="lucene") == [row[6] for row in EXAMPLES]
