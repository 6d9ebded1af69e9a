"""Benchmarks of `denserk/recipes/benchmarks.yaml`, and options of the benchmark command."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from denserk.config.options import Settings, from_json, option, setting
from denserk.config.shared import ResumeSettings
from denserk.config.values import unknown_name
from denserk.config.yaml_files import RECIPES, read_yaml

# Papers with published figures; condenser: also coCondenser and gradient caching.
Paper = StrEnum("Paper", "AGGRETRIEVER CONDENSER MASTER MLR")


@dataclass(frozen=True)
class Source:
    """Source of a corpus, of topics or of qrels."""

    paths: tuple[str, ...]  # under $DENSERK_CACHE, also with `.gz`; the first existing one is used
    name: str | None = None  # `irds:NAME` or `beir:NAME/SPLIT`; None if no package has it
    fetched: bool = True  # whether that package can download it

    @property
    def shown(self) -> str:
        """Return the name, or the path of a file that no package downloads."""
        if self.name is not None and self.fetched:
            return self.name
        return f"$DENSERK_CACHE/{self.paths[0]}"


@dataclass(frozen=True)
class Corpus:
    """Corpus of one or more benchmarks, and its text settings."""

    name: str
    source: Source
    join: str = " "  # for models that do not record one
    query_max_length: int = 32
    passage_max_length: int = 128


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A benchmark: a corpus with topics, and with qrels or answers."""

    name: str
    title: str
    corpus: Corpus
    topics: Source
    measures: tuple[str, ...]  # in ir-measures' notation
    qrels: Source | None = None  # None if answers are matched instead
    answers: Source | None = None  # questions with answers
    remove_query: bool = False  # drop hits whose id is the query's own
    max_passage: bool = False  # rank documents by their best passage ("document#part")
    regex: bool = False  # answers are regular expressions
    labels: Mapping[Paper, str] = field(default_factory=dict)  # its name in a paper's tables
    metrics: Mapping[str, str] = field(default_factory=dict)  # papers' name of a measure -> measure

    @property
    def sources(self) -> dict[str, Source]:
        """Return the sources of corpus, topics, qrels and answers, without those it lacks."""
        sources = {"corpus": self.corpus.source, "topics": self.topics}
        if self.qrels is not None:
            sources["qrels"] = self.qrels
        if self.answers is not None:
            sources["answers"] = self.answers
        return sources

    @property
    def short(self) -> str:
        """Return the name used in file names, such as cqadupstack-android."""
        return self.name.removeprefix("beir/").replace("/", "-")


@dataclass(frozen=True)
class Group:
    """A group of benchmarks, reported by their unweighted mean."""

    name: str
    title: str
    members: tuple[str, ...]  # benchmarks, and groups that count as one
    labels: Mapping[Paper, str] = field(default_factory=dict)  # its name in a paper's tables


@cache
def _recipe() -> Mapping[str, Mapping[str, Any]]:
    return read_yaml(RECIPES / "benchmarks.yaml")


@cache
def benchmarks() -> Mapping[str, Benchmark]:
    """Return all benchmarks by name."""
    corpora = _recipe()["corpora"]
    benchmark_by_name = {}
    for name, row in _recipe()["benchmarks"].items():
        values = {"name": name, **row}
        if name.startswith("beir/"):
            values = _beir(**values)
        corpus = values["corpus"]
        if isinstance(corpus, str):
            values["corpus"] = {"name": corpus, **corpora[corpus]}
        benchmark_by_name[name] = from_json(Benchmark, values)
    return benchmark_by_name


def _beir(name: str, split: str = "test", fetched: bool = True, **values: Any) -> dict[str, Any]:
    """Add the corpus, topics and qrels implied by the name of a BEIR dataset."""
    dataset = name.replace("/", ":", 1)
    source = {"paths": [name], "name": dataset, "fetched": fetched}
    source_of_split = {**source, "name": f"{dataset}/{split}"}
    corpus = {
        "name": name,
        "source": source,
        "query_max_length": 512,
        "passage_max_length": 512,
    }
    return {
        "name": name,
        **values,
        "corpus": corpus,
        "topics": source_of_split,
        "qrels": source_of_split,
    }


@cache
def groups() -> Mapping[str, Group]:
    """Return all groups by name; members come before the groups that contain them."""
    rows = _recipe()["groups"].items()
    return {name: from_json(Group, {"name": name, **values}) for name, values in rows}


def find_benchmark(name: str) -> Benchmark | Group:
    """Return the benchmark or group of a name; the error of an unknown one has the nearest."""
    entries: dict[str, Benchmark | Group] = {**benchmarks(), **groups()}
    name = name.replace("beir:", "beir/").rstrip("/")
    if name not in entries:
        hint = "denserk benchmark --list prints all of them"
        raise unknown_name("benchmark", name, entries, hint)
    return entries[name]


def find_benchmarks(names: Iterable[str]) -> tuple[Benchmark, ...]:
    """Return the benchmarks of several names: groups resolved, no duplicates, in order."""
    benchmark_by_name: dict[str, Benchmark] = {}
    for entry in map(find_benchmark, names):
        members = [entry] if isinstance(entry, Benchmark) else find_benchmarks(entry.members)
        for benchmark in members:
            benchmark_by_name[benchmark.name] = benchmark
    return tuple(benchmark_by_name.values())


def groups_within(names: Iterable[str]) -> tuple[Group, ...]:
    """Return the groups whose members are all among these benchmarks."""
    present = set(find_benchmarks(names))
    contained = []
    for group in groups().values():
        if present.issuperset(find_benchmarks([group.name])):
            contained.append(group)
    return tuple(contained)


# Columns of `list_benchmarks`.
COLUMNS = ("name", "title", "source", "measures", "papers")


def list_benchmarks() -> list[tuple[str, ...]]:
    """Return all benchmarks and groups as rows of text."""
    entries: list[Benchmark | Group] = [*benchmarks().values(), *groups().values()]
    return [
        (
            entry.name,
            entry.title,
            " ".join(_sources(entry)),
            " ".join(_measures(entry)),
            ", ".join(entry.labels),
        )
        for entry in entries
    ]


def _sources(entry: Benchmark | Group) -> list[str]:
    """Return the names of a benchmark's corpus and judgments, or of a group's members."""
    if isinstance(entry, Group):
        return list(entry.members)
    names = [entry.corpus.source.shown]
    relevance = entry.qrels or entry.answers
    if relevance is not None and relevance.shown not in names:
        names.append(relevance.shown)
    return names


def _measures(entry: Benchmark | Group) -> list[str]:
    """Return the measures of a benchmark, or of all benchmarks of a group, each once."""
    measures: list[str] = []
    for benchmark in find_benchmarks([entry.name]):
        measures += [measure for measure in benchmark.measures if measure not in measures]
    return measures


class BenchmarkPaths(Settings, kw_only=True):
    """Input and output."""

    runs: tuple[str, ...] = option((), "--run", metavar="FILE|DIR", repeat=True)
    """Run file of the benchmark, or folder of runs named by benchmark; repeatable."""
    model: str | None = option(
        None,
        "--encoder",
        "--model-name-or-path",
        metavar="NAME|DIR|HUB_ID",
        needs="output",
        completes="models",
    )
    """Model to encode and search each benchmark with; its runs are written to --output."""
    output: str | None = option(None, metavar="DIR", needs="model")
    """Folder for the runs of --model."""
    against: tuple[Paper, ...] = option((), repeat=True, metavar="|".join(Paper))
    """Paper whose published figures are shown for comparison; repeatable."""
    list: bool = False
    """List all benchmarks with sources, measures and papers, and exit."""

    @property
    def evaluated(self) -> tuple[str, ...]:
        """Return the run files and folders of runs that are evaluated, those of a model last."""
        return (*self.runs, self.output) if self.output else self.runs

    @property
    def has_folders(self) -> bool:
        """Return whether any of them is a folder of runs; that of a model may not exist yet."""
        return self.output is not None or any(Path(run).is_dir() for run in self.runs)


class MakeSettings(ResumeSettings):
    """Search with --model."""

    hits: int = option(1000, "-k")
    """Passages returned per query."""
    index_device: str | None = setting(None, metavar="cpu|cuda|cuda:N")
    """Device of the search. [default: as --device]"""
    discard_vectors: bool = setting(False)
    """Delete the vectors and index of a corpus after its runs are made."""
