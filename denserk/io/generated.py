"""Queries that `denserk generate` wrote, as topics, qrels and training examples.

The queries of passage d1 have the ids d1-0, d1-1, ..., in each of the three.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from denserk.config.formats import FROM_MODEL, QuerySource
from denserk.io.json_records import Fields, read_objects, type_name
from denserk.io.pretraining_text import with_records
from denserk.records import Candidate, GeneratedQuery, Passage, Qrel, Query, TrainingExample

SOURCES = (*QuerySource, FROM_MODEL)


class GeneratedRecord(NamedTuple):
    """A passage's queries by query id."""

    docid: str
    queries: dict[str, GeneratedQuery]


def read_generated(path: str | Path) -> Iterator[GeneratedRecord]:
    """Yield the queries of a file, passage by passage; equal queries of a passage once."""
    for line, record in read_objects(path):
        fields = Fields(record, path, line)
        docid = fields.identifier("docid")
        if not docid:
            raise fields.error("generated queries without `docid`", "the id of their passage")
        queries: dict[str, GeneratedQuery] = {}
        known_texts = set()
        for number, query in enumerate(_queries(fields)):
            if query.text not in known_texts:
                known_texts.add(query.text)
                queries[f"{docid}-{number}"] = query
        yield GeneratedRecord(docid, queries)


def _queries(fields: Fields) -> list[GeneratedQuery]:
    """Return the queries of a record with their sources, which a model's may lack."""
    texts = fields.texts("queries")
    sources = fields.texts("sources") or (FROM_MODEL,) * len(texts)
    positives = fields.items("positives") or [None] * len(texts)
    if len(sources) != len(texts):
        found = f"{len(sources)} sources for {len(texts)} queries"
        raise fields.error(found, "one for each query")
    if len(positives) != len(texts):
        found = f"{len(positives)} positives for {len(texts)} queries"
        raise fields.error(found, "one for each query")
    return [
        _checked_query(fields, text, source, positive)
        for text, source, positive in zip(texts, sources, positives, strict=True)
    ]


def _checked_query(fields: Fields, text: str, source: str, positive: Any) -> GeneratedQuery:
    """Return a query of a record; an error names what is wrong with it."""
    if not text.strip():
        raise fields.error("a query without text", "a text")
    if source not in SOURCES:
        raise fields.error(f"the source {source}", f"one of {', '.join(SOURCES)}")
    if not isinstance(positive, str | None):
        raise fields.error(f"{type_name(positive)} in positives", "texts or null")
    return GeneratedQuery(text, source, positive)


def generated_topics(path: str | Path) -> Iterator[Query]:
    """Yield the queries of a file with their ids."""
    for record in read_generated(path):
        for qid, query in record.queries.items():
            yield Query(qid, query.text)


def generated_qrels(path: str | Path) -> Iterator[Qrel]:
    """Yield a judgment for each query: its passage is relevant."""
    for record in read_generated(path):
        for qid in record.queries:
            yield Qrel(qid, record.docid, 1)


def generated_examples(
    path: str | Path, passages: Iterable[Passage] | None
) -> Iterator[TrainingExample]:
    """Yield a training example for each query, without negatives.

    Its positive has the texts of `passages`, which are in the order of the file, without what the
    query was copied from; without `passages` it is known by its id alone.
    """
    if passages is None:
        for record in read_generated(path):
            for qid, query in record.queries.items():
                yield TrainingExample(qid, query.text, (Candidate(record.docid),), ())
        return
    for passage, passage_record in with_records(passages, read_generated(path), path):
        if passage_record is not None:
            for qid, query in passage_record.queries.items():
                positive = positive_of(passage, query)
                yield TrainingExample(qid, query.text, (positive,), ())


def positive_of(passage: Passage, query: GeneratedQuery) -> Candidate:
    """Return a query's passage without what the query was copied from.

    >>> passage = Passage("d1", "It rises. It sets.", title="Moon")
    >>> positive_of(passage, GeneratedQuery("Moon", "title"))
    Candidate(docid='d1', text='It rises. It sets.', title='', score=None, extra=mappingproxy({}))
    >>> positive_of(passage, GeneratedQuery("It sets.", "cloze", "It rises.")).text
    'It rises.'
    """
    title = "" if query.source == QuerySource.TITLE else passage.title
    text = passage.text if query.positive is None else query.positive
    return Candidate(passage.docid, text, title)
