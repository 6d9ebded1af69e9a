"""Several models in one analysis: what each is called, and where table and plot go."""

from dataclasses import dataclass
from pathlib import Path

from denserk.errors import UsageError
from denserk.settings.options import REQUIRED, Settings, option

# Kinds of pictures, by the file's suffix
PLOTS = (".png", ".pdf", ".svg")


class SeveralModels:
    """What the settings of such an analysis have in common; the fields stand in each of them."""

    model: tuple[str, ...]
    output: str
    plot: str | None

    def check_outputs(self) -> None:
        """Refuses models without a name of their own, and unknown pictures.

        Raises:
            UsageError: as said.
        """
        names = [label for label, _ in self.labelled]
        if "" in names or "" in (model for _, model in self.labelled):
            raise UsageError("--model LABEL=FOLDER: one of the two is empty")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(
                f"two models are called {', '.join(twice)}", "name them: --model LABEL=FOLDER"
            )
        if self.plot is not None and Path(self.plot).suffix not in PLOTS:
            raise UsageError(f"--plot {self.plot}: it ends in {', '.join(PLOTS)}")
        if self.picture is not None and self.picture == Path(self.output):
            raise UsageError(f"--output {self.output}: table and plot would be one file")

    @property
    def labelled(self) -> list[tuple[str, str]]:
        """Every model's label and name; a label that two folders share gives way to their paths."""
        pairs = [_label(model) for model in self.model]
        names = [Path(m).name or m if label is None else label for label, m in pairs]
        return [
            (model if label is None and names.count(name) > 1 else name, model)
            for name, (label, model) in zip(names, pairs, strict=True)
        ]

    @property
    def picture(self) -> Path | None:
        """Where the plot goes; None beside a table on standard output."""
        if self.plot is not None:
            return Path(self.plot)
        return None if self.output == "-" else Path(self.output).with_suffix(".png")


def _label(model: str) -> tuple[str | None, str]:
    """`LABEL=FOLDER` as its two parts; a path that holds the sign has a slash before it."""
    label, equals, rest = model.partition("=")
    return (label, rest) if equals and "/" not in label else (None, model)


@dataclass(frozen=True, kw_only=True)
class SentenceSimilaritySettings(Settings):
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
        if self.data == "-" and len(self.model) > 1:
            raise UsageError("--data - serves one --model; several need a file")


@dataclass(frozen=True, kw_only=True)
class AttentionEntropySettings(SeveralModels):
    """Which models, on which passages."""

    model: tuple[str, ...] = option(
        REQUIRED, "--model-name-or-path", metavar="[LABEL=]NAME|DIR|HUB_ID", repeat=True
    )
    """Weights: a short name, a folder, or a name on the hub; a curve each, called by the label or
    by the folder's name. More of them may follow one option."""
    corpus: str = option(REQUIRED, metavar="FILE|DIR|NAME|-")
    """Passages: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    sample: int = 1000
    """How many passages are drawn; the same ones for every model, and none without text."""
    seed: int = 42
    """Seed of the draw; at equal seed a smaller sample lies in a larger."""
    max_length: int = option(128, "--passage-max-length", "--p-max-len", "--passage-max-len")
    """Tokens of a passage, special tokens included."""
    fields: tuple[str, ...] = option((), shown_default="the model's own")
    """Fields of a passage that make its text, in order."""
    join: str | None = option(
        None, metavar="TEXT|sep|pair", shown_default="the model's own", rare=True
    )
    """What stands between two fields."""
    output: str = option("attention-entropy.csv", metavar="FILE|-")
    """The values as CSV."""
    plot: str | None = option(
        None, metavar="FILE", shown_default="beside --output, as PNG, where matplotlib is installed"
    )
    """The curves as .png, .pdf or .svg."""

    def __post_init__(self) -> None:
        if self.sample < 1:
            raise UsageError(f"--sample {self.sample}: at least 1 is needed")
        if self.max_length < 3:
            raise UsageError(
                f"--max-length {self.max_length}: at least 3, for two special tokens and a word"
            )
        self.check_outputs()


@dataclass(frozen=True, kw_only=True)
class QueryLatencySettings(SeveralModels):
    """Which models, on which queries."""

    model: tuple[str, ...] = option(
        REQUIRED, "--model-name-or-path", metavar="[LABEL=]NAME|DIR|HUB_ID", repeat=True
    )
    """Weights: a short name, a folder, or a name on the hub; a row each, called by the label or
    by the folder's name. More of them may follow one option."""
    topics: str = option(REQUIRED, metavar="FILE|DIR|NAME|-")
    """Queries: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    sample: int = 1000
    """How many queries are drawn; the same ones for every model."""
    seed: int = 42
    """Seed of the draw; at equal seed a smaller sample lies in a larger."""
    warm_up: int = 20
    """Queries that each model encodes before the clock runs, from the first of the sample."""
    output: str = option("query-latency.csv", metavar="FILE|-")
    """The percentiles as CSV."""
    plot: str | None = option(
        None, metavar="FILE", shown_default="beside --output, as PNG, where matplotlib is installed"
    )
    """Every time as a dot, as .png, .pdf or .svg."""

    def __post_init__(self) -> None:
        if self.sample < 1:
            raise UsageError(f"--sample {self.sample}: at least 1 is needed")
        if self.warm_up < 0:
            raise UsageError(f"--warm-up {self.warm_up}: 0 or more")
        self.check_outputs()


@dataclass(frozen=True, kw_only=True)
class WinningVectorSettings(SeveralModels):
    """Which models, on which pairs of a query and a passage."""

    model: tuple[str, ...] = option(
        REQUIRED, "--model-name-or-path", metavar="[LABEL=]NAME|DIR|HUB_ID", repeat=True
    )
    """Weights: a short name, a folder, or a name on the hub, with several vectors a passage;
    called by the label or by the folder's name. More of them may follow one option."""
    topics: str = option(REQUIRED, metavar="FILE|DIR|NAME|-")
    """Queries: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    corpus: str = option(REQUIRED, metavar="FILE|DIR|NAME|-")
    """Passages, among them those that are looked at."""
    qrels: str | None = option(None, metavar="FILE|NAME|-", shown_default="none")
    """Look at the positive passages of each query, by these judgements."""
    relevance_level: int = option(1, "-l")
    """The lowest grade that makes a passage positive."""
    run: str | None = option(None, metavar="FILE|-", shown_default="none")
    """Look at the best passages of each query, by this run."""
    depth: int = 10
    """How many of a run's passages, for each query."""
    sample: int = 1000
    """How many queries are drawn, of those that judgements or run know; the same ones for every
    model."""
    seed: int = 42
    """Seed of the draw; at equal seed a smaller sample lies in a larger."""
    output: str = option("layers.csv", metavar="FILE|-")
    """The counts as CSV."""
    plot: str | None = option(
        None, metavar="FILE", shown_default="beside --output, as PNG, where matplotlib is installed"
    )
    """The shares as .png, .pdf or .svg."""

    def __post_init__(self) -> None:
        if self.qrels is None and self.run is None:
            raise UsageError(
                "no passages to look at",
                "name judgements (--qrels), whose positives count, or a run (--run), or both",
            )
        for name in ("relevance_level", "depth", "sample"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} {getattr(self, name)}: at least 1 is needed")
        sources = (self.topics, self.corpus, self.qrels, self.run)
        if sources.count("-") > 1:
            raise UsageError("two inputs are -: standard input can be read once")
        self.check_outputs()
