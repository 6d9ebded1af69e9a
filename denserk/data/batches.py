"""Batch types, padding, grouping of texts by length, and inputs of a cross-encoder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from denserk.config.encoding import PairSettings, TextSettings
from denserk.data.planning import Ids, by_length, padded
from denserk.data.tokenization import special_tokens_around
from denserk.errors import UsageError

T = TypeVar("T")


def to_device(batch: T, device: "torch.device | str") -> T:
    """Return a batch with its tensors on another device: in named tuples and dicts, at any depth.

    Other values, such as numbers and lists, stay.
    """
    moved: Any = batch
    if isinstance(batch, Tensor):
        moved = batch.to(device, non_blocking=True)
    elif isinstance(batch, dict):
        moved = {name: to_device(value, device) for name, value in batch.items()}
    elif isinstance(batch, tuple):
        batch_class = type(batch)
        moved = batch_class(*(to_device(field, device) for field in batch))
    return cast(T, moved)


class TokenBatch(NamedTuple):
    """Texts of one batch, padded to the longest.

    `input_ids`: (B, T) int64. `attention_mask`: (B, T) bool, True at tokens that are not padding.
    `has_padding`: whether the mask is False anywhere, known without waiting for a GPU's answer;
    None: not known.
    """

    input_ids: Tensor
    attention_mask: Tensor
    has_padding: bool | None = None

    def of(
        self, rows: Tensor | slice, width: int | None = None, *, has_padding: bool | None = None
    ) -> "TokenBatch":
        """Return some texts by their rows, cut to `width` tokens; `has_padding` of these."""
        ids = self.input_ids[rows, :width]
        mask = self.attention_mask[rows, :width]
        return TokenBatch(ids, mask, has_padding)


class Positives(NamedTuple):
    """The known positives of B queries among P passages, by hashes that equal texts share."""

    queries: Tensor  # (B,) int64
    passages: Tensor  # (P,) int64
    positives: Tensor  # (B, K) int64, all that each query has, -1 where it has fewer


class TrainingBatch(NamedTuple):
    """B queries with their groups of n passages: a batch, or one rank's part of it.

    `groups`: (B, n) int64, each query's own passages as rows of `passages`, the positive first, -1
    where a negative is missing. `teacher`: (B, n) float32, the teacher's scores of the groups,
    minus infinity where a negative is missing; or None.
    """

    queries: TokenBatch
    passages: TokenBatch
    groups: Tensor
    keys: Tensor  # (P,) int64 from 0, equal for equal passages, also of other ranks' parts
    teacher: Tensor | None
    items: Tensor  # (B,) int64, the queries' numbers in the prepared data
    known_positives: Positives | None = None  # to mask false negatives
    # token ids of the guide's tokenizer: "query" (B texts) and "passage" (P texts)
    guide_tokens: dict[str, Sequence[Ids]] | None = None


class SentenceBatch(NamedTuple):
    """Sentence pairs, triplets, or queries to align; a batch, or a rank's part, perhaps empty."""

    sentences: TokenBatch  # B * n texts; those of example i stand at i * n .. i * n + n - 1
    # (B,) float32 of pairs; (B, D), the teacher's vectors, of queries; None of triplets
    labels: Tensor | None
    items: Tensor  # (B,) int64, the examples' numbers in the prepared data


class MaskedTexts(NamedTuple):
    """Texts with masked tokens, special tokens included, and the labels to predict."""

    tokens: TokenBatch
    labels: Tensor  # (B, T) int64, -100 where there is none


class PretrainingBatch(NamedTuple):
    """One batch of pre-training; row i of every part belongs to text i.

    `texts`: the encoder's input. `passes`: further inputs of the encoder by name; the decoder of
    that name takes its [CLS] state from there (MASTER's released preset: "npr", "cmp").
    `decoders`: each decoder's input from position 1 on; position 0 holds the [CLS] token, which the
    encoder's state replaces (MASTER: "mkp", "cmp", "npr", "dor", "gor"; RetroMAE: "retromae", the
    unmasked text). A text that has no part in one of them has only -100 as labels there.

    `visible`: (B, T, T) bool, of RetroMAE only: whether row i of the decoder sees position j;
    column 0, the [CLS] state, is True throughout, and padding is False.
    """

    texts: MaskedTexts
    passes: dict[str, MaskedTexts]
    decoders: dict[str, MaskedTexts]
    visible: Tensor | None = None


def pad(ids: Sequence[Ids], pad_id: int) -> TokenBatch:
    """Pad the token ids of texts at the end to the longest text.

    >>> pad([[5, 6, 7], [8]], pad_id=0)
    TokenBatch(input_ids=tensor([[5, 6, 7],
            [8, 0, 0]]), attention_mask=tensor([[ True,  True,  True],
            [ True, False, False]]), has_padding=True)
    """
    padded_ids, mask = padded(ids, pad_id)
    return TokenBatch(
        torch.from_numpy(padded_ids), torch.from_numpy(mask), has_padding=not mask.all()
    )


def concatenate(batches: Sequence[TokenBatch]) -> TokenBatch:
    """Return the texts of some batches as one, padded to the widest, with token 0, on their device.

    >>> concatenate([pad([[5, 6, 7]], pad_id=0), pad([[8]], pad_id=0)])
    TokenBatch(input_ids=tensor([[5, 6, 7],
            [8, 0, 0]]), attention_mask=tensor([[ True,  True,  True],
            [ True, False, False]]), has_padding=None)
    """
    width = max(batch.input_ids.shape[1] for batch in batches)
    ids = []
    masks = []
    for batch in batches:
        columns_to_add = width - batch.input_ids.shape[1]
        ids.append(F.pad(batch.input_ids, (0, columns_to_add)))
        masks.append(F.pad(batch.attention_mask, (0, columns_to_add)))
    return TokenBatch(torch.cat(ids), torch.cat(masks))


def without_padding(batch: TokenBatch) -> list[NDArray[np.int64]]:
    """Return the token ids of each text of a batch.

    >>> [text.tolist() for text in without_padding(pad([[5, 6, 7], [8]], pad_id=0))]
    [[5, 6, 7], [8]]
    """
    rows = zip(batch.input_ids.numpy(), batch.attention_mask.numpy(), strict=True)
    return [ids[mask] for ids, mask in rows]


@dataclass(frozen=True)
class PlannedTexts:
    """Texts divided into the batches of a model."""

    count: int  # of texts
    rows: tuple[Tensor, ...]  # (b,) int64 for each batch, the rows of its texts among all
    batches: tuple[TokenBatch, ...]
    tokens: int  # padding excluded
    pad_id: int
    batch_tokens: int  # the most of a batch; see `by_length`

    @property
    def positions(self) -> int:
        """Number of tokens, padding included."""
        return sum(batch.input_ids.numel() for batch in self.batches)

    def divided_again(
        self,
        done_batches: int,
        batch_tokens: int,
        batch_size: int | None = None,
        enough_tokens: float = inf,
    ) -> "PlannedTexts":
        """Return the texts without those of the first `done_batches`, in batches of fewer tokens.

        Rows and `count` are still among all texts. With none done, the batches are those that
        `plan` makes for `batch_tokens`.
        """
        texts: list[Ids] = []
        for batch in self.batches[done_batches:]:
            texts += without_padding(batch)
        no_rows = torch.empty(0, dtype=torch.int64)  # of a block without texts
        rows_of_texts = torch.cat([no_rows, *self.rows[done_batches:]])
        remaining = plan(texts, self.pad_id, batch_tokens, batch_size, enough_tokens)
        # `plan` counts from the first text that is left
        rows = tuple(rows_of_texts[rows_of_remaining] for rows_of_remaining in remaining.rows)
        return replace(remaining, count=self.count, rows=rows)


def plan(
    ids: Sequence[Ids],
    pad_id: int,
    batch_tokens: int,
    batch_size: int | None = None,
    enough_tokens: float = inf,
) -> PlannedTexts:
    """Divide the token ids of texts into padded batches by length; see `by_length`."""
    lengths = [len(text) for text in ids]
    rows_of_batches = []
    batches = []
    for rows in by_length(lengths, batch_tokens, batch_size, enough_tokens):
        rows_of_batches.append(torch.tensor(rows))
        batches.append(pad([ids[row] for row in rows], pad_id))
    return PlannedTexts(
        count=len(ids),
        rows=tuple(rows_of_batches),
        batches=tuple(batches),
        tokens=sum(lengths),
        pad_id=pad_id,
        batch_tokens=batch_tokens,
    )


class Pair(NamedTuple):
    """One input of a cross-encoder, a query with a passage: (T,) token ids and token types."""

    ids: NDArray[np.int64]
    types: NDArray[np.int64]


class PairBatch(NamedTuple):
    """P inputs of a cross-encoder, padded to the longest."""

    tokens: TokenBatch
    token_types: Tensor | None  # (P, T) int64, or None where the model takes none

    def of(self, rows: Tensor, tokens: TokenBatch) -> "PairBatch":
        """Return some rows, whose `tokens` are given, with token types of the same width."""
        if self.token_types is None:
            return PairBatch(tokens, None)
        width = tokens.input_ids.shape[1]
        return PairBatch(tokens, self.token_types[rows, :width])


class PairTemplate(NamedTuple):
    """The special tokens of an input of two texts, and the token type of the second text."""

    start: list[int]  # before the first text
    middle: list[int]  # between the texts
    end: list[int]  # after the second text
    passage_type: int

    @classmethod
    def of(cls, encoding: Any) -> "PairTemplate":
        """Read the template off an encoding of two texts by the library tokenizers."""
        # of each token the number of its text, 0 or 1; None of a special token
        text_numbers = encoding.sequence_ids
        backwards = text_numbers[::-1]
        first_start = text_numbers.index(0)
        first_end = len(text_numbers) - backwards.index(0)
        second_start = text_numbers.index(1)
        second_end = len(text_numbers) - backwards.index(1)
        return cls(
            start=encoding.ids[:first_start],
            middle=encoding.ids[first_end:second_start],
            end=encoding.ids[second_end:],
            passage_type=int(encoding.type_ids[second_start]),
        )

    @property
    def special_count(self) -> int:
        """Number of special tokens of an input."""
        return len(self.start) + len(self.middle) + len(self.end)


class PairJoiner:
    """Joins tokenised queries and passages as the tokenizer joins their texts.

    Each text was truncated to its own limit; where both exceed the joint limit, `limit`, the
    passage is truncated again. `passage_type` is the token type of a passage; that of a query is 0.
    """

    def __init__(self, tokenizer: Any, text: TextSettings, pairs: PairSettings) -> None:
        self.pad_id = int(tokenizer.pad_token_id or 0)
        self.token_types = pairs.token_types
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        self._template = PairTemplate.of(backend.encode("a", "a"))
        self.passage_type = self._template.passage_type
        before, after = special_tokens_around(tokenizer)  # a text alone
        self._count_before = len(before)
        self._count_after = len(after)
        special_count = self._template.special_count
        # the limits of the texts count special tokens
        longest_query = text.query_max_length - len(before) - len(after)
        longest_passage = text.passage_max_length - len(before) - len(after)
        self.limit = longest_query + longest_passage + special_count
        if pairs.max_length is not None:
            self.limit = pairs.max_length
        least_limit = longest_query + 1 + special_count
        if self.limit < least_limit:
            raise UsageError(
                f"--pair-max-length {self.limit} leaves no room for a passage beside a query of "
                f"--query-max-length {text.query_max_length}",
                f"at least {least_limit}, or a smaller --query-max-length",
            )
        self._room = self.limit - special_count  # for the tokens of both texts

    def join(self, query: Ids, passage: Ids) -> Pair:
        """Join the ids of a query and of a passage, each with its own special tokens."""
        query_tokens = self._without_special_tokens(query)
        passage_tokens = self._without_special_tokens(passage)
        passage_tokens = passage_tokens[: self._room - len(query_tokens)]
        query_part = [*self._template.start, *query_tokens, *self._template.middle]
        passage_part = [*passage_tokens, *self._template.end]
        types = np.repeat([0, self.passage_type], [len(query_part), len(passage_part)])
        return Pair(np.array(query_part + passage_part, dtype=np.int64), types)

    def _without_special_tokens(self, ids: Ids) -> Ids:
        """Return the tokens of a text that was tokenised alone."""
        return ids[self._count_before : len(ids) - self._count_after]

    def batch(self, pairs: Sequence[Pair]) -> PairBatch:
        """Return inputs as one batch."""
        tokens = pad([pair.ids for pair in pairs], self.pad_id)
        if not self.token_types:
            return PairBatch(tokens, None)
        types = pad([pair.types for pair in pairs], 0)
        return PairBatch(tokens, types.input_ids)
