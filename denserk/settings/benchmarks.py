"""What a suite of the field is: one row of data with the sources of its parts and its papers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

from denserk.errors import UsageError
from denserk.settings.options import Settings, from_json, option
from denserk.settings.recipes import FOLDER, read_yaml


class Paper(StrEnum):
    """The papers whose figures can stand beside a run's."""

    AGGRETRIEVER = "aggretriever"
    """Aggretriever (TACL 2023)."""
    CONDENSER = "condenser"
    """Condenser (2021), coCondenser (2022) and gradient caching (2021)."""
    MASTER = "master"
    """MASTER (2023)."""
    MLR = "mlr"
    """MLR (2025)."""


@dataclass(frozen=True)
class Source:
    """Where one part of a suite comes from.

    Attributes:
        paths: places under $DENSERK_CACHE, also with `.gz`; the first that is there is read.
        name: what it is called otherwise: `irds:NAME`, or `beir:NAME/SPLIT`; None where no package
            knows it.
        fetched: whether that package fetches it where it is not on the disk.
    """

    paths: tuple[str, ...]
    name: str | None = None
    fetched: bool = True


@dataclass(frozen=True)
class Corpus:
    """The passages of one or more suites, and how they become text.

    Attributes:
        name: tells corpora apart: runs on two of them are never mixed.
        source: where the passages come from.
        join: what stands between title and text, for models that do not say it themselves.
        query_max_length: tokens of a query.
        passage_max_length: tokens of a passage.
    """

    name: str
    source: Source
    join: str = " "
    query_max_length: int = 32
    passage_max_length: int = 128


@dataclass(frozen=True)
class Benchmark:
    """One test set of the field.

    Attributes:
        name: what a user types.
        title: what it is.
        corpus: what is searched.
        topics: the queries.
        measures: what is reported, in ir-measures' notation.
        qrels: the judgements; None where answers are matched instead.
        answers: the questions with their answers; None where there are judgements.
        remove_query: hits whose id is the query's own do not count.
        max_passage: passage ids may be "document#part"; the best part ranks the document.
        regex: answers are regular expressions.
        labels: what each paper that reports it calls it in its tables.
        metrics: what the papers call a measure -> the measure.
    """

    name: str
    title: str
    corpus: Corpus
    topics: Source
    measures: tuple[str, ...]
    qrels: Source | None = None
    answers: Source | None = None
    remove_query: bool = False
    max_passage: bool = False
    regex: bool = False
    labels: Mapping[Paper, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)

    @property
    def short(self) -> str:
        """What files are called.

        >>> from denserk.settings.benchmarks import find_benchmark
        >>> find_benchmark("beir/cqadupstack/android").short
        'cqadupstack-android'
        """
        return self.name.removeprefix("beir/").replace("/", "-")

    def measure_of(self, paper: Paper, metric: str) -> str | None:
        """The measure that a paper calls `metric`; None where there is no such measure.

        >>> from denserk.settings.benchmarks import benchmarks
        >>> benchmarks()["msmarco-titled-dev"].measure_of(Paper.MASTER, "R@1K")
        'Success@1000'
        >>> benchmarks()["nq-test"].measure_of(Paper.MLR, "R@20")
        'Success@20'
        """
        measure = self.metrics.get(metric)
        if paper is Paper.MASTER and measure is not None:
            return HIT_RATES.get(measure, measure)
        return measure


# MASTER's released evaluation counts a query once it has any relevant passage, and says R@k
HIT_RATES = {"R@50": "Success@50", "R@1000": "Success@1000"}


@dataclass(frozen=True)
class Group:
    """Suites whose unweighted mean is reported.

    Attributes:
        name: what a user types.
        title: what it is.
        members: names of suites, and of groups that count as one.
        labels: what each paper that reports the mean calls it.
    """

    name: str
    title: str
    members: tuple[str, ...]
    labels: Mapping[Paper, str] = field(default_factory=dict)


@cache
def _recipe() -> Mapping[str, Mapping[str, Any]]:
    return read_yaml(FOLDER / "benchmarks.yaml")


@cache
def benchmarks() -> Mapping[str, Benchmark]:
    """Return every benchmark by its name."""
    corpora = {
        name: from_json(Corpus, {"name": name, **values})
        for name, values in _recipe()["corpora"].items()
    }

    def benchmark(name: str, values: Mapping[str, Any]) -> Benchmark:
        if name.startswith("beir/"):
            values = _beir(name, **values)
        else:
            values = {**values, "corpus": corpora[values["corpus"]]}
        return from_json(Benchmark, {"name": name, **values})

    return {name: benchmark(name, values) for name, values in _recipe()["benchmarks"].items()}


def _beir(name: str, split: str = "test", fetched: bool = True, **values: Any) -> dict[str, Any]:
    """Add the corpus, topics and qrels that the name of a BEIR set implies."""
    beir = name.replace("/", ":", 1)
    judged = Source((name,), f"{beir}/{split}", fetched)
    source = Source((name,), beir, fetched)
    corpus = Corpus(name, source, query_max_length=512, passage_max_length=512)
    return {**values, "corpus": corpus, "topics": judged, "qrels": judged}


@cache
def groups() -> Mapping[str, Group]:
    """Return every group by its name; one that counts in others stands before them."""
    rows = _recipe()["groups"]
    return {name: from_json(Group, {"name": name, **values}) for name, values in rows.items()}


class BenchmarkRow(NamedTuple):
    """One line of the listing; all of it text."""

    name: str
    title: str
    source: str
    measures: str
    papers: str


def find_benchmark(name: str) -> Benchmark | Group:
    """The suite or group of a name.

    Raises:
        UsageError: none is called so; the nearest names are told.

    >>> find_benchmark("dl19").measures
    ('nDCG@10', 'AP(rel=2)', 'R(rel=2)@1000')
    """
    known: dict[str, Benchmark | Group] = {**benchmarks(), **groups()}
    name = name.replace(":", "/") if name.startswith("beir:") else name.rstrip("/")
    if name not in known:
        near = get_close_matches(name, known, n=3, cutoff=0.4)
        near += [other for other in known if other.endswith(f"/{name}") and other not in near]
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(
            f"no benchmark is called {name!r}", f"{hint}denserk benchmark --list prints all of them"
        )
    return known[name]


def find_benchmarks(names: Iterable[str]) -> tuple[Benchmark, ...]:
    """The suites of several names, groups resolved, each once, in order.

    Raises:
        UsageError: a name is unknown.

    >>> [suite.name for suite in find_benchmarks(["beir-small", "dl19", "beir/scifact"])][3:]
    ['beir/scidocs', 'beir/scifact', 'dl19']
    """
    found: dict[str, Benchmark] = {}
    for name in names:
        entry = find_benchmark(name)
        if isinstance(entry, Benchmark):
            found[entry.name] = entry
        else:
            found.update({suite.name: suite for suite in find_benchmarks(entry.members)})
    return tuple(found.values())


def groups_within(names: Iterable[str]) -> tuple[Group, ...]:
    """The groups whose means can be told from suites of these names, in the order of `groups`.

    >>> [group.name for group in groups_within(["beir-small"])]
    ['beir-small']
    """
    present = {suite.name for suite in find_benchmarks(names)}
    return tuple(
        group
        for group in groups().values()
        if all(suite.name in present for suite in find_benchmarks([group.name]))
    )


def list_benchmarks() -> list[BenchmarkRow]:
    """Every suite and group as lines of text."""
    rows = [
        BenchmarkRow(
            suite.name,
            suite.title,
            _told(suite.corpus.source, suite.qrels or suite.answers),
            " ".join(suite.measures),
            ", ".join(suite.labels),
        )
        for suite in benchmarks().values()
    ]
    for group in groups().values():
        measures = dict.fromkeys(m for s in find_benchmarks([group.name]) for m in s.measures)
        short = (member.removeprefix("beir/") for member in group.members)
        rows.append(
            BenchmarkRow(
                group.name,
                group.title,
                " ".join(short) if len(group.members) < 10 else f"{len(group.members)} sets",
                " ".join(measures),
                ", ".join(group.labels),
            )
        )
    return rows


def _told(corpus: Source, judged: Source | None) -> str:
    parts = []
    for source in (corpus, judged):
        if source is not None:
            local = f"$DENSERK_CACHE/{source.paths[0]}"
            parts.append((source.name or local) if source.fetched else local)
    return " + ".join(dict.fromkeys(parts))


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
        if self.resume and self.overwrite:
            raise UsageError("--resume and --overwrite exclude each other")
