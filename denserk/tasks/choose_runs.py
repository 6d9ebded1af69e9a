"""Runs of blocks of queries, and what retrievers cost, for `denserk choose`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from denserk.evaluation.choice import Cost
from denserk.evaluation.evaluator import Evaluator
from denserk.evaluation.measures import Measure
from denserk.evaluation.results import Grades, Run
from denserk.tasks.choose_candidates import (
    Block,
    Retriever,
    RunFile,
    recorded_seconds_per_query,
)
from denserk.tasks.choose_folder import read_hits, write_hits
from denserk.tasks.choose_json import read_json, write_json

COSTS = "costs.json"


@dataclass
class Costs:
    """Seconds of building and of searching, by retriever; kept in costs.json between calls."""

    path: Path
    build_seconds: dict[str, float] = field(default_factory=dict)
    is_built: dict[str, bool] = field(default_factory=dict)  # false where that was interrupted
    search_seconds: dict[str, float] = field(default_factory=dict)
    searched_queries: dict[str, int] = field(default_factory=dict)

    def read(self) -> None:
        """Read the costs of an earlier call."""
        if self.path.is_file():
            values = read_json(self.path)
            self.build_seconds = values["build_seconds"]
            self.is_built = values["is_built"]
            self.search_seconds = values["search_seconds"]
            self.searched_queries = values["searched_queries"]

    def forget_searches(self) -> None:
        """Forget the costs of searching: a comparison that starts over searches again."""
        self.search_seconds = {}
        self.searched_queries = {}

    def write(self) -> None:
        """Write the costs."""
        values = {
            "build_seconds": self.build_seconds,
            "is_built": self.is_built,
            "search_seconds": self.search_seconds,
            "searched_queries": self.searched_queries,
        }
        write_json(self.path, values)

    def add_build(self, name: str, seconds: float) -> None:
        """Add to the time of building a retriever."""
        self.build_seconds[name] = self.build_seconds.get(name, 0.0) + seconds

    def add_search(self, name: str, seconds: float, queries: int) -> None:
        """Add the search of some queries to the time of a retriever, without that of its parts."""
        self.search_seconds[name] = self.search_seconds.get(name, 0.0) + seconds
        self.searched_queries[name] = self.searched_queries.get(name, 0) + queries

    def of_system(self, retriever: Retriever) -> Cost:
        """Return what a system costs, with all that it is made of."""
        retrievers = retriever.retrievers_to_search()
        seconds = total([self._seconds_per_query(part) for part in retrievers])
        return Cost(
            query_milliseconds=None if seconds is None else 1000 * seconds,
            passage_bytes=total([part.bytes_per_passage for part in retrievers]),
            build_minutes=self._build_minutes(retriever),
        )

    def _build_minutes(self, retriever: Retriever) -> float | None:
        """Return the time of building a system; None with a run file, which was built elsewhere."""
        retrievers = retriever.retrievers_to_prepare()
        if any(isinstance(part, RunFile) for part in retrievers):
            return None
        return sum(self.build_seconds.get(part.name, 0.0) for part in retrievers) / 60

    def _seconds_per_query(self, retriever: Retriever) -> float | None:
        """Return the time of a query in a retriever without its parts; None: it is not known."""
        if isinstance(retriever, RunFile):
            return recorded_seconds_per_query(retriever.path)
        queries = self.searched_queries.get(retriever.name)
        return self.search_seconds[retriever.name] / queries if queries else None


def total(values: Sequence[float | None]) -> float | None:
    """Return the sum of costs; None if one of them is not known.

    >>> total([1.0, 2.0]), total([1.0, None])
    (3.0, None)
    """
    known_values = [value for value in values if value is not None]
    return sum(known_values) if len(known_values) == len(values) else None


class RunsOfBlock:
    """The runs of a block of queries, searched for when they are first needed, or read."""

    def __init__(self, block: Block, folder: Path, costs: Costs) -> None:
        self._block = block
        self._folder = folder
        self._costs = costs
        self._runs: dict[str, Run] = {}

    def path(self, retriever: Retriever) -> Path:
        """Return the file of a retriever's run."""
        return self._folder / f"{retriever.name}.trec"

    def run_of(self, retriever: Retriever) -> Run:
        """Return the run of a retriever, from its file, which is first written if it is absent.

        A run that was just written is read, too, so that its scores have the digits of the file,
        whether a comparison was interrupted or not.
        """
        if retriever.name not in self._runs:
            path = self.path(retriever)
            runs_of_parts = self.runs_of_parts(retriever)
            if not path.is_file():
                started = time.perf_counter()
                results = list(retriever.search(self._block, runs_of_parts))
                seconds = time.perf_counter() - started
                self._costs.add_search(retriever.name, seconds, len(self._block.queries))
                write_hits(path, iter(results), retriever.name, retriever.score_digits)
            self._runs[retriever.name] = read_hits(path)
        return self._runs[retriever.name]

    def runs_of_parts(self, retriever: Retriever) -> list[Run]:
        """Return the runs of the parts of a retriever."""
        return [self.run_of(part) for part in retriever.parts]


def values_of_run(run: Run, judgments: Grades, measure: Measure) -> list[float]:
    """Return the values of a measure, in the order of the judged queries; 0 without hits."""
    runs_with_hits = {qid: hits for qid, hits in run.items() if hits}
    if runs_with_hits.keys().isdisjoint(judgments):
        return [0.0] * len(judgments)
    result = Evaluator([measure], judgments).evaluate("run", runs_with_hits)
    value_by_qid = result.per_query[str(measure)]
    return [value_by_qid[qid] for qid in judgments]
