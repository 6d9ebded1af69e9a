"""The benchmarks of `denserk/recipes/benchmarks.yaml` by name, and the options that name them."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, NamedTuple

from denserk.errors import UsageError
from denserk.settings.options import from_json
from denserk.settings.recipes import FOLDER, read_yaml
from denserk.settings.suite import Corpus, Group, Source, Suite


@cache
def _recipe() -> Mapping[str, Mapping[str, Any]]:
    return read_yaml(FOLDER / "benchmarks.yaml")


@cache
def benchmarks() -> Mapping[str, Suite]:
    """Return every benchmark by its name."""
    corpora = {
        name: from_json(Corpus, {"name": name, **values})
        for name, values in _recipe()["corpora"].items()
    }

    def benchmark(name: str, values: Mapping[str, Any]) -> Suite:
        if name.startswith("beir/"):
            values = _beir(name, **values)
        else:
            values = {**values, "corpus": corpora[values["corpus"]]}
        return from_json(Suite, {"name": name, **values})

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


class SuiteRow(NamedTuple):
    """One line of the listing; all of it text."""

    name: str
    title: str
    source: str
    measures: str
    papers: str


def find_suite(name: str) -> Suite | Group:
    """The suite or group of a name.

    Raises:
        UsageError: none is called so; the nearest names are told.

    >>> find_suite("dl19").measures
    ('nDCG@10', 'AP(rel=2)', 'R(rel=2)@1000')
    """
    known: dict[str, Suite | Group] = {**benchmarks(), **groups()}
    name = name.replace(":", "/") if name.startswith("beir:") else name.rstrip("/")
    if name not in known:
        near = get_close_matches(name, known, n=3, cutoff=0.4)
        near += [other for other in known if other.endswith(f"/{name}") and other not in near]
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(
            f"no benchmark is called {name!r}", f"{hint}denserk benchmark --list prints all of them"
        )
    return known[name]


def find_suites(names: Iterable[str]) -> tuple[Suite, ...]:
    """The suites of several names, groups resolved, each once, in order.

    Raises:
        UsageError: a name is unknown.

    >>> [suite.name for suite in find_suites(["beir-small", "dl19", "beir/scifact"])][3:]
    ['beir/scidocs', 'beir/scifact', 'dl19']
    """
    found: dict[str, Suite] = {}
    for name in names:
        entry = find_suite(name)
        if isinstance(entry, Suite):
            found[entry.name] = entry
        else:
            found.update({suite.name: suite for suite in find_suites(entry.members)})
    return tuple(found.values())


def groups_within(names: Iterable[str]) -> tuple[Group, ...]:
    """The groups whose means can be told from suites of these names, in the order of `groups`.

    >>> [group.name for group in groups_within(["beir-small"])]
    ['beir-small']
    """
    present = {suite.name for suite in find_suites(names)}
    return tuple(
        group
        for group in groups().values()
        if all(suite.name in present for suite in find_suites([group.name]))
    )


def list_suites() -> list[SuiteRow]:
    """Every suite and group as lines of text."""
    rows = [
        SuiteRow(
            suite.name,
            suite.title,
            _told(suite.corpus.source, suite.qrels or suite.answers),
            " ".join(suite.measures),
            ", ".join(suite.labels),
        )
        for suite in benchmarks().values()
    ]
    for group in groups().values():
        measures = dict.fromkeys(m for s in find_suites([group.name]) for m in s.measures)
        short = (member.removeprefix("beir/") for member in group.members)
        rows.append(
            SuiteRow(
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
