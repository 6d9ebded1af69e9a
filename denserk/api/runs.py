"""Runs in memory."""

from typing import TYPE_CHECKING, Self

from denserk.api.inputs import path_text, run_lines
from denserk.api.options import PathName
from denserk.config.options import build, typed_values
from denserk.config.shared import TagSettings
from denserk.extras import require
from denserk.io.runs import read_run_scores
from denserk.io.written_files import write_lines
from denserk.python_inputs import read_scores

if TYPE_CHECKING:
    import pandas as pd


class Run(dict[str, dict[str, float]]):
    """A ranking of every query: {query id: {passage id: score}}, best first."""

    weights: tuple[float, ...] = ()  # of the runs that were fused into this one

    def __repr__(self) -> str:
        hits = sum(map(len, self.values()))
        weights = f", weights {self.weights}" if self.weights else ""
        return f"<Run: {len(self):,} queries, {hits:,} hits{weights}>"

    @classmethod
    def load(cls, path: PathName) -> Self:
        """Read a run in any format that `denserk eval` reads."""
        return cls(read_run_scores(path_text(path, "path")))

    @classmethod
    def from_pandas(cls, frame: "pd.DataFrame") -> Self:
        """Take a run from columns qid, docid and score."""
        return cls(read_scores(frame, "run"))

    def save(self, path: PathName, *, tag: str = "denserk") -> None:
        """Write a TREC run, equal scores in their order. The file appears whole or not at all.

        `tag` is the last column of each line.
        """
        name = path_text(path, "path")
        checked = build(TagSettings, typed_values("Run.save", {"tag": tag}, TagSettings))
        write_lines(name, run_lines(self, checked.tag))

    def to_pandas(self) -> "pd.DataFrame":
        """Return columns qid, docid, rank (from 1) and score."""
        pandas = require("pandas", "Run.to_pandas")
        rows = [
            (qid, docid, rank, score)
            for qid, hits in self.items()
            for rank, (docid, score) in enumerate(hits.items(), start=1)
        ]
        frame: pd.DataFrame = pandas.DataFrame(rows, columns=["qid", "docid", "rank", "score"])
        return frame
