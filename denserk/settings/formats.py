"""The shapes in which the field keeps its files; each is detected, and can be forced by name."""

from dataclasses import dataclass
from enum import StrEnum

from denserk.settings.options import Settings, option


class CorpusFormat(StrEnum):
    """Shapes of a corpus."""

    ANSERINI = "anserini"
    """JSON lines with `id` and `contents` (Anserini, Pyserini)."""
    BEIR = "beir"
    """JSON lines with `_id` (or `id`), `title`, `text`."""
    TEVATRON = "tevatron"
    """JSON lines with `docid`, `title`, `text`."""
    MARCO = "marco"
    """Tab-separated: id, text."""
    MARCO_TITLES = "marco-titles"
    """Tab-separated: id, title, text."""
    DPR = "dpr"
    """Tab-separated with the header id, text, title, and quoted fields."""
    FLAG = "flag"
    """JSON lines with `text` alone; the id is the line number from 0."""


class TopicsFormat(StrEnum):
    """Shapes of a query file."""

    TSV = "tsv"
    """Tab-separated: id, text."""
    ANSERINI = "anserini"
    """JSON lines with `id` or `qid`, and `title`."""
    BEIR = "beir"
    """JSON lines with `_id` and `text`."""
    TEVATRON = "tevatron"
    """JSON lines with `query_id`, and `query` or `query_text`."""
    DPR = "dpr"
    """Tab-separated: question, list of answers; the id is the line number from 0."""
    QA = "qa"
    """JSON with `question` and `answers`; where there is no id, it is the line number from 0."""
    ENTITY_QUESTIONS = "entity-questions"
    """A folder with a JSON array of `question` and `answers` for each relation."""


class QrelsFormat(StrEnum):
    """Shapes of judgements."""

    TREC = "trec"
    """Four columns: query, iteration, passage, relevance."""
    BEIR = "beir"
    """Three columns under a header: query-id, corpus-id, score."""


class RunFormat(StrEnum):
    """Shapes of a run."""

    TREC = "trec"
    """qid Q0 docid rank score tag"""
    MSMARCO = "msmarco"
    """qid, docid, rank, with tabs; at most 1000 passages a query"""
    TEVATRON = "tevatron"
    """qid, docid, score, with tabs"""
    JSONL = "jsonl"
    """One JSON object a hit: qid, docid, rank, score"""


@dataclass(frozen=True)
class CorpusSettings(Settings):
    """How the passages of a corpus are read."""

    corpus_format: CorpusFormat | None = option(None, shown_default="detected")
    """Shape of the corpus."""
    docid_field: str | None = option(None, shown_default="by the shape", rare=True)
    """JSON key that holds a passage's id."""
    delimiter: str = option("\\n", rare=True)
    """Separates fields inside `contents`, where --fields are named and are no keys."""


DETECTED = CorpusSettings()
"""Everything by the shape that is found."""
