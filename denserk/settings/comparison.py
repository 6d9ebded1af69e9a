"""How runs are compared with a baseline."""

from dataclasses import dataclass
from enum import StrEnum

from denserk.errors import UsageError
from denserk.settings.options import Settings, option


class PairedTest(StrEnum):
    """How it is judged whether two runs differ."""

    T = "t"
    """The paired t-test."""
    RANDOMISATION = "randomisation"
    """The paired randomisation test (Fisher's): signs of the differences drawn at random."""


class Correction(StrEnum):
    """What is done about testing several runs or measures at once."""

    HOLM = "holm"
    """Holm's step-down correction."""
    BONFERRONI = "bonferroni"
    """Each p-value times the number of tests."""
    NONE = "none"
    """Nothing."""


@dataclass(frozen=True)
class ComparisonSettings(Settings):
    """Whether runs differ from one of them."""

    baseline: str | None = option(None, metavar="RUN", shown_default="no test")
    """Test every other run against this one, per measure: a file, or a run's name in the table."""
    test: PairedTest = PairedTest.T
    """The paired test."""
    correction: Correction = Correction.HOLM
    """Correction of p-values and intervals over all runs and measures tested."""
    alpha: float = 0.05
    """Corrected p-values below it are marked; 1 - alpha is the confidence of the intervals."""
    permutations: int = option(100_000, rare=True, at_least=1)
    """randomisation: how many draws."""
    test_seed: int = option(42, rare=True)
    """randomisation: seed of the draws."""

    def __post_init__(self) -> None:
        """Reject levels of significance outside 0 to 1."""
        super().__post_init__()
        if not 0 < self.alpha < 1:
            raise UsageError(f"--alpha {self.alpha}: between 0 and 1", "0.05 is usual")
