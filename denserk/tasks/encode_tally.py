"""What an encoding run did: texts, tokens and seconds, of one process or of several together."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from denserk.data.batches import PlannedTexts
from denserk.modeling.text_encoder import TextEncoder


@dataclass(frozen=True)
class EncodeResult:
    """Vectors in the output, and the work of this run.

    Attributes:
        count: vectors in the output.
        dimension: theirs.
        encoded: texts that were encoded now.
        seconds: from the first of these being read to the last being written.
        tokens: their tokens.
        positions: the same with padding.
    """

    count: int
    dimension: int
    encoded: int
    seconds: float
    tokens: int
    positions: int

    @property
    def per_second(self) -> float:
        """Texts a second, of those encoded now."""
        return self.encoded / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Their tokens a second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def padding(self) -> float:
        """Which share of the positions was padding."""
        return 1 - self.tokens / self.positions if self.positions else 0.0


class Tally:
    """What went through the model so far, and since when."""

    def __init__(self) -> None:
        self.texts = self.tokens = self.positions = 0
        self.begun = time.perf_counter()

    def pass_over(self) -> None:
        """A block that was finished before; time counts from the first one that was not."""
        if not self.texts:
            self.begun = time.perf_counter()

    def add(self, planned: PlannedTexts) -> None:
        """What is handed to the model now."""
        self.texts += planned.count
        self.tokens += planned.tokens
        self.positions += planned.positions

    @property
    def seconds(self) -> float:
        """Since the first text was read that was not finished before."""
        return time.perf_counter() - self.begun if self.texts else 0.0

    def result(self, count: int, encoder: TextEncoder) -> EncodeResult:
        """The work of a process alone; `count` vectors are in the output."""
        work = self.texts, self.seconds, self.tokens, self.positions
        return EncodeResult(count, encoder.dimension, *work)

    def part(self, encoder: TextEncoder) -> EncodeResult:
        """What this process did of the work of several."""
        work = self.texts, self.seconds, self.tokens, self.positions
        return EncodeResult(self.texts, encoder.dimension, *work)


def together(count: int, parts: Sequence[EncodeResult]) -> EncodeResult:
    """The work of several processes as one."""
    return EncodeResult(
        count,
        parts[0].dimension,
        encoded=sum(part.encoded for part in parts),
        seconds=max(part.seconds for part in parts),
        tokens=sum(part.tokens for part in parts),
        positions=sum(part.positions for part in parts),
    )
