"""Options of the convert command, and the training data formats."""

from dataclasses import dataclass
from enum import StrEnum

from denserk.config.options import OverwriteSettings, TagSettings, option


class TrainingFormat(StrEnum):
    """Training data formats."""

    TEVATRON = "tevatron"  # JSON lines with `query_id`, `query`, and passages with texts
    TEVATRON_IDS = "tevatron-ids"  # JSON lines with `query_id`, `query_text`, and passages by id
    DPR = "dpr"  # A JSON array, or JSON lines, with `question`, `answers`, and lists of contexts
    # Columns anchor, positive, negative: JSON lines, or tab-separated with a header
    ST_TRIPLET = "st-triplet"
    FLAG = "flag"  # JSON lines with `query`, `pos`, `neg` and optional scores
    # JSON lines with `qid`, `pos` ids and `neg` ids by system: sentence-transformers' MS MARCO
    ST_IDS = "st-ids"
    TRIPLES = "triples"  # Tab-separated ids: query, positive, negative
    TEXT_TRIPLES = "text-triples"  # Tab-separated texts: query, positive, negative
    NEGATIVES = "negatives"  # Tab-separated: query id, comma-separated negative ids


class Kind(StrEnum):
    """Content of a file or folder."""

    CORPUS = "corpus"  # Passages
    QUERIES = "queries"  # Queries, with or without answers
    QRELS = "qrels"  # Relevance judgments
    RUN = "run"  # Ranked passages for queries
    VECTORS = "vectors"  # Vectors with their ids
    TRAINING = "training"  # Queries with positives and negatives
    MODEL = "model"  # A model folder


@dataclass(frozen=True)
class ConversionSettings(TagSettings, OverwriteSettings):
    """Formats."""

    kind: Kind | None = option(None, shown_default="detected")
    """What the source contains."""
    from_format: str | None = option(None, "--from", metavar="FORMAT", shown_default="detected")
    """Format of the source; an unknown name prints the possible ones."""
    to_format: str | None = option(
        None, "--to", metavar="FORMAT", shown_default="from the target's name"
    )
    """Format of the target."""
    expansions: str | None = option(None, metavar="FILE", shown_default="none")
    """corpus: generated queries, from `denserk generate`, to append to each passage's text."""
    corpus: str | None = option(None, metavar="FILE|DIR|NAME", shown_default="none")
    """training: corpus that has the texts of passages given by id."""
    queries: str | None = option(None, metavar="FILE|DIR|NAME", shown_default="none")
    """training: topics that have the texts of queries given by id."""
    teacher: str | None = option(None, metavar="DIR|HUB_ID", shown_default="keep the scores")
    """training: cross-encoder that scores every positive and negative."""
    allow_pickle: bool = False
    """vectors: allow pickle files, which can run code; only for trusted files."""
