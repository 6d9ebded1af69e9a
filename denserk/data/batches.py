"""Batch types, padding, and grouping of texts by length."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

T = TypeVar("T")


def map_tensors(value: T, function: Callable[[Tensor], Tensor]) -> T:
    """Apply a function to every tensor of a batch: of nested tuples and dicts."""
    made: Any = value
    if isinstance(value, Tensor):
        made = function(value)
    elif isinstance(value, dict):
        made = {name: map_tensors(each, function) for name, each in value.items()}
    elif isinstance(value, tuple):
        parts = [map_tensors(each, function) for each in value]
        made = type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return cast(T, made)


def to_device(batch: T, device: "torch.device | str") -> T:
    """Return a batch on another device."""
    return map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))


class TokenBatch(NamedTuple):
    """Texts of one batch, padded to the longest.

    `input_ids`: (B, T) int64. `attention_mask`: (B, T) bool, True at tokens that are not padding.
    """

    input_ids: Tensor
    attention_mask: Tensor

    def to(self, device: "torch.device | str") -> "TokenBatch":
        """Return the batch on another device."""
        return to_device(self, device)


class TrainingBatch(NamedTuple):
    """Queries with their groups of n passages: a batch, or one rank's part of it.

    `queries`: B texts. `passages`: P texts. `groups`: (B, n) int64, each query's own passages as
    rows of `passages`, the positive first, -1 where a negative is missing. `keys`: (P,) int64 from
    0, equal for equal passages, in the parts of all ranks. `teacher`: (B, n) float32, the teacher's
    scores of the groups, minus infinity where a negative is missing; or None. `items`: (B,) int64,
    the queries' numbers in the prepared data.
    """

    queries: TokenBatch
    passages: TokenBatch
    groups: Tensor
    keys: Tensor
    teacher: Tensor | None
    items: Tensor


class SentenceBatch(NamedTuple):
    """Pairs or triplets of sentences: a batch, or one rank's part of it, which may be empty.

    `sentences`: B * n texts; those of example i stand at i * n .. i * n + n - 1. `labels`: (B,)
    float32 of pairs; None of triplets. `items`: (B,) int64, the examples' numbers in the prepared
    data.
    """

    sentences: TokenBatch
    labels: Tensor | None
    items: Tensor


class MaskedTexts(NamedTuple):
    """Texts with masked tokens, and the labels to predict.

    `tokens`: the masked input, special tokens included. `labels`: (B, T) int64, -100 where there is
    none.
    """

    tokens: TokenBatch
    labels: Tensor


class PretrainingBatch(NamedTuple):
    """One batch of pre-training; row i of every part belongs to text i.

    `texts`: the encoder's input. `passes`: further inputs of the encoder by name; the decoder of
    that name takes its [CLS] state from there (MASTER's released preset: "npr", "cmp").
    `decoders`: each decoder's input from position 1 on; position 0 holds the [CLS] token, which the
    encoder's state replaces (MASTER: "mkp", "cmp", "npr", "dor", "gor"; RetroMAE: "retromae", the
    unmasked text). A row without a term has only -100 as labels. `visible`: (B, T, T) bool, of
    RetroMAE only: whether row i of the decoder sees position j; column 0, the [CLS] state, is True
    throughout, and padding is False.
    """

    texts: MaskedTexts
    passes: dict[str, MaskedTexts]
    decoders: dict[str, MaskedTexts]
    visible: Tensor | None = None


def pad(ids: Sequence[Sequence[int] | NDArray[np.integer[Any]]], pad_id: int) -> TokenBatch:
    """Pad token ids at the end to the longest text.

    >>> pad([[5, 6, 7], [8]], pad_id=0)
    TokenBatch(input_ids=tensor([[5, 6, 7],
            [8, 0, 0]]), attention_mask=tensor([[ True,  True,  True],
            [ True, False, False]]))
    """
    lengths = np.array([len(text) for text in ids])
    filled = np.full((len(ids), int(lengths.max(initial=0))), pad_id, dtype=np.int64)
    mask = np.arange(filled.shape[1]) < lengths[:, None]
    if len(ids):
        filled[mask] = np.concatenate(ids)
    return TokenBatch(torch.from_numpy(filled), torch.from_numpy(mask))


def by_length(
    lengths: Sequence[int],
    batch_tokens: int,
    batch_size: int | None = None,
    enough: int | None = None,
) -> Iterator[list[int]]:
    """Yield batches, as places of texts, of texts of similar length; the longest first.

    Args:
        lengths: tokens of each text.
        batch_tokens: most tokens of a batch, padding included; a longer text is a batch of its own.
        batch_size: most texts of a batch.
        enough: a batch of at least this many tokens ends before a shorter text, so that most
            batches need no padding.

    >>> list(by_length([2, 9, 3, 2], batch_tokens=9))
    [[1], [2, 0, 3]]
    >>> list(by_length([2, 9, 3, 2], batch_tokens=9, enough=3))
    [[1], [2], [0, 3]]
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        longest = lengths[batch[0]] if batch else 0
        full = (len(batch) + 1) * longest > batch_tokens or len(batch) == batch_size
        alone = enough is not None and lengths[index] < longest and len(batch) * longest >= enough
        if batch and (full or alone):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


@dataclass(frozen=True)
class PlannedTexts:
    """Texts divided into the batches of a model.

    Attributes:
        count: how many texts.
        members: (b,) int64 for each batch, the places of its texts among all.
        batches: the batches.
        tokens: number of tokens, padding excluded.
    """

    count: int
    members: tuple[Tensor, ...]
    batches: tuple[TokenBatch, ...]
    tokens: int

    @property
    def positions(self) -> int:
        """Number of tokens, padding included."""
        return sum(batch.input_ids.numel() for batch in self.batches)

    def pinned(self) -> "PlannedTexts":
        """Return the same in page-locked memory, for asynchronous copies to a GPU."""
        parts = map_tensors((self.members, self.batches), Tensor.pin_memory)
        return PlannedTexts(self.count, *parts, self.tokens)


def plan(
    ids: Sequence[Sequence[int]],
    pad_id: int,
    batch_tokens: int,
    batch_size: int | None = None,
    enough: int | None = None,
) -> PlannedTexts:
    """Divide texts into padded batches by length; see `by_length`.

    >>> planned = plan([[5, 6], [7], [8, 9]], pad_id=0, batch_tokens=4)
    >>> [each.tolist() for each in planned.members], planned.tokens, planned.positions
    ([[0, 2], [1]], 5, 5)
    """
    lengths = [len(text) for text in ids]
    groups = list(by_length(lengths, batch_tokens, batch_size, enough))
    return PlannedTexts(
        len(ids),
        tuple(torch.tensor(group) for group in groups),
        tuple(pad([ids[i] for i in group], pad_id) for group in groups),
        sum(lengths),
    )
