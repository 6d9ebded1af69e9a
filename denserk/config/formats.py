"""File formats, detected or given by name, and options of the convert command."""

from enum import StrEnum

from denserk.config.options import OverwriteSettings, Settings, TagSettings, option, setting


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
    ENTITY_QUESTIONS = "entity-questions"  # A folder: per relation one JSON array, as in qa


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
    MTEB = "mteb"  # mteb's predictions: one object, subset -> split -> qid -> docid -> score


class TopicsSettings(Settings, kw_only=True):
    """Queries: where a command may do without."""

    topics: str | None = option(None, "--queries", metavar="FILE|DIR|NAME|-")
    """Queries: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    topics_format: TopicsFormat | None = None
    """Format of --topics. [default: detected]"""
    qrels: str | None = option(None, metavar="FILE|DIR|NAME", needs="topics")
    """Keep only queries with judgments in these qrels, e.g. one split of BEIR."""


class CorpusSettings(Settings):
    """Corpus."""

    corpus_format: CorpusFormat | None = None
    """Corpus format. [default: detected]"""
    docid_field: str | None = setting(None)
    """JSON key of the passage id. [default: that of the format]"""
    delimiter: str = setting("\\n")
    """Separator of the fields inside `contents`, for --fields that are not JSON keys."""


# Formats are detected.
DETECTED = CorpusSettings()


class TrainingFormat(StrEnum):
    """Training data formats."""

    TEVATRON = "tevatron"  # JSON lines with `query_id`, `query`, and passages with texts
    TEVATRON_IDS = "tevatron-ids"  # JSON lines with `query_id`, `query_text`, and passages by id
    DPR = "dpr"  # A JSON array, or JSON lines, with `question`, `answers`, and lists of contexts
    ST_TRIPLET = "st-triplet"  # anchor, positive, negative: JSON lines, or a table with a header
    FLAG = "flag"  # JSON lines with `query`, `pos`, `neg` and optional scores
    ST_IDS = "st-ids"  # JSON lines with `qid`, `pos` ids and `neg` ids by system, for MS MARCO
    TRIPLES = "triples"  # Tab-separated ids: query, positive, negative
    TEXT_TRIPLES = "text-triples"  # Tab-separated texts: query, positive, negative
    NEGATIVES = "negatives"  # Tab-separated: query id, comma-separated negative ids


# Training data formats with passage ids only.
WITHOUT_TEXTS = (
    TrainingFormat.TEVATRON_IDS,
    TrainingFormat.ST_IDS,
    TrainingFormat.TRIPLES,
    TrainingFormat.NEGATIVES,
)

# Content of a file or folder.
Kind = StrEnum("Kind", "CORPUS QUERIES QRELS RUN VECTORS TRAINING MODEL")


class ConversionSettings(TagSettings, OverwriteSettings):
    """Formats."""

    kind: Kind | None = None
    """What the source contains. [default: detected]"""
    from_format: str | None = option(None, "--from", metavar="FORMAT")
    """Format of the source; an unknown name prints the possible ones. [default: detected]"""
    to_format: str | None = option(None, "--to", metavar="FORMAT")
    """Format of the target. [default: from the target's name]"""
    expansions: str | None = option(None, metavar="FILE", of=Kind.CORPUS)
    """corpus: generated queries, from `denserk generate`, to append to each passage's text."""
    corpus: str | None = option(None, metavar="FILE|DIR|NAME")
    """training: corpus that has the texts of passages given by id."""
    queries: str | None = option(None, metavar="FILE|DIR|NAME")
    """training: topics that have the texts of queries given by id."""
    teacher: str | None = option(None, metavar="DIR|HUB_ID", of=Kind.TRAINING)
    """training: cross-encoder that scores every positive and negative. [default: none]"""
    average: tuple[str, ...] = option((), metavar="DIR|HUB_ID", repeat=True, of=Kind.MODEL)
    """model: model whose weights are averaged with the source's (model soup); repeatable."""
    allow_pickle: bool = False
    """vectors: allow pickle files, which can run code; only for trusted files."""
