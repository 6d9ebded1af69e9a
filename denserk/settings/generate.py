"""Options of the generate command."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from denserk.errors import UsageError
from denserk.settings.options import REQUIRED, option
from denserk.settings.shards import refuse_shard


@dataclass(frozen=True)
class SamplingRule:
    """Which tokens may be drawn: the `top_k` likeliest, of them those that make up `top_p`.

    A `top_k` of 0 and a `top_p` of 1 leave nothing out; logits are divided by `temperature` first.

    >>> SamplingRule().keeps_all, SamplingRule(top_k=10).keeps_all
    (True, False)
    """

    top_k: int = 0
    top_p: float = 1.0
    temperature: float = 1.0

    @property
    def keeps_all(self) -> bool:
        """Whether no token is left out."""
        return self.top_k == 0 and self.top_p >= 1


class Drawing(NamedTuple):
    """How many samples a text gets, by which rule, how long; `purpose` sets streams apart."""

    purpose: str
    samples: int
    rule: SamplingRule
    max_tokens: int


@dataclass(frozen=True, kw_only=True)
class GenerateSettings:
    """Models that generate, the passages, and the output."""

    corpus: str = option(REQUIRED, metavar="FILE|DIR|NAME|-")
    """Passages: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    output: str = option(REQUIRED, metavar="FILE|-")
    """JSON lines of docid, queries and next, in the order of the corpus."""
    queries_model: str | None = option(None, metavar="DIR|HUB_ID", shown_default="no queries")
    """A sequence-to-sequence model (t5, mt5) that asks queries of a passage."""
    continuation_model: str | None = option(
        None, metavar="DIR|HUB_ID", shown_default="no continuations"
    )
    """A causal model (gpt2) that writes on where a passage ends."""
    allow_pickle: bool = False
    """Also read weights from pytorch_model.bin; nothing in it is run."""
    seed: int = 42
    """Seed of the drawing; each passage draws by it and by its own id alone."""
    block_size: int = 1024
    """Passages a block; after a kill, what was done of the last block is done again."""
    shard_id: int = option(0, "--dataset-shard-index", "--shard-index")
    """Shard to generate for, from 0."""
    shard_num: int = option(1, "--num-shards", "--dataset-number-of-shards")
    """Number of shards: whole blocks each; their files, one after another, are the whole file."""
    resume: bool = False
    """Continue an interrupted run: finished blocks are compared with the input and kept."""
    overwrite: bool = False
    """Replace the output, finished or not."""

    def __post_init__(self) -> None:
        """Refuses combinations that cannot be done."""
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


def _refuse_drawing(prefix: str, drawing: Drawing) -> None:
    """Refuses numbers with which nothing could be drawn; `prefix` begins the options' names."""
    _, samples, rule, tokens = drawing
    mistakes = [
        f"{prefix}-top-k {rule.top_k}: at least 0 is needed; 0 leaves nothing out"
        if rule.top_k < 0
        else "",
        f"{prefix}-top-p {rule.top_p:g}: a share above 0 and up to 1 is needed"
        if not 0 < rule.top_p <= 1
        else "",
        f"{prefix}-temperature {rule.temperature:g}: a number above 0 is needed"
        if not 0 < rule.temperature < float("inf")
        else "",
        f"{prefix}-max-tokens {tokens}: at least 1 is needed" if tokens < 1 else "",
        f"{samples} samples a passage: at least 1 is needed" if samples < 1 else "",
    ]
    if found := [mistake for mistake in mistakes if mistake]:
        raise UsageError("; ".join(found))


@dataclass(frozen=True)
class QueryDrawing:
    """How queries are drawn."""

    num_queries: int = option(10, "--queries-per-passage")
    """Queries a passage; the same one may be drawn twice."""
    query_top_k: int = 10
    """Only this many of the likeliest tokens may be drawn; 0 is all, 1 the likeliest."""
    query_top_p: float = 1.0
    """Only the likeliest tokens that make up this share may be drawn; 1 is all."""
    query_temperature: float = 1.0
    """Logits are divided by it."""
    query_max_tokens: int = option(64, "--query-max-length")
    """Tokens of a query."""
    query_prompt: str = ""
    """Text put before a passage, as some models were trained with."""

    def __post_init__(self) -> None:
        """Refuses numbers with which nothing could be drawn."""
        _refuse_drawing("--query", self.drawing)

    @property
    def drawing(self) -> Drawing:
        """The same by the names that every drawing has."""
        rule = SamplingRule(self.query_top_k, self.query_top_p, self.query_temperature)
        return Drawing("queries", self.num_queries, rule, self.query_max_tokens)


@dataclass(frozen=True)
class ContinuationDrawing:
    """How continuations are drawn."""

    num_continuations: int = 1
    """Continuations a passage."""
    continuation_top_k: int = 0
    """Only this many of the likeliest tokens may be drawn; 0 is all, 1 the likeliest."""
    continuation_top_p: float = 0.9
    """Only the likeliest tokens that make up this share may be drawn; 1 is all."""
    continuation_temperature: float = 1.0
    """Logits are divided by it."""
    continuation_max_tokens: int = 128
    """Tokens of a continuation."""

    def __post_init__(self) -> None:
        """Refuses numbers with which nothing could be drawn."""
        _refuse_drawing("--continuation", self.drawing)

    @property
    def drawing(self) -> Drawing:
        """The same by the names that every drawing has."""
        rule = SamplingRule(
            self.continuation_top_k, self.continuation_top_p, self.continuation_temperature
        )
        return Drawing("next", self.num_continuations, rule, self.continuation_max_tokens)


@dataclass(frozen=True)
class GenerateTextSettings:
    """How a passage becomes the text that the models read."""

    fields: tuple[str, ...] | None = option(None, shown_default="title,text")
    """Fields of a passage that make its text, in order; empty ones leave no trace."""
    join: str = option(" ", metavar="TEXT")
    """What stands between two fields."""
    passage_max_length: int = option(512, "--max-length")
    """Tokens of a passage; a longer one keeps its first for queries, its last to be continued."""

    def __post_init__(self) -> None:
        """Refuses texts of nothing, and joins that are no text."""
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


def drawings(
    settings: GenerateSettings, queries: Mapping[str, Any], continuations: Mapping[str, Any]
) -> tuple[QueryDrawing | None, ContinuationDrawing | None]:
    """How queries and continuations are drawn; None for what no model was given for.

    Args:
        settings: names the models.
        queries: fields of `QueryDrawing` that were given.
        continuations: fields of `ContinuationDrawing` that were given.

    Raises:
        UsageError: one was given for a model that was not; or a number makes no sense.
    """
    idle = [
        f"--{name.replace('_', '-')} needs {model}"
        for given, model, absent in (
            (queries, "--queries-model", settings.queries_model is None),
            (continuations, "--continuation-model", settings.continuation_model is None),
        )
        for name in given
        if absent
    ]
    if idle:
        raise UsageError("; ".join(idle))
    return (
        None if settings.queries_model is None else QueryDrawing(**queries),
        None if settings.continuation_model is None else ContinuationDrawing(**continuations),
    )
