"""What a fine-tuning run is made of."""

from dataclasses import dataclass
from enum import StrEnum

from denserk.errors import UsageError
from denserk.settings.options import option


class PositiveChoice(StrEnum):
    """Which of a query's positives is used at a visit."""

    ROTATE = "rotate"
    """One after another: (query + seed + epoch) modulo their number (Tevatron, Condenser)."""
    FIRST = "first"
    """Always the first (DPR, MLR)."""
    RANDOM = "random"
    """Drawn anew at each visit (MASTER)."""


class NegativeChoice(StrEnum):
    """Which of a query's hard negatives are used at a visit."""

    WINDOW = "window"
    """One shuffle a query, then a window that moves on each epoch: no repeats until all are used."""
    SHUFFLE = "shuffle"
    """Shuffled anew at each visit."""
    TOP = "top"
    """The first of the list, always."""


@dataclass(frozen=True)
class SamplingSettings:
    """Which queries, positives and negatives a run sees."""

    group_size: int = option(8, "--train-group-size", "--train-n-passages")
    """Passages of a query: one positive and the rest hard negatives."""
    positive: PositiveChoice = PositiveChoice.ROTATE
    """Which positive a visit uses."""
    negative: NegativeChoice = NegativeChoice.WINDOW
    """Which hard negatives a visit uses."""
    negative_pool: int | None = option(None, shown_default="all")
    """Use only the first so many negatives of each list."""
    train_queries: int | None = option(None, shown_default="all")
    """Train on so many queries, drawn with --seed."""
    train_fraction: float | None = option(None, shown_default="1")
    """Train on this share of the queries, drawn with --seed."""
    seed: int = 42
    """Seed of every random choice: queries, order, negatives, initial weights, dropout."""

    def __post_init__(self) -> None:
        """Refuses empty groups and contradicting shares."""
        if self.group_size < 1:
            raise UsageError(f"--group-size {self.group_size}: at least 1 is needed, the positive")
        if self.train_queries is not None and self.train_fraction is not None:
            raise UsageError("--train-queries and --train-fraction exclude each other")
        if self.train_queries is not None and self.train_queries < 1:
            raise UsageError(f"--train-queries {self.train_queries}: at least 1 is needed")
        if self.train_fraction is not None and not 0 < self.train_fraction <= 1:
            raise UsageError(f"--train-fraction {self.train_fraction}: above 0, at most 1")
        if self.negative_pool is not None and self.negative_pool < 1:
            raise UsageError(f"--negative-pool {self.negative_pool}: at least 1 is needed")
