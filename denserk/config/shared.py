"""Options that several commands share, and their checks."""

from pathlib import Path

from denserk.config.options import Settings, option
from denserk.errors import UsageError
from denserk.extras import require

# Suffixes of plots.
PLOTS = (".png", ".pdf", ".svg")


def check_plot(path: str | None) -> None:
    """Raise an error for a --plot that cannot be written, before the work begins."""
    if path is not None:
        if Path(path).suffix not in PLOTS:
            raise UsageError(f"--plot {path}: the suffix must be one of {', '.join(PLOTS)}")
        require("matplotlib", "drawing plots")


class DeviceSettings(Settings, kw_only=True):
    """Device: for all commands that run a model."""

    device: str = option("auto", metavar="auto|cpu|cuda|cuda:N")
    """Device; auto uses a GPU if there is one. For several GPUs use torchrun."""


class OverwriteSettings(Settings, kw_only=True):
    """Output."""

    overwrite: bool = False
    """Replace an existing output."""


class ResumeSettings(OverwriteSettings, kw_only=True):
    """Output: of a command that can continue an interrupted run."""

    resume: bool = option(False, excludes="overwrite")
    """Resume an interrupted run; finished work is checked against the input and kept."""


class ShardSettings(Settings, kw_only=True):
    """Shards: the part of the input that a command processes."""

    shard_id: int = option(0, "--dataset-shard-index", "--shard-index", at_least=0)
    """Shard to process, from 0."""
    shard_num: int = option(1, "--num-shards", "--dataset-number-of-shards", at_least=1)
    """Number of shards; their outputs concatenated equal the unsharded output."""

    def _check(self) -> None:
        if self.shard_id >= self.shard_num:
            flags = f"--shard-id {self.shard_id} of --shard-num {self.shard_num}"
            raise UsageError(flags, f"shards are numbered 0 to {self.shard_num - 1}")
        if self.shard_num > 1 and "-" in map(vars(self).get, ("corpus", "topics")):
            raise UsageError("--shard-num needs a corpus that can be counted, not a stream")


class TagSettings(Settings, kw_only=True):
    """Output: the tag of a run."""

    tag: str = option("denserk", "--runtag", "--run-tag", nonempty=True)
    """Run tag, the last column of a TREC run."""

    def _check(self) -> None:
        if any(character.isspace() for character in self.tag):
            raise UsageError(f"--tag {self.tag!r}: cannot contain white space")
