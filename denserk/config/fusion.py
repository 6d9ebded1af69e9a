"""Options of run fusion."""

from dataclasses import dataclass
from enum import StrEnum

from denserk.config.options import Settings, option
from denserk.errors import UsageError

# Sum of weight / (rrf-k + rank), reciprocal rank fusion; or sum of weight x normalised score.
FusionMethod = StrEnum("FusionMethod", "RRF LINEAR")


class Normalization(StrEnum):
    """Score normalisations, applied per query and run."""

    MIN_MAX = "min-max"  # Scale scores to 0..1; equal scores become 1
    ZMUV = "zmuv"  # Zero mean and unit variance; equal scores become 0
    NONE = "none"  # No normalisation


# Score of a passage that a run did not return: 0, as in Pyserini, ranx and trectools, or the
# normalised score of the run's last hit (0 under min-max).
Missing = StrEnum("Missing", "ZERO LOWEST")


@dataclass(frozen=True)
class FusionSettings(Settings):
    """Fusion."""

    method: FusionMethod = option(FusionMethod.RRF, "--fusion")
    """Fusion method."""
    rrf_k: int = option(60, "--rrf.k", at_least=0)
    """rrf: constant added to each rank; larger values flatten the differences between ranks."""
    weights: tuple[float, ...] | None = option(None, shown_default="1 for each run", at_least=0)
    """Weights of the runs, in the order given."""
    alpha: float | None = option(None, excludes="weights", at_least=0, at_most=1)
    """Weight of the first of two runs, from 0 to 1; the second gets the rest."""
    normalization: Normalization = option(Normalization.MIN_MAX, "--norm")
    """linear: score normalisation, per query and run."""
    missing: Missing | None = option(None, shown_default="zero; lowest with zmuv")
    """linear: score of a passage that a run did not return."""
    depth: int | None = option(None, "--fuse-depth", shown_default="all", at_least=1)
    """Hits per query used from each run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights is not None and not any(self.weights):
            raise UsageError("--weights: one must be above 0")

    def weights_of(self, count: int) -> tuple[float, ...]:
        """Return the weight of each of `count` runs; other numbers of weights are a UsageError."""
        if self.alpha is not None:
            if count != 2:
                raise UsageError(f"--alpha is for two runs, not {count}", "give --weights")
            return self.alpha, 1 - self.alpha
        if self.weights is None:
            return (1.0,) * count
        if len(self.weights) != count:
            raise UsageError(f"--weights has {len(self.weights)} weights for {count} runs")
        return self.weights
