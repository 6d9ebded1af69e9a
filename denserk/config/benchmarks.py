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

# Papers with published figures; condenser: also coCondenser and gradient caching; mteb: the results
# of MTEB, whose systems are models of the hub. Their values are the names in lower case, as the
# command line and the recipes spell them.
Paper = StrEnum("Paper", "AGGRETRIEVER CONDENSER MASTER MLR MTEB")


@dataclass(frozen=True)
class Source:
    """Source of a corpus, of topics or of qrels."""

    paths: tuple[str, ...]  # under $DENSERK_CACHE, also with `.gz`; the first existing one is used
    # `irds:NAME`, `beir:NAME/SPLIT` or `hf:NAME:CONFIG/SPLIT`; None if no package has it
    name: str | None = None
    fetched: bool = True  # whether that package can download it

    @property
    def display_name(self) -> str:
        """Return the name, or the path at which a file is expected that no package downloads."""
        if self.name is not None and self.fetched:
            return self.name
        return f"$DENSERK_CACHE/{self.paths[0]}"


@dataclass(frozen=True)
class Corpus:
    """Corpus of one or more benchmarks, and its text settings."""

    name: str
    source: Source
    id_field: str | None = None  # of the passage ids in a local copy; None: detected
    join: str = " "  # for models that do not record one
    query_max_length: int = 32
    passage_max_length: int = 128


# eq=False: a benchmark can be in a set, although its mappings cannot be hashed
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
    # hits that the topics list as excluded_ids do not count, whatever made the run
    exclude_listed: bool = False
    max_passage: bool = False  # rank documents by their best passage ("document#part")
    regex: bool = False  # answers are regular expressions
    labels: Mapping[Paper, str] = field(default_factory=dict)  # its name in a paper's tables
    # papers' name of a measure -> measure; "master R@50" is what MASTER alone calls R@50
    metrics: Mapping[str, str] = field(default_factory=dict)

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
        """Return the name used in file names: cqadupstack-android of beir/cqadupstack/android."""
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
    """Return the sections of the recipe, which are the fields of each entry by its name."""
    return read_yaml(RECIPES / "benchmarks.yaml")


@cache
def benchmarks() -> Mapping[str, Benchmark]:
    """Return all benchmarks by name."""
    corpora = _recipe()["corpora"]
    benchmark_by_name = {}
    for name, recipe_fields in _recipe()["benchmarks"].items():
        if name.startswith("beir/"):
            fields = _beir_fields(name, **recipe_fields)
        else:
            corpus_name = recipe_fields["corpus"]
            corpus = {"name": corpus_name, **corpora[corpus_name]}
            fields = {"name": name, **recipe_fields, "corpus": corpus}
        benchmark_by_name[name] = from_json(Benchmark, fields)
    return benchmark_by_name


def _beir_fields(
    name: str, split: str = "test", fetched: bool = True, **other_fields: Any
) -> dict[str, Any]:
    """Return a benchmark's fields, with the sources that the name of a BEIR dataset implies.

    Of beir/nq, the corpus is beir:nq, and topics and qrels are beir:nq/test.
    """
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
        **other_fields,
        "corpus": corpus,
        "topics": source_of_split,
        "qrels": source_of_split,
    }


@cache
def groups() -> Mapping[str, Group]:
    """Return all groups by name; members come before the groups that contain them."""
    group_by_name = {}
    for name, recipe_fields in _recipe()["groups"].items():
        group_by_name[name] = from_json(Group, {"name": name, **recipe_fields})
    return group_by_name


def find_benchmark(name: str) -> Benchmark | Group:
    """Return the benchmark or group of a name; an unknown name is a UsageError with the nearest.

    "beir:nq", as sources are spelled, is "beir/nq", and a slash at the end is ignored.
    """
    entries: dict[str, Benchmark | Group] = {**benchmarks(), **groups()}
    name = name.replace("beir:", "beir/").rstrip("/")
    if name not in entries:
        hint = "denserk benchmark --list prints all of them"
        raise unknown_name("benchmark", name, entries, hint)
    return entries[name]


def find_benchmarks(names: Iterable[str]) -> tuple[Benchmark, ...]:
    """Return the benchmarks of several names, each once, in order; a group is its members."""
    benchmark_by_name: dict[str, Benchmark] = {}
    for entry in map(find_benchmark, names):
        members = [entry] if isinstance(entry, Benchmark) else find_benchmarks(entry.members)
        for benchmark in members:
            benchmark_by_name[benchmark.name] = benchmark
    return tuple(benchmark_by_name.values())


def groups_within(names: Iterable[str]) -> tuple[Group, ...]:
    """Return the groups whose members are all among these benchmarks."""
    benchmarks_of_names = set(find_benchmarks(names))
    complete_groups = []
    for group in groups().values():
        if benchmarks_of_names.issuperset(find_benchmarks([group.name])):
            complete_groups.append(group)
    return tuple(complete_groups)


# Columns of `list_benchmarks`.
COLUMNS = ("name", "title", "source", "measures", "papers")


def list_benchmarks() -> list[tuple[str, ...]]:
    """Return all benchmarks and groups as rows of text."""
    entries: list[Benchmark | Group] = [*benchmarks().values(), *groups().values()]
    return [
        (
            entry.name,
            entry.title,
            " ".join(_source_names(entry)),
            " ".join(_measures(entry)),
            ", ".join(entry.labels),  # the papers that report it
        )
        for entry in entries
    ]


def _source_names(entry: Benchmark | Group) -> list[str]:
    """Return the names of a benchmark's corpus and qrels or answers, or of a group's members."""
    if isinstance(entry, Group):
        return list(entry.members)
    names = [entry.corpus.source.display_name]
    judgments = entry.qrels or entry.answers
    if judgments is not None and judgments.display_name not in names:
        names.append(judgments.display_name)
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
    """Model, also openai:NAME, to encode and search each benchmark with; its runs are written to
    --output."""
    output: str | None = option(None, metavar="DIR", needs="model")
    """Folder for the runs of --model."""
    against: tuple[Paper, ...] = option((), repeat=True, metavar="|".join(Paper))
    """Paper, or mteb, whose published figures are shown for comparison; repeatable."""
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


# how runs are made with --model; the docstring is a heading of --help
class MakeSettings(ResumeSettings):
    """Search with --model."""

    hits: int = option(1000, "-k")
    """Passages returned per query."""
    index_device: str | None = setting(None, metavar="cpu|cuda|cuda:N")
    """Device of the search. [default: as --device]"""
    discard_vectors: bool = setting(False)
    """Delete the vectors and index of a corpus after its runs are made."""
