"""A query and a passage as one input of a cross-encoder: joined from their own tokens, batched."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from denserk.data.batches import TokenBatch, pad
from denserk.data.training_batches import TrainingBatches
from denserk.errors import UsageError
from denserk.settings.encoding import PairSettings, TextSettings

Ids = Sequence[int] | NDArray[np.integer[Any]]


class Pair(NamedTuple):
    """One input: (T,) token ids, and where the passage begins among them."""

    ids: NDArray[np.int64]
    boundary: int


class PairBatch(NamedTuple):
    """P inputs, padded to the longest.

    `tokens`: (P, T) ids and mask. `token_types`: (P, T) int64, or None where the model gets none.
    """

    tokens: TokenBatch
    token_types: Tensor | None

    def to(self, device: "torch.device | str") -> "PairBatch":
        """The same batch on another device."""
        types = self.token_types
        moved = None if types is None else types.to(device, non_blocking=True)
        return PairBatch(self.tokens.to(device), moved)

    def part(self, first: int, last: int) -> "PairBatch":
        """Some neighbouring inputs of the batch, as wide as the longest of them."""
        ids, mask = (tensor[first:last] for tensor in self.tokens)
        width = int(mask.sum(1).max())
        tokens = TokenBatch(ids[:, :width], mask[:, :width])
        return PairBatch(tokens, self.types(slice(first, last), tokens))

    def types(self, rows: "Tensor | slice", tokens: TokenBatch) -> Tensor | None:
        """The token types of some rows, as wide as their tokens."""
        if self.token_types is None:
            return None
        return self.token_types[rows, : tokens.input_ids.shape[1]]


class PairTrainingBatch(NamedTuple):
    """Queries with their groups of passages: a batch, or one rank's part of it.

    `pairs`: P inputs, those of one query after those of another. `groups`: (B, n) int64, the rows
    of each query's pairs, the positive first, -1 where a negative is missing. `items`: (B,) int64,
    the queries' numbers in the prepared data.
    """

    pairs: PairBatch
    groups: Tensor
    items: Tensor

    def to(self, device: "torch.device | str") -> "PairTrainingBatch":
        """The same batch on another device."""
        return PairTrainingBatch(
            self.pairs.to(device), self.groups.to(device), self.items.to(device)
        )


@dataclass(frozen=True)
class Template:
    """The special tokens around and between two texts, and around one alone.

    `passage_type` is the token type of the second text; that of the first is 0.
    """

    start: tuple[int, ...]
    middle: tuple[int, ...]
    end: tuple[int, ...]
    alone_start: int
    alone_end: int
    passage_type: int

    @classmethod
    def of(cls, tokenizer: Any) -> "Template":
        """The template of a fast tokenizer of transformers."""
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
        """Special tokens of a pair."""
        return len(self.start) + len(self.middle) + len(self.end)


class PairJoiner:
    """Joins tokenised queries and passages as the tokenizer would have joined their texts.

    Each text is cut to its own limit before; where the two are longer than the joint limit, the
    passage loses its last tokens.

    Args:
        tokenizer: a fast tokenizer of transformers.
        text: the limits of query and passage.
        pairs: the joint limit, and whether the model gets token types.

    Raises:
        UsageError: the joint limit leaves no room for a passage beside the longest query.
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
        """One input from the ids of a query and of a passage, each with its own special tokens."""
        template = self.template
        first = query[template.alone_start : len(query) - template.alone_end]
        second = passage[template.alone_start : len(passage) - template.alone_end]
        room = self.limit - template.specials - len(first)
        parts = (template.start, first, template.middle, second[:room], template.end)
        boundary = len(template.start) + len(first) + len(template.middle)
        return Pair(np.concatenate([np.asarray(part, dtype=np.int64) for part in parts]), boundary)

    def batch(self, pairs: Sequence[Pair]) -> PairBatch:
        """Inputs as one batch."""
        tokens = pad([pair.ids for pair in pairs], self.pad_id)
        if not self.token_types:
            return PairBatch(tokens, None)
        boundaries = torch.tensor([pair.boundary for pair in pairs])
        places = torch.arange(tokens.input_ids.shape[1])
        second = (places >= boundaries[:, None]) & tokens.attention_mask
        return PairBatch(tokens, second.long() * self.template.passage_type)


class PairTrainingBatches(Dataset[PairTrainingBatch]):
    """A run's batches of queries and passages as batches of pairs; item i is that of step i.

    Args:
        batches: which queries and which passages.
        joiner: how they are joined.
    """

    def __init__(self, batches: TrainingBatches, joiner: PairJoiner) -> None:
        self._batches, self._joiner = batches, joiner

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch."""
        return self._batches.steps_per_epoch

    def __getitem__(self, step: int) -> PairTrainingBatch:
        batch = self._batches[step]
        queries, passages = _unpadded(batch.queries), _unpadded(batch.passages)
        present = batch.groups >= 0
        pairs = [
            self._joiner.join(queries[query], passages[batch.groups[query, place]])
            for query, place in present.nonzero().tolist()
        ]
        groups = torch.full_like(batch.groups, -1)
        groups[present] = torch.arange(len(pairs))
        return PairTrainingBatch(self._joiner.batch(pairs), groups, batch.items)


def _unpadded(batch: TokenBatch) -> list[NDArray[np.int64]]:
    lengths = batch.attention_mask.sum(1).tolist()
    rows = batch.input_ids.numpy()
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]
