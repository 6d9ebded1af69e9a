"""Options of the generate command."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from denserk.errors import UsageError
from denserk.settings.options import REQUIRED, Settings, check_shard, option


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
class GenerateSettings(Settings):
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
    block_size: int = option(1024, at_least=1)
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
        super().__post_init__()
        if self.queries_model is None and self.continuation_model is None:
            raise UsageError("give --queries-model, --continuation-model, or both")
        check_shard(self.shard_id, self.shard_num)
        if self.resume and self.overwrite:
            raise UsageError("--resume and --overwrite exclude each other")
        if self.output == "-" and self.resume:
            raise UsageError("--resume needs a file; --output - leaves nothing to continue")
        if self.corpus == "-" and self.shard_num > 1:
            raise UsageError("--shard-num needs a corpus that can be counted, not a stream")


@dataclass(frozen=True)
class QuerySettings(Settings):
    """How queries are sampled."""

    num_queries: int = option(10, "--queries-per-passage", at_least=1)
    """Queries per passage; the same one may be drawn twice."""
    query_top_k: int = option(10, rare=True, at_least=0)
    """Draw from this many of the most probable tokens; 0 is all."""
    query_top_p: float = option(1.0, rare=True, above=0, at_most=1)
    """Draw from the most probable tokens that make up this probability; 1 is all."""
    query_temperature: float = option(1.0, rare=True, above=0)
    """Temperature of the softmax."""
    query_max_tokens: int = option(64, "--query-max-length", rare=True, at_least=1)
    """Most tokens of a query."""
    query_prompt: str = option("", rare=True)
    """Text put before a passage, as some models were trained with."""

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
class ContinuationSettings(Settings):
    """How continuations are sampled."""

    num_continuations: int = option(1, at_least=1)
    """Continuations per passage."""
    continuation_top_k: int = option(0, rare=True, at_least=0)
    """Draw from this many of the most probable tokens; 0 is all."""
    continuation_top_p: float = option(0.9, rare=True, above=0, at_most=1)
    """Draw from the most probable tokens that make up this probability; 1 is all."""
    continuation_temperature: float = option(1.0, rare=True, above=0)
    """Temperature of the softmax."""
    continuation_max_tokens: int = option(128, rare=True, at_least=1)
    """Most tokens of a continuation."""

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
class GenerateTextSettings(Settings):
    """How a passage becomes the text that the models read."""

    fields: tuple[str, ...] | None = option(None, shown_default="title,text")
    """Fields of a passage that make its text, in order; empty fields are skipped."""
    join: str = option(" ", metavar="TEXT", rare=True)
    """Text between two fields."""
    passage_max_length: int = option(512, "--max-length", at_least=2)
    """Most tokens of a passage: its first ones for queries, its last ones for continuations."""

    def __post_init__(self) -> None:
        """Check fields and join."""
        super().__post_init__()
        if self.fields == ():
            raise UsageError("--fields names no field", "for example --fields title,text")
        if self.join in ("sep", "pair"):
            raise UsageError(f"--set join={self.join}: these models read plain text")


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
