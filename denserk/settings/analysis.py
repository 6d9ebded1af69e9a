"""What an analysis of a trained model is told."""

from dataclasses import dataclass

from denserk.errors import UsageError
from denserk.settings.options import REQUIRED, option


@dataclass(frozen=True, kw_only=True)
class SentenceSimilaritySettings:
    """Which models, on which sentences."""

    model: tuple[str, ...] = option(
        REQUIRED, "--model-name-or-path", metavar="NAME|DIR|HUB_ID", repeat=True
    )
    """Weights: a short name, a folder, or a name on the hub; repeatable, a row each."""
    data: str = option(REQUIRED, metavar="FILE")
    """Pairs with labels, or triplets (docs/analyze.md); plain or gzip."""
    output: str | None = option(None, metavar="FILE|-", shown_default="none")
    """Also write the table as CSV."""

    def __post_init__(self) -> None:
        """Refuses a stream for several models, which each read it from its start."""
        if self.data == "-" and len(self.model) > 1:
            raise UsageError("--data - serves one --model; several need a file")
