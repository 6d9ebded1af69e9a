"""The size of batches, in tokens, and what happens where a batch does not fit in memory."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TypeVar

import torch

from denserk.data.planning import by_length
from denserk.errors import lack_of_memory
from denserk.models.devices import memory_errors

logger = logging.getLogger(__name__)

T = TypeVar("T")


class TokenBudget:
    """How many tokens a batch may have; halved where there is no memory to compute one.

    One is kept for all batches of a run, so that what did not fit is not tried again.

    Attributes:
        tokens: the most tokens of a batch, padding included. A longer text is a batch of its own.
    """

    def __init__(
        self, tokens: int, work: str, *, shorten: str, option: str | None = "--batch-tokens"
    ) -> None:
        """Name the work for messages.

        Args:
            tokens: the most tokens of a batch at first.
            work: what is done with a batch, such as "encoding {texts} of {tokens} tokens".
            shorten: the hint where a single text does not fit.
            option: the option by which a run begins with smaller batches, if there is one.
        """
        self.tokens = tokens
        self._work = work
        self._shorten = shorten
        self._option = option

    def attempt(self, count: int, length: int, compute: Callable[[], T]) -> T | None:
        """Return what `compute` returns for a batch of `count` texts of `length` tokens.

        Where there is no memory for it, return None: `tokens` is now half of that batch, and the
        texts are to be divided again. A single text that does not fit is a DenserkError.
        """
        work = self._work.format(texts=f"{count:,}", tokens=f"{length:,}")
        if count == 1:
            with memory_errors(work, self._shorten):
                return compute()
        try:
            return compute()
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            reason = lack_of_memory(error)
            if not reason:
                raise
        # Outside of the except block nothing holds the tensors of the failed batch any more.
        self._halve(count * length, f"out of memory while {work} ({reason})")
        torch.cuda.empty_cache()
        return None

    def _halve(self, tokens: int, problem: str) -> None:
        """Make batches half as large as one of `tokens` that did not fit."""
        self.tokens = min(self.tokens, tokens) // 2
        change = f"continuing with batches of at most {self.tokens:,} tokens"
        if self._option is not None:
            change += f", as with {self._option} {self.tokens}"
        logger.warning(f"{problem}: {change}")

    def in_batches(
        self,
        lengths: Sequence[int],
        compute: Callable[[list[int]], T],
        batch_size: int | None = None,
    ) -> Iterator[tuple[list[int], T]]:
        """Yield batches, as rows of texts, and what `compute` returns for each; see `by_length`.

        `lengths` are the numbers of tokens of all texts, `batch_size` the most texts of a batch.
        """
        waiting = deque(by_length(lengths, self.tokens, batch_size))
        while waiting:
            rows = waiting[0]
            result = self.attempt(len(rows), lengths[rows[0]], partial(compute, rows))
            if result is not None:
                yield waiting.popleft(), result
                continue
            remaining_rows = list(chain.from_iterable(waiting))
            remaining_lengths = [lengths[row] for row in remaining_rows]
            waiting.clear()
            for positions in by_length(remaining_lengths, self.tokens, batch_size):
                waiting.append([remaining_rows[position] for position in positions])
