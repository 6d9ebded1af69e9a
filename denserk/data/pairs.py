"""Inputs of a cross-encoder: a query and a passage joined from their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denserk.config.encoding import PairSettings, TextSettings
from denserk.data.batches import TokenBatch, pad, to_device
from denserk.errors import UsageError

Ids = Sequence[int] | NDArray[np.integer[Any]]


class Pair(NamedTuple):
    """One input: (T,) token ids, and the place where the passage begins."""

    ids: NDArray[np.int64]
    boundary: int


class PairBatch(NamedTuple):
    """P inputs, padded to the longest.

    `tokens`: (P, T) ids and mask. `token_types`: (P, T) int64, or None where the model takes none.
    """

    tokens: TokenBatch
    token_types: Tensor | None

    def to(self, device: "torch.device | str") -> "PairBatch":
        """Return the batch on another device."""
        return to_device(self, device)

    def part(self, first: int, last: int) -> "PairBatch":
        """Return consecutive inputs of the batch, padded to the longest of them."""
        ids, mask = (tensor[first:last] for tensor in self.tokens)
        width = int(mask.sum(1).max())
        tokens = TokenBatch(ids[:, :width], mask[:, :width])
        return PairBatch(tokens, self.types(slice(first, last), tokens))

    def types(self, rows: "Tensor | slice", tokens: TokenBatch) -> Tensor | None:
        """Return the token types of some rows, as wide as their tokens."""
        if self.token_types is None:
            return None
        return self.token_types[rows, : tokens.input_ids.shape[1]]


@dataclass(frozen=True)
class Template:
    """Special tokens around and between two texts, and their number around one.

    `passage_type`: the token type of the second text; that of the first is 0.
    """

    start: tuple[int, ...]
    middle: tuple[int, ...]
    end: tuple[int, ...]
    alone_start: int
    alone_end: int
    passage_type: int

    @classmethod
    def of(cls, tokenizer: Any) -> "Template":
        """Return the template of a fast tokenizer of transformers."""
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        both, alone = backend.encode("a", "a"), backend.encode("a")
        ids, sides = both.ids, both.sequence_ids
        first, second = sides.index(0), sides.index(1)
        first_end = second - sides[:second][::-1].index(0)
        second_end = len(sides) - sides[::-1].index(1)
        return cls(
            start=tuple(ids[:first]),
            middle=tuple(ids[first_end:second]),
            end=tuple(ids[second_end:]),
            alone_start=alone.sequence_ids.index(0),
            alone_end=alone.sequence_ids[::-1].index(0),
            passage_type=both.type_ids[second],
        )

    @property
    def specials(self) -> int:
        """Number of special tokens of a pair."""
        return len(self.start) + len(self.middle) + len(self.end)


class PairJoiner:
    """Joins tokenised queries and passages as the tokenizer joins their texts.

    Each text was truncated to its own limit; beyond the joint limit, the passage is truncated.
    """

    def __init__(self, tokenizer: Any, text: TextSettings, pairs: PairSettings) -> None:
        self.template = Template.of(tokenizer)
        self.pad_id = int(tokenizer.pad_token_id or 0)
        self.token_types = pairs.token_types
        alone = self.template.alone_start + self.template.alone_end
        longest_query = text.query_max_length - alone
        least = longest_query + self.template.specials + 1
        unlimited = longest_query + self.template.specials + text.passage_max_length - alone
        self.limit = unlimited if pairs.max_length is None else pairs.max_length
        if self.limit < least:
            raise UsageError(
                f"--pair-max-length {self.limit} leaves no room for a passage beside a query of "
                f"--query-max-length {text.query_max_length}",
                f"at least {least}, or a smaller --query-max-length",
            )

    def join(self, query: Ids, passage: Ids) -> Pair:
        """Join the ids of a query and of a passage, each with its own special tokens."""
        template = self.template
        first = query[template.alone_start : len(query) - template.alone_end]
        second = passage[template.alone_start : len(passage) - template.alone_end]
        room = self.limit - template.specials - len(first)
        parts = (template.start, first, template.middle, second[:room], template.end)
        boundary = len(template.start) + len(first) + len(template.middle)
        return Pair(np.concatenate([np.asarray(part, dtype=np.int64) for part in parts]), boundary)

    def batch(self, pairs: Sequence[Pair]) -> PairBatch:
        """Return inputs as one batch."""
        tokens = pad([pair.ids for pair in pairs], self.pad_id)
        if not self.token_types:
            return PairBatch(tokens, None)
        boundaries = torch.tensor([pair.boundary for pair in pairs])
        places = torch.arange(tokens.input_ids.shape[1])
        second = (places >= boundaries[:, None]) & tokens.attention_mask
        return PairBatch(tokens, second.long() * self.template.passage_type)
