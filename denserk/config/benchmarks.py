"""Benchmarks of `denserk/recipes/benchmarks.yaml`, and options of the benchmark command."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any

from denserk.config import options
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
        local = f"$DENSERK_CACHE/{self.paths[0]}"
        return (self.name or local) if self.fetched else local


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
        parts = {"corpus": self.corpus.source, "topics": self.topics}
        others = {"qrels": self.qrels, "answers": self.answers}
        return parts | {name: source for name, source in others.items() if source is not None}

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
    rows, corpora = _recipe()["benchmarks"], _recipe()["corpora"]
    found = {}
    for name, row in rows.items():
        own = _beir(name, **row) if name.startswith("beir/") else row
        if isinstance(corpus := own["corpus"], str):
            own = {**own, "corpus": {"name": corpus, **corpora[corpus]}}
        found[name] = options.from_json(Benchmark, {"name": name, **own})
    return found


def _beir(name: str, split: str = "test", fetched: bool = True, **values: Any) -> dict[str, Any]:
    """Add the corpus, topics and qrels implied by the name of a BEIR dataset."""
    beir = name.replace("/", ":", 1)
    source = {"paths": [name], "name": beir, "fetched": fetched}
    judged = {**source, "name": f"{beir}/{split}"}
    lengths = {"query_max_length": 512, "passage_max_length": 512}
    corpus = {"name": name, "source": source, **lengths}
    return {**values, "corpus": corpus, "topics": judged, "qrels": judged}


@cache
def groups() -> Mapping[str, Group]:
    """Return all groups by name; members come before the groups that contain them."""
    rows = _recipe()["groups"]
    return {
        name: options.from_json(Group, {"name": name, **values}) for name, values in rows.items()
    }


def find_benchmark(name: str) -> Benchmark | Group:
    """Return the benchmark or group of a name; the error of an unknown one has the nearest."""
    known: dict[str, Benchmark | Group] = {**benchmarks(), **groups()}
    name = name.replace("beir:", "beir/").rstrip("/")
    if name not in known:
        raise unknown_name("benchmark", name, known, "denserk benchmark --list prints all of them")
    return known[name]


def find_benchmarks(names: Iterable[str]) -> tuple[Benchmark, ...]:
    """Return the benchmarks of several names: groups resolved, no duplicates, in order."""
    found: dict[str, Benchmark] = {}
    for entry in map(find_benchmark, names):
        members = [entry] if isinstance(entry, Benchmark) else find_benchmarks(entry.members)
        found.update({each.name: each for each in members})
    return tuple(found.values())


def groups_within(names: Iterable[str]) -> tuple[Group, ...]:
    """Return the groups whose members are all among these benchmarks."""
    present = set(find_benchmarks(names))
    return tuple(g for g in groups().values() if present.issuperset(find_benchmarks([g.name])))


# Columns of `list_benchmarks`.
COLUMNS = ("name", "title", "source", "measures", "papers")


def list_benchmarks() -> list[tuple[str, ...]]:
    """Return all benchmarks and groups as rows of text."""
    rows: list[tuple[str, ...]] = []
    entries: list[Benchmark | Group] = [*benchmarks().values(), *groups().values()]
    for entry in entries:
        if isinstance(entry, Benchmark):
            sources = (entry.corpus.source, entry.qrels or entry.answers)
            parts = dict.fromkeys(each.shown for each in sources if each)
        else:
            parts = dict.fromkeys(entry.members)
        measures = dict.fromkeys(m for one in find_benchmarks([entry.name]) for m in one.measures)
        texts = (" ".join(parts), " ".join(measures), ", ".join(entry.labels))
        rows.append((entry.name, entry.title, *texts))
    return rows


class BenchmarkPaths(options.Settings, kw_only=True):
    """Input and output."""

    runs: tuple[str, ...] = options.option((), "--run", metavar="FILE|DIR", repeat=True)
    """Run file of the benchmark, or folder of runs named by benchmark; repeatable."""
    model: str | None = options.option(
        None, "--encoder", "--model-name-or-path", metavar="NAME|DIR|HUB_ID", needs="output"
    )
    """Model to encode and search each benchmark with; its runs are written to --output."""
    output: str | None = options.option(None, metavar="DIR", needs="model")
    """Folder for the runs of --model."""
    against: tuple[Paper, ...] = options.option((), repeat=True, metavar="|".join(Paper))
    """Paper whose published figures are shown for comparison; repeatable."""
    list: bool = False
    """List all benchmarks with sources, measures and papers, and exit."""


class MakeSettings(ResumeSettings):
    """Search with --model."""

    hits: int = options.option(1000, "-k")
    """Passages returned per query."""
    index_device: str | None = options.setting(None, metavar="cpu|cuda|cuda:N")
    """Device of the search. [default: as --device]"""
    discard_vectors: bool = options.setting(False)
    """Delete the vectors and index of a corpus after its runs are made."""
