"""Options of the analyze commands."""

from dataclasses import dataclass
from pathlib import Path

from denserk.config.options import REQUIRED, Settings, option
from denserk.errors import UsageError

# Plot formats, by file suffix.
PLOTS = (".png", ".pdf", ".svg")


@dataclass(frozen=True, kw_only=True)
class SeveralModels(Settings):
    """Base of analyses that compare several models; each sets its own defaults of files."""

    model: tuple[str, ...] = option(
        REQUIRED, "--model-name-or-path", metavar="[LABEL=]NAME|DIR|HUB_ID", repeat=True
    )
    """Model: a short name, a folder or a Hugging Face name; labelled LABEL or by folder name;
    repeatable."""
    output: str
    plot: str | None

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [label for label, _ in self.labelled]
        if "" in names or "" in (model for _, model in self.labelled):
            raise UsageError("--model LABEL=FOLDER: label and folder must not be empty")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(
                f"duplicate model labels: {', '.join(twice)}", "use --model LABEL=FOLDER"
            )
        if self.plot is not None and Path(self.plot).suffix not in PLOTS:
            raise UsageError(f"--plot {self.plot}: the suffix must be one of {', '.join(PLOTS)}")
        if self.picture is not None and self.picture == Path(self.output):
            raise UsageError(f"--output {self.output}: the same file as the plot")

    @property
    def labelled(self) -> list[tuple[str, str]]:
        """Return (label, model) pairs; models with the same folder name are labelled by path."""
        pairs = [_label(model) for model in self.model]
        names = [Path(m).name or m if label is None else label for label, m in pairs]
        return [
            (model if label is None and names.count(name) > 1 else name, model)
            for name, (label, model) in zip(names, pairs, strict=True)
        ]

    @property
    def picture(self) -> Path | None:
        """Return the path of the plot; None if the table goes to standard output."""
        if self.plot is not None:
            return Path(self.plot)
        return None if self.output == "-" else Path(self.output).with_suffix(".png")


def _label(model: str) -> tuple[str | None, str]:
    """Split `LABEL=FOLDER`; paths that contain "=" have a slash before it."""
    label, equals, rest = model.partition("=")
    return (label, rest) if equals and "/" not in label else (None, model)


@dataclass(frozen=True, kw_only=True)
class SentenceSimilaritySettings(Settings):
    """Options of the sentence-similarity analysis."""

    model: tuple[str, ...] = option(
        REQUIRED, "--model-name-or-path", metavar="NAME|DIR|HUB_ID", repeat=True
    )
    """Model: a short name, a folder or a Hugging Face name; repeatable."""
    data: str = option(REQUIRED, metavar="FILE")
    """Sentence pairs with labels, or triplets (docs/analyze.md)."""
    output: str | None = option(None, metavar="FILE|-", shown_default="none")
    """Also write the table as CSV."""

    def __post_init__(self) -> None:
        if self.data == "-" and len(self.model) > 1:
            raise UsageError("--data - can only be read for one --model")


@dataclass(frozen=True, kw_only=True)
class AttentionEntropySettings(SeveralModels):
    """Options of the attention-entropy analysis."""

    corpus: str = option(REQUIRED, metavar="FILE|DIR|NAME|-")
    """Passages: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    sample: int = option(1000, at_least=1)
    """Number of passages to sample, the same for every model."""
    seed: int = 42
    """Random seed of the sample; a smaller sample is part of a larger one."""
    max_length: int = option(
        128, "--passage-max-length", "--p-max-len", "--passage-max-len", at_least=3
    )
    """Maximum tokens of a passage, special tokens included."""
    fields: tuple[str, ...] = option((), shown_default="the model's own")
    """Passage fields that are concatenated, in order."""
    join: str | None = option(
        None, metavar="TEXT|sep|pair", shown_default="the model's own", rare=True
    )
    """Separator between fields."""
    output: str = option("attention-entropy.csv", metavar="FILE|-")
    """Output table as CSV."""
    plot: str | None = option(None, metavar="FILE", shown_default="PNG beside --output")
    """Output plot as .png, .pdf or .svg."""


@dataclass(frozen=True, kw_only=True)
class QueryLatencySettings(SeveralModels):
    """Options of the query-latency analysis."""

    topics: str = option(REQUIRED, metavar="FILE|DIR|NAME|-")
    """Queries: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    sample: int = option(1000, at_least=1)
    """Number of queries to sample, the same for every model."""
    seed: int = 42
    """Random seed of the sample; a smaller sample is part of a larger one."""
    warm_up: int = option(20, at_least=0)
    """Warm-up queries per model, not timed."""
    output: str = option("query-latency.csv", metavar="FILE|-")
    """Output table as CSV."""
    plot: str | None = option(None, metavar="FILE", shown_default="PNG beside --output")
    """Output plot as .png, .pdf or .svg."""


@dataclass(frozen=True, kw_only=True)
class WinningVectorSettings(SeveralModels):
    """Options of the layers analysis."""

    model: tuple[str, ...] = option(
        REQUIRED, "--model-name-or-path", metavar="[LABEL=]NAME|DIR|HUB_ID", repeat=True
    )
    """Multi-vector model: a short name, a folder or a Hugging Face name; labelled LABEL or by
    folder name; repeatable."""
    topics: str = option(REQUIRED, metavar="FILE|DIR|NAME|-")
    """Queries: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    corpus: str = option(REQUIRED, metavar="FILE|DIR|NAME|-")
    """Corpus of the passages."""
    qrels: str | None = option(None, metavar="FILE|NAME|-", shown_default="none")
    """Analyse the relevant passages of each query in these qrels."""
    relevance_level: int = option(1, "-l", at_least=1)
    """Minimum grade of a relevant passage."""
    run: str | None = option(None, metavar="FILE|-", shown_default="none")
    """Analyse the top passages of each query in this run."""
    depth: int = option(10, at_least=1)
    """Number of passages per query of --run."""
    sample: int = option(1000, at_least=1)
    """Number of judged or retrieved queries to sample, the same for every model."""
    seed: int = 42
    """Random seed of the sample; a smaller sample is part of a larger one."""
    output: str = option("layers.csv", metavar="FILE|-")
    """Output table as CSV."""
    plot: str | None = option(None, metavar="FILE", shown_default="PNG beside --output")
    """Output plot as .png, .pdf or .svg."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.qrels is None and self.run is None:
            raise UsageError("no passages to analyse", "give --qrels, --run or both")
        sources = (self.topics, self.corpus, self.qrels, self.run)
        if sources.count("-") > 1:
            raise UsageError("standard input (-) can be only one of the inputs")
