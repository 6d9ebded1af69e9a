"""Options of the benchmark command."""

from dataclasses import dataclass

from denserk.errors import UsageError
from denserk.settings.options import Settings, option
from denserk.settings.suite import Paper


@dataclass(frozen=True, kw_only=True)
class BenchmarkPaths:
    """Runs that are measured, and the model that makes some of them."""

    runs: tuple[str, ...] = option((), "--run", metavar="FILE|DIR", repeat=True)
    """A run of the benchmark, or a folder of runs named by benchmark; repeatable."""
    model: str | None = option(
        None, "--encoder", "--model-name-or-path", metavar="NAME|DIR|HUB_ID", shown_default="none"
    )
    """Encode, index and search each benchmark with this model first; the runs go to --output."""
    output: str | None = option(None, metavar="DIR", shown_default="none: needed with --model")
    """The folder of the runs that --model makes."""
    against: tuple[Paper, ...] = option(
        (), repeat=True, metavar="|".join(Paper), shown_default="none"
    )
    """A paper whose published figures are printed beside the runs'; repeatable."""
    list: bool = False
    """Print every benchmark with its source, measures and papers, and stop."""

    def __post_init__(self) -> None:
        """Reject a model without a folder for its runs, and the reverse."""
        if (self.model is None) != (self.output is None):
            raise UsageError("--model and --output make runs together", "give both, or --runs")
        if self.output == "-":
            raise UsageError("--output -: a benchmark writes several runs", "name a folder")


@dataclass(frozen=True)
class MakeSettings(Settings):
    """How the runs of a model are made."""

    hits: int = option(1000, "-k")
    """Passages returned for a query."""
    index_device: str | None = option(
        None, "--faiss-device", metavar="cpu|cuda|cuda:N", shown_default="as --device", rare=True
    )
    """Where the index is searched."""
    resume: bool = False
    """Keep the runs in --output that are finished, and make the others."""
    overwrite: bool = False
    """Replace the outputs that exist."""
    discard_vectors: bool = option(False, rare=True)
    """Remove the vectors and the index of a corpus once its runs are made."""

    def __post_init__(self) -> None:
        """Reject two ways with an existing folder."""
        if self.resume and self.overwrite:
            raise UsageError("--resume and --overwrite exclude each other")
