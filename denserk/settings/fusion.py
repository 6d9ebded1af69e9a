"""How several runs become one."""

import math
from dataclasses import dataclass
from enum import StrEnum

from denserk.errors import UsageError
from denserk.settings.options import Settings, option


class FusionMethod(StrEnum):
    """How the scores of a passage in several runs become one."""

    RRF = "rrf"
    """Reciprocal rank fusion: the sum of weight / (rrf-k + rank)."""
    LINEAR = "linear"
    """The sum of weight x normalised score."""


class Normalization(StrEnum):
    """What is done to a query's scores in one run before they are added to another's."""

    MIN_MAX = "min-max"
    """The lowest becomes 0, the highest 1; where all are equal, each 1."""
    ZMUV = "zmuv"
    """Zero mean, unit variance; where all are equal, each 0."""
    NONE = "none"
    """Nothing."""


class Missing(StrEnum):
    """What a passage counts in a run that does not have it."""

    ZERO = "zero"
    """0, as in Pyserini, ranx and trectools."""
    LOWEST = "lowest"
    """What the run's last hit counts; under min-max that is 0."""


@dataclass(frozen=True)
class FusionSettings(Settings):
    """How runs are fused."""

    method: FusionMethod = option(FusionMethod.RRF, "--fusion")
    """How the scores of a passage become one."""
    rrf_k: int = option(60, "--rrf.k", at_least=0)
    """rrf: what is added to each rank; the larger, the less the first ranks stand out."""
    weights: tuple[float, ...] | None = option(None, shown_default="1 for each run")
    """What each run weighs, in their order."""
    alpha: float | None = option(None, shown_default="--weights", at_least=0, at_most=1)
    """Two runs: what the first weighs, from 0 to 1; the second has the rest."""
    normalization: Normalization = option(Normalization.MIN_MAX, "--norm")
    """linear: what is done to a query's scores in a run before they are added."""
    missing: Missing | None = option(None, shown_default="zero; lowest with zmuv")
    """linear: what a passage counts in a run that does not have it."""
    depth: int | None = option(None, "--fuse-depth", shown_default="all", at_least=1)
    """How many hits of a query are taken from each run."""

    def __post_init__(self) -> None:
        """Reject weights of which none counts."""
        super().__post_init__()
        if self.weights is not None and self.alpha is not None:
            raise UsageError("--weights and --alpha exclude each other", "give one of them")
        if self.weights is not None and not (
            all(math.isfinite(w) and w >= 0 for w in self.weights) and any(self.weights)
        ):
            given = ",".join(f"{weight:g}" for weight in self.weights)
            raise UsageError(f"--weights {given}: none below 0, and one above it, are needed")

    def weights_of(self, count: int) -> tuple[float, ...]:
        """The weight of each of `count` runs.

        Raises:
            UsageError: the weights were given for another number of runs.

        >>> FusionSettings(alpha=0.25).weights_of(2)
        (0.25, 0.75)
        """
        if self.alpha is not None:
            if count != 2:
                raise UsageError(f"--alpha is for two runs, not {count}", "give --weights")
            return self.alpha, 1 - self.alpha
        if self.weights is None:
            return (1.0,) * count
        if len(self.weights) != count:
            raise UsageError(
                f"--weights has {len(self.weights)} weights for {count} runs",
                "give one for each run, in their order",
            )
        return self.weights
