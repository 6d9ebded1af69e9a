"""What a suite of the field is: one row of data with the sources of its parts and its papers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


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
class Suite:
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

        >>> from denserk.settings.suites import find_suite
        >>> find_suite("beir/cqadupstack/android").short
        'cqadupstack-android'
        """
        return self.name.removeprefix("beir/").replace("/", "-")

    def measure_of(self, paper: Paper, metric: str) -> str | None:
        """The measure that a paper calls `metric`; None where there is no such measure.

        >>> from denserk.settings.suites import benchmarks
        >>> benchmarks()["msmarco-titled-dev"].measure_of(Paper.MASTER, "R@1K")
        'Success@1000'
        >>> benchmarks()["nq-test"].measure_of(Paper.MLR, "R@20")
        'Success@20'
        """
        measure = self.metrics.get(metric)
        if paper is Paper.MASTER and measure is not None:
            return HIT_RATES.get(measure, measure)
        return measure


HIT_RATES = {"R@50": "Success@50", "R@1000": "Success@1000"}
"""MASTER's released evaluation counts a query once it has any relevant passage, and says R@k."""


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
