"""Names for published weights, and what other toolkits' options say about representations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from denserk.errors import UsageError
from denserk.settings.formats import TopicsFormat
from denserk.settings.options import REQUIRED, Settings, check_shard, option


@dataclass(frozen=True)
class PublishedModel:
    """Weights that --model may name in short.

    `text` holds what the model's folder does not say about its texts, by field of `TextSettings`.
    """

    name: str
    hub_name: str
    summary: str
    text: Mapping[str, Any] = field(default_factory=dict)


PUBLISHED_MODELS = (
    PublishedModel(
        "agg",
        "castorini/aggretriever-cocondenser",
        "Aggretriever on coCondenser, trained on MS MARCO",
    ),
    PublishedModel(
        "agg-distilbert",
        "castorini/aggretriever-distilbert",
        "Aggretriever on DistilBERT, trained on MS MARCO",
    ),
    PublishedModel(
        "cocondenser",
        "Luyu/co-condenser-marco-retriever",
        "coCondenser with [CLS] vectors, trained on MS MARCO with titles",
        text={"join": "sep"},
    ),
    PublishedModel(
        "minilm",
        "sentence-transformers/all-MiniLM-L6-v2",
        "a small general sentence encoder, mean of the tokens, length 1",
    ),
)
"""The table that help, errors and loading read."""

WITHOUT_WEIGHTS = {
    "mlr": "no weights of multi-layer representations are published: train some",
}
"""Names of representations for which nobody published weights, with what to say about them."""

RENAMED = {"cls": "cocondenser", "mean": "minilm"}
"""Former short name -> the present one; a pooling is not a model."""


def published(name: str) -> PublishedModel | None:
    """The entry of a short name.

    >>> published("agg").hub_name
    'castorini/aggretriever-cocondenser'
    """
    return next((model for model in PUBLISHED_MODELS if model.name == name), None)


class ModelLayout(StrEnum):
    """Layouts in which a model's folder is written."""

    DENSERK = "denserk"
    """One folder for denserk, transformers and, where possible, Pyserini; tells its settings."""
    AGGRETRIEVER_PYSERINI = "aggretriever-pyserini"
    """Aggretriever's one-file layout, as castorini/aggretriever-* are published."""
    AGGRETRIEVER_AUTHORS = "aggretriever-authors"
    """The layout of Aggretriever's released code: heads in files of their own."""


class Representation(StrEnum):
    """How a text's token states become its vector."""

    CLS = "cls"
    """The last hidden state of position 0."""
    MEAN = "mean"
    """The mean of the last hidden states of all real tokens."""
    MAX = "max"
    """The maximum over real tokens, one dimension at a time."""
    LAST = "last"
    """The last hidden state of the last real token."""
    AGG = "agg"
    """Aggretriever: a projection of [CLS] beside a lexical vector folded from the MLM head."""
    MLR = "mlr"
    """Multi-layer representations: the [CLS] states of several layers."""
    ME_BERT = "me-bert"
    """The last hidden states of the first few tokens."""
    COLBERT = "colbert"
    """The last hidden states of all tokens."""
    CROSS_ENCODER = "cross-encoder"
    """No vector: query and passage are read together and get a score; for reranking alone."""


class Reduction(StrEnum):
    """What becomes of a passage's several vectors (mlr, me-bert, colbert)."""

    SELF_CONTRASTIVE = "self-contrastive"
    """Kept apart in training, where the first learns to win; the first alone is stored."""
    AVERAGE = "average"
    """Their mean."""
    SCALAR_MIX = "scalar-mix"
    """A learned weighted mean."""
    MULTI_VECTOR = "multi-vector"
    """All are stored; the best one decides."""


class AggKind(StrEnum):
    """How Aggretriever's vocabulary-wide vector is made small (section 3.2 and Table 8)."""

    STAR = "star"
    """agg*: the signed maximum of each slice."""
    PLUS = "plus"
    """agg+: the maximum of each slice."""
    NONE = "none"
    """No pruning: one dimension an entry of the vocabulary, no [CLS] part."""
    LINEAR = "linear"
    """A learned linear map from the vocabulary."""
    AVERAGE = "average"
    """No vocabulary: the mean of the token states after position 0, then a linear map."""


class AggLayout(StrEnum):
    """Which vocabulary entries share a slice."""

    STRIDED = "strided"
    """The released rule: ids dealt round the slices in turn."""
    PAIRED = "paired"
    """agg+ over the slices of agg*, as the paper's text has it."""
    RANDOM = "random"
    """A seeded random division, as the paper's text has it."""


class TermWeight(StrEnum):
    """What becomes of a token's learned weight before it multiplies the token's distribution."""

    CLAMP = "clamp"
    """Negative weights count as zero: what the released code computes on padded batches."""
    SIGNED = "signed"
    """As it is: what the released code computes on a row without padding."""
    ABS = "abs"
    """Its absolute value, as the paper prints it."""
    ONE = "one"
    """Every weight is 1; the model has no weight layer (Table 8, row 2)."""


class MlmHead(StrEnum):
    """Where the distribution over the vocabulary comes from."""

    PRETRAINED = "pretrained"
    """The backbone's own masked-language-model head."""
    FRESH = "fresh"
    """A new head, its decoder tied to the word embeddings; for training only."""
    NONE = "none"
    """No head: a token's weight goes to the token itself (Table 8, row 3)."""


class AggOrder(StrEnum):
    """Which part of an Aggretriever vector stands first."""

    CLS_AGG = "cls-agg"
    """As in the published indexes."""
    AGG_CLS = "agg-cls"
    """As in the authors' code."""


class Dtype(StrEnum):
    """Precision of the computation."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def resolve_dtype(dtype: Dtype, fp16: bool, bf16: bool) -> Dtype:
    """The precision that --dtype and its short forms name together.

    Raises:
        UsageError: they contradict each other.

    >>> resolve_dtype(Dtype.FLOAT32, fp16=False, bf16=True).value
    'bfloat16'
    """
    if fp16 and bf16:
        raise UsageError("--fp16 and --bf16 exclude each other", "give one of them")
    asked = Dtype.FLOAT16 if fp16 else Dtype.BFLOAT16 if bf16 else dtype
    if dtype not in (Dtype.FLOAT32, asked):
        raise UsageError(f"--dtype {dtype} contradicts --{'fp16' if fp16 else 'bf16'}")
    return asked


class VectorDtype(StrEnum):
    """Precision of stored vectors."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"


class VectorFormat(StrEnum):
    """Shapes in which vectors are written."""

    NPY = "npy"
    """denserk's folder of blocks: memory-mappable, resumable, sharded."""
    JSONL = "jsonl"
    """Pyserini's JSON lines: id, contents, vector."""
    ANSERINI_JSONL = "anserini-jsonl"
    """Anserini's JSON lines: docid, contents, vector."""
    PYSERINI_FAISS = "pyserini-faiss"
    """A faiss flat index beside its ids, as Pyserini opens it."""
    PARQUET = "parquet"
    """Anserini's Parquet: docid, vector."""
    TEVATRON = "tevatron"
    """Tevatron's pickle of (vectors, ids)."""
    PYSERINI_QUERIES = "pyserini-queries"
    """Pyserini's folder of encoded queries, looked up by their text."""


@dataclass(frozen=True)
class RepresentationSettings(Settings):
    """How a vector is made; saved with a model, recorded with its vectors."""

    representation: Representation = option(Representation.CLS, "--pooling")
    """How token states become a vector."""
    l2_norm: bool = option(False, "--normalize")
    """Scale each vector to length 1."""
    agg_kind: AggKind = option(AggKind.STAR, rare=True)
    """agg: how the vocabulary-wide vector is made small."""
    agg_dim: int = option(640, at_least=0)
    """agg: dimensions of the lexical part; 0 leaves the [CLS] part alone."""
    cls_dim: int = option(128, "--projection-out-dim", at_least=0)
    """agg: dimensions of the [CLS] part; 0 leaves it out."""
    agg_layout: AggLayout = option(AggLayout.STRIDED, rare=True)
    """agg: which vocabulary entries share a slice."""
    agg_seed: int = option(42, rare=True)
    """agg: seed of the random layout; part of the model."""
    term_weight: TermWeight = option(TermWeight.CLAMP, rare=True)
    """agg: what becomes of a negative token weight."""
    mlm_head: MlmHead = option(MlmHead.PRETRAINED, rare=True)
    """agg: where the distribution over the vocabulary comes from."""
    agg_order: AggOrder = option(AggOrder.CLS_AGG, rare=True)
    """agg: which part stands first."""
    reduction: Reduction = Reduction.SELF_CONTRASTIVE
    """mlr, me-bert, colbert: what becomes of a passage's several vectors."""
    layers: tuple[int, ...] = option((), shown_default="the last two")
    """mlr: layers whose states are a passage's vectors; 0 is the embeddings, the last is needed."""
    vectors: int = option(8, "--num-vectors", rare=True, at_least=1)
    """me-bert: how many vectors a passage has."""
    norm_intermediate: bool = option(False, rare=True)
    """mlr on T5: apply the final layer norm to the layers before the last, too."""

    def __post_init__(self) -> None:
        """Reject vectors without dimensions, and reductions that colbert cannot have."""
        super().__post_init__()
        refused = (Reduction.SCALAR_MIX, Reduction.MULTI_VECTOR)
        if self.representation is Representation.COLBERT and self.reduction in refused:
            raise UsageError(
                f"--representation colbert cannot be reduced by {self.reduction}: "
                "the number of its vectors differs from passage to passage",
                "use --reduction self-contrastive or average",
            )
        if self.representation is Representation.AGG and self.agg_dim == self.cls_dim == 0:
            raise UsageError("--agg-dim 0 with --cls-dim 0 leaves no vector", "give one of them")


@dataclass(frozen=True)
class TextSettings(Settings):
    """How a record becomes the text that the tokenizer sees; saved with a model."""

    fields: tuple[str, ...] = ("title", "text")
    """Fields of a passage that make its text, in order; empty ones leave no trace."""
    join: str = option(" ", metavar="TEXT|sep|pair", rare=True)
    """What stands between two fields: any text; `sep`, the tokenizer's separator; `pair`, as a
    sentence pair."""
    query_max_length: int = option(32, "--q-max-len", "--query-max-len", at_least=3)
    """Tokens of a query, special tokens included."""
    passage_max_length: int = option(128, "--p-max-len", "--passage-max-len", at_least=3)
    """Tokens of a passage, special tokens included."""
    query_prefix: str = ""
    """Text put before every query."""
    passage_prefix: str = ""
    """Text put before every passage."""
    normalize_quotes: bool = option(False, rare=True)
    """Turn the right single quote (U+2019) of queries into an apostrophe, as DPR does."""

    def __post_init__(self) -> None:
        """Reject passages without fields, and pairs of more than two fields."""
        super().__post_init__()
        if not self.fields:
            raise UsageError("--fields names no field", "for example --fields title,text")
        if self.join == "pair" and len(self.fields) > 2:
            raise UsageError(f"--join pair takes at most two fields, found {','.join(self.fields)}")


@dataclass(frozen=True)
class PairSettings:
    """How a query and a passage become one input of a cross-encoder; saved with it."""

    max_length: int | None = None
    """Tokens of the whole input, special tokens included; None: as the two limits allow."""
    token_types: bool = False
    """Give the model the tokenizer's token types, which tell query from passage."""


BATCH_TOKENS = 8192
"""Tokens of a batch where none are asked for."""
CPU_BATCH_TOKENS = 2048
"""The same where texts become vectors on the CPU: what its caches hold."""


@dataclass(frozen=True)
class ComputeSettings(Settings):
    """Where and how the numbers are computed."""

    device: str = option("auto", metavar="auto|cpu|cuda|cuda:N")
    """The device; only `auto` falls back to the CPU where no GPU is seen. Several GPUs: torchrun,
    which starts a process for each."""
    dtype: Dtype = Dtype.FLOAT32
    """Precision of the computation; vectors are stored as --vector-dtype says. Without it `search`
    encodes queries in the precision that made the index."""
    batch_tokens: int | None = option(
        None, shown_default="8192; 2048 to encode on the CPU", at_least=1
    )
    """Tokens of a batch, padding included: batches of short texts hold more of them."""
    batch_size: int | None = option(
        None, "--per-device-eval-batch-size", shown_default="by --batch-tokens alone", at_least=1
    )
    """At most this many texts a batch."""
    threads: int | None = option(None, shown_default="the library's choice", at_least=1)
    """CPU threads."""
    head_dtype: Dtype | None = option(None, shown_default="that of --dtype", rare=True)
    """agg on the CPU: precision of the projection to the vocabulary alone; bfloat16 beside a
    float32 backbone costs little of the vectors and saves most of the head's time."""
    fp16: bool = False
    """Short for --dtype float16."""
    bf16: bool = False
    """Short for --dtype bfloat16."""

    def __post_init__(self) -> None:
        """Reject contradicting precisions."""
        super().__post_init__()
        object.__setattr__(self, "dtype", resolve_dtype(self.dtype, self.fp16, self.bf16))
        if self.head_dtype is Dtype.FLOAT16:
            raise UsageError("--head-dtype float16: float32 or bfloat16 are possible")

    @property
    def precision(self) -> str:
        """The precision in words, the head's own where it has one.

        >>> ComputeSettings(head_dtype=Dtype.BFLOAT16).precision
        'float32, head bfloat16'
        """
        own = self.head_dtype not in (None, self.dtype)
        return f"{self.dtype}, head {self.head_dtype}" if own else str(self.dtype)

    def tokens_on(self, device: str) -> int:
        """Tokens of a batch where texts become vectors on such a kind of device.

        >>> ComputeSettings().tokens_on("cpu"), ComputeSettings(batch_tokens=99).tokens_on("cpu")
        (2048, 99)
        """
        return self.batch_tokens or (CPU_BATCH_TOKENS if device == "cpu" else BATCH_TOKENS)


@dataclass(frozen=True, kw_only=True)
class EncodeSettings(Settings):
    """One encoding run: whose weights, which texts, what comes out."""

    model: str = option(REQUIRED, "--encoder", "--model-name-or-path", metavar="NAME|DIR|HUB_ID")
    """Weights: a short name (see docs/models.md), a folder, or a name on the hub."""
    corpus: str | None = option(None, metavar="FILE|DIR|NAME|-")
    """Passages to encode: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    topics: str | None = option(None, "--queries", metavar="FILE|DIR|NAME|-")
    """Queries to encode, in place of --corpus."""
    topics_format: TopicsFormat | None = option(None, shown_default="detected")
    """Shape of the queries."""
    qrels: str | None = option(None, metavar="FILE|DIR|NAME")
    """Keep only the queries of --topics with judgments in these qrels: one split of BEIR."""
    output: str = option(REQUIRED, "--embeddings", "--encode-output-path", metavar="DIR|FILE|-")
    """Where the vectors go: a folder, or a file for the one-file shapes."""
    output_format: VectorFormat = VectorFormat.NPY
    """Shape of the vectors."""
    vector_dtype: VectorDtype = VectorDtype.FLOAT32
    """Precision of the stored vectors."""
    block_size: int | None = option(None, shown_default="512 on a CPU, 4,096 on a GPU", at_least=1)
    """Passages a block; a block is encoded from its own passages alone. A folder that --resume
    continues keeps its own."""
    workers: int = option(1, at_least=1)
    """Threads that tokenise ahead of the model; a fast GPU wants several."""
    shard_id: int = option(0, "--dataset-shard-index")
    """Which shard to encode, from 0."""
    shard_num: int = option(1, "--num-shards", "--dataset-number-of-shards")
    """Number of shards: whole blocks each, so that all shards in order are the unsharded folder."""
    resume: bool = False
    """Continue an interrupted run: finished blocks are compared with the input and kept."""
    overwrite: bool = False
    """Replace what is in the output folder."""

    def __post_init__(self) -> None:
        """Reject options that exclude each other."""
        super().__post_init__()
        if (self.corpus is None) == (self.topics is None):
            raise UsageError("give one of --corpus (passages) and --topics (queries)")
        if self.qrels is not None and self.topics is None:
            raise UsageError(f"--qrels {self.qrels}: it selects queries", "add --topics")
        check_shard(self.shard_id, self.shard_num)
        if self.resume and self.overwrite:
            raise UsageError("--resume and --overwrite exclude each other")
        if self.output_format is not VectorFormat.NPY and self.resume:
            raise UsageError(
                f"--resume needs --output-format npy; {self.output_format} is written whole or not"
            )
        if self.output == "-" and self.output_format not in (
            VectorFormat.JSONL,
            VectorFormat.ANSERINI_JSONL,
        ):
            raise UsageError(
                f"--output - cannot carry --output-format {self.output_format}",
                "use --output-format jsonl",
            )
        if self.source == "-" and self.shard_num > 1:
            raise UsageError("--shard-num needs a corpus that can be counted, not a stream")

    @property
    def side(self) -> str:
        """Which side of retrieval is encoded: "query" or "passage"."""
        return "passage" if self.topics is None else "query"

    @property
    def source(self) -> str:
        """The texts' source, whichever side they are of."""
        source = self.topics if self.corpus is None else self.corpus
        assert source is not None
        return source
