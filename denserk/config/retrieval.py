"""Options of indexing, search, reranking, fusion and Milvus collections."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from denserk.config.formats import RunFormat, TopicsFormat, TopicsSettings
from denserk.config.languages import AUTO, find_language
from denserk.config.options import REQUIRED, Settings, option, reject_given, setting
from denserk.config.shared import OverwriteSettings, ResumeSettings, TagSettings
from denserk.errors import UsageError

# Index types (docs/commands/indexing.md).
IndexType = StrEnum("IndexType", "FLAT HNSW IVF PQ HNSWPQ SQ8 SQFP16 BM25")
# Search library.
Engine = StrEnum("Engine", "FAISS TORCH BM25S LUCENE MILVUS")
# Engines of --type bm25.
BM25_ENGINES = (Engine.BM25S, Engine.LUCENE)
# Similarity: inner product, or negated squared Euclidean distance; higher is closer.
Metric = StrEnum("Metric", "INNER L2")
StopWords = StrEnum("StopWords", "LUCENE NONE")
Ties = StrEnum("Ties", "BREAK KEEP")
IrMetadata = StrEnum("IrMetadata", "FILE COMMENTS NONE")


class IndexPaths(ResumeSettings, kw_only=True):
    """Input and output."""

    input: tuple[str, ...] = option(
        (), "--embeddings", metavar="DIR|FILE|GLOB|-", repeat=True, either="corpus"
    )
    """Vectors: folders, files, patterns, - for JSON lines; or indexes to merge; repeatable."""
    corpus: str | None = option(None, metavar="FILE|DIR|NAME|-")
    """Passages for --type bm25: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    output: str = option("", metavar="DIR")
    """Index folder to write. [default: required, except with --engine milvus]"""
    trained_as: str | None = option(None, metavar="DIR", needs="input")
    """Index folder whose training (rotation, centroids) is reused. [default: train on --input]"""
    allow_pickle: bool = False
    """Also read vectors from pickle files, which can run code; only for trusted files."""
    verify: bool = option(False, needs="input")
    """Verify the checksums of the input folders first."""


class IndexSettings(Settings):
    """Index."""

    type: IndexType = IndexType.FLAT
    """Index type."""
    factory: str | None = option(None, excludes="type")
    """faiss factory string instead of --type, e.g. "IVF4096,PQ64"."""
    engine: Engine | None = None
    """Search library. [default: faiss, or torch without faiss; bm25s for --type bm25]"""
    target_recall: float | None = option(None, below=1, needs="encoded_queries", excludes="type")
    """Choose the type, and its search parameters, that reach this recall@10."""
    max_bytes: float | None = option(None, above=0, needs="target_recall", metavar="N")
    """Choose the fastest type of at most N bytes, e.g. 4e9. [default: the smallest type]"""
    encoded_queries: str | None = option(None, metavar="DIR|FILE", needs="target_recall")
    """Query vectors to measure the recall with, up to 2,000."""
    metric: Metric | None = None
    """Similarity: inner product or Euclidean distance. [default: that of the vectors' model]"""
    M: int = setting(256, at_least=1)
    """hnsw: links per vector."""
    efC: int = setting(256, at_least=1)
    """hnsw: search breadth during construction."""
    pq_m: int = setting(192, at_least=1)
    """pq: number of sub-quantisers; must divide the dimension."""
    pq_nbits: int = setting(8, at_least=1)
    """pq: bits per sub-quantiser."""
    nlist: int | None = option(None, at_least=1)
    """ivf: number of lists. [default: 4 x sqrt(number of vectors)]"""
    train_size: int = setting(262_144, at_least=1)
    """Maximum number of vectors to train lists and quantisers on, sampled with --seed."""
    seed: int = 42
    """Seed of the training sample."""
    threads: int | None = option(None, at_least=1)
    """Number of CPU threads. [default: the library's choice]"""
    device: str = option("cpu", metavar="cpu|cuda|cuda:N")
    """Device for training lists and quantisers."""

    def _check(self) -> None:
        is_bm25 = self.type is IndexType.BM25
        is_bm25_engine = self.engine in BM25_ENGINES
        if self.engine is not None and is_bm25 != is_bm25_engine:
            message = f"--engine {self.engine} does not support --type {self.type}"
            hint = (
                "--type bm25 has the engines bm25s and lucene, the other types faiss, torch (flat) "
                "and milvus"
            )
            raise UsageError(message, hint)
        is_type_flat = self.type is IndexType.FLAT and not self.factory
        if self.engine is Engine.TORCH and not is_type_flat:
            raise UsageError("--engine torch supports --type flat only", "use --engine faiss")
        if self.target_recall is not None and self.engine not in (None, Engine.FAISS):
            raise UsageError(f"--engine {self.engine} does not support --target-recall")
        if self.engine is Engine.MILVUS and self.metric is Metric.L2:
            raise UsageError(f"--engine milvus supports --metric inner only, not {self.metric}")

    @property
    def similarity(self) -> Metric:
        """The metric that is given, or inner product."""
        return self.metric or Metric.INNER

    @property
    def is_flat(self) -> bool:
        """Whether the search is exact over full vectors."""
        return self.type is IndexType.FLAT and not self.factory and self.target_recall is None


class Bm25Settings(Settings):
    """BM25: for --type bm25."""

    fields: tuple[str, ...] | None = option(None, nonempty=True)
    """Passage fields to index. [default: title,text]"""
    k1: float = option(0.9, at_least=0)
    """bm25: saturation of the term frequency."""
    b: float = option(0.4, at_least=0, at_most=1)
    """bm25: strength of the length normalisation."""
    language: str | None = option(
        None, metavar="NAME|auto", excludes="stemmer", completes="languages"
    )
    """bm25: language of the corpus (german, de, thai, ...), multilingual, or auto: by its letters.
    [default: english]"""
    stemmer: str = setting("porter", metavar="porter|english|...|none")
    """Snowball stemmer, or none; with --engine lucene: porter, krovetz or none."""
    stopwords: StopWords = setting(StopWords.LUCENE)
    """Stop words: Lucene's 33 English ones, or those of --language, or none."""

    def _check(self) -> None:
        if self.language is not None and self.language != AUTO:
            find_language(self.language)


class RunOutput(OverwriteSettings, kw_only=True):
    """Output."""

    output: str = option(REQUIRED, "--save-ranking-to", metavar="FILE|-")
    """Run file to write."""


class SearchPaths(TopicsSettings, RunOutput, kw_only=True):
    """Input and output."""

    index: tuple[str, ...] = option((), metavar="DIR|GLOB", repeat=True, excludes="engine")
    """Index folder, or folder of vectors for exact search; repeatable, or a quoted pattern."""
    engine: Engine | None = option(None, metavar="milvus")
    """milvus: search --collection at --uri instead of --index. [default: that of --index]"""
    model: str | None = option(
        None,
        "--encoder",
        "--model-name-or-path",
        metavar="NAME|DIR|HUB_ID",
        completes="models",
    )
    """Model that encodes the queries, also openai:NAME. [default: the model of the index]"""
    encoded_queries: str | None = option(None, "--query-reps", metavar="DIR|FILE", excludes="model")
    """Query vectors instead of --model; with --topics, in the order of that file."""
    query: tuple[str, ...] = option(
        (), metavar="TEXT", repeat=True, excludes="topics encoded_queries"
    )
    """Print the hits of this query with their passages, or write them to --output; repeatable."""
    interactive: bool = option(False, excludes="query topics encoded_queries output")
    """Print the hits of queries that are typed, or read from standard input, a line each."""
    exclude: str | None = option(None, metavar="FILE")
    """Passages that a query must not return, lines of query id and passage id: they are removed
    before hits are ranked and cut."""
    corpus: str | None = option(None, metavar="FILE|DIR|NAME", needs="query interactive")
    """Passages to print, for --query and --interactive. [default: what the index was made from]"""
    output: str = option("", "--save-ranking-to", metavar="FILE|-")
    """Run file to write. [default: required, except with --query or --interactive]"""
    allow_pickle: bool = False
    """Also read --encoded-queries from pickle files, which can run code; only for trusted files."""
    force: bool = False
    """Search even if model and index were encoded with different settings, or if the model is not
    the one that was saved."""
    verify: bool = False
    """Verify the checksums of --index and --encoded-queries first."""

    def _check(self) -> None:
        if not self.index and self.engine is None:
            hint = "denserk index --type bm25 --corpus FILE --output DIR makes an index of a corpus"
            raise UsageError("give --index or --engine", hint)
        if self.engine not in (None, Engine.MILVUS):
            raise UsageError(f"--engine {self.engine}: an index folder records its own engine")
        has_typed_queries = bool(self.query) or self.interactive
        if not has_typed_queries and not self.topics and not self.encoded_queries:
            raise UsageError("no queries: give --topics, --query or --encoded-queries")
        if not has_typed_queries and not self.output:
            raise UsageError(
                "--output must be given",
                "add --output run.trec, or --output - for standard output",
            )


class RerankPaths(RunOutput, kw_only=True):
    """Input and output."""

    model: str = option(REQUIRED, "--reranker", "--model-name-or-path", metavar="NAME|DIR|HUB_ID")
    """Cross-encoder: a folder or a Hugging Face name."""
    run: str = option(REQUIRED, metavar="FILE|-")
    """Run to rerank."""
    topics: str = option(REQUIRED, "--queries", metavar="FILE|DIR|NAME|-")
    """Queries: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    topics_format: TopicsFormat | None = None
    """Format of --topics. [default: detected]"""
    topics_field: tuple[str, ...] | None = setting(None, nonempty=True)
    """Fields of --topics that make the query, e.g. title,description. [default: title]"""
    corpus: str = option(REQUIRED, metavar="FILE|DIR|NAME|-")
    """Passages: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""


# Endings of a run's name that say its format; another name has TREC's.
SUFFIXES_OF_RUNS = {
    "_predictions.json": RunFormat.MTEB,
    ".jsonl": RunFormat.JSONL,
    ".json": RunFormat.JSON,
}


class RankingSettings(TagSettings):
    """Output: content and format of a run."""

    hits: int = option(1000, "-k", at_least=1)
    """Passages returned per query."""
    remove_query: bool = False
    """Drop hits whose id is the query's own (ArguAna, Quora)."""
    max_passage: bool = False
    """Rank documents by their best passage; passage ids are "document<delimiter>part"."""
    max_passage_delimiter: str = setting("#", nonempty=True)
    """Delimiter between document and part."""
    max_passage_hits: int | None = setting(None, at_least=1)
    """Documents returned per query under --max-passage. [default: --hits]"""
    ties: Ties | None = setting(None)
    """Tied scores: lower to the next float32, so that all tools read one order, or keep.
    [default: break; keep for an index of Lucene, as Pyserini writes them]"""
    output_format: RunFormat | None = None
    """Format of the run; jsonl also of hits that are printed, with their passages. [default: jsonl
    or json if the name of --output ends so, else trec]"""
    ir_metadata: IrMetadata = setting(IrMetadata.FILE)
    """Provenance by ir-metadata.org: a file beside the run, comments in it, or none."""

    def _check(self) -> None:
        if self.output_format is not None:
            self._check_comments(self.output_format)

    def _check_comments(self, run_format: RunFormat) -> None:
        """Raise a UsageError if ir_metadata is asked for in comments of a format without them."""
        if self.ir_metadata is IrMetadata.COMMENTS and run_format is not RunFormat.TREC:
            raise UsageError("--set ir-metadata=comments: only a TREC run has comments")

    def format_of_run(self, path: str) -> RunFormat:
        """Return the format of the run that is written to a path."""
        run_format = self.output_format or _format_of_name(path)
        self._check_comments(run_format)
        return run_format

    @property
    def kept(self) -> int:
        """The number of hits per query in the run."""
        if self.max_passage and self.max_passage_hits is not None:
            return self.max_passage_hits
        return self.hits


def _format_of_name(path: str) -> RunFormat:
    """Return the format that the name of a run says.

    >>> _format_of_name("runs/dense.jsonl.gz").value
    'jsonl'
    >>> _format_of_name("run.txt").value
    'trec'
    """
    name = path.lower().removesuffix(".gz")
    for suffix, run_format in SUFFIXES_OF_RUNS.items():
        if name.endswith(suffix):
            return run_format
    return RunFormat.TREC


class RerankSettings(RankingSettings):
    """Reranking."""

    depth: int | None = option(None, "--rerank-depth", at_least=1)
    """Hits per query to rerank, the best first; the rest is dropped. [default: all]"""
    pair_max_length: int | None = option(None, "--rerank-max-len", at_least=1)
    """Maximum tokens of query and passage together. [default: the model's own]"""


# Pseudo-relevance feedback: from a query and its best passages to the query of a second search.
Prf = StrEnum("Prf", "AVERAGE ROCCHIO")


class SearchSettings(RankingSettings):
    """Search."""

    hits: int = option(1000, "--depth", "-k", at_least=1)
    """Passages returned per query. [default: 1000; 10 where they are printed]"""
    ef_search: int | None = option(None, at_least=1)
    """hnsw: search breadth. [default: tuned, or the larger of 64 and --hits]"""
    nprobe: int | None = option(None, at_least=1)
    """ivf: number of lists to search. [default: tuned, or 1/16 of the lists]"""
    k_factor: float | None = setting(None, at_least=1)
    """--factory with RFlat or Refine(...): rescored candidates per hit. [default: tuned, or 4]"""
    exclude_listed: bool = setting(True)
    """Also remove the passages that topics list as `excluded_ids` (BRIGHT)."""
    query_batch: int = setting(1024, at_least=1)
    """Queries per search batch; an exact search reads all vectors once per batch."""
    index_device: str | None = setting(None, metavar="cpu|cuda|cuda:N")
    """Device of the search. [default: as --device]"""
    prf: Prf | None = option(None, "--prf-method")
    """Pseudo-relevance feedback: search again with each query moved towards its best passages."""
    prf_depth: int = option(3, at_least=1, needs="prf")
    """prf: passages of the first search that are used."""
    prf_alpha: float = setting(0.9)
    """rocchio: weight of the query."""
    prf_beta: float = setting(0.1)
    """rocchio: weight of the mean of the best passages."""
    prf_gamma: float = setting(0.1)
    """rocchio: weight of the mean of the negatives, which is subtracted."""
    prf_negatives: int = setting(0, at_least=0)
    """rocchio: the last N of --prf-depth passages are negatives."""

    def _check(self) -> None:
        if self.prf is not Prf.ROCCHIO:
            of_rocchio = "prf_alpha prf_beta prf_gamma prf_negatives"
            reject_given(self, why="only for --prf rocchio", among=of_rocchio)
        if self.prf_negatives >= self.prf_depth:
            raise UsageError(
                f"--set prf-negatives={self.prf_negatives} is not below "
                f"--prf-depth {self.prf_depth}"
            )

    @property
    def index_options(self) -> Mapping[str, float]:
        """Return the given options of approximate indexes, by name."""
        values = {
            "--ef-search": self.ef_search,
            "--nprobe": self.nprobe,
            "--set k-factor": self.k_factor,
        }
        return {name: value for name, value in values.items() if value is not None}


class FusionPaths(RunOutput, kw_only=True):
    """Output."""

    output: str = option("", "--save-ranking-to", metavar="FILE|-")
    """Run file to write. [default: required, except with --tune]"""


# Sum of weight / (rrf-k + rank), reciprocal rank fusion; or sum of weight x normalised score.
FusionMethod = StrEnum("FusionMethod", "RRF LINEAR")


class Normalization(StrEnum):
    """Score normalisations, applied per query and run."""

    MIN_MAX = "min-max"  # Scale scores to 0..1; equal scores become 1
    ZMUV = "zmuv"  # Zero mean and unit variance; equal scores become 0
    NONE = "none"  # No normalisation


# Score of a passage that a run did not return: 0, as in Pyserini, ranx and trectools, or the
# normalised score of the run's last hit (0 under min-max).
Missing = StrEnum("Missing", "ZERO LOWEST")


class FusionSettings(Settings):
    """Fusion."""

    method: FusionMethod | None = option(None, "--fusion")
    """Fusion method. [default: rrf; linear with --tune]"""
    rrf_k: int = option(60, "--rrf.k", at_least=0)
    """rrf: constant added to each rank; larger values flatten the differences between ranks."""
    weights: tuple[float, ...] | None = option(None, at_least=0)
    """Weights of the runs, in the order given. [default: 1 for each run]"""
    alpha: float | None = option(None, excludes="weights", at_least=0, at_most=1)
    """Weight of the first of two runs, from 0 to 1; the second gets the rest."""
    normalization: Normalization = option(Normalization.MIN_MAX, "--norm")
    """linear: score normalisation, per query and run."""
    missing: Missing | None = None
    """linear: score of a passage that a run did not return. [default: zero; lowest with zmuv]"""
    depth: int | None = option(None, "--fuse-depth", at_least=1)
    """Hits per query used from each run. [default: all]"""
    tune: str | None = option(None, metavar="QRELS", excludes="weights alpha")
    """Choose the weights by these qrels: of training or validation queries, as the runs."""
    measure: str = option("nDCG@10", "-m", needs="tune", completes="measures")
    """Measure that --tune maximises."""

    @property
    def chosen(self) -> FusionMethod:
        """Return the method: as given, or the default."""
        if self.method is not None:
            return self.method
        return FusionMethod.LINEAR if self.tune else FusionMethod.RRF

    def _check(self) -> None:
        if self.weights is not None and not any(self.weights):
            raise UsageError("--weights: one must be above 0")
        if self.chosen is not FusionMethod.RRF:
            return
        hint = "add --method linear"
        if self.normalization is not Normalization.MIN_MAX:
            raise UsageError("--normalization is for scores; rrf uses ranks alone", hint)
        if self.missing is not None:
            raise UsageError("--missing is for scores; rrf uses ranks alone", hint)

    def weights_of(self, count: int) -> tuple[float, ...]:
        """Return the weight of each of `count` runs; other numbers of weights are a UsageError."""
        if self.alpha is not None:
            weights: tuple[float, ...] = (self.alpha, 1 - self.alpha)
        else:
            weights = self.weights or (1.0,) * count
        if len(weights) != count:
            raise UsageError(f"{len(weights)} weights for {count} runs", "give --weights")
        return weights


# environment variable with an API key, or "user:password"; its value is never logged or stored
TOKEN = "DENSERK_MILVUS_TOKEN"


class CollectionSettings(Settings):
    """Milvus: for --engine milvus."""

    uri: str | None = option(None, "--milvus-uri", metavar="FILE.db|http://HOST:PORT")
    """Local file ending in .db, or server address; credentials come from DENSERK_MILVUS_TOKEN."""
    collection: str | None = option(None, metavar="NAME")
    """Collection name."""
    milvus_params: tuple[str, ...] | None = setting(None)
    """Index or search parameters by Milvus's names, such as M=32,efConstruction=200."""

    def _check(self) -> None:
        if self.uri is not None:
            self._check_address(self.uri)
        name = self.collection
        if name and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", name):
            raise UsageError(f"--collection {name}: at most 255 letters, digits and _")
        _ = self.parameters  # raises an error for what is not NAME=VALUE

    def _check_address(self, uri: str) -> None:
        """Raise a UsageError unless an address is a local file or a server, without credentials."""
        address = urlsplit(uri)
        if "@" in uri or address.query or address.fragment:
            raise UsageError(
                "--uri contains credentials, which would be written to logs and manifests",
                f"give the address only, and set {TOKEN} in the environment",
            )
        schemes = ("",) if self.is_embedded else ("http", "https", "tcp", "unix")
        if address.scheme not in schemes:
            raise UsageError(
                f"--uri {uri}: neither a file ending in .db nor the address of a server",
                "for example ./passages.db or http://localhost:19530",
            )

    @property
    def is_embedded(self) -> bool:
        """Whether the collection is in a local file."""
        return (self.uri or ".db").endswith(".db")

    @property
    def place(self) -> str:
        """Return the collection's name and address, for messages."""
        return f"collection {self.collection} of {self.uri}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Return --set milvus-params by name: values that are JSON (32, true), else strings."""
        parameters: dict[str, Any] = {}
        for assignment in self.milvus_params or ():
            name, _, text = assignment.partition("=")
            if not name or not text:
                message = f"--set milvus-params={assignment}: not NAME=VALUE"
                raise UsageError(message, "for example M=32")
            parameters[name] = text
            with suppress(ValueError):
                parameters[name] = json.loads(text)
        return parameters


class MilvusIndexSettings(CollectionSettings):
    """Milvus: for --engine milvus."""

    milvus_index: str = setting("FLAT", metavar="FLAT|HNSW|IVF_FLAT|...")
    """Index type by Milvus's name."""
    milvus_batch: int | None = setting(None, at_least=1)
    """Passages per insert request. [default: 8 MiB]"""
