"""How vectors or words are indexed and searched."""

from dataclasses import dataclass
from enum import StrEnum

from denserk.errors import UsageError
from denserk.settings.options import option


class IndexType(StrEnum):
    """What kind of index is built."""

    FLAT = "flat"
    """Exact: every vector is compared."""
    HNSW = "hnsw"
    """A navigable graph over full vectors."""
    IVF = "ivf"
    """Inverted lists of full vectors."""
    PQ = "pq"
    """Product-quantised codes."""
    HNSWPQ = "hnswpq"
    """A navigable graph over product-quantised codes."""
    SQ8 = "sq8"
    """One byte a dimension."""
    SQFP16 = "sqfp16"
    """Two bytes a dimension."""
    BM25 = "bm25"
    """Words, no vectors."""


class Engine(StrEnum):
    """Which library holds the index."""

    FAISS = "faiss"
    TORCH = "torch"
    BM25S = "bm25s"


class Metric(StrEnum):
    """How two vectors are compared."""

    INNER = "inner"
    """Inner product; higher is closer."""
    L2 = "l2"
    """Squared Euclidean distance; scores are its negative, so that higher is closer."""


class RunFormat(StrEnum):
    """Shapes in which a run is written."""

    TREC = "trec"
    """qid Q0 docid rank score tag"""
    MSMARCO = "msmarco"
    """qid, docid, rank, with tabs"""
    JSONL = "jsonl"
    """One JSON object a hit: qid, docid, rank, score"""


class Ties(StrEnum):
    """What becomes of equal scores."""

    BREAK = "break"
    """A tied score becomes the next lower float32, so that every reader sees one order."""
    KEEP = "keep"
    """Scores are printed as they are."""


@dataclass(frozen=True)
class IndexSettings:
    """What an index is made of."""

    type: IndexType = IndexType.FLAT
    """Kind of index."""
    factory: str | None = None
    """A faiss factory string in place of --type, for example "IVF4096,PQ64"."""
    engine: Engine | None = option(
        None, shown_default="faiss, or torch where faiss is absent; bm25s for bm25"
    )
    """Which library holds the index."""
    metric: Metric = Metric.INNER
    """How vectors are compared."""
    M: int = 256
    """hnsw: links of a vector."""
    efC: int = option(256, "--ef-construction")  # noqa: N815 - the field's spelling
    """hnsw: breadth of the search while building."""
    pq_m: int = 192
    """pq: sub-quantisers; must divide the dimension."""
    pq_nbits: int = 8
    """pq: bits of a sub-quantiser."""
    nlist: int | None = option(None, shown_default="4 x the square root of the count")
    """ivf: number of lists."""
    train_size: int = 262_144
    """Vectors, drawn with --seed, that quantisers and lists are trained on."""
    seed: int = 42
    """Seed of the training sample."""
    k1: float = 0.9
    """bm25: saturation of term frequency."""
    b: float = 0.4
    """bm25: weight of length."""
    stemmer: str = option("porter", metavar="porter|english|...|none")
    """bm25: a Snowball stemmer by name, or none."""
    stopwords: str = option("lucene", metavar="lucene|none")
    """bm25: Lucene's 33 English stop words, or none."""

    def __post_init__(self) -> None:
        """Refuses kinds, engines and metrics that do not go together."""
        if self.factory and self.type is not IndexType.FLAT:
            raise UsageError(
                f"--factory and --type {self.type} exclude each other", "give one of them"
            )
        words = self.type is IndexType.BM25
        if self.engine and words != (self.engine is Engine.BM25S):
            raise UsageError(f"--engine {self.engine} does not hold an index of --type {self.type}")
        if self.engine is Engine.TORCH and (self.factory or self.type is not IndexType.FLAT):
            raise UsageError(
                f"--engine torch is exact: it builds --type flat, not {self.factory or self.type}",
                "use --engine faiss",
            )


@dataclass(frozen=True)
class SearchSettings:
    """How an index is searched and what comes out."""

    hits: int = option(1000, "--depth", "-k")
    """Passages returned for a query."""
    ef_search: int | None = option(None, shown_default="the larger of 64 and --hits")
    """hnsw: breadth of the search."""
    nprobe: int | None = option(None, shown_default="a sixteenth of the lists, at least 1")
    """ivf: lists visited for a query."""
    query_batch: int = 256
    """Queries searched together."""
    remove_query: bool = False
    """Drop the hit whose id is the query's own (ArguAna, Quora)."""
    max_passage: bool = False
    """Passage ids are "document<delimiter>part": keep each document's best part."""
    max_passage_delimiter: str = "#"
    """What stands between document and part."""
    max_passage_hits: int | None = option(None, shown_default="--hits")
    """Documents kept for a query under --max-passage."""
    ties: Ties = Ties.BREAK
    """What becomes of equal scores."""
    tag: str = option("denserk", "--runtag", "--run-tag")
    """Last column of the run."""
    output_format: RunFormat = RunFormat.TREC
    """Shape of the run."""

    def __post_init__(self) -> None:
        """Refuses an empty depth and a tag that would break a line."""
        if self.hits < 1 or self.query_batch < 1:
            raise UsageError(
                f"--hits {self.hits} --query-batch {self.query_batch}: at least 1 is needed"
            )
        if not self.tag or any(character.isspace() for character in self.tag):
            raise UsageError(f"--tag {self.tag!r}: a run's last column holds no white space")
