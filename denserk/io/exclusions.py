"""Passages that are removed from the hits of single queries, such as BRIGHT's `excluded_ids`."""

import logging
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from denserk.errors import InputError, MismatchError
from denserk.io import files, json_objects, unread_files
from denserk.io.column_names import Column, Table, column_of
from denserk.io.detection import has_texts_by_id, is_object_by_query
from denserk.io.file_head import FileHead
from denserk.io.json_records import Fields
from denserk.io.short_texts import columns_phrase
from denserk.io.topics import read_queries
from denserk.records import EXCLUDED_IDS, Query

logger = logging.getLogger(__name__)

Exclusions = Mapping[str, AbstractSet[str]]  # ids of passages by query id
EXPECTED = (
    "2 columns between tabs or blanks: query id, passage id; "
    f"or JSON queries with {EXCLUDED_IDS}; or {{query: [ids]}}"
)


def read_exclusions(source: str) -> Exclusions:
    """Read the passages that are removed for each query, of a file."""
    with files.open_ahead(source, part="queries") as (data, handle):
        unread_files.reject_binary(data, source, Table.QRELS)
        head = FileHead(data, Path(source).name)
        excluded: Exclusions
        if head.record is None:
            excluded = _excluded_in_columns(files.read_text_lines(source, handle), source)
        elif is_object_by_query(head) or has_texts_by_id(head):
            lists = json_objects.read_lists(files.read_all(handle, source), source, EXPECTED)
            excluded = {qid: frozenset(docids) for qid, docids in lists if docids}
        else:
            excluded = listed_exclusions(read_queries(source), source)
    if not excluded:
        raise InputError(source, None, "no passages to exclude", EXPECTED)
    return excluded


def _excluded_in_columns(lines: files.Lines, source: str) -> dict[str, set[str]]:
    """Return the passages of lines of query id and passage id, perhaps under a header."""
    excluded: dict[str, set[str]] = {}
    is_first = True
    for line, text in lines:
        cells = text.split()
        if not cells:
            continue
        columns = [column_of(cell, Table.QRELS) for cell in cells]
        is_header = is_first and columns == [Column.QUERY_ID, Column.PASSAGE_ID]
        is_first = False
        if is_header:
            continue
        if len(cells) != 2:
            raise InputError(source, line, columns_phrase(len(cells)), EXPECTED)
        qid, docid = cells
        excluded.setdefault(qid, set()).add(docid)
    return excluded


def listed_exclusions(queries: Iterable[Query], source: str) -> dict[str, frozenset[str]]:
    """Return the passages that queries list themselves, of the queries that do."""
    excluded = {}
    for query in queries:
        docids = Fields(query.extra, source, None).identifiers(EXCLUDED_IDS)
        if docids:
            excluded[query.qid] = frozenset(docids)
    return excluded


def chosen_exclusions(
    queries: Iterable[Query],
    topics: str,
    given_exclusions: Exclusions,
    source: str,
    *,
    use_listed: bool,
) -> dict[str, AbstractSet[str]]:
    """Return the passages that are removed for some queries: given ones, and those they list.

    Reports how many there are; `topics` names the queries and `source` what is given.
    """
    query_by_id = {query.qid: query for query in queries}
    excluded: dict[str, AbstractSet[str]] = {}
    if use_listed:
        excluded |= listed_exclusions(query_by_id.values(), topics)
        if excluded:
            hint = "--set exclude-listed=false keeps them"
            logger.info(f"{_count_message(topics, excluded)} ({EXCLUDED_IDS}; {hint})")
    if given_exclusions:
        for qid, docids in _of_searched(given_exclusions, query_by_id.keys(), source).items():
            excluded[qid] = frozenset(docids) | excluded.get(qid, frozenset())
    return excluded


def _of_searched(exclusions: Exclusions, qids: Collection[str], source: str) -> Exclusions:
    """Return the exclusions of the queries that are searched; an error if there are none."""
    exclusions_of_searched = {qid: docids for qid, docids in exclusions.items() if qid in qids}
    if not exclusions_of_searched:
        message = (
            f"{source} excludes passages of queries such as {next(iter(exclusions))}, and of none "
            f"that is searched, such as {next(iter(qids), 'none')}"
        )
        raise MismatchError(message, "name the exclusions of these queries")
    logger.info(_count_message(source, exclusions_of_searched))
    return exclusions_of_searched


def _count_message(source: str, excluded: Exclusions) -> str:
    """Return how many passages a source excludes, and for how many queries."""
    count = sum(map(len, excluded.values()))
    name = files.display_name(source)
    return f"{name}: {count:,} passages are excluded, for {len(excluded):,} queries"
