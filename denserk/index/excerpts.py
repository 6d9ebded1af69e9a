"""What is shown of a passage that a query found: the part with most of its terms, these marked."""

from collections.abc import Callable, Iterable, Iterator
from textwrap import wrap

from denserk.index.terms import STOP_WORDS, TermSpan

SpansOf = Callable[[str], list[TermSpan]]  # of the terms of a text
EXCERPT = 320  # characters of a passage that are shown


def query_terms(query_text: str, spans_of: SpansOf) -> set[str]:
    """Return the terms of a query without stop words; all, if there are no others.

    >>> from denserk.index.terms import word_spans
    >>> sorted(query_terms("When does the moon rise?", word_spans))
    ['does', 'moon', 'rise', 'when']
    >>> sorted(query_terms("to be", word_spans))
    ['be', 'to']
    """
    terms = {span.term for span in spans_of(query_text)}
    return terms - STOP_WORDS or terms


def excerpt_of(text: str, terms: set[str], spans_of: SpansOf) -> str:
    """Return the part of a text that has most of the terms.

    >>> from denserk.index.terms import word_spans
    >>> excerpt_of("the moon rises", {"moon"}, word_spans)
    'the moon rises'
    """
    excerpts = wrap(text, EXCERPT) or [""]
    counts = []
    for excerpt in excerpts:
        terms_of_excerpt = {span.term for span in spans_of(excerpt)}
        counts.append(len(terms & terms_of_excerpt))
    best = counts.index(max(counts))
    before = "… " if best > 0 else ""
    after = " …" if best < len(excerpts) - 1 else ""
    return f"{before}{excerpts[best]}{after}"


def marked_spans(text: str, terms: Iterable[str], spans_of: SpansOf) -> list[tuple[int, int]]:
    """Return where the terms of a query begin and end in a text.

    >>> from denserk.index.terms import word_spans
    >>> marked_spans("The moon rises; the moon falls.", {"moon", "falls"}, word_spans)
    [(4, 8), (20, 24), (25, 30)]
    """
    return list(_joined(span for span in spans_of(text) if span.term in terms))


def _joined(spans: Iterable[TermSpan]) -> Iterator[tuple[int, int]]:
    """Yield where spans begin and end, as one those that overlap or touch, as bigrams do.

    >>> list(_joined([TermSpan(0, 2, "東京"), TermSpan(1, 3, "京都"), TermSpan(5, 8, "and")]))
    [(0, 3), (5, 8)]
    """
    start = end = 0
    for span in spans:
        if span.start > end:
            if end > start:
                yield start, end
            start = span.start
        end = span.end
    if end > start:
        yield start, end
