"""Benchmarks of `denserk/recipes/benchmarks.yaml`, and options of the benchmark command."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

from denserk.config.options import ResumeSettings, from_json, option
from denserk.config.recipes import FOLDER, read_yaml
from denserk.errors import UsageError


class Paper(StrEnum):
    """Papers with published figures."""

    AGGRETRIEVER = "aggretriever"  # Aggretriever (TACL 2023)
    CONDENSER = "condenser"  # Condenser (2021), coCondenser (2022) and gradient caching (2021)
    MASTER = "master"  # MASTER (2023)
    MLR = "mlr"  # MLR (2025)


@dataclass(frozen=True)
class Source:
    """Source of a corpus, of topics or of qrels.

    Attributes:
        paths: paths under $DENSERK_CACHE, also with `.gz`; the first existing one is used.
        name: `irds:NAME` or `beir:NAME/SPLIT`; None if no package has it.
        fetched: whether that package can download it.
    """

    paths: tuple[str, ...]
    name: str | None = None
    fetched: bool = True


@dataclass(frozen=True)
class Corpus:
    """Corpus of one or more benchmarks, and its text settings.

    Attributes:
        name: unique name of the corpus.
        source: source of the passages.
        join: separator between title and text, for models that do not record one.
        query_max_length: maximum tokens of a query.
        passage_max_length: maximum tokens of a passage.
    """

    name: str
    source: Source
    join: str = " "
    query_max_length: int = 32
    passage_max_length: int = 128


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: a corpus with topics and qrels (or answers).

    Attributes:
        name: name on the command line.
        title: description.
        corpus: the corpus.
        topics: the queries.
        measures: reported measures, in ir-measures' notation.
        qrels: relevance judgments; None if answers are matched instead.
        answers: questions with answers; None if there are qrels.
        remove_query: drop hits whose id is the query's own.
        max_passage: rank documents by their best passage ("document#part").
        regex: answers are regular expressions.
        labels: paper -> name of the benchmark in its tables.
        metrics: papers' name of a measure -> measure.
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
        """Return the name used in file names.

        >>> from denserk.config.benchmarks import find_benchmark
        >>> find_benchmark("beir/cqadupstack/android").short
        'cqadupstack-android'
        """
        return self.name.removeprefix("beir/").replace("/", "-")

    def measure_of(self, paper: Paper, metric: str) -> str | None:
        """Return the measure that a paper calls `metric`, or None.

        >>> from denserk.config.benchmarks import benchmarks
        >>> benchmarks()["msmarco-titled-dev"].measure_of(Paper.MASTER, "R@1K")
        'Success@1000'
        >>> benchmarks()["nq-test"].measure_of(Paper.MLR, "R@20")
        'Success@20'
        """
        measure = self.metrics.get(metric)
        if paper is Paper.MASTER and measure is not None:
            return HIT_RATES.get(measure, measure)
        return measure


# MASTER's released evaluation calls success rates R@k.
HIT_RATES = {"R@50": "Success@50", "R@1000": "Success@1000"}


@dataclass(frozen=True)
class Group:
    """A group of benchmarks, reported by their unweighted mean.

    Attributes:
        name: name on the command line.
        title: description.
        members: names of benchmarks, and of groups that count as one.
        labels: paper -> name of the mean in its tables.
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
    """Return all benchmarks by name."""
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
    """Add the corpus, topics and qrels implied by the name of a BEIR dataset."""
    beir = name.replace("/", ":", 1)
    judged = Source((name,), f"{beir}/{split}", fetched)
    source = Source((name,), beir, fetched)
    corpus = Corpus(name, source, query_max_length=512, passage_max_length=512)
    return {**values, "corpus": corpus, "topics": judged, "qrels": judged}


@cache
def groups() -> Mapping[str, Group]:
    """Return all groups by name; members come before the groups that contain them."""
    rows = _recipe()["groups"]
    return {name: from_json(Group, {"name": name, **values}) for name, values in rows.items()}


class BenchmarkRow(NamedTuple):
    """One row of the listing, as text."""

    name: str
    title: str
    source: str
    measures: str
    papers: str


def find_benchmark(name: str) -> Benchmark | Group:
    """Return the benchmark or group of a name.

    Raises:
        UsageError: unknown name; the message has the nearest ones.

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
    """Return the benchmarks of several names: groups resolved, no duplicates, in order.

    >>> [each.name for each in find_benchmarks(["beir-small", "dl19", "beir/scifact"])][3:]
    ['beir/scidocs', 'beir/scifact', 'dl19']
    """
    found: dict[str, Benchmark] = {}
    for name in names:
        entry = find_benchmark(name)
        if isinstance(entry, Benchmark):
            found[entry.name] = entry
        else:
            found.update({each.name: each for each in find_benchmarks(entry.members)})
    return tuple(found.values())


def groups_within(names: Iterable[str]) -> tuple[Group, ...]:
    """Return the groups whose members are all among these benchmarks.

    >>> [group.name for group in groups_within(["beir-small"])]
    ['beir-small']
    """
    present = {each.name for each in find_benchmarks(names)}
    return tuple(
        group
        for group in groups().values()
        if all(each.name in present for each in find_benchmarks([group.name]))
    )


def list_benchmarks() -> list[BenchmarkRow]:
    """Return all benchmarks and groups as rows of text."""
    rows = [
        BenchmarkRow(
            each.name,
            each.title,
            _sources(each.corpus.source, each.qrels or each.answers),
            " ".join(each.measures),
            ", ".join(each.labels),
        )
        for each in benchmarks().values()
    ]
    for group in groups().values():
        measures = dict.fromkeys(m for s in find_benchmarks([group.name]) for m in s.measures)
        short = (member.removeprefix("beir/") for member in group.members)
        rows.append(
            BenchmarkRow(
                group.name,
                group.title,
                " ".join(short) if len(group.members) < 10 else f"{len(group.members)} datasets",
                " ".join(measures),
                ", ".join(group.labels),
            )
        )
    return rows


def _sources(corpus: Source, judged: Source | None) -> str:
    parts = []
    for source in (corpus, judged):
        if source is not None:
            local = f"$DENSERK_CACHE/{source.paths[0]}"
            parts.append((source.name or local) if source.fetched else local)
    return " + ".join(dict.fromkeys(parts))


@dataclass(frozen=True, kw_only=True)
class BenchmarkPaths:
    """Input and output of the benchmark command."""

    runs: tuple[str, ...] = option((), "--run", metavar="FILE|DIR", repeat=True)
    """Run file of the benchmark, or folder of runs named by benchmark; repeatable."""
    model: str | None = option(
        None, "--encoder", "--model-name-or-path", metavar="NAME|DIR|HUB_ID", shown_default="none"
    )
    """Model to encode and search each benchmark with; its runs are written to --output."""
    output: str | None = option(None, metavar="DIR", shown_default="required with --model")
    """Folder for the runs of --model."""
    against: tuple[Paper, ...] = option(
        (), repeat=True, metavar="|".join(Paper), shown_default="none"
    )
    """Paper whose published figures are shown for comparison; repeatable."""
    list: bool = False
    """List all benchmarks with sources, measures and papers, and exit."""

    def __post_init__(self) -> None:
        if (self.model is None) != (self.output is None):
            raise UsageError("--model and --output go together", "give both, or --runs")
        if self.output == "-":
            raise UsageError("--output -: several runs are written", "name a folder")


@dataclass(frozen=True)
class MakeSettings(ResumeSettings):
    """Options of making a model's runs."""

    hits: int = option(1000, "-k")
    """Passages returned per query."""
    index_device: str | None = option(
        None, "--faiss-device", metavar="cpu|cuda|cuda:N", shown_default="as --device", rare=True
    )
    """Device of the search."""
    discard_vectors: bool = option(False, rare=True)
    """Delete the vectors and index of a corpus after its runs are made."""
