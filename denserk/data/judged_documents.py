"""Judgments of documents, where runs hold their passages: "d1#0" and "d1#1" of document "d1"."""

from collections.abc import Collection, Iterable

from denserk.records import document_of


def passages_of_documents(
    documents: Collection[str], passage_ids: Iterable[str], delimiter: str
) -> list[str]:
    """Return those of some passages that are parts of some documents.

    >>> passages_of_documents({"d1"}, ["d1#0", "d2#0", "d1#4"], "#")
    ['d1#0', 'd1#4']
    """
    return [
        passage_id for passage_id in passage_ids if document_of(passage_id, delimiter) in documents
    ]


def best_passages(
    documents: Iterable[str], rankings: Iterable[Iterable[str]], delimiter: str
) -> list[str]:
    """Return the best passage of each document that has one, in the order of the documents.

    A document's best passage is its first in the first of the `rankings` that has one; a ranking
    lists passage ids, the best first.

    >>> best_passages(["d1", "d2", "d3"], [["d2#5", "d2#0"], ["d2#0", "d1#3"]], "#")
    ['d1#3', 'd2#5']
    """
    best: dict[str, str] = {}
    for ranking in rankings:
        for passage_id in ranking:
            best.setdefault(document_of(passage_id, delimiter), passage_id)
    return [best[document] for document in documents if document in best]
