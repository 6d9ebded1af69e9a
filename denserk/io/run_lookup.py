"""Runs whose queries are read in any order, wherever their hits are.

`denserk.io.runs.RunLookup` is one whose hits are in a file.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from denserk.config.formats import RunFormat
from denserk.io.run_columns import RankedWords


class RunByQuery(Protocol):
    """A run of which the hits of each query can be read."""

    @property
    def path(self) -> str | Path:
        """The file of the run, or what messages call it."""

    @property
    def format(self) -> RunFormat | None:
        """The format of the run; None: it is empty."""

    @property
    def queries(self) -> Sequence[str]:
        """The queries with hits, in the order of the run."""

    def hits(self, qid: str) -> tuple[list[str], list[float]]:
        """Return passages and scores of a query, in the order of the run."""

    def columns(self, qid: str) -> RankedWords | None:
        """Return the hits of a query, in the order of the run, as columns; None: read `hits`."""


class RunInMemory:
    """A run in memory: query id -> passage id -> score.

    >>> run = RunInMemory("run 1", {"q1": {"d1": 2.0}, "q2": {}})
    >>> run.queries, run.hits("q1"), run.hits("q3")
    (['q1', 'q2'], (['d1'], [2.0]), ([], []))
    """

    def __init__(self, name: str, scores: Mapping[str, Mapping[str, float]]) -> None:
        self.path = name
        self.queries = list(scores)  # also those without hits
        self.format = RunFormat.TREC if self.queries else None  # TREC's: a run with scores
        self._scores = scores

    def hits(self, qid: str) -> tuple[list[str], list[float]]:
        """Return passages and scores of a query, in the order of the run."""
        hits = self._scores.get(qid, {})
        return list(hits), list(hits.values())

    def columns(self, qid: str) -> RankedWords | None:
        """Return no columns: hits in memory are objects."""
        return None
