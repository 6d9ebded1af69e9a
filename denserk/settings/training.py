"""What a fine-tuning run is made of."""

from dataclasses import dataclass
from enum import StrEnum

from denserk.errors import UsageError
from denserk.settings.options import option


class PositiveChoice(StrEnum):
    """Which of a query's positives is used at a visit."""

    ROTATE = "rotate"
    """In turn: (query + seed + epoch) modulo their number (Tevatron, Condenser)."""
    FIRST = "first"
    """Always the first (DPR, MLR)."""
    RANDOM = "random"
    """Drawn anew at each visit (MASTER)."""


class NegativeChoice(StrEnum):
    """Which of a query's hard negatives are used at a visit."""

    WINDOW = "window"
    """One shuffle a query, then a window that moves each epoch: no repeats until all are used."""
    SHUFFLE = "shuffle"
    """Shuffled anew at each visit."""
    TOP = "top"
    """The first of the list, always."""


class ContrastiveKind(StrEnum):
    """What a query's positive is told apart from."""

    IN_BATCH = "in-batch"
    """All passages of the batch."""
    FULL = "full"
    """SimLM's: all passages, and the batch's other queries and positives, in one softmax."""


class Distillation(StrEnum):
    """How the student is held to the teacher's scores over a query's own passages."""

    KL = "kl"
    """KL divergence from the teacher's distribution to the student's."""
    SOFT_CROSS_ENTROPY = "soft-cross-entropy"
    """What MASTER's released code computes; KL's gradient, up to 1e-7 inside the logarithm."""
    MARGIN_MSE = "margin-mse"
    """Squared difference of the margins between positive and negative."""


@dataclass(frozen=True)
class ObjectiveSettings:
    """The loss."""

    temperature: float = 1.0
    """Divides every score."""
    contrastive: ContrastiveKind = ContrastiveKind.IN_BATCH
    """What a query's positive is told apart from."""
    cls_weight: float = 0.5
    """agg: weight of the loss of the [CLS] part alone."""
    agg_weight: float = 0.5
    """agg: weight of the loss of the lexical part alone."""
    layer_weight: float = option(1.0, "--lambda")
    """Self-contrastive pooling: weight of the softmax over the positive's own vectors."""
    distillation: Distillation | None = option(None, shown_default="no teacher")
    """Learn from the teacher's scores in the training data."""
    contrastive_weight: float | None = option(None, shown_default="1; 0.2 beside --distillation")
    """Weight of the contrastive loss."""

    def __post_init__(self) -> None:
        """Refuses a temperature that is none, and negative weights."""
        if self.temperature <= 0:
            raise UsageError(f"--temperature {self.temperature}: above 0")
        for name in ("cls_weight", "agg_weight", "layer_weight", "contrastive_weight"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UsageError(f"--{name.replace('_', '-')} {value}: at least 0")

    @property
    def weight_of_contrastive(self) -> float:
        """The contrastive loss's weight, the default resolved."""
        if self.contrastive_weight is not None:
            return self.contrastive_weight
        return 1.0 if self.distillation is None else 0.2


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


@dataclass(frozen=True)
class CacheSettings:
    """Large contrastive batches in small memory."""

    grad_cache: bool = False
    """Make vectors chunk by chunk and send gradients back the same way: memory of a chunk, same result."""
    q_chunk: int = option(4, "--gc-q-chunk-size")
    """Queries a chunk."""
    p_chunk: int = option(32, "--gc-p-chunk-size")
    """Passages a chunk."""

    def __post_init__(self) -> None:
        """Refuses empty chunks."""
        if self.q_chunk < 1 or self.p_chunk < 1:
            raise UsageError(f"--q-chunk {self.q_chunk} --p-chunk {self.p_chunk}: at least 1")
