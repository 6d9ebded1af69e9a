"""Queries that are copied from their passage: titles, headings, spans and cloze sentences.

No model is needed. What a query was copied from is taken out of the text that training reads, so
that a model cannot learn to compare words alone. Queries depend on the seed, the passage's id and
the source, not on other passages or sources.
"""

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from hashlib import blake2b
from random import Random
from typing import NamedTuple

from denserk.config.formats import QuerySource
from denserk.data.sentences import sentence_spans
from denserk.data.splitting import Span, word_spans
from denserk.io.short_texts import with_single_spaces
from denserk.records import GeneratedQuery, Passage

# Contriever, "Unsupervised Dense Information Retrieval with Contrastive Learning" (2022): lengths
# of crops, as shares of the text's words
SHORTEST_CROP = 0.1
LONGEST_CROP = 0.5
CROP_WORDS = 4  # of a crop at least; a text has twice as many or more
CLOZE_CHARACTERS = 20  # of a sentence; a shorter one says too little ("He left.")
NEAR_EQUAL = 0.8  # share of words that a title and a first sentence have in common, in order
HEADING = re.compile(r" {0,3}(?P<marks>#{1,6})[ \t]+(?P<text>.*?)[ \t]*#*[ \t]*\n?")
FENCE = re.compile(r" {0,3}(?P<marks>`{3,}|~{3,})")
WORD = re.compile(r"\w+")


class Section(NamedTuple):
    """A heading of Markdown and the text under it."""

    heading: str
    text: str


class _Heading(NamedTuple):
    """A heading of Markdown, and where its line starts and ends."""

    level: int
    text: str
    start: int
    end: int


def copied_queries(
    passage: Passage, sources: Sequence[QuerySource], count: int, seed: int, cloze_kept: float
) -> list[GeneratedQuery]:
    """Return up to `count` queries of each source, in the order of `sources`, each text once.

    `cloze_kept` is the share of cloze sentences that stay in their positive.
    """
    queries: dict[str, GeneratedQuery] = {}
    for source in sources:
        key = f"{seed} {source} {passage.docid}".encode("utf-8", "surrogatepass")
        random = Random(int.from_bytes(blake2b(key, digest_size=8).digest()))
        for query in _queries_of_source(passage, source, count, random, cloze_kept):
            queries.setdefault(query.text, query)
    return list(queries.values())


def _queries_of_source(
    passage: Passage, source: QuerySource, count: int, random: Random, cloze_kept: float
) -> list[GeneratedQuery]:
    """Return up to `count` queries of one source."""
    if source is QuerySource.TITLE:
        return title_queries(passage)
    if source is QuerySource.HEADING:
        queries = heading_queries(passage)
        return random.sample(queries, min(count, len(queries)))
    if source is QuerySource.SPAN:
        return span_queries(passage, count, random)
    return cloze_queries(passage, count, random, cloze_kept)


def title_queries(passage: Passage) -> list[GeneratedQuery]:
    """Return the title as a query; none if the passage has no title, or no other text.

    A first sentence that repeats the title is not in the positive.

    >>> passage = Passage("d1", "The Moon. It rises at night.", title="The moon")
    >>> [(query.text, query.positive) for query in title_queries(passage)]
    [('The moon', 'It rises at night.')]
    """
    title = with_single_spaces(passage.title)
    first_sentence, later_text = _first_sentence(passage.text)
    if not title or not first_sentence:
        return []
    if not are_near_equal(title, first_sentence):
        return [GeneratedQuery(title, QuerySource.TITLE)]
    if not later_text:
        return []
    return [GeneratedQuery(title, QuerySource.TITLE, later_text)]


def _first_sentence(text: str) -> tuple[str, str]:
    """Return the first sentence of a text and the text after it; both are empty without one."""
    for start, end in sentence_spans(text):
        return text[start:end], text[end:].strip()
    return "", ""


def heading_queries(passage: Passage) -> list[GeneratedQuery]:
    """Return the headings of a text in Markdown as queries for their sections."""
    queries = []
    for section in markdown_sections(passage.text):
        if section.heading and section.text:
            query = GeneratedQuery(section.heading, QuerySource.HEADING, section.text)
            queries.append(query)
    return queries


def markdown_sections(text: str) -> list[Section]:
    r"""Return the headings that begin with `#` and what is under each, its subsections included.

    A `#` within fenced code is no heading.

    >>> markdown_sections("# Use\nRun it.\n## Options\nThere is one.\n# Licence\nFree.")[0]
    Section(heading='Use', text='Run it.\n## Options\nThere is one.')
    """
    headings = list(_headings(text))
    sections = []
    for number, heading in enumerate(headings):
        section_end = len(text)
        for later_heading in headings[number + 1 :]:
            if later_heading.level <= heading.level:
                section_end = later_heading.start
                break
        section_text = text[heading.end : section_end].strip()
        sections.append(Section(heading.text, section_text))
    return sections


def _headings(text: str) -> Iterator[_Heading]:
    """Yield the headings of a text in Markdown, without those within fenced code."""
    fence = ""  # the marks of the fenced code that a line is within
    start = 0
    for line in text.splitlines(keepends=True):
        end = start + len(line)
        marks = FENCE.match(line)
        heading = HEADING.fullmatch(line)
        if marks is not None and not fence:
            fence = marks["marks"]
        elif marks is not None and marks["marks"].startswith(fence):
            fence = ""
        elif heading is not None and not fence:
            level = len(heading["marks"])
            yield _Heading(level, with_single_spaces(heading["text"]), start, end)
        start = end


def span_queries(passage: Passage, count: int, random: Random) -> list[GeneratedQuery]:
    """Return random spans of words as queries, for other spans (Contriever).

    Query and positive are independent crops of 10 to 50 % of the words, and may overlap.
    """
    words = list(word_spans(passage.text))
    if len(words) < 2 * CROP_WORDS:
        return []
    queries = []
    for _ in range(count):
        query = with_single_spaces(_crop(passage.text, words, random))
        positive = _crop(passage.text, words, random)
        queries.append(GeneratedQuery(query, QuerySource.SPAN, positive))
    return queries


def _crop(text: str, words: Sequence[Span], random: Random) -> str:
    """Return a random span of a text, from the start of a word to the end of another."""
    share = random.uniform(SHORTEST_CROP, LONGEST_CROP)
    length = max(round(share * len(words)), CROP_WORDS)
    first_word = random.randint(0, len(words) - length)
    last_word = first_word + length - 1
    start, _ = words[first_word]
    _, end = words[last_word]
    return text[start:end]


def cloze_queries(
    passage: Passage, count: int, random: Random, kept_share: float
) -> list[GeneratedQuery]:
    """Return random sentences of a text as queries for the rest of it (inverse cloze task).

    Lee et al., "Latent Retrieval for Weakly Supervised Open Domain Question Answering" (2019).
    Short sentences are no queries, nor is one that the rest of the passage repeats. With a
    probability of `kept_share`, the positive is the whole text.
    """
    spans = list(sentence_spans(passage.text))
    random.shuffle(spans)
    queries: list[GeneratedQuery] = []
    for span in spans:
        if len(queries) == count:
            break
        query = _cloze_query(passage, span)
        if query is None:
            continue
        if random.random() < kept_share:
            query = query._replace(positive=None)
        queries.append(query)
    return queries


def _cloze_query(passage: Passage, sentence_span: Span) -> GeneratedQuery | None:
    """Return a sentence as a query for the rest of its passage; None if it is not fit for it."""
    start, end = sentence_span
    sentence = with_single_spaces(passage.text[start:end])
    title = with_single_spaces(passage.title)
    if len(sentence) < CLOZE_CHARACTERS or are_near_equal(title, sentence):
        return None
    before = passage.text[:start].rstrip()
    after = passage.text[end:].lstrip()
    positive = f"{before} {after}".strip()
    if not positive or sentence in with_single_spaces(positive) or sentence in title:
        return None
    return GeneratedQuery(sentence, QuerySource.CLOZE, positive)


def are_near_equal(first: str, second: str) -> bool:
    """Return whether two texts have most of their words in common, case and marks aside.

    >>> are_near_equal("The moon: a guide", "The Moon, a Guide."), are_near_equal("Moon", "Moons")
    (True, False)
    """
    first_words = WORD.findall(first.casefold())
    second_words = WORD.findall(second.casefold())
    if not first_words or not second_words:
        return first.strip() == second.strip()
    matcher = SequenceMatcher(None, first_words, second_words, autojunk=False)
    return matcher.ratio() >= NEAR_EQUAL
