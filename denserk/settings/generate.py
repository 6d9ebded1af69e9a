"""Options of the generate command."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from denserk.errors import UsageError
from denserk.settings.options import REQUIRED, option
from denserk.settings.shards import refuse_shard


class Sampling(NamedTuple):
    """How many texts are sampled from each passage, and how their tokens are drawn.

    `top_k` 0 and `top_p` 1 exclude nothing.
    """

    samples: int
    max_tokens: int
    top_k: int = 0
    top_p: float = 1.0
    temperature: float = 1.0


@dataclass(frozen=True, kw_only=True)
class GenerateSettings:
    """Input, output and models of the generate command."""

    corpus: str = option(REQUIRED, metavar="FILE|DIR|NAME|-")
    """Passages: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    output: str = option(REQUIRED, metavar="FILE|-")
    """JSON lines of docid, queries and next, in the order of the corpus."""
    queries_model: str | None = option(None, metavar="DIR|HUB_ID", shown_default="no queries")
    """Sequence-to-sequence model (T5, mT5, BART) that writes queries for a passage."""
    continuation_model: str | None = option(
        None, metavar="DIR|HUB_ID", shown_default="no continuations"
    )
    """Causal model (GPT-2, Qwen3) that continues a passage."""
    allow_pickle: bool = False
    """Also read weights from pytorch_model.bin; nothing in it is run."""
    seed: int = 42
    """Seed of the sampling; each block of passages starts from it and its own number."""
    block_size: int = 1024
    """Passages per block; --resume repeats an unfinished block."""
    shard_id: int = option(0, "--dataset-shard-index", "--shard-index")
    """Shard to generate for, from 0."""
    shard_num: int = option(1, "--num-shards", "--dataset-number-of-shards")
    """Number of shards; concatenated, their files are the whole file."""
    resume: bool = False
    """Continue an interrupted run: finished blocks are compared with the input and kept."""
    overwrite: bool = False
    """Replace the output, finished or not."""

    def __post_init__(self) -> None:
        """Check combinations of options."""
        if self.queries_model is None and self.continuation_model is None:
            raise UsageError("give --queries-model, --continuation-model, or both")
        if self.block_size < 1:
            raise UsageError(f"--block-size {self.block_size}: at least 1 is needed")
        refuse_shard(self.shard_id, self.shard_num)
        if self.resume and self.overwrite:
            raise UsageError("--resume and --overwrite exclude each other")
        if self.output == "-" and self.resume:
            raise UsageError("--resume needs a file; --output - leaves nothing to continue")
        if self.corpus == "-" and self.shard_num > 1:
            raise UsageError("--shard-num needs a corpus that can be counted, not a stream")


def _check(prefix: str, sampling: Sampling) -> None:
    """Raise an error for values that cannot be sampled with; `prefix` begins the option names."""
    samples, tokens, top_k, top_p, temperature = sampling
    mistakes = {
        f"{prefix}-top-k {top_k}: at least 0 is needed; 0 is all": top_k < 0,
        f"{prefix}-top-p {top_p:g}: a share above 0 and up to 1 is needed": not 0 < top_p <= 1,
        f"{prefix}-temperature {temperature:g}: a number above 0 is needed": not (
            0 < temperature < float("inf")
        ),
        f"{prefix}-max-tokens {tokens}: at least 1 is needed": tokens < 1,
        f"{samples} samples a passage: at least 1 is needed": samples < 1,
    }
    if found := [mistake for mistake, made in mistakes.items() if made]:
        raise UsageError("; ".join(found))


@dataclass(frozen=True)
class QuerySettings:
    """How queries are sampled."""

    num_queries: int = option(10, "--queries-per-passage")
    """Queries per passage; the same one may be drawn twice."""
    query_top_k: int = 10
    """Draw from this many of the most probable tokens; 0 is all."""
    query_top_p: float = 1.0
    """Draw from the most probable tokens that make up this probability; 1 is all."""
    query_temperature: float = 1.0
    """Temperature of the softmax."""
    query_max_tokens: int = option(64, "--query-max-length")
    """Most tokens of a query."""
    query_prompt: str = ""
    """Text put before a passage, as some models were trained with."""

    def __post_init__(self) -> None:
        """Check the values."""
        _check("--query", self.sampling)

    @property
    def sampling(self) -> Sampling:
        """The same without the option prefix."""
        return Sampling(
            self.num_queries,
            self.query_max_tokens,
            self.query_top_k,
            self.query_top_p,
            self.query_temperature,
        )


@dataclass(frozen=True)
class ContinuationSettings:
    """How continuations are sampled."""

    num_continuations: int = 1
    """Continuations per passage."""
    continuation_top_k: int = 0
    """Draw from this many of the most probable tokens; 0 is all."""
    continuation_top_p: float = 0.9
    """Draw from the most probable tokens that make up this probability; 1 is all."""
    continuation_temperature: float = 1.0
    """Temperature of the softmax."""
    continuation_max_tokens: int = 128
    """Most tokens of a continuation."""

    def __post_init__(self) -> None:
        """Check the values."""
        _check("--continuation", self.sampling)

    @property
    def sampling(self) -> Sampling:
        """The same without the option prefix."""
        return Sampling(
            self.num_continuations,
            self.continuation_max_tokens,
            self.continuation_top_k,
            self.continuation_top_p,
            self.continuation_temperature,
        )


@dataclass(frozen=True)
class GenerateTextSettings:
    """How a passage becomes the text that the models read."""

    fields: tuple[str, ...] | None = option(None, shown_default="title,text")
    """Fields of a passage that make its text, in order; empty fields are skipped."""
    join: str = option(" ", metavar="TEXT")
    """Text between two fields."""
    passage_max_length: int = option(512, "--max-length")
    """Most tokens of a passage: its first ones for queries, its last ones for continuations."""

    def __post_init__(self) -> None:
        """Check fields, join and length."""
        if self.fields == ():
            raise UsageError("--fields names no field", "for example --fields title,text")
        if self.join in ("sep", "pair"):
            raise UsageError(
                f"--join {self.join}: these models read plain text", 'for example --join ". "'
            )
        if self.passage_max_length < 2:
            raise UsageError(
                f"--passage-max-length {self.passage_max_length}: at least 2 is needed"
            )


def sampling_settings(
    settings: GenerateSettings, queries: Mapping[str, Any], continuations: Mapping[str, Any]
) -> tuple[QuerySettings | None, ContinuationSettings | None]:
    """Build the settings of the models that were given; None for a model that was not.

    Raises:
        UsageError: an option was given for a model that was not, or its value makes no sense.
    """
    given = (
        ("--queries-model", settings.queries_model, queries),
        ("--continuation-model", settings.continuation_model, continuations),
    )
    unused = [
        f"--{name.replace('_', '-')} needs {option_name}"
        for option_name, model, values in given
        if model is None
        for name in values
    ]
    if unused:
        raise UsageError("; ".join(unused))
    return (
        None if settings.queries_model is None else QuerySettings(**queries),
        None if settings.continuation_model is None else ContinuationSettings(**continuations),
    )
