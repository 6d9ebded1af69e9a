"""Options of the generate command."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from denserk.config.options import (
    REQUIRED,
    ResumeSettings,
    Settings,
    ShardSettings,
    option,
    spelled,
)
from denserk.errors import UsageError


class Sampling(NamedTuple):
    """Sampling parameters of `model.generate`; `top_k` 0 and `top_p` 1 are off."""

    samples: int
    top_k: int = 0
    top_p: float = 1.0
    temperature: float = 1.0
    max_tokens: int = 64


class SampledSettings(Settings):
    """Base of the settings of one kind of text; its first fields are those of `Sampling`."""

    @property
    def sampling(self) -> Sampling:
        """Return the sampling parameters."""
        return Sampling(*list(vars(self).values())[: len(Sampling._fields)])


@dataclass(frozen=True, kw_only=True)
class GenerateSettings(ShardSettings, ResumeSettings):
    """Input and output."""

    corpus: str = option(REQUIRED, metavar="FILE|DIR|NAME|-")
    """Passages: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    output: str = option(REQUIRED, metavar="FILE|-")
    """JSON lines with docid, queries and next, in corpus order."""
    queries_model: str | None = option(None, metavar="DIR|HUB_ID", shown_default="no queries")
    """Sequence-to-sequence model (T5, mT5, BART) that generates queries (doc2query)."""
    continuation_model: str | None = option(
        None, metavar="DIR|HUB_ID", shown_default="no continuations"
    )
    """Causal language model (GPT-2, Qwen3) that generates continuations."""
    allow_pickle: bool = False
    """Also load weights from pytorch_model.bin; no code in it is executed."""
    seed: int = 42
    """Random seed; each block of passages uses the seed and its block number."""
    block_size: int = option(1024, at_least=1)
    """Passages per block; --resume repeats an unfinished block."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.queries_model is None and self.continuation_model is None:
            raise UsageError("give --queries-model, --continuation-model, or both")
        if self.output == "-" and self.resume:
            raise UsageError("--resume needs a file; --output - leaves nothing to continue")


@dataclass(frozen=True)
class QuerySettings(SampledSettings):
    """Queries."""

    num_queries: int = option(10, "--queries-per-passage", at_least=1)
    """Queries per passage, duplicates included."""
    query_top_k: int = option(10, rare=True, at_least=0)
    """Top-k sampling: number of most probable tokens to sample from; 0 is off."""
    query_top_p: float = option(1.0, rare=True, above=0, at_most=1)
    """Top-p sampling: cumulative probability of the tokens to sample from; 1 is off."""
    query_temperature: float = option(1.0, rare=True, above=0)
    """Sampling temperature."""
    query_max_tokens: int = option(64, "--query-max-length", rare=True, at_least=1)
    """Maximum tokens of a query."""
    query_prompt: str = option("", rare=True)
    """Prompt in front of each passage, for models trained with one."""


@dataclass(frozen=True)
class ContinuationSettings(SampledSettings):
    """Continuations."""

    num_continuations: int = option(1, at_least=1)
    """Continuations per passage."""
    continuation_top_k: int = option(0, rare=True, at_least=0)
    """Top-k sampling: number of most probable tokens to sample from; 0 is off."""
    continuation_top_p: float = option(0.9, rare=True, above=0, at_most=1)
    """Top-p sampling: cumulative probability of the tokens to sample from; 1 is off."""
    continuation_temperature: float = option(1.0, rare=True, above=0)
    """Sampling temperature."""
    continuation_max_tokens: int = option(128, rare=True, at_least=1)
    """Maximum tokens of a continuation."""


@dataclass(frozen=True)
class GenerateTextSettings(Settings):
    """Text."""

    fields: tuple[str, ...] | None = option(None, shown_default="title,text", nonempty=True)
    """Passage fields that are concatenated, in order; empty fields are skipped."""
    join: str = option(" ", metavar="TEXT", rare=True)
    """Separator between fields."""
    passage_max_length: int = option(512, "--max-length", at_least=2)
    """Maximum tokens of a passage: its first ones for queries, its last ones for continuations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.join in ("sep", "pair"):
            raise UsageError(f"--set join={self.join}: these models read plain text")


def sampling_settings(
    settings: GenerateSettings, queries: Mapping[str, Any], continuations: Mapping[str, Any]
) -> tuple[QuerySettings | None, ContinuationSettings | None]:
    """Build the settings of the given models; None for a model that is not given.

    Raises:
        UsageError: an option needs a model that is not given.
    """
    given = (
        ("--queries-model", settings.queries_model, queries),
        ("--continuation-model", settings.continuation_model, continuations),
    )
    for option_name, model, values in given:
        if values and model is None:
            flags = ", ".join(spelled(n, QuerySettings, ContinuationSettings) for n in values)
            raise UsageError(f"{flags}: only with {option_name}")
    return (
        QuerySettings(**queries) if settings.queries_model else None,
        ContinuationSettings(**continuations) if settings.continuation_model else None,
    )
