"""What is converted, and the shapes of training data."""

from dataclasses import dataclass
from enum import StrEnum

from denserk.errors import UsageError
from denserk.settings.options import option


class TrainingFormat(StrEnum):
    """Shapes of training data."""

    TEVATRON = "tevatron"
    """JSON lines with `query_id`, `query`, and passages with their texts."""
    TEVATRON_IDS = "tevatron-ids"
    """JSON lines with `query_id`, `query_text`, and passages by id."""
    DPR = "dpr"
    """A JSON array, or JSON lines, with `question`, `answers`, and lists of contexts."""
    ST_TRIPLET = "st-triplet"
    """Columns anchor, positive, negative: JSON lines, or tab-separated with a header."""
    FLAG = "flag"
    """JSON lines with `query`, `pos`, `neg`, and perhaps their scores."""
    ST_IDS = "st-ids"
    """JSON lines with `qid`, `pos` ids and `neg` ids by system: sentence-transformers' MS MARCO."""
    TRIPLES = "triples"
    """Tab-separated ids: query, positive, negative."""
    TEXT_TRIPLES = "text-triples"
    """Tab-separated texts: query, positive, negative."""
    NEGATIVES = "negatives"
    """Tab-separated: query id, negative ids with commas between them."""


class Kind(StrEnum):
    """What a file or folder holds."""

    CORPUS = "corpus"
    """Passages."""
    QUERIES = "queries"
    """Queries, perhaps with answers."""
    QRELS = "qrels"
    """Judgements."""
    RUN = "run"
    """Ranked passages for queries."""
    VECTORS = "vectors"
    """Vectors with their ids."""
    TRAINING = "training"
    """Queries with positives and negatives."""
    MODEL = "model"
    """A model's folder."""


@dataclass(frozen=True)
class ConversionSettings:
    """Between which shapes, and what fills the gaps."""

    kind: Kind | None = option(None, shown_default="detected")
    """What the source holds."""
    from_format: str | None = option(None, "--from", shown_default="detected")
    """Shape of the source; a wrong name is answered with the possible ones."""
    to_format: str | None = option(None, "--to", shown_default="by the target's name")
    """Shape of the target."""
    expansions: str | None = option(None, metavar="FILE", shown_default="none")
    """corpus: generated queries, from `denserk generate`, to append to each passage's text."""
    corpus: str | None = None
    """training: the corpus whose passages stand behind bare ids."""
    queries: str | None = None
    """training: the queries whose texts stand behind bare ids."""
    teacher: str | None = option(None, metavar="DIR|HUB_ID", shown_default="scores as they are")
    """training: a cross-encoder whose scores every positive and negative gets."""
    tag: str = "denserk"
    """run: last column of a TREC run."""
    allow_pickle: bool = False
    """vectors: read a peer's pickle. Only for files from people you trust."""
    overwrite: bool = False
    """Replace a target folder that is not empty."""

    def __post_init__(self) -> None:
        """Refuses a tag that would break a line."""
        if not self.tag or any(character.isspace() for character in self.tag):
            raise UsageError(f"--tag {self.tag!r}: a run's last column holds no white space")
