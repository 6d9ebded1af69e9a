"""Pools with the texts of their queries and passages, of `eval --to-judge` and `eval --draw`."""

from collections.abc import Collection, Sequence

from denserk.config.evaluation import ReportSources
from denserk.evaluation.evaluator import short_names
from denserk.evaluation.report import read_run_manifests, with_recorded_sources
from denserk.io.corpus import find_records, read_passages
from denserk.io.pool import PoolRow, write_pool
from denserk.io.topics import read_queries


def write_pool_with_texts(
    path: str, rows: Sequence[PoolRow], sources: ReportSources, runs: Sequence[str]
) -> int:
    """Write rows to a pool with the texts of their queries and passages, where these are known.

    Texts come from the topics and the corpus of `sources`, or else from those that runs record.
    Returns the number of rows.
    """
    manifests = read_run_manifests(dict(zip(short_names(runs), runs, strict=True)))
    sources = with_recorded_sources(sources, manifests)
    query_texts = _query_texts({row.qid for row in rows}, sources)
    passage_texts = _passage_texts({row.docid for row in rows}, sources)
    rows_with_texts = []
    for row in rows:
        query_text = query_texts.get(row.qid, "")
        passage_text = passage_texts.get(row.docid, "")
        rows_with_texts.append(PoolRow(row.qid, row.docid, query_text, passage_text))
    return write_pool(path, rows_with_texts)


def _query_texts(qids: Collection[str], sources: ReportSources) -> dict[str, str]:
    """Return the texts of queries by id, of those that are in the topics."""
    if sources.topics is None:
        return {}
    queries = find_records(read_queries(sources.topics), qids, sources.topics, "queries")
    return {qid: query.text for qid, query in queries.items()}


def _passage_texts(docids: Collection[str], sources: ReportSources) -> dict[str, str]:
    """Return the titles and texts of passages by id, of those that are in the corpus."""
    if sources.corpus is None:
        return {}
    corpus = read_passages(sources.corpus, sources.reading)
    passages = find_records(corpus, docids, sources.corpus)
    return {docid: f"{passage.title} {passage.text}" for docid, passage in passages.items()}
