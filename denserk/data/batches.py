"""The batch types, the contract between tokenisation and models, and how texts are grouped."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class TokenBatch(NamedTuple):
    """Texts of one batch, padded to its longest.

    `input_ids`: (B, T) int64. `attention_mask`: (B, T) bool, True = a real token. Token types are
    never given.
    """

    input_ids: Tensor
    attention_mask: Tensor

    def to(self, device: "torch.device | str") -> "TokenBatch":
        """The same batch on another device."""
        return TokenBatch(
            self.input_ids.to(device, non_blocking=True),
            self.attention_mask.to(device, non_blocking=True),
        )

    def pinned(self) -> "TokenBatch":
        """The same batch in memory that a GPU reads while the CPU goes on."""
        return TokenBatch(self.input_ids.pin_memory(), self.attention_mask.pin_memory())


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

    def to(self, device: "torch.device | str") -> "TrainingBatch":
        """The same batch on another device."""
        return TrainingBatch(
            self.queries.to(device),
            self.passages.to(device),
            self.groups.to(device, non_blocking=True),
            self.keys.to(device, non_blocking=True),
            None if self.teacher is None else self.teacher.to(device, non_blocking=True),
            self.items.to(device, non_blocking=True),
        )


class MaskedTexts(NamedTuple):
    """Texts of which some tokens are hidden, and what a model must say of them.

    `tokens`: what the model sees, special tokens included. `labels`: (B, T) int64, the token to
    name at a position, -100 where nothing is asked.
    """

    tokens: TokenBatch
    labels: Tensor

    def to(self, device: "torch.device | str") -> "MaskedTexts":
        """The same texts on another device."""
        return MaskedTexts(self.tokens.to(device), self.labels.to(device, non_blocking=True))


class PretrainingBatch(NamedTuple):
    """One batch of pre-training; row i of every part belongs to text i.

    `texts`: what the encoder reads. `passes`: further readings of the encoder by name; the decoder
    of that name has its [CLS] state from there (MASTER's released preset: "npr", "cmp").
    `decoders`: what each decoder sees from position 1 on; position 0 holds the [CLS] token, whose
    place the encoder's state takes (MASTER: "mkp", "cmp", "npr", "dor", "gor"; RetroMAE:
    "retromae", the text with nothing hidden). A row without a term has -100 alone for labels.
    `visible`: (B, T, T) bool, RetroMAE's alone: whether the decoder's row i may see position j;
    column 0, the [CLS] state, is True throughout, and padding is False.
    """

    texts: MaskedTexts
    passes: dict[str, MaskedTexts]
    decoders: dict[str, MaskedTexts]
    visible: Tensor | None = None

    def to(self, device: "torch.device | str") -> "PretrainingBatch":
        """The same batch on another device."""
        return PretrainingBatch(
            self.texts.to(device),
            {name: texts.to(device) for name, texts in self.passes.items()},
            {name: texts.to(device) for name, texts in self.decoders.items()},
            None if self.visible is None else self.visible.to(device, non_blocking=True),
        )


def pad(ids: Sequence[Sequence[int] | NDArray[np.integer[Any]]], pad_id: int) -> TokenBatch:
    """Texts of token ids as one batch, padded at the end to the longest.

    >>> pad([[5, 6, 7], [8]], pad_id=0)
    TokenBatch(input_ids=tensor([[5, 6, 7],
            [8, 0, 0]]), attention_mask=tensor([[ True,  True,  True],
            [ True, False, False]]))
    """
    lengths = np.array([len(text) for text in ids])
    filled = np.full((len(ids), int(lengths.max(initial=0))), pad_id, dtype=np.int64)
    mask = np.arange(filled.shape[1]) < lengths[:, None]
    if len(ids) and isinstance(ids[0], np.ndarray):
        filled[mask] = np.concatenate(ids)
    else:
        filled[mask] = np.fromiter(chain.from_iterable(ids), np.int64, int(lengths.sum()))
    return TokenBatch(torch.from_numpy(filled), torch.from_numpy(mask))


def by_length(
    lengths: Sequence[int],
    batch_tokens: int,
    batch_size: int | None = None,
    enough: int | None = None,
) -> Iterator[list[int]]:
    """Groups texts of like length: batches of positions, the longest texts first.

    Args:
        lengths: tokens of each text.
        batch_tokens: most tokens of a batch, padding included; a longer text stands alone.
        batch_size: most texts of a batch.
        enough: tokens from which a batch ends where shorter texts begin, so that most batches
            have no padding at all.

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
    """Texts in the batches that a model takes them in.

    Attributes:
        count: how many texts.
        members: (b,) int64 for each batch, the places of its texts among all.
        batches: the batches.
        tokens: real tokens.
    """

    count: int
    members: tuple[Tensor, ...]
    batches: tuple[TokenBatch, ...]
    tokens: int

    @property
    def positions(self) -> int:
        """Tokens, padding included."""
        return sum(batch.input_ids.numel() for batch in self.batches)

    def pinned(self) -> "PlannedTexts":
        """The same in memory that a GPU reads while the CPU goes on."""
        return replace(
            self,
            members=tuple(each.pin_memory() for each in self.members),
            batches=tuple(batch.pinned() for batch in self.batches),
        )


def plan(
    ids: Sequence[Sequence[int]],
    pad_id: int,
    batch_tokens: int,
    batch_size: int | None = None,
    enough: int | None = None,
) -> PlannedTexts:
    """Token ids of texts in batches, by length; see `by_length`.

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
