"""File formats of corpora, topics, qrels and runs; each is detected, or given by name."""

from dataclasses import dataclass
from enum import StrEnum

from denserk.config.options import Settings, option


class CorpusFormat(StrEnum):
    """Corpus formats."""

    ANSERINI = "anserini"  # JSON lines with `id` and `contents` (Anserini, Pyserini)
    BEIR = "beir"  # JSON lines with `_id` (or `id`), `title`, `text`
    TEVATRON = "tevatron"  # JSON lines with `docid`, `title`, `text`
    MARCO = "marco"  # Tab-separated: id, text
    MARCO_TITLES = "marco-titles"  # Tab-separated: id, title, text
    DPR = "dpr"  # Tab-separated with the header id, text, title, and quoted fields
    FLAG = "flag"  # JSON lines with `text` only; the id is the line number from 0


class TopicsFormat(StrEnum):
    """Topics formats."""

    TSV = "tsv"  # Tab-separated: id, text
    ANSERINI = "anserini"  # JSON lines with `id` or `qid`, and `title`
    BEIR = "beir"  # JSON lines with `_id` and `text`
    TEVATRON = "tevatron"  # JSON lines with `query_id`, and `query` or `query_text`
    DPR = "dpr"  # Tab-separated: question, list of answers; the id is the line number from 0
    QA = "qa"  # JSON with `question` and `answers`; without an id, the line number from 0 is the id
    # A folder with one JSON array of `question` and `answers` per relation
    ENTITY_QUESTIONS = "entity-questions"


class QrelsFormat(StrEnum):
    """Qrels formats."""

    TREC = "trec"  # Four columns: query id, iteration, passage id, relevance
    BEIR = "beir"  # Three columns under a header: query-id, corpus-id, score


class RunFormat(StrEnum):
    """Run formats."""

    TREC = "trec"  # Six columns: qid, Q0, docid, rank, score, tag
    MSMARCO = "msmarco"  # Tab-separated: qid, docid, rank; at most 1000 passages per query
    TEVATRON = "tevatron"  # Tab-separated: qid, docid, score
    JSONL = "jsonl"  # JSON lines with `qid`, `docid`, `rank` and `score`, one per hit


@dataclass(frozen=True)
class CorpusSettings(Settings):
    """Corpus."""

    corpus_format: CorpusFormat | None = option(None, shown_default="detected")
    """Corpus format."""
    docid_field: str | None = option(None, shown_default="that of the format", rare=True)
    """JSON key of the passage id."""
    delimiter: str = option("\\n", rare=True)
    """Separator of the fields inside `contents`, for --fields that are not JSON keys."""


# Formats are detected.
DETECTED = CorpusSettings()
