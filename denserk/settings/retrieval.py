"""How vectors or words are indexed and searched."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from denserk.errors import UsageError
from denserk.settings.formats import RunFormat as RunFormat
from denserk.settings.formats import TopicsFormat
from denserk.settings.options import REQUIRED, Settings, option


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
    """Inverted index of terms, no vectors."""


class Engine(StrEnum):
    """Which library holds the index."""

    FAISS = "faiss"
    TORCH = "torch"
    BM25S = "bm25s"
    LUCENE = "lucene"
    MILVUS = "milvus"


BM25_ENGINES = (Engine.BM25S, Engine.LUCENE)
"""The engines of --type bm25."""


class Metric(StrEnum):
    """How two vectors are compared."""

    INNER = "inner"
    """Inner product; higher is closer."""
    L2 = "l2"
    """Squared Euclidean distance; scores are its negative, so that higher is closer."""


class StopWords(StrEnum):
    """Stop words of BM25."""

    LUCENE = "lucene"
    """Lucene's 33 English stop words."""
    NONE = "none"
    """No stop words."""


class Ties(StrEnum):
    """What becomes of equal scores."""

    BREAK = "break"
    """A tied score becomes the next lower float32, so that every reader sees one order."""
    KEEP = "keep"
    """Scores are printed as they are."""


@dataclass(frozen=True, kw_only=True)
class IndexPaths:
    """What is indexed, and where the index goes."""

    input: tuple[str, ...] = option(
        (), "--embeddings", metavar="DIR|FILE|GLOB|-", repeat=True, shown_default="--corpus"
    )
    """Vectors: folders, files, patterns, or - for JSON lines from standard input; or index folders
    with the same training, to be merged; repeatable."""
    corpus: str | None = option(None, metavar="FILE|DIR|NAME|-")
    """Passages, for --type bm25: a file, a folder, irds:NAME, beir:NAME, or - (standard input)."""
    output: str = option("", metavar="DIR", shown_default="none: needed but for --engine milvus")
    """The index folder."""
    trained_as: str | None = option(None, metavar="DIR", shown_default="train on --input")
    """Template index: an index folder whose training (rotation, centroids) is taken over."""
    allow_pickle: bool = False
    """Also read vectors from pickles; a pickle can run any code, so only your own."""
    resume: bool = False
    """Leave a finished index alone, start an interrupted one over."""
    overwrite: bool = False
    """Replace what is in the output folder."""
    verify: bool = False
    """Read the input folders once more beforehand, and compare every file with its checksum."""

    def __post_init__(self) -> None:
        """Refuses two kinds of input, and two ways with an existing folder."""
        if self.verify and self.corpus:
            raise UsageError("--verify is for --input: a corpus has no checksums")
        if bool(self.input) == bool(self.corpus):
            raise UsageError("give one of --input (vectors) and --corpus (passages, --type bm25)")
        if self.trained_as and self.corpus:
            raise UsageError("--trained-as is for --input: BM25 is not trained")
        if self.resume and self.overwrite:
            raise UsageError("--resume and --overwrite exclude each other")


@dataclass(frozen=True)
class IndexSettings(Settings):
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
    M: int = option(256, rare=True, at_least=1)
    """hnsw: links of a vector."""
    efC: int = option(256, "--ef-construction", rare=True, at_least=1)
    """hnsw: breadth of the search while building."""
    pq_m: int = option(192, rare=True, at_least=1)
    """pq: sub-quantisers; must divide the dimension."""
    pq_nbits: int = option(8, rare=True, at_least=1)
    """pq: bits of a sub-quantiser."""
    nlist: int | None = option(None, shown_default="4 x the square root of the count", at_least=1)
    """ivf: number of lists."""
    train_size: int = option(262_144, rare=True, at_least=1)
    """At most this many vectors, drawn with --seed, train lists and quantisers."""
    seed: int = 42
    """Seed of the training sample."""
    threads: int | None = option(None, shown_default="the library's choice", at_least=1)
    """CPU threads."""
    device: str = option("cpu", metavar="cpu|cuda|cuda:N")
    """Where lists and quantisers are trained."""

    def __post_init__(self) -> None:
        """Reject types, engines and metrics that do not go together."""
        super().__post_init__()
        if self.factory and self.type is not IndexType.FLAT:
            raise UsageError(
                f"--factory and --type {self.type} exclude each other", "give one of them"
            )
        is_bm25 = self.type is IndexType.BM25
        if self.engine and is_bm25 != (self.engine in BM25_ENGINES):
            raise UsageError(f"--engine {self.engine} does not hold an index of --type {self.type}")
        if self.engine is Engine.TORCH and (self.factory or self.type is not IndexType.FLAT):
            raise UsageError(
                f"--engine torch is exact: it builds --type flat, not {self.factory or self.type}",
                "use --engine faiss",
            )
        if self.engine is Engine.MILVUS and self.metric is not Metric.INNER:
            raise UsageError(f"--engine milvus compares by inner product, not by {self.metric}")

    @property
    def is_flat(self) -> bool:
        """Whether every vector is compared, as it was encoded."""
        return self.type is IndexType.FLAT and not self.factory


@dataclass(frozen=True)
class Bm25Settings(Settings):
    """Analysis and weights of terms in a BM25 index."""

    fields: tuple[str, ...] | None = option(None, shown_default="title,text")
    """Fields of a passage that are indexed."""
    k1: float = option(0.9, at_least=0)
    """Saturation of term frequency."""
    b: float = option(0.4, at_least=0, at_most=1)
    """Weight of a passage's length."""
    stemmer: str = option("porter", metavar="porter|english|...|none", rare=True)
    """A Snowball stemmer by name, or none; with --engine lucene porter, krovetz or none."""
    stopwords: StopWords = option(StopWords.LUCENE, rare=True)
    """Stop words."""

    def __post_init__(self) -> None:
        """Reject a passage without fields."""
        super().__post_init__()
        if self.fields == ():
            raise UsageError("--fields names no field", "for example --fields title,text")


@dataclass(frozen=True, kw_only=True)
class RunOutput:
    """Where a run is written."""

    output: str = option(REQUIRED, "--save-ranking-to", metavar="FILE|-")
    """The run."""


@dataclass(frozen=True, kw_only=True)
class SearchPaths(RunOutput):
    """What is searched, with which queries, and where the run goes."""

    index: tuple[str, ...] = option(
        (), metavar="DIR|GLOB", repeat=True, shown_default="none: needed but for --engine milvus"
    )
    """An index folder, or a folder of vectors, searched exactly; several, also as a pattern in
    quotes, are searched as one; repeatable."""
    engine: Engine | None = option(None, metavar="milvus", shown_default="that of --index")
    """milvus: search the --collection of --uri in place of --index."""
    topics: str | None = option(None, "--queries", metavar="FILE|DIR|NAME|-")
    """Queries: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    topics_format: TopicsFormat | None = option(None, shown_default="detected")
    """Shape of the queries."""
    qrels: str | None = option(None, metavar="FILE|DIR|NAME")
    """Keep only the queries of --topics with judgments in these qrels: one split of BEIR."""
    model: str | None = option(
        None,
        "--encoder",
        "--model-name-or-path",
        metavar="NAME|DIR|HUB_ID",
        shown_default="the one that made the index",
    )
    """Weights that encode the queries."""
    encoded_queries: str | None = option(None, "--query-reps", metavar="DIR|FILE")
    """Vectors of the queries, in place of --model; with --topics, in the order of that file."""
    allow_pickle: bool = False
    """Also read --encoded-queries from pickles; a pickle can run any code, so only your own."""
    force: bool = False
    """Search although model and index were made with different settings."""
    verify: bool = False
    """Read --index and --encoded-queries once more beforehand, and compare every file with its
    checksum."""

    def __post_init__(self) -> None:
        """Refuses a search without queries, and two sources of vectors or queries."""
        if self.engine not in (None, Engine.MILVUS):
            raise UsageError(f"--engine {self.engine}: an index folder names its own engine")
        if self.engine and self.index:
            raise UsageError("--engine milvus searches a collection, and --index a folder")
        if not self.index and not self.engine:
            raise UsageError("no index: give --index")
        if self.topics is None and self.encoded_queries is None:
            raise UsageError("no queries: give --topics, or --encoded-queries")
        if self.qrels is not None and self.topics is None:
            raise UsageError(
                f"--qrels {self.qrels}: it selects the queries of --topics that are searched",
                "add --topics",
            )
        if self.model is not None and self.encoded_queries is not None:
            raise UsageError("--model and --encoded-queries exclude each other", "give one of them")


@dataclass(frozen=True, kw_only=True)
class RerankPaths(RunOutput):
    """Inputs of a reranking, and where the new run goes."""

    model: str = option(REQUIRED, "--reranker", "--model-name-or-path", metavar="NAME|DIR|HUB_ID")
    """The cross-encoder."""
    run: str = option(REQUIRED, metavar="FILE|-")
    """The run whose hits are scored."""
    topics: str = option(REQUIRED, "--queries", metavar="FILE|DIR|NAME|-")
    """Queries: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    topics_format: TopicsFormat | None = option(None, shown_default="detected")
    """Format of the queries."""
    corpus: str = option(REQUIRED, metavar="FILE|DIR|NAME|-")
    """Passages: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""

    def __post_init__(self) -> None:
        """Reject standard input for more than one file."""
        if [self.topics, self.run, self.corpus].count("-") > 1:
            raise UsageError("standard input (-) can be only one of --topics, --run and --corpus")


@dataclass(frozen=True)
class RankingSettings(Settings):
    """Which hits a run holds, and how it is written."""

    hits: int = option(1000, "-k", at_least=1)
    """Passages returned for a query."""
    remove_query: bool = False
    """Drop the hit whose id is the query's own (ArguAna, Quora)."""
    max_passage: bool = False
    """Passage ids are "document<delimiter>part": keep each document's best part."""
    max_passage_delimiter: str = option("#", rare=True)
    """What stands between document and part."""
    max_passage_hits: int | None = option(None, shown_default="--hits", rare=True, at_least=1)
    """Documents kept for a query under --max-passage."""
    ties: Ties = option(Ties.BREAK, rare=True)
    """What becomes of equal scores."""
    tag: str = option("denserk", "--runtag", "--run-tag")
    """Last column of the run."""
    output_format: RunFormat = RunFormat.TREC
    """Shape of the run."""

    def __post_init__(self) -> None:
        """Reject a tag that would break a line."""
        super().__post_init__()
        if not self.tag or any(character.isspace() for character in self.tag):
            raise UsageError(f"--tag {self.tag!r}: a run's last column holds no white space")
        if not self.max_passage_delimiter:
            raise UsageError("--set max-passage-delimiter= is empty", "for example #")

    @property
    def kept(self) -> int:
        """How many hits of a query reach the run."""
        return (self.max_passage_hits if self.max_passage else None) or self.hits


@dataclass(frozen=True)
class RerankSettings(RankingSettings):
    """Which hits are scored, and what comes out."""

    depth: int | None = option(None, "--rerank-depth", shown_default="all", at_least=1)
    """How many hits of each query are scored, the best first; the others are left out."""
    pair_max_length: int | None = option(
        None, "--rerank-max-len", shown_default="the cross-encoder's own", at_least=1
    )
    """Tokens of a query and its passage in one input; the passage is cut to fit."""


@dataclass(frozen=True)
class SearchSettings(RankingSettings):
    """How an index is searched and what comes out."""

    hits: int = option(1000, "--depth", "-k", at_least=1)
    """Passages returned for a query."""
    ef_search: int | None = option(None, shown_default="the larger of 64 and --hits", at_least=1)
    """hnsw: breadth of the search."""
    nprobe: int | None = option(
        None, shown_default="a sixteenth of the lists, at least 1", at_least=1
    )
    """ivf: lists visited for a query."""
    k_factor: float | None = option(None, shown_default="4", rare=True, at_least=1)
    """--factory with RFlat or Refine(...): so many candidates for each hit are scored again."""
    query_batch: int = option(1024, rare=True, at_least=1)
    """Queries searched together; an exact search reads all vectors once for each batch."""
    index_device: str | None = option(
        None, "--faiss-device", metavar="cpu|cuda|cuda:N", shown_default="as --device", rare=True
    )
    """Where the index is searched."""

    @property
    def index_options(self) -> Mapping[str, float]:
        """The options that were given for an approximate index, by name."""
        given = {
            "--ef-search": self.ef_search,
            "--nprobe": self.nprobe,
            "--set k-factor": self.k_factor,
        }
        return {name: value for name, value in given.items() if value is not None}
