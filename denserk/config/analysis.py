"""Options of the analyze commands."""

from enum import StrEnum
from pathlib import Path

from denserk.config.options import REQUIRED, Settings, option, setting
from denserk.config.shared import OverwriteSettings, ResumeSettings, check_plot
from denserk.errors import UsageError


class LabelledModels(OverwriteSettings, kw_only=True):
    """Input and output."""

    model: tuple[str, ...] = option(
        REQUIRED,
        "--model-name-or-path",
        metavar="[LABEL=]NAME|DIR|HUB_ID",
        repeat=True,
        completes="models",
    )
    """Model: a short name, a folder or a Hugging Face name; repeatable."""

    def _check(self) -> None:
        names = [label for label, _ in self.labelled]
        if len(set(names)) < len(names):
            raise UsageError("duplicate model labels", "use --model LABEL=FOLDER")

    @property
    def labelled(self) -> list[tuple[str, str]]:
        """Return (label, model) pairs; models with the same folder name are labelled by path."""
        pairs = [_split_label(value) for value in self.model]
        names = [_folder_name(model) if label is None else label for label, model in pairs]
        labelled = []
        for name, (label, model) in zip(names, pairs, strict=True):
            is_ambiguous = label is None and names.count(name) > 1
            labelled.append((model if is_ambiguous else name, model))
        return labelled


def _split_label(value: str) -> tuple[str | None, str]:
    """Split LABEL=MODEL; a path that contains "=" has a slash before it, and no label."""
    label, equals, model = value.partition("=")
    if equals and "/" not in label:
        return label, model
    return None, value


def _folder_name(model: str) -> str:
    """Return the last part of a path; all of a path without parts, such as "."."""
    return Path(model).name or model


class SentenceSimilaritySettings(LabelledModels, kw_only=True):
    """Input and output."""

    data: str = option(REQUIRED, metavar="FILE")
    """Sentence pairs with labels, or triplets (docs/commands/analyze.md)."""
    output: str | None = option(None, metavar="FILE|-")
    """Also write the table as CSV."""


class SeveralModels(LabelledModels, kw_only=True):
    """Input and output."""

    sample: int = option(1000, at_least=1)
    """Number of passages or queries to sample, the same for every model."""
    seed: int = 42
    """Random seed of the sample; a smaller sample is part of a larger one."""
    output: str
    """Output table as CSV."""
    plot: str | None = option(None, metavar="FILE")
    """Output plot as .png, .pdf or .svg. [default: PNG beside --output]"""

    def _check(self) -> None:
        check_plot(self.plot)

    @property
    def picture(self) -> Path | None:
        """Return the path of the plot; None if the table goes to standard output."""
        if self.plot is not None:
            return Path(self.plot)
        return None if self.output == "-" else Path(self.output).with_suffix(".png")


class AttentionEntropySettings(SeveralModels, kw_only=True):
    """Input and output."""

    corpus: str = option(REQUIRED, metavar="FILE|DIR|NAME|-")
    """Passages: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    max_length: int = option(
        128, "--passage-max-length", "--p-max-len", "--passage-max-len", at_least=3
    )
    """Maximum tokens of a passage, special tokens included."""
    fields: tuple[str, ...] = ()
    """Passage fields that are concatenated, in order. [default: the model's own]"""
    join: str | None = setting(None, metavar="TEXT|sep|pair")
    """Separator between fields. [default: the model's own]"""
    output: str = option("attention-entropy.csv", metavar="FILE|-")


class QueryLatencySettings(SeveralModels, kw_only=True):
    """Input and output."""

    topics: str = option(REQUIRED, metavar="FILE|DIR|NAME|-")
    """Queries: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    warm_up: int = option(20, at_least=0)
    """Warm-up queries per model, not timed."""
    output: str = option("query-latency.csv", metavar="FILE|-")


class WinningVectorSettings(SeveralModels, kw_only=True):
    """Input and output."""

    topics: str = option(REQUIRED, metavar="FILE|DIR|NAME|-")
    """Queries: a file, a folder, irds:NAME, beir:NAME, or - for standard input."""
    corpus: str = option(REQUIRED, metavar="FILE|DIR|NAME|-")
    """Corpus of the passages."""
    qrels: str | None = option(None, metavar="FILE|NAME|-")
    """Analyse the relevant passages of each query in these qrels."""
    relevance_level: int = option(1, "-l", at_least=1)
    """Minimum grade of a relevant passage."""
    run: str | None = option(None, metavar="FILE|-")
    """Analyse the top passages of each query in this run."""
    depth: int = option(10, at_least=1)
    """Number of passages per query of --run."""
    output: str = option("layers.csv", metavar="FILE|-")

    def _check(self) -> None:
        if self.qrels is None and self.run is None:
            raise UsageError("no passages to analyse", "give --qrels, --run or both")


class MissesSettings(OverwriteSettings, kw_only=True):
    """Input and output."""

    run: str = option(REQUIRED, metavar="FILE")
    """Run whose misses are analysed."""
    qrels: str = option(REQUIRED, metavar="FILE|NAME|-")
    """Relevance judgments."""
    corpus: str | None = option(None, metavar="FILE|DIR|NAME")
    """Passages. [default: what the run's index was made from]"""
    topics: str | None = option(None, metavar="FILE|DIR|NAME")
    """Queries. [default: those of the run]"""
    index: tuple[str, ...] = option((), metavar="DIR|GLOB", repeat=True)
    """Index, or folder of vectors, that the run searched. [default: that of the run]"""
    model: str | None = option(
        None, "--encoder", "--model-name-or-path", metavar="NAME|DIR|HUB_ID", completes="models"
    )
    """Model that encoded the index and the queries. [default: that of the index]"""
    bm25: str | None = option(None, metavar="DIR|FILE")
    """BM25 index, or a BM25 run, for the words that only BM25 matches."""
    reranker: str | None = option(None, metavar="DIR|HUB_ID")
    """Cross-encoder that finds hits which are probably relevant and not judged."""
    k: int = option(10, "-k", at_least=1)
    """A relevant passage is missed if it is not among the first K hits."""
    relevance_level: int = option(1, "-l", at_least=1)
    """Minimum grade of a relevant passage."""
    measure: str | None = option(None, "-m", completes="measures")
    """Measure of the gains. [default: nDCG at K]"""
    sample: int = option(1000, at_least=1)
    """Number of queries to sample; gains and counts are of these."""
    seed: int = 42
    """Random seed of the sample; a smaller sample is part of a larger one."""
    output: str = option("misses.csv", metavar="FILE|-")
    """Table of the missed passages as CSV."""
    pairs: str | None = setting(None, metavar="FILE")
    """Analyse these passages, lines of query id and passage id, in place of the missed ones."""
    causes: tuple[str, ...] = setting((), metavar="CAUSE,CAUSE,...")
    """Causes that are tried, such as hub,copies. [default: all]"""
    hub_share: float = setting(5.0, above=0, below=100)
    """A hub is among the first K hits of more than this percentage of the queries."""
    copy_overlap: float = setting(0.7, above=0, at_most=1)
    """Share of common word trigrams (Jaccard) from which two passages are copies."""
    word_weights: tuple[float, ...] = setting(
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), above=0, at_most=1, nonempty=True
    )
    """Weights of BM25 that are tried; the other run gets the rest."""
    most_encoded: int = setting(5000, at_least=0)
    """Passages that one change may encode again to measure it on all queries; a change that needs
    more has an oracle gain."""


class Step(StrEnum):
    """Steps that a run is made by, in their order."""

    MODEL = "model"
    VECTORS = "vectors"
    INDEX = "index"
    RUN = "run"
    NONE = "none"


class DoctorSettings(Settings):
    """What is done instead of a check of this machine."""

    model: str | None = option(
        None, metavar="NAME|DIR|HUB_ID", completes="models", excludes="clear_compiled"
    )
    """Compare a model with the vectors that it was saved with (canary.json), and exit."""
    clear_compiled: bool = False
    """Remove the compiled models that are kept for queries, and exit."""


class ReproduceSettings(ResumeSettings, kw_only=True):
    """Input and output."""

    from_step: Step = Step.RUN
    """First step that is made again; later ones use its result. none: only check the files."""
    output: str | None = option(None, metavar="DIR")
    """Folder that keeps what was re-made, for --resume, too. [default: a temporary one]"""
    tolerance: float = option(1e-5, at_least=0)
    """Largest difference of scores, vectors or weights that counts as equal."""

    def _check(self) -> None:
        for name, is_given in (("resume", self.resume), ("overwrite", self.overwrite)):
            if is_given and self.output is None:
                raise UsageError(f"--{name} needs --output", "a temporary folder is always new")
