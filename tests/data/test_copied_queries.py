import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.config.formats import QuerySource
from denserk.data.copied_queries import (
    CLOZE_CHARACTERS,
    CROP_WORDS,
    copied_queries,
    heading_queries,
    markdown_sections,
    title_queries,
)
from denserk.io.short_texts import with_single_spaces
from denserk.records import GeneratedQuery, Passage

ALL = tuple(QuerySource)
RIVER = "The old river runs to the south.  A boat is\ton the water. The moon rises at night."


def queries_of(passage, *sources, count=3, seed=1, kept=0.0):
    return copied_queries(passage, sources, count, seed, kept)


@pytest.mark.parametrize(
    ("title", "text", "expected"),
    [
        ("The river", "It runs south.", [("The river", None)]),
        (" The \n river ", "It runs south.", [("The river", None)]),
        ("The river", "The river. It runs south.", [("The river", "It runs south.")]),
        ("The river", "THE RIVER\nIt runs south.", [("The river", "It runs south.")]),
        (
            "The river of the old town",
            "The river of the town. It runs.",
            [("The river of the old town", "It runs.")],
        ),
        ("The river", "The river.", []),
        ("The river", "", []),
        ("The river", " \n", []),
        ("", "It runs south.", []),
        ("...", "It runs south.", [("...", None)]),
    ],
)
def test_titles(title, text, expected):
    queries = title_queries(Passage("d1", text, title))
    assert [(query.text, query.positive) for query in queries] == expected


MARKDOWN = """Before any heading.
# Use ##
Run it.

```sh
# no heading, but a comment
```
## The **options**
There is one.
#hashtag
# Empty
## Last
The end.
"""


def test_headings_with_the_sections_under_them():
    sections = dict(markdown_sections(MARKDOWN))
    assert list(sections) == ["Use", "The **options**", "Empty", "Last"]
    assert sections["Use"].startswith("Run it.\n\n```sh\n# no heading")
    assert sections["Use"].endswith("## The **options**\nThere is one.\n#hashtag")
    assert sections["The **options**"] == "There is one.\n#hashtag"
    assert sections["Empty"] == "## Last\nThe end."
    assert sections["Last"] == "The end."


@pytest.mark.parametrize("text", ["", "no heading", "#", "# Alone", "# Alone\n \n", "#\ntext"])
def test_no_heading_with_a_text_under_it(text):
    assert heading_queries(Passage("d1", text)) == []


def test_a_fence_ends_with_as_many_marks():
    text = "````\n# code\n```\n# code\n````\n# Heading\ntext"
    assert markdown_sections(text) == [("Heading", "text")]


def test_spans_are_runs_of_words():
    words = [f"w{number}" for number in range(40)]
    queries = queries_of(Passage("d1", " ".join(words)), QuerySource.SPAN, count=50)
    for query in queries:
        for crop in (query.text, query.positive):
            assert crop is not None
            assert CROP_WORDS <= len(crop.split()) <= 20
            assert f" {crop} " in f" {' '.join(words)} "
    assert len({query.text for query in queries}) > 20
    assert len({query.positive for query in queries}) > 20


@pytest.mark.parametrize("text", ["", "one two three", "one two three four five six seven"])
def test_a_short_text_has_no_spans(text):
    assert queries_of(Passage("d1", text), QuerySource.SPAN) == []


def test_cloze_sentences_are_taken_out():
    queries = queries_of(Passage("d1", RIVER, "River"), QuerySource.CLOZE)
    positives = {query.text: query.positive for query in queries}
    assert positives == {  # whose white space is that of the text
        "The old river runs to the south.": "A boat is\ton the water. The moon rises at night.",
        "A boat is on the water.": "The old river runs to the south. The moon rises at night.",
        "The moon rises at night.": "The old river runs to the south.  A boat is\ton the water.",
    }


@pytest.mark.parametrize(
    ("title", "text"),
    [
        ("", "The old river runs to the south."),  # alone
        ("", "He left. She stayed."),  # short
        ("", "The old river runs to the south. The old river runs to the south."),
        ("The old river runs to the south", "The old river runs to the south. He left."),
        ("About: The old river runs south.", "The old river runs south. He left."),
    ],
)
def test_no_cloze_sentence(title, text):
    assert queries_of(Passage("d1", text, title), QuerySource.CLOZE) == []


def test_a_share_of_cloze_sentences_stays():
    def share_of_whole_texts(kept):
        queries = []
        for number in range(300):
            queries += queries_of(Passage(f"d{number}", RIVER), QuerySource.CLOZE, kept=kept)
        return sum(query.positive is None for query in queries) / len(queries)

    assert share_of_whole_texts(0) == 0
    assert 0.05 < share_of_whole_texts(0.1) < 0.15
    assert share_of_whole_texts(1) == 1


def test_at_most_so_many_of_each_source():
    text = f"{RIVER}\n# Boats\nA boat is blue.\n# Moons\nA moon is big."
    for count in (1, 2):
        queries = queries_of(Passage("d1", text, "Title"), *ALL, count=count)
        sources = [query.source for query in queries]
        assert sources == [
            QuerySource.TITLE,
            *[QuerySource.HEADING] * count,
            *[QuerySource.SPAN] * count,
            *[QuerySource.CLOZE] * count,
        ]


def test_queries_depend_on_seed_and_id_alone():
    passage = Passage("d1", RIVER * 3, "Title")
    spans_and_cloze = queries_of(passage, QuerySource.SPAN, QuerySource.CLOZE)
    spans = queries_of(passage, QuerySource.SPAN)
    assert spans_and_cloze[: len(spans)] == spans
    assert queries_of(passage, QuerySource.SPAN) == spans
    assert queries_of(passage, QuerySource.SPAN, seed=2) != spans
    assert queries_of(passage._replace(docid="d2"), QuerySource.SPAN) != spans


def test_equal_texts_are_one_query():
    text = "# River\nIt runs.\n# River\nIt sleeps."
    queries = queries_of(Passage("d1", text), QuerySource.HEADING)
    assert [query.text for query in queries] == ["River"]
    titled = Passage("d1", text, "River")
    queries = queries_of(titled, QuerySource.TITLE, QuerySource.HEADING)
    assert queries == [GeneratedQuery("River", "title", "It runs.\n# River\nIt sleeps.")]


TEXTS = st.lists(
    st.sampled_from(
        ["the old river runs", "a boat", ". ", "! ", "\n", "# ", "```\n", " \t", "月。"]
    ),
    max_size=25,
).map("".join)


@given(TEXTS, TEXTS, st.integers(1, 4), st.integers(0, 9))
def test_what_was_copied_is_not_in_the_positive(title, text, count, seed):
    for query in copied_queries(Passage("d1", text, title), ALL, count, seed, 0.0):
        assert query.text == with_single_spaces(query.text) != ""
        if query.source == QuerySource.CLOZE:
            assert query.positive is not None
            assert query.text not in with_single_spaces(f"{title} {query.positive}")
            assert len(query.text) >= CLOZE_CHARACTERS
        elif query.positive is not None:
            assert query.positive.strip()
            words = re.findall(r"\S+", query.positive)
            assert " ".join(words) in with_single_spaces(text)
