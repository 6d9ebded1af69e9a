"""File formats, detected or given by name, and options of the convert and generate commands."""

from enum import StrEnum
from typing import NamedTuple

from denserk.config.options import REQUIRED, Settings, option, setting
from denserk.config.shared import OverwriteSettings, ResumeSettings, ShardSettings, TagSettings
from denserk.errors import UsageError


class CorpusFormat(StrEnum):
    """Corpus formats."""

    ANSERINI = "anserini"  # JSON lines with `id` and `contents` (Anserini, Pyserini)
    BEIR = "beir"  # JSON lines with `_id` (or `id`), `title`, `text`
    TEVATRON = "tevatron"  # JSON lines with `docid`, `title`, `text`
    MARCO = "marco"  # Tab-separated: id, text
    MARCO_TITLES = "marco-titles"  # Tab-separated: id, title, text
    DPR = "dpr"  # Tab-separated with the header id, text, title, and quoted fields
    FLAG = "flag"  # JSON lines with `text` only; the id is the line number from 0
    JSON = "json"  # One JSON object: id -> text, or id -> {title, text} (BEIR); llama_index's
    CSV = "csv"  # Columns between commas, semicolons or tabs under a header, quoted
    TREC = "trec"  # Documents between <DOC> tags, as on the TREC disks
    TEXT = "text"  # A folder of .txt and .md files, or one such file: a passage each


class TopicsFormat(StrEnum):
    """Topics formats."""

    TSV = "tsv"  # Tab-separated: id, text
    ANSERINI = "anserini"  # JSON lines with `id` or `qid`, and `title`
    BEIR = "beir"  # JSON lines with `_id` and `text`
    TEVATRON = "tevatron"  # JSON lines with `query_id`, and `query` or `query_text`
    DPR = "dpr"  # Tab-separated: question, list of answers; the id is the line number from 0
    QA = "qa"  # JSON with `question` and `answers`; without an id, the line number from 0 is the id
    ENTITY_QUESTIONS = "entity-questions"  # A folder: per relation one JSON array, as in qa
    JSON = "json"  # One JSON object: id -> text, or id -> record (BEIR); llama_index's
    TREC = "trec"  # TREC topics: XML, or between the tags of <top>; the title is the query
    COLON = "colon"  # Lines of `id:text` (TREC Web, Million Query)
    CLICKS = "clicks"  # A click log: query, passage and number of clicks under a header


class QrelsFormat(StrEnum):
    """Qrels formats."""

    TREC = "trec"  # Four columns: query id, iteration, passage id, relevance
    BEIR = "beir"  # Three columns under a header: query-id, corpus-id, score
    JSON = "json"  # One JSON object: qid -> docid -> grade (pytrec_eval, ranx), or qid -> docids
    CLICKS = "clicks"  # A click log: query, passage and number of clicks under a header


class RunFormat(StrEnum):
    """Run formats."""

    TREC = "trec"  # Six columns: qid, Q0, docid, rank, score, tag
    MSMARCO = "msmarco"  # Tab-separated: qid, docid, rank; at most 1000 passages per query
    TEVATRON = "tevatron"  # Tab-separated: qid, docid, score
    JSONL = "jsonl"  # JSON lines with `qid`, `docid`, `rank` and `score`, one per hit
    JSON = "json"  # One JSON object: qid -> docid -> score (pytrec_eval, ranx, BEIR)
    MTEB = "mteb"  # mteb's predictions: one object, subset -> split -> qid -> docid -> score


# Topics formats that are read and not written.
READ_ONLY_TOPICS = (
    TopicsFormat.ENTITY_QUESTIONS,
    TopicsFormat.JSON,
    TopicsFormat.TREC,
    TopicsFormat.COLON,
    TopicsFormat.CLICKS,
)


class TopicsSettings(Settings, kw_only=True):
    """Queries: where a command may do without."""

    topics: str | None = option(None, "--queries", metavar="FILE|DIR|NAME|-")
    """Queries: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    topics_format: TopicsFormat | None = None
    """Format of --topics. [default: detected]"""
    topics_field: tuple[str, ...] | None = setting(None, nonempty=True, needs="topics")
    """Fields of --topics that make the query, e.g. title,description. [default: title]"""
    qrels: str | None = option(None, metavar="FILE|DIR|NAME", needs="topics")
    """Keep only queries with judgments in these qrels, e.g. one split of BEIR."""


class CorpusSettings(Settings):
    """Corpus."""

    corpus_format: CorpusFormat | None = None
    """Corpus format. [default: detected]"""
    id_field: str | None = option(None, metavar="NAME", excludes="docid_field")
    """JSON key or column of the passage id; "" makes ids from the texts.
    [default: that of the format]"""
    text_field: str | None = option(None, metavar="NAME", nonempty=True)
    """JSON key or column of the text. [default: that of the format]"""
    title_field: str | None = option(None, metavar="NAME", nonempty=True)
    """JSON key or column of the title. [default: that of the format]"""
    docid_field: str | None = setting(None)
    """Synonym of --id-field, from earlier versions."""
    delimiter: str = setting("\\n")
    """Separator of the fields inside `contents`, for --fields that are not JSON keys."""

    @property
    def id_key(self) -> str | None:
        """The key of the passage id that was named; "" for ids that are made; else None."""
        return self.docid_field if self.id_field is None else self.id_field


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
    LLAMA_INDEX = "llama-index"  # One JSON object: queries, corpus, relevant_docs (read only)
    CLICKS = "clicks"  # A click log: query, passage and number of clicks (read only)


# Training data formats with passage ids only.
WITHOUT_TEXTS = (
    TrainingFormat.TEVATRON_IDS,
    TrainingFormat.ST_IDS,
    TrainingFormat.TRIPLES,
    TrainingFormat.NEGATIVES,
)

# Training data formats that are read and not written.
READ_ONLY_TRAINING = (TrainingFormat.LLAMA_INDEX, TrainingFormat.CLICKS)

# Content of a file or folder.
Kind = StrEnum("Kind", "CORPUS QUERIES QRELS RUN VECTORS TRAINING MODEL GENERATED")


class ConversionSettings(TagSettings, OverwriteSettings):
    """Formats."""

    kind: Kind | None = None
    """What the source contains. [default: detected]"""
    from_format: str | None = option(None, "--from", metavar="FORMAT")
    """Format of the source; an unknown name prints the possible ones. [default: detected]"""
    topics_field: tuple[str, ...] | None = setting(None, nonempty=True, used_by=Kind.QUERIES)
    """queries: fields that make the query, e.g. title,description. [default: title]"""
    to_format: str | None = option(None, "--to", metavar="FORMAT")
    """Format of the target. [default: from the target's name]"""
    id_field: str | None = option(None, metavar="NAME", used_by="corpus training generated")
    """corpus: JSON key or column of the passage id; "" makes ids from the texts.
    [default: that of the format]"""
    text_field: str | None = option(
        None, metavar="NAME", nonempty=True, used_by="corpus training generated"
    )
    """corpus: JSON key or column of the text. [default: that of the format]"""
    title_field: str | None = option(
        None, metavar="NAME", nonempty=True, used_by="corpus training generated"
    )
    """corpus: JSON key or column of the title. [default: that of the format]"""
    expansions: str | None = option(None, metavar="FILE", used_by=Kind.CORPUS)
    """corpus: generated queries, from `denserk generate`, to append to each passage's text."""
    split_words: int | None = option(
        None, at_least=1, used_by=Kind.CORPUS, excludes="split_sentences expansions"
    )
    """corpus: split documents into passages of this many words. [default: not split]"""
    split_sentences: int | None = option(
        None, at_least=1, used_by=Kind.CORPUS, excludes="split_words expansions"
    )
    """corpus: split documents into passages of this many sentences. [default: not split]"""
    stride: int | None = option(
        None, at_least=1, used_by=Kind.CORPUS, needs="split_words split_sentences"
    )
    """corpus: words or sentences between the starts of two passages.
    [default: as many as a passage has, so that none overlap]"""
    max_passage_delimiter: str = setting(
        "#", nonempty=True, used_by=Kind.CORPUS, needs="split_words split_sentences"
    )
    """corpus: delimiter between document and part in the ids of passages."""
    click_grades: tuple[int, ...] = setting(
        (1,), at_least=1, nonempty=True, used_by=f"{Kind.QRELS} {Kind.TRAINING}"
    )
    """click logs: clicks from which on a passage has grade 1, 2, ...; fewer are left out.
    [default: 1]"""
    target_kind: Kind | None = setting(None, used_by=Kind.GENERATED)
    """generated: what is written, queries, qrels or training. [default: from the target's name]"""
    corpus: str | None = option(None, metavar="FILE|DIR|NAME")
    """training, generated: corpus that has the texts of passages given by id."""
    queries: str | None = option(None, metavar="FILE|DIR|NAME")
    """training: topics that have the texts of queries given by id."""
    teacher: str | None = option(None, metavar="DIR|HUB_ID", used_by=Kind.TRAINING)
    """training: model that scores every positive and negative. [default: none]"""
    average: tuple[str, ...] = option((), metavar="DIR|HUB_ID", repeat=True, used_by=Kind.MODEL)
    """model: model whose weights are averaged with the source's (model soup); repeatable."""
    allow_pickle: bool = False
    """vectors: allow pickle files, which can run code; only for trusted files."""

    def _check(self) -> None:
        if list(self.click_grades) != sorted(set(self.click_grades)):
            numbers = ",".join(map(str, self.click_grades))
            hint = "for example 1,3,10: 1 click has grade 1, 3 clicks grade 2, 10 grade 3"
            raise UsageError(f"--set click-grades={numbers}: numbers must rise", hint)
        self._check_stride("--split-words", self.split_words)
        self._check_stride("--split-sentences", self.split_sentences)
        if any(character.isspace() for character in self.max_passage_delimiter):
            message = (
                f"--set max-passage-delimiter={self.max_passage_delimiter!r}: "
                "ids cannot contain white space"
            )
            raise UsageError(message)

    def _check_stride(self, flag: str, size: int | None) -> None:
        """Raise a UsageError for a stride that leaves out text between two passages."""
        if size is not None and self.stride is not None and self.stride > size:
            message = f"--stride {self.stride} is larger than {flag} {size}: text would be lost"
            raise UsageError(message, f"give --stride of at most {size}")


class QuerySource(StrEnum):
    """What a query is copied from."""

    TITLE = "title"  # The passage's title
    HEADING = "heading"  # A Markdown heading; its section is the positive
    SPAN = "span"  # A random span of words; another span is the positive
    CLOZE = "cloze"  # A sentence; the rest of the passage is the positive


# The source, in files, of a query that a model generated.
FROM_MODEL = "model"
# Options of the models that generate, and their fields, which are keys of manifests.
QUERIES = "--queries-model"
CONTINUATIONS = "--continuation-model"
MODELS = {QUERIES: "queries_model", CONTINUATIONS: "continuation_model"}


class Sampling(NamedTuple):
    """Sampling parameters by transformers' names; `top_k` 0 and `top_p` 1 are off."""

    num_return_sequences: int
    max_new_tokens: int
    top_k: int = 0
    top_p: float = 1.0


class GenerateSettings(ShardSettings, ResumeSettings, kw_only=True):
    """Generation."""

    corpus: str = option(REQUIRED, metavar="FILE|DIR|NAME|-")
    """Passages: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    output: str = option(REQUIRED, metavar="FILE|-")
    """JSON lines with docid, queries and next, in corpus order."""
    queries_model: str | None = option(None, metavar="DIR|HUB_ID")
    """Sequence-to-sequence model (T5, mT5, BART) that generates queries (doc2query)."""
    queries_from: tuple[QuerySource, ...] = ()
    """Copy queries from the passage, without a model: from title, heading, span, cloze."""
    num_queries: int = option(
        10, "--queries-per-passage", at_least=1, needs="queries_model queries_from"
    )
    """Queries per passage, by the model (duplicates included) and of each of --queries-from."""
    cloze_kept: float = setting(0.1, at_least=0, at_most=1, needs="queries_from")
    """cloze: share of sentences that stay in the passage, so that equal words count, too."""
    round_trip: str | None = option(None, metavar="DIR", needs="queries_model queries_from")
    """Index of the corpus, BM25 or dense: keep only queries that find their passage in it."""
    round_trip_hits: int = setting(10, at_least=1, needs="round_trip")
    """Number of hits among which a query must find its passage."""
    query_top_k: int = setting(10, at_least=0, needs="queries_model")
    """Queries: number of most probable tokens to sample from (top-k sampling); 0 is off."""
    query_max_tokens: int = setting(64, at_least=1, needs="queries_model")
    """Maximum tokens of a query."""
    query_prompt: str = setting("", needs="queries_model")
    """Prompt in front of each passage, for models trained with one."""
    continuation_model: str | None = option(None, metavar="DIR|HUB_ID")
    """Causal language model (GPT-2, Qwen3) that generates continuations."""
    num_continuations: int = option(1, at_least=1, needs="continuation_model")
    """Continuations per passage."""
    continuation_top_p: float = setting(0.9, above=0, at_most=1, needs="continuation_model")
    """Continuations: cumulative probability of the tokens to sample from (top-p sampling)."""
    continuation_max_tokens: int = setting(128, at_least=1, needs="continuation_model")
    """Maximum tokens of a continuation."""
    fields: tuple[str, ...] | None = option(None, nonempty=True)
    """Passage fields that are concatenated, in order; empty fields are skipped.
    [default: title,text]"""
    join: str = setting(" ", metavar="TEXT")
    """Separator between fields."""
    passage_max_length: int = option(512, "--max-length", at_least=2)
    """Maximum tokens of a passage: its first ones for queries, its last ones for continuations."""
    allow_pickle: bool = False
    """Also load weights from pytorch_model.bin; no code in it is executed."""
    seed: int = 42
    """Random seed; a model draws by it and the number of the block of passages."""
    block_size: int = option(1024, at_least=1)
    """Passages per block; --resume repeats an unfinished block."""

    def _check(self) -> None:
        if self.queries_model is None and self.continuation_model is None and not self.queries_from:
            raise UsageError("give --queries-model, --queries-from or --continuation-model")
        if len(set(self.queries_from)) < len(self.queries_from):
            raise UsageError(f"--queries-from {','.join(self.queries_from)}: give each source once")
        unread_fields = sorted(set(self.fields or ()) - {"title", "text", "contents"})
        if self.queries_from and unread_fields:
            message = f"--fields {unread_fields[0]}: --queries-from reads title and text alone"
            raise UsageError(message)
        if self.output == "-" and self.resume:
            raise UsageError("--resume needs a file; --output - leaves nothing to continue")
        if self.join in ("sep", "pair"):
            raise UsageError(f"--set join={self.join}: these models read plain text")

    @property
    def sampling(self) -> dict[str, Sampling]:
        """Return the sampling parameters by the field of the model."""
        return {
            "queries_model": Sampling(
                num_return_sequences=self.num_queries,
                max_new_tokens=self.query_max_tokens,
                top_k=self.query_top_k,
            ),
            "continuation_model": Sampling(
                num_return_sequences=self.num_continuations,
                max_new_tokens=self.continuation_max_tokens,
                top_p=self.continuation_top_p,
            ),
        }
