"""Records of retrieval: what readers yield, searches return and writers take."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

NO_SUBTOPIC = "0"  # what the second column of qrels is for judgments of whole queries
EXCLUDED_IDS = "excluded_ids"  # field of a query: passages that it must not return
GOLD_IDS = "gold_ids"  # field of a query: its relevant passages
NO_FIELDS: Mapping[str, Any] = MappingProxyType({})


class Passage(NamedTuple):
    """One passage of a corpus. Ids are strings and never change their spelling."""

    docid: str
    text: str
    title: str = ""
    extra: Mapping[str, Any] = NO_FIELDS

    def field(self, name: str) -> str:
        """Return the text of a field; empty if the passage lacks it."""
        if name in ("text", "contents"):
            return self.text
        if name == "title":
            return self.title
        value = self.extra.get(name)
        return "" if value is None else str(value)


class Query(NamedTuple):
    """One query (topic); answers are there for question sets scored by answer matching."""

    qid: str
    text: str
    answers: tuple[str, ...] = ()
    extra: Mapping[str, Any] = NO_FIELDS


class Qrel(NamedTuple):
    """One relevance judgment: the grade of a passage for a query or for a sub-topic of it."""

    qid: str
    docid: str
    relevance: int
    subtopic: str = NO_SUBTOPIC


class GeneratedQuery(NamedTuple):
    """A query that was generated for a passage, without judgments.

    `positive` is the text of the passage in a training example, without what the query was copied
    from; None if it is the whole text. The title of the passage stands above it, except where the
    title is the query.
    """

    text: str
    source: str  # a QuerySource, or FROM_MODEL
    positive: str | None = None


class Candidate(NamedTuple):
    """One positive or negative passage of a training example."""

    docid: str = ""  # empty in formats without ids
    text: str = ""  # empty, as the title, in formats of ids alone
    title: str = ""
    score: float | None = None  # a teacher's
    extra: Mapping[str, Any] = NO_FIELDS


class TrainingExample(NamedTuple):
    """A query with its positives and negatives, in the order of the file."""

    qid: str
    query: str
    positives: tuple[Candidate, ...]
    negatives: tuple[Candidate, ...]
    answers: tuple[str, ...] = ()
    extra: Mapping[str, Any] = NO_FIELDS


class SentenceExample(NamedTuple):
    """A pair of sentences with a label; or a triplet: anchor, positive, negative, and no label."""

    texts: tuple[str, ...]
    label: float | None = None


def best_first(hits: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """Sort (id, score) pairs by score descending; equal scores by id descending, like trec_eval.

    Ids compare by code point, which is also the byte order of their UTF-8.

    >>> best_first([("d10", 1.0), ("d9", 1.0), ("d1", 2.0)])
    [('d1', 2.0), ('d9', 1.0), ('d10', 1.0)]
    """
    return sorted(hits, key=lambda hit: (hit[1], hit[0]), reverse=True)


def document_of(passage_id: str, delimiter: str) -> str:
    """Return the id of a passage's document.

    >>> document_of("d1#0", "#"), document_of("d2", "#")
    ('d1', 'd2')
    """
    document, _, _ = passage_id.partition(delimiter)
    return document
