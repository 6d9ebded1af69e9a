"""Benchmarks of `denserk/recipes/benchmarks.yaml`, and options of the benchmark command."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from typing import Any

from denserk.config.options import FOLDER, ResumeSettings, Settings, from_json, option, read_yaml
from denserk.errors import UsageError

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


@dataclass(frozen=True)
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
    return read_yaml(FOLDER / "benchmarks.yaml")


@cache
def benchmarks() -> Mapping[str, Benchmark]:
    """Return all benchmarks by name."""
    corpora, found = _recipe()["corpora"], {}
    for name, row in _recipe()["benchmarks"].items():
        if name.startswith("beir/"):
            row = _beir(name, **row)
        else:
            corpus = {"name": row["corpus"], **corpora[row["corpus"]]}
            row = {**row, "corpus": from_json(Corpus, corpus)}
        found[name] = from_json(Benchmark, {"name": name, **row})
    return found


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


def find_benchmark(name: str) -> Benchmark | Group:
    """Return the benchmark or group of a name; the error of an unknown one has the nearest."""
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
    """Return the benchmarks of several names: groups resolved, no duplicates, in order."""
    found: dict[str, Benchmark] = {}
    for name in names:
        entry = find_benchmark(name)
        if isinstance(entry, Benchmark):
            found[entry.name] = entry
        else:
            found.update({each.name: each for each in find_benchmarks(entry.members)})
    return tuple(found.values())


def groups_within(names: Iterable[str]) -> tuple[Group, ...]:
    """Return the groups whose members are all among these benchmarks."""
    present = {each.name for each in find_benchmarks(names)}
    members = {name: {each.name for each in find_benchmarks([name])} for name in groups()}
    return tuple(group for name, group in groups().items() if members[name] <= present)


# Columns of `list_benchmarks`.
COLUMNS = ("name", "title", "source", "measures", "papers")


def list_benchmarks() -> list[tuple[str, ...]]:
    """Return all benchmarks and groups as rows of text."""
    rows: list[tuple[str, ...]] = []
    entries: list[Benchmark | Group] = [*benchmarks().values(), *groups().values()]
    for entry in entries:
        if isinstance(entry, Benchmark):
            sources = (entry.corpus.source, entry.qrels or entry.answers)
            source = " + ".join(dict.fromkeys(each.shown for each in sources if each))
        else:
            short = " ".join(member.removeprefix("beir/") for member in entry.members)
            source = short if len(entry.members) < 10 else f"{len(entry.members)} datasets"
        measures = dict.fromkeys(m for one in find_benchmarks([entry.name]) for m in one.measures)
        papers = ", ".join(entry.labels)
        rows.append((entry.name, entry.title, source, " ".join(measures), papers))
    return rows


@dataclass(frozen=True, kw_only=True)
class BenchmarkPaths(Settings):
    """Input and output."""

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
        super().__post_init__()
        if (self.model is None) != (self.output is None):
            raise UsageError("--model and --output go together", "give both, or --runs")
        if self.output == "-":
            raise UsageError("--output -: several runs are written", "name a folder")


@dataclass(frozen=True)
class MakeSettings(ResumeSettings):
    """Search with --model."""

    hits: int = option(1000, "-k")
    """Passages returned per query."""
    index_device: str | None = option(
        None, "--faiss-device", metavar="cpu|cuda|cuda:N", shown_default="as --device", rare=True
    )
    """Device of the search."""
    discard_vectors: bool = option(False, rare=True)
    """Delete the vectors and index of a corpus after its runs are made."""
