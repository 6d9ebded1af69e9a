"""Options of the generate command."""

from typing import NamedTuple

from denserk.config.options import REQUIRED, ResumeSettings, ShardSettings, option, setting
from denserk.errors import UsageError


class Sampling(NamedTuple):
    """Sampling parameters by transformers' names; `top_k` 0 and `top_p` 1 are off."""

    num_return_sequences: int
    max_new_tokens: int
    top_k: int = 0
    top_p: float = 1.0


class GenerateSettings(ShardSettings, ResumeSettings, kw_only=True):
    """Generation."""

    corpus: str = option(REQUIRED, metavar="FILE|DIR|NAME|-")
    """Passages: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    output: str = option(REQUIRED, metavar="FILE|-")
    """JSON lines with docid, queries and next, in corpus order."""
    queries_model: str | None = option(None, metavar="DIR|HUB_ID")
    """Sequence-to-sequence model (T5, mT5, BART) that generates queries (doc2query)."""
    num_queries: int = option(10, "--queries-per-passage", at_least=1, needs="queries_model")
    """Queries per passage, duplicates included."""
    query_top_k: int = setting(10, at_least=0, needs="queries_model")
    """Queries: number of most probable tokens to sample from (top-k sampling); 0 is off."""
    query_max_tokens: int = setting(64, at_least=1, needs="queries_model")
    """Maximum tokens of a query."""
    query_prompt: str = setting("", needs="queries_model")
    """Prompt in front of each passage, for models trained with one."""
    continuation_model: str | None = option(None, metavar="DIR|HUB_ID")
    """Causal language model (GPT-2, Qwen3) that generates continuations."""
    num_continuations: int = option(1, at_least=1, needs="continuation_model")
    """Continuations per passage."""
    continuation_top_p: float = setting(0.9, above=0, at_most=1, needs="continuation_model")
    """Continuations: cumulative probability of the tokens to sample from (top-p sampling)."""
    continuation_max_tokens: int = setting(128, at_least=1, needs="continuation_model")
    """Maximum tokens of a continuation."""
    fields: tuple[str, ...] | None = option(None, nonempty=True)
    """Passage fields that are concatenated, in order; empty fields are skipped.
    [default: title,text]"""
    join: str = setting(" ", metavar="TEXT")
    """Separator between fields."""
    passage_max_length: int = option(512, "--max-length", at_least=2)
    """Maximum tokens of a passage: its first ones for queries, its last ones for continuations."""
    allow_pickle: bool = False
    """Also load weights from pytorch_model.bin; no code in it is executed."""
    seed: int = 42
    """Random seed; each block of passages uses the seed and its block number."""
    block_size: int = option(1024, at_least=1)
    """Passages per block; --resume repeats an unfinished block."""

    def _check(self) -> None:
        if self.queries_model is None and self.continuation_model is None:
            raise UsageError("give --queries-model, --continuation-model, or both")
        if self.output == "-" and self.resume:
            raise UsageError("--resume needs a file; --output - leaves nothing to continue")
        if self.join in ("sep", "pair"):
            raise UsageError(f"--set join={self.join}: these models read plain text")

    @property
    def sampling(self) -> dict[str, Sampling]:
        """Return the sampling parameters by the field of the model."""
        top_k, top_p, most = self.query_top_k, self.continuation_top_p, self.continuation_max_tokens
        return {
            "queries_model": Sampling(self.num_queries, self.query_max_tokens, top_k=top_k),
            "continuation_model": Sampling(self.num_continuations, most, top_p=top_p),
        }
