"""Prepared training data: tokenised queries and passages, who belongs to whom, memory-mapped.

queries.npy, passages.npy       token ids, one text after another (see `token_store`)
passages-keys.npy               equal for equal passages: by id, by text where there is none
candidates.npy                  each query's positives, then its negatives, as rows of passages
positive-counts.npy             how many of a query's candidates are positives
scores.npy                      the teacher's score of each candidate, NaN where it has none
query-rows.npy, qids.npy        each query's row of queries, and its id in UTF-8
manifest.json                   what it was made from, and what was left out
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.data.token_store import Ragged, open_array
from denserk.errors import InputError
from denserk.formats.manifest import Kind, read_manifest


class TrainingStore:
    """Prepared training data, opened; it costs no memory beyond the system's page cache.

    An item is a query's number, from 0, in the order of the files.

    Args:
        folder: what `training_examples.prepare` wrote.

    Raises:
        UsageError: there is no such folder.
        MismatchError: it holds something else.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        manifest = read_manifest(folder, Kind.TRAINING)
        self.contents: Mapping[str, Any] = manifest.contents
        self.query_pad_id = int(manifest.settings["query"]["pad_id"])
        self.passage_pad_id = int(manifest.settings["passage"]["pad_id"])
        self.queries = Ragged(folder, "queries")
        self.passages = Ragged(folder, "passages")
        self.passage_keys: NDArray[np.int64] = open_array(folder / "passages-keys.npy")
        self.candidates = Ragged(folder, "candidates")
        self.positive_counts: NDArray[np.int64] = open_array(folder / "positive-counts.npy")
        self.scores: NDArray[np.float32] = open_array(folder / "scores.npy")
        self.query_rows: NDArray[np.int64] = open_array(folder / "query-rows.npy")
        self._qids = Ragged(folder, "qids")

    def __reduce__(self) -> tuple[type["TrainingStore"], tuple[Path]]:
        return TrainingStore, (self.folder,)  # another process maps the files itself

    def __len__(self) -> int:
        return len(self.query_rows)

    def qid(self, item: int) -> str:
        """An item's query id."""
        return self._qids[item].tobytes().decode("utf-8")

    def positives(self, item: int) -> NDArray[np.int64]:
        """An item's positives, as rows of `passages`."""
        return self.candidates[item][: self.positive_counts[item]]

    def negatives(self, item: int) -> NDArray[np.int64]:
        """An item's negatives, as rows of `passages`."""
        return self.candidates[item][self.positive_counts[item] :]

    def negative_counts(self) -> NDArray[np.int64]:
        """(N,) how many negatives each item has."""
        return np.diff(self.candidates.ends) - self.positive_counts

    def refuse_unscored(self) -> None:
        """Refuses data in which a candidate lacks the teacher's score.

        Raises:
            InputError: one does; the first is named.
        """
        if self.contents["unscored"]:
            raise unscored(**self.contents["first_unscored"])


def unscored(source: str, query: str, passage: str, line: int | None = None) -> InputError:
    """The refusal of a candidate without the teacher's score."""
    return InputError(
        source,
        line,
        f"no teacher's score of passage {passage} for query {query}",
        "a score for every positive and negative, which distillation learns from",
        f"write them: denserk convert {source} scored.jsonl --teacher MODEL",
    )
