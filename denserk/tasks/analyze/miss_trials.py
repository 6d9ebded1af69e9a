"""What is tried for relevant passages that a run missed: changes, and the ranks they lead to."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.config.analysis import MissesSettings
from denserk.evaluation.results import Grades
from denserk.index.ranking import Hits
from denserk.records import Passage, Query
from denserk.tasks.analyze.miss_search import DenseSearch, HitsByQuery


class Miss(NamedTuple):
    """A relevant passage that a run missed."""

    qid: str
    docid: str
    grade: int
    rank: int | None  # in the run; None if the run does not have it for the query


class Trial(NamedTuple):
    """A change that was tried for a missed passage, and the rank that it gave it."""

    change: str
    rank: int | None  # None: not within the hits that were looked at


class Fix(NamedTuple):
    """What a change does to all queries: other hits, or other judgments."""

    hits: HitsByQuery
    grades: Grades | None = None


@dataclass
class Evidence:
    """What is known of a run and of its collection.

    `texts` are those of the analysed and judged passages and of the first hits, as far as the
    corpus has them; none without a corpus. `queries` are all that are analysed, as they were
    searched; none without topics. `queries_with_field` are the same with a further field of the
    topics, by what --set topics-field takes for them, such as "title,text".
    """

    settings: MissesSettings
    hits: HitsByQuery  # of the analysed queries, the best first
    grades: Grades
    queries: Mapping[str, Query]
    texts: Mapping[str, Passage]
    queries_with_field: Mapping[str, Mapping[str, Query]] = field(default_factory=dict)
    hubs: Collection[str] = ()

    @property
    def k(self) -> int:
        """The number of first hits."""
        return self.settings.k

    def is_relevant(self, qid: str, docid: str) -> bool:
        """Return whether a passage is judged relevant for a query."""
        return self.grades[qid].get(docid, 0) >= self.settings.relevance_level

    def relevant(self, qid: str) -> list[str]:
        """Return the relevant passages of a query."""
        return [docid for docid in self.grades[qid] if self.is_relevant(qid, docid)]

    def texts_of(self, miss: Miss) -> list[Passage]:
        """Return the missed passage as the corpus has it, alone; none if its text is not known."""
        passage = self.texts.get(miss.docid)
        return [] if passage is None else [passage]

    def above(self, miss: Miss) -> Hits:
        """Return the hits above a missed passage; none if it is not in the run.

        Such a passage has no rank that would rise if hits were left out.
        """
        if miss.rank is None:
            return []
        return self.hits[miss.qid][: miss.rank - 1]


class Change(ABC):
    """A change of the collection, the search, a passage or a query.

    A change is tried for all missed passages, since texts and queries are encoded together.
    """

    cause: str  # a key of `denserk.io.misses.TITLES`
    name: str  # of the change, in the table of gains

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence

    @abstractmethod
    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Return the trial of each missed passage; None where the change does not apply."""

    def change_all_queries(self) -> Fix | None:
        """Return what the change does to all queries; None where it is of single passages."""
        return None


class SingleChange(Change):
    """A change that looks at each missed passage alone."""

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Return the trial of each missed passage; None where the change does not apply."""
        return [self._trial(miss) for miss in misses]

    @abstractmethod
    def _trial(self, miss: Miss) -> Trial | None:
        """Return the trial of a missed passage; None where the change does not apply."""


class TextChange(Change):
    """Other texts of a passage are encoded, and the best of them is ranked among the hits."""

    task: str  # that the progress bar names

    def __init__(self, evidence: Evidence, dense: DenseSearch) -> None:
        super().__init__(evidence)
        self._dense = dense

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Encode the texts of all missed passages, and rank the best of each among the hits."""
        scores = scores_of_texts(self._dense, self.task, misses, self._texts)
        return [self._trial_of_scores(miss, scores[miss]) for miss in misses]

    @abstractmethod
    def _texts(self, miss: Miss) -> list[Passage]:
        """Return the texts of a missed passage; none where the change does not apply."""

    def _trial_of_scores(self, miss: Miss, scores: NDArray[np.float32]) -> Trial | None:
        """Return the trial of a missed passage by the scores (T,) of its texts."""
        if not len(scores):
            return None
        best = int(scores.argmax())
        rank = self._dense.rank_with(miss.qid, miss.docid, float(scores[best]))
        return Trial(self._description(best, len(scores)), rank)

    @abstractmethod
    def _description(self, best: int, count: int) -> str:
        """Return what was changed, by the number of the best text, from 0, and that of all."""


def scores_of_texts(
    dense: DenseSearch,
    task: str,
    misses: Iterable[Miss],
    texts_of: Callable[[Miss], Sequence[Passage]],
) -> dict[Miss, NDArray[np.float32]]:
    """Return the scores, for the query of each miss, of the texts that `texts_of` returns for it.

    A miss may have several texts, or none. Equal texts are encoded once.
    """
    row_of_text: dict[tuple[str, str], int] = {}
    passages: list[Passage] = []
    rows_of_miss = {}
    for miss in misses:
        rows = []
        for passage in texts_of(miss):
            key = (passage.title, passage.text)
            if key not in row_of_text:
                row_of_text[key] = len(passages)
                passages.append(passage)
            rows.append(row_of_text[key])
        rows_of_miss[miss] = rows
    vectors = dense.encode(task, passages)
    return {miss: dense.scores(miss.qid, vectors[rows]) for miss, rows in rows_of_miss.items()}
