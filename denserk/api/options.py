"""The options of the functions of `denserk`, as types that editors and mypy read.

A test holds them to the settings classes, from which the command line is made as well: names,
types, help texts and defaults.
"""

from collections.abc import Sequence
from os import PathLike
from typing import Literal, TypeAlias, TypedDict

PathName: TypeAlias = str | PathLike[str]
# The values of options that several functions take.
Engine: TypeAlias = Literal["faiss", "torch", "bm25s", "lucene", "milvus"]
TopicsFormat: TypeAlias = Literal[
    "tsv",
    "anserini",
    "beir",
    "tevatron",
    "dpr",
    "qa",
    "entity-questions",
    "json",
    "trec",
    "colon",
    "clicks",
]
TrainingFormat: TypeAlias = Literal[
    "tevatron",
    "tevatron-ids",
    "dpr",
    "st-triplet",
    "flag",
    "st-ids",
    "triples",
    "text-triples",
    "negatives",
    "llama-index",
    "clicks",
]


class OverwriteOptions(TypedDict, total=False):
    """Whether an output is replaced."""

    overwrite: bool
    """Replace an existing output. [default: False]"""


class ResumeOptions(OverwriteOptions, total=False):
    """Whether an interrupted run is continued."""

    resume: bool
    """Resume an interrupted run; finished work is checked against the input and kept. [default:
    False]"""


class ShardOptions(TypedDict, total=False):
    """The part of the input that is processed."""

    shard_id: int
    """Shard to process, from 0. [default: 0]"""
    shard_num: int
    """Number of shards; their outputs concatenated equal the unsharded output. [default: 1]"""


class CorpusOptions(TypedDict, total=False):
    """How a corpus is read."""

    corpus_format: (
        Literal[
            "anserini",
            "beir",
            "tevatron",
            "marco",
            "marco-titles",
            "dpr",
            "flag",
            "json",
            "csv",
            "trec",
            "text",
        ]
        | None
    )
    """Corpus format. [default: detected]"""
    id_field: str | None
    """JSON key or column of the passage id; "" makes ids from the texts. [default: that of the
    format]"""
    text_field: str | None
    """JSON key or column of the text. [default: that of the format]"""
    title_field: str | None
    """JSON key or column of the title. [default: that of the format]"""
    docid_field: str | None
    """Synonym of id_field, from earlier versions. [default: None]"""
    delimiter: str
    r"""Separator of the fields inside `contents`, for fields that are not JSON keys. [default:
    '\\n']"""


class DeviceOptions(TypedDict, total=False):
    """Where a model runs."""

    device: str
    """Device; auto uses a GPU if there is one. For several GPUs use torchrun. [default: 'auto']"""


class PrecisionOptions(TypedDict, total=False):
    """Short names of precisions."""

    fp16: bool
    """Short for dtype float16. [default: False]"""
    bf16: bool
    """Short for dtype bfloat16. [default: False]"""


class ComputeOptions(DeviceOptions, PrecisionOptions, total=False):
    """How a model computes."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"]
    """Precision of the computation; auto is bfloat16 on a GPU that has it, for embeddings also on a
    CPU that has it, and float32 elsewhere. Search follows the index. float16 needs a GPU. [default:
    'auto']"""
    batch_tokens: int | None
    """Tokens per batch, padding included. [default: GPU: 32768, in float32 8192, as measured on an
    NVIDIA H100; CPU: 2048, to generate 8192]"""
    batch_size: int | None
    """Maximum number of texts per batch. [default: by batch_tokens]"""
    backend: Literal["auto", "torch", "openvino"]
    """Library that computes; auto takes OpenVINO on a CPU where it is installed. Search follows
    the index. [default: 'auto']"""
    threads: int | None
    """Number of CPU threads. [default: the library's choice]"""
    head_dtype: Literal["float32", "bfloat16", "float16"] | None
    """agg on a CPU: precision of the projection to the vocabulary. [default: that of dtype]"""


class RepresentationOptions(TypedDict, total=False):
    """How token states become vectors."""

    representation: Literal[
        "cls", "mean", "max", "last", "agg", "mlr", "me-bert", "colbert", "cross-encoder"
    ]
    """Pooling of the token states. [default: the model's own]"""
    l2_norm: bool
    """L2-normalise each vector. [default: the model's own]"""
    truncate_dim: int | None
    """Keep the first N dimensions of each vector, normalised again under l2_norm: for models
    trained with finetune dimensions (Matryoshka). [default: the model's own]"""
    projection: int
    """Dimensions to which a linear layer projects each vector; 0 is none. [default: the model's
    own]"""
    agg_kind: Literal["star", "plus", "none", "linear", "average"]
    """agg: signed maximum per slice (star), maximum (plus), or other reductions of Table 8.
    [default: the model's own]"""
    agg_dim: int
    """agg: dimensions of the lexical part; 0 leaves it out. [default: the model's own]"""
    cls_dim: int
    """agg: dimensions of the projected [CLS] part; 0 leaves it out. [default: the model's own]"""
    agg_layout: Literal["strided", "paired", "random"]
    """agg: slices by round robin, shared with agg* (paired), or random. [default: the model's
    own]"""
    agg_seed: int
    """agg: seed of the random slices. [default: the model's own]"""
    term_weight: Literal["clamp", "signed", "abs", "one"]
    """agg: token weights with negative ones set to 0, as they are, absolute, or all 1.
    [default: the model's own]"""
    mlm_head: Literal["pretrained", "fresh", "none"]
    """agg: pre-trained or randomly initialised MLM head, or none (Table 8). [default: the
    model's own]"""
    agg_order: Literal["cls-agg", "agg-cls"]
    """agg: order of the [CLS] and the lexical part. [default: the model's own]"""
    reduction: Literal["self-contrastive", "average", "scalar-mix", "multi-vector"]
    """mlr, me-bert, colbert: reduction of a passage's vectors. [default: the model's own]"""
    layers: str | Sequence[int]
    """mlr: layers whose [CLS] states are used; 0 is the embeddings, the last layer is required.
    [default: the last two]"""
    vectors: int
    """me-bert: number of vectors per passage. [default: the model's own]"""
    norm_intermediate: bool
    """mlr on T5: also apply the final layer norm to the intermediate layers. [default: the
    model's own]"""


class TextOptions(TypedDict, total=False):
    """How texts become tokens."""

    fields: str | Sequence[str]
    """Passage fields that are concatenated, in order; empty fields are skipped. [default: the
    model's own]"""
    join: str
    """Separator between fields: a text; sep, the tokenizer's separator; pair, a sentence pair.
    [default: the model's own]"""
    query_max_length: int
    """Maximum tokens of a query, special tokens included. [default: the model's own]"""
    passage_max_length: int
    """Maximum tokens of a passage, special tokens included. [default: the model's own]"""
    query_prefix: str
    """Text in front of each query. [default: the model's own]"""
    passage_prefix: str
    """Text in front of each passage. [default: the model's own]"""
    normalize_quotes: bool
    """Replace the right single quote (U+2019) in queries by an apostrophe, as DPR does.
    [default: the model's own]"""


class ServerOptions(TypedDict, total=False):
    """The server of a model openai:NAME."""

    base_url: str | None
    """openai:NAME: URL of the server, e.g. http://localhost:8000/v1. [default: the one that the
    index, or the folder of resume or update, records]"""
    api_key_variable: str
    """openai:NAME: environment variable that holds the server's key, if the server needs one.
    [default: 'OPENAI_API_KEY']"""
    requests_at_once: int
    """openai:NAME: requests that are sent at a time, each of batch_size texts (default 32).
    [default: 4]"""
    request_timeout: float
    """openai:NAME: seconds to wait for an answer. [default: 60.0]"""
    request_retries: int
    """openai:NAME: further attempts after no answer, status 429 or a status from 500 on.
    [default: 8]"""


class EncoderOptions(
    RepresentationOptions, TextOptions, ComputeOptions, ServerOptions, total=False
):
    """Options of `Encoder.load`."""


class NoOptions(TypedDict):
    """The options of a function that has none."""


class EncodeToOptions(ShardOptions, ResumeOptions, CorpusOptions, total=False):
    """Options of `Encoder.encode_to`."""

    topics_format: TopicsFormat | None
    """Format of topics. [default: detected]"""
    topics_field: str | Sequence[str] | None
    """Fields of topics that make the query, e.g. title,description. [default: title]"""
    qrels: PathName | None
    """Keep only queries with judgments in these qrels, e.g. one split of BEIR. [default: None]"""
    output_format: Literal[
        "npy",
        "jsonl",
        "anserini-jsonl",
        "pyserini-faiss",
        "parquet",
        "tevatron",
        "pyserini-queries",
    ]
    """Format of the vectors. [default: 'npy']"""
    update: PathName | None
    """Earlier vectors of the same model: texts that they hold are copied instead of encoded.
    [default: None]"""
    vector_dtype: Literal["float32", "float16"]
    """Precision of the stored vectors. [default: 'float32']"""
    block_size: int | None
    """Passages per block; resume keeps the block size of the folder. [default: 512; GPU: 4096]"""
    int8: bool
    """Quantise the model to int8 on the first passages (CPU, OpenVINO); rejected where its
    vectors are too far from float32. [default: False]"""
    workers: int | None
    """Tokenisation threads. [default: 1; GPU: all cores but one, at most 8]"""


class EncodeOptions(EncodeToOptions, EncoderOptions, total=False):
    """Options of `encode`."""


class IndexOptions(ResumeOptions, total=False):
    """Options of `Index.build`."""

    trained_as: PathName | None
    """Index folder whose training (rotation, centroids) is reused. [default: train on input]"""
    allow_pickle: bool
    """Also read vectors from pickle files, which can run code; only for trusted files.
    [default: False]"""
    verify: bool
    """Verify the checksums of the input folders first. [default: False]"""
    factory: str | None
    """faiss factory string instead of type, e.g. "IVF4096,PQ64". [default: None]"""
    engine: Engine | None
    """Search library. [default: faiss, or torch without faiss; bm25s for type bm25]"""
    target_recall: float | None
    """Choose the type, and its search parameters, that reach this recall@10. [default: None]"""
    max_bytes: float | None
    """Choose the fastest type of at most N bytes, e.g. 4e9. [default: the smallest type]"""
    encoded_queries: PathName | None
    """Query vectors to measure the recall with, up to 2,000. [default: None]"""
    metric: Literal["inner", "l2"] | None
    """Similarity: inner product or Euclidean distance. [default: that of the vectors' model]"""
    M: int
    """hnsw: links per vector. [default: 256]"""
    efC: int
    """hnsw: search breadth during construction. [default: 256]"""
    pq_m: int
    """pq: number of sub-quantisers; must divide the dimension. [default: 192]"""
    pq_nbits: int
    """pq: bits per sub-quantiser. [default: 8]"""
    nlist: int | None
    """ivf: number of lists. [default: 4 x sqrt(number of vectors)]"""
    train_size: int
    """Maximum number of vectors to train lists and quantisers on, sampled with seed. [default:
    262144]"""
    seed: int
    """Seed of the training sample. [default: 42]"""
    threads: int | None
    """Number of CPU threads. [default: the library's choice]"""
    device: str
    """Device for training lists and quantisers. [default: 'cpu']"""


class TermOptions(TypedDict, total=False):
    """Options of BM25."""

    fields: str | Sequence[str] | None
    """Passage fields to index. [default: title,text]"""
    k1: float
    """bm25: saturation of the term frequency. [default: 0.9]"""
    b: float
    """bm25: strength of the length normalisation. [default: 0.4]"""
    language: str | None
    """bm25: language of the corpus (german, de, thai, ...), multilingual, or auto: by its letters.
    [default: english]"""
    stemmer: str
    """Snowball stemmer, or none; with engine lucene: porter, krovetz or none. [default:
    'porter']"""
    stopwords: Literal["lucene", "none"]
    """Stop words: Lucene's 33 English ones, or those of language, or none. [default: 'lucene']"""


class BM25Options(ResumeOptions, CorpusOptions, TermOptions, total=False):
    """Options of `BM25.build`."""

    engine: Engine | None
    """Search library. [default: faiss, or torch without faiss; bm25s for type bm25]"""
    threads: int | None
    """Number of CPU threads. [default: the library's choice]"""


class OpenOptions(DeviceOptions, total=False):
    """Options of `Index.open`."""

    threads: int | None
    """Number of CPU threads. [default: the library's choice]"""


class RankingOptions(TypedDict, total=False):
    """How hits are ranked."""

    remove_query: bool
    """Drop hits whose id is the query's own (ArguAna, Quora). [default: False]"""
    max_passage: bool
    """Rank documents by their best passage; passage ids are "document<delimiter>part".
    [default: False]"""
    max_passage_delimiter: str
    """Delimiter between document and part. [default: '#']"""
    max_passage_hits: int | None
    """Documents returned per query under max_passage. [default: hits]"""
    ties: Literal["break", "keep"] | None
    """Tied scores: lower to the next float32, so that all tools read one order, or keep.
    [default: break; keep for an index of Lucene, as Pyserini writes them]"""


class SearchOptions(RankingOptions, total=False):
    """Options of `Index.search`."""

    ef_search: int | None
    """hnsw: search breadth. [default: tuned, or the larger of 64 and hits]"""
    nprobe: int | None
    """ivf: number of lists to search. [default: tuned, or 1/16 of the lists]"""
    k_factor: float | None
    """factory with RFlat or Refine(...): rescored candidates per hit. [default: tuned, or 4]"""
    exclude_listed: bool
    """Also remove the passages that topics list as `excluded_ids` (BRIGHT). [default: True]"""
    query_batch: int
    """Queries per search batch; an exact search reads all vectors once per batch. [default:
    1024]"""
    prf: Literal["average", "rocchio"] | None
    """Pseudo-relevance feedback: search again with each query moved towards its best passages.
    [default: None]"""
    prf_depth: int
    """prf: passages of the first search that are used. [default: 3]"""
    prf_alpha: float
    """rocchio: weight of the query. [default: 0.9]"""
    prf_beta: float
    """rocchio: weight of the mean of the best passages. [default: 0.1]"""
    prf_gamma: float
    """rocchio: weight of the mean of the negatives, which is subtracted. [default: 0.1]"""
    prf_negatives: int
    """rocchio: the last N of prf_depth passages are negatives. [default: 0]"""


class RerankOptions(RankingOptions, TextOptions, CorpusOptions, ComputeOptions, total=False):
    """Options of `rerank`."""

    topics_format: TopicsFormat | None
    """Format of topics. [default: detected]"""
    topics_field: str | Sequence[str] | None
    """Fields of topics that make the query, e.g. title,description. [default: title]"""
    hits: int
    """Passages returned per query. [default: 1000]"""
    depth: int | None
    """Hits per query to rerank, the best first; the rest is dropped. [default: all]"""
    pair_max_length: int | None
    """Maximum tokens of query and passage together. [default: the model's own]"""


class FuseOptions(RankingOptions, total=False):
    """Options of `fuse`."""

    method: Literal["rrf", "linear"] | None
    """Fusion method. [default: rrf; linear with tune]"""
    rrf_k: int
    """rrf: constant added to each rank; larger values flatten the differences between ranks.
    [default: 60]"""
    weights: str | Sequence[float] | None
    """Weights of the runs, in the order given. [default: 1 for each run]"""
    alpha: float | None
    """Weight of the first of two runs, from 0 to 1; the second gets the rest. [default: None]"""
    normalization: Literal["min-max", "zmuv", "none"]
    """linear: score normalisation, per query and run. [default: 'min-max']"""
    missing: Literal["zero", "lowest"] | None
    """linear: score of a passage that a run did not return. [default: zero; lowest with zmuv]"""
    depth: int | None
    """Hits per query used from each run. [default: all]"""
    measure: str
    """Measure that tune maximises. [default: 'nDCG@10']"""
    hits: int
    """Passages returned per query. [default: 1000]"""


class JudgmentBoundsOptions(TypedDict, total=False):
    """Options of `judgment_bounds`."""

    relevance_level: int
    """Minimum grade of a relevant passage, for measures without their own; nDCG uses grades.
    [default: 1]"""
    complete: bool
    """Count queries missing from a run as 0 instead of leaving them out of the mean. [default:
    True]"""
    order: Literal["score", "rank"]
    """Order hits by score (trec_eval) or by rank (MS MARCO). [default: 'score']"""
    max_hits: int | None
    """Evaluate only the first N hits of each query. [default: all]"""
    remove_query: bool
    """Drop hits whose id is the query's own (ArguAna, Quora). [default: False]"""


class MeasureOptions(JudgmentBoundsOptions, total=False):
    """How runs are measured."""

    min: str | Sequence[str]
    """Raise a GateError if a run is below this value, e.g. nDCG@10=0.30; repeatable. [default:
    []]"""


class EvaluateOptions(MeasureOptions, OverwriteOptions, CorpusOptions, total=False):
    """Options of `evaluate`."""

    test: Literal["t", "randomisation"]
    """Paired significance test. [default: 't']"""
    correction: Literal["holm", "bonferroni", "tukey", "none"]
    """Correction of p-values and confidence intervals for multiple tests; tukey: randomised Tukey
    HSD of all runs, in place of test. [default: 'holm']"""
    alpha: float
    """Significance level; the confidence level of the intervals is 1 - alpha. [default: 0.05]"""
    permutations: int
    """randomisation, tukey: number of permutations. [default: 100000]"""
    test_seed: int
    """randomisation, tukey: random seed. [default: 42]"""
    report: PathName | None
    """Write an HTML report, DIR/index.html: tables, curves, and queries with their hits and the
    relevant passages that were missed; report_ids='QID' chooses queries. [default: None]"""
    report_ids: str | Sequence[str]
    """report: queries to show in detail first, in this order. [default: []]"""
    report_queries: int
    """report: number of queries shown in detail: of those on which every run fails, and of those
    with the largest differences. [default: 20]"""
    report_passages: int
    """report: number of passages shown per query and run, and of missed relevant passages.
    [default: 5]"""
    misses: PathName | None
    """report: table of analyze misses, for the section on causes. [default: misses.csv beside a
    run, if it is of that run]"""
    plot: PathName | None
    """Plot of the runs as .png, .pdf or .svg: a panel per measure with confidence intervals;
    curves over depth for one measure at three or more cut-offs (R@1 R@10 R@100). [default: None]"""
    drawn: PathName | None
    """File that draw wrote: checks that the human-judged queries are the first ones drawn.
    [default: the qrels, if draw wrote them]"""


class ChooseOptions(
    ResumeOptions, CorpusOptions, ComputeOptions, ServerOptions, TermOptions, total=False
):
    """Options of `choose`."""

    topics_format: TopicsFormat | None
    """Format of the topics. [default: detected]"""
    topics_field: str | Sequence[str] | None
    """Fields of the topics that make the query, e.g. title,description. [default: title]"""
    measure: str
    """Measure that decides, with values from 0 to 1. [default: 'nDCG@10']"""
    budget: str | None
    """Time for this call, with all that is built. It ends between blocks of queries, after one at
    least; resume continues. [default: no limit]"""
    train_qrels: PathName | None
    """Judgments of training queries, for finetune:MODEL; their queries must not decide, too.
    [default: None]"""
    train_topics: PathName | None
    """Texts of the training queries. [default: topics]"""
    drop_shared_training: bool
    """Leave training queries that qrels or test_qrels judge, too, out of the training; without
    this they are an error. [default: False]"""
    test_qrels: PathName | None
    """Judgments of sealed test queries: opened once, after the decision, for the systems that may
    be the best; each opening is recorded in sealed.jsonl. [default: None]"""
    test_topics: PathName | None
    """Texts of the test queries. [default: topics]"""
    open_again: bool
    """Open test queries that were opened before; this is recorded, too. [default: False]"""
    alpha: float
    """Probability of naming one system although another is as good; intervals are at 1 - alpha.
    [default: 0.05]"""
    block_size: int
    """Queries of a block; after each one the candidates are compared. [default: 25]"""
    seed: int
    """Seed of the order of the queries, and of the fine-tuning. [default: 42]"""
    hits: int
    """Passages returned per query; a hybrid fuses, and normalises the scores of, so many.
    [default: 1000]"""
    rerank_depth: int
    """Passages per query that a reranker scores, unless %N names another number. [default: 100]"""
    finetune_steps: int
    """finetune: number of training steps, of 32 queries each. [default: 100]"""
    finetune_negatives: int
    """finetune: mined hard negatives per query. [default: 4]"""


class ExplainOptions(TypedDict, total=False):
    """Options of `explain`."""

    relevance_level: int
    """Minimum grade of a relevant passage, for measures without their own; nDCG uses grades.
    [default: 1]"""


class BenchmarkOptions(MeasureOptions, ResumeOptions, EncoderOptions, CorpusOptions, total=False):
    """Options of `benchmark`."""

    against: (
        Literal["aggretriever", "condenser", "master", "mlr", "mteb"]
        | Sequence[Literal["aggretriever", "condenser", "master", "mlr", "mteb"]]
    )
    """Paper, or mteb, whose published figures are shown for comparison; repeatable.
    [default: []]"""
    topk: str | Sequence[int]
    """Top-k accuracy at these depths; 5,20 is measures='Success@5 Success@20'. [default:
    5,20,100]"""
    regex: bool
    """Answers are regular expressions (CuratedTREC). [default: False]"""
    strict_dpr: bool
    """Answers without letters, digits or symbols match every passage, as in DPR's code.
    [default: False]"""
    skip_missing: bool
    """Treat passages missing from the corpus as irrelevant instead of stopping. [default: False]"""
    num_workers: int
    """Number of processes for answer matching. [default: 1]"""
    hits: int
    """Passages returned per query. [default: 1000]"""
    index_device: str | None
    """Device of the search. [default: as device]"""
    discard_vectors: bool
    """Delete the vectors and index of a corpus after its runs are made. [default: False]"""


class AnalyzeMissesOptions(CorpusOptions, ComputeOptions, OverwriteOptions, total=False):
    """Options of `analyze_misses`."""

    index: PathName | Sequence[PathName]
    """Index, or folder of vectors, that the run searched. [default: that of the run]"""
    model: PathName | None
    """Model that encoded the index and the queries. [default: that of the index]"""
    bm25: PathName | None
    """BM25 index, or a BM25 run, for the words that only BM25 matches. [default: None]"""
    reranker: PathName | None
    """Cross-encoder that finds hits which are probably relevant and not judged. [default: None]"""
    k: int
    """A relevant passage is missed if it is not among the first K hits. [default: 10]"""
    relevance_level: int
    """Minimum grade of a relevant passage. [default: 1]"""
    measure: str | None
    """Measure of the gains. [default: nDCG at K]"""
    sample: int
    """Number of queries to sample; gains and counts are of these. [default: 1000]"""
    seed: int
    """Random seed of the sample; a smaller sample is part of a larger one. [default: 42]"""
    pairs: PathName | None
    """Analyse these passages, lines of query id and passage id, in place of the missed ones.
    [default: None]"""
    causes: str | Sequence[str]
    """Causes that are tried, such as hub,copies. [default: all]"""
    hub_share: float
    """A hub is among the first K hits of more than this percentage of the queries. [default:
    5.0]"""
    copy_overlap: float
    """Share of common word trigrams (Jaccard) from which two passages are copies. [default: 0.7]"""
    word_weights: str | Sequence[float]
    """Weights of BM25 that are tried; the other run gets the rest. [default: [0.1, 0.2, 0.3, 0.4,
    0.5, 0.6, 0.7, 0.8, 0.9]]"""
    most_encoded: int
    """Passages that one change may encode again to measure it on all queries; a change that needs
    more has an oracle gain. [default: 5000]"""


class MineNegativesOptions(
    OverwriteOptions,
    ShardOptions,
    CorpusOptions,
    TextOptions,
    ComputeOptions,
    ServerOptions,
    total=False,
):
    """Options of `mine_negatives`."""

    train_format: TrainingFormat | None
    """Format of train. [default: detected]"""
    topics_format: TopicsFormat | None
    """Format of topics. [default: detected]"""
    topics_field: str | Sequence[str] | None
    """Fields of topics that make the query, e.g. title,description. [default: title]"""
    qrels_format: Literal["trec", "beir", "json", "clicks"] | None
    """Format of qrels. [default: detected]"""
    run_format: Literal["trec", "msmarco", "tevatron", "jsonl", "json", "mteb"] | None
    """Format of the runs. [default: detected]"""
    answers: PathName | None
    """Answers by query id. [default: those of train]"""
    output_format: TrainingFormat
    """Format of the output. [default: 'tevatron']"""
    preset: str | None
    """Settings of a paper, nv-retriever; options override them. [default: None]"""
    depth: int
    """Hits per query to consider in each run. [default: 200]"""
    num_negatives: int
    """Maximum negatives per query. [default: 30]"""
    sampling_strategy: Literal["random", "top"]
    """Sample negatives at random or take the highest-ranked hits. [default: 'random']"""
    seed: int
    """Random seed; the sample of a query does not depend on other queries. [default: 42]"""
    min_relevance: int
    """Minimum grade of a positive in qrels. [default: 1]"""
    max_passage: bool
    """qrels judge documents, the runs hold their passages, "document<delimiter>part": the best
    passage of a relevant document in the runs is a positive, and no other of it a negative.
    [default: False]"""
    max_passage_delimiter: str
    """Delimiter between document and part. [default: '#']"""
    range_min: int
    """Skip the top N hits of each query, which often contain unlabelled positives. [default: 0]"""
    max_score: float | None
    """Maximum score of a negative. [default: None]"""
    min_score: float | None
    """Minimum score of a negative. [default: None]"""
    absolute_margin: float | None
    """Minimum score difference between the best positive and a negative. [default: None]"""
    relative_margin: float | None
    """Minimum relative score difference to the best positive; 0.05: up to 95% of its score.
    [default: None]"""
    answer_bearing: Literal["keep", "drop", "promote"] | None
    """Handling of hits whose text contains an answer (DPR). [default: drop with answers]"""
    regex: bool
    """Answers are regular expressions (CuratedTREC). [default: False]"""
    keep_gold: bool
    """With answer_bearing='promote', keep the original positives before the promoted ones.
    [default: True]"""
    drop_literal: bool
    """Exclude hits whose text contains a positive's text, or is contained in one. [default:
    False]"""
    teacher: PathName | None
    """Model, also openai:NAME, whose scores replace those of the run, for margins and in the
    output. [default: None]"""
    skip_missing: bool
    """Skip and count missing passages and queries without hits instead of stopping. [default:
    False]"""


class OptimizerOptions(PrecisionOptions, total=False):
    """How models are trained."""

    dtype: Literal["float32", "bfloat16", "float16"]
    """Precision of the computation; the weights stay in float32. float16 needs a GPU. [default:
    'float32']"""
    warmup_ratio: float
    """Share of steps with linear warm-up. [default: 0.1]"""
    warmup_steps: int | None
    """Number of warm-up steps, fewer than those of the training; overrides warmup_ratio.
    [default: by warmup_ratio]"""
    max_grad_norm: float
    """Maximum gradient norm for clipping; 0 is off. [default: 1.0]"""
    adam_epsilon: float
    """AdamW's epsilon (its betas are 0.9 and 0.999). [default: 1e-08]"""
    gradient_accumulation_steps: int
    """Batches per step; the loss is one mean over all of them. In-batch negatives come from one
    batch: more of them in the same memory need grad_cache (pretrain: cache_chunk_size).
    [default: 1]"""
    gradient_checkpointing: bool
    """Compute activations again in the backward pass: less memory, more time, the same result.
    [default: False]"""
    report_to: str | Sequence[str]
    """Experiment trackers that get the log, by transformers' names; separated by commas.
    [default: []]"""
    save_steps: int
    """Steps between checkpoints. [default: 1000]"""
    keep_checkpoints: int
    """Number of recent checkpoints to keep; 0 keeps all. [default: 1]"""
    license: str | None
    """Licence in the model card, by the hub's name of it (apache-2.0, mit, cc-by-4.0, other).
    [default: that of model, if its card has one]"""
    logging_steps: int | None
    """Steps between log lines. [default: 20, fewer in short runs]"""
    num_workers: int | None
    """Worker processes that prepare batches; 0 uses the training process. [default: 2; CPU: 0]"""


class FinetuneOptions(
    ResumeOptions,
    DeviceOptions,
    OptimizerOptions,
    RepresentationOptions,
    TextOptions,
    CorpusOptions,
    total=False,
):
    """Options of `finetune`."""

    config: PathName
    """YAML file of options, e.g. the config.yaml of an earlier run; others override it."""
    preset: PathName | None
    """Preset (`denserk finetune` lists them) or YAML file; options override it. [default: None]"""
    teacher: PathName | None
    """align: model whose query vectors are learned. [default: None]"""
    keep_layers: str | Sequence[int]
    """align: layers of model to start from, the first is 0. [default: all]"""
    train_format: TrainingFormat | None
    """Format of the training data. [default: detected]"""
    qrels: PathName | None
    """Qrels with the positives of queries whose training data has negatives only. [default:
    None]"""
    untie: bool
    """Train separate (untied) query and passage encoders. [default: False]"""
    negatives_x_device: bool
    """Share in-batch negatives across processes. [default: True]"""
    skip_missing: bool
    """Skip and count passages missing from the corpus instead of stopping. [default: False]"""
    group_size: int
    """Passages per query: one positive and hard negatives. [default: 8]"""
    positive: Literal["rotate", "first", "random"]
    """Positive of a query: in turn, always the first, or sampled. [default: 'rotate']"""
    negative: Literal["window", "shuffle", "top"]
    """Hard negatives of a query: moving window, shuffled each time, or the first. [default:
    'window']"""
    negative_pool: int | None
    """Use only the first N negatives of each query. [default: all]"""
    fill_negatives: Literal["mask", "repeat"]
    """Queries with fewer negatives than group_size needs: mask the missing or repeat some.
    [default: 'mask']"""
    train_queries: int | None
    """Train on N queries (pairs, triplets), sampled with seed. [default: all]"""
    train_fraction: float | None
    """Train on this share of the queries, sampled with seed. [default: 1]"""
    seed: int
    """Random seed of sampling, order, initial weights and dropout. [default: 42]"""
    objective: Literal["retrieval", "cosine-mse", "triplet", "align"]
    """Training objective. [default: 'retrieval']"""
    temperature: float
    """Temperature by which scores are divided. [default: 1.0]"""
    contrastive: Literal["in-batch", "full"]
    """Negatives: passages of the batch, or also its queries (full, as in SimLM). [default:
    'in-batch']"""
    cls_weight: float
    """agg: weight of the loss on the [CLS] part. [default: 0.5]"""
    agg_weight: float
    """agg: weight of the loss on the lexical part. [default: 0.5]"""
    layer_weight: float
    """Self-contrastive pooling: weight of the loss over the positive's own vectors. [default:
    1.0]"""
    layer_temperature: float
    """Self-contrastive pooling: temperature of the loss over the positive's own vectors.
    [default: 1.0]"""
    distillation: Literal["kl", "soft-cross-entropy", "margin-mse"] | None
    """Knowledge distillation loss on the teacher scores in the training data. [default: None]"""
    contrastive_weight: float | None
    """Weight of the contrastive loss. [default: 1; 0.2 beside distillation]"""
    dimensions: str | Sequence[int] | None
    """Sum the loss over the vectors' first N dimensions, for each N of this list (Matryoshka),
    so that encode truncate_dim N can cut them. [default: all dimensions]"""
    label_scale: float
    """cosine-mse: label of equal sentences, e.g. 5 for labels from 0 to 5. [default: 1.0]"""
    mask_false_negatives: bool
    """Leave known positives of a query out of its in-batch negatives. [default: False]"""
    guide: PathName | None
    """Retriever that also leaves out what it scores above a query's own positive (GISTEmbed).
    [default: None]"""
    guide_margin: float
    """Leave out what the guide scores above the positive's score minus this margin. [default:
    0.0]"""
    margin: float
    """triplet: margin in Euclidean distance. [default: 5.0]"""
    batch_size: int
    """Queries per batch, over all processes. [default: 8]"""
    epochs: float
    """Number of passes over the training queries. [default: 3.0]"""
    max_steps: int | None
    """Total number of steps; overrides epochs. [default: by epochs]"""
    lr: float
    """Peak learning rate of AdamW, with linear decay to 0. [default: 5e-06]"""
    weight_decay: float
    """Weight decay, not applied to biases and layer norms. [default: 0.0]"""
    lora: int | None
    """Train low-rank adapters (LoRA) and new heads alone; the saved model has them merged.
    [default: None]"""
    lora_alpha: int | None
    """Scale of the adapters, times the rank. [default: twice the rank]"""
    lora_dropout: float
    """Dropout of the adapters' inputs. [default: 0.0]"""
    lora_targets: str | Sequence[str]
    """Linear layers that get adapters, e.g. query,value. [default: peft's choice, or all]"""
    grad_cache: bool
    """Gradient cache: compute large batches in chunks, with the same result and less memory.
    [default: False]"""
    q_chunk: int
    """Queries per chunk. [default: 4]"""
    p_chunk: int
    """Passages per chunk. [default: 32]"""
    chunk_tokens: int | None
    """Tokens per chunk, padding included, instead of a number of texts. [default: None]"""
    r_drop: float
    """cross-encoder: weight of R-Drop, the consistency loss of two dropout passes; 0 is off.
    [default: 0.0]"""
    pair_max_length: int | None
    """cross-encoder: maximum tokens of query and passage together. [default: sum of both limits]"""
    dev_data: PathName | None
    """Held-out training data for RR@10, dev-loss, avg-rank, spearman, accuracy or cosine.
    [default: None]"""
    dev_corpus: PathName | None
    """Passages to search for RR@10, instead of the passages of dev_data. [default: None]"""
    dev_topics: PathName | None
    """Queries to search in dev_corpus. [default: None]"""
    dev_qrels: PathName | None
    """Relevance judgments (qrels) of dev_topics. [default: None]"""
    eval_steps: int | None
    """Steps between validations. [default: once an epoch]"""
    best_by: Literal["dev-loss", "avg-rank", "RR@10", "spearman", "accuracy", "cosine"] | None
    """Keep the weights with the best value of this measure. [default: keep the last]"""
    early_stopping: int | None
    """Stop after N validations without improvement of best_by. [default: never]"""


class PretrainOptions(ResumeOptions, DeviceOptions, OptimizerOptions, CorpusOptions, total=False):
    """Options of `pretrain`."""

    config: PathName
    """YAML file of options, e.g. the config.yaml of an earlier run; others override it."""
    architecture: Literal["tiny", "mini", "small", "medium", "base"] | None
    """Train a randomly initialised BERT of this size instead of model (2 x 128 to 12 x 768).
    [default: None]"""
    vocabulary_size: int
    """architecture: size of the vocabulary trained on the corpus. [default: 30522]"""
    tokenizer: PathName | None
    """architecture: existing tokenizer to use. [default: trained on the corpus]"""
    expansions: PathName | None
    """master: generated queries and continuations, from `denserk generate`. [default: None]"""
    preset: Literal["paper", "released", "small"]
    """Settings of the paper, of MASTER's released code, or small batches for your own data.
    [default: 'paper']"""
    tokenize_to: PathName | None
    """Also write the tokenised text as JSON lines. [default: None]"""
    max_length: int
    """Maximum tokens of a sequence, special tokens included; longer ones are cropped at random.
    [default: 512; cocondenser and master: 128]"""
    fields: str | Sequence[str]
    """Passage fields to read, in order; each starts a new sentence. [default: ['title', 'text']]"""
    raw_text: Literal["lines", "paragraphs"] | None
    """Document boundaries in plain text files (.txt). [default: detected by empty lines]"""
    spans: Literal["sentences", "fixed"] | None
    """cocondenser and master: segmentation of documents. [default: sentences; master: none]"""
    short_blocks: float
    """mlm, condenser, retromae, dupmae: share of blocks with a random shorter length. [default:
    0.1]"""
    mlm_probability: float
    """Share of tokens masked in the encoder's input. [default: 0.15; master, retromae and
    dupmae: 0.3]"""
    decoder_mlm_probability: float
    """master: share masked for MKP, NPR, DOR and GOR; retromae, dupmae: share masked in the
    decoder. [default: 0.5]"""
    cmp_encoder_rate: float | None
    """master: share masked in the encoder's input for CMP; its decoder predicts the rest.
    [default: mlm_probability; released: 0.5]"""
    cmp_pass: bool
    """master: separate encoder pass for CMP, as in preset released. [default: False]"""
    masking: Literal["word", "token"]
    """Masking unit: whole words or subword tokens. [default: 'word']"""
    all_mask: bool
    """Replace all selected tokens by [MASK], instead of 80% (10% random, 10% unchanged).
    [default: False]"""
    keyword_weight: Literal["tfidf", "inverse-frequency"]
    """master: word weights for sampling keywords. [default: tfidf; released: inverse-frequency]"""
    frequency_dict: PathName | None
    """master: JSON file of word -> count, instead of corpus counts (for inverse-frequency).
    [default: None]"""
    weigh_fragments: bool
    """master: weight word fragments at crop edges like whole words. [default: True; released:
    False]"""
    npr: Literal["neighbour", "half"]
    """master: target of NPR's decoder. [default: neighbour; released: half]"""
    seed: int
    """Random seed of order, crops, masks, initial weights and dropout. [default: 42]"""
    head_only: bool
    """mlm: train the MLM head alone; the encoder keeps its weights, and runs without dropout.
    [default: False]"""
    n_head_layers: int
    """Layers of Condenser's head or of each MASTER decoder. [default: 2]"""
    skip_from: int | None
    """condenser: layer whose token states feed the head; 0 is the embeddings. [default: half]"""
    late_mlm: bool
    """condenser: add the MLM loss of the last layer. [default: True]"""
    tasks: Sequence[Literal["mkp", "cmp", "npr", "dor", "gor"]]
    """master: decoder tasks. [default: ['mkp', 'cmp', 'npr', 'dor', 'gor']]"""
    decoders: Literal["separate", "shared"]
    """master: separate or shared decoders. [default: 'separate']"""
    decoder_init: Literal["normal", "library"]
    """master: initialisation, N(0, 0.02) or PyTorch's. [default: normal; released: library]"""
    fresh_heads: bool
    """Randomly initialise the head or decoders, ignoring those of model. [default: False]"""
    loss_average: Literal["update", "micro-batch"]
    """Average token losses over an update, or per chunk as in the released code. [default:
    'update']"""
    lm_scale: float
    """cocondenser: weight of the token losses relative to the span loss (released code: 2).
    [default: 1.0]"""
    decoder_weight: float
    """dupmae: weight of the decoder's loss, from [CLS]. [default: 1.0]"""
    bow_weight: float
    """dupmae: weight of the bag-of-words loss, from the other tokens. [default: 1.0]"""
    batch_size: int
    """Sequences per batch, over all processes (cocondenser: documents, two spans each).
    [default: 256; cocondenser and master: 2048]"""
    epochs: float
    """Number of passes over the prepared text. [default: 8.0]"""
    max_steps: int | None
    """Total number of steps; overrides epochs. [default: by epochs; master: 120000]"""
    lr: float
    """Peak learning rate of AdamW. [default: 0.0001; master: 0.0003]"""
    weight_decay: float
    """Weight decay, not applied to biases and layer norms. [default: 0.01]"""
    cache_chunk_size: int | None
    """Sequences per forward pass and process; smaller needs less memory, with the same result.
    [default: None]"""
    chunk_tokens: int | None
    """Tokens per forward pass and process, padding included. [default: all at once]"""
    keep_steps: str | Sequence[int]
    """Steps at which the model is saved permanently under steps/. [default: []]"""


class GenerateOptions(ShardOptions, ResumeOptions, CorpusOptions, ComputeOptions, total=False):
    """Options of `generate`."""

    queries_model: PathName | None
    """Sequence-to-sequence model (T5, mT5, BART) that generates queries (doc2query). [default:
    None]"""
    queries_from: Sequence[Literal["title", "heading", "span", "cloze"]]
    """Copy queries from the passage, without a model: from title, heading, span, cloze.
    [default: []]"""
    num_queries: int
    """Queries per passage, by the model (duplicates included) and of each of queries_from.
    [default: 10]"""
    cloze_kept: float
    """cloze: share of sentences that stay in the passage, so that equal words count, too.
    [default: 0.1]"""
    round_trip: PathName | None
    """Index of the corpus, BM25 or dense: keep only queries that find their passage in it.
    [default: None]"""
    round_trip_hits: int
    """Number of hits among which a query must find its passage. [default: 10]"""
    query_top_k: int
    """Queries: number of most probable tokens to sample from (top-k sampling); 0 is off.
    [default: 10]"""
    query_max_tokens: int
    """Maximum tokens of a query. [default: 64]"""
    query_prompt: str
    """Prompt in front of each passage, for models trained with one. [default: '']"""
    continuation_model: PathName | None
    """Causal language model (GPT-2, Qwen3) that generates continuations. [default: None]"""
    num_continuations: int
    """Continuations per passage. [default: 1]"""
    continuation_top_p: float
    """Continuations: cumulative probability of the tokens to sample from (top-p sampling).
    [default: 0.9]"""
    continuation_max_tokens: int
    """Maximum tokens of a continuation. [default: 128]"""
    fields: str | Sequence[str] | None
    """Passage fields that are concatenated, in order; empty fields are skipped. [default:
    title,text]"""
    join: str
    """Separator between fields. [default: ' ']"""
    passage_max_length: int
    """Maximum tokens of a passage: its first ones for queries, its last ones for continuations.
    [default: 512]"""
    allow_pickle: bool
    """Also load weights from pytorch_model.bin; no code in it is executed. [default: False]"""
    seed: int
    """Random seed; a model draws by it and the number of the block of passages. [default: 42]"""
    block_size: int
    """Passages per block; resume repeats an unfinished block. [default: 1024]"""


class ConvertOptions(
    OverwriteOptions, RepresentationOptions, TextOptions, ComputeOptions, total=False
):
    """Options of `convert`."""

    tag: str
    """Run tag, the last column of a TREC run. [default: 'denserk']"""
    kind: (
        Literal["corpus", "queries", "qrels", "run", "vectors", "training", "model", "generated"]
        | None
    )
    """What the source contains. [default: detected]"""
    from_format: str | None
    """Format of the source; an unknown name prints the possible ones. [default: detected]"""
    topics_field: str | Sequence[str] | None
    """queries: fields that make the query, e.g. title,description. [default: title]"""
    to_format: str | None
    """Format of the target. [default: from the target's name]"""
    id_field: str | None
    """corpus: JSON key or column of the passage id; "" makes ids from the texts. [default: that of
    the format]"""
    text_field: str | None
    """corpus: JSON key or column of the text. [default: that of the format]"""
    title_field: str | None
    """corpus: JSON key or column of the title. [default: that of the format]"""
    expansions: PathName | None
    """corpus: generated queries, from `denserk generate`, to append to each passage's text.
    [default: None]"""
    split_words: int | None
    """corpus: split documents into passages of this many words. [default: not split]"""
    split_sentences: int | None
    """corpus: split documents into passages of this many sentences. [default: not split]"""
    stride: int | None
    """corpus: words or sentences between the starts of two passages. [default: as many as a passage
    has, so that none overlap]"""
    max_passage_delimiter: str
    """corpus: delimiter between document and part in the ids of passages. [default: '#']"""
    click_grades: str | Sequence[int]
    """click logs: clicks from which on a passage has grade 1, 2, ...; fewer are left out. [default:
    1]"""
    target_kind: (
        Literal["corpus", "queries", "qrels", "run", "vectors", "training", "model", "generated"]
        | None
    )
    """generated: what is written, queries, qrels or training. [default: from the target's name]"""
    corpus: PathName | None
    """training, generated: corpus that has the texts of passages given by id. [default: None]"""
    queries: PathName | None
    """training: topics that have the texts of queries given by id. [default: None]"""
    teacher: PathName | None
    """training: model that scores every positive and negative. [default: none]"""
    average: PathName | Sequence[PathName]
    """model: model whose weights are averaged with the source's (model soup); repeatable.
    [default: []]"""
    allow_pickle: bool
    """vectors: allow pickle files, which can run code; only for trusted files. [default: False]"""
